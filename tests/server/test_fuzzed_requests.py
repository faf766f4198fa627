"""Requests that are nearly right, by the hundred thousand: each is answered or refused by name.

Handlers are called as the endpoints call them, in this process; some thousands more go over a
socket to an engine that stores. An error is one of the error table, never INTERNAL, never UNKNOWN.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from semanticrecall_core.types.errors import NotFoundError, SemanticRecallError
from semanticrecall_core.types.values import CallBudget, StoredMessage
from semanticrecall_server.admin import resident_bytes
from semanticrecall_server.answers import Clock
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.endpoints import ADMIN_UNARY, RECALL_UNARY, VECTOR_UNARY
from semanticrecall_server.errors import error_detail, status_code, trailers
from semanticrecall_server.gate import Services
from semanticrecall_server.service import Call, Later
from semanticrecall_server.streams import ADMIN_STREAMS
from semanticrecall_server.wire import decode
from support.every_rpc import Rpc, every_rpc, filled, mutated, valid
from support.fake_embedder import FakeEmbedder
from support.fake_engine import FakeEngine
from support.fault_report import FaultRun, seeded
from support.fault_sizes import COLUMNS, size
from support.isolation_ids import canaries_in, canary
from support.running_server import InProcessServer, parts_of, running

CALL_SECONDS = 30.0
ON_A_SOCKET = 20
"""One in so many is sent over a socket."""
GROWTH_BYTES_MAX = 96 * 1024 * 1024
TRAILER_BYTES_MAX = 8 * 1024
SLOW = {"Purge", "CreateSnapshot", "Reembed", "Verify"}
"""Their requests say little, and what they do takes long."""

SECRET = canary(0xC0FFEE)
DOCUMENTED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}


@dataclass(frozen=True)
class Handled:
    """One method as its endpoint runs it, without the socket."""

    rpc: Rpc
    handle: Callable[[Services, Any], object]

    def __call__(self, services: Services, raw: bytes) -> bool:
        """Whether the request was accepted.

        Raises:
            SemanticRecallError: it was refused.
        """
        self.handle(services, decode(raw, self.rpc.request))
        return True


def handled() -> list[Handled]:
    """All methods that the server has; requests of streams are those of Recall and Index."""
    unary = {method.name: method for method in (*RECALL_UNARY, *ADMIN_UNARY, *VECTOR_UNARY)}
    streamed = {method.name: method for method in ADMIN_STREAMS}
    found = []
    for rpc in every_rpc():
        method = unary.get(rpc.name.removesuffix("Stream"))
        if method is not None:
            found.append(Handled(rpc, lambda s, r, m=method: _answered(m.handler(s, r, _call()))))
        else:
            begin = streamed[rpc.name].begin
            found.append(Handled(rpc, lambda s, r, b=begin: list(b(s, r, _call().budget))))
    return found


def _call() -> Call:
    now = time.monotonic()
    return Call(CallBudget(now + CALL_SECONDS), Clock(now, now))


def _answered(answer: Message | bytes | Later) -> object:
    if isinstance(answer, Later):
        answer.ready.result(CALL_SECONDS)
        answer = answer.finish()
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def corpus(rpc: Rpc, rng: random.Random) -> list[bytes]:
    """Requests to begin with: good ones, and some in which everything is set."""
    texts = ("alice", "turkey", SECRET, "\u202e", "", "x" * 600, "a\nb", "$and", "turkey")
    found = [valid(rpc)] * 8
    for _ in range(2):
        found += filled(rpc.request, lambda path: rng.choice(texts[:2]))
        found += filled(rpc.request, lambda path: rng.choice(texts))
    return [request.SerializeToString() for request in found]


def requests(run: FaultRun, count: int) -> Iterator[tuple[Handled, bytes]]:
    """Mutated requests of all methods; slow ones are rare."""
    rng = run.random
    methods = {method: corpus(method.rpc, rng) for method in handled()}
    slow = [method for method in methods if method.rpc.name in SLOW]
    quick = [method for method in methods if method.rpc.name not in SLOW]
    everything = [raw for some in methods.values() for raw in some]
    for number in run.cycles(count):
        method = rng.choice(quick if number % 200 else slow)
        raw = rng.choice(methods[method])
        yield method, raw if number % 50 == 1 else mutated(raw, rng, everything)


class Forgetful(FakeEngine):
    """Knows no message by its id."""

    def get_messages(self, resource_id: str, message_ids: Sequence[str]) -> list[StoredMessage]:
        raise NotFoundError("no such message")


def told(error: SemanticRecallError) -> None:
    """What a caller would be told is documented, small, and does not repeat what was sent."""
    assert status_code(error) in DOCUMENTED, error
    parts = trailers(error)
    assert sum(len(key) + len(value) for key, value in parts) < TRAILER_BYTES_MAX
    text = error_detail(error).message + str(error)
    assert "Traceback" not in text
    assert 'File "' not in text


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("column", COLUMNS)
def test_handlers_answer_or_refuse_whatever_comes(tmp_path: Path, column: str) -> None:
    count = size("F21_REQUESTS", column)
    engine = Forgetful()
    with (
        seeded("F21 handlers", requests=count) as run,
        running(tmp_path, parts_of(engine)) as server,
    ):
        services = server.sidecar._services(engine)  # type: ignore[arg-type]
        threads, memory = threading.active_count(), 0
        for number, (method, raw) in enumerate(requests(run, count)):
            try:
                method(services, raw)
                run.count("accepted")
            except SemanticRecallError as error:
                told(error)
                run.count("refused")
            except BaseException as error:
                error.add_note(f"{method.rpc} {raw!r}")
                raise
            if number % 1_000 == 0:
                engine.queries.clear()
                engine.drafts.clear()
                engine.collections.asked.clear()
            if number in (0, count // 10):
                gc.collect()
                memory = resident_bytes()
        gc.collect()
        assert resident_bytes() - memory < GROWTH_BYTES_MAX
        assert threading.active_count() <= threads
        assert run.counts["accepted"] > run.done // 100
        assert run.counts["refused"] > run.done // 10


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_server_answers_or_refuses_whatever_comes(tmp_path: Path, column: str) -> None:
    count = size("F21_REQUESTS", column) // ON_A_SOCKET
    parts = default_parts(lambda settings: FakeEmbedder())
    with (
        seeded("F21 server", tmp_path / "data", requests=count) as run,
        running(tmp_path, parts) as server,
    ):
        for method, raw in requests(run, count):
            code = _sent(server, method.rpc, raw)
            run.count("accepted" if code is grpc.StatusCode.OK else "refused")
            assert code is grpc.StatusCode.OK or code in DOCUMENTED, (method.rpc, raw, code)
        events = {line["event"] for line in server.log_lines}
        assert "internal_error" not in events
        assert "Traceback" not in server.log_text
        assert canaries_in(server.log_text.encode()) == set()
        server.wait_until(lambda: server.sidecar.calls_inside == 0)


def _sent(server: InProcessServer, rpc: Rpc, raw: bytes) -> grpc.StatusCode:
    """How a request ends; on a stream, how the answer in it ends."""
    try:
        answers = rpc.call(server.channel, raw)
    except grpc.RpcError as error:
        told_traceback = "Traceback" in (error.details() or "")  # type: ignore[attr-defined]
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return grpc.StatusCode.UNKNOWN if told_traceback else code
    if not rpc.sends_many:
        return grpc.StatusCode.OK
    (answer,) = (rpc.answer.FromString(one) for one in answers)
    number = answer.error.code  # type: ignore[attr-defined]
    return next(code for code in grpc.StatusCode if code.value[0] == number)
