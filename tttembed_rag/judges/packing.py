"""Pairs of many queries in one sequence: what all share once, what a query's rows share once, documents side by side.

A token sees the tokens before it that are of its own row: the frame, its query and its document. Places go on after the
query for each document, so that every row reads as it would alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any

from tttembed_rag.clients.local import EXTRA
from tttembed_rag.errors import require

# The number of the query of a token that all queries share, and of the document of one that all its documents share.
_SHARED = -1
# Tokens of a block of the kernel.
_BLOCK = 128


@dataclass(slots=True)
class Packed:
    """A sequence: of each token its id, its place, and the numbers of its query and its document.

    The last token of each of its *rows* stands at one of its *ends*.
    """

    ids: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, ids: Sequence[int], place: int, query: int, document: int) -> None:
        """Lay tokens behind the others, from *place* on."""
        self.ids += ids
        self.places += range(place, place + len(ids))
        self.queries += [query] * len(ids)
        self.documents += [document] * len(ids)


def shared_tokens(rows: Sequence[Sequence[int]]) -> int:
    """The tokens in front that all *rows* share; at least one token of each is left."""
    return min(len(commonprefix(rows)), min(map(len, rows)) - 1)  # noqa: RUF071 (of lists of tokens, not of paths)


def packed(queries: Sequence[Sequence[list[int]]], room: int) -> Iterator[Packed]:
    """Sequences of at most *room* tokens with the rows of all *queries*, each of which has *room* for itself.

    A query with rows in several sequences stands in each of them. Rows are numbered as they come.
    """
    # Of each query its head alone, for a frame is no longer than the shortest.
    heads = [rows[0][: shared_tokens(rows)] for rows in queries]
    frame = len(commonprefix(heads))  # noqa: RUF071 (the same)
    sequence, row = Packed(), 0
    sequence.add(heads[0][:frame], 0, _SHARED, _SHARED)
    for number, (head, rows) in enumerate(zip(heads, queries, strict=True)):
        is_laid = False
        for ids in rows:
            rest = ids[len(head) :]
            if len(sequence.ids) + (not is_laid) * (len(head) - frame) + len(rest) > room:
                yield sequence
                sequence, is_laid = Packed(), False
                sequence.add(head[:frame], 0, _SHARED, _SHARED)
            if not is_laid:
                sequence.add(head[frame:], frame, number, _SHARED)
                is_laid = True
            sequence.add(rest, len(head), number, row)
            sequence.ends.append(len(sequence.ids) - 1)
            sequence.rows.append(row)
            row += 1
    yield sequence


def mask_of(queries: Any, documents: Any) -> Any:
    """Whether each token sees each (1, 1, n, n), by the tensors (n,) of the numbers of their queries and documents."""
    at = require("torch", EXTRA).arange(len(queries), device=queries.device)
    return _sees(queries, documents)(0, 0, at[:, None], at)[None, None]


def blocks_of(queries: Any, documents: Any) -> Any:
    """The same as a mask of blocks for `flex_attention`, whose kernel passes over those in which nothing is seen."""
    flex = require("torch.nn.attention.flex_attention", EXTRA)
    seen = mask_of(queries, documents).unflatten(2, (-1, _BLOCK)).unflatten(4, (-1, _BLOCK))  # (1, 1, m, 128, m, 128)
    some, whole = seen.any(5).any(3), seen.all(5).all(3)
    ordered = [
        part
        for chosen in (some & ~whole, whole)
        for part in (chosen.sum(-1), chosen.int().argsort(descending=True, stable=True))
    ]
    return flex.BlockMask.from_kv_blocks(
        *(part.int() for part in ordered), BLOCK_SIZE=_BLOCK, mask_mod=_sees(queries, documents)
    )


def _sees(queries: Any, documents: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """Whether token i sees token j, in the form that `flex_attention` asks for."""

    def mask(_batch: Any, _head: Any, i: Any, j: Any) -> Any:
        of_query = (queries[i] == queries[j]) & ((documents[j] == _SHARED) | (documents[i] == documents[j]))
        return (i >= j) & ((queries[j] == _SHARED) | of_query)

    return mask
