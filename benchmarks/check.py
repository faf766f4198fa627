"""Is it as quick as it was? Key figures against a stored baseline, as ratios to fixed work.

Usage: python -m benchmarks.check [--rounds 8] [--data-dir DIR] [--strict] [--json FILE]
       python -m benchmarks.check --write-baseline [--repeats 8] [--add]

`make bench-check` and `make bench-baseline` are the same. A check takes about two minutes, a
baseline as often as long as it has repeats. Every figure (`key_figures`) is divided by fixed work
that has no code of ours in it (`calibration`), measured between its calls: a machine that is slower
today is slower in both. `noise_bounds` says what is judged, how often it is wrong, and what it
cannot see; its verdicts are "as before", "slower", "quicker" and "too noisy to say".

It reports and exits with 0. With --strict it exits with 1 where something is slower, and with 2
where there is no baseline to compare with. On another machine, or with other versions of libraries,
than the baseline's, the report says so: ratios carry over in part only.

The baseline (JSON):

  format     1
  machine, versions, command, config    of the run that wrote it
  figures    {name: {"compared_with": [part, ...], "median": ratio, "spread": standard deviation of
             the runs' medians / median, "runs": [[ratio of each round, ...], ...]}}
  parts_ms   {part: median of all rounds}
  answers_digest                        of every round
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, stdev
from typing import Any

from benchmarks.calibration import PARTS, Libraries
from benchmarks.key_figures import FIGURES, Figure, Round, Work, measure_round, prepare
from benchmarks.noise_bounds import FALSE_ALARM_SHARE, REPEATS_MIN, Change, Verdict, change
from benchmarks.processes import end_in_order_when_told
from benchmarks.report import Result, as_json, flag, text_of
from benchmarks.store_builder import stores_in

FORMAT = 1
BASELINE = Path(__file__).parent / "baseline.json"
ROUNDS_MIN = 3
SMOKE = {"messages": 120, "turns": 4, "blocks": 1, "block_calls": 20, "rounds": ROUNDS_MIN}
ROUNDED_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured. A baseline of another configuration is not compared with."""

    messages: int = flag(10_000, "messages of the resource")
    turns: int = flag(120, "calls of each kind in a round")
    blocks: int = flag(12, "blocks of imports and of recalls in flight in a round")
    block_calls: int = flag(24, "messages, and recalls, of a block")
    rounds: int = flag(8, "rounds of a run, each with a sidecar of its own")
    seed: int = flag(7, "of the synthetic chat")

    def work(self) -> Work:
        """Of one round."""
        return Work(self.messages, self.turns, self.blocks, self.block_calls, self.seed)


class Baseline:
    """A baseline as it is stored."""

    def __init__(self, written: Mapping[str, Any]) -> None:
        if written.get("format") != FORMAT:
            raise ValueError(f"the baseline has not format {FORMAT}: write it again")
        self.written = written

    def runs(self, figure: Figure) -> list[list[float]]:
        """Ratios of the rounds of each run; empty where the figure is not in it as it is now."""
        stored = self.written["figures"].get(figure.name)
        if stored is None or tuple(stored["compared_with"]) != figure.parts:
            return []
        runs: list[list[float]] = stored["runs"]
        return runs

    def differences(self, now: Mapping[str, Any]) -> list[str]:
        """What is not as it was when it was written: machine and versions, in words."""
        said = []
        if self.written["machine"] != now["machine"]:
            said.append(f"another machine: the baseline is of {self.written['machine']}")
        before, after = self.written["versions"], now["versions"]
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                said.append(f"{name} {after.get(name)}, in the baseline {before.get(name)}")
        return said


def baseline_of(
    runs: Sequence[Sequence[Round]], config: Config, before: Baseline | None = None
) -> dict[str, Any]:
    """What is stored of these runs, after those of `before`."""
    rounds = [one for run in runs for one in run]
    about = as_json("check", config, Result(digest=rounds[0].digest))
    command = f"{about['command']} --write-baseline --repeats {len(runs)}"
    if before:
        command = f"{before.written['command']}; {command} --add"
    figures = {}
    for figure in FIGURES:
        ratios = [[round(one.ratios[figure.name], ROUNDED_DIGITS) for one in run] for run in runs]
        ratios = [*(before.runs(figure) if before else []), *ratios]
        middles = [median(run) for run in ratios]
        figures[figure.name] = {
            "compared_with": list(figure.parts),
            "median": round(median(middles), ROUNDED_DIGITS),
            "spread": round(stdev(middles) / median(middles), ROUNDED_DIGITS),
            "runs": ratios,
        }
    return {
        "format": FORMAT,
        "machine": about["machine"],
        "versions": about["versions"],
        "command": command,
        "config": about["config"],
        "figures": figures,
        "parts_ms": {
            part: round(1000 * median(one.seconds[part] for one in rounds), ROUNDED_DIGITS)
            for part in PARTS
        },
        "answers_digest": rounds[0].digest,
    }


def compare(baseline: Baseline, run: Sequence[Round]) -> dict[str, Change]:
    """Every figure that is in the baseline, by name."""
    known = [figure for figure in FIGURES if len(baseline.runs(figure)) >= REPEATS_MIN]
    return {
        figure.name: change(
            baseline.runs(figure), [one.ratios[figure.name] for one in run], comparisons=len(known)
        )
        for figure in known
    }


def rows(
    run: Sequence[Round], baseline: Baseline | None, changes: Mapping[str, Change]
) -> list[dict[str, Any]]:
    """The table: a row for each figure."""
    table = []
    for figure in FIGURES:
        row: dict[str, Any] = {
            "figure": figure.name,
            "ms": 1000 * median(one.seconds[figure.name] for one in run),
            "compared with": " + ".join(figure.parts),
            "ratio": median(one.ratios[figure.name] for one in run),
            "baseline": "",
            "change": "",
            "bounds": "",
            "verdict": "no baseline",
        }
        if baseline is not None and figure.name in changes:
            found = changes[figure.name]
            row["baseline"] = baseline.written["figures"][figure.name]["median"]
            row["change"] = f"{found.ratio - 1:+.0%}"
            row["bounds"] = f"{found.low - 1:+.0%} to {found.high - 1:+.0%}"
            row["verdict"] = str(found.verdict)
        table.append(row)
    return table


def measure_run(stores: Path, config: Config, libraries: Libraries) -> list[Round]:
    """All rounds of a run.

    Raises:
        RuntimeError: two rounds were answered differently.
    """
    run: list[Round] = []
    for number in range(config.rounds):
        started = time.perf_counter()
        run.append(measure_round(stores, config.work(), libraries))
        seconds = time.perf_counter() - started
        print(f"round {number + 1} of {config.rounds}: {seconds:.0f} s", flush=True)
        if run[-1].digest != run[0].digest:
            raise RuntimeError("the same queries were answered differently")
    return run


def _stored(path: Path) -> Baseline | None:
    return Baseline(json.loads(path.read_text())) if path.exists() else None


def _write_baseline(path: Path, runs: Sequence[Sequence[Round]], config: Config, add: bool) -> int:
    before = _stored(path) if add else None
    written = baseline_of(runs, config, before)
    if before is not None:
        different = before.differences(written)
        if different or before.written["config"] != written["config"]:
            print("Not added; not the same: " + "; ".join(different or ["configuration"]))
            return 2
    path.write_text(json.dumps(written, indent=1) + "\n")
    for name, figure in written["figures"].items():
        print(f"{name:<44}{figure['median']:>8.2f}  spread {figure['spread']:.1%}")
    print(f"Written to {path}.")
    return 0


def _report(path: Path, run: Sequence[Round], config: Config, smoke: bool) -> dict[str, Any]:
    """The result as it is written; its figures hold what differs from the baseline."""
    baseline = _stored(path)
    result = Result(digest=run[0].digest)
    changes: dict[str, Change] = {}
    now = as_json("check", config, result)
    if baseline is None:
        result.figures["baseline"] = "none: make bench-baseline writes one"
    elif baseline.written["config"] != now["config"]:
        result.figures["baseline"] = "of another configuration; not compared"
    else:
        changes = compare(baseline, run)
        result.figures["share of checks that report a change falsely, at most"] = FALSE_ALARM_SHARE
        for number, difference in enumerate(baseline.differences(now)):
            result.figures[f"not as in the baseline ({number + 1})"] = difference
        if baseline.written["answers_digest"] != result.digest:
            result.figures["answers"] = "not those of the baseline: more than speed has changed"
    result.tables["figures"] = rows(run, baseline, changes)
    result.tables["parts"] = [
        {"part": part, "ms": 1000 * median(one.seconds[part] for one in run)} for part in PARTS
    ]
    return as_json("check", config, result, smoke=SMOKE if smoke else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for field in dataclasses.fields(Config):
        parser.add_argument(
            "--" + field.name.replace("_", "-"), type=int, help=field.metadata["help"]
        )
    parser.add_argument("--data-dir", type=Path, help="where the store is built and found again")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="default: the project's")
    parser.add_argument("--write-baseline", action="store_true", help="measure and store it")
    parser.add_argument("--repeats", type=int, default=8, help="runs of a baseline (default: 8)")
    parser.add_argument("--add", action="store_true", help="add the runs to those that are stored")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where it is slower")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds, for tests")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    adds = arguments.add and arguments.baseline.exists()
    if arguments.write_baseline and not adds and arguments.repeats < REPEATS_MIN:
        parser.error(f"--repeats: a baseline has at least {REPEATS_MIN} runs")
    if arguments.write_baseline and arguments.smoke and arguments.baseline == BASELINE:
        parser.error("--smoke: the project's baseline is of a full run; name another file")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        parser.error(f"--json: there is no directory {arguments.json.parent}")
    return arguments


def _config(arguments: argparse.Namespace) -> Config:
    names = [field.name for field in dataclasses.fields(Config)]
    given = {n: getattr(arguments, n) for n in names if getattr(arguments, n) is not None}
    config = Config(**{**(SMOKE if arguments.smoke else {}), **given})
    if config.rounds < ROUNDS_MIN:
        raise SystemExit(f"--rounds: at least {ROUNDS_MIN}")
    return config


def main() -> int:
    """Command line; returns the exit status."""
    arguments = _arguments()
    end_in_order_when_told()
    config = _config(arguments)
    with stores_in(arguments.data_dir) as stores:
        prepare(stores, config.work())
        libraries = Libraries.load(config.messages, seed=config.seed)
        if arguments.write_baseline:
            runs = [measure_run(stores, config, libraries) for _ in range(arguments.repeats)]
            return _write_baseline(arguments.baseline, runs, config, arguments.add)
        run = measure_run(stores, config, libraries)
    written = _report(arguments.baseline, run, config, arguments.smoke)
    print(text_of(written))
    if arguments.json:
        arguments.json.write_text(json.dumps(written, indent=2) + "\n")
    verdicts = [row["verdict"] for row in written["tables"]["figures"]]
    if not arguments.strict:
        return 0
    if "no baseline" in verdicts:
        return 2
    return int(Verdict.SLOWER in verdicts)


if __name__ == "__main__":
    sys.exit(main())
