"""Products of unit rows: the same numbers, gathered or in order."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tttembed_rag.vectors.checks import norms
from tttembed_rag.vectors.copies import same_text
from tttembed_rag.vectors.rows import UnitRows


def some_rows(count=7, width=16, *, dtype=np.float32, seed=0):
    """Rows of uneven length."""
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(count, width)) * rng.uniform(0.1, 9.0, (count, 1))).astype(dtype)
    return UnitRows(vectors, norms(vectors))


def unit(rows):
    """The unit vectors themselves, in float64."""
    return rows.vectors.astype(np.float64) / rows.norms[:, None]


class TestAlike:
    """Which rows are vectors of one text."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("width", [7, 384])
    def test_what_a_model_makes_of_one_text_twice_is_one(self, dtype, width):
        """Whatever its norm, and in whatever order; other texts are others."""
        rng = np.random.default_rng(0)
        texts = rng.standard_normal((20, width))
        which = rng.permutation(np.repeat(np.arange(20), 3))
        vectors = (texts[which] * (1 + 1e-3 * rng.standard_normal((60, width)))).astype(dtype)
        vectors *= rng.uniform(0.1, 10.0, (60, 1)).astype(dtype)
        numbers = same_text(UnitRows(vectors, np.linalg.norm(vectors, axis=1)))

        assert numbers.max() == 19
        assert all(len(set(numbers[which == text].tolist())) == 1 for text in range(20))

    def test_the_numbers_do_not_follow_the_order(self):
        rng = np.random.default_rng(0)
        vectors = rng.standard_normal((50, 16))
        vectors[40:] = vectors[:10] + 1e-5
        order = rng.permutation(50)
        there, back = (same_text(UnitRows(rows, np.linalg.norm(rows, axis=1))) for rows in (vectors, vectors[order]))

        assert_array_equal(there[order], back)
        assert there.max() == 39


class TestGathering:
    """Rows are gathered a few at a time, or not at all where they lie in order."""

    @pytest.mark.parametrize("step", [1, 1 << 30])
    @pytest.mark.parametrize("first", [0, 4])
    def test_in_order_equals_gathered(self, monkeypatch, step, first):
        monkeypatch.setattr("tttembed_rag.vectors.rows._GATHER_BYTES", step)
        rows, queries = some_rows(16), some_rows(4, seed=2)
        slots = np.arange(first, first + 12).reshape(4, 3)
        expected = np.einsum("nd,nkd->nk", unit(queries), unit(rows)[slots])

        assert_allclose(rows.similarities(queries, slots), expected, rtol=1e-5, atol=1e-6)
        assert_allclose(rows.similarities(queries, slots[:, ::-1]), expected[:, ::-1], rtol=1e-5, atol=1e-6)
