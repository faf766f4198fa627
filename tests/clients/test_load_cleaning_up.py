"""What a load forgets at its end, and Ctrl-C: nothing is left, nothing else is touched."""

from __future__ import annotations

import multiprocessing
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall import RecallClient, user
from semanticrecall.load.interruption import Interruption
from semanticrecall.load.measured import WorkerSecond
from semanticrecall.load.plan import LoadPlan, Stage
from semanticrecall.load.result import FindingCode
from semanticrecall.load.run import LoadEndedError, Observer, run_load
from support.fake_sidecar import Failure, Shelf
from support.loads import (
    OTHERS,
    PREFIX,
    Told,
    address_of,
    calls,
    codes,
    left,
    plan,
    small_sidecar,
    work,
)
from support.running_server import InProcessServer

COMMAND = "semanticrecall load --as-it-was"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessServer]:
    """With a resource of somebody else, which no load may touch."""
    with small_sidecar(tmp_path) as serving:
        with RecallClient(address_of(serving), timeout=30) as memory:
            memory.index(OTHERS, "t", [user("stays", id="1")])
        yield serving


def asked(shelf: Shelf, method: str) -> list[str]:
    """The resources of the calls of a method, as they arrived."""
    return [seen.request.resource_id for seen in list(shelf.seen) if seen.method == method]  # type: ignore[attr-defined]


def many_resources(address: str, **fields: Any) -> LoadPlan:
    workload = work(resources=1_000_000, zipf_exponent=0.0, messages_before=0, recall_share=0.5)
    return plan(address, workload=workload, processes=2, **fields)


def test_only_what_was_written_to_is_forgotten(address: str, shelf: Shelf) -> None:
    stages = (Stage(rate_per_s=100, duration_s=0.2), Stage(rate_per_s=100, duration_s=0.2))
    run_load(many_resources(address, warm_up_s=0.2, stages=stages), COMMAND, Observer())
    indexed = asked(shelf, "Index")
    assert 0 < len(set(indexed)) < 60
    assert sorted(asked(shelf, "Forget")) == sorted(set(indexed))
    assert not shelf.messages


def test_what_failed_after_it_was_stored_is_forgotten(
    address: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = shelf.put

    def store_and_fail(request: Any) -> Any:
        put(request)
        raise RuntimeError("a defect of the fake")

    monkeypatch.setattr(shelf, "put", store_and_fail)
    result = run_load(many_resources(address), COMMAND, Observer())
    assert result.stages[0].operations["index"].ok == 0
    indexed = set(asked(shelf, "Index"))
    assert indexed
    assert set(asked(shelf, "Forget")) == indexed
    assert not shelf.messages


def test_of_prepared_and_written_resources_all_are_forgotten(server: InProcessServer) -> None:
    load = plan(address_of(server), workload=work(resources=9, zipf_exponent=0.0), calls_max=2)
    run_load(load, COMMAND, Observer())
    assert calls(server, "Forget") == 9
    assert left(address_of(server)) == 1


def test_where_a_process_did_not_say_where_it_wrote_all_are_forgotten(
    server: InProcessServer,
) -> None:
    class Killer(Told):
        def second(self, worker: int, second: WorkerSecond) -> None:
            multiprocessing.active_children()[0].kill()

    workload = work(resources=300, zipf_exponent=0.0, messages_before=0, recall_share=0.0)
    stages = (Stage(rate_per_s=20, duration_s=600.0),)
    with pytest.raises(LoadEndedError):
        run_load(plan(address_of(server), workload=workload, stages=stages), COMMAND, Killer())
    assert calls(server, "Index") > 1
    assert calls(server, "Forget") % 300 == 0
    assert left(address_of(server)) == 1


def test_what_cannot_be_forgotten_is_told(address: str, shelf: Shelf) -> None:
    class Refuser(Told):
        def phase(self, name: str, **given: Any) -> None:
            super().phase(name, **given)
            if name == "cleaning up":
                shelf.failures += [Failure(grpc.StatusCode.INTERNAL)] * 4

    told = Refuser()
    result = run_load(plan(address), COMMAND, told)
    assert result.findings[0].code is FindingCode.NOT_CLEANED_UP
    assert repr(PREFIX) in result.findings[0].text
    assert told.notes == [result.findings[0].text]


# --- Ctrl-C --------------------------------------------------------------------------------------


class Interrupter(Told):
    """Presses Ctrl-C in these phases, once in each: when it begins, or in its first second."""

    def __init__(self, *phases: str, seconds: bool = False) -> None:
        super().__init__()
        self._waits = set(phases)
        self._seconds = seconds

    def phase(self, name: str, *, seconds: float = 0.0, processes: int = 0) -> None:
        super().phase(name, seconds=seconds, processes=processes)
        if not (self._seconds and seconds):
            self._press()

    def second(self, worker: int, second: WorkerSecond) -> None:
        super().second(worker, second)
        self._press()

    def _press(self) -> None:
        if self.phases[-1] in self._waits:
            self._waits.discard(self.phases[-1])
            signal.raise_signal(signal.SIGINT)


def long_plan(address: str, **fields: Any) -> LoadPlan:
    stages = (Stage(rate_per_s=100, duration_s=0.4), Stage(rate_per_s=50, duration_s=600.0))
    return plan(address, stages=stages, **fields)


def test_ctrl_c_gives_what_was_measured_and_cleans_up(server: InProcessServer) -> None:
    before = signal.getsignal(signal.SIGINT)
    told = Interrupter("50 calls/s", seconds=True)
    result = run_load(long_plan(address_of(server), processes=2), COMMAND, told)
    assert signal.getsignal(signal.SIGINT) is before
    assert [stage.name for stage in result.stages] == ["100 calls/s", "50 calls/s"]
    last = result.stages[1]
    assert 0 < last.finished == last.scheduled < 1_000
    assert calls(server, "Recall") + calls(server, "Index") == 40 + last.finished + 1
    assert result.findings[0].code is FindingCode.INTERRUPTED
    assert told.phases[-1] == "cleaning up"
    assert left(address_of(server)) == 1


@pytest.mark.parametrize("phase", ["preparing", "warm-up", "100 calls/s"])
def test_ctrl_c_early_on(server: InProcessServer, phase: str) -> None:
    told = Interrupter(phase)
    load = long_plan(address_of(server), warm_up_s=600.0, workload=work(messages_before=200))
    if phase == "100 calls/s":
        load = replace(load, warm_up_s=0.0)
    result = run_load(load, COMMAND, told)
    assert FindingCode.INTERRUPTED in codes(result)
    assert sum(stage.finished for stage in result.stages) < 40
    assert len(result.stages) <= 1
    assert left(address_of(server)) == 1


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_closed_terminal_and_a_request_to_end_are_ctrl_c(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with Interruption() as interruption:
        signal.raise_signal(number)
        assert interruption.requested
    assert signal.getsignal(number) is before


def test_what_nohup_set_stays() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert not interruption.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_while_it_cleans_up_says_so_and_goes_on(server: InProcessServer) -> None:
    told = Interrupter("cleaning up")
    result = run_load(plan(address_of(server)), COMMAND, told)
    (note,) = told.notes
    found = re.fullmatch(
        r"Interrupted: it is cleaning up, (\d) of 4 resources are left\. A second Ctrl-C ends it "
        r"at once, and leaves the rest in the store, in resources whose names begin with (\S+)\.",
        note,
    )
    assert found is not None
    assert 0 <= int(found[1]) <= 4
    assert found[2] == repr(PREFIX)
    assert left(address_of(server)) == 1
    assert [stage.finished for stage in result.stages] == [40]
    assert result.findings[0].code is FindingCode.INTERRUPTED
    assert "what follows is whole" in result.findings[0].text


def test_a_second_ctrl_c_ends_at_once_and_says_what_is_left(server: InProcessServer) -> None:
    told = Interrupter("50 calls/s", "cleaning up")
    with pytest.raises(KeyboardInterrupt):
        run_load(long_plan(address_of(server)), COMMAND, told)
    assert "ended at once" in told.notes[-1]
    assert repr(PREFIX) in told.notes[-1]
    assert left(address_of(server)) > 1
    assert multiprocessing.active_children() == []
