"""`LearnedRecall`: the learned search over memories, which come and go and are each user's own."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tttembed_rag.serving.context import current_tenant
from tttembed_tools.catalog import Card
from tttembed_tools.learned import LearnedSearch

_log = logging.getLogger(__name__)


class LearnedRecall(LearnedSearch):
    """Finds the memories for a request among those of a user, and learns from which of them helped.

    It is a `LearnedSearch` whose items are the tenant's own: ``with tttembed_rag.context(tenant=user)`` stands around
    every call. Say `used` of a memory that helped with an answer, not of all that were recalled.
    """

    _kind = "memories"
    _apart = True

    def texts(self, names: Collection[str]) -> dict[str, str]:
        """The texts of the caller's memories of these *names*, in their order; without those that are not there."""
        index = self._index
        return {name: index.cards[index.rows[name]].text for name in names if name in index.rows}

    def forget(self, names: Collection[str]) -> None:
        """Take memories away, on disk too: their texts, vectors and outcomes.

        Where there were outcomes, all that was learned goes with them; what the others support is served again after
        the next `learn`. A name needs not be among those that this process has; one that nobody knows is logged.

        Raises:
            StoreUnavailable: The store is away; the memories are not found any more, but stand in it still: try again.
        """
        here = self._index.rows
        self.remove(names)
        keys = {name: Card(name, "").key for name in names}
        stored = self._outcomes.forget(current_tenant(), keys.values())
        if unknown := sum(name not in here and key not in stored for name, key in keys.items()):
            _log.warning("%d of %d memories were not there to be forgotten", unknown, len(keys))
