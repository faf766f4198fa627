"""F15 and permissions: a data directory in odd places is used or refused in one line, and private.

What stands here works on real mounts and with real users where the test may make them.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_core.messages import directory
from semanticrecall_core.messages.directory import DataDirectory
from support.confinement import REACHABLE
from support.fault_conditions import mounted_memory
from support.fault_sidecar import FaultSidecar
from support.wire_memory import INDEXED, Sidecar, ids, said

NOBODY = 65534
CALL_SECONDS = 60.0


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    """Whatever others may do anything with."""
    everything = (folder, *folder.rglob("*"))
    return [f"{path} {mode_of(path):04o}" for path in everything if mode_of(path) & 0o077]


def work(sidecar: FaultSidecar) -> None:
    """Have every kind of file written: log, images, snapshots, what was forgotten."""
    client = Sidecar(f"unix:{sidecar.socket}")
    memory = client.memory("resource")
    statuses = memory.index([said(f"m{n}", f"message number {n}") for n in range(20)])
    assert set(statuses) == {INDEXED}
    for partitions_only in (True, False):
        request = admin_pb2.CreateSnapshotRequest(partitions_only=partitions_only)
        client.admin.CreateSnapshot(request, timeout=CALL_SECONDS)
    memory.forget(message_ids=recall_pb2.MessageIds(ids=["m1"]))
    client.admin.Purge(admin_pb2.PurgeRequest(), timeout=CALL_SECONDS)
    memory.index([said("more", "one more")])
    request = admin_pb2.CreateSnapshotRequest(partitions_only=True)
    client.admin.CreateSnapshot(request, timeout=CALL_SECONDS)
    client.close()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_only_the_owner_may_read_or_write_anything_whatever_the_umask(
    encrypted: bool, tmp_path: Path
) -> None:
    flags: tuple[str, ...] = ()
    if encrypted:
        (tmp_path / "key").write_text("0123456789abcdef" * 4)
        flags = ("--encryption-key-file", str(tmp_path / "key"))
    with FaultSidecar(tmp_path, *flags, prepare=functools.partial(os.umask, 0)) as sidecar:
        work(sidecar)
        found = {path.name for path in sidecar.data.rglob("*")}
        assert {"recall.db", "recall.db-wal", "MARK", "LOCK", "MANIFEST.json"} <= found
        assert {"snapshots", "saved", "FORGOTTEN"} <= found
        assert any(name.endswith(".snapshot") for name in found)
        assert ("KEY" in found) is encrypted
        assert open_to_others(sidecar.data) == []
        assert sidecar.stop() == 0
    assert open_to_others(sidecar.data) == []


def test_a_directory_that_is_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    with FaultSidecar(tmp_path) as sidecar:
        work(sidecar)
        assert sidecar.stop() == 0
        for path in (sidecar.data, *sidecar.data.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (sidecar.data / "of others").write_text("not ours")
        (sidecar.data / "of others").chmod(0o644)
        sidecar.start()
        assert sidecar.logged("data_directory_was_open_to_others")
        assert sidecar.stop() == 0
        assert open_to_others(sidecar.data) == [f"{sidecar.data / 'of others'} 0644"]


def test_what_may_not_be_closed_is_said_and_does_not_hinder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory(tmp_path / "data").close()
    (tmp_path / "data").chmod(0o750)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(directory.os, "chmod", refuse)
    with capture_logs() as lines:
        DataDirectory(tmp_path / "data").close()
    assert [line["event"] for line in lines] == ["data_directory_open_to_others"]
    assert mode_of(tmp_path / "data") == 0o750


def test_a_common_folder_is_left_as_it_is(tmp_path: Path) -> None:
    """A folder of other things, named by mistake, is not taken from those who use it."""
    for name, mode in (("home", 0o755), ("tmp", 0o1777)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "letter").write_text("of somebody")
        folder.chmod(mode)
        with capture_logs() as lines:
            DataDirectory(folder).close()
        assert [line["event"] for line in lines] == ["data_directory_open_to_others"]
        assert mode_of(folder) == mode


# -- places -----------------------------------------------------------------------------------


def serves(home: Path, *flags: str) -> None:
    """Two processes, one after the other: what the first stored the second has."""
    with FaultSidecar(home, *flags) as sidecar:
        memory = Sidecar(f"unix:{sidecar.socket}").memory("resource")
        assert set(memory.index([said("first", "the first")])) == {INDEXED}
        assert sidecar.stop() == 0
        sidecar.start()
        memory = Sidecar(f"unix:{sidecar.socket}").memory("resource")
        assert ids(memory.listed()) == ["first"]
        assert sidecar.stop() == 0


def become(uid: int) -> None:
    """Be another user, who need not be able to read where Python lies."""
    for name in ("ascii", "latin-1", "utf-8", "locale", "unicode_escape"):
        with contextlib.suppress(LookupError):
            codecs.lookup(name)
    os.setuid(uid)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refusal(home: Path, *flags: str, uid: int | None = None) -> str:
    """What a process says that does not start: one line."""
    prepare = None if uid is None else functools.partial(become, uid)
    sidecar = FaultSidecar(home, *flags, prepare=prepare)
    sidecar.start(wait=False)
    assert sidecar.wait() == 2
    (line,) = [line for line in sidecar.said if line.startswith("semanticrecall:")]
    assert "Traceback" not in "".join(sidecar.said)
    return line


def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    serves(tmp_path, "--data-dir", str(tmp_path / "not" / "there" / "yet"))
    assert mode_of(tmp_path / "not" / "there" / "yet") == 0o700


def test_a_linked_directory_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "real", target_is_directory=True)
    serves(tmp_path)
    assert (tmp_path / "real" / "recall.db").is_file()
    assert (tmp_path / "data").is_symlink()


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    assert "is not a directory" in refusal(tmp_path)
    assert (tmp_path / "data").read_text() == "a file"
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to(tmp_path / "nowhere")
    assert "cannot be used" in refusal(tmp_path)
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory."""
    with mounted_memory(tmp_path / "mounted", 64 << 10, "noexec") as place:
        yield place


def test_a_file_system_that_runs_no_programs_is_good_enough(mounted: Path, tmp_path: Path) -> None:
    serves(tmp_path, "--data-dir", str(mounted / "data"))


def test_a_file_system_that_cannot_be_written_is_refused(mounted: Path, tmp_path: Path) -> None:
    serves(tmp_path, "--data-dir", str(mounted / "data"))
    before = contents(mounted / "data")
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    for name in ("data", "other"):
        said_so = refusal(tmp_path, "--data-dir", str(mounted / name))
        assert "cannot be used: Read-only file system" in said_so
    subprocess.run(["mount", "-o", "remount,rw", str(mounted)], check=True)
    assert contents(mounted / "data") == before


@pytest.mark.skipif(not REACHABLE, reason="the checkout cannot be reached by another user")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to be somebody else")
def test_a_directory_of_somebody_else_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o777)
        data = home / "data"
        data.mkdir(mode=0o700)
        assert "cannot be used: Permission denied" in refusal(home, uid=NOBODY)
        data.chmod(0o755)
        assert "cannot be used: Permission denied" in refusal(home, uid=NOBODY)
        assert list(data.iterdir()) == []
        inner = ("--data-dir", str(data / "inner"))
        assert "cannot be used: Permission denied" in refusal(home, *inner, uid=NOBODY)


@pytest.mark.skipif(not REACHABLE, reason="the checkout cannot be reached by another user")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to be somebody else")
def test_files_of_somebody_else_in_a_directory_of_ours_are_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o777)
        with FaultSidecar(home) as sidecar:
            work(sidecar)
            assert sidecar.stop() == 0
        os.chown(home / "data", NOBODY, NOBODY)
        for name in ("LOCK", "MARK"):
            os.chown(home / "data" / name, NOBODY, NOBODY)
        said_so = refusal(home, uid=NOBODY)
        assert "cannot be used: Permission denied" in said_so
