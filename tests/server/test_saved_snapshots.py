"""Snapshots of the whole store, over a real socket."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.saving_commands import restore_offline, verify_offline
from support.fake_embedder import FakeEmbedder
from support.running_server import InProcessServer, error_detail, running

TEXTS = {
    "m1": "the dog is called Biscuit",
    "m2": "the boiler was repaired in March",
    "m3": "book the train to Lisbon",
    "m4": "allergic to walnuts",
}
NAMES = 200


@contextmanager
def serving(
    home: Path, embedder: FakeEmbedder | None = None, **settings: Any
) -> Iterator[InProcessServer]:
    """A server over the data directory `home`/data, its snapshots in `home`.parent/saved."""
    home.mkdir(exist_ok=True)
    parts = default_parts(lambda _: embedder or FakeEmbedder())
    values = {"snapshots_dir": home.parent / "saved", **settings}
    with running(home, parts, **values) as server:
        yield server


def index(server: InProcessServer, resource: str = "alice", **more: Any) -> Any:
    messages = [
        types_pb2.Message(id=name, role=types_pb2.ROLE_USER, text=text)
        for name, text in TEXTS.items()
    ]
    request = recall_pb2.IndexRequest(
        resource_id=resource, thread_id="t", messages=messages, **more
    )
    return server.recall.Index(request, timeout=60)


def recalled(server: InProcessServer, query: str, resource: str = "alice") -> list[Any]:
    """Ids and scores of the hits."""
    request = recall_pb2.RecallRequest(
        resource_id=resource,
        query=query,
        message_range=recall_pb2.MessageRange(before=0, after=0),
    )
    found = server.recall.Recall(request, timeout=60).messages
    return [(hit.message.id, hit.score) for hit in sorted(found, key=lambda hit: hit.rank)]


def create(server: InProcessServer) -> Any:
    return server.admin.CreateSnapshot(admin_pb2.CreateSnapshotRequest(), timeout=60).snapshot


def listed(server: InProcessServer) -> list[Any]:
    answer = server.admin.ListSnapshots(admin_pb2.ListSnapshotsRequest(), timeout=60)
    return list(answer.snapshots)


def restore(server: InProcessServer, name: str) -> Any:
    return server.admin.RestoreSnapshot(admin_pb2.RestoreSnapshotRequest(name=name), timeout=60)


def forget(server: InProcessServer, *ids: str) -> Any:
    target = recall_pb2.MessageIds(ids=ids)
    request = recall_pb2.ForgetRequest(resource_id="alice", message_ids=target)
    return server.recall.Forget(request, timeout=60)


def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error_detail(error.value).reason


def test_what_was_saved_answers_elsewhere(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
        assert (made.messages, made.vectors, made.forgotten) == (len(TEXTS), len(TEXTS), 0)
        saved = tmp_path / "saved" / made.name / "recall.db"
        assert made.bytes == saved.stat().st_size
        assert made.digest == hashlib.sha256(saved.read_bytes()).hexdigest()
        assert listed(server) == [made]
        before = recalled(server, "which nuts, walnuts?")
    with serving(tmp_path / "second") as server:
        assert listed(server) == [made]
        counts = restore(server, made.name)
        assert (counts.messages, counts.vectors, counts.forgotten) == (4, 4, 0)
        assert recalled(server, "which nuts, walnuts?") == before
        assert refused(lambda: restore(server, made.name)) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "STORE_NOT_EMPTY",
        )
        server.admin.DeleteSnapshot(admin_pb2.DeleteSnapshotRequest(name=made.name), timeout=60)
        assert listed(server) == []


def test_images_alone_are_no_snapshot(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        request = admin_pb2.CreateSnapshotRequest(partitions_only=True)
        made = server.admin.CreateSnapshot(request, timeout=60).snapshot
        assert (made.name, made.vectors) == ("", len(TEXTS))
        assert listed(server) == []


def test_an_older_snapshot_does_not_bring_back_what_was_forgotten(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
        assert forget(server, "m4").messages == 1
        assert [each.forgotten for each in listed(server)] == [1]
    with serving(tmp_path / "second") as server:
        counts = restore(server, made.name)
        assert (counts.messages, counts.forgotten) == (3, 1)
        assert "m4" not in [name for name, _ in recalled(server, TEXTS["m4"])]
    counts_offline = restore_offline(tmp_path / "third" / "data", tmp_path / "saved" / made.name)
    assert (counts_offline.messages, counts_offline.forgotten) == (3, 1)
    with serving(tmp_path / "third") as server:
        assert "m4" not in [name for name, _ in recalled(server, TEXTS["m4"])]
        assert recalled(server, TEXTS["m1"])[0][0] == "m1"


def test_a_forget_after_an_offline_restore_counts_for_the_snapshot(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
    restore_offline(tmp_path / "second" / "data", tmp_path / "saved" / made.name)
    with serving(tmp_path / "second") as server:
        forget(server, "m2")
    with serving(tmp_path / "third") as server:
        assert restore(server, made.name).forgotten == 1
        assert "m2" not in [name for name, _ in recalled(server, TEXTS["m2"])]


def test_texts_are_embedded_where_another_model_serves(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
    other = FakeEmbedder(generation="another")
    with serving(tmp_path / "second", other) as server:
        counts = restore(server, made.name)
        assert (counts.messages, counts.vectors) == (len(TEXTS), 0)
        stats = admin_pb2.GetStatsRequest()
        server.wait_until(lambda: not server.admin.GetStats(stats, timeout=60).pending)
        assert recalled(server, TEXTS["m3"])[0][0] == "m3"


def test_what_was_cached_before_a_restore_is_not_answered_after_it(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
    with serving(tmp_path / "second") as server:
        assert recalled(server, TEXTS["m1"]) == []
        assert recalled(server, TEXTS["m1"]) == []
        restore(server, made.name)
        assert recalled(server, TEXTS["m1"])[0][0] == "m1"


def test_a_damaged_snapshot_is_data_loss(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
        path = tmp_path / "saved" / made.name / "recall.db"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with serving(tmp_path / "second") as server:
        assert refused(lambda: restore(server, made.name))[0] is grpc.StatusCode.DATA_LOSS
        assert server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=60).damaged == 1
        assert recalled(server, TEXTS["m1"]) == []
        index(server)
        assert recalled(server, TEXTS["m1"])[0][0] == "m1"
    with pytest.raises(Exception, match="digest"):
        verify_offline(tmp_path / "saved" / made.name)


def test_verify_finds_snapshots_that_are_not_listed(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        sound, flipped, short = create(server), create(server), create(server)
        path = tmp_path / "saved" / flipped.name / "recall.db"
        content = bytearray(path.read_bytes())
        content[4_711] ^= 4
        path.write_bytes(content)
        os.truncate(tmp_path / "saved" / short.name / "recall.db", 8_192)
        assert {each.name for each in listed(server)} == {sound.name, flipped.name}
        events = list(server.admin.Verify(admin_pb2.VerifyRequest(), timeout=60))
        findings = [event.finding for event in events if event.HasField("finding")]
        assert {each.kind for each in findings} == {"SNAPSHOT_DAMAGED"}
        assert {each.detail.split(":")[0] for each in findings} == {flipped.name, short.name}
        assert refused(lambda: restore(server, short.name))[0] is not grpc.StatusCode.NOT_FOUND


def flip_a_bit(manifest: Path) -> None:
    content = bytearray(manifest.read_bytes())
    content[len(content) // 2] ^= 1
    manifest.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, lambda manifest: os.truncate(manifest, 100), Path.unlink],
    ids=["flipped", "cut short", "lost"],
)
def test_verify_finds_a_snapshot_whose_manifest_cannot_be_read(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        sound, damaged = create(server), create(server)
        damage(tmp_path / "saved" / damaged.name / "MANIFEST.json")
        assert [each.name for each in listed(server)] == [sound.name]
        events = list(server.admin.Verify(admin_pb2.VerifyRequest(), timeout=60))
        findings = [event.finding for event in events if event.HasField("finding")]
        assert [each.kind for each in findings] == ["SNAPSHOT_DAMAGED"]
        assert findings[0].detail.startswith(f"{damaged.name}: ")
        assert refused(lambda: restore(server, damaged.name))[0] is grpc.StatusCode.DATA_LOSS
        delete = admin_pb2.DeleteSnapshotRequest(name=damaged.name)
        server.admin.DeleteSnapshot(delete, timeout=60)
        events = list(server.admin.Verify(admin_pb2.VerifyRequest(), timeout=60))
        assert not [event for event in events if event.HasField("finding")]


# ---- names ----


def hostile_names(home: Path, good: str) -> list[str]:
    """200 names that are no snapshot's."""
    parts = ["..", ".", "../..", "%2e%2e", "..\\", "\u2025", "\uff0e\uff0e", "\u3002\u3002"]
    targets = ["data", "first/data", "saved", "etc/passwd", good]
    names = [f"{part}/{target}" for part in parts for target in targets]
    names += [f"{good}{tail}" for tail in ("/", "/.", "/..", "\x00", " ", "\n", ".", ".partial")]
    names += [f"{head}{good}" for head in ("/", "./", " ", "\x00", "//", "~/", "file://", "\\\\")]
    names += ["CON", "PRN", "AUX", "NUL", "COM1", "LPT1", "con.txt", "aux", "nul", "clock$"]
    names += [str(home / "saved" / good), str(home / "first" / "data"), "/", "//", "/dev/zero"]
    names += ["link", "link/MANIFEST.json", "FORGOTTEN", "..", ".", "~", "*", "?", "$HOME"]
    names += ["x" * size for size in (127, 128, 129, 255, 256, 4_096, 70_000)]
    names += [good.upper(), good.lower(), good.swapcase(), good[:-1], good + "0", good[::-1]]
    names += [good.replace("-", sep) for sep in ("\u2010", "\u2212", "_", "\uff0d")]
    names += [chr(point) for point in (0x200B, 0x202E, 0xFEFF, 0x7F, 0x85, 0x2028, 0x1F4A9, 0xFFFD)]
    names += [f"{{{n}}}" for n in range(NAMES)]
    unusual = [name for name in dict.fromkeys(names) if name and name != good]
    return unusual[:NAMES]


def tree(home: Path) -> dict[str, int]:
    """Every file below, with its size; logs and marks that a server moves left out."""
    return {
        str(path.relative_to(home)): path.lstat().st_size
        for folder in ("saved", "outside")
        for path in sorted((home / folder).rglob("*"))
        if not path.is_dir() or path.is_symlink()
    }


def test_names_of_callers_reach_no_file(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "MANIFEST.json").write_text("{}")
    (outside / "recall.db").write_text("keep")
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
        (tmp_path / "saved" / "link").symlink_to(outside)
        (tmp_path / "saved" / f"{made.name[:-1]}z").symlink_to(outside)
        before = tree(tmp_path)
        names = hostile_names(tmp_path, made.name)
        assert len(names) == NAMES
        for name in names:
            codes = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
            delete = admin_pb2.DeleteSnapshotRequest(name=name)
            assert refused(lambda d=delete: server.admin.DeleteSnapshot(d, timeout=60))[0] in codes
            assert refused(lambda n=name: restore(server, n))[0] in codes, name
        assert refused(lambda: restore(server, ""))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert tree(tmp_path) == before
        assert [each.name for each in listed(server)] == [made.name]
        assert recalled(server, TEXTS["m1"])[0][0] == "m1"


# ---- without a server ----


def test_an_offline_restore_needs_an_empty_directory(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        made = create(server)
        saved = tmp_path / "saved" / made.name
        with pytest.raises(Exception, match="in use by process"):
            restore_offline(tmp_path / "first" / "data", saved)
    with pytest.raises(Exception, match="not empty"):
        restore_offline(tmp_path / "first" / "data", saved)
    with pytest.raises(Exception, match="no snapshot"):
        restore_offline(tmp_path / "second" / "data", tmp_path / "saved" / "other")
    assert not (tmp_path / "second").exists()
    os.rename(saved, tmp_path / "my backup")  # whatever people call it
    counts = restore_offline(tmp_path / "second" / "data", tmp_path / "my backup")
    assert (counts.messages, counts.vectors) == (len(TEXTS), len(TEXTS))
    files = {path.name for path in (tmp_path / "second" / "data").iterdir()}
    assert files == {"LOCK", "MARK", "recall.db"}


# ---- vectors in exports and imports ----


def exported(server: InProcessServer, *, with_vectors: bool) -> list[Any]:
    request = admin_pb2.ExportRequest(resource_id="alice", with_vectors=with_vectors)
    return list(server.admin.Export(request, timeout=60))


def imported(server: InProcessServer, rows: list[Any], **changes: Any) -> Any:
    vectors = [types_pb2.MessageVectors() for _ in rows]
    for copy, row in zip(vectors, rows, strict=True):
        copy.CopyFrom(row.vectors)
        for name, value in changes.items():
            setattr(copy, name, value)
    request = recall_pb2.IndexRequest(
        resource_id="alice", messages=[row.message for row in rows], vectors=vectors
    )
    return server.recall.Index(request, timeout=60)


def test_an_export_with_vectors_is_imported_without_computing_any(tmp_path: Path) -> None:
    queries = [*TEXTS.values(), "a dog and a train", "walnuts in March"]
    with serving(tmp_path / "first") as server:
        index(server)
        before = {query: recalled(server, query) for query in queries}
        rows = exported(server, with_vectors=True)
        assert not any(row.HasField("vectors") for row in exported(server, with_vectors=False))
    embedder = FakeEmbedder()
    with serving(tmp_path / "second", embedder) as server:
        runs = embedder.runs
        answer = imported(server, rows)
        assert [each.status for each in answer.results] == [types_pb2.STATUS_INDEXED] * 4
        assert answer.info.embeddings_computed == 0
        assert embedder.runs == runs
        after = {query: recalled(server, query) for query in queries}
    assert after == before  # to the bit


def test_vectors_of_another_model_are_left_aside(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        rows = exported(server, with_vectors=True)
    with serving(tmp_path / "second") as server:
        answer = imported(server, rows, index_identity="another")
        assert answer.info.embeddings_computed == len(TEXTS)
        assert recalled(server, TEXTS["m1"])[0][0] == "m1"


def test_an_edit_has_the_vectors_that_come_with_it(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        index(server)
        rows = exported(server, with_vectors=True)
        by_id = {row.message.id: row for row in rows}
        edited = by_id["m1"]
        edited.message.text = TEXTS["m4"]
        edited.vectors.data = by_id["m4"].vectors.data
        answer = imported(server, [edited])
        assert [each.status for each in answer.results] == [types_pb2.STATUS_REPLACED]
        assert answer.info.embeddings_computed == 0
        assert {name for name, _ in recalled(server, TEXTS["m4"])[:2]} == {"m1", "m4"}


def unit(*numbers: float, dimensions: int = 64) -> bytes:
    row = np.zeros(dimensions, "<f4")
    row[: len(numbers)] = numbers
    return row.tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        unit(1.0)[:-1],
        unit(1.0)[:-4],
        unit(1.0) * 257,
        unit(float("nan"), 1.0),
        unit(float("inf")),
        unit(0.0),
        unit(1.1),
        unit(1.0) + unit(0.5),
        unit(3e38, 3e38),
    ],
    ids=["none", "odd", "short", "many", "nan", "inf", "zero", "long", "second", "huge"],
)
def test_bad_vectors_reject_their_message_alone(tmp_path: Path, data: bytes) -> None:
    with serving(tmp_path / "first") as server:
        messages = [
            types_pb2.Message(id=name, role=types_pb2.ROLE_USER, text=TEXTS[name], thread_id="t")
            for name in ("m1", "m2")
        ]
        bad = types_pb2.MessageVectors(
            message_id="m1", index_identity=FakeEmbedder().index_identity, data=data
        )
        request = recall_pb2.IndexRequest(resource_id="alice", messages=messages, vectors=[bad])
        results = server.recall.Index(request, timeout=60).results
        assert [each.status for each in results] == [
            types_pb2.STATUS_REJECTED,
            types_pb2.STATUS_INDEXED,
        ]
        assert results[0].error.field_violations[0].field == "vectors[0].data"
        assert [name for name, _ in recalled(server, TEXTS["m1"])] == ["m2"]


@pytest.mark.parametrize("given", [["m9"], ["m1", "m1"], [""]])
def test_vectors_must_name_a_message_once(tmp_path: Path, given: list[str]) -> None:
    with serving(tmp_path / "first") as server:
        vectors = [types_pb2.MessageVectors(message_id=name, data=unit(1.0)) for name in given]
        code, _ = refused(lambda: index(server, vectors=vectors))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert recalled(server, TEXTS["m1"]) == []


def test_of_an_id_that_is_there_twice_no_vectors_are_taken(tmp_path: Path) -> None:
    """Which of the two texts they are of is not known."""
    with serving(tmp_path / "first") as server:
        messages = [
            types_pb2.Message(id="m1", role=types_pb2.ROLE_USER, text=text, thread_id="t")
            for text in (TEXTS["m1"], TEXTS["m2"])
        ]
        given = types_pb2.MessageVectors(
            message_id="m1", index_identity=FakeEmbedder().index_identity, data=unit(1.0)
        )
        request = recall_pb2.IndexRequest(resource_id="alice", messages=messages, vectors=[given])
        assert server.recall.Index(request, timeout=60).info.embeddings_computed == 1


def test_what_has_nothing_to_embed_gets_no_vectors(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as server:
        message = types_pb2.Message(id="m1", role=types_pb2.ROLE_TOOL, text="x", thread_id="t")
        given = types_pb2.MessageVectors(
            message_id="m1", index_identity=FakeEmbedder().index_identity, data=unit(1.0)
        )
        request = recall_pb2.IndexRequest(resource_id="alice", messages=[message], vectors=[given])
        results = server.recall.Index(request, timeout=60).results
        assert [each.status for each in results] == [types_pb2.STATUS_NOT_EMBEDDED]
        stats = server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=60)
        assert (stats.messages, stats.vectors) == (1, 0)
