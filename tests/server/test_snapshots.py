"""A real sidecar: what was indexed is recalled after it was killed, whatever snapshots are left."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from support.running_server import ServerProcess, Stubs

pytestmark = pytest.mark.model

TEXTS = {
    "u1": "My sister's dog is called Biscuit.",
    "u2": "The boiler was repaired in March.",
    "u3": "Please book the train to Lisbon for Friday.",
    "u4": "I am allergic to walnuts.",
}
QUERIES = {"what is the dog's name?": "u1", "which nuts can I not eat?": "u4"}
FORGOTTEN = "u4"


def flags(directory: Path, *more: str) -> list[str]:
    listen = f"unix:{directory}/s.sock"
    return ["--data-dir", str(directory / "data"), "--listen", listen, *more]


def index(stubs: Stubs) -> None:
    messages = [
        types_pb2.Message(id=name, role=types_pb2.ROLE_USER, text=text)
        for name, text in TEXTS.items()
    ]
    request = recall_pb2.IndexRequest(resource_id="alice", thread_id="t", messages=messages)
    stubs.recall.Index(request, timeout=60)


def answers(stubs: Stubs) -> dict[str, list[tuple[str, float]]]:
    """Ids and scores by query."""
    found: dict[str, list[tuple[str, float]]] = {}
    for query in QUERIES:
        request = recall_pb2.RecallRequest(
            resource_id="alice",
            query=query,
            top_k=3,
            message_range=recall_pb2.MessageRange(before=0, after=0),
        )
        messages = stubs.recall.Recall(request, timeout=60).messages
        ranked = sorted(messages, key=lambda m: m.rank)
        found[query] = [(m.message.id, m.score) for m in ranked]
    return found


def snapshot_stats(stubs: Stubs) -> admin_pb2.SnapshotStats:
    return stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=60).snapshots


@pytest.fixture
def before(tmp_path: Path) -> dict[str, list[tuple[str, float]]]:
    """What a sidecar answered that made a snapshot and was then killed."""
    with ServerProcess(flags(tmp_path)) as server:
        server.wait_for("serving")
        stubs = Stubs(f"unix:{tmp_path}/s.sock")
        index(stubs)
        images = admin_pb2.CreateSnapshotRequest(partitions_only=True)
        made = stubs.admin.CreateSnapshot(images, timeout=60)
        assert (made.snapshot.name, made.snapshot.vectors) == ("", len(TEXTS))
        assert made.snapshot.bytes > 0
        found = answers(stubs)
        stubs.close()
        server.signal(signal.SIGKILL)
        server.wait()
    assert {query: ranked[0][0] for query, ranked in found.items()} == QUERIES
    return found


@pytest.mark.parametrize("memory", ["default", "low"])
@pytest.mark.parametrize("state", ["there", "damaged", "missing"])
def test_a_killed_sidecar_recalls_the_same_with_any_snapshot(
    tmp_path: Path, before: dict[str, list[tuple[str, float]]], state: str, memory: str
) -> None:
    (file,) = (tmp_path / "data" / "snapshots").glob("*.snapshot")
    if state == "damaged":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif state == "missing":
        file.unlink()
    with ServerProcess(flags(tmp_path, "--memory", memory)) as server:
        server.wait_for("serving")
        stubs = Stubs(f"unix:{tmp_path}/s.sock")
        assert answers(stubs) == before
        stats = snapshot_stats(stubs)
        assert (stats.partitions, stats.damaged) == {
            "there": (1, 0),
            "damaged": (0, 1),
            "missing": (0, 0),
        }[state]
        stubs.close()
        server.signal()
        status, log = server.wait()
    assert status == 0
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    warnings = [e["event"] for e in events if e["level"] not in ("info", "debug")]
    assert warnings == (["snapshot_block_damaged"] if state == "damaged" else [])


@pytest.mark.parametrize("memory", ["default", "low"])
@pytest.mark.usefixtures("before")
def test_what_is_forgotten_is_in_no_snapshot_and_in_no_answer(tmp_path: Path, memory: str) -> None:
    directory = tmp_path / "data" / "snapshots"
    before = set(directory.glob("*.snapshot"))
    assert len(before) == 1
    with ServerProcess(flags(tmp_path, "--memory", memory)) as server:
        server.wait_for("serving")
        stubs = Stubs(f"unix:{tmp_path}/s.sock")
        target = recall_pb2.MessageIds(ids=[FORGOTTEN])
        request = recall_pb2.ForgetRequest(resource_id="alice", message_ids=target)
        assert stubs.recall.Forget(request, timeout=60).messages == 1
        # No file name is used twice. Another image may be there already: of the rows that are left.
        assert not before & set(directory.glob("*.snapshot"))
        stats = snapshot_stats(stubs)
        assert (stats.partitions, stats.rows) in ((0, 0), (1, len(TEXTS) - 1))
        ids = [name for ranked in answers(stubs).values() for name, _ in ranked]
        assert FORGOTTEN not in ids
        assert "u1" in ids
        stubs.close()
