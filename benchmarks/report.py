"""What every benchmark prints and writes: its configuration, latencies, ratios against their bars.

The JSON of a result:

  script, command, machine, versions, config
                  `command` repeats the run; "smoke": true where it proves nothing
  skipped         why nothing was measured; empty where something was
  latencies_ms    percentiles of each series of calls
  figures         everything else that was counted or timed
  bars            [{name, measured, limit, rule, met}]; rule is "at most" or "at least"
  tables          {name: [row, ...]}; a row is an object of columns, the same in every row
  charts          how `benchmarks.plot` draws them: the fields of `Chart`
  answers_digest  16 hexadecimal digits over the answers: equal runs give equal answers
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import inspect
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from benchmarks.measure import Latency, machine
from benchmarks.processes import end_in_order_when_told

LIBRARIES = ("grpcio", "protobuf", "faiss-cpu", "onnxruntime", "apsw-sqlite3mc")
DIGEST_DIGITS = 16
SMOKE_STORES = "smoke"
"""Where, in the directory of stores, those of smoke runs are."""


class Config(Protocol):
    """A frozen dataclass: what is measured. Each field is a flag; `help` is in its metadata."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio and the limit it is held to.

    Attributes:
        name: what is compared with what.
        measured: the ratio in this run.
        limit: the bar.
        at_most: the ratio must not be above the bar; False: not below.
    """

    name: str
    measured: float
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """The bar holds in this run."""
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def as_json(self) -> dict[str, Any]:
        """As it stands in a result."""
        return {
            "name": self.name,
            "measured": self.measured,
            "limit": self.limit,
            "rule": "at most" if self.at_most else "at least",
            "met": self.met,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture of a table: one line, or one group of bars, for each value of `by`.

    Attributes:
        name: of the files, without ending.
        table: whose rows are drawn; those with `only` as their values, where it is given.
        x, y: columns. by: columns whose values, joined, name a line.
        x_label, y_label: with units.
        kind: "line" or "bar".
    """

    name: str
    title: str
    table: str
    x: str
    y: str
    by: tuple[str, ...] = ()
    x_label: str
    y_label: str
    kind: str = "line"
    x_log: bool = False
    y_log: bool = False
    only: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """What a script measured.

    Attributes:
        seconds: of every call, by series.
        figures: other numbers and words, by name.
        tables: measured rows, by name of the table; see `Chart`.
        skipped: why nothing was measured, in a sentence.
        digest: of the answers.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    skipped: str = ""
    digest: str = ""

    def p50_s(self, series: str) -> float:
        """Median of a series, in seconds."""
        return Latency.of_seconds(self.seconds[series]).p50_ms / 1000

    def p99_s(self, series: str) -> float:
        """The 99th percentile of a series, in seconds."""
        return Latency.of_seconds(self.seconds[series]).p99_ms / 1000


class Digest:
    """Collects answers: the ids recalled, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, ids: Iterable[str]) -> None:
        """One answer."""
        self._hash.update(("|".join(ids) + "\n").encode())

    def text(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()[:DIGEST_DIGITS]


def as_json(
    script: str, config: Config, result: Result, *, smoke: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The result as it is written.

    Args:
        smoke: of a smoke run, what `--smoke` sets.
    """
    return {
        "script": script,
        "command": _command(script, config, smoke),
        "smoke": smoke is not None,
        "machine": machine(),
        "versions": {name: version(name) for name in LIBRARIES},
        "config": _plain(dataclasses.asdict(config)),
        "skipped": result.skipped,
        "latencies_ms": {
            name: dataclasses.asdict(Latency.of_seconds(seconds))
            for name, seconds in result.seconds.items()
        },
        "figures": result.figures,
        "bars": [bar.as_json() for bar in result.bars],
        "tables": result.tables,
        "charts": [dataclasses.asdict(chart) for chart in result.charts],
        "answers_digest": result.digest,
    }


def text_of(written: dict[str, Any]) -> str:
    """The result for people."""
    lines = [f"{written['script']}  {written['machine']}"]
    lines.append("config: " + ", ".join(f"{k}={v}" for k, v in written["config"].items()))
    if written["smoke"]:
        lines.append("A smoke run: it shows that everything runs; its figures mean nothing.")
    if written["skipped"]:
        return "\n".join([*lines, f"SKIPPED: {written['skipped']}"])
    if written["latencies_ms"]:
        lines.append(f"\n{'':<44}{'calls':>7}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}")
    for name, latency in written["latencies_ms"].items():
        figures = (latency["p50_ms"], latency["p95_ms"], latency["p99_ms"])
        lines.append(f"{name:<44}{latency['count']:>7}" + "".join(f"{f:>10.3f}" for f in figures))
    lines.append("")
    for name, figure in written["figures"].items():
        shown = f"{figure:.4g}" if isinstance(figure, float) else str(figure)
        lines.append(f"{name:<52}{shown:>12}")
    for name, rows in written["tables"].items():
        lines += ["", name, *_table(rows)]
    lines.append("")
    for bar in written["bars"]:
        met = "met" if bar["met"] else "NOT MET"
        lines.append(
            f"{bar['name']}: {bar['measured']:.2f} (bar {bar['rule']} {bar['limit']:g}) {met}"
        )
    lines.append(f"answers {written['answers_digest']}")
    return "\n".join(lines)


def run_script(
    document: str | None,
    config_class: type[C],
    measure: Callable[[C], Result],
    *,
    smoke: Mapping[str, Any] | None = None,
) -> None:
    """The command line of a benchmark: flags from the fields of its configuration, and --json.

    Args:
        document: the script's docstring; its first line describes it.
        smoke: what `--smoke` sets where the command line does not: a run of seconds, for tests.
    """
    title = (document or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=title)
    for field_ in dataclasses.fields(config_class):
        parser.add_argument(
            "--" + field_.name.replace("_", "-"),
            type=field_.metadata.get("type", int),
            default=argparse.SUPPRESS,
            help=f"{field_.metadata.get('help', '')} (default: {field_.default})",
        )
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    if smoke is not None:
        parser.add_argument("--smoke", action="store_true", help="a run of seconds, for tests")
    chosen = vars(parser.parse_args())
    file: Path | None = chosen.pop("json")
    if file is not None and not file.parent.is_dir():
        parser.error(f"--json: there is no directory {file.parent}")
    smoke = smoke or {} if chosen.pop("smoke", False) else None
    config = config_class(**{**(smoke or {}), **chosen})
    script = Path(inspect.getfile(config_class)).stem
    end_in_order_when_told()
    result = measure(config if smoke is None else _aside(config))
    written = as_json(script, config, result, smoke=smoke)
    print(text_of(written))
    if file is not None:
        file.write_text(json.dumps(written, indent=2) + "\n")


def flag(default: Any, help_text: str, type_: Callable[[str], Any] = int) -> Any:
    """A field of a configuration."""
    return dataclasses.field(default=default, metadata={"help": help_text, "type": type_})


def _aside(config: C) -> C:
    """With stores of its own: large ones that are kept in `data_dir` are not built anew for it."""
    kept: Path | None = getattr(config, "data_dir", None)
    return config if kept is None else dataclasses.replace(config, data_dir=kept / SMOKE_STORES)


def _command(script: str, config: Config, smoke: Mapping[str, Any] | None) -> str:
    """What repeats a run: the flags that are not as they are without them."""
    parts = [f"python -m benchmarks.{script}"]
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        if value != (smoke or {}).get(field_.name, field_.default):
            parts.append(f"--{field_.name.replace('_', '-')} {shlex.quote(str(value))}")
    return " ".join(parts if smoke is None else [*parts, "--smoke"])


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows under the names of their columns, aligned."""
    if not rows:
        return []
    cells = [list(rows[0])] + [
        [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    ]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
