"""Which rows are the vectors of one text, and which are so near each other that they count as one question."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from zlib import crc32

import numpy as np

from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import UnitRows

# Vectors with 1 - cosine below this count as vectors of the same text. One model embeds a text again within 1e-7 in
# another batch, 1e-6 in float16 and 8e-5 in bfloat16 (all-MiniLM-L6-v2).
_SAME = 1e-4
# Copies of a row are searched among this many nearest rows.
_NEAREST = 7
# The nearest rows are found in this many dimensions, by products with fixed orthonormal columns.
_PRODUCTS = 8
# Rows that are rounded and hashed, or compared with all others, in one block.
_BLOCK_ROWS = 1024
# The mean of 1 - cosine of queries and documents that is the unit of `Rewards.spread`: what the gate compares with a
# cosine was chosen where it is .77 to .94 (all-MiniLM-L6-v2). With .8 to .88 here, MiniLM gains as it did before there
# was a unit (harm.py: +.0005 to +.0013); a model distilled from it loses .0005 of .049 and .0018 of .035.
TYPICAL = 0.84
# Rows with 1 - cosine below so many spreads ask one question: with all-MiniLM-L6-v2 that is a cosine of about .95, and
# a typo, another case or other blanks stay above it. Of 600 different requests of nine collections at most 5 % lie so
# near another one.
NEAR = 0.05
# Above this many rows only vectors of the same text are looked for: comparing all with all takes their square.
_MOST_COMPARED = 20_000


def same_text(rows: UnitRows) -> IntArray:
    """(u,) a number for each of u rows; rows that are vectors of the same text, within `_SAME`, share it.

    The numbers follow a hash of the rows, not their order.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import KDTree

    hashes = np.empty(len(rows), np.uint64)  # of unit rows, rounded to five digits
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        rounded = (np.round(rows.rows(block).unit, 5) + 0.0).astype(np.float32)
        hashes[block] = [crc32(row) << 32 | int.from_bytes(blake2b(row, digest_size=4).digest()) for row in rounded]
    _, first, number = np.unique(hashes, return_index=True, return_inverse=True)
    sketched = rows.vectors[first] @ _sketch(rows.vectors.shape[1]) / rows.norms[first, None]
    reach = (2 * _SAME) ** 0.5
    neighbours = KDTree(sketched).query(sketched, k=range(2, 2 + _NEAREST), distance_upper_bound=reach)[1]
    row, place = np.nonzero(neighbours < len(first))
    other = neighbours[row, place]
    near = [rows.rows(first[ends]).unit for ends in (row, other)]
    same = np.vecdot(*near) > 1 - _SAME
    links = coo_array((np.ones(same.sum()), (row[same], other[same])), shape=(len(first), len(first)))
    parts = connected_components(links, directed=False)[1]
    # Each part is called by its least hash, so that the numbers are those of the hashes where no row has a copy.
    _, least, part = np.unique(parts, return_index=True, return_inverse=True)
    return np.asarray(np.unique(least[part], return_inverse=True)[1][number])


def near_copies(rows: UnitRows, spread: float) -> IntArray:
    """(u,) a number for each of u rows; rows within `NEAR` *spread* of the row that leads their group share it.

    The row with most neighbours leads the first group, among equals the one with the least hash; no row joins a group
    through a third one. The numbers do not depend on the order of the rows.
    """
    text = same_text(rows)
    _, first, place = np.unique(text, return_index=True, return_inverse=True)
    if len(first) > _MOST_COMPARED:
        return text
    unit = rows.rows(first).unit.astype(np.float32)
    blocks = range(0, len(unit), _BLOCK_ROWS)
    near = [np.nonzero(unit[start : start + _BLOCK_ROWS] @ unit.T > 1.0 - NEAR * spread) for start in blocks]
    row = np.concatenate([pairs[0] + start for start, pairs in zip(blocks, near, strict=True)])
    other = np.concatenate([pairs[1] for pairs in near])
    starts = np.searchsorted(row, np.arange(len(unit) + 1))
    group = np.full(len(unit), -1)
    for leader in np.argsort(-np.diff(starts), kind="stable").tolist():
        if group[leader] < 0:
            theirs = other[starts[leader] : starts[leader + 1]]
            group[theirs[group[theirs] < 0]] = leader
            group[leader] = leader
    return np.asarray(np.unique(group, return_inverse=True)[1][place])


@cache
def _sketch(width: int) -> FloatArray:
    """(width, at most 8) orthonormal columns: products with them bring no two rows further apart."""
    drawn = np.random.default_rng(0).standard_normal((width, min(width, _PRODUCTS)))
    return np.asarray(np.linalg.qr(drawn)[0], dtype=np.float32)
