"""Files that are written whole or not at all, and files that are their owner's alone."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

__all__ = ["PUBLIC", "make_private", "whole_file", "write_whole"]

# The mode of a new file that holds users' data, and of one that holds a data set.
_PRIVATE, PUBLIC = 0o600, 0o666


@contextmanager
def whole_file(path: str | os.PathLike[str], *, mode: int = _PRIVATE) -> Iterator[BinaryIO]:
    """A file that becomes *path* once the block is left: readers see the old file or the whole new one.

    A new file has the *mode*, as far as the umask leaves it. What is replaced is a plain file of one's own, which keeps
    its mode and the links to it; all else that stands there, such as a device or a pipe, is opened and written.
    """
    target = Path(path)
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"{target}: expected a file in an existing folder, found no {target.parent}")
    if not (is_new := not target.exists()) and not _is_replaceable(target):
        buffer = BytesIO()
        yield buffer
        target.write_bytes(buffer.getbuffer())
        return
    target = target.resolve()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not is_new:
            shutil.copymode(target, draft)
        try:
            draft.replace(target)
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
            shutil.copyfile(draft, target)  # it is mounted by itself, as into a container
    finally:
        draft.unlink(missing_ok=True)


def _is_replaceable(path: Path) -> bool:
    """Whether a plain file of one's own stands at *path* under one name, and another may be put in its place."""
    status, user = path.stat(), getattr(os, "geteuid", lambda: 0)()
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == user
    return plain and os.access(path.resolve().parent, os.W_OK)


def write_whole(path: str | os.PathLike[str], data: bytes, *, mode: int = _PRIVATE) -> None:
    """Write *data* to *path* as a `whole_file`."""
    with whole_file(path, mode=mode) as file:
        file.write(data)


def make_private(path: str | os.PathLike[str]) -> None:
    """Make a file that will hold users' data, where none is there yet, for its owner alone."""
    with suppress(OSError):  # opening it will say what is wrong, if anything is
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _PRIVATE))
