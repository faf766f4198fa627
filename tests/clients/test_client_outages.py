"""What the client does when the sidecar is away, late, full or comes back; and its streams."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

import semanticrecall as sr
from semanticrecall import IndexBatch, RecallClient, Status, WhyEmpty, user
from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_engine import FakeEngine
from support.fake_sidecar import Failure, Shelf, fake_sidecar
from support.running_server import parts_of, running


def unavailable(reason: str = "DRAINING") -> Failure:
    detail = types_pb2.ErrorDetail(code=14, message="draining", reason=reason, retryable=True)
    return Failure(grpc.StatusCode.UNAVAILABLE, detail)


# --- going on without a sidecar ----------------------------------------------------------------


def test_recall_fails_open_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nobody = f"unix:{tmp_path}/nobody.sock"
    with RecallClient(nobody, connect_timeout=0.1) as memory:
        result = memory.recall("u", "a secret query")
        with memory.recall_stream() as session:
            streamed = session.recall("u", "a secret query")
    assert (len(result), result.degraded) == (0, "UNREACHABLE")
    assert (len(streamed), streamed.degraded) == (0, "UNREACHABLE")
    assert len(caplog.records) == 2
    assert caplog.records[0].levelno == logging.WARNING
    text = caplog.records[0].getMessage()
    assert nobody in text
    assert "semanticrecall serve" in text
    assert "secret" not in text


def test_failing_open_can_be_turned_off(tmp_path: Path) -> None:
    nobody = f"unix:{tmp_path}/nobody.sock"
    with RecallClient(nobody, connect_timeout=0.1, fail_open=False) as memory:
        with pytest.raises(sr.UnavailableError, match="semanticrecall serve") as caught:
            memory.recall("u", "q")
        assert caught.value.reason == "UNREACHABLE"
        assert caught.value.__cause__ is None
        assert not memory.is_serving()


def test_writing_never_fails_open(tmp_path: Path) -> None:
    with RecallClient(f"unix:{tmp_path}/nobody.sock", connect_timeout=0.1) as memory:
        with pytest.raises(sr.UnavailableError):
            memory.index("u", "t", [user("x")])
        with pytest.raises(sr.UnavailableError):
            list(memory.index_stream([IndexBatch("u", "t", [user("x")])]))
        with pytest.raises(sr.UnavailableError):
            memory.forget_everything("u")
        with pytest.raises(sr.UnavailableError):
            memory.transfer_thread("u", "t", "v")


@pytest.mark.timeout(30)
def test_who_has_just_waited_in_vain_does_not_wait_again(shelf: Shelf, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/late.sock"
    # Any further wait would go past the limit of this test.
    with RecallClient(address, connect_timeout=100, timeout=200) as memory:
        with pytest.raises(sr.UnavailableError):
            memory.wait_until_reachable(timeout=0.1)
        for _ in range(3):
            assert memory.recall("u", "q").degraded == "UNREACHABLE"
        with memory.recall_stream() as session:
            assert session.recall("u", "q").degraded == "UNREACHABLE"
        with pytest.raises(sr.UnavailableError):
            memory.index("u", "t", [user("x")])
        with pytest.raises(sr.UnavailableError):
            list(memory.index_stream([IndexBatch("u", "t", [user("x")])]))
        with fake_sidecar(address, shelf):
            memory.wait_until_reachable(timeout=20)
            assert memory.recall("u", "q").degraded == ""


@pytest.mark.timeout(30)
def test_a_refused_port_is_not_waited_for_twice() -> None:
    with RecallClient(f"127.0.0.1:{free_port()}", connect_timeout=100, timeout=200) as memory:
        with pytest.raises(sr.UnavailableError):
            memory.wait_until_reachable(timeout=0.1)
        assert memory.recall("u", "q").degraded == "UNREACHABLE"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_closed_client_says_so(address: str) -> None:
    memory = RecallClient(address)
    session = memory.recall_stream()
    memory.close()
    calls: list[Callable[[], object]] = [
        memory.stats,
        lambda: memory.recall("u", "q"),
        lambda: memory.transfer_thread("u", "t", "v"),
        lambda: list(memory.export("u")),
        lambda: list(memory.index_stream([])),
        lambda: session.recall("u", "q"),
        memory.is_serving,
        memory.wait_until_reachable,
    ]
    for call in calls:
        with pytest.raises(sr.CancelledError, match="this client is closed") as caught:
            call()
        assert caught.value.reason == "CLIENT_CLOSED"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    ],
)
def test_what_recall_goes_on_after(
    address: str, shelf: Shelf, code: grpc.StatusCode, reason: str
) -> None:
    detail = types_pb2.ErrorDetail(
        code=code.value[0], message="busy", reason=reason, retryable=True
    )
    shelf.failures = [Failure(code, detail)]
    with RecallClient(address) as memory:
        assert memory.recall("u", "q").degraded == reason


def test_recall_goes_on_after_damage_too_and_says_so(
    address: str, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    detail = types_pb2.ErrorDetail(code=15, message="a page is damaged", reason="PAGE_DAMAGED")
    failure = Failure(grpc.StatusCode.DATA_LOSS, detail)
    shelf.failures = [failure] * 2
    with RecallClient(address) as memory:
        assert memory.recall("u", "a secret query").degraded == "DATA_LOSS"
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "PAGE_DAMAGED" in caplog.text
        assert "secret" not in caplog.text
        with pytest.raises(sr.DataLossError):
            memory.index("u", "t", [user("x")])
    shelf.failures = [failure]
    with RecallClient(address, fail_open=False) as strict, pytest.raises(sr.DataLossError):
        strict.recall("u", "q")


def test_an_answer_that_is_too_large_is_a_mistake(address: str, shelf: Shelf) -> None:
    detail = types_pb2.ErrorDetail(code=8, message="ask for fewer", reason="ANSWER_TOO_LARGE")
    shelf.failures = [Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, detail)]
    with RecallClient(address) as memory, pytest.raises(sr.ResourceExhaustedError):
        memory.recall("u", "q")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, sr.InvalidArgumentError),
        (grpc.StatusCode.UNAUTHENTICATED, sr.UnauthenticatedError),
        (grpc.StatusCode.FAILED_PRECONDITION, sr.FailedPreconditionError),
        (grpc.StatusCode.INTERNAL, sr.InternalError),
    ],
)
def test_a_mistake_is_never_swallowed(
    address: str, shelf: Shelf, code: grpc.StatusCode, expected: type[Exception]
) -> None:
    shelf.failures = [Failure(code)]
    with RecallClient(address) as memory, pytest.raises(expected):
        memory.recall("u", "q")


# --- trying again ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["recall", "index", "stats", "forget"])
def test_what_may_be_sent_twice_is(memory: RecallClient, shelf: Shelf, method: str) -> None:
    shelf.failures = [unavailable(), unavailable()]
    calls = {
        "recall": lambda: memory.recall("u", "q"),
        "index": lambda: memory.index("u", "t", [user("x")]),
        "stats": memory.stats,
        "forget": lambda: memory.forget_everything("u"),
    }
    calls[method]()
    assert len(shelf.seen) == 3


def test_writing_is_tried_again_when_the_queue_is_full(memory: RecallClient, shelf: Shelf) -> None:
    detail = types_pb2.ErrorDetail(code=8, message="full", reason="QUEUE_FULL")
    shelf.failures = [Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, detail)]
    assert memory.index("u", "t", [user("x")]).outcomes[0].status is Status.INDEXED
    assert len(shelf.seen) == 2


def test_a_transfer_is_never_sent_twice(memory: RecallClient, shelf: Shelf) -> None:
    shelf.failures = [unavailable()]
    with pytest.raises(sr.UnavailableError):
        memory.transfer_thread("u", "t", "v")
    assert len(shelf.seen) == 1


def test_a_sidecar_that_starts_late_is_waited_for(shelf: Shelf, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/late.sock"
    with RecallClient(address, connect_timeout=20, timeout=30, fail_open=False) as memory:
        outcome: list[sr.RecallResult] = []
        caller = threading.Thread(target=lambda: outcome.append(memory.recall("u", "q")))
        caller.start()
        with fake_sidecar(address, shelf):
            caller.join(timeout=25)
            assert not caller.is_alive()
    assert outcome[0].info.why_empty is WhyEmpty.NO_QUERY


def test_a_sidecar_that_restarts_is_found_again(shelf: Shelf, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/again.sock"
    with RecallClient(address, connect_timeout=20, timeout=30, fail_open=False) as memory:
        with fake_sidecar(address, shelf):
            memory.index("u", "t", [user("red", id="a")])
        with fake_sidecar(address, shelf):
            assert [m.message.id for m in memory.recall("u", "red")] == ["a"]


# --- one stream for many recalls ---------------------------------------------------------------


def test_recalls_on_one_stream(memory: RecallClient, shelf: Shelf) -> None:
    memory.index("u", "t", [user("red", id="a"), user("green", id="b")])
    with memory.recall_stream() as session:
        pending = [session.submit("u", word) for word in ("red", "green", "red")]
        found = [future.result(10).messages[0].message.id for future in pending]
        assert session.recall("u", "green", top_k=1)[0].message.id == "b"
        with pytest.raises(sr.InvalidArgumentError, match="resource_id"):
            session.recall("", "red")
        assert session.recall("u", "red", timeout=20)[0].message.id == "a"
    assert found == ["a", "b", "a"]
    sent = [c.request for c in shelf.seen if c.method == "RecallStream"]
    assert all(isinstance(r, recall_pb2.RecallRequest) for r in sent)
    assert sent[-1].timeout_ms in range(15_000, 20_001)  # type: ignore[attr-defined]
    assert len({r.request_id for r in sent}) == 6  # type: ignore[attr-defined]


def test_a_stream_that_broke_is_opened_anew(memory: RecallClient, shelf: Shelf) -> None:
    memory.index("u", "t", [user("red", id="a")])
    with memory.recall_stream() as session:
        assert len(session.recall("u", "red")) == 1
        shelf.failures = [unavailable()]
        with pytest.raises(sr.UnavailableError):
            session.recall("u", "red")
        assert len(session.recall("u", "red")) == 1


def test_closing_a_stream_ends_who_waits(memory: RecallClient, shelf: Shelf) -> None:
    shelf.hold = threading.Event()
    session = memory.recall_stream()
    future = session.submit("u", "q")
    assert shelf.entered.wait(10)
    session.close()
    with pytest.raises(sr.CancelledError):
        future.result(10)


# --- guarded by TLS and tokens -----------------------------------------------------------------

TLS = Path(__file__).resolve().parents[1] / "fixtures/tls"
TOKEN = "first-token-0123456789"


def test_tls_and_a_token(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    with running(
        tmp_path,
        parts_of(FakeEngine()),
        listen=("localhost:0",),
        tls_cert_file=TLS / "cert.pem",
        tls_key_file=TLS / "key.pem",
        tokens_file=tmp_path / "tokens",
    ) as server:
        address = server.sidecar.addresses[0].target
        trust = sr.Tls(ca_file=TLS / "cert.pem")
        with RecallClient(address, tls=trust, token=TOKEN) as memory:
            assert memory.is_serving()
            assert memory.stats().messages == 1
        with (
            RecallClient(address, tls=trust, token="a-wrong-one") as memory,
            pytest.raises(sr.UnauthenticatedError),
        ):
            memory.recall("u", "q")
        with (
            RecallClient(address, connect_timeout=0.1) as plain,
            pytest.raises(sr.UnavailableError, match=r"Tls\(ca_file=") as caught,
        ):
            plain.stats()
        assert caught.value.reason == "NO_CONNECTION"
