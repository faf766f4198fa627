"""F2. kill -9 at every call that changes a file: before it, and in the middle of every write."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2
from support import fault_scenarios
from support.fault_calls import Action, Calls, Fault, arm, needs_shim
from support.fault_children import run_with
from support.fault_model import AckModel
from support.fault_report import FaultRun, seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.fault_workload import Workload
from support.running_server import Stubs

CALLS_MAX = 3_000
QUICK_FIRST = ("append", "forget", "images", "upgrade")


@needs_shim
@pytest.mark.parametrize("column", COLUMNS)
def test_killed_at_every_call_a_store_holds_what_was_acknowledged(
    tmp_path: Path, column: str
) -> None:
    names = QUICK_FIRST[: size("F2_SCENARIOS", column)]
    for name in names:
        scenario = fault_scenarios.SCENARIOS[name]
        begun = tmp_path / name
        begun.mkdir()
        scenario.prepare(begun)
        with seeded(f"F2 kill at every call: {name}", tmp_path / "now") as run:
            for action in (Action.KILL, Action.TEAR):
                killed = _killed_at_every(name, begun, action, run)
                run.count("kills" if action is Action.KILL else "torn writes", killed)


def _killed_at_every(name: str, begun: Path, action: Action, run: FaultRun) -> int:
    """How many calls there were, or were met in time."""
    folder = run.directory
    assert folder is not None
    calls = Calls.WRITE if action is Action.TEAR else Calls.ALL
    for met in run.cycles(CALLS_MAX, is_bound=True):
        assert met < CALLS_MAX - 1, "it never comes to its end"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)
        fault = Fault(str(folder), action, calls=calls, first=met + 1, last=met + 1, syncs=False)
        ended = run_with(name, folder, fault)
        if ended.status == 0:
            assert ended.told.ended
            assert ended.counted == met
            return met
        assert ended.status == -signal.SIGKILL, ended
        fault_scenarios.check(name, folder, ended.told)
    return met


@needs_shim
@pytest.mark.nightly
def test_killed_at_every_call_of_a_saved_snapshot_and_a_purge_a_sidecar_has_whole_ones(
    tmp_path: Path,
) -> None:
    with seeded("F2 kill at every call: save and purge", tmp_path / "now") as run:
        for number in run.cycles(CALLS_MAX, is_bound=True):
            home = tmp_path / "now"
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            fault = Fault(
                str(home / "data"),
                Action.KILL,
                word="saved/",
                first=number + 1,
                last=number + 1,
                syncs=False,
            )
            sidecar = FaultSidecar(home, prepare=partial(arm, fault))
            model = AckModel()
            workload = Workload(model, run.random, workers=1, weights={"index": 1})
            sidecar.start()
            workload.begin(sidecar.stubs)
            workload.wait_for_acks(4)
            workload.end()
            is_done = _save_and_purge(sidecar.stubs, model)
            sidecar.kill()
            with FaultSidecar(home) as again:
                model.check(again.stubs)
                assert not list((home / "data" / "saved").glob("*.partial"))
            if is_done:
                break
            run.count("kills")


def _save_and_purge(stubs: Stubs, model: AckModel) -> bool:
    """Whether it lived to the end."""
    gone = next(iter(model.every()))
    key = (gone.resource_id, gone.id)
    try:
        made = stubs.admin.CreateSnapshot(admin_pb2.CreateSnapshotRequest(), timeout=60)
        model.saved.add(made.snapshot.name)
        operation = model.begin({key: None})
        request = recall_pb2.ForgetRequest(
            resource_id=key[0], message_ids={"ids": [key[1]]}, purge=True
        )
        stubs.recall.Forget(request, timeout=60)
        operation.acked()
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True
