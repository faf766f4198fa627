"""F8. A disk whose syncs do not come back: reads go on, deadlines hold, the queue has an end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import grpc
import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from support.fault_calls import Action, Calls, Fault, arm, needs_shim
from support.fault_model import AckModel, Message, listed, recalled
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar, wait_until
from support.fault_sizes import COLUMNS, size
from support.running_server import error_detail

IN_FLIGHT_MAX = 8
MESSAGES = 20


def _message(number: int) -> Message:
    message = Message(
        id=f"m{number}",
        thread_id="t",
        resource_id="u",
        role=types_pb2.ROLE_USER,
        text=f"number{number} harbour lantern",
    )
    message.create_time.seconds = 1_700_000_000 + number
    return message


def _request(message: Message) -> recall_pb2.IndexRequest:
    return recall_pb2.IndexRequest(resource_id="u", messages=[message])


@needs_shim
@pytest.mark.parametrize("column", COLUMNS)
def test_nobody_but_writers_waits_for_a_sync(tmp_path: Path, column: str) -> None:
    disks = size("F8_SLOW_DISKS", column)
    with seeded("F8 syncs that are held up", tmp_path, disks=disks) as run:
        for number in run.cycles(disks):
            home = tmp_path / str(number)
            home.mkdir()
            _hold_up(home)
            run.count("held up")


def _hold_up(home: Path) -> None:
    gate = home / "gate"
    fault = Fault(str(home / "data"), Action.HOLD, calls=Calls.SYNC, gate=str(gate))
    lane = ("--index-in-flight-max", str(IN_FLIGHT_MAX), "--index-threads", "4")
    flags = (*lane, "--snapshot-interval-ms", "0")
    with FaultSidecar(home, *flags, prepare=partial(arm, fault)) as sidecar:
        model = AckModel()
        stubs = sidecar.stubs
        for number in range(MESSAGES):
            operation = model.begin({("u", f"m{number}"): _message(number)})
            stubs.recall.Index(_request(_message(number)), timeout=30)
            operation.acked()
        gate.touch()
        first = _message(MESSAGES)
        held = model.begin({("u", first.id): first})
        writing = stubs.recall.Index.future(_request(first), timeout=60)
        wait_until(home.joinpath("gate.held").exists)

        # Reads: all of them, while the writer stands.
        asked = [
            recall_pb2.RecallRequest(resource_id="u", query=_message(n).text, top_k=1)
            for n in range(MESSAGES)
        ]
        for number, answer in enumerate(recalled(stubs, asked)):
            assert [m.message.id for m in answer.messages if m.rank == 1] == [f"m{number}"]
        assert {m.id for m in listed(stubs, "u")} == {f"m{number}" for number in range(MESSAGES)}
        assert not writing.done()

        # A deadline is kept although nothing moves.
        late = _message(MESSAGES + 1)
        model.begin({("u", late.id): late})
        with pytest.raises(grpc.RpcError) as over:
            stubs.recall.Index(_request(late), timeout=0.2)
        assert over.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not writing.done()

        # More than may wait are told to come back.
        more = [_message(MESSAGES + 2 + number) for number in range(3 * IN_FLIGHT_MAX)]
        operations = [model.begin({("u", message.id): message}) for message in more]
        calls = [stubs.recall.Index.future(_request(message), timeout=60) for message in more]
        wait_until(lambda: sum(call.done() for call in calls) >= 2 * IN_FLIGHT_MAX)
        refused = {number for number, call in enumerate(calls) if call.done()}
        for number in refused:
            error = calls[number].exception()
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error_detail(error).retryable
            operations[number].failed()
        assert not writing.done()

        gate.unlink()
        writing.result()
        held.acked()
        for number, call in enumerate(calls):
            if number not in refused:
                call.result()
                operations[number].acked()
        model.check(stubs)
