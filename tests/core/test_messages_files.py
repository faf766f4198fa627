"""The data directory: permissions, the lock, unsafe places, formats, and the high-water mark."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.messages import (
    SqliteMessageStore,
    StoreOptions,
    directory,
    journal,
    windows,
)
from semanticrecall_core.messages.directory import (
    DataDirectory,
    file_system_of,
    is_shared_file_system,
)
from semanticrecall_core.messages.high_water_mark import HighWaterMark, Mark
from semanticrecall_core.messages.schema import FORMAT
from semanticrecall_core.types.errors import (
    CorruptDataError,
    FailedPreconditionError,
    StoreLockedError,
    UnavailableError,
    UnsafeEnvironmentError,
)
from semanticrecall_core.types.values import CallBudget, Finding, MessageDraft, Role
from semanticrecall_core.types.verifying import RecordDamage
from support.message_stores import append, draft, ids
from support.stored_messages import CODEC, open_store

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /proc rw - proc proc rw
30 22 0:40 / /mnt rw - tmpfs tmpfs rw
31 30 0:41 / /mnt/share\\040one rw - virtiofs share rw
32 22 0:42 / /home rw shared:2 master:3 - nfs4 server:/home rw
33 22 0:43 / /data rw - ext4 /dev/vdb rw
34 22 0:44 / /data rw - fuse.sshfs host:/ rw
not a line
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "data"


def opened(home: Path, generation: str = "g", **more: object) -> SqliteMessageStore:
    return open_store(home, generation=generation, options=StoreOptions(**more))


def filled(home: Path, messages: int = 3) -> None:
    store = opened(home)
    for n in range(messages):
        append(store, draft(f"m{n}"))
    store.close()


def test_a_held_directory_is_taken_over_without_a_gap(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = DataDirectory(home)
    let_go: list[bool] = []
    close = DataDirectory.close
    monkeypatch.setattr(
        DataDirectory, "close", lambda self: (let_go.append(self is held), close(self))[0]
    )
    store = SqliteMessageStore(held, generation="g", codec=CODEC)
    assert let_go == []
    with pytest.raises(StoreLockedError):
        opened(home)
    let_go.clear()
    store.close()
    assert let_go == [True]
    opened(home).close()


def test_a_held_directory_is_let_go_when_the_store_cannot_be_opened(home: Path) -> None:
    filled(home)
    with_database(home, lambda connection: connection.pragma("user_version", 99))
    with pytest.raises(FailedPreconditionError):
        SqliteMessageStore(DataDirectory(home), generation="g", codec=CODEC)
    with_database(home, lambda connection: connection.pragma("user_version", FORMAT))
    opened(home).close()


class OtherForm:
    """Another way to write messages; nothing is asked of it here."""

    name = "other"
    encode = CODEC.encode
    decode = CODEC.decode


def test_a_record_in_another_form_is_refused_and_left_as_it_was(home: Path) -> None:
    filled(home)
    with pytest.raises(FailedPreconditionError) as refused:
        SqliteMessageStore(home, generation="g", codec=OtherForm())
    assert refused.value.reason == "CODEC_UNKNOWN"
    opened(home).close()


def test_a_step_to_a_neighbour_is_a_seek_among_messages_of_one_time(home: Path) -> None:
    """Messages given without a time in one call all have the same one."""
    filled(home)
    for statement in (text for s in windows.STATEMENTS.values() for text in (s.bodies, s.places)):
        plan: list[str] = []
        bindings: list[object] = ["u", apsw.carray(np.array([1, 1], np.int64)), 1, 1]
        if "?5" in statement:
            bindings.append(apsw.carray(np.array([9], np.int64)))
        with_database(
            home,
            lambda c, text=statement, values=tuple(bindings), into=plan: into.extend(
                row[3] for row in c.execute(f"EXPLAIN QUERY PLAN {text}", values)
            ),
        )
        for comparison in "<>":
            wanted = f"messages_by_thread (thread_key=? AND create_time_ns=? AND seq{comparison}?)"
            assert any(wanted in line for line in plan), plan
        assert not any(line.startswith("SCAN m") or "TEMP B-TREE" in line for line in plan), plan


def with_database(home: Path, change: Callable[[apsw.Connection], object]) -> None:
    connection = apsw.Connection(str(home / "recall.db"))
    change(connection)
    connection.close()


# -- place and lock ---------------------------------------------------------------------------


def test_only_the_owner_may_read(home: Path) -> None:
    mask = os.umask(0)
    try:
        store = opened(home)
        append(store, draft("a"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
    finally:
        os.umask(mask)
    store.close()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {"LOCK", "MARK", "recall.db", "recall.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_a_second_store_is_refused_and_the_first_goes_on(home: Path) -> None:
    first = opened(home)
    with pytest.raises(StoreLockedError, match=str(os.getpid())):
        opened(home)
    append(first, draft("a"))
    first.close()
    second = opened(home)
    assert ids(second.get("u", ["a"])) == ["a"]
    second.close()


def test_a_lock_file_left_behind_does_not_block(home: Path) -> None:
    home.mkdir()
    (home / "LOCK").write_text("1\n")
    opened(home).close()
    assert (home / "LOCK").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("version", [1, 99])
def test_a_failed_opening_lets_go_of_the_lock(home: Path, version: int) -> None:
    filled(home)
    with_database(home, lambda c: c.pragma("user_version", version))
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match=f"format {version};"):
            opened(home)
    with_database(home, lambda c: c.pragma("user_version", FORMAT))
    opened(home).close()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/recall", "ext4"),
        ("/mnt/x", "tmpfs"),
        ("/mnt/share one/x", "virtiofs"),
        ("/mnt/share one", "virtiofs"),
        ("/mnt/share", "tmpfs"),
        ("/homely", "ext4"),
        ("/home", "nfs4"),
        ("/data/x", "fuse.sshfs"),
        ("/", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_last_mount(path: str, expected: str) -> None:
    assert file_system_of(path, MOUNTS) == expected


def test_an_unknown_table_of_mounts_names_nothing() -> None:
    assert file_system_of("/x", "") == ""


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        *((n, True) for n in ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse.sshfs")),
        *((n, True) for n in ("fuse", "fuseblk", "ceph")),
        *((n, False) for n in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "")),
    ],
)
def test_shared_file_systems_are_known_by_name(name: str, shared: bool) -> None:
    assert is_shared_file_system(name) is shared


def test_a_shared_file_system_is_refused_unless_allowed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "file_system_of", lambda _path, _mountinfo: "virtiofs")
    with pytest.raises(UnsafeEnvironmentError, match="virtiofs"):
        opened(home)
    assert not (home / "recall.db").exists()
    store = opened(home, allow_shared_file_system=True)
    append(store, draft("a"))
    assert ids(store.get("u", ["a"])) == ["a"]
    assert not (home / "recall.db-shm").exists()  # no shared map where maps cannot be trusted
    store.close()


def test_a_place_that_cannot_be_used_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UnsafeEnvironmentError):
            opened(place)


def test_the_store_keeps_its_identity(home: Path, tmp_path: Path) -> None:
    first = opened(home)
    store_id = first.store_id
    first.close()
    again, other = opened(home), opened(tmp_path / "other")
    assert again.store_id == store_id
    assert other.store_id != store_id
    again.close()
    other.close()


FILES = ["LOCK", "MARK", "recall.db", "recall.db-wal", "recall.db-shm"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_nothing_is_acknowledged_once_a_file_in_use_is_lost(
    home: Path, name: str, replaced: bool
) -> None:
    store = opened(home)
    append(store, draft("a"))
    assert store.healthy
    if replaced:
        shutil.copy(home / name, home / "copy")
        (home / "copy").rename(home / name)
    else:
        (home / name).unlink()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=name) as refused:
            append(store, draft("b"))
        assert refused.value.reason == "DATA_FILES_LOST"
    assert not store.healthy
    store.close()


def test_a_directory_moved_away_and_back_is_trusted_again(home: Path, tmp_path: Path) -> None:
    store = opened(home)
    append(store, draft("a"))
    home.rename(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError):
        append(store, draft("b"))
    (tmp_path / "elsewhere").rename(home)
    append(store, draft("b"))
    assert store.healthy
    store.close()
    store = opened(home)
    assert ids(store.get("u", ["a", "b"])) == ["a", "b"]
    store.close()


def test_a_lost_file_is_noticed_without_a_write(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_FILES_INTERVAL_S", 0.01)
    store = opened(home)
    (home / "recall.db").unlink()
    poll = threading.Event()
    for _ in range(3000):
        if not store.healthy:
            break
        poll.wait(0.01)
    assert not store.healthy
    store.close()


# -- formats ----------------------------------------------------------------------------------


def test_another_programs_database_is_refused(home: Path) -> None:
    home.mkdir()
    with_database(home, lambda c: c.execute("CREATE TABLE theirs(x)"))
    with pytest.raises(FailedPreconditionError, match="not a database of this program"):
        opened(home)


def test_a_file_that_is_no_database_is_called_damaged(home: Path) -> None:
    home.mkdir()
    (home / "recall.db").write_bytes(b"no database" * 1000)
    with pytest.raises(CorruptDataError):
        opened(home)


# -- high-water mark --------------------------------------------------------------------------


def test_an_older_copy_is_noticed(home: Path, tmp_path: Path) -> None:
    filled(home, 2)
    shutil.copy(home / "recall.db", tmp_path / "older.db")
    store = opened(home)
    for n in range(5):
        append(store, draft(f"n{n}"))
    store.close()
    shutil.copy(tmp_path / "older.db", home / "recall.db")
    with pytest.raises(CorruptDataError, match=r"^5 acknowledged changes") as lost:
        opened(home)
    assert lost.value.reason == "ACKNOWLEDGED_CHANGES_MISSING"
    store = opened(home, accept_loss=True)
    (after,) = append(store, draft("after"))
    assert after.revision == 8  # no revision is used twice
    store.close()
    opened(home).close()


def test_a_database_that_is_gone_is_noticed(home: Path) -> None:
    filled(home)
    (home / "recall.db").unlink()
    with pytest.raises(CorruptDataError, match=r"^3 acknowledged changes"):
        opened(home)
    assert not (home / "recall.db").exists()
    store = opened(home, accept_loss=True)
    assert store.stats(None).messages == 0
    store.close()


def test_another_stores_database_is_noticed(home: Path, tmp_path: Path) -> None:
    filled(home)
    filled(tmp_path / "other", 9)
    shutil.copy(tmp_path / "other" / "recall.db", home / "recall.db")
    with pytest.raises(CorruptDataError, match=r"^3 acknowledged changes"):
        opened(home)


def test_a_damaged_tail_of_the_log_is_noticed(home: Path, tmp_path: Path) -> None:
    """SQLite opens such a log with a shorter history and says nothing."""
    store = opened(home)
    append(store, draft("a"))
    append(store, draft("b"))
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)  # as after kill -9: the log is not yet in the file
    store.close()
    log = bytearray((copy / "recall.db-wal").read_bytes())
    log[-100] ^= 1
    (copy / "recall.db-wal").write_bytes(log)
    with pytest.raises(CorruptDataError, match=r"^1 acknowledged change"):
        opened(copy)


def test_a_missing_mark_is_made_again(home: Path) -> None:
    filled(home)
    (home / "MARK").unlink()
    opened(home).close()
    mark = HighWaterMark(home / "MARK")
    found = mark.read()
    mark.close()
    assert found is not None
    assert found.revision == 3


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_damaged_slots_of_the_mark_are_logged_and_counted(home: Path, slots: int) -> None:
    filled(home)
    content = bytearray((home / "MARK").read_bytes())
    for slot in range(slots):
        content[4096 * slot + 30] ^= 1
    (home / "MARK").write_bytes(content)
    with capture_logs() as logs:
        store = opened(home)
    told = [entry["slots"] for entry in logs if entry["event"] == "store_mark_damaged"]
    assert told == ([slots] if slots else [])
    assert store.care.counts()["mark"] == slots
    store.close()
    again = opened(home)
    assert again.care.counts()["mark"] == 0
    again.close()


def test_a_torn_slot_falls_back_to_the_one_before(tmp_path: Path) -> None:
    path, store_id = tmp_path / "MARK", "ab" * 16
    mark = HighWaterMark(path)
    assert mark.read() is None
    mark.start(Mark(store_id, 0))
    for revision in range(1, 8):
        mark.write(Mark(store_id, revision))
        assert mark.read() == Mark(store_id, revision)
    mark.sync()
    assert path.stat().st_size == 8192
    content = bytearray(path.read_bytes())
    content[4096 + 30] ^= 1  # revision 7 stands in slot 1
    path.write_bytes(content)
    assert mark.read() == Mark(store_id, 6)
    content[30] ^= 1
    path.write_bytes(content)
    assert mark.read() is None
    mark.close()


def test_the_mark_is_never_ahead_of_the_record(home: Path) -> None:
    store = opened(home)
    for n in range(20):
        (outcome,) = store.append(
            "u", [MessageDraft(f"m{n}", "t", Role.USER)], CallBudget.of_seconds(9)
        )
        mark = HighWaterMark(home / "MARK")
        found = mark.read()
        mark.close()
        assert found == Mark(store.store_id, outcome.revision)
    store.close()


def test_a_mark_that_cannot_be_written_does_not_hide_what_a_repair_lost(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(home)
    append(store, draft("a"), draft("b"))
    store.close()
    connection = apsw.Connection(str(home / "recall.db"))
    connection.execute("UPDATE messages SET encoded = x'ff' WHERE id = 'a'")
    connection.close()
    store = opened(home)

    def failing(_self: HighWaterMark, _mark: Mark) -> None:
        raise OSError(5, "x")

    monkeypatch.setattr(HighWaterMark, "write", failing)
    damage = RecordDamage(Finding("PAGE_DAMAGED", "", "", ""))
    assert [one.message_id for one in store.care.mend_file([damage]).lost] == ["a"]
    monkeypatch.undo()
    append(store, draft("c"))
    assert [message.id for message in store.get("u", ["a", "b", "c"])] == ["b", "c"]
    store.close()
