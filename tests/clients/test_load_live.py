"""What is shown while a load goes: the last second that all processes told of, and nothing else."""

from __future__ import annotations

import errno
import io

import pytest
from rich.console import Console

from semanticrecall.load import live
from semanticrecall.load.live import LatestSecond, LiveObserver
from support.loads import worker_second


def observed() -> tuple[LiveObserver, io.StringIO]:
    written = io.StringIO()
    return LiveObserver(Console(file=written, width=80)), written


def test_a_second_is_whole_when_all_processes_told_of_it() -> None:
    latest = LatestSecond(2)
    assert not latest.add(0, worker_second(0, [1_000]))
    assert latest.value is None
    assert not latest.add(0, worker_second(1, [2_000] * 2))
    assert latest.add(1, worker_second(0, [3_000]))
    assert latest.value is not None
    assert (latest.value.second, latest.value.finished_per_s) == (0, 2)
    assert latest.add(1, worker_second(1, [4_000] * 3))
    assert (latest.value.second, latest.value.finished_per_s) == (1, 5)
    assert latest.value.p50_ms["recall"] == pytest.approx(4.0, rel=1e-3)


def test_a_second_that_one_process_left_out_is_passed_over() -> None:
    latest = LatestSecond(2)
    latest.add(0, worker_second(0))
    latest.add(0, worker_second(1))
    assert latest.add(1, worker_second(1))
    assert not latest.add(1, worker_second(0))
    assert latest.value is not None
    assert latest.value.second == 1


def test_where_nothing_can_be_drawn_it_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PLAIN_LINE_SECONDS", 0.0)
    observer, written = observed()
    with observer:
        observer.phase("preparing")
        observer.progress(30, 120)
        observer.phase("100 calls/s", seconds=30.0, processes=2)
        observer.second(0, worker_second(0, [1_000] * 30, in_flight=2, errors={"INTERNAL": 2}))
        observer.second(1, worker_second(0, [], [8_000] * 9, in_flight=1, errors={"INTERNAL": 1}))
        observer.note("something else")
        observer.phase("cleaning up")
        observer.progress(100, 0)
    lines = written.getvalue().splitlines()
    assert lines[0] == "preparing"
    assert lines[1].startswith("preparing: 30 of 120 messages, ")
    assert lines[2] == "100 calls/s: 0 of 30 s"
    assert lines[3] == (
        "100 calls/s: 0 of 30 s, 39 calls/s started, 39 ended, 3 under way, "
        "recall p50 1.00 ms p99 1.00 ms, index p50 8.00 ms p99 8.00 ms, failed INTERNAL 3"
    )
    assert lines[4:] == ["something else", "cleaning up", "cleaning up: 100 resources"]


def test_lines_come_now_and_then_only() -> None:
    observer, written = observed()
    observer.phase("preparing")
    for done in range(1_000):
        observer.progress(done, 1_000)
    assert written.getvalue() == "preparing\n"


def test_on_a_terminal_it_is_drawn_in_place_and_goes() -> None:
    written = io.StringIO()
    console = Console(file=written, width=80, force_terminal=True, color_system=None)
    with LiveObserver(console) as observer:
        observer.phase("100 calls/s", seconds=30.0, processes=1)
        observer.second(0, worker_second(0, [1_000] * 30, errors={"UNAVAILABLE": 4}))
        with console.capture() as drawn:
            console.print(observer.drawn())
        observer.note("something else")
    text = drawn.get()
    assert "100 calls/s: 0 of 30 s" in text
    assert "30 calls/s started, 30 ended, 0 under way" in text
    assert "recall p50 1.00 ms p99 1.00 ms" in text
    assert "failed UNAVAILABLE 4" in text
    assert "something else" in written.getvalue()
    # What was drawn last is wiped out, line by line.
    assert written.getvalue().endswith("\x1b[1A\x1b[2K")


class Gone(io.StringIO):
    """A pipe that nobody reads any more, or a terminal that was closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("is_terminal", [False, True])
def test_where_nobody_reads_it_is_silent_and_goes_on(is_terminal: bool) -> None:
    asked: list[None] = []

    class Closed(Console):
        def on_broken_pipe(self) -> None:
            asked.append(None)
            raise OSError(errno.EIO, "closed")

    console = Closed(file=Gone(), width=80, force_terminal=is_terminal)
    with LiveObserver(console) as observer:
        observer.phase("100 calls/s", seconds=30.0, processes=1)
        observer.second(0, worker_second(0, [1_000] * 30))
        observer.note("something else")
        observer.phase("cleaning up")
    # Not rich's own way out, where lines are written: it ends the program.
    assert bool(asked) == is_terminal
