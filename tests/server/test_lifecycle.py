"""Start, drain and stop: in this process with an engine that holds calls up, and as a process."""

from __future__ import annotations

import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from semanticrecall.v1 import recall_pb2
from semanticrecall_core.types.errors import StoreLockedError
from semanticrecall_server.config import Settings
from semanticrecall_server.lifecycle import Parts
from semanticrecall_server.listen import ListenError
from support.fake_engine import FakeEngine
from support.running_server import (
    InProcessServer,
    NoClaim,
    ServerProcess,
    Stubs,
    error_detail,
    parts_of,
    running,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = (
    "",
    "semanticrecall.v1.RecallService",
    "semanticrecall.v1.AdminService",
    "semanticrecall.v1.VectorService",
)
RECALL = recall_pb2.RecallRequest(resource_id="alice", query="turkey", request_id="r1")


def health_of(server: Stubs, service: str = "") -> int:
    return int(server.health.Check(health_pb2.HealthCheckRequest(service=service)).status)


def settings_in(directory: Path, **changes: Any) -> Settings:
    values = {"listen": (f"unix:{directory}/s.sock",), "data_dir": directory / "data", **changes}
    return Settings(**values)


# ---- start ----


def test_until_the_model_is_warm_probes_see_not_serving_and_calls_are_told_to_wait(
    tmp_path: Path,
) -> None:
    go_on = threading.Event()
    engine = FakeEngine()

    def load(settings: Settings, claim: Any) -> Any:
        assert go_on.wait(30)
        return engine

    server = InProcessServer(
        settings_in(tmp_path, health_listen="127.0.0.1:0"),
        Parts(lambda settings: NoClaim(), load),
        recall_threads=1,
    )
    server.start(wait=False)
    try:
        assert {health_of(server, name) for name in SERVICES} == {NOT_SERVING}
        with pytest.raises(grpc.RpcError) as early:
            server.recall.Recall(RECALL, timeout=20)
        detail = error_detail(early.value)
        assert early.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (detail.reason, detail.retryable) == ("STARTING", True)
        assert detail.retry_after_ms > 0
        go_on.set()
        server.wait_serving()
        assert {health_of(server, name) for name in SERVICES} == {SERVING}
        assert server.recall.Recall(RECALL, timeout=20).request_id == "r1"
    finally:
        go_on.set()
        server.stop()


def test_the_directory_is_claimed_before_anything_is_bound(tmp_path: Path) -> None:
    def claim(settings: Settings) -> Any:
        assert not (tmp_path / "s.sock").exists()
        raise StoreLockedError("in use by process 1")

    server = InProcessServer(
        settings_in(tmp_path), Parts(claim, lambda s, c: FakeEngine()), recall_threads=1
    )
    with pytest.raises(StoreLockedError):
        server.start()
    assert not (tmp_path / "s.sock").exists()


def test_a_model_that_cannot_be_loaded_lets_go_of_everything(tmp_path: Path) -> None:
    claim = NoClaim()

    def load(settings: Settings, claim: Any) -> Any:
        raise StoreLockedError("in use by process 1")

    server = InProcessServer(settings_in(tmp_path), Parts(lambda s: claim, load), recall_threads=1)
    server.start(wait=False)
    with pytest.raises(StoreLockedError):
        server.wait_stopped()
    assert claim.closed
    assert not (tmp_path / "s.sock").exists()


# ---- sockets ----


def test_the_unix_socket_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with running(tmp_path, parts_of(FakeEngine())):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not path.exists()


def test_a_live_socket_is_not_stolen(tmp_path: Path) -> None:
    with running(tmp_path, parts_of(FakeEngine())) as first:
        second = InProcessServer(settings_in(tmp_path), parts_of(FakeEngine()), recall_threads=1)
        with pytest.raises(ListenError, match="another server is listening"):
            second.start()
        assert first.recall.Recall(RECALL, timeout=20).request_id == "r1"


def test_a_socket_that_is_bound_but_not_yet_served_is_not_stolen(tmp_path: Path) -> None:
    go_on = threading.Event()

    def load(settings: Settings, claim: Any) -> Any:
        assert go_on.wait(30)
        return FakeEngine()

    first = InProcessServer(
        settings_in(tmp_path), Parts(lambda s: NoClaim(), load), recall_threads=1
    )
    first.start(wait=False)
    try:
        second = InProcessServer(settings_in(tmp_path), parts_of(FakeEngine()), recall_threads=1)
        with pytest.raises(ListenError, match="another server is listening"):
            second.start()
    finally:
        go_on.set()
        first.stop()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s.sock"))
        dead.listen()
    with running(tmp_path, parts_of(FakeEngine())) as server:
        assert server.recall.Recall(RECALL, timeout=20).request_id == "r1"


def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("precious")
    server = InProcessServer(settings_in(tmp_path), parts_of(FakeEngine()), recall_threads=1)
    with pytest.raises(ListenError, match="no socket"):
        server.start()
    assert path.read_text() == "precious"


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    server = InProcessServer(
        settings_in(tmp_path, listen=(f"unix:{tmp_path}/none/s.sock",)),
        parts_of(FakeEngine()),
        recall_threads=1,
    )
    with pytest.raises(ListenError, match="No such file or directory"):
        server.start()


def test_two_servers_do_not_share_a_port(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with running(tmp_path, parts_of(FakeEngine()), listen=("127.0.0.1:0",)) as first:
        taken = first.sidecar.addresses[0].target
        second = InProcessServer(
            settings_in(tmp_path / "b", listen=(taken,)), parts_of(FakeEngine()), recall_threads=1
        )
        with pytest.raises(ListenError, match=f"cannot listen on {taken}"):
            second.start()


def test_several_addresses_serve_the_same(tmp_path: Path) -> None:
    listen = (f"unix:{tmp_path}/s.sock", "127.0.0.1:0", f"unix:{tmp_path}/t.sock")
    with running(tmp_path, parts_of(FakeEngine()), listen=listen) as server:
        for address in server.sidecar.addresses:
            stubs = Stubs(address.target)
            assert stubs.recall.Recall(RECALL, timeout=20).request_id == "r1"
            stubs.close()


# ---- drain ----


def test_accepted_calls_are_answered_during_the_drain_and_new_ones_refused(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine)) as server:
        held = engine.hold("recall")
        accepted = server.recall.Recall.future(RECALL, timeout=20)
        assert held.entered.wait(20)
        server.begin_stop()
        server.wait_for_log("draining")
        assert health_of(server) == NOT_SERVING
        with pytest.raises(grpc.RpcError) as late:
            server.recall.Recall(RECALL, timeout=20)
        assert error_detail(late.value).reason == "DRAINING"
        assert not engine.stopped.is_set()
        held.release.set()
        assert accepted.result(20).request_id == "r1"
        server.wait_stopped()
        assert engine.stopped.is_set()


def test_a_drain_ends_streams_after_answering_what_they_read(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine)) as server:
        held = engine.hold("recall")
        client_done = threading.Event()

        def requests() -> Any:
            yield RECALL
            client_done.wait(20)

        stream = server.recall.RecallStream(requests(), timeout=60)
        idle = server.recall.IndexStream(iter_until(client_done), timeout=60)
        assert held.entered.wait(20)
        server.begin_stop()
        server.wait_for_log("draining")
        with pytest.raises(grpc.RpcError) as ended:
            next(idle)
        assert error_detail(ended.value).reason == "DRAINING"
        held.release.set()
        assert next(stream).request_id == "r1"
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert error_detail(ended.value).reason == "DRAINING"
        client_done.set()
        server.wait_stopped()


def iter_until(done: threading.Event) -> Any:
    """A client that sends nothing and keeps its stream open."""
    done.wait(20)
    yield from ()


def test_a_call_that_outlasts_the_grace_is_cut(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine), drain_grace_ms=50) as server:
        held = engine.hold("recall")
        accepted = server.recall.Recall.future(RECALL, timeout=20)
        assert held.entered.wait(20)
        server.begin_stop()
        assert held.cancelled.wait(20)
        with pytest.raises(grpc.RpcError):
            accepted.result(20)
        server.wait_stopped()
        assert "drain_cut_short" in [line["event"] for line in server.log_lines]


def test_a_second_signal_does_not_wait_for_calls(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine), drain_grace_ms=600_000) as server:
        held = engine.hold("recall")
        accepted = server.recall.Recall.future(RECALL, timeout=20)
        assert held.entered.wait(20)
        server.begin_stop()
        server.wait_for_log("draining")
        server.hurry()
        server.wait_stopped()
        assert accepted.exception(20) is not None


# ---- health ----


def test_a_sick_engine_flips_health(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine)) as server:
        seen = server.health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(seen).status == SERVING
        engine.is_healthy = False
        assert next(seen).status == NOT_SERVING
        engine.is_healthy = True
        assert next(seen).status == SERVING
        seen.cancel()


# ---- as a process ----


def arguments(directory: Path, *more: str) -> list[str]:
    return [
        "--data-dir",
        str(directory / "data"),
        "--listen",
        f"unix:{directory}/s.sock",
        *more,
    ]


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_serves_drains_and_exits_0(tmp_path: Path, number: int) -> None:
    with ServerProcess(arguments(tmp_path, "--drain-grace-ms", "60000")) as process:
        process.wait_for("serving")
        stubs = Stubs(f"unix:{tmp_path}/s.sock")
        # More text than can be embedded at once: the call is in flight when the signal comes.
        call = stubs.recall.Index.future(
            recall_pb2.IndexRequest(
                resource_id="alice",
                thread_id="t",
                messages=[{"id": str(i), "role": 1, "text": f"word{i} " * 200} for i in range(20)],
            ),
            timeout=60,
        )
        threads = recall_pb2.ListThreadsRequest(resource_id="alice")
        while not stubs.recall.ListThreads(threads, timeout=20).threads:
            continue
        process.signal(number)
        answer = call.result(60)
        assert len(answer.results) == 20
        status, log = process.wait()
        stubs.close()
    assert status == 0, log
    assert "Traceback" not in log
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.model
def test_a_second_process_on_one_directory_is_refused_and_a_killed_one_leaves_no_lock(
    tmp_path: Path,
) -> None:
    with ServerProcess(arguments(tmp_path)) as first:
        first.wait_for("serving")
        (tmp_path / "other").mkdir()
        with ServerProcess(
            ["--data-dir", str(tmp_path / "data"), "--listen", f"unix:{tmp_path}/other/s.sock"]
        ) as second:
            status, log = second.wait()
        assert status == 2
        assert f"in use by process {first.pid}" in log
        assert "Traceback" not in log
        stubs = Stubs(f"unix:{tmp_path}/s.sock")
        stubs.recall.Recall(RECALL, timeout=20)
        stubs.close()
        first.signal(signal.SIGKILL)
        first.wait()
    with ServerProcess(arguments(tmp_path)) as third:
        third.wait_for("serving")
        third.signal()
        status, log = third.wait()
    assert status == 0, log


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with ServerProcess(
            ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"]
        ) as process:
            status, log = process.wait()
    assert status == 2
    assert log.strip().splitlines() == [
        f"semanticrecall: cannot listen on 127.0.0.1:{port}: another program listens there; "
        "stop it, or choose another port"
    ]


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PYTHONOPTIMIZE": "1"}, "python -O"),
        ({"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}, "protobuf"),
        ({"SEMANTICRECALL_TOP_K_MAX": "0"}, "--top-k-max"),
        ({"SEMANTICRECALL_LISTEN": "0.0.0.0:1"}, "other machines"),
    ],
)
def test_an_unsafe_start_is_refused_in_one_line(
    tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    with ServerProcess(["--data-dir", str(tmp_path / "data")], environment) as process:
        status, log = process.wait()
    lines = log.strip().splitlines()
    assert status == 2
    assert len(lines) == 1, log
    assert lines[0].startswith("semanticrecall: ")
    assert reason in lines[0]
    assert not (tmp_path / "data").exists()


# ---- peers ----

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PING, GOAWAY = 6, 7
PINGS = 30


def frames(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """Type and flags of every HTTP/2 frame that comes (RFC 9113, section 4.1)."""
    rest = b""
    while True:
        while len(rest) < 9 or len(rest) < 9 + int.from_bytes(rest[:3], "big"):
            chunk = connection.recv(65536)
            if not chunk:
                return
            rest += chunk
        yield rest[3], rest[4]
        rest = rest[9 + int.from_bytes(rest[:3], "big") :]


def test_a_client_that_pings_often_is_not_sent_away(server: InProcessServer) -> None:
    """gRPC's default allows one ping in five minutes; Go's clients send one every ten seconds."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(server.sidecar.addresses[0].target.removeprefix("unix:"))
        connection.sendall(PREFACE)
        incoming = frames(connection)
        for number in range(PINGS):
            connection.sendall(b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + number.to_bytes(8, "big"))
            kinds = []
            while not kinds or kinds[-1] != (PING, 1):
                kinds.append(next(incoming))
            assert GOAWAY not in {kind for kind, _ in kinds}
