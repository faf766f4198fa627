"""Peers that say nothing, half of something, or far too much: calls of others go on.

Each kind of peer holds its connections while a channel beside it is answered. What the server
holds for them has a bound, and is given back.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from semanticrecall.v1 import recall_pb2
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar, wait_until
from support.process_gauges import Watched, gauge
from support.running_server import Stubs
from support.wire_memory import said

CONNECTIONS = 300
CALLS_BESIDE = 50
CALL_SECONDS = 60.0
GROWTH_BYTES_MAX = 320 * 1024 * 1024
HANDLES = 160
"""Open files that the server may have, where they are few."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PATH = "/semanticrecall.v1.RecallService/"
RECALL = recall_pb2.RecallRequest(resource_id="r", query="turkey", request_id="q")
FRAME_HEAD_BYTES = 5
FLOODED_BY = 20_000
_numbers = itertools.count()


def few_handles() -> None:
    """In the server's process, before it serves."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (HANDLES, HANDLES))


class Peer:
    """An HTTP/2 connection of a client that does as it likes."""

    def __init__(self, path: Path, *, window: int | None = None) -> None:
        self.socket = raw_socket(path)
        self.socket.settimeout(CALL_SECONDS)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        if window is not None:
            settings = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
            self.h2.local_settings.update(settings)
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> bool:
        """Send what there is; False where the server has closed the connection."""
        try:
            self.socket.sendall(self.h2.data_to_send())
        except OSError:
            return False
        return True

    def call(self, method: str, message: bytes | None, *, ends: bool = True) -> int:
        """Begin a call, with its message if there is one; its stream."""
        stream = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PATH + method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        self.h2.send_headers(stream, headers)
        if message is None:
            return stream
        frame = b"\x00" + len(message).to_bytes(4, "big") + message
        self.h2.send_data(stream, frame, end_stream=ends)
        return stream

    def close(self) -> None:
        self.socket.close()


def raw_socket(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(str(path))
    return made


# ---- kinds of peers; each yields when it has done its worst, and holds on until it is left ----


@contextlib.contextmanager
def saying(path: Path, words: bytes) -> Iterator[None]:
    """Many connections that say this and no more."""
    with contextlib.ExitStack() as sockets:
        for _ in range(CONNECTIONS):
            sockets.enter_context(raw_socket(path)).sendall(words)
        yield


@contextlib.contextmanager
def not_reading(path: Path) -> Iterator[None]:
    """Asks again and again for answers that it has no window for."""
    with contextlib.ExitStack() as peers:
        for _ in range(20):
            peer = Peer(path, window=0)
            peers.callback(peer.close)
            for _ in range(20):
                peer.call("Recall", RECALL.SerializeToString())
            peer.flush()
        yield


@contextlib.contextmanager
def never_ending(path: Path) -> Iterator[None]:
    """Streams and calls whose requests do not end, byte by byte."""
    with contextlib.ExitStack() as peers:
        for number in range(20):
            peer = Peer(path)
            peers.callback(peer.close)
            raw = RECALL.SerializeToString()
            for method in ("RecallStream", "IndexStream", "Recall"):
                peer.call(method, raw[: number % len(raw)], ends=False)
            peer.flush()
        yield


@contextlib.contextmanager
def resetting(path: Path) -> Iterator[None]:
    """Begins calls and resets them at once, many thousand times."""
    with contextlib.closing(Peer(path)) as peer:
        for number in range(FLOODED_BY):
            stream = peer.call("Recall", None)
            peer.h2.reset_stream(stream)
            if number % 200 == 0 and not peer.flush():
                break
        peer.flush()
        yield


@contextlib.contextmanager
def pinging(path: Path) -> Iterator[None]:
    """Pings without end, and reads no answer."""
    with contextlib.closing(Peer(path)) as peer:
        peer.socket.settimeout(2.0)
        for number in range(FLOODED_BY):
            peer.h2.ping(number.to_bytes(8, "big"))
            if number % 200 == 0 and not peer.flush():
                break
        yield


@contextlib.contextmanager
def many_settings(path: Path) -> Iterator[None]:
    """Sends settings without end, each of which wants an acknowledgement."""
    with contextlib.closing(raw_socket(path)) as peer:
        peer.settimeout(2.0)
        with contextlib.suppress(OSError):
            peer.sendall(PREFACE + SETTINGS * FLOODED_BY)
        yield


PEERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {
    "silent": lambda path: saying(path, b""),
    "half a preface": lambda path: saying(path, PREFACE[:9]),
    "a preface": lambda path: saying(path, PREFACE),
    "idle": lambda path: saying(path, PREFACE + SETTINGS),
    "HTTP/1": lambda path: saying(path, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "random bytes": lambda path: saying(path, bytes(range(256)) * 4),
    "without a window": not_reading,
    "never ending": never_ending,
    "resets": resetting,
    "pings": pinging,
    "settings": many_settings,
}


def answered(stubs: Stubs) -> None:
    """A recall that nobody asked before."""
    query = f"turkey {next(_numbers)}"
    request = recall_pb2.RecallRequest(resource_id="r", query=query, top_k=1)
    answer = stubs.recall.Recall(request, timeout=CALL_SECONDS)
    assert [one.message.id for one in answer.messages if one.hit] == ["m"]


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultSidecar]:
    with FaultSidecar(tmp_path_factory.mktemp("p")) as serving:
        index(serving.stubs)
        yield serving


def index(stubs: Stubs) -> None:
    messages = [said("m", "rex eats turkey")]
    request = recall_pb2.IndexRequest(resource_id="r", thread_id="t", messages=messages)
    stubs.recall.Index(request, timeout=CALL_SECONDS)


@pytest.mark.parametrize("kind", PEERS)
def test_others_are_answered_beside_a_peer(sidecar: FaultSidecar, kind: str) -> None:
    quiet = gauge(sidecar.pid)
    with seeded(f"F20 {kind}") as run, Watched(sidecar.pid) as watched:
        with PEERS[kind](sidecar.socket):
            for _ in range(CALLS_BESIDE):
                answered(sidecar.stubs)
                run.count("calls beside it")
            assert newcomers_recall(sidecar).messages
        assert watched.growth_bytes() < GROWTH_BYTES_MAX
        wait_until(lambda: gauge(sidecar.pid).handles <= quiet.handles + 4)
        assert max(one.threads for one in watched.seen) <= quiet.threads + 40
        answered(sidecar.stubs)
    assert not sidecar.logged("internal_error")
    assert len(sidecar.said) < 200


def test_more_connections_than_the_server_may_have_open(tmp_path: Path) -> None:
    """Those that are there are served; newcomers when the silent ones have been sent away."""
    with FaultSidecar(tmp_path, prepare=few_handles) as sidecar:
        index(sidecar.stubs)
        with saying(sidecar.socket, b""):
            for _ in range(CALLS_BESIDE):
                answered(sidecar.stubs)
            assert gauge(sidecar.pid).handles <= HANDLES
            index(sidecar.stubs)
            wait_until(partial(_serves_a_newcomer, sidecar))
        assert not sidecar.logged("internal_error")


def _serves_a_newcomer(sidecar: FaultSidecar) -> bool:
    try:
        answer = newcomers_recall(sidecar, timeout_s=5.0)
    except grpc.RpcError:
        return False
    return bool(answer.messages)


def newcomers_recall(
    sidecar: FaultSidecar, timeout_s: float = CALL_SECONDS
) -> recall_pb2.RecallResponse:
    """On a connection of its own; gRPC would share the one that is there."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{sidecar.socket}", options=options) as channel:
        raw = channel.unary_unary(f"{PATH}Recall")(RECALL.SerializeToString(), timeout=timeout_s)
    return recall_pb2.RecallResponse.FromString(raw)


def test_the_peers_of_this_file_are_heard(sidecar: FaultSidecar) -> None:
    """Else they would try nothing: a peer that does read gets its answer."""
    with contextlib.closing(Peer(sidecar.socket)) as peer:
        peer.call("Recall", RECALL.SerializeToString())
        peer.flush()
        data, ended = b"", threading.Event()
        while not ended.is_set():
            for event in peer.h2.receive_data(peer.socket.recv(65_536)):
                if isinstance(event, h2.events.DataReceived):
                    data += event.data
                if isinstance(event, h2.events.StreamEnded):
                    ended.set()
            peer.flush()
    answer = recall_pb2.RecallResponse.FromString(data[FRAME_HEAD_BYTES:])
    assert [one.message.id for one in answer.messages] == ["m"]
