"""Files that are written whole or not at all, and files that are their owner's alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["make_private", "whole_file", "write_whole"]


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that becomes *path* once the block is left: readers see the old file or the whole new one."""
    target = Path(path)
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"{target}: expected a file in an existing folder, found no {target.parent}")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write *data* to *path*, whole or not at all."""
    with whole_file(path) as file:
        file.write(data)


def make_private(path: str | os.PathLike[str]) -> None:
    """Make a file that will hold users' data, where none is there yet, for its owner alone."""
    with suppress(OSError):  # opening it will say what is wrong, if anything is
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
