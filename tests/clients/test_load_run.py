"""A whole load against the real server: counts are the server's own, and nothing is left behind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall import RecallClient, Tls, user
from semanticrecall.connection import connection
from semanticrecall.errors import (
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from semanticrecall.load import preparing
from semanticrecall.load import run as run_module
from semanticrecall.load.measured import WorkerSecond
from semanticrecall.load.plan import Stage
from semanticrecall.load.result import FindingCode, LoadResult, Percentiles, Schedule, StageResult
from semanticrecall.load.run import (
    LoadEndedError,
    Observer,
    processes_wanted,
    run_load,
    settings_of,
)
from semanticrecall.v1 import admin_pb2, types_pb2
from support.fake_sidecar import Shelf
from support.loads import (
    OTHERS,
    PREFIX,
    Told,
    address_of,
    calls,
    closed,
    codes,
    left,
    plan,
    small_sidecar,
    work,
    worker_stage,
)
from support.running_server import InProcessServer

TLS = Path(__file__).resolve().parents[1] / "fixtures/tls"
TOKEN = "first-token-0123456789"
COMMAND = "semanticrecall load --as-it-was"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessServer]:
    """With a resource of somebody else, which no load may touch."""
    with small_sidecar(tmp_path) as serving:
        with RecallClient(address_of(serving), timeout=30) as memory:
            memory.index(OTHERS, "t", [user("stays", id="1")])
        yield serving


def total(result: LoadResult, operation: str, name: str) -> int:
    """The sum over stages of "ok", or of a count."""
    found = [stage.operations[operation] for stage in result.stages]
    return sum(one.ok if name == "ok" else one.counts.get(name, 0) for one in found)


def test_counts_are_the_server_s_own(server: InProcessServer) -> None:
    told = Told()
    stages = (Stage(rate_per_s=100, duration_s=0.4), Stage(rate_per_s=200, duration_s=0.4))
    address = address_of(server)
    load = plan(address, workload=work(recall_share=0.6, query_repeat_share=0.5), stages=stages)
    result = run_load(replace(load, processes=2), COMMAND, told)

    assert [stage.scheduled for stage in result.stages] == [40, 80]
    assert [stage.finished for stage in result.stages] == [40, 80]
    recalls, indexes = total(result, "recall", "ok"), total(result, "index", "ok")
    assert recalls + indexes == 120
    assert calls(server, "Recall") == recalls
    assert calls(server, "Index") == indexes + 1
    assert total(result, "index", "messages") == 2 * indexes
    assert total(result, "index", "rejected") == 0
    assert server.reading("answers_repeated_total") == total(result, "recall", "answer_cache_hits")
    assert total(result, "recall", "repeated") > 0
    assert calls(server, "Forget") == 4
    assert left(address) == 1

    assert told.phases == ["preparing", "100 calls/s", "200 calls/s", "cleaning up"]
    assert told.processes == [0, 2, 2, 0]
    assert told.done[-2] == (24, 24)
    assert (result.preparation.messages, result.command) == (24, COMMAND)
    assert sum(second.finished for _, second in told.seconds) == 120
    assert [sum(s.finished_per_s for s in stage.timeline) for stage in result.stages] == [40, 80]
    assert FindingCode.SHARED_MACHINE in codes(result)
    assert not codes(result) & {FindingCode.ERRORS, FindingCode.UNFINISHED}


def test_the_target_says_what_the_server_said(server: InProcessServer) -> None:
    result = run_load(plan(address_of(server), workload=work(recall_share=1)), COMMAND, Observer())
    target = result.target
    found = server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)
    assert (target.transport, target.tls, target.token) == ("unix", False, False)
    assert target.server["messages"] == 1
    assert target.server["resources"] == 1
    assert target.server["version"]
    assert target.server["index_identity"] == found.index_identity


def test_a_warm_up_is_not_measured_and_leaves_nothing(server: InProcessServer) -> None:
    address = address_of(server)
    told = Told()
    load = plan(address, workload=work(recall_share=0.5), warm_up_s=0.4, ramp_s=0.0)
    result = run_load(load, COMMAND, told)
    assert told.phases == ["preparing", "warm-up", "100 calls/s", "cleaning up"]
    assert len(result.stages) == 1
    assert result.stages[0].finished == 40
    assert calls(server, "Recall") + calls(server, "Index") == 80 + 1
    assert left(address) == 1


def test_a_closed_loop(server: InProcessServer) -> None:
    result = run_load(plan(address_of(server), **closed(3)), COMMAND, Observer())
    (stage,) = result.stages
    assert (stage.name, stage.loop, stage.schedule) == ("3 in flight", "closed", None)
    assert stage.scheduled == stage.finished > 0
    assert calls(server, "Recall") + calls(server, "Index") == stage.finished + 1
    assert all(second.in_flight <= 3 for second in stage.timeline)


def test_what_shall_be_kept_is_kept(server: InProcessServer) -> None:
    told = Told()
    result = run_load(plan(address_of(server), workload=work(keep=True)), COMMAND, told)
    written = total(result, "index", "messages")
    assert written > 0
    assert left(address_of(server)) == 1 + 24 + written
    assert calls(server, "Forget") == 0
    assert "cleaning up" not in told.phases
    assert any(PREFIX in note for note in told.notes)


def test_existing_resources_are_only_read(server: InProcessServer) -> None:
    told = Told()
    load = plan(
        address_of(server),
        workload=work(existing_resources=(OTHERS,), recall_share=1, queries=("what stays?",)),
    )
    result = run_load(load, COMMAND, told)
    assert total(result, "recall", "hits") == 40
    assert (calls(server, "Index"), calls(server, "Forget")) == (1, 0)
    assert told.phases == ["100 calls/s"]
    assert left(address_of(server)) == 1
    document = str(asdict(result))
    assert OTHERS not in document
    assert "what stays?" not in document
    assert result.plan["workload"]["queries"] == 1
    assert result.plan["workload"]["existing_resources"] == 1


def test_a_load_ends_after_its_most_calls(server: InProcessServer) -> None:
    stages = (Stage(rate_per_s=100, duration_s=0.4), Stage(rate_per_s=100, duration_s=600.0)) * 2
    load = plan(address_of(server), stages=stages, calls_max=60, processes=2)
    result = run_load(load, COMMAND, Observer())
    assert [stage.finished for stage in result.stages] == [40, 20]
    assert FindingCode.CALLS_MAX_REACHED in codes(result)
    assert calls(server, "Recall") + calls(server, "Index") == 60 + 1


def test_as_many_calls_as_planned_are_not_too_many(server: InProcessServer) -> None:
    result = run_load(plan(address_of(server), calls_max=40), COMMAND, Observer())
    assert [stage.finished for stage in result.stages] == [40]
    assert FindingCode.CALLS_MAX_REACHED not in codes(result)


# --- errors --------------------------------------------------------------------------------------


def test_errors_are_counted_by_code(address: str, shelf: Shelf) -> None:
    load = plan(address, workload=work(recall_share=1, messages_before=0))
    refusals = iter(range(7))
    arrive = shelf.arrive

    def refuse_some(method: str, request: Any, context: Any) -> None:
        if method == "Recall" and next(refusals, None) is not None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        arrive(method, request, context)

    shelf.arrive = refuse_some  # type: ignore[method-assign]
    result = run_load(load, COMMAND, Observer())
    recall = result.stages[0].operations["recall"]
    assert (recall.calls, recall.ok) == (40, 33)
    assert recall.errors == {"RESOURCE_EXHAUSTED": 7}
    assert recall.failed_latency_ms.count == 7
    assert sum(second.failed_per_s for second in result.stages[0].timeline) == 7
    assert result.findings[0].code is FindingCode.ERRORS
    assert result.findings[0].text.startswith("7 of 40 calls failed (17.5%)")


def test_nobody_is_there(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    absent = plan(address, connection=connection(address, {"connect_timeout": 0.2}))
    with pytest.raises(UnavailableError, match="no sidecar answers"):
        run_load(absent, COMMAND, Observer())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"calls_max": 0}, "calls_max"),
        ({"in_flight_max": 1, "processes": 2}, "in_flight_max"),
        ({"workload": work(thread_scope_share=0.5, existing_resources=("a",), recall_share=1)}, ""),
    ],
)
def test_a_plan_that_makes_no_sense_sends_nothing(
    address: str, shelf: Shelf, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        run_load(plan(address, **fields), COMMAND, Observer())
    assert caught.value.violations[0].field == (field or "thread_scope_share")
    assert shelf.seen == []


def test_a_failed_preparation_is_raised_and_cleaned_up(address: str, shelf: Shelf) -> None:
    put, answers = shelf.put, iter(range(20))

    def fail_later(request: Any) -> Any:
        if next(answers, None) is None:
            raise RuntimeError("a defect of the fake")
        return put(request)

    shelf.put = fail_later  # type: ignore[method-assign]
    load = plan(address, workload=work(resources=50))
    with pytest.raises(Exception, match="Exception iterating responses"):
        run_load(load, COMMAND, Observer())
    assert not shelf.messages


def test_a_killed_process_ends_the_load_and_it_cleans_up(server: InProcessServer) -> None:
    class Killer(Told):
        def second(self, worker: int, second: WorkerSecond) -> None:
            if self.phases[-1] == "1 calls/s":
                multiprocessing.active_children()[0].kill()

    stages = (Stage(rate_per_s=100, duration_s=0.4), Stage(rate_per_s=1, duration_s=600.0))
    load = plan(address_of(server), stages=stages, processes=2)
    told = Killer()
    with pytest.raises(LoadEndedError, match=r"sending process \d was killed") as caught:
        run_load(load, COMMAND, told)
    partial = caught.value.result
    assert [stage.name for stage in partial.stages] == ["100 calls/s"]
    assert partial.findings[0].code is FindingCode.INTERRUPTED
    assert "was killed (SIGKILL)" in partial.findings[0].text
    assert told.phases[-1] == "cleaning up"
    assert left(address_of(server)) == 1
    assert multiprocessing.active_children() == []


def test_prepared_messages_that_stay_pending_are_noted(
    address: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SILENCE_SECONDS_MAX", 0.5)
    put = shelf.put

    def put_pending(request: Any) -> Any:
        answer = put(request)
        answer.results[0].status = types_pb2.STATUS_PENDING
        return answer

    monkeypatch.setattr(shelf, "put", put_pending)
    shelf.pending = {f"{PREFIX}2": 1}
    told = Told()
    result = run_load(plan(address, workload=work(recall_share=1)), COMMAND, told)
    assert result.preparation.messages == 23
    assert told.notes[0].startswith("1 of the messages that were prepared are stored, but not")


# --- TLS and tokens ------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    files = {"tls_cert_file": TLS / "cert.pem", "tls_key_file": TLS / "key.pem"}
    with small_sidecar(tmp_path, listen=("localhost:0",), tokens_file=tokens, **files) as serving:
        yield address_of(serving)


def test_over_tls_with_a_token(guarded: str) -> None:
    port = guarded.rpartition(":")[2]
    address, tls = f"localhost:{port}", Tls(ca_file=TLS / "cert.pem")
    given = connection(address, {"tls": tls, "token": TOKEN})
    result = run_load(plan(address, connection=given, processes=2), COMMAND, Observer())
    assert result.stages[0].finished == 40
    assert FindingCode.ERRORS not in codes(result)
    target = result.target
    assert (target.transport, target.tls, target.token) == ("tcp", True, True)
    assert left(address, tls=tls, token=TOKEN) == 0
    assert TOKEN not in str(asdict(result))

    wrong = connection(address, {"tls": tls, "token": "another-token-0123456789"})
    with pytest.raises(UnauthenticatedError):
        run_load(plan(address, connection=wrong), COMMAND, Observer())


# --- how many processes --------------------------------------------------------------------------


def warmed_up(*cpu_shares: float, **fields: Any) -> StageResult:
    from semanticrecall.load.adding_up import stage_result
    from semanticrecall.load.plan import Loop

    parts = [worker_stage(n, cpu_s=share) for n, share in enumerate(cpu_shares)]
    found = stage_result(Loop.OPEN, Stage(rate_per_s=100), parts)
    assert found.schedule is not None
    schedule: Schedule = replace(found.schedule, **fields)
    return replace(found, schedule=schedule)


LATE = {"client_lateness_ms": Percentiles(count=9, p99=6.0)}


@pytest.mark.parametrize(
    ("rates", "warm_up", "cores", "wanted"),
    [
        ((100,), warmed_up(0.8), 8, 1),
        ((100,), warmed_up(0.81), 8, 2),
        ((100,), warmed_up(0.81), 1, 1),
        ((100,), warmed_up(0.5, 0.9), 8, 4),
        ((100, 200), warmed_up(0.41), 8, 2),
        ((100, 1_000), warmed_up(0.41), 8, 8),
        ((100, 1_000), warmed_up(0.41), 7, 4),
        ((100, 10), warmed_up(0.41), 8, 1),
        ((100,), warmed_up(0.3, **LATE), 8, 2),
        ((100,), warmed_up(0.29, **LATE), 8, 1),
        ((100,), warmed_up(0.5, kept=False), 8, 2),
        ((100,), warmed_up(0.5, kept=False, lateness_ms=Percentiles(count=9, p99=90.0)), 8, 1),
    ],
)
def test_processes_follow_from_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
    rates: tuple[float, ...],
    warm_up: StageResult,
    cores: int,
    wanted: int,
) -> None:
    monkeypatch.setattr(run_module.os, "cpu_count", lambda: cores)
    stages = tuple(Stage(rate_per_s=rate) for rate in rates)
    assert processes_wanted(plan("127.0.0.1:1", stages=stages), warm_up) == wanted


def test_more_processes_than_callers_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module.os, "cpu_count", lambda: 64)
    busy = replace(warmed_up(0.99), schedule=None)
    assert processes_wanted(plan("127.0.0.1:1", **closed(1, 8)), busy) == 1
    assert processes_wanted(plan("127.0.0.1:1", **closed(3, 8)), busy) == 2
    assert processes_wanted(plan("127.0.0.1:1", in_flight_max=1), warmed_up(0.99)) == 1


def test_a_busy_process_is_joined_by_another(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(run_module, "ENOUGH_CPU_SHARE", 1e-6)
    told = Told()
    load = plan(address_of(server), warm_up_s=0.3, processes=0)
    result = run_load(load, COMMAND, told)
    assert told.processes == [0, 1, 2, 2, 0]
    assert told.phases[1:4] == ["warm-up", "warm-up", "100 calls/s"]
    assert any("2 processes instead of 1" in note for note in told.notes)
    assert result.stages[0].client.processes == 2
    assert left(address_of(server)) == 1


def test_settings_hold_no_secret_and_no_name(address: str) -> None:
    given = connection(address, {"token": TOKEN})
    workload = work(queries=("my question",), existing_resources=("my user",), recall_share=1)
    found = settings_of(plan(address, connection=given, workload=workload))
    assert not any(secret in str(found) for secret in (TOKEN, "my question", "my user"))
    assert found["calls_max"] == 1_000_000
    assert found["stages"] == [{"rate_per_s": 100, "in_flight": 0, "duration_s": 0.4}]
    assert found["workload"]["query_words"] == {"low": 6, "high": 16}
    assert set(found["workload"]) == set(asdict(workload))
