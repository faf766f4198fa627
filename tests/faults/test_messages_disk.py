"""A disk that fails, a disk that is full, and rows that rot."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.types.errors import (
    CorruptDataError,
    ResourceExhaustedError,
    UnavailableError,
)
from semanticrecall_core.types.values import ForgetTarget, ListQuery
from semanticrecall_core.types.windows import WindowQuery
from support import format_2
from support.fault_conditions import mounted_memory
from support.faulty_disk import FaultyDisk
from support.message_stores import append, draft, embed, ids
from support.recorded_commits import RecordedCommits
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser, word_hash

WRITES = {"write", "sync"}


def listed(store: SqliteMessageStore) -> list[str]:
    return ids(store.list_messages(ListQuery("u", None, 1000)))


# -- a disk that fails ------------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk()
    yield made
    made.unregister()


def test_after_a_failed_sync_nothing_is_acknowledged_until_the_disk_is_verified(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    options = StoreOptions(vfs=disk.vfs_name)
    store = open_store(tmp_path / "data", generation="g", options=options)
    heard = RecordedCommits()
    store.subscribe(heard)
    (first,) = append(store, draft("a"))

    def failing(operation: str, _name: str) -> None:
        if operation == "sync":
            raise apsw.IOError("sync failed")

    disk.fault = failing
    for _ in range(3):
        with pytest.raises(UnavailableError):
            append(store, draft("lost"))
        assert not store.healthy
        assert listed(store) == ["a"]
    with pytest.raises(UnavailableError):
        embed(store, first, [1.0, 0.0])

    def failing_file(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".db"):
            raise apsw.IOError("sync failed")

    disk.fault = failing_file  # the log works again, the file it is copied to does not
    with pytest.raises(UnavailableError):
        append(store, draft("lost"))
    disk.fault = None
    (second,) = append(store, draft("b"))
    assert store.healthy
    assert listed(store) == ["a", "b"]
    assert second.revision == first.revision + 1
    assert heard.calls == []
    store.close()
    again = open_store(tmp_path / "data", generation="g")
    assert listed(again) == ["a", "b"]
    assert list(again.verify(None)) == []
    again.close()


@pytest.mark.parametrize("kind", [apsw.IOError, apsw.FullError])
def test_every_single_fault_loses_nothing_and_invents_nothing(
    kind: type[apsw.Error], tmp_path: Path
) -> None:
    """Fail the first write or sync, then the second, and so on, until the scenario passes."""
    point, failed = 0, True
    while failed:
        point += 1
        failed = _scenario_with_fault(tmp_path / str(point), kind, point)
        assert point < 400
    assert point > 10


def _scenario_with_fault(home: Path, kind: type[apsw.Error], point: int) -> bool:
    """Run the scenario with one fault; whether the fault was met."""
    disk = FaultyDisk()
    options = StoreOptions(vfs=disk.vfs_name)
    analyser = WordAnalyser()
    store = open_store(home, generation="g", analyser=analyser, options=options)
    calls, met = 0, False

    def failing(operation: str, _name: str) -> None:
        nonlocal calls, met
        calls += operation in WRITES
        if calls == point and not met:
            met = True
            raise kind("injected")

    disk.fault = failing
    acknowledged: set[str] = set()
    for n in range(4):
        try:
            (outcome,) = append(store, draft(f"m{n}", text="x" * 3000))
            acknowledged.add(f"m{n}")
            embed(store, outcome, [1.0, float(n)])
        except (UnavailableError, ResourceExhaustedError):
            continue
    try:
        gone = store.forget("u", ForgetTarget(message_ids=("m0",)))
        acknowledged -= {"m0"} if gone.seqs else set()
    except (UnavailableError, ResourceExhaustedError):
        pass
    assert set(listed(store)) == acknowledged
    disk.fault = None
    store.close()
    disk.unregister()
    analyser.threads.clear()
    again = open_store(home, generation="g", analyser=analyser)
    assert set(listed(again)) == acknowledged
    assert again.load_lexical("u").seqs.size == len(acknowledged)
    assert analyser.threads == []  # all were on record
    assert list(again.verify(None)) == []
    again.close()
    shutil.rmtree(home)
    return met


@pytest.mark.parametrize("kind", [apsw.IOError, apsw.FullError])
def test_a_fault_while_format_2_is_upgraded_leaves_one_that_can_be(
    kind: type[apsw.Error], tmp_path: Path
) -> None:
    """Fail the first write or sync of the opening, then the second, until it passes."""
    failures, failed = 0, True
    while failed:
        failed = _upgrade_with_fault(tmp_path / str(failures), kind, failures + 1)
        failures += failed
        assert failures < 100
    assert failures > 2


def _upgrade_with_fault(folder: Path, kind: type[apsw.Error], point: int) -> bool:
    """Open a directory of format 2 with one fault; whether the opening failed."""
    disk, home = FaultyDisk(), format_2.unpacked(folder)
    options = StoreOptions(vfs=disk.vfs_name)
    calls, refused = 0, False

    def failing(operation: str, _name: str) -> None:
        nonlocal calls
        calls += operation in WRITES
        if calls >= point and not refused:
            raise kind("injected")

    disk.fault = failing
    try:
        store = open_store(home, generation=format_2.GENERATION, options=options)
    except (UnavailableError, ResourceExhaustedError):
        refused = True
    else:
        disk.fault = None
        store.close()
    disk.fault = None
    disk.unregister()
    again = open_store(home, generation=format_2.GENERATION, analyser=WordAnalyser())
    for resource, drafts in format_2.CONTENT.items():
        assert ids(again.get(resource, [one.id for one in drafts])) == [one.id for one in drafts]
        to_embed = sum(one.embeddable for one in drafts)
        assert again.load_lexical(resource).seqs.size == to_embed
    assert list(again.verify(None)) == []
    again.close()
    return refused


# -- a full disk ------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Eight MiB of memory as a file system."""
    with mounted_memory(tmp_path / "small", 8 << 10) as place:
        yield place


def _until_full(store: SqliteMessageStore) -> Iterator[str]:
    """Ids of the messages that were accepted before the disk was full."""
    for n in range(2000):
        try:
            append(store, draft(f"m{n}", text="x" * 20_000))
        except ResourceExhaustedError:
            return
        yield f"m{n}"
    raise AssertionError("the disk was never full")


def test_a_full_disk_refuses_messages_serves_reads_and_can_still_forget(small_disk: Path) -> None:
    store = open_store(small_disk / "data", generation="g")
    stored = list(_until_full(store))
    assert len(stored) > 50
    assert listed(store) == stored
    with pytest.raises(ResourceExhaustedError) as full:
        append(store, draft("more", text="x" * 20_000))
    assert full.value.reason == "DISK_FULL"
    half = tuple(stored[::2])
    assert len(store.forget("u", ForgetTarget(message_ids=half)).seqs) == len(half)
    assert listed(store) == stored[1::2]
    append(store, draft("again", text="x" * 20_000))  # without reopening
    store.close()
    again = open_store(small_disk / "data", generation="g")
    assert set(listed(again)) == {*stored[1::2], "again"}
    assert list(again.verify(None)) == []
    again.close()


def test_a_store_opens_on_a_full_disk_to_forget(small_disk: Path) -> None:
    home = small_disk / "data"
    store = open_store(home, generation="g")
    for n in range(40):
        append(store, draft(f"m{n}", text="x" * 20_000))
    store.close()
    _fill(small_disk / "filler")
    store = open_store(home, generation="g")
    assert len(listed(store)) == 40
    assert len(store.forget("u", ForgetTarget(thread_id="t")).seqs) == 40
    assert listed(store) == []
    store.close()


def _fill(path: Path) -> None:
    """Take every byte that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 1):
            while True:
                try:
                    file.write(bytes(size))
                except OSError:
                    break


# -- rows that rot ----------------------------------------------------------------------------


def damaged(home: Path, statement: str, *values: object) -> None:
    """Change the closed database behind the store's back."""
    connection = apsw.Connection(str(home / "recall.db"))
    connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "id = 'a' || 'b'",
        "encoded = CAST(encoded || x'ff' AS BLOB)",
        "encoded = CAST(replace(encoded, 'secret', 'poison') AS BLOB)",
        "encoded = x''",
        "id = CAST(x'ff' AS TEXT)",
        "metadata = '{\"k\":2}'",
        "group_id = 'x'",
        "role = 2",
        "role = 99",
        "create_time_ns = create_time_ns + 1",
        "revision = revision + 1",
        "embeddable = 0",
        "thread_key = thread_key + 1",
        "checksum = checksum + 1",
        # The same bytes at another border between two columns.
        "id = 'ag', group_id = substr(group_id, 2)",
    ],
)
def test_a_changed_row_is_never_served(tmp_path: Path, change: str) -> None:
    home = tmp_path / "data"
    store = open_store(home, generation="g")
    (a, _) = append(store, draft("a", group_id="gr", text="secret text"), draft("b", thread="t2"))
    store.close()
    damaged(home, f"UPDATE messages SET {change} WHERE seq = ?", a.seq)
    store = open_store(home, generation="g")
    with capture_logs() as logs:
        found = store.windows(WindowQuery("u", ((a.seq, a.revision),), 1, 1, 10**9))
    assert (found.messages, found.dropped, found.damaged) == ((), (), (a.seq,))
    assert [log["seqs"] for log in logs if log["event"] == "store_row_corrupt"] == [(a.seq,)]
    assert "secret" not in str(logs)
    assert listed(store) == ["b"]  # the other one goes on
    assert [row.text for row in store.pending(0, 10)] == ["text"]
    assert store.care.counts()["message"] == 1  # however often it was met
    if change.startswith("id = "):
        assert store.get("u", ["a"]) == []  # its id is another one now
    else:
        with pytest.raises(CorruptDataError) as refused:
            store.get("u", ["a"])
        assert str(a.seq) in refused.value.message
        assert "secret" not in refused.value.message
    kinds = {finding.kind for finding in store.verify("u")}
    assert "ROW_CORRUPT" in kinds
    store.close()


def test_a_row_under_another_resource_is_never_served(tmp_path: Path) -> None:
    home = tmp_path / "data"
    store = open_store(home, generation="g")
    (mine,) = append(store, draft("a"))
    append(store, draft("b"), resource="v")
    store.close()
    damaged(
        home,
        "UPDATE messages SET resource_key = (SELECT resource_key FROM resources"
        " WHERE resource_id = 'v') WHERE seq = ?",
        mine.seq,
    )
    store = open_store(home, generation="g")
    with pytest.raises(CorruptDataError):
        store.get("v", ["a"])
    store.close()


@pytest.mark.parametrize(
    ("table", "column"), [("resources", "resource_id"), ("threads", "thread_id")]
)
def test_a_changed_name_serves_nobody_elses_messages(
    tmp_path: Path, table: str, column: str
) -> None:
    home = tmp_path / "data"
    store = open_store(home, generation="g")
    append(store, draft("a", thread="u"))
    store.close()
    damaged(home, f"UPDATE {table} SET {column} = 'v'")
    store = open_store(home, generation="g")
    resource = "v" if table == "resources" else "u"
    with pytest.raises(CorruptDataError):
        store.get(resource, ["a"])
    assert store.list_messages(ListQuery(resource, None, 10)) == []
    assert store.windows(WindowQuery(resource, ((1, 1),), 0, 0, 10**9)).damaged == (1,)
    assert store.care.counts()["message"] == 1
    assert [finding.kind for finding in store.verify(None)] == ["ROW_CORRUPT"]
    assert store.pending(0, 10) == []
    store.close()


def test_a_damaged_row_can_be_forgotten(tmp_path: Path) -> None:
    home = tmp_path / "data"
    store = open_store(home, generation="g")
    (a, _) = append(store, draft("a"), draft("b"))
    store.close()
    damaged(home, "UPDATE messages SET encoded = x'ff' WHERE seq = ?", a.seq)
    store = open_store(home, generation="g")
    assert store.forget("u", ForgetTarget(message_ids=("a",))).seqs == (a.seq,)
    assert listed(store) == ["b"]
    store.close()


def test_forgotten_text_is_not_left_in_the_file(tmp_path: Path) -> None:
    """Neither the text, nor its vector, nor what its words were analysed into."""
    home, canary = tmp_path / "data", b"canary-7431"
    store = open_store(home, generation="g", analyser=WordAnalyser())
    drafts = [
        draft(f"m{n}", text=f"{canary.decode()} {n} " * 200, author=f"writer{n}") for n in range(20)
    ]
    outcomes = append(store, *drafts, draft("stays", text="kept"), draft("edited", text="before"))
    for n in range(20):
        append(store, draft(f"o{n}", text="long " * 40 * n), resource="v")
    embed(store, outcomes[0], [0.123, 0.456])
    append(store, draft("edited", text="after"))
    store.forget("u", ForgetTarget(message_ids=tuple(d.id for d in drafts)))
    store.close()
    left = b"".join(path.read_bytes() for path in home.iterdir())
    assert canary not in left
    assert np.array([0.123, 0.456], "<f4").tobytes() not in left
    gone = [f"{canary.decode()}", "before", *map(str, range(20)), *(d.author for d in drafts)]
    assert [word for word in gone if word_hash(word) in left] == []
    assert b"stays" in left
    assert all(word_hash(word) in left for word in ("kept", "after", "long"))


@pytest.mark.parametrize(
    "change",
    [
        "vector = x'0000803f0000803f'",
        "vector = x'00'",
        "checksum = checksum + 1",
        "thread_key = thread_key + 1",
        "role = 2",
        "create_time_ns = 0",
    ],
)
def test_a_changed_vector_is_left_out_and_made_again(tmp_path: Path, change: str) -> None:
    home = tmp_path / "data"
    store = open_store(home, generation="g")
    a, b = append(store, draft("a"), draft("b"))
    embed(store, a, [1.0, 0.0], [0.0, 1.0])
    embed(store, b, [0.6, 0.8])
    store.close()
    damaged(home, f"UPDATE vectors SET {change} WHERE seq = ? AND chunk = 1", a.seq)
    store = open_store(home, generation="g")
    findings = [(f.kind, f.message_id) for f in store.verify(None)]
    assert findings == [("VECTOR_CORRUPT", "a")]
    assert store.load_partition("u").seqs.tolist() == [b.seq]
    append(store, draft("c"))  # behind the repair in the writer's queue
    assert [row.seq for row in store.pending(0, 10)][:1] == [a.seq]
    assert store.stats("u").vectors == 1
    assert embed(store, a, [1.0, 0.0])
    assert store.load_partition("u").seqs.tolist() == [a.seq, b.seq]
    assert list(store.verify(None)) == []
    store.close()


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("DELETE FROM vectors WHERE seq = ?", "VECTOR_MISSING"),
        ("DELETE FROM messages WHERE seq = ?", "VECTOR_ORPHAN"),
        ("UPDATE messages SET text_hash = x'00' WHERE seq = ?", "VECTOR_STALE"),
        ("UPDATE messages SET content_hash = x'00' WHERE seq = ?", "ROW_CORRUPT"),
    ],
)
def test_verify_names_what_does_not_agree(tmp_path: Path, statement: str, kind: str) -> None:
    home = tmp_path / "data"
    store = open_store(home, generation="g")
    a, b = append(store, draft("a"), draft("b"))
    embed(store, a, [1.0, 0.0])
    embed(store, b, [1.0, 0.0])
    store.close()
    damaged(home, statement, a.seq)
    store = open_store(home, generation="g")
    findings = list(store.verify(None))
    assert kind in {finding.kind for finding in findings}
    assert all(finding.message_id != "b" for finding in findings)
    store.close()
