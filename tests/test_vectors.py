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
    """Arrays without zero rows."""
    return arrays(np.float64, shape, elements=components).filter(lambda a: (np.linalg.norm(a, axis=-1) > 0.01).all())


class TestUnit:
    """unit(a) = a / ||a||."""

    @law
    @given(vectors=nonzero((4, 6)), scale=st.integers(-200, 200))
    def test_has_norm_one_at_every_scale(self, vectors, scale):
        assert_allclose(np.linalg.norm(unit(vectors * 10.0**scale), axis=1), 1.0, rtol=1e-12)

    @law
    @given(vectors=nonzero((4, 6)), scale=st.floats(1e-3, 1e3))
    def test_does_not_depend_on_length(self, vectors, scale):
        assert_allclose(unit(scale * vectors), unit(vectors), atol=1e-12)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_keeps_dtype_and_shape(self, dtype):
        units = unit(np.ones((2, 3, 4), dtype))

        assert (np.dtype(dtype), (2, 3, 4)) == (units.dtype, units.shape)


class TestNorms:
    """Euclidean norms, safe at extreme scales."""

    def test_are_euclidean(self):
        """Norms are taken over the last axis."""
        assert_allclose(norms(np.array([[[3.0, 4.0], [5.0, 12.0]]])), [[5.0, 13.0]])

    @pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1e-30), (np.float32, 1e30), (np.float64, 1e-250)])
    def test_neither_overflow_nor_vanish(self, dtype, scale):
        """Squares outside the dtype's range do not spoil the norm."""
        vectors = np.array([[3.0 * scale, 4.0 * scale], [3.0, 4.0]], dtype)

        assert_allclose(norms(vectors), [5.0 * scale, 5.0], rtol=1e-6)

    def test_of_nothing_are_nothing(self):
        assert norms(np.empty((0, 4))).shape == (0,)


class Raising:
    """An object of another library that cannot be read."""

    def __array__(self, *_, **__):
        raise RuntimeError("not here")


class TestAsFloats:
    """What counts as vectors."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_passes_arrays_through(self, dtype):
        """A float32 or float64 array comes back itself, uncopied."""
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
        """Lists and integers become float64, half precision float32."""
        assert np.dtype(dtype) == as_floats("X", value).dtype

    @pytest.mark.parametrize("inside", [lambda one: one, lambda one: [one, one], lambda one: [list(one), list(one)]])
    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int8"])
    @pytest.mark.parametrize("grad", [False, True])
    def test_tensors_are_vectors(self, inside, dtype, grad):
        """In any precision, with a gradient, in lists."""
        torch = pytest.importorskip("torch")
        is_float = "float" in dtype
        tensor = torch.tensor([1, 2, -3], dtype=getattr(torch, dtype), requires_grad=grad and is_float)
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
        """What is no matrix of real numbers is an error that names the argument and what came."""
        with pytest.raises(VectorError, match=f"^query_vectors: expected .*{got}"):
            as_floats("query_vectors", value)


class TestCheckedNorms:
    """The check on incoming vectors."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(
        ("value", "got"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity"), (0.0, "a zero vector")]
    )
    def test_names_the_bad_row(self, dtype, value, got):
        """A NaN, infinite or zero vector is an error that names the argument, the finding and the row."""
        vectors = np.ones((4, 3), dtype)
        vectors[2] = value

        with pytest.raises(VectorError, match=f"^X: expected finite, non-zero vectors, got {got} in row 2$"):
            checked_norms("X", vectors)

    def test_finds_one_bad_component(self):
        """One NaN among good components is enough."""
        with pytest.raises(VectorError, match="got NaN in row 0"):
            checked_norms("X", np.array([1.0, np.nan, 1.0]))

    def test_accepts_the_longest_vectors(self):
        """A vector whose squared norm overflows float32 is a good vector."""
        lengths = checked_norms("X", np.full((1, 4), 1e30, np.float32))

        assert_allclose(lengths, [2e30], rtol=1e-6)


class TestShift:
    """x' = ||x|| unit(unit(x) + alpha v)."""

    @law
    @given(x=nonzero((3, 6)), v=arrays(np.float64, 6, elements=components), scale=st.floats(1e-3, 1e3))
    def test_is_the_served_vector(self, x, v, scale):
        x = scale * x
        lengths = np.linalg.norm(x, axis=1)
        moved = x / lengths[:, None] + v
        after = np.linalg.norm(moved, axis=1)
        expected = lengths[:, None] * moved / np.where(after > 1e-3, after, np.nan)[:, None]
        known = np.isfinite(expected)

        assert_allclose(shift(x, v, norms(x))[known], expected[known], rtol=1e-9, atol=1e-9 * scale)

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

    @pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20, 1e37])
    def test_works_at_extreme_lengths(self, scale):
        """Very long and very short float32 vectors turn as those of length one do."""
        x, v = np.array([0.6, 0.8], np.float32), np.array([0.3, -0.2], np.float32)
        long = (x * np.float32(scale)).astype(np.float32)

        assert_allclose(unit(shift(long, v, norms(long))), shift(x, v, norms(x)), rtol=2e-6)
