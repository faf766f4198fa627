"""One server's life: claim the data, bind, load, serve, drain.

The order is the promise: the data directory is claimed before anything is bound, so that a second
server is refused before it could take over a socket; addresses are bound before the model is
loaded, so that probes see NOT_SERVING and not a closed port; calls before that are UNAVAILABLE
with the reason STARTING.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from semanticrecall.v1 import admin_pb2, recall_pb2, vectors_pb2
from semanticrecall_core.engine import Engine

from .admin import AdminService, server_version
from .checks import time_zones
from .config import Settings
from .convert import RequestLimits
from .endpoints import (
    ADMIN_UNARY,
    RECALL_UNARY,
    VECTOR_UNARY,
    Deadlines,
    Lanes,
    Runtime,
    unary_endpoint,
)
from .gate import Gate, Kind, Phase, Services, Unread
from .health import WATCHES_MAX, Health
from .lanes import Lane, LaneLimits
from .listen import Address, ListenError, TcpAddress, UnixAddress, check_tcp, private_socket
from .logs import Logger
from .memory_limit import cache_bytes
from .observability import (
    DISK_BYTES_HELP,
    Metrics,
    Probes,
    ProbeServer,
    Reading,
    bytes_in,
    engine_readings,
)
from .purging_calls import purging_readings
from .reembedding_calls import reembedding_readings
from .security import TokenInterceptor, load_credentials, load_tokens
from .service import RecallService
from .streams import (
    ADMIN_STREAMS,
    CLIENT_STREAMS,
    client_stream_endpoint,
    server_stream_endpoint,
)
from .vector_calls import VectorService, collection_readings
from .vector_convert import VectorLimits

RECALL_SERVICE = recall_pb2.DESCRIPTOR.services_by_name["RecallService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
VECTOR_SERVICE = vectors_pb2.DESCRIPTOR.services_by_name["VectorService"].full_name
HEALTH_SERVICES = ("", RECALL_SERVICE, ADMIN_SERVICE, VECTOR_SERVICE)
HEALTH_INTERVAL_S = 1.0
LAST_WRITES_S = 0.5
"""After the last call has been answered: time for its bytes to leave."""

ANSWER_FRAME_BYTES = 1024 * 1024
"""Room beside the messages of an answer: context text, scores, framing."""

EXPORT_DEADLINE_S = 3_600.0
CALLS_BEYOND_LIMITS = 20_000
"""Beside all that the gate and the health service let in; see `rpcs_max`."""

PENDING_CALLS_MAX = 12_000
"""Calls that gRPC holds until the event loop meets them; see `channel_options`."""

RECALL_RETRY_MS = 100
WRITE_RETRY_MS = 500
ADMIN_THREADS = 2
ADMIN_NICE = 10
COLLECTION_THREADS = 2


class Claim(Protocol):
    """A claimed data directory."""

    def close(self) -> None:
        """Let go of it."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """How the server gets its engine; both are called on a thread of their own.

    Attributes:
        claim: takes the data directory, or raises StoreLockedError and the like.
        load: makes a started, warm engine; from then on the engine closes the claim.
    """

    claim: Callable[[Settings], Any]
    load: Callable[[Settings, Any], Engine]


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Options of the gRPC server.

    Go's clients ping every 10 s by default, where gRPC's C core allows one ping in 5 minutes and
    ends the connection with "too many pings": so the server allows what all clients do.

    Of calls that the event loop has not met yet, the C core drops some at random from 1,000 on and
    all from 3,000 on; their callers see CANCELLED and learn neither why nor when to come back. It
    is the gate that refuses calls here: so the core keeps more, of about 10 KB each.
    """
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.request_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", 5_000),
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX * 4 // 3),
    ]


def rpcs_max(settings: Settings) -> int:
    """How many calls gRPC itself lets in: the last resort of memory, not to be met.

    What it refuses is told neither why nor when to come back, health checks included.
    """
    return (
        settings.calls_in_flight_max
        + settings.streams_open_max
        + settings.admin_in_flight_max
        + WATCHES_MAX
        + CALLS_BEYOND_LIMITS
    )


def make_lanes(settings: Settings, recall_threads: int) -> Lanes:
    """The lanes of the settings."""
    size = settings.bytes_in_flight_max
    return Lanes(
        recall=Lane(
            "recall",
            LaneLimits(
                recall_threads,
                settings.recalls_in_flight_max,
                size,
                wait_max_s=(settings.queue_wait_ms_max or math.inf) / 1000,
            ),
            RECALL_RETRY_MS,
        ),
        index=Lane(
            "index",
            LaneLimits(
                settings.index_threads, settings.index_in_flight_max, size, wait_max_s=math.inf
            ),
            WRITE_RETRY_MS,
        ),
        admin=Lane(
            "admin",
            LaneLimits(ADMIN_THREADS, settings.admin_in_flight_max, size, ADMIN_NICE),
            WRITE_RETRY_MS,
        ),
        collections=Lane(
            "collections",
            LaneLimits(COLLECTION_THREADS, settings.collection_reads_in_flight_max, size),
            RECALL_RETRY_MS,
        ),
    )


class Sidecar:
    """One server. All methods belong to one event loop."""

    def __init__(self, settings: Settings, parts: Parts, log: Logger, recall_threads: int) -> None:
        self._settings = settings
        self._parts = parts
        self._log = log
        self._gate = Gate(
            {
                Kind.CALL: settings.calls_in_flight_max,
                Kind.STREAM: settings.streams_open_max,
                Kind.EXPORT: settings.admin_in_flight_max,
            },
            settings.refusal_hold_ms_max / 1000,
        )
        self._metrics = Metrics(server_version())
        self._metrics.watch(self._readings)
        self._lanes = make_lanes(settings, recall_threads)
        self._health = Health()
        self._server: grpc.aio.Server | None = None
        self._claim: Claim | None = None
        self._engine: Engine | None = None
        self._probes: ProbeServer | None = None
        self._sockets: list[Path] = []
        self.addresses: tuple[Address, ...] = ()
        self.has_served = False

    @property
    def metrics(self) -> Metrics:
        """What it counts."""
        return self._metrics

    @property
    def calls_inside(self) -> int:
        """Calls in flight, open streams included."""
        return self._gate.inside

    @property
    def probe_address(self) -> TcpAddress | None:
        """Where the HTTP port listens, with its real port."""
        return self._probes.address if self._probes else None

    # ---- start ----

    async def start(self) -> None:
        """Claim, bind, load, serve. Returns when calls are answered.

        Raises:
            FailedPreconditionError: the directory, an address or the model cannot be had.
        """
        settings = self._settings
        tokens, credentials = load_tokens(settings), load_credentials(settings)
        claim = await asyncio.to_thread(self._parts.claim, settings)
        self._claim = claim
        interceptors: list[grpc.aio.ServerInterceptor] = []
        if tokens is not None:
            interceptors.append(TokenInterceptor(tokens, self._metrics.refused_token))
        self._server = grpc.aio.server(
            interceptors=interceptors,
            options=channel_options(settings),
            maximum_concurrent_rpcs=rpcs_max(settings),
        )
        self._add_methods(self._server)
        await self._show_health(serving=False)
        self.addresses = self._bind(self._server, credentials)
        self._start_probes()
        await self._server.start()
        self._log.info(
            "listening",
            addresses=[address.target for address in self.addresses],
            state=self._gate.phase.value,
        )
        engine = await asyncio.to_thread(self._load, claim)
        self._engine = engine
        self._metrics.serves(engine.index_identity, engine.device)
        engine.exchange.on_switch(
            lambda: self._metrics.serves(engine.index_identity, engine.device)
        )
        self._gate.open(self._services(engine))
        self.has_served = True
        await self._show_health(serving=self._gate.phase is Phase.SERVING)
        self._log.info(
            "serving",
            addresses=[address.target for address in self.addresses],
            health=self.probe_address.target if self.probe_address else None,
            model=engine.index_identity,
            device=engine.device,
        )

    def _load(self, claim: Claim) -> Engine:
        time_zones()
        return self._parts.load(self._settings, claim)

    def _services(self, engine: Engine) -> Services:
        settings = self._settings
        return Services(
            recall=RecallService(
                engine,
                RequestLimits.of(settings),
                settings.answer_bytes_max,
                cache_bytes(settings, settings.answer_cache_bytes_max),
                self._metrics,
            ),
            admin=AdminService(engine, encrypted=settings.is_encrypted),
            vectors=VectorService(engine, VectorLimits.of(settings)),
        )

    def _add_methods(self, server: grpc.aio.Server) -> None:
        settings = self._settings
        deadlines = Deadlines(
            settings.deadline_default_ms / 1000, settings.deadline_max_ms / 1000, EXPORT_DEADLINE_S
        )
        runtime = Runtime(
            self._gate,
            self._lanes,
            deadlines,
            settings.answer_bytes_max + ANSWER_FRAME_BYTES,
            settings.stream_idle_timeout_ms / 1000,
            Unread(settings.bytes_in_flight_max),
            self._metrics,
            self._log,
        )
        recall = {method.name: unary_endpoint(runtime, method) for method in RECALL_UNARY}
        for kind in CLIENT_STREAMS:
            recall[kind.__name__] = client_stream_endpoint(runtime, kind)
        admin = {method.name: unary_endpoint(runtime, method) for method in ADMIN_UNARY}
        for stream in ADMIN_STREAMS:
            admin[stream.name] = server_stream_endpoint(runtime, stream)
        vectors = {method.name: unary_endpoint(runtime, method) for method in VECTOR_UNARY}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(RECALL_SERVICE, recall),
                grpc.method_handlers_generic_handler(ADMIN_SERVICE, admin),
                grpc.method_handlers_generic_handler(VECTOR_SERVICE, vectors),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        shown = (
            RECALL_SERVICE,
            ADMIN_SERVICE,
            VECTOR_SERVICE,
            health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
            reflection.SERVICE_NAME,
        )
        reflection.enable_server_reflection(shown, server)

    def _bind(
        self, server: grpc.aio.Server, credentials: grpc.ServerCredentials | None
    ) -> tuple[Address, ...]:
        return tuple(
            self._bind_unix(server, address)
            if isinstance(address, UnixAddress)
            else _bind_tcp(server, address, credentials)
            for address in self._settings.addresses()
        )

    def _bind_unix(self, server: grpc.aio.Server, address: UnixAddress) -> UnixAddress:
        with private_socket(address.path):
            _add_port(lambda: server.add_insecure_port(address.target), address)
        self._sockets.append(address.path)
        return address

    def _start_probes(self) -> None:
        address = self._settings.health_address()
        if address is None:
            return
        probes = Probes(self._metrics.text, self.is_alive, self.is_ready)
        self._probes = ProbeServer(address, probes)
        self._probes.start()
        if not address.is_loopback:
            self._log.warning(
                "health_port_open_to_others",
                address=self._probes.address.target,
                hint="it has neither TLS nor tokens; keep it on 127.0.0.1 or behind a firewall",
            )

    # ---- while it serves ----

    def is_alive(self) -> bool:
        """False when only a restart helps."""
        engine = self._engine
        return engine is None or engine.healthy()

    def is_ready(self) -> bool:
        """Calls are answered."""
        return self._gate.phase is Phase.SERVING and self.is_alive()

    async def watch_health(self) -> None:
        """Show the engine's health for as long as the server serves."""
        was_healthy = True
        while self._gate.phase is Phase.SERVING:
            healthy = self.is_alive()
            if healthy != was_healthy:
                self._log.error("health_changed", healthy=healthy)
                await self._show_health(serving=healthy)
                was_healthy = healthy
            await self._gate.wait_until_draining(HEALTH_INTERVAL_S)

    async def _show_health(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if serving else status.NOT_SERVING
        for name in HEALTH_SERVICES:
            await self._health.set(name, value)

    def _readings(self) -> list[Reading]:
        found = [
            Reading("in_flight", "Requests queued or worked on.", lane.in_flight, lane=lane.name)
            for lane in self._lanes.all()
        ]
        found += [
            Reading("waiting", "Requests that wait for embeddings.", lane.waiting, lane=lane.name)
            for lane in self._lanes.all()
        ]
        found += [
            Reading("calls_open", "Calls in flight, streams too.", self._gate.inside),
            Reading("refusals_held", "Refusals held back in a flood.", self._gate.held_back.held),
            Reading("ready", "1 while calls are answered.", float(self.is_ready())),
            Reading("disk_bytes", DISK_BYTES_HELP, bytes_in(self._settings.data_dir)),
        ]
        if self._engine is None:
            return found
        own = (engine_readings, purging_readings, reembedding_readings, collection_readings)
        return found + [reading for read in own for reading in read(self._engine)]

    # ---- stop ----

    async def drain(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Let nobody in, answer those inside for up to `grace_s`, or until `hurry` is set."""
        self._gate.drain()
        await self._show_health(serving=False)
        self._log.info("draining", in_flight=self._gate.inside)
        empty = asyncio.ensure_future(self._gate.wait_until_empty())
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait((empty, hurried), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (empty, hurried):
            waiting.cancel()
        if self._gate.inside:
            self._log.warning("drain_cut_short", in_flight=self._gate.inside)

    async def stop(self) -> None:
        """End what is left, close the record, free the addresses. Safe at any stage."""
        self._gate.drain()
        if self._server is not None:
            await self._server.stop(None if self._gate.inside else LAST_WRITES_S)
        await asyncio.to_thread(self._close)
        if self.has_served:
            self._log.info("stopped")

    def _close(self) -> None:
        with ExitStack() as steps:
            # In reverse order; each is done whatever becomes of the others.
            for path in self._sockets:
                steps.callback(path.unlink, missing_ok=True)
            if self._probes is not None:
                steps.callback(self._probes.stop)
            if self._engine is not None:
                steps.callback(self._engine.stop)
            elif self._claim is not None:
                steps.callback(self._claim.close)
            for lane in self._lanes.all():
                steps.callback(lane.close)


def _bind_tcp(
    server: grpc.aio.Server, address: TcpAddress, credentials: grpc.ServerCredentials | None
) -> TcpAddress:
    check_tcp(address)
    if credentials is None:
        port = _add_port(lambda: server.add_insecure_port(address.target), address)
    else:
        port = _add_port(lambda: server.add_secure_port(address.target, credentials), address)
    return TcpAddress(address.host, port)


def _add_port(add: Callable[[], int], address: Address) -> int:
    try:
        port = add()
    except RuntimeError:
        port = 0
    if port == 0:
        raise ListenError(
            f"cannot listen on {address.target}: in use, not allowed or not an address of this "
            "machine"
        )
    return port


async def run_sidecar(
    sidecar: Sidecar,
    drain_grace_s: float,
    stop: asyncio.Event,
    hurry: asyncio.Event,
) -> None:
    """Start, serve until `stop` is set, drain, stop.

    Raises:
        Exception: what made the start or the health watch fail, after everything was let go.
    """
    try:
        await sidecar.start()
        watching = asyncio.ensure_future(sidecar.watch_health())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
        await sidecar.drain(drain_grace_s, hurry)
        stopping.cancel()
        await watching
    finally:
        await sidecar.stop()
