"""What a load is: where it goes, what is asked, how often, for how long. Everything has a limit.

All of it is frozen and picklable: the processes that send it get it as it is. Equal plans with
equal seeds send equal calls in equal order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ..arguments import id_fault, is_unicode
from ..connection import Connection
from ..errors import InvalidArgumentError

RATE_MAX = 100_000.0
IN_FLIGHT_MAX = 10_000
STAGES_MAX = 20
SECONDS_MAX = 86_400.0
CALLS_MAX = 100_000_000
PROCESSES_MAX = 64
RESOURCES_MAX = 1_000_000
THREADS_MAX = 10_000
ZIPF_MAX = 5.0
WORDS_MAX = 20_000
TOP_K_MAX = 1_000
RANGE_MAX = 50
CHOICES_MAX = 20
INDEX_MESSAGES_MAX = 1_000
PREPARED_MESSAGES_MAX = 10_000_000
TIMEOUT_MS_MAX = 600_000


class Loop(StrEnum):
    """When the next call begins: by a schedule, or when one before it ends."""

    OPEN = "open"
    CLOSED = "closed"


class Arrivals(StrEnum):
    """How an open loop's calls are spread: evenly, or as independent callers would (Poisson)."""

    CONSTANT = "constant"
    POISSON = "poisson"


class WaitMode(StrEnum):
    """What an Index call waits for."""

    DURABLE = "durable"
    SEARCHABLE = "searchable"


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `low` to `high`, both included, equally likely."""

    low: int
    high: int

    def check(self, name: str, most: int) -> None:
        """Raises InvalidArgumentError where it is empty or outside 1 to `most`."""
        if not 1 <= self.low <= self.high <= most:
            raise InvalidArgumentError.of(
                name, f"{self.low}-{self.high} must be LOW-HIGH within 1 and {most:,}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked.

    Attributes:
        recall_share: of the calls, 0 to 1; the others are Index calls.
        resources: users that the load makes up, named `resource_prefix` + number.
        zipf_exponent: how unevenly calls fall on resources: the n-th gets a share in proportion to
            n ** -exponent. 0: evenly. At most 5.
        threads: of each resource.
        query_repeat_share: of the recalls that ask again what the same process asked that
            resource before (one of its last 16 queries), 0 to 1. What caches make of it is
            in the result.
        query_words, message_words: lengths of texts.
        messages_per_index: in one Index call.
        wait: of Index calls.
        thread_scope_share: of the recalls that ask one thread only, 0 to 1.
        top_k: values that recalls take in turn.
        message_range: (before, after) pairs that recalls take in turn.
        messages_before: messages of each resource that are indexed before anything is measured.
        existing_resources: recall from these instead; nothing is written, prepared or forgotten.
        queries: ask these, in turn, instead of made-up ones.
        keep: leave the made-up resources in the store when it is over.
        seed: of everything drawn.
        resource_prefix: of the made-up resources; unique to a run.
    """

    recall_share: float = 0.8
    resources: int = 100
    zipf_exponent: float = 1.0
    threads: int = 10
    query_repeat_share: float = 0.2
    query_words: Span = Span(6, 16)
    message_words: Span = Span(10, 60)
    messages_per_index: int = 2
    wait: WaitMode = WaitMode.DURABLE
    thread_scope_share: float = 0.0
    top_k: tuple[int, ...] = (4,)
    message_range: tuple[tuple[int, int], ...] = ((1, 1),)
    messages_before: int = 20
    existing_resources: tuple[str, ...] = ()
    queries: tuple[str, ...] = field(default=(), repr=False)
    keep: bool = False
    seed: int = 1
    resource_prefix: str = "load-"

    def check(self) -> None:
        """Raises InvalidArgumentError naming the attribute that is outside its limits."""
        for name in ("recall_share", "query_repeat_share", "thread_scope_share"):
            _within(name, getattr(self, name), 0, 1)
        _within("resources", self.resources, 1, RESOURCES_MAX)
        _within("zipf_exponent", self.zipf_exponent, 0, ZIPF_MAX)
        _within("threads", self.threads, 1, THREADS_MAX)
        self.query_words.check("query_words", WORDS_MAX)
        self.message_words.check("message_words", WORDS_MAX)
        _within("messages_per_index", self.messages_per_index, 1, INDEX_MESSAGES_MAX)
        _choices("top_k", self.top_k)
        for top_k in self.top_k:
            _within("top_k", top_k, 1, TOP_K_MAX)
        _choices("message_range", self.message_range)
        for side in (side for pair in self.message_range for side in pair):
            _within("message_range", side, 0, RANGE_MAX)
        _within("messages_before", self.messages_before, 0, PREPARED_MESSAGES_MAX)
        prepared = self.messages_before * self.resources
        if not self.existing_resources and prepared > PREPARED_MESSAGES_MAX:
            raise InvalidArgumentError.of(
                "messages_before",
                f"{self.messages_before:,} for each of {self.resources:,} resources is more than "
                f"{PREPARED_MESSAGES_MAX:,} messages",
            )
        if self.existing_resources and self.recall_share < 1:
            raise InvalidArgumentError.of(
                "recall_share", "must be 1 with existing resources: a load never writes to them"
            )
        for position, given in enumerate(self.existing_resources, 1):
            if fault := id_fault(given):
                raise InvalidArgumentError.of("existing_resources", f"id {position} {fault}")
        for position, query in enumerate(self.queries, 1):
            if not is_unicode(query):
                raise InvalidArgumentError.of("queries", f"query {position} must be UTF-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A time of even load, measured by itself.

    Attributes:
        rate_per_s: calls that begin each second, of all processes together (open loop); 0 in a
            closed loop.
        in_flight: callers of all processes together (closed loop); in an open loop 0.
        duration_s: how long.
    """

    rate_per_s: float = 0.0
    in_flight: int = 0
    duration_s: float = 30.0

    @property
    def name(self) -> str:
        """For tables: "200 calls/s" or "16 in flight"."""
        return f"{self.rate_per_s:g} calls/s" if self.rate_per_s else f"{self.in_flight} in flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """All of it.

    Attributes:
        connection: where the load goes, with its credentials. Never printed or written whole.
        loop, arrivals: when calls begin.
        stages: one after the other, 1 to 20.
        warm_up_s: the first stage's load before it is measured; tells whether one process is
            enough.
        ramp_s: the first part of the warm-up, in which the rate rises evenly from zero. At most
            `warm_up_s`.
        in_flight_max: open loop: calls under way at once, of all processes. Calls that are due
            beyond wait for a place, and wait in their latency.
        calls_max: of the measured stages together; then the load ends.
        timeout_ms: deadline of each call, from when it is sent.
        processes: that send; 0: one, and more where the warm-up shows that one is the bottleneck.
    """

    connection: Connection = field(repr=False)
    workload: Workload
    loop: Loop = Loop.OPEN
    arrivals: Arrivals = Arrivals.POISSON
    stages: tuple[Stage, ...]
    warm_up_s: float = 5.0
    ramp_s: float = 2.0
    in_flight_max: int = 1_000
    calls_max: int = 1_000_000
    timeout_ms: int = 10_000
    processes: int = 0

    def check(self) -> None:
        """Raises InvalidArgumentError naming the attribute that is outside its limits."""
        self.workload.check()
        if not 1 <= len(self.stages) <= STAGES_MAX:
            raise InvalidArgumentError.of("stages", f"must be 1 to {STAGES_MAX}")
        for stage in self.stages:
            _within("duration_s", stage.duration_s, 0.1, SECONDS_MAX)
            if self.loop is Loop.OPEN:
                _within("rate_per_s", stage.rate_per_s, 0.1, RATE_MAX)
            else:
                _within("in_flight", stage.in_flight, 1, IN_FLIGHT_MAX)
        _within("warm_up_s", self.warm_up_s, 0, SECONDS_MAX)
        _within("ramp_s", self.ramp_s, 0, self.warm_up_s)
        _within("in_flight_max", self.in_flight_max, 1, IN_FLIGHT_MAX)
        _within("calls_max", self.calls_max, 1, CALLS_MAX)
        _within("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX)
        _within("processes", self.processes, 0, PROCESSES_MAX)


def _within(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise InvalidArgumentError.of(name, f"{value:g} is not within {least:,g} and {most:,g}")


def _choices(name: str, values: Sequence[object]) -> None:
    if not 1 <= len(values) <= CHOICES_MAX:
        raise InvalidArgumentError.of(name, f"takes 1 to {CHOICES_MAX} values")
