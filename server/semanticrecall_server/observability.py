"""Metrics, and the small HTTP port that shows them beside two probes.

| path | answer |
|---|---|
| /metrics | Prometheus text |
| /healthz | 200 while the process can do its work, 503 when it needs a restart |
| /readyz | 200 while it serves, 503 while it starts or drains |

Labels are methods, codes, stages and lanes: never an id, never text.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from semanticrecall_core.engine import Engine
from semanticrecall_core.types.recalling import Mode, RecallAnswer

from .histograms import HistogramRow
from .listen import ListenError, TcpAddress

PREFIX = "semanticrecall"
DISK_BYTES_HELP = "Bytes of the files in the data directory."
STAGES = ("queue", "embed", "search", "lexical", "fetch", "render", "total")
HTTP_TIMEOUT_S = 5.0
HTTP_CONNECTIONS_MAX = 16
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """The counters of one server; a registry of its own. The process's memory and files too."""

    def __init__(self, version: str) -> None:
        # They would be a second series for each, which says when it was first shown.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._version = version
        self._build = Info(f"{PREFIX}_build", "What is running.", registry=self.registry)
        self.serves("", "")
        self._calls = Counter(
            f"{PREFIX}_calls", "Calls ended.", ("method", "code"), registry=self.registry
        )
        self._stream_requests = Counter(
            f"{PREFIX}_stream_requests",
            "Requests answered inside streams.",
            ("method", "code"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_call_seconds",
            "Time of a call, streams included.",
            ("method",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._stages = HistogramRow(
            f"{PREFIX}_recall_stage_seconds",
            "Time of a recall's stages; that of words is part of the search.",
            "stage",
            STAGES,
            _SECONDS,
        )
        self.registry.register(self._stages)
        modes = Counter(
            f"{PREFIX}_recalls",
            "Recalls answered by a search, by the mode that was used.",
            ("mode",),
            registry=self.registry,
        )
        # Looking labels up costs more than counting: it is done once.
        self._modes = {mode: modes.labels(mode.name.lower()) for mode in Mode}
        self._lexical_only = Counter(
            f"{PREFIX}_lexical_only_hits",
            "Hits found by their words alone: they had no vector yet, or none was asked for.",
            registry=self.registry,
        )
        self._repeated = Counter(
            f"{PREFIX}_answers_repeated",
            "Recalls answered as before: the same request, and nothing of its resource changed.",
            registry=self.registry,
        )
        self._known_calls: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._known_requests: dict[tuple[str, str], Counter] = {}
        self._unauthenticated = Counter(
            f"{PREFIX}_unauthenticated", "Calls without a good token.", registry=self.registry
        )

    def serves(self, model: str, device: str) -> None:
        """Which vectors are served, and where they are made; both "" while that is not known."""
        self._build.info({"version": self._version, "model": model, "device": device})

    def called(self, method: str, code: str, seconds: float) -> None:
        """A call ended."""
        known = self._known_calls.get((method, code))
        if known is None:
            known = (self._calls.labels(method, code), self._seconds.labels(method))
            self._known_calls[method, code] = known
        known[0].inc()
        known[1].observe(seconds)

    def called_in_stream(self, method: str, code: str) -> None:
        """A request inside a stream was answered."""
        known = self._known_requests.get((method, code))
        if known is None:
            known = self._known_requests[method, code] = self._stream_requests.labels(method, code)
        known.inc()

    def refused_token(self) -> None:
        """A call had no good token."""
        self._unauthenticated.inc()

    def recalled(self, answer: RecallAnswer, queue_us: int, total_us: int) -> None:
        """A recall was answered."""
        info = answer.info
        self._modes[info.mode_used].inc()
        hits = [message.found for message in answer.messages if message.found is not None]
        by_words = [hit for hit in hits if hit.cosine is None]
        if by_words:
            self._lexical_only.inc(len(by_words))
        stages = (
            queue_us,
            info.embed_us,
            info.search_us,
            info.lexical_us,
            info.fetch_us,
            info.render_us,
            total_us,
        )
        self._stages.observe_all([microseconds / 1e6 for microseconds in stages])

    def recalled_again(self, total_us: int) -> None:
        """A recall's answer was given again."""
        self._repeated.inc()
        self._stages.observe_last(total_us / 1e6)

    def watch(self, read: Callable[[], list[Reading]]) -> None:
        """Show what `read` returns at every scrape."""
        self.registry.register(_Readings(read))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)


@dataclass(frozen=True, slots=True)
class Reading:
    """One number read at a scrape."""

    name: str
    help: str
    value: float
    is_counter: bool = False
    lane: str = ""
    kind: str = ""


class _Readings(Collector):
    def __init__(self, read: Callable[[], list[Reading]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Nothing in advance: what is read may not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family for each reading's name."""
        families: dict[str, Metric] = {}
        for reading in self._read():
            labels = {"lane": reading.lane, "kind": reading.kind}
            labels = {name: value for name, value in labels.items() if value}
            kind: Any = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
            name = f"{PREFIX}_{reading.name}"
            family: Any = families.get(name) or kind(name, reading.help, labels=list(labels))
            families[name] = family
            family.add_metric(list(labels.values()), reading.value)
        yield from families.values()


def bytes_in(directory: Path) -> int:
    """Bytes of the files in a directory; 0 while it is not there."""
    total = 0
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total


def engine_readings(engine: Engine) -> list[Reading]:
    """What the engine counts by itself."""
    cache, scheduler = engine.cache_stats(), engine.scheduler_stats()
    return [
        Reading("pending_messages", "Messages that wait to be embedded.", engine.pending()),
        Reading("embed_failures", "Failed embeddings.", engine.embed_failures(), True),
        Reading("partitions_loaded", "Partitions in memory.", engine.partitions_loaded()),
        Reading(
            "lexical_partitions_loaded",
            "Partitions whose words are in memory.",
            engine.lexical_partitions_loaded(),
        ),
        Reading("lexical_bytes", "Bytes of memory of their words.", engine.lexical_bytes()),
        Reading("cache_entries", "Cached vectors in memory.", cache.entries),
        Reading("cache_bytes", "Bytes of cached vectors in memory.", cache.bytes),
        Reading("cache_hits", "Look-ups that found a vector.", cache.hits, True),
        Reading("cache_misses", "Look-ups that did not.", cache.misses, True),
        Reading("cache_evictions", "Vectors dropped for room.", cache.evictions, True),
        Reading("cache_hit_ratio", "Hits among look-ups since the start.", cache.hit_ratio),
        Reading("cache_disk_entries", "Cached vectors on disk.", cache.disk_entries),
        Reading("cache_disk_bytes", "Bytes of cached vectors on disk.", cache.disk_bytes),
        Reading("cache_disk_hits", "Hits found on disk.", cache.disk_hits, True),
        Reading("cache_disk_evictions", "Dropped from disk for room.", cache.disk_evictions, True),
        Reading("cache_disk_damaged", "Damaged, and dropped from disk.", cache.disk_damaged, True),
        Reading("embed_queue_texts", "Texts that wait for the model.", scheduler.queued_texts),
        Reading("embed_queue_tokens", "Tokens of those texts.", scheduler.queued_tokens),
        Reading("embed_running_texts", "Texts in the model now.", scheduler.running_texts),
        Reading("embed_batches", "Runs of the model.", scheduler.batches, True),
        Reading("embed_batched_texts", "Texts in those runs.", scheduler.batched_texts, True),
        Reading("embed_refused", "Texts refused: full queue.", scheduler.refused, True),
        *_damage_readings(engine),
        *_snapshot_readings(engine),
    ]


def _damage_readings(engine: Engine) -> list[Reading]:
    help_text = "Found damaged since the start, and not served; pages: reads that met one."
    return [
        Reading("damaged", help_text, count, True, kind=kind)
        for kind, count in engine.damaged().items()
    ]


def _snapshot_readings(engine: Engine) -> list[Reading]:
    stats = engine.snapshot_stats()
    if stats is None:
        return []
    failures = engine.snapshot_failures()
    return [
        Reading("snapshot_files", "Files of snapshots.", stats.files),
        Reading("snapshot_bytes", "Bytes of those files.", stats.bytes),
        Reading("snapshot_partitions", "Resources that have a snapshot.", stats.partitions),
        Reading("snapshot_rows", "Vectors in snapshots.", stats.rows),
        Reading("snapshot_damaged", "Snapshots found damaged, not used.", stats.damaged, True),
        Reading("snapshot_failures", "Not written, read or removed.", failures, True),
    ]


@dataclass(frozen=True, slots=True)
class Probes:
    """What the HTTP port asks; called on its threads."""

    metrics: Callable[[], bytes]
    is_alive: Callable[[], bool]
    is_ready: Callable[[], bool]


class ProbeServer:
    """The HTTP port, on threads of its own."""

    def __init__(self, address: TcpAddress, probes: Probes) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._server = _bounded_server(family)((address.host, address.port), _handler(probes))
        except OSError as error:
            raise ListenError(
                f"cannot listen on --health-listen {address.target}: {error.strerror}"
            ) from None
        host, port = self._server.server_address[:2]
        self.address = TcpAddress(str(host), int(port))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="probes"
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _bounded_server(family: int) -> type[ThreadingHTTPServer]:
    places = threading.BoundedSemaphore(HTTP_CONNECTIONS_MAX)

    class Server(ThreadingHTTPServer):
        """Serves at most HTTP_CONNECTIONS_MAX connections; others are closed at once."""

        address_family = family
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True

        def process_request(self, request: Any, client_address: Any) -> None:
            if not places.acquire(blocking=False):
                self.shutdown_request(request)
                return
            super().process_request(request, client_address)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                places.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A peer that hangs up is no news."""

    return Server


def _handler(probes: Probes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET on three paths."""

        timeout = HTTP_TIMEOUT_S
        server_version = "semanticrecall"
        sys_version = ""

        def do_GET(self) -> None:
            """One probe or scrape."""
            if self.path == "/metrics":
                self._send(200, probes.metrics())
            elif self.path == "/healthz":
                self._say(probes.is_alive())
            elif self.path == "/readyz":
                self._say(probes.is_ready())
            else:
                self._send(404, b"not found\n")

        def _say(self, good: bool) -> None:
            self._send(200 if good else 503, b"ok\n" if good else b"not ok\n")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes are not logged."""

    return Handler
