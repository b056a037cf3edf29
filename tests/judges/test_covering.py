"""Which queries are judged first: those of which verdicts say most about what is asked, and every fifth by lot."""

import numpy as np
import pytest

from tttembed_rag.judging.covering import MOST_COMPARED, covering, in_covering_order
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.rewards.observations import Served


def unit_vectors(n, width=6, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((n, width))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def lots(n, seed=9):
    """A digest for each of n queries."""
    return [bytes(digest) for digest in np.random.default_rng(seed).integers(0, 256, (n, 8), dtype=np.uint8)]


def by_definition(unit, tasks, counts, drawn, count, judged):
    """The order of `covering`, the posterior covariance being worked out anew for each choice."""
    prior = np.zeros((len(unit), len(unit)))
    for task in set(tasks):
        rows = [row for row, name in enumerate(tasks) if name == task]
        cosine = unit[rows] @ unit[rows].T
        pairs = len(rows) * (len(rows) - 1)
        bandwidth = 1 - (cosine.sum() - len(rows)) / pairs if pairs else 1.0
        prior[np.ix_(rows, rows)] = KernelMap(unit[rows], unit[rows], bandwidth).kernel(unit[rows])
    known, chosen = [row for row, known in enumerate(judged) if known], []
    open_rows = [row for row, known in enumerate(judged) if not known]
    while len(chosen) < count:
        seen = [*known, *chosen]
        posterior = prior.copy()
        if seen:
            gain = np.linalg.solve(prior[np.ix_(seen, seen)] + np.eye(len(seen)), prior[seen])
            posterior -= prior[:, seen] @ gain
        left = [row for row in open_rows if row not in chosen]
        if len(chosen) % 5 == 4:
            chosen.append(min(left, key=lambda row: drawn[row]))
            continue
        worth = {
            row: sum(counts[other] * posterior[other, row] ** 2 for other in open_rows) / (posterior[row, row] + 1)
            for row in left
        }
        chosen.append(max(worth, key=worth.__getitem__))
    return chosen


@pytest.mark.parametrize("judged_first", [0, 7])
@pytest.mark.parametrize("tasks", [1, 3])
def test_the_order_is_that_of_the_definition(judged_first, tasks):
    """Whatever was judged before, and of several tasks too."""
    n = 24
    unit, drawn = unit_vectors(n), lots(n)
    counts = np.random.default_rng(5).integers(1, 9, n).astype(float)
    named = [f"task {row % tasks}" for row in range(n)]
    judged = np.arange(n) < judged_first

    expected = by_definition(unit, named, counts, drawn, 12, judged)

    assert covering(unit, named, counts, drawn, 12, judged=judged) == expected


def test_nothing_is_left_to_judge():
    unit = unit_vectors(3)

    assert covering(unit, ["a"] * 3, np.ones(3), lots(3), 2, judged=np.ones(3, dtype=bool)) == []
    assert len(covering(unit, ["a"] * 3, np.ones(3), lots(3), 9)) == 3


def test_observations_of_one_text_stand_together():
    """A text that was served thrice comes first, and its observations one after the other, in their order."""
    texts = ["rare", "often", "other", "often", "third", "often"]
    vectors = unit_vectors(4)[[0, 1, 2, 1, 3, 1]]
    served = [Served.of_texts(f"q{row}", text, []) for row, text in enumerate(texts)]

    ordered = in_covering_order(served, 3 * vectors)

    assert [observation.query_id for observation in ordered[:3]] == ["q1", "q3", "q5"]
    assert sorted(observation.query_id for observation in ordered) == [f"q{row}" for row in range(6)]


def test_the_key_draws_the_lots():
    """The same key gives the same order, and another one other lots."""
    served = [Served.of_texts(f"q{row}", f"text {row}", []) for row in range(40)]
    vectors = unit_vectors(40)
    orders = [
        [observation.query_id for observation in in_covering_order(served, vectors, key=key)]
        for key in (b"a", b"a", b"b")
    ]

    assert orders[0] == orders[1] != orders[2]


def test_many_texts_follow_by_lot():
    """Of more texts than are compared the often asked are among the first."""
    n = MOST_COMPARED + 50
    texts = [f"text {row}" for row in range(n)] + ["text 7"]
    served = [Served.of_texts(f"q{row}", text, []) for row, text in enumerate(texts)]

    ordered = in_covering_order(served, unit_vectors(n, 3)[[*range(n), 7]])

    assert len(ordered) == n + 1
    assert "text 7" in [observation.query for observation in ordered[:MOST_COMPARED]]
