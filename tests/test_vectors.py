"""Unit vectors, the checks on incoming vectors, and the shift a served query goes through."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose

from tttembed_rag.errors import VectorError
from tttembed_rag.vectors.checks import as_floats, checked_norms, norms, shift, unit

DTYPES = (np.float32, np.float64)
components = st.floats(-1.0, 1.0).map(lambda value: round(value, 3))
law = settings(max_examples=60, deadline=None, derandomize=True)


def nonzero(shape):
    return arrays(np.float64, shape, elements=components).filter(lambda a: (np.linalg.norm(a, axis=-1) > 0.01).all())


@law
@given(vectors=nonzero((4, 6)), exponent=st.integers(-200, 200))
def test_unit_vectors_have_norm_one_at_every_scale(vectors, exponent):
    """unit(a) = a / ||a||, whatever the length of a."""
    units = unit(vectors * 10.0**exponent)

    assert_allclose(np.linalg.norm(units, axis=1), 1.0, rtol=1e-12)
    assert_allclose(units, unit(vectors), atol=1e-12)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        (np.array([[[3.0, 4.0], [5.0, 12.0]]]), [[5.0, 13.0]]),
        # Squares outside the dtype's range do not spoil the norm.
        (np.float32([[3e-30, 4e-30], [3.0, 4.0]]), [5e-30, 5.0]),
        (np.full((1, 4), 1e30, np.float32), [2e30]),
        (np.array([[3e-250, 4e-250]]), [5e-250]),
        (np.empty((0, 4)), np.empty(0)),
    ],
)
def test_norms_are_euclidean_at_every_scale(vectors, expected):
    assert_allclose(norms(vectors), expected, rtol=1e-6)


def test_one_bad_component_is_enough():
    with pytest.raises(VectorError, match="got NaN in row 0"):
        checked_norms("X", np.array([1.0, np.nan, 1.0]))


class Raising:
    """An object of another library that cannot be read."""

    def __array__(self, *_, **__):
        raise RuntimeError("not here")


class TestAsFloats:
    """What counts as vectors."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_passes_arrays_through(self, dtype):
        vectors = np.ones((2, 3), dtype)

        assert vectors is as_floats("X", vectors)

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            ([[1.0, 2.0]], np.float64),
            ([1, 2], np.float64),
            (np.array([1, 2], np.uint8), np.float64),
            (np.array([1.0, 2.0], np.float16), np.float32),
        ],
        ids=["list", "integer list", "uint8", "float16"],
    )
    def test_widens_what_it_can(self, value, dtype):
        assert np.dtype(dtype) == as_floats("X", value).dtype

    @pytest.mark.parametrize("inside", [lambda row: row, lambda row: [row, row], lambda row: [list(row), list(row)]])
    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int8"])
    def test_tensors_are_vectors(self, inside, dtype):
        """In any precision, with a gradient where there can be one, in lists."""
        torch = pytest.importorskip("torch")
        tensor = torch.tensor([1, 2, -3], dtype=getattr(torch, dtype), requires_grad="float" in dtype)
        floats = as_floats("X", inside(tensor))

        assert floats.dtype in (np.float32, np.float64)
        assert np.array_equal(np.broadcast_to([1, 2, -3], floats.shape), floats)

    @pytest.mark.parametrize(
        ("value", "got"),
        [
            ([[1.0, 2.0], [3.0]], "rows of different lengths"),
            (["a", "b"], "dtype <U1"),
            (None, "dtype object"),
            ([1.0, None], "dtype object"),
            ([1.0, 10**400], "dtype object"),
            ([1.0, "2"], "dtype <U32"),
            ([True, False], "dtype bool"),
            (np.ones(2, complex), "dtype complex128"),
            (Raising(), "Raising"),
        ],
        ids=["ragged", "strings", "None", "a gap", "a number too large", "a string", "booleans", "complex", "raising"],
    )
    def test_rejects_what_is_not_numbers(self, value, got):
        with pytest.raises(VectorError, match=f"^query_vectors: expected .*{got}"):
            as_floats("query_vectors", value)


class TestShift:
    """x' = ||x|| unit(unit(x) + alpha v)."""

    @law
    @given(
        x=nonzero(5),
        v=arrays(np.float64, 5, elements=components),
        document=arrays(np.float64, 6, elements=components),
        alpha=st.floats(0.0, 1.0),
    )
    def test_keeps_exact_ties(self, x, v, document, alpha):
        x, v = np.append(x, 0.0), np.append(v, 0.0)
        mirrored = document * [1, 1, 1, 1, 1, -1]
        z = np.array([document, mirrored, document])
        shifted = shift(x, alpha * v, norms(x))
        scores = [float((row * shifted).sum()) for row in z]

        assert [scores[0]] * 3 == scores
