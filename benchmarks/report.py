"""What every benchmark prints and writes: its configuration, latencies, ratios against their bars.

The JSON of a result:

  script, machine, versions, config
  latencies_ms    percentiles of each series of calls
  figures         everything else that was counted or timed
  bars            [{name, measured, limit, rule, met}]; rule is "at most" or "at least"
  answers_digest  16 hexadecimal digits over the answers: equal runs give equal answers
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from benchmarks.measure import Latency, machine

LIBRARIES = ("grpcio", "protobuf", "faiss-cpu", "onnxruntime", "apsw")
DIGEST_DIGITS = 16


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


@dataclass(slots=True)
class Result:
    """What a script measured.

    Attributes:
        seconds: of every call, by series.
        figures: other numbers and words, by name.
        digest: of the answers.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
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


def as_json(script: str, config: Config, result: Result) -> dict[str, Any]:
    """The result as it is written."""
    return {
        "script": script,
        "machine": machine(),
        "versions": {name: version(name) for name in LIBRARIES},
        "config": _plain(dataclasses.asdict(config)),
        "latencies_ms": {
            name: dataclasses.asdict(Latency.of_seconds(seconds))
            for name, seconds in result.seconds.items()
        },
        "figures": result.figures,
        "bars": [bar.as_json() for bar in result.bars],
        "answers_digest": result.digest,
    }


def text_of(written: dict[str, Any]) -> str:
    """The result for people."""
    lines = [f"{written['script']}  {written['machine']}"]
    lines.append("config: " + ", ".join(f"{k}={v}" for k, v in written["config"].items()))
    if written["latencies_ms"]:
        lines.append(f"\n{'':<44}{'calls':>7}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}")
    for name, latency in written["latencies_ms"].items():
        figures = (latency["p50_ms"], latency["p95_ms"], latency["p99_ms"])
        lines.append(f"{name:<44}{latency['count']:>7}" + "".join(f"{f:>10.3f}" for f in figures))
    lines.append("")
    for name, figure in written["figures"].items():
        shown = f"{figure:.4g}" if isinstance(figure, float) else str(figure)
        lines.append(f"{name:<52}{shown:>12}")
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
    arguments: Sequence[str] | None = None,
) -> None:
    """The command line of a benchmark: flags from the fields of its configuration, and --json.

    Args:
        document: the script's docstring; its first line describes it.
        arguments: of the command line; None takes the process's own.
    """
    title = (document or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=title)
    for field_ in dataclasses.fields(config_class):
        parser.add_argument(
            "--" + field_.name.replace("_", "-"),
            type=field_.metadata.get("type", int),
            default=field_.default,
            help=f"{field_.metadata.get('help', '')} (default: {field_.default})",
        )
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    chosen = vars(parser.parse_args(arguments))
    file: Path | None = chosen.pop("json")
    config = config_class(**chosen)
    written = as_json(Path(inspect.getfile(config_class)).stem, config, measure(config))
    print(text_of(written))
    if file is not None:
        file.write_text(json.dumps(written, indent=2) + "\n")


def flag(default: Any, help_text: str, type_: Callable[[str], Any] = int) -> Any:
    """A field of a configuration."""
    return dataclasses.field(default=default, metadata={"help": help_text, "type": type_})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
