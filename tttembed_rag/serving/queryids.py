"""The private offset of a query, by the ids under which it is found where the same text is asked once more."""

from __future__ import annotations

from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Offset, TextId, named_for
from tttembed_rag.serving.context import current_query_id


def private_offset(
    offsets: Offsets, query: str, task: str | None, *, tenant: str, owner: str, text_id: TextId | None
) -> Offset | None:
    """The private offset that *offsets* of the tenant *owner* serve *query*; None where they serve none.

    Looked for in this order: the id that the caller's `context` gives, the text's id in the store, the text itself.

    Args:
        offsets: Where it is looked for.

        query: Its text.

        task: Its task key; None where nothing names one.

        tenant: Whose it is.

        owner: Whose offsets they are.

        text_id: Text to its id in the store that the offsets come from; None without one.
    """
    if not (offsets.has_private and isinstance(query, str)):
        return None
    said = current_query_id()
    hashed = [text_id(one) for one in (said, query) if one] if text_id is not None else []
    for one in (said, *hashed, query):
        # A NUL stands in the ids of sharing tenants alone: no text spells one of theirs.
        if one and "\0" not in one and (found := offsets.find_private(task, named_for(owner, tenant, one))) is not None:
            return found
    return None
