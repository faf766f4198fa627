"""The fixed work that figures are compared with: every part is done, and its time is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import calibration
from benchmarks.calibration import IN_FLIGHT, PARTS, SYNCED_BYTES, Calibration, Libraries, Times

ANSWER_BYTES = 300


class Answers:
    """A gRPC method: answers each call with its request; knows how many were under way."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most = 0

    def future(self, request: bytes, timeout: float) -> Answer:
        """Begin a call."""
        assert timeout > 0
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return Answer(self, request)


class Answer:
    """A call under way."""

    def __init__(self, method: Answers, request: bytes) -> None:
        self._method = method
        self._request = request

    def result(self) -> bytes:
        """End it."""
        self._method.under_way -= 1
        return self._request


@pytest.mark.parametrize(("count", "most"), [(0, 0), (3, 3), (8, 8), (50, 8)])
def test_no_more_calls_than_meant_are_under_way(count: int, most: int) -> None:
    method = Answers()
    requests = [b"%d" % number for number in range(count)]
    assert calibration.in_flight(method, requests) == requests
    assert (method.most, method.under_way) == (most, 0)
    assert most <= IN_FLIGHT


def test_medians_are_those_of_each_name() -> None:
    times = Times()
    for seconds in (3.0, 1.0, 2.0):
        times.add("a", seconds)
    times.add("b", 7.0)
    assert times.medians() == {"a": 2.0, "b": 7.0}


def times_of(**seconds: list[float]) -> Times:
    """Calls of these seconds."""
    times = Times()
    for name, values in seconds.items():
        for value in values:
            times.add(name, value)
    return times


def test_a_ratio_is_that_of_calls_to_the_parts_beside_them() -> None:
    # The second call fell into a slow moment, and so did the parts beside it.
    times = times_of(figure=[6.0, 30.0, 9.0], part=[2.0, 10.0, 3.0], other=[1.0, 5.0, 1.5])
    assert times.ratio("figure", ["part", "other"]) == pytest.approx(2.0)
    assert times.ratio("figure", ["part", "part"]) == pytest.approx(1.5)


def test_where_a_part_was_called_more_often_medians_are_divided() -> None:
    times = times_of(figure=[6.0], part=[1.0, 2.0, 3.0], other=[1.0])
    assert times.ratio("figure", ["part", "other"]) == pytest.approx(2.0)


def test_a_call_is_timed_and_answers() -> None:
    times, called = Times(), list[int]()

    def call() -> int:
        called.append(1)
        return 5

    assert times.time("a", call) == 5
    assert called == [1]
    assert times.medians()["a"] > 0


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    """For a scan of 50 rows."""
    return Libraries.load(50, seed=3)


@pytest.fixture
def times() -> Times:
    """None yet."""
    return Times()


@pytest.fixture
def parts(libraries: Libraries, times: Times, tmp_path: Path) -> Iterator[Calibration]:
    """All parts, with an echo server."""
    with calibration.calibrating(libraries, times, tmp_path, ANSWER_BYTES) as found:
        yield found


def test_every_part_is_measured(
    parts: Calibration, libraries: Libraries, times: Times, tmp_path: Path
) -> None:
    vector = parts.embed("Where did we meet?")
    assert vector.shape == (384,)
    assert float(vector @ vector) == pytest.approx(1, abs=1e-3)
    parts.scan(vector)
    parts.echo(b"request")
    parts.fsync()
    parts.fsync()
    parts.embed_all(["one text", "another", "a third"])
    parts.echo_many([b"request"] * 20)
    calibration.start_process(libraries, times)
    measured = times.medians()
    assert set(measured) == set(PARTS)
    assert all(seconds > 0 for seconds in measured.values())
    assert (tmp_path / "calibration").stat().st_size == 2 * SYNCED_BYTES
