"""Named arrays in one file that holds no code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import DataError
from tttembed_rag.system.files import whole_file


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write *arrays* to an ``.npz`` file, whole or not at all."""
    with whole_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its option allow_pickle is no name of ours


def read_arrays(path: str | os.PathLike[str], names: Sequence[str], expected: str) -> list[NDArray[Any]]:
    """The arrays of *names* in an ``.npz`` file; *expected* says what the file is, for a DataError where it is none."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:  # noqa: PTH123 - any path
            return [stored[name] for name in names]
    except Exception as exc:
        # NumPy raises anything where a file is damaged. It takes any other file for a pickle, and tells how to load it,
        # which would run what is in it.
        reason = "" if "pickle" in str(exc) else f" ({exc})"
        raise DataError(f"{path}: expected {expected}{reason}") from exc
