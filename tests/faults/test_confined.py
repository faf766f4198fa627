"""F32: all that is served is served by a process that is confined as in a hardened container."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.lifecycle import Parts
from support import fault_serving
from support.confinement import CONFINABLE, NOBODY, REACHABLE, confine
from support.fault_sidecar import FaultSidecar
from support.wire_memory import INDEXED, Sidecar, hit_ids, ids, said
from support.word_models import WordModel

WORDS = tuple(f"word{i}" for i in range(50))
TEXTS = {f"m{n}": f"word{n} word{n + 1}" for n in range(12)}
MODEL = WordModel(WORDS, 64, seed=1)
CALL_SECONDS = 60.0
MEMORY_BYTES = 6 << 30
PROCESSES = 200

pytestmark = pytest.mark.skipif(not CONFINABLE, reason="needs root on Linux, x86-64")


def confined(home: str) -> None:
    vars(fault_serving)["default_parts"] = with_its_model
    os.environ["HOME"] = home
    confine(home, MEMORY_BYTES, PROCESSES)


def with_its_model(_load: object) -> Parts:
    """The model of the flags, as in `semanticrecall serve`."""
    return default_parts()


def tries(home: str, what: str) -> None:
    confined(home)
    try:
        if what == "a program":
            subprocess.run(["true"], check=False)
        elif what == "a process":
            os.fork()
        else:
            Path(what).write_text("x")
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of nobody's, where others can reach it; the model lies beside it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        MODEL.write(Path(folder) / "model")
        place = Path(folder) / "home"
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
        yield place


@pytest.mark.parametrize(
    ("what", "status"),
    [("a program", -31), ("a process", -31), ("/tmp/x", 30), ("/etc/x", 30), ("/dev/shm/x", 30)],
)
def test_the_confinement_is_one(home: Path, what: str, status: int) -> None:
    """SIGSYS for who starts another, EROFS for who writes elsewhere."""
    sidecar = FaultSidecar(home, prepare=functools.partial(tries, str(home), what))
    sidecar.start(wait=False)
    assert sidecar.wait() == status


def use_everything(client: Sidecar) -> None:
    """Each call that writes, reads or computes."""
    memory = client.memory("resource")
    assert set(memory.index([said(i, text) for i, text in TEXTS.items()])) == {INDEXED}
    for identity, text in TEXTS.items():
        assert identity in hit_ids(memory.recall(text, top_k=2))
    for partitions_only in (True, False):
        request = admin_pb2.CreateSnapshotRequest(partitions_only=partitions_only)
        client.admin.CreateSnapshot(request, timeout=CALL_SECONDS)
    assert len(client.admin.ListSnapshots(admin_pb2.ListSnapshotsRequest()).snapshots) == 1
    memory.forget(message_ids=recall_pb2.MessageIds(ids=["m1"]))
    purged = client.admin.Purge(admin_pb2.PurgeRequest(), timeout=CALL_SECONDS)
    assert len(purged.snapshots_rewritten) == 1
    verified = list(client.admin.Verify(admin_pb2.VerifyRequest(repair=True), timeout=CALL_SECONDS))
    assert not [event for event in verified if event.HasField("finding")]
    assert verified[-1].summary.self_test_failures == 0
    exported = client.admin.Export(admin_pb2.ExportRequest(resource_id="resource"))
    assert len(list(exported)) == len(TEXTS) - 1


@pytest.mark.skipif(not REACHABLE, reason="the checkout cannot be reached by another user")
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_all_calls_are_served_by_a_confined_process(home: Path, encrypted: bool) -> None:
    flags = ["--model-dir", str(home.parent / "model"), "--model-cache-dir", str(home / "cache")]
    if encrypted:
        (home / "key").write_text("0123456789abcdef" * 4)
        os.chown(home / "key", NOBODY, NOBODY)
        flags += ["--encryption-key-file", str(home / "key")]
    prepare = functools.partial(confined, str(home))
    with FaultSidecar(home, *flags, prepare=prepare) as sidecar:
        status = Path(f"/proc/{sidecar.pid}/status").read_text()
        of_status = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert of_status["Uid"].split() == [str(NOBODY)] * 4
        assert {of_status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
        assert (of_status["NoNewPrivs"], of_status["Seccomp"]) == ("1", "2")
        client = Sidecar(f"unix:{sidecar.socket}")
        use_everything(client)
        client.close()
        assert sidecar.stop() == 0
        sidecar.start()
        client = Sidecar(f"unix:{sidecar.socket}")
        assert ids(client.memory("resource").listed()) == [i for i in TEXTS if i != "m1"]
        client.close()
        assert sidecar.stop() == 0
    assert not [line for line in sidecar.log if line["level"] == "error"], json.dumps(sidecar.log)
