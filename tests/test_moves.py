"""Documents that rise and fall between two searches, on twelve documents fanned out over a circle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tttembed_rag.evaluate.explaining import Explanation, Move, moves_between
from tttembed_rag.evaluate.index import FaissIndex
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import Offset

NAMES = "abcdefghijkl"


def on_circle(*degrees: float) -> np.ndarray:
    """Unit vectors at angles."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def turned_to(degrees: float) -> Explanation:
    """The moves of documents `a` to `l`, ten degrees apart, as a query next to `a` turns to another angle."""
    index = FaissIndex.from_vectors(on_circle(*range(0, 120, 10)))
    moves = moves_between(dict.fromkeys(NAMES, ""), index, on_circle(-1, degrees), {"l": 1.0}, top=10)
    return Explanation("", Offset("global", np.zeros(2), 1.0, 1, Evidence(1, None, None, "ungated", "")), moves)


def ranks(moves: Sequence[Move]) -> list[tuple[str, int, int]]:
    return [(move.document, move.rank_before, move.rank) for move in moves]


def test_moves_of_a_reversed_list() -> None:
    """A query turned to the far end reverses its list: the last six rise, the first six fall."""
    turned = turned_to(111)

    reversed_list = [(name, rank, 13 - rank) for rank, name in enumerate(NAMES, 1)]
    assert ranks(turned.rose) == reversed_list[:5:-1]
    assert ranks(turned.fell) == reversed_list[5::-1]


def test_documents_that_stay_do_not_move() -> None:
    """A turn past one neighbour swaps two documents and moves nothing else."""
    turned = turned_to(6)

    assert (ranks(turned.rose), ranks(turned.fell)) == ([("b", 2, 1)], [("a", 1, 2)])


def test_only_judged_documents_have_a_reward() -> None:
    """Of all the others nothing is said."""
    assert {move.document: move.reward for move in turned_to(111).moves} == {**dict.fromkeys(NAMES), "l": 1.0}
