"""Old data opens: a data directory of every format that there was is served, and has everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType

import apsw
import pytest
from google.protobuf.json_format import MessageToDict

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.messages import SqliteMessageStore, schema
from semanticrecall_core.types.errors import FailedPreconditionError
from support import format_2, format_3, format_4
from support.message_stores import ids
from support.stored_messages import open_store
from support.wire_memory import ALONE, INDEXED, Sidecar, hit_ids, nanoseconds, said
from support.wire_memory import ids as ids_of

RECORDS = pytest.mark.parametrize(("old", "number"), [(format_2, 2), (format_3, 3)])
KINDS = pytest.mark.parametrize("kind", format_4.KINDS)


def format_of(home: Path) -> int:
    connection = apsw.Connection(str(home / "recall.db"))
    version = connection.pragma("user_version")
    connection.close()
    return int(version)


# -- the record of older formats --------------------------------------------------------------


def opened(home: Path, old: ModuleType) -> SqliteMessageStore:
    return open_store(home, generation=old.GENERATION, analyser=Analyser())


@RECORDS
def test_a_record_of_an_older_format_is_opened_and_has_everything(
    old: ModuleType, number: int, tmp_path: Path
) -> None:
    home = old.unpacked(tmp_path)
    assert format_of(home) == number
    store = opened(home, old)
    assert list(store.verify(None)) == []
    times = count(old.FIRST_TIME_NS, 1_000_000_000)
    for resource, drafts in old.CONTENT.items():
        found = store.get(resource, [one.id for one in drafts])
        assert [
            (m.id, m.text, m.author, m.role, m.metadata_json, m.group_id, m.payload, m.thread_id)
            for m in found
        ] == [
            (d.id, d.text, d.author, d.role, d.metadata_json, d.group_id, d.payload, d.thread_id)
            for d in drafts
        ]
        assert [m.create_time_ns for m in found] == [next(times) for _ in drafts]
        seqs = {m.id: m.seq for m in found}
        to_embed = [d.id for d in drafts if d.embeddable]
        embedded = [seqs[i] for i in to_embed if (resource, i) != old.WAITING]
        partition = store.load_partition(resource)
        assert partition.seqs.tolist() == embedded
        assert partition.vectors.tolist() == [[1.0, seq] for seq in embedded]
        assert store.load_lexical(resource).seqs.tolist() == [seqs[i] for i in to_embed]
    assert store.get("alice", [old.FORGOTTEN.id]) == []
    assert [row.resource_id for row in store.pending(0, 9)] == [old.WAITING[0]]
    store.close()
    assert format_of(home) == schema.FORMAT
    again = opened(home, old)
    assert ids(again.get("bob", ["first"])) == ["first"]
    assert list(again.verify(None)) == []
    again.close()


@pytest.mark.parametrize("old", [format_2, format_3])
def test_a_newer_format_is_refused_with_the_way_out(old: ModuleType, tmp_path: Path) -> None:
    home = old.unpacked(tmp_path)
    opened(home, old).close()
    connection = apsw.Connection(str(home / "recall.db"))
    connection.pragma("user_version", schema.FORMAT + 1)
    connection.close()
    with pytest.raises(FailedPreconditionError) as refused:
        opened(home, old)
    assert refused.value.reason == "FORMAT_UNKNOWN"
    assert f"has format {schema.FORMAT + 1}" in refused.value.message
    assert "start the version that wrote it, or a newer one" in refused.value.message
    assert format_of(home) == schema.FORMAT + 1


# -- whole directories of this format ---------------------------------------------------------


def tables_of(home: Path) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(home / "recall.db"))
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    tables = connection.execute(query).fetchall()
    connection.close()
    return tables


def test_the_tables_of_this_format_are_those_of_its_fixture(tmp_path: Path) -> None:
    """Whoever changes a table makes a new format, or finds this."""
    assert schema.FORMAT == 4
    old = tables_of(format_4.unpacked(tmp_path) / "plain" / "data")
    open_store(tmp_path / "new", generation="g").close()
    assert tables_of(tmp_path / "new") == old


@contextmanager
def served(home: Path, kind: str) -> Iterator[Sidecar]:
    with format_4.serving(home, kind) as server:
        sidecar = Sidecar(server.sidecar.addresses[0].target)
        try:
            yield sidecar
        finally:
            sidecar.close()


def check_content(sidecar: Sidecar) -> None:
    for resource, texts in format_4.TEXTS.items():
        memory = sidecar.memory(resource)
        listed = memory.listed()
        assert ids_of(listed) == list(texts)
        for place, message in enumerate(listed):
            assert message.text == texts[message.id]
            assert message.author == "Zoë"
            time_ns = format_4.FIRST_TIME_NS + place * format_4.SECOND_NS
            assert nanoseconds(message.create_time) == time_ns
            tagged = message.id == "tagged"
            expected = format_4.METADATA if tagged else {}
            assert MessageToDict(message.metadata) == expected
            assert message.payload == (format_4.PAYLOAD if tagged else b"")
            found = memory.recall(message.text, top_k=1, message_range=ALONE)
            assert hit_ids(found) == [message.id]


@KINDS
def test_a_directory_of_format_4_is_served_and_has_everything(kind: str, tmp_path: Path) -> None:
    home = format_4.unpacked(tmp_path) / kind
    images = {path.name for path in (home / "data/snapshots").iterdir()}
    with served(home, kind) as sidecar:
        check_content(sidecar)
        stats = sidecar.stats()
        assert stats.encrypted is (kind == "encrypted")
        assert stats.pending == 0
        assert stats.vectors == sum(map(len, format_4.TEXTS.values()))
        assert (stats.snapshots.damaged, stats.snapshots.files) == (0, len(images))
        # Texts that were embedded before are not embedded again.
        bob = sidecar.memory("bob")
        assert set(
            bob.index([said("again", text) for text in [format_4.TEXTS["bob"]["first"]]])
        ) == {INDEXED}
        assert sidecar.stats().cache.disk_hits >= 1
        assert sidecar.stats().cache.disk_damaged == 0
        request = admin_pb2.VerifyRequest()
        answers = list(sidecar.admin.Verify(request, timeout=60.0))
        assert [answer for answer in answers if answer.HasField("finding")] == []
    with served(home, kind) as sidecar:
        assert ids_of(sidecar.memory("alice").listed()) == list(format_4.TEXTS["alice"])


@KINDS
def test_a_snapshot_of_format_4_is_restored_without_what_was_forgotten_since(
    kind: str, tmp_path: Path
) -> None:
    home = format_4.unpacked(tmp_path) / kind
    (saved,) = (home / "data/saved").glob("*/MANIFEST.json")
    assert json.loads(saved.read_text())["encrypted"] is (kind == "encrypted")
    fresh = tmp_path / "fresh"
    (fresh / "data").mkdir(parents=True)
    (home / "data/saved").rename(fresh / "data/saved")
    with served(fresh, kind) as sidecar:
        request = admin_pb2.RestoreSnapshotRequest(name=saved.parent.name)
        sidecar.admin.RestoreSnapshot(request, timeout=60.0)
        check_content(sidecar)
