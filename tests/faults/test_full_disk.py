"""F5. A full disk: writes are refused, reads serve, Forget works, writes resume by themselves."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from support.fault_conditions import limit_file_size, mounted_memory
from support.fault_model import AckModel, Message
from support.fault_report import FaultRun, seeded
from support.fault_sidecar import FaultSidecar, wait_until
from support.fault_sizes import COLUMNS, size
from support.running_server import Stubs, error_detail

KIB_MIN = 7 * 1024
KIB_STEP = 517  # of no other size's multiple: the disk is full somewhere else each time
TEXT_BYTES = 20_000
MESSAGES_MAX = 5_000


@pytest.mark.parametrize("column", COLUMNS)
def test_a_full_disk_refuses_messages_serves_reads_and_can_still_forget(
    tmp_path: Path, column: str
) -> None:
    sizes = size("F5_DISK_SIZES", column)
    with seeded("F5 full disks", sizes=sizes) as run:
        for number in run.cycles(sizes):
            kib = KIB_MIN + KIB_STEP * number
            with mounted_memory(tmp_path / f"{column}-{kib}", kib) as place:
                _fill_and_free(place, tmp_path / "s", run)
            run.count("disks filled")


def _fill_and_free(home: Path, socket: Path, run: FaultRun) -> None:
    model = AckModel()
    sidecar = FaultSidecar(home, "--snapshot-interval-ms", "0", socket=socket)
    with sidecar:
        for number in range(20):
            assert _index(sidecar.stubs, model, number) == ""
        _image(sidecar.stubs)
        stored = _until_full(sidecar.stubs, model, 20)
        run.count("stored", stored)
        assert _index(sidecar.stubs, model, stored) == "DISK_FULL"
        model.check(sidecar.stubs, embedded=False)
        sidecar.kill()  # and it starts on a full disk
        sidecar.start()
        model.check(sidecar.stubs, embedded=False)
        assert _index(sidecar.stubs, model, stored) == "DISK_FULL"
        _forget(sidecar.stubs, model, [f"m{number}" for number in range(0, stored, 2)])
        wait_until(lambda: _index(sidecar.stubs, model, stored) == "")  # without a restart
        model.check(sidecar.stubs, chance=run.random, sample=5)
        assert sidecar.stop() == 0
        sidecar.start()
        model.check(sidecar.stubs)


def test_a_limit_on_the_size_of_files_loses_nothing(tmp_path: Path) -> None:
    with seeded("F5 limited files", tmp_path) as run:
        model = AckModel()
        limit = partial(limit_file_size, 3 << 20)
        sidecar = FaultSidecar(tmp_path, prepare=limit)
        with sidecar:
            stored = _until_full(sidecar.stubs, model, 0)
            run.count("stored", stored)
            model.check(sidecar.stubs, embedded=False)
        with FaultSidecar(tmp_path) as unlimited:
            model.check(unlimited.stubs)
            assert _index(unlimited.stubs, model, stored) == ""


def _until_full(stubs: Stubs, model: AckModel, first: int) -> int:
    """Index until it is refused; how many are there."""
    for number in range(first, MESSAGES_MAX):
        refused = _index(stubs, model, number)
        if refused:
            assert refused == "DISK_FULL"
            return number
    raise AssertionError("the disk was never full")


def _index(stubs: Stubs, model: AckModel, number: int) -> str:
    """Why it was refused; empty where it was not."""
    message = Message(
        id=f"m{number}",
        thread_id=f"t{number % 7}",
        resource_id="u",
        role=types_pb2.ROLE_USER,
        text=f"number{number} of many, all of them alike",
        payload=bytes([number % 251]) * TEXT_BYTES,
    )
    message.create_time.seconds = 1_700_000_000 + number
    operation = model.begin({("u", message.id): message})
    request = recall_pb2.IndexRequest(resource_id="u", messages=[message])
    try:
        stubs.recall.Index(request, timeout=30)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        operation.failed()
        return error_detail(error).reason
    operation.acked()
    return ""


def _forget(stubs: Stubs, model: AckModel, ids: list[str]) -> None:
    operation = model.begin({("u", one): None for one in ids})
    request = recall_pb2.ForgetRequest(resource_id="u", message_ids={"ids": ids})
    gone = stubs.recall.Forget(request, timeout=30)
    operation.acked()
    assert gone.messages == len(ids)


def _image(stubs: Stubs) -> None:
    request = admin_pb2.CreateSnapshotRequest(partitions_only=True)
    stubs.admin.CreateSnapshot(request, timeout=30)
