"""Files that are written whole: what stands at a path decides how."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from tttembed_rag import Offsets
from tttembed_rag.system.files import PUBLIC, whole_file, write_whole

root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("options", "mode"), [({}, 0o600), ({"mode": PUBLIC}, 0o640)])
def test_a_new_file_is_its_owners_alone(tmp_path: Path, options: dict[str, int], mode: int) -> None:
    """Unless it holds a data set, which has the permissions that any new file has."""
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", b"new", **options)
    finally:
        os.umask(before)

    assert mode_of(tmp_path / "new") == mode
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_offsets_are_their_owners_alone_until_others_may_read_them(tmp_path: Path) -> None:
    """Landmarks are made of query vectors; a file that another user's service may load stays so."""
    path = tmp_path / "o.safetensors"
    Offsets([], width=3).save(path)
    before = mode_of(path)
    path.chmod(0o640)
    Offsets([], width=3).save(path)

    assert (before, mode_of(path)) == (0o600, 0o640)


@pytest.mark.parametrize("kind", ["symbolic", "hard", "dangling"])
def test_a_link_survives(tmp_path: Path, kind: str) -> None:
    """What it leads to is written."""
    there, link = tmp_path / "there", tmp_path / "link"
    if kind != "dangling":
        there.write_bytes(b"old")
    if kind == "hard":
        link.hardlink_to(there)
    else:
        link.symlink_to("there")
    write_whole(link, b"new")

    assert (there.read_bytes(), link.is_symlink()) == (b"new", kind != "hard")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_a_pipe_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_whole(tmp_path / "pipe", b"new")
    reader.join(20)

    assert read == [b"new"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_standard_output_is_written(tmp_path: Path) -> None:
    """Under the name of a link, as the system has one; never try it on that."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    code = "from tttembed_rag.system.files import write_whole; write_whole('stdout', b'new')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=tmp_path)

    assert (done.stdout, done.stderr) == (b"new", b"")
    assert (tmp_path / "stdout").is_symlink()


@root
def test_a_device_is_written(tmp_path: Path) -> None:
    """A null device, made here: the system's own would be gone for everybody."""
    try:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no device can be made here")
    write_whole(tmp_path / "null", b"new")

    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


@root
def test_the_file_of_another_stays_his(tmp_path: Path) -> None:
    """The superuser writes into it."""
    (tmp_path / "old").write_bytes(b"older")
    os.chown(tmp_path / "old", 12345, 12345)
    write_whole(tmp_path / "old", b"new")

    assert ((tmp_path / "old").stat().st_uid, (tmp_path / "old").read_bytes()) == (12345, b"new")


@pytest.mark.parametrize("kind", ["plain", "hard"])
def test_what_fails_leaves_the_old_one(tmp_path: Path, kind: str) -> None:
    (tmp_path / "old").write_bytes(b"old")
    if kind == "hard":
        (tmp_path / "link").hardlink_to(tmp_path / "old")

    def write(stopped: Exception) -> None:
        with whole_file(tmp_path / "old") as file:
            file.write(b"half")
            raise stopped

    with pytest.raises(ValueError, match="stop"):
        write(ValueError("stop"))

    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"old"}
