"""Pairs of many queries in one sequence: what all share once, what a query's rows share once, documents side by side.

A token sees the tokens before it that are of its own row: the frame, its query and its document. Places go on after the
query for each document, so that every row reads as it would alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from os.path import commonprefix
from typing import Any

from tttembed_rag.clients.local import EXTRA
from tttembed_rag.errors import require

# The number of the query, or of the document, of a token that all share, and of one that only fills the sequence.
SHARED, FILLED = -1, -2
# Tokens of a block of the kernel.
_BLOCK = 128


class Packed:
    """A sequence that begins with *frame*.

    Attributes:
        columns: Of all tokens the ids, the places, and the numbers of query and document.
        ends: Where the last token of each row stands.
    """

    def __init__(self, frame: Sequence[int]) -> None:
        self.columns: tuple[list[int], ...] = ([], [], [], [])
        self.ends: list[int] = []
        self.add(frame, 0, SHARED, SHARED)

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, ids: Sequence[int], place: int, query: int, document: int) -> None:
        """Lay tokens behind the others, from *place* on."""
        count = len(ids)
        values = ids, range(place, place + count), [query] * count, [document] * count
        for column, more in zip(self.columns, values, strict=True):
            column.extend(more)


def shared_tokens(rows: Sequence[list[int]]) -> int:
    """The tokens in front that all *rows* share; at least one token of each is left."""
    return min(len(commonprefix(rows)), min(map(len, rows)) - 1)  # noqa: RUF071 (of lists of tokens, not of paths)


def packed(queries: Sequence[Sequence[list[int]]], room: int) -> Iterator[Packed]:
    """Sequences of at most *room* tokens with the rows of all *queries* in order, none of which needs more room alone.

    A query with rows in several sequences stands in each of them.
    """
    heads = [rows[0][: shared_tokens(rows)] for rows in queries]
    frame = commonprefix(heads)  # noqa: RUF071 (the same)
    sequence, laid = Packed(frame), SHARED
    for query, (head, rows) in enumerate(zip(heads, queries, strict=True)):
        for document, row in enumerate(rows):
            own, rest = head[len(frame) :], row[len(head) :]
            if len(sequence) + len(own) * (laid != query) + len(rest) > room:
                yield sequence
                sequence, laid = Packed(frame), SHARED
            if laid != query:
                sequence.add(own, len(frame), query, SHARED)
                laid = query
            sequence.add(rest, len(head), query, document)
            sequence.ends.append(len(sequence) - 1)
    yield sequence


def mask_of(queries: Any, documents: Any) -> Any:
    """Whether each token sees each (1, 1, n, n), by the tensors (n,) of the numbers of their queries and documents."""
    at = require("torch", EXTRA).arange(len(queries), device=queries.device)
    return _sees(queries, documents)(0, 0, at[:, None], at)[None, None]


def blocks_of(queries: Any, documents: Any) -> Any:
    """The same for `flex_attention`, whose kernel passes over blocks in which nothing is seen."""
    seen = mask_of(queries, documents).unflatten(2, (-1, _BLOCK)).unflatten(4, (-1, _BLOCK))  # (1, 1, m, 128, m, 128)
    some, whole = seen.any(5).any(3), seen.all(5).all(3)
    ordered = [
        part.int()
        for chosen in (some & ~whole, whole)
        for part in (chosen.sum(-1), chosen.int().argsort(descending=True, stable=True))
    ]
    flex = require("torch.nn.attention.flex_attention", EXTRA)
    return flex.BlockMask.from_kv_blocks(*ordered, BLOCK_SIZE=_BLOCK, mask_mod=_sees(queries, documents))


def _sees(queries: Any, documents: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """Whether token i sees token j, in the form that `flex_attention` asks for."""

    def mask(_batch: Any, _head: Any, i: Any, j: Any) -> Any:
        of_query = (queries[i] == queries[j]) & ((documents[j] == SHARED) | (documents[i] == documents[j]))
        return (i >= j) & ((queries[j] == SHARED) | of_query)

    return mask
