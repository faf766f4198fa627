"""Resident memory a message, with every partition loaded: by default, and with `--memory low`.

Usage: python -m benchmarks.resident_memory [--data-dir DIR] [--json FILE]

The crowded store of `growth` (1,000,000 messages of about 40 tokens in 10,000 resources). One
recall in every resource, with a vector in place of a query; then the whole resident set of the
process is divided by the messages, the model and the libraries included. `anonymous` is the part
that the kernel cannot drop; the rest are mapped files. The budget of partitions is raised, so that
all of them stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.derived_files import make_snapshots
from benchmarks.loaded_partitions import measure_loaded
from benchmarks.report import Bar, Result, flag, run_script
from benchmarks.sized_stores import measured_resource
from benchmarks.store_builder import build, crowd, stores_in

BARS = {"default": 2_400.0, "low": 700.0}
"""Bytes a message, by mode."""


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the store is built and found again", Path
    )
    messages: int = flag(10_000, "messages of the largest resource")
    crowd_messages: int = flag(1_000_000, "messages of all resources")
    crowd_resources: int = flag(10_000, "resources")
    seed: int = flag(7, "of texts and vectors")


def _measure_in(directory: Path, config: Config) -> Result:
    measured = measured_resource(config.messages, config.seed)
    plan = crowd(measured, config.crowd_resources, config.crowd_messages)
    build(directory / "crowded", plan)
    # With little memory the full vectors are in the snapshots, so these come first.
    result = Result(figures={"messages in snapshots": make_snapshots(directory / "crowded")})
    digests: set[str] = set()
    for mode, limit in BARS.items():
        loaded = measure_loaded(directory / "crowded", plan, mode)
        digests.add(loaded.answers)
        messages = config.crowd_messages
        result.figures[f"{mode}: bytes at start"] = loaded.at_start.bytes
        result.figures[f"{mode}: bytes with all partitions"] = loaded.full.bytes
        result.figures[f"{mode}: anonymous bytes a message"] = (
            loaded.full.anonymous_bytes / messages
        )
        name = f"{mode}: resident bytes a message at {messages} messages"
        result.bars.append(Bar(name, loaded.full.bytes / messages, limit))
    if len(digests) != 1:
        raise RuntimeError("the answers depend on the memory mode")
    result.digest = digests.pop()
    return result


def measure(config: Config) -> Result:
    """Build the store if it is not there, measure both modes."""
    with stores_in(config.data_dir) as directory:
        return _measure_in(directory, config)


if __name__ == "__main__":
    SMOKE = {"messages": 1_000, "crowd_messages": 20_000, "crowd_resources": 200}
    run_script(__doc__, Config, measure, smoke=SMOKE)
