"""Ids that would be paths: none reaches the file system as a name, all are just ids.

A resource's, a thread's and a message's id come from users. Two hundred that mean something to a
file system, a shell or a URL are indexed, written to images, restarted over, saved and forgotten.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_server.assembly import default_parts
from support.fake_embedder import FakeEmbedder
from support.fault_sizes import size
from support.running_server import InProcessServer, running
from support.wire_memory import said

ESCAPES = (
    *("..", ".", "../..", "../outside", "../../outside", "/", "//", "/etc/passwd", "/tmp/outside"),
    *(
        "a/../../outside",
        "a/./b",
        "a//b",
        "a/",
        "/a",
        "./a",
        "~",
        "~root",
        "~/outside",
        "-rf",
        "--",
    ),
    *("..\\outside", "C:\\outside", "\\\\server\\share", "C:", "..%2foutside", "%2e%2e/outside"),
    *("%00", "..%c0%afoutside", "....//outside", "..;/outside", "\uff0e\uff0e/outside"),
    *("\u2025/outside", "..\u2215outside", "..\u2044outside", "\u202e/outside", "..\ufeff/outside"),
    *("CON", "PRN", "AUX", "NUL", "COM1", "LPT1", "con.txt", "a.", "a ", "a:b", "a::$DATA"),
    *("recall.db", "recall.db-wal", "embeddings.db", "snapshots", "saved", "LOCK"),
    *(
        "../data/recall.db",
        "../data/saved/x",
        "x.partial",
        ".hidden",
        "...",
        "*",
        "?",
        "a|b",
        "<a>",
    ),
    *("$(touch outside)", "`touch outside`", "a;touch outside", "${HOME}", "%s%n", "file:///etc"),
    *("unix:/outside", "http://x/", "data:,x", "\u00e9/../x", "e\u0301/../x", "\U0001f600/../x"),
)
REFUSED = tuple(
    f"a{mark}b" for mark in ("\x00", "\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\u2028")
)
LONG = tuple(
    (unit * 512)[: 512 // len(unit.encode())] for unit in ("../", "a", "/", ".", "\u00e9", "a/")
)
NAMES_OF_FILES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


def names(count: int) -> list[str]:
    """So many different ids."""
    wrapped = (
        f"{before}{escape}{after}"
        for before, after in (("", ""), ("user/", ""), ("", "/x"), ("acme-", "-eu"))
        for escape in ESCAPES
    )
    return list(dict.fromkeys(itertools.chain(LONG, itertools.islice(wrapped, count))))[:count]


def tree(directory: Path) -> set[str]:
    """Everything below a directory, links not followed."""
    found = set()
    for here, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(here) / name
            assert not path.is_symlink(), path
            found.add(str(path.relative_to(directory)))
    return found


def index(server: InProcessServer, name: str) -> recall_pb2.IndexResponse:
    """One message whose resource, thread, message and group have this id."""
    message = said(name, "rex eats turkey", group_id=name, author=name, payload_type=name)
    request = recall_pb2.IndexRequest(resource_id=name, thread_id=name, messages=[message])
    answer: recall_pb2.IndexResponse = server.recall.Index(request, timeout=30)
    return answer


def recalled(server: InProcessServer, name: str) -> list[str]:
    """Owners of what is found for this id."""
    request = recall_pb2.RecallRequest(resource_id=name, query="turkey", top_k=10)
    answer = server.recall.Recall(request, timeout=30)
    return [one.message.resource_id for one in answer.messages]


def test_hostile_ids_are_ids_and_no_paths(tmp_path: Path) -> None:
    tried = names(size("F26_NAMES", "quick"))
    assert len(tried) == size("F26_NAMES", "quick")
    home = tmp_path / "a" / "b" / "place"
    home.mkdir(parents=True)
    options = {"memory": "low", "snapshot_interval_ms": 100}
    outside = tree(tmp_path)
    for life in range(2):
        parts = default_parts(lambda settings: FakeEmbedder())
        with running(home, parts, **options) as server:
            for name in tried:
                if life == 0:
                    index(server, name)
                assert recalled(server, name) == [name]
            for images in (True, False):
                request = admin_pb2.CreateSnapshotRequest(partitions_only=images)
                server.admin.CreateSnapshot(request, timeout=60)
            stats = server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=30)
            assert stats.resources == len(tried)
            assert stats.snapshots.partitions == len(tried)
    with running(home, default_parts(lambda settings: FakeEmbedder()), **options) as server:
        for name in tried[:20]:
            request = recall_pb2.ForgetRequest(resource_id=name, everything=True)
            assert server.recall.Forget(request, timeout=30).messages == 1
            assert recalled(server, name) == []
    written = tree(tmp_path) - outside
    for path in written:
        assert path.startswith("a/b/place/data"), path
        assert all(NAMES_OF_FILES.fullmatch(part) for part in Path(path).parts), path


def test_ids_with_control_characters_are_refused(tmp_path: Path) -> None:
    parts = default_parts(lambda settings: FakeEmbedder())
    with running(tmp_path, parts) as server:
        for name in REFUSED:
            with pytest.raises(grpc.RpcError) as refused:
                index(server, name)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("rpc", ["DeleteSnapshot", "RestoreSnapshot"])
def test_names_of_snapshots_lead_nowhere(tmp_path: Path, rpc: str) -> None:
    home = tmp_path / "a" / "home"
    home.mkdir(parents=True)
    parts = default_parts(lambda settings: FakeEmbedder())
    with running(home, parts) as server:
        index(server, "alice")
        saved = server.admin.CreateSnapshot(admin_pb2.CreateSnapshotRequest(), timeout=60)
        wanted = tree(tmp_path)
        kind = getattr(admin_pb2, f"{rpc}Request")
        for name in (*names(200), *REFUSED, "", f"../saved/{saved.snapshot.name}", "s" * 5_000):
            with pytest.raises(grpc.RpcError) as refused:
                getattr(server.admin, rpc)(kind(name=name), timeout=30)
            assert refused.value.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.NOT_FOUND,
            ), name
        assert tree(tmp_path) >= wanted
        listed = server.admin.ListSnapshots(admin_pb2.ListSnapshotsRequest(), timeout=30)
        assert [one.name for one in listed.snapshots] == [saved.snapshot.name]
