"""How long a start takes, and the first recalls after it: snapshots there, missing and damaged.

Usage: python -m benchmarks.start [--data-dir DIR] [--starts 3] [--json FILE]

The crowded store of `growth` (1,000,000 messages in 10,000 resources), with snapshots of all of it.
Each state of the snapshots is started several times; `first_recalls` says what is asked then. The
seconds of a start are those from exec to the health service's SERVING. "Warm p99" has two
readings, and both are judged: a first recall embeds its query, so the like of it is a new query; a
warm recall in the words of `hot_path` is one asked again. Only snapshots that are there are held to
the bars: without them a start may be slower, but the answers must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.derived_files import SnapshotState, keep_snapshots, make_snapshots, set_snapshots
from benchmarks.first_recalls import ASKED_AGAIN, FIRST, NEW_QUERY, Starts, measure_starts
from benchmarks.report import Bar, Digest, Result, flag, run_script
from benchmarks.sized_stores import measured_resource
from benchmarks.store_builder import build, crowd, stores_in

START_BAR_S = 3.0
FIRST_BAR = 2.0
STATES: tuple[SnapshotState, ...] = ("there", "missing", "damaged")


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the store is built and found again", Path
    )
    messages: int = flag(10_000, "messages of the largest resource")
    crowd_messages: int = flag(1_000_000, "messages of all resources")
    crowd_resources: int = flag(10_000, "resources")
    resources_asked: int = flag(50, "resources that are recalled from after each start")
    starts: int = flag(3, "starts for each state of the snapshots")
    seed: int = flag(7, "of texts and vectors")


def _measure_state(
    directory: Path, kept: Path, config: Config, result: Result, state: SnapshotState
) -> list[list[str]]:
    """All starts of a state; the ids of the answers after the last."""

    def before(number: int) -> None:
        if state != "there" or number == 0:  # sound ones are as they were; they are large
            set_snapshots(directory, kept, state)

    starts = Starts(
        store=directory,
        label=state,
        starts=config.starts,
        resources_asked=config.resources_asked,
        seed=config.seed,
    )
    started = measure_starts(starts, result, before)
    result.figures[f"{state}: resources in memory when it serves"] = started.in_memory
    result.figures[f"{state}: start, seconds"] = started.start_s
    result.figures[f"{state}: very first recall, ms"] = started.very_first_ms
    first = result.p50_s(f"{state}: {FIRST}")
    for series in (NEW_QUERY, ASKED_AGAIN):
        ratio = first / result.p99_s(f"{state}: {series}")
        name = f"{state}: first recall of a resource p50 / p99 of {series}"
        if state == "there":
            result.bars.append(Bar(name, ratio, FIRST_BAR))
        else:
            result.figures[name] = ratio
    if state == "there":
        result.bars.append(Bar("there: start, seconds", started.start_s, START_BAR_S))
    return started.ids


def _measure_in(directory: Path, config: Config) -> Result:
    measured = measured_resource(config.messages, config.seed)
    store = directory / "crowded"
    build(store, crowd(measured, config.crowd_resources, config.crowd_messages))
    result, digest = Result(), Digest()
    result.figures["messages in snapshots"] = make_snapshots(store)
    kept = directory / "snapshots-kept"
    keep_snapshots(store, kept)
    answers = [_measure_state(store, kept, config, result, state) for state in STATES]
    if any(other != answers[0] for other in answers):
        raise RuntimeError("the answers depend on the snapshots")
    for ids in answers[0]:
        digest.add(ids)
    set_snapshots(store, kept, "there")
    result.digest = digest.text()
    return result


def measure(config: Config) -> Result:
    """Build the store if it is not there, start sidecars, measure."""
    with stores_in(config.data_dir) as directory:
        return _measure_in(directory, config)


if __name__ == "__main__":
    SMOKE = {
        "messages": 1_000,
        "crowd_messages": 20_000,
        "crowd_resources": 200,
        "resources_asked": 20,
        "starts": 1,
    }
    run_script(__doc__, Config, measure, smoke=SMOKE)
