"""Latency of new queries by size of the resource, top_k, scope, mode and calls in flight.

Usage: python -m benchmarks.topk_latency [--data-dir DIR] [--sizes 1000,10000,100000]
                                         [--top-k 1,4,20,100] [--in-flight 1,4,16] [--json FILE]

One store, `by_size` of `store_builder`, with a resource of each size, and one sidecar with its
default settings. Not every combination is measured; from a centre (10,000 messages, top_k 4, the
whole resource, MODE_HYBRID, 1 call in flight) vary:

  size and in flight   together, each with each
  top_k                alone
  scope                with the size: only one thread (of 40 messages) of the resource is searched
  mode                 with the size: MODE_DENSE, and MODE_LEXICAL, which embeds no query

All points are visited in rounds, one after the other, so that a slow minute of the machine falls on
all of them. Each time so many unary calls are kept in flight on one connection by a process of its
own (`load_client`), which decodes nothing and shares the cores with the sidecar. Every query is
asked once: none is in a cache. The first calls of each connection are sent and not counted as
latencies; `recalls_per_s` includes them.

What hybrid ranking adds to a recall is a figure of its own: the p50 in MODE_HYBRID less that in
MODE_DENSE, which are visited one after the other.

Of every answer the number of hits is checked. When all is measured, some queries of each point are
asked again of another sidecar, that has no query in its cache, with another number in flight: the
answers must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import corpus, processes, wire_requests
from benchmarks.axes import Numbers, numbers, say
from benchmarks.derived_files import forget_cached_vectors, make_snapshots
from benchmarks.load_client import Answered, Load, run_load
from benchmarks.measure import Latency
from benchmarks.report import Chart, Digest, Result, flag, run_script
from benchmarks.store_builder import ResourcePlan, build, stores_in
from semanticrecall.v1 import recall_pb2, types_pb2

QUIET = ("--log-level", "warning")
MODES = {
    "hybrid": types_pb2.MODE_HYBRID,
    "dense": types_pb2.MODE_DENSE,
    "lexical": types_pb2.MODE_LEXICAL,
}
SCOPES = {"resource": types_pb2.SCOPE_RESOURCE, "thread": types_pb2.SCOPE_THREAD}
UNCOUNTED_CALLS = 2
"""For each call in flight: what is sent on a new connection before latencies count."""

WARM_UP_CALLS = 30
AGAIN_CALLS_MAX = 20
AGAIN_IN_FLIGHT = 16
TABLE = "latency"


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the store is built and found again", Path
    )
    sizes: Numbers = flag(  # noqa: RUF009
        Numbers((1_000, 10_000, 100_000)), "messages of the resources", numbers
    )
    top_k: Numbers = flag(  # noqa: RUF009
        Numbers((1, 4, 20, 100)), "messages to find", numbers
    )
    in_flight: Numbers = flag(  # noqa: RUF009
        Numbers((1, 4, 16)), "calls at once", numbers
    )
    centre_messages: int = flag(10_000, "size at which top_k varies, one of the sizes")
    centre_top_k: int = flag(4, "top_k at which size, scope and calls in flight vary")
    message_range: int = flag(1, "neighbours of each hit, before and after")
    calls: int = flag(200, "calls of each point in each round")
    rounds: int = flag(5, "rounds")
    seed: int = flag(7, "of texts and vectors")


@dataclass(frozen=True, slots=True)
class Point:
    """One combination."""

    messages: int
    top_k: int
    scope: str
    in_flight: int
    mode: str = "hybrid"

    @property
    def resource_id(self) -> str:
        """The resource that is asked."""
        return f"size-{self.messages}"

    @property
    def hits(self) -> int:
        """How many hits an answer must have."""
        there = self.messages
        if self.scope == "thread":
            there = min(there, corpus.THREAD_MESSAGES)
        return min(self.top_k, there)

    def requests(self, queries: Sequence[str], message_range: int) -> list[bytes]:
        """One recall of each query. Of threads, whole ones are asked in turn."""
        threads = max(1, self.messages // corpus.THREAD_MESSAGES)
        found = []
        for number, query in enumerate(queries):
            request = wire_requests.recall(self.resource_id, query)
            request.top_k = self.top_k
            request.ranking.mode = MODES[self.mode]
            request.scope = SCOPES[self.scope]
            request.thread_id = f"thread-{number % threads}" if self.scope == "thread" else ""
            request.message_range.before = request.message_range.after = message_range
            found.append(request.SerializeToString())
        return found


def points_of(config: Config) -> list[Point]:
    """What is measured, each once, by size, top_k, scope, calls in flight and mode.

    Raises:
        ValueError: the centre is not among the sizes, or something is 0.
    """
    if config.centre_messages not in config.sizes:
        raise ValueError("--centre-messages must be one of --sizes")
    if not all((*config.sizes, *config.top_k, *config.in_flight, config.calls, config.rounds)):
        raise ValueError("sizes, top_k, calls and rounds must be above 0")
    base = config.centre_top_k
    found = {Point(size, base, "resource", n) for size in config.sizes for n in config.in_flight}
    found |= {Point(size, base, "thread", 1) for size in config.sizes}
    found |= {Point(size, base, "resource", 1, mode) for size in config.sizes for mode in MODES}
    found |= {Point(config.centre_messages, k, "resource", 1) for k in (*config.top_k, base)}
    return sorted(found, key=lambda p: (p.messages, p.top_k, p.scope, p.in_flight, p.mode))


@dataclass(slots=True)
class _Asked:
    """What has been asked at one point.

    Attributes:
        latencies_s: of the calls that count.
        calls, seconds: of all calls, and how long they took together.
        requests, ids: in the order of the rounds.
    """

    latencies_s: list[float] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    requests: list[bytes] = field(default_factory=list)
    ids: list[list[str]] = field(default_factory=list)

    def add(self, requests: list[bytes], done: Answered, ids: list[list[str]], first: int) -> None:
        """One load; latencies count from its call number `first` on."""
        self.latencies_s += done.call_seconds[first:]
        self.calls += len(requests)
        self.seconds += done.seconds
        self.requests += requests[first:]
        self.ids += ids[first:]


def checked_ids(answers: Sequence[bytes], point: Point) -> list[list[str]]:
    """The ids of every answer, neighbours among them.

    Raises:
        RuntimeError: an answer has another number of hits. In MODE_LEXICAL it may have fewer.
    """
    found = []
    for raw in answers:
        answer = recall_pb2.RecallResponse.FromString(raw)
        hits = sum(one.hit for one in answer.messages)
        if hits > point.hits or (hits < point.hits and point.mode != "lexical"):
            raise RuntimeError("an answer has another number of hits than was asked for")
        found.append(wire_requests.recalled_ids(answer))
    return found


def _warm_up(address: str, config: Config, queries: Iterator[str]) -> None:
    """Every partition is loaded, every path has been taken."""
    requests: list[bytes] = []
    for size in config.sizes:
        point = Point(size, config.centre_top_k, "resource", 1)
        texts = [next(queries) for _ in range(WARM_UP_CALLS)]
        requests += point.requests(texts, config.message_range)
    run_load(address, Load(wire_requests.RECALL, "unary", 1), requests)


def _measure_points(address: str, config: Config, points: list[Point]) -> dict[Point, _Asked]:
    asked = {point: _Asked() for point in points}
    uncounted = {point: UNCOUNTED_CALLS * point.in_flight for point in points}
    a_round = sum(uncounted.values()) + config.calls * len(points)
    total = WARM_UP_CALLS * len(config.sizes) + config.rounds * a_round
    queries = iter(corpus.queries(total, seed=config.seed))
    _warm_up(address, config, queries)
    for number in range(config.rounds):
        say(f"round {number + 1} of {config.rounds}: {len(points)} points")
        for point in points:
            texts = [next(queries) for _ in range(uncounted[point] + config.calls)]
            requests = point.requests(texts, config.message_range)
            load = Load(wire_requests.RECALL, "unary", point.in_flight)
            done = run_load(address, load, requests)
            ids = checked_ids(done.answers, point)
            asked[point].add(requests, done, ids, uncounted[point])
    return asked


def _ask_again(address: str, asked: dict[Point, _Asked]) -> int:
    """Some of each point with another number in flight; returns how many answers were the same."""
    same = 0
    for is_single in (True, False):
        points = [point for point in asked if (point.in_flight == 1) is is_single]
        requests = [raw for point in points for raw in asked[point].requests[:AGAIN_CALLS_MAX]]
        if not requests:
            continue
        load = Load(wire_requests.RECALL, "unary", AGAIN_IN_FLIGHT if is_single else 1)
        answers = iter(run_load(address, load, requests).answers)
        for point in points:
            before = asked[point].ids[:AGAIN_CALLS_MAX]
            again = checked_ids([next(answers) for _ in before], point)
            if again != before:
                raise RuntimeError("the same query has another answer with others in flight")
            same += len(again)
    return same


def _row(point: Point, asked: _Asked) -> dict[str, float | str]:
    latency = Latency.of_seconds(asked.latencies_s)
    return {
        "resource_messages": point.messages,
        "top_k": point.top_k,
        "scope": point.scope,
        "in_flight": point.in_flight,
        "mode": point.mode,
        "hits": point.hits,
        "calls": latency.count,
        "p50_ms": latency.p50_ms,
        "p95_ms": latency.p95_ms,
        "p99_ms": latency.p99_ms,
        "recalls_per_s": asked.calls / asked.seconds,
    }


def _modes_at(size: int, config: Config) -> tuple[Point, Point]:
    """The points of MODE_HYBRID and of MODE_DENSE that differ in nothing else."""
    hybrid = Point(size, config.centre_top_k, "resource", 1)
    return hybrid, replace(hybrid, mode="dense")


def _by_mode(config: Config) -> Chart:
    return Chart(
        name="topk-p50-by-mode",
        title=f"A new query, p50, top_k {config.centre_top_k}, one call in flight",
        table=TABLE,
        x="resource_messages",
        y="p50_ms",
        by=("mode",),
        x_label="messages of the resource",
        y_label="p50, ms",
        x_log=True,
        only={"top_k": config.centre_top_k, "scope": "resource", "in_flight": 1},
    )


def _charts(config: Config) -> list[Chart]:
    centre = {"top_k": config.centre_top_k, "scope": "resource", "mode": "hybrid"}
    by_size = [
        Chart(
            name=f"topk-{percentile}-by-size",
            title=f"A new query, {percentile}, top_k {config.centre_top_k}, by calls in flight",
            table=TABLE,
            x="resource_messages",
            y=f"{percentile}_ms",
            by=("in_flight",),
            x_label="messages of the resource",
            y_label=f"{percentile}, ms",
            x_log=True,
            y_log=True,
            only=centre,
        )
        for percentile in ("p50", "p99")
    ]
    by_top_k = Chart(
        name="topk-p50-by-top-k",
        title=f"A new query, p50, {config.centre_messages:,} messages, one call in flight",
        table=TABLE,
        x="top_k",
        y="p50_ms",
        x_label="top_k",
        y_label="p50, ms",
        x_log=True,
        only={
            "resource_messages": config.centre_messages,
            "scope": "resource",
            "in_flight": 1,
            "mode": "hybrid",
        },
    )
    by_scope = Chart(
        name="topk-p50-by-scope",
        title=f"A new query, p50, top_k {config.centre_top_k}, one call in flight",
        table=TABLE,
        x="resource_messages",
        y="p50_ms",
        by=("scope",),
        x_label="messages of the resource",
        y_label="p50, ms",
        x_log=True,
        only={"top_k": config.centre_top_k, "in_flight": 1, "mode": "hybrid"},
    )
    throughput = Chart(
        name="topk-throughput-by-in-flight",
        title=f"New queries a second, top_k {config.centre_top_k}, by messages of the resource",
        table=TABLE,
        x="in_flight",
        y="recalls_per_s",
        by=("resource_messages",),
        x_label="calls in flight",
        y_label="recalls/s",
        x_log=True,
        only=centre,
    )
    return [*by_size, by_top_k, by_scope, _by_mode(config), throughput]


def _result(config: Config, asked: dict[Point, _Asked], same: int) -> Result:
    digest = Digest()
    for one in asked.values():
        for ids in one.ids:
            digest.add(ids)
    rows = [_row(point, one) for point, one in asked.items()]
    p50_ms = {point: Latency.of_seconds(one.latencies_s).p50_ms for point, one in asked.items()}
    added_ms = {
        f"ms that hybrid adds at {size} messages, p50": p50_ms[hybrid] - p50_ms[dense]
        for size in config.sizes
        for hybrid, dense in [_modes_at(size, config)]
    }
    figures: dict[str, float] = {
        **added_ms,
        "answers that were the same with another number in flight": same,
        "neighbours asked for, before and after": config.message_range,
    }
    tables = {TABLE: rows}
    return Result(figures=figures, tables=tables, charts=_charts(config), digest=digest.text())


def measure(config: Config) -> Result:
    """Build what is not there, run the sidecars, measure."""
    points = points_of(config)
    plan = [
        ResourcePlan(f"size-{size}", size, config.seed + number)
        for number, size in enumerate(config.sizes)
    ]
    with stores_in(config.data_dir) as directory:
        store = directory / "by_size"
        say(f"a store with resources of {config.sizes} messages")
        build(store, plan)
        make_snapshots(store)
        forget_cached_vectors(store)
        with processes.sidecar(store, *QUIET) as (address, _):
            asked = _measure_points(address, config, points)
        forget_cached_vectors(store)
        with processes.sidecar(store, *QUIET) as (address, _):
            same = _ask_again(address, asked)
    return _result(config, asked, same)


SMOKE = {
    "sizes": Numbers((60, 200)),
    "top_k": Numbers((4, 100)),
    "in_flight": Numbers((1, 4)),
    "centre_messages": 200,
    "calls": 6,
    "rounds": 1,
}

if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke=SMOKE)
