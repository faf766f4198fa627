"""The clock of the retention: whatever the wall clock does, nothing expires that is not old."""

from __future__ import annotations

import pytest

from semanticrecall_core.engine.retention import TrustedClock

SECOND = 1_000_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY
NOW = 1_790_000_000 * SECOND  # in 2026


class Clocks:
    """A wall clock that is set, and a monotonic one that only goes."""

    def __init__(self, wall_ns: int = NOW) -> None:
        self.wall_ns = wall_ns
        self.monotonic_ns = 5 * DAY

    def clock(self, kept_ns: int = 0) -> TrustedClock:
        return TrustedClock(kept_ns, lambda: self.wall_ns, lambda: self.monotonic_ns)

    def pass_by(self, ns: int) -> None:
        self.wall_ns += ns
        self.monotonic_ns += ns


def test_it_follows_a_wall_clock_that_is_right() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    assert clock.now_ns() == NOW
    for _ in range(10):
        clocks.pass_by(HOUR)
        assert clock.now_ns() == clocks.wall_ns


@pytest.mark.parametrize("jump", [2 * HOUR, DAY, 10 * YEAR])
def test_a_jump_forward_is_gone_after_at_twice_the_speed_and_not_at_once(jump: int) -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clock.now_ns()
    clocks.wall_ns += jump
    assert clock.now_ns() == NOW
    clocks.pass_by(HOUR)
    assert clock.now_ns() == NOW + min(jump + HOUR, 2 * HOUR)


def test_a_wall_clock_that_is_right_again_is_followed_at_once_downwards() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clock.now_ns()
    clocks.wall_ns += 10 * YEAR
    clocks.pass_by(HOUR)
    assert clock.now_ns() == NOW + 2 * HOUR
    clocks.wall_ns -= 10 * YEAR
    assert clock.now_ns() == NOW + HOUR


def test_a_clock_that_is_behind_makes_nothing_older() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clock.now_ns()
    clocks.wall_ns -= YEAR
    assert clock.now_ns() == NOW - YEAR


def test_a_restart_goes_on_where_it_was_and_not_where_the_wall_clock_is() -> None:
    clocks = Clocks()
    first = clocks.clock()
    first.now_ns()
    clocks.wall_ns += 10 * YEAR
    again = clocks.clock(first.ceiling_ns)
    assert again.now_ns() == NOW
    clocks.pass_by(SECOND)
    assert again.now_ns() == NOW + 2 * SECOND


def test_before_a_wall_clock_is_plausible_nothing_is_known() -> None:
    clocks = Clocks(wall_ns=3 * DAY)  # in 1970, as where a battery is empty
    clock = clocks.clock()
    assert clock.now_ns() is None
    assert clock.ceiling_ns == 0
    clocks.wall_ns = NOW
    assert clock.now_ns() == NOW
