"""F11, retention: whatever the wall clock does, what expires is what the trusted time allows.

The clock of the model is told how much time truly passed. Jumps of a day and of ten years, both
ways, come between, and restarts; only what a restart kept is known afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from semanticrecall_core.engine.retention import (
    CLOCK_KEPT_EVERY_NS,
    Retention,
    RetentionPlan,
    TrustedClock,
)
from semanticrecall_core.types.values import CallBudget, ForgetTarget, ListQuery, MessageDraft, Role
from support.model_store import ModelStore

SECOND_NS = 10**9
HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
YEAR_NS = 365 * DAY_NS
START_NS = 1_800_000_000 * SECOND_NS
AGE_NS = 30 * DAY_NS
JUMPS = (DAY_NS, -DAY_NS, 10 * YEAR_NS, -10 * YEAR_NS, HOUR_NS // 2, -40 * SECOND_NS)

passes = st.tuples(st.just("pass"), st.integers(1, 3 * HOUR_NS))
jumps = st.tuples(st.just("jump"), st.sampled_from(JUMPS))
restarts = st.tuples(st.just("restart"), st.integers(0, 3 * DAY_NS))
steps = st.lists(st.one_of(passes, jumps, restarts), max_size=40)


@dataclass
class Machine:
    """A wall clock that may be wrong, and a monotonic clock that is not."""

    true_ns: int = START_NS
    wrong_by_ns: int = 0
    uptime_ns: int = 0

    def wall_ns(self) -> int:
        return self.true_ns + self.wrong_by_ns

    def monotonic_ns(self) -> int:
        return self.uptime_ns

    def pass_time(self, by_ns: int) -> None:
        self.true_ns += by_ns
        self.uptime_ns += by_ns


@dataclass
class World:
    """A store with one message an hour over three months, and the retention over it."""

    machine: Machine = field(default_factory=Machine)
    store: ModelStore = field(
        default_factory=lambda: ModelStore(generation="g", clock=lambda: START_NS)
    )
    times: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        drafts = []
        for hours in range(0, 24 * 90, 24):
            name = f"m{hours}"
            self.times[name] = START_NS - hours * HOUR_NS
            drafts.append(
                MessageDraft(name, "t", Role.USER, text=name, create_time_ns=self.times[name])
            )
        self.store.append("u", drafts, CallBudget.of_seconds(60))
        self.begin()

    def begin(self) -> None:
        """A process: it knows what the record kept."""
        machine = self.machine
        clock = TrustedClock(self.store.retention_time_ns(), machine.wall_ns, machine.monotonic_ns)
        self.retention = Retention(self.store, self.forget, RetentionPlan(age_ns=AGE_NS), clock)

    def forget(self, resource_id: str, rows: tuple[tuple[int, int], ...]) -> int:
        return len(self.store.forget(resource_id, ForgetTarget(rows=rows)).seqs)

    def left(self) -> set[str]:
        return {m.id for m in self.store.list_messages(ListQuery("u", None, 10_000))}

    def older_than(self, age_ns: int, now_ns: int) -> set[str]:
        return {name for name, time_ns in self.times.items() if time_ns < now_ns - age_ns}


@settings(max_examples=150, deadline=None)
@given(steps)
def test_a_clock_that_jumps_expires_no_more_than_the_time_that_passed(
    moves: list[tuple[str, int]],
) -> None:
    world = World()
    world.retention.work()
    assert world.left() == set(world.times) - world.older_than(AGE_NS, START_NS)
    ran_ns = 0
    for kind, by_ns in moves:
        if kind == "pass":
            world.machine.pass_time(by_ns)
            ran_ns += by_ns
        elif kind == "jump":
            world.machine.wrong_by_ns += by_ns
        else:
            world.machine.true_ns += by_ns
            world.machine.uptime_ns = 0
            world.begin()
        world.retention.work()
        # Twice the time that the process ran is the most that it can have come to believe.
        expired = set(world.times) - world.left()
        assert expired <= world.older_than(AGE_NS, START_NS + 2 * ran_ns)
    # The clock is right again: what is due expires as soon as the trusted time has caught up.
    world.machine.wrong_by_ns = 0
    missing_ns = world.machine.true_ns - START_NS
    for _ in range(4):
        world.machine.pass_time(missing_ns // 2 + CLOCK_KEPT_EVERY_NS)
        world.retention.work()
    now_ns = world.machine.true_ns
    assert set(world.times) - world.left() >= world.older_than(AGE_NS, now_ns)
    assert world.left() >= set(world.times) - world.older_than(
        AGE_NS, max(now_ns, START_NS + 2 * ran_ns)
    )


@settings(max_examples=200, deadline=None)
@given(steps)
def test_the_trusted_time_is_never_ahead_of_the_wall_clock(moves: list[tuple[str, int]]) -> None:
    machine = Machine()
    clock = TrustedClock(0, machine.wall_ns, machine.monotonic_ns)
    assert clock.now_ns() == START_NS
    for kind, by_ns in moves:
        if kind == "jump":
            machine.wrong_by_ns += by_ns
        else:
            machine.pass_time(by_ns)
        ceiling_ns = clock.ceiling_ns
        now_ns = clock.now_ns()
        assert now_ns is not None
        assert now_ns <= machine.wall_ns()
        assert clock.ceiling_ns >= ceiling_ns
        if machine.wall_ns() <= ceiling_ns:
            assert now_ns == machine.wall_ns(), "downwards it follows at once"
    for _ in range(3):
        machine.wrong_by_ns = 0
        machine.pass_time(40 * 3 * DAY_NS)
        clock.now_ns()
    assert clock.now_ns() == machine.true_ns


def test_a_machine_that_does_not_know_the_time_expires_nothing() -> None:
    machine = Machine(true_ns=START_NS, wrong_by_ns=-START_NS)
    clock = TrustedClock(0, machine.wall_ns, machine.monotonic_ns)
    assert clock.now_ns() is None
    assert clock.ceiling_ns == 0
    machine.wrong_by_ns = 0
    assert clock.now_ns() == START_NS
