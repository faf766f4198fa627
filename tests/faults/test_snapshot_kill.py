"""kill -9 between the record's Forget and that of the snapshots: the next start ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.engine_with_snapshots import WAIT_S, WithSnapshots

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from semanticrecall_core.types.values import ForgetTarget
from support.engine_with_snapshots import WithSnapshots
running = WithSnapshots(Path(sys.argv[1]), mapped=sys.argv[3] == "mapped").start()
running.recall("what is the dog called")
running.snapshotting.forget = lambda resource_id: os.kill(os.getpid(), signal.SIGKILL)
running.engine.forget("u", ForgetTarget(message_ids=("m1",)))
"""


@pytest.mark.parametrize("memory", ["mapped", "in memory"])
def test_vectors_forgotten_by_a_killed_process_leave_the_disk(tmp_path: Path, memory: str) -> None:
    first = WithSnapshots(tmp_path).start()
    first.add("u")
    first.add("v", {"n1": "an allergy to nuts"})
    first.snapshot()
    gone, kept = first.image("u"), first.image("v")
    first.engine.stop()
    support = str(Path(__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), support, memory], timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert first.on_disk(gone)

    second = WithSnapshots(tmp_path, mapped=memory == "mapped")
    forgotten = second.forgotten()
    second.start()
    assert second.recall("what is the dog called") != ["m1"]  # also before
    assert forgotten.acquire(timeout=WAIT_S)
    assert second.recall("what is the dog called") != ["m1"]
    assert second.recall("a train to Lisbon") == ["m3"]
    second.engine.stop()
    assert not second.on_disk(gone)  # what was written anew has it neither
    assert second.on_disk(kept)
