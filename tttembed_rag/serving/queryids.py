"""Under which id a query is learned from, and found again where the same text is asked once more."""

from __future__ import annotations

from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import TextId, named_for
from tttembed_rag.serving.context import current_query_id


def find_id(
    offsets: Offsets, query: str, task: str | None, *, tenant: str, owner: str, text_id: TextId | None
) -> str | None:
    """The id under which *offsets* of the tenant *owner* serve *query* a private offset; None where they do not.

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
        name = named_for(owner, tenant, one)
        # A NUL stands in the ids of sharing tenants alone: no text spells one of theirs.
        if one and "\0" not in one and offsets.find_private(task, name) is not None:
            return name
    return None
