"""`OutcomeLearner`: learning from outcomes of uses, as a worker of a store does it in its rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tttembed_store.sql.records import TOOL_CALLS

from tttembed_rag.errors import RewardError
from tttembed_tools.index import WEIGHT, Items
from tttembed_tools.learning import KEYWORD_WEIGHT, learn, usable
from tttembed_tools.outcomes import Outcomes

if TYPE_CHECKING:
    from tttembed_store.worker import Findings, Tenant

# Offsets that a verdict explains, at most.
_EXPLAINED = 3


class OutcomeLearner:
    """A `tttembed_store.worker.Learner` of what moves the search over some items.

    Args:
        outcomes: Where outcomes are kept.
        items: Gives the items as they are now.
        abstain: Whether the floor of the search is served.
    """

    judge = TOOL_CALLS

    def __init__(self, outcomes: Outcomes, items: Callable[[], Items], *, abstain: bool) -> None:
        self.embedder = outcomes.embedder
        self._outcomes, self._items, self._abstain = outcomes, items, abstain

    def learn(self, tenant: Tenant) -> Findings:
        """What the outcomes of *tenant* support.

        Raises:
            RewardError: For fewer than two requests an item helped that is here.
        """
        from tttembed_store.worker import Findings

        index = self._items().for_tenant(tenant.name)
        requests = usable(self._outcomes.requests(tenant.name, index.width), index)
        if len(requests) < 2:
            raise RewardError("expected at least 2 requests for which an item helped")
        if self._outcomes.alone(tenant.name, requests):  # it is believed like a user of his own search
            requests = [replace(request, source="") for request in requests]
        offsets = learn(requests, index)
        moves = any(offset.served for offset in offsets.values())
        weight = offsets.settings[KEYWORD_WEIGHT]
        why = [f"{offset.key} {offset.evidence}" for offset in offsets.values()][:_EXPLAINED]
        if weight != WEIGHT:
            why.append(f"BM25 weighs {weight:g} instead of {WEIGHT:g}")
        return Findings(
            offsets,
            serves=moves
            or weight != WEIGHT
            or (self._abstain and any(offsets.floor(task) is not None for task in offsets.tasks)),
            queries=len(requests),
            rewards=sum(len(request.outcomes) for request in requests),
            why="; ".join(why),
        )
