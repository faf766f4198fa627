"""Retention: messages that are too old, or too many, are forgotten by themselves.

Promises:
  - A resource keeps its newest `messages_max` messages, and none created longer than `age_ns` ago;
    what goes goes the way of every Forget, the oldest first.
  - A clock that jumps never expires everything: see `TrustedClock`.
  - The rule is logged at the start, and the first look comes an interval later (a minute at most):
    who sees that it is wrong can stop in time.
  - One thread of the lowest priority, which works in small batches and pauses as long as it works.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from semanticrecall_core.engine.change_watch import ChangeWatch
from semanticrecall_core.engine.low_priority import lower_priority
from semanticrecall_core.types.ports import MessageStore

ROWS_AT_ONCE = 500
RESOURCES_AT_ONCE = 1_000
RESOURCES_MAX = 10_000_000
RESOURCES_TRACKED_MAX = 200_000
FIRST_LOOK_S_MAX = 60.0
CLOCK_SPEED_MAX = 2
CLOCK_KEPT_EVERY_NS = 60 * 10**9
PLAUSIBLE_TIME_NS = 1_735_689_600 * 10**9
"""2025-01-01: a machine whose clock shows less has not been told the time yet."""

_DAY_NS = 86_400 * 10**9
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What is kept, and how often it is looked for what is not.

    Attributes:
        age_ns: since create_time; 0 keeps any age.
        messages_max: of one resource; 0 keeps any number.
        interval_s: between two looks.
    """

    age_ns: int = 0
    messages_max: int = 0
    interval_s: float = 60.0

    @property
    def is_on(self) -> bool:
        """Whether anything expires at all."""
        return bool(self.age_ns or self.messages_max)

    @property
    def first_look_s(self) -> float:
        """From the start to the first look."""
        return min(self.interval_s, FIRST_LOOK_S_MAX)


class TrustedClock:
    """The time by which messages expire: what the wall clock shows, as far as it can be trusted.

    It keeps a ceiling, which it never passes. The ceiling follows the wall clock, but rises by no
    more than twice the time that has passed by the monotonic clock while the process ran, and it
    is kept in the record. So whatever the wall clock does, in one hour messages of at most two
    hours expire; and a wall clock that is right again is followed again: downwards at once,
    upwards as soon as the ceiling has caught up. After a stop that takes as long as the stop took.
    """

    def __init__(
        self,
        kept_ns: int,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Go on from a ceiling that was kept; 0 where there is none yet."""
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._ceiling_ns = kept_ns
        self._looked_ns = monotonic_ns()

    @property
    def ceiling_ns(self) -> int:
        """To be kept; 0 before the wall clock was plausible for the first time."""
        return self._ceiling_ns

    def now_ns(self) -> int | None:
        """The time; None where it is not known yet."""
        looked, wall = self._monotonic_ns(), self._wall_ns()
        passed = max(0, looked - self._looked_ns)
        self._looked_ns = looked
        if self._ceiling_ns == 0:
            if wall < PLAUSIBLE_TIME_NS:
                return None
            self._ceiling_ns = wall
        elif wall > self._ceiling_ns:
            self._ceiling_ns = min(wall, self._ceiling_ns + CLOCK_SPEED_MAX * passed)
        return min(wall, self._ceiling_ns)


class Retention:
    """The thread, and what it does. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        forget_rows: Callable[[str, tuple[tuple[int, int], ...]], int],
        plan: RetentionPlan,
        clock: TrustedClock | None = None,
    ) -> None:
        """Subscribe it before the first write.

        Args:
            store: the record.
            forget_rows: removes messages of a resource by (seq, revision); returns how many.
            plan: what expires.
            clock: None goes on from what the record kept.
        """
        self._store = store
        self._forget_rows = forget_rows
        self._plan = plan
        self._clock = clock
        self._kept_ns = 0
        self._lock = threading.Lock()
        self._changed: set[str] | None = None  # None: all of them
        self._stopped = threading.Event()
        self._expired = 0
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        if plan.messages_max:
            store.subscribe(ChangeWatch(self._resource_changed))

    def start(self) -> None:
        """Say what expires and begin to look, `first_look_s` later; nothing where nothing does."""
        plan = self._plan
        if not plan.is_on:
            return
        _log.info(
            "retention_on",
            age_days_max=plan.age_ns / _DAY_NS,
            messages_max=plan.messages_max,
            interval_ms=round(plan.interval_s * 1000),
            first_look_ms=round(plan.first_look_s * 1000),
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is due is found at the next start."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def expired(self) -> int:
        """Messages that were forgotten since the start."""
        return self._expired

    def failures(self) -> int:
        """Looks that failed since the start; each is made again."""
        return self._failures

    def work(self) -> int:
        """Forget all that is due now, on the calling thread; returns how many messages."""
        before = self._expired
        if self._plan.age_ns:
            self._expire_old()
        if self._plan.messages_max:
            self._expire_many()
        expired = self._expired - before
        if expired:
            _log.info("messages_expired", messages=expired)
        return expired

    # ---- inside ----

    def _resource_changed(self, resource_id: str) -> None:
        with self._lock:
            if self._changed is None:
                return
            self._changed.add(resource_id)
            if len(self._changed) > RESOURCES_TRACKED_MAX:
                self._changed = None

    def _run(self) -> None:
        lower_priority()
        wait_s = self._plan.first_look_s
        while not self._stopped.wait(wait_s):
            wait_s = self._plan.interval_s
            try:
                self.work()
            except Exception as error:
                self._failures += 1
                reason = getattr(error, "reason", type(error).__name__)
                _log.warning("retention_failed", reason=reason)

    def _expire_old(self) -> None:
        now_ns = self._now_ns()
        if now_ns is None:
            return
        before_ns = now_ns - self._plan.age_ns
        after: str | None = ""
        while after is not None and not self._stopped.is_set():
            started = time.monotonic()
            resource_ids, after = self._store.resources_older_than(
                before_ns, after, RESOURCES_AT_ONCE
            )
            self._rest(started)
            for resource_id in resource_ids:
                self._expire(resource_id, before_ns, 0)

    def _now_ns(self) -> int | None:
        """The trusted time; how far it has come is kept before anything expires by it."""
        if self._clock is None:
            self._kept_ns = self._store.retention_time_ns()
            self._clock = TrustedClock(self._kept_ns)
        now_ns = self._clock.now_ns()
        ceiling_ns = self._clock.ceiling_ns
        if ceiling_ns and (not self._kept_ns or ceiling_ns - self._kept_ns >= CLOCK_KEPT_EVERY_NS):
            self._store.keep_retention_time(ceiling_ns)
            self._kept_ns = ceiling_ns
        return now_ns

    def _expire_many(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        try:
            if changed is None:
                changed = set(self._store.recent_resources(RESOURCES_MAX))
            while changed and not self._stopped.is_set():
                resource_id = changed.pop()
                self._expire(resource_id, None, self._plan.messages_max)
        except BaseException:
            with self._lock:
                self._changed = None  # once more, all of them
            raise

    def _expire(self, resource_id: str, before_ns: int | None, messages_max: int) -> None:
        more = True
        while more and not self._stopped.is_set():
            started = time.monotonic()
            rows = self._store.oldest_rows(resource_id, before_ns, messages_max, ROWS_AT_ONCE)
            if rows:
                self._expired += self._forget_rows(resource_id, rows)
            more = len(rows) == ROWS_AT_ONCE
            self._rest(started)

    def _rest(self, started: float) -> None:
        """As long as was worked, so that at most half of one core is used."""
        self._stopped.wait(time.monotonic() - started)
