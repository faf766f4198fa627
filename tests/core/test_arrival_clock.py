"""The times of messages that come without one: a clock set back a little is held."""

from __future__ import annotations

from semanticrecall_core.messages.arrival_clock import ArrivalClock

HOUR_NS = 3_600 * 10**9
NOW_NS = 1_700_000_000 * 10**9


def test_a_clock_set_back_by_a_day_is_held_and_one_set_back_by_more_is_followed() -> None:
    readings = [
        (NOW_NS, NOW_NS),
        (NOW_NS + 5, NOW_NS + 5),
        (NOW_NS + 5, NOW_NS + 5),
        (NOW_NS - HOUR_NS, NOW_NS + 5),
        (NOW_NS - 24 * HOUR_NS, NOW_NS + 5),
        (NOW_NS + 6, NOW_NS + 6),
        (NOW_NS + 100_000 * HOUR_NS, NOW_NS + 100_000 * HOUR_NS),  # ahead: believed
        (NOW_NS + 7, NOW_NS + 7),  # and given up as soon as it is right again
        (NOW_NS - 26 * HOUR_NS, NOW_NS - 26 * HOUR_NS),
        (-1, -1),  # before 1970
    ]
    given = iter(reading for reading, _ in readings)
    clock = ArrivalClock(lambda: next(given))
    assert [clock() for _ in readings] == [expected for _, expected in readings]
