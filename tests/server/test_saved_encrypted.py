"""Snapshots of encrypted stores: unreadable without the key, restored with it after rotations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.types.errors import FailedPreconditionError
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.saving_commands import restore_offline, verify_offline
from support.fake_embedder import FakeEmbedder
from support.running_server import InProcessServer, error_detail, running

TEXTS = {"m1": "the dog is called Biscuit", "m2": "allergic to walnuts", "m3": "a secret CANARY"}
KEYS = {"old": "1f" * 16 + "2e" * 16, "new": "3d" * 16 + "4c" * 16}


@contextmanager
def serving(home: Path, key: str = "", old_key: str = "") -> Iterator[InProcessServer]:
    home.mkdir(exist_ok=True)
    files: dict[str, Path] = {}
    for setting, name in (("encryption_key_file", key), ("encryption_old_key_file", old_key)):
        if name:
            files[setting] = home / name
            files[setting].write_text(KEYS[name])
            files[setting].chmod(0o600)
    parts = default_parts(lambda _: FakeEmbedder())
    with running(home, parts, snapshots_dir=home.parent / "saved", **files) as server:
        yield server


def index(server: InProcessServer) -> None:
    messages = [
        types_pb2.Message(id=name, role=types_pb2.ROLE_USER, text=text, thread_id="t")
        for name, text in TEXTS.items()
    ]
    request = recall_pb2.IndexRequest(resource_id="alice", messages=messages)
    server.recall.Index(request, timeout=60)


def create(server: InProcessServer) -> Any:
    return server.admin.CreateSnapshot(admin_pb2.CreateSnapshotRequest(), timeout=60).snapshot


def restore(server: InProcessServer, name: str) -> Any:
    return server.admin.RestoreSnapshot(admin_pb2.RestoreSnapshotRequest(name=name), timeout=60)


def first_hit(server: InProcessServer, text: str) -> str:
    request = recall_pb2.RecallRequest(resource_id="alice", query=text)
    found = server.recall.Recall(request, timeout=60).messages
    return str(next(hit.message.id for hit in found if hit.rank == 1))


def test_an_encrypted_snapshot_is_restored_with_its_key_alone(tmp_path: Path) -> None:
    with serving(tmp_path / "first", "old") as server:
        index(server)
        made = create(server)
    assert made.encrypted
    saved = tmp_path / "saved" / made.name
    assert sorted(os.listdir(saved)) == ["KEY", "MANIFEST.json", "recall.db"]
    content = b"".join(path.read_bytes() for path in saved.iterdir())
    assert not any(text.encode() in content for text in TEXTS.values())
    with serving(tmp_path / "second", "old") as server:  # another data key, the same user's key
        assert restore(server, made.name).messages == len(TEXTS)
        assert first_hit(server, TEXTS["m1"]) == "m1"
    for name, key in (("plain", ""), ("foreign", "new")):
        with serving(tmp_path / name, key) as server:
            with pytest.raises(grpc.RpcError) as refused:
                restore(server, made.name)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            detail = error_detail(refused.value)
            assert detail.reason.startswith("ENCRYPTION_KEY_")
            assert "the server must run with the key of that snapshot" in detail.message
            assert str(tmp_path) not in detail.message
            listed = server.admin.ListSnapshots(admin_pb2.ListSnapshotsRequest(), timeout=60)
            assert [each.name for each in listed.snapshots] == [made.name]


def test_an_encrypted_snapshot_is_restored_offline(tmp_path: Path) -> None:
    with serving(tmp_path / "first", "old") as server:
        index(server)
        made = create(server)
    saved = tmp_path / "saved" / made.name
    with pytest.raises(FailedPreconditionError):
        restore_offline(tmp_path / "second" / "data", saved)
    assert not (tmp_path / "second").exists()
    counts = restore_offline(tmp_path / "second" / "data", saved, key=bytes.fromhex(KEYS["old"]))
    assert counts.messages == len(TEXTS)
    content = b"".join(p.read_bytes() for p in (tmp_path / "second").rglob("*") if p.is_file())
    assert not any(text.encode() in content for text in TEXTS.values())
    with serving(tmp_path / "second", "old") as server:
        assert first_hit(server, TEXTS["m2"]) == "m2"


def test_a_new_key_opens_what_was_saved_with_the_old_one(tmp_path: Path) -> None:
    with serving(tmp_path / "first", "old") as server:
        index(server)
        made = create(server)
    with serving(tmp_path / "first", "new", "old"):
        pass
    verify_offline(tmp_path / "saved" / made.name, key=bytes.fromhex(KEYS["new"]))
    with pytest.raises(FailedPreconditionError):
        verify_offline(tmp_path / "saved" / made.name, key=bytes.fromhex(KEYS["old"]))


def test_a_purge_rewrites_an_encrypted_snapshot(tmp_path: Path) -> None:
    with serving(tmp_path / "first", "old") as server:
        index(server)
        made = create(server)
        ids = recall_pb2.MessageIds(ids=["m3"])
        request = recall_pb2.ForgetRequest(resource_id="alice", message_ids=ids, purge=True)
        assert server.recall.Forget(request, timeout=60).purged
        (listed,) = server.admin.ListSnapshots(
            admin_pb2.ListSnapshotsRequest(), timeout=60
        ).snapshots
        assert (listed.name, listed.forgotten, listed.messages) == (made.name, 0, 2)
    verify_offline(tmp_path / "saved" / made.name, key=bytes.fromhex(KEYS["old"]))


def test_a_plain_snapshot_becomes_an_encrypted_store(
    tmp_path: Path,
) -> None:
    """The way to encryption: nothing is encrypted in place."""
    with serving(tmp_path / "plain") as server:
        index(server)
        made = create(server)
        assert not made.encrypted
    with serving(tmp_path / "encrypted", "new") as server:
        assert restore(server, made.name).messages == len(TEXTS)
        assert first_hit(server, TEXTS["m1"]) == "m1"
    content = b"".join(
        path.read_bytes() for path in (tmp_path / "encrypted").rglob("*") if path.is_file()
    )
    assert not any(text.encode() in content for text in TEXTS.values())
