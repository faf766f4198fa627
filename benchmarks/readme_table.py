"""The README's figures as Markdown: a picture, a table, the commands that repeat it.

Everything here follows from stored results (the JSON of `report.py`, by script) and nothing else.
A column is a system, a row what was measured; what only SemanticRecall was asked for stands in its
column alone. In a row of milliseconds or seconds the lowest is bold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROWS = {
    "side_by_side": "recalls, turns, restart, memory and disk, beside the others",
    "first_table": "asked again; a recall / its parts",
    "growth": "a user among others / alone",
    "import_speed": "imports",
    "start": "start",
    "resident_memory": "memory a message",
}
"""Which rows of the table are whose."""

SCRIPTS = tuple(ROWS)
"""The scripts whose results are shown, in the order in which they run."""

OURS = "SemanticRecall"
WITH_NEIGHBOURS = f"{OURS}, with neighbours"
DOCUMENT = "docs/side-by-side.md"
FAIRNESS = "docs/decisions/0016-side-by-side.md"
TIME_SPENT = "docs/decisions/0014-where-a-recall-spends-its-time.md"
Results = Mapping[str, Mapping[str, Any]]


class ResultsDoNotMatchError(ValueError):
    """The results cannot stand in one table: one is missing, empty or of another machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        label: what was measured.
        cells: by system; a system that is not there has an empty cell.
        values: by system, for the lowest; empty where nothing is compared.
    """

    label: str
    cells: Mapping[str, str]
    values: Mapping[str, float] = field(default_factory=dict)


def block_of(results: Results, picture: str) -> str:
    """What stands between the README's markers.

    Args:
        results: by script; all of `SCRIPTS`.
        picture: its path, from the README.

    Raises:
        ResultsDoNotMatchError: see there.
    """
    check(results)
    columns = systems(results["side_by_side"])
    lines = [
        f"![One recall by the length of a user's history, in milliseconds: {_listed(columns)}]"
        f"({picture})",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(_line(row, columns) for row in rows(results)),
        "",
        *_caption(results),
    ]
    return "\n".join(lines) + "\n"


def check(results: Results) -> None:
    """All scripts, one machine, something measured.

    Raises:
        ResultsDoNotMatchError: it is not so.
    """
    missing = [name for name in SCRIPTS if name not in results]
    if missing:
        raise ResultsDoNotMatchError(f"no result of {_listed(missing)}")
    skipped = [name for name in SCRIPTS if results[name]["skipped"]]
    if skipped:
        raise ResultsDoNotMatchError(f"nothing was measured by {_listed(skipped)}")
    for what in ("machine", "versions", "smoke"):
        if any(results[name][what] != results[SCRIPTS[0]][what] for name in SCRIPTS):
            raise ResultsDoNotMatchError(f"results differ in {what}")


def systems(side_by_side: Mapping[str, Any]) -> list[str]:
    """The systems that were measured, ours first."""
    setups = side_by_side["tables"]["setups"]
    return [row["system"] for row in setups if row["status"] == "measured"]


def rows(results: Results) -> list[Row]:
    """All rows of the table."""
    beside, table = results["side_by_side"], results["first_table"]
    recalls = [row for row in beside["tables"]["recall"] if row["kind"] == "text"]
    sizes = sorted({row["user_messages"] for row in recalls})
    middle = sizes[len(sizes) // 2]
    again = table["latencies_ms"]["turns: recall_warm"]
    return [
        *(_recall(recalls, size) for size in sizes),
        _with_neighbours(recalls, middle),
        _ours("asked again, nothing changed", _with_p99(again)),
        *_turns(beside),
        _restart(beside),
        _footprint(beside),
        *_large_store(results),
        _imports(results["import_speed"]),
        _parts(table),
    ]


def _recall(recalls: Iterable[Mapping[str, Any]], size: int) -> Row:
    found = {row["system"]: row for row in recalls if row["user_messages"] == size}
    found.pop(WITH_NEIGHBOURS, None)
    return Row(
        f"recall of a new question, {size:,} messages of the user",
        {
            name: f"{_ms(row['p50_ms'])} ({share(row['recall_share'])})"
            for name, row in found.items()
        },
        {name: row["p50_ms"] for name, row in found.items()},
    )


def _with_neighbours(recalls: Iterable[Mapping[str, Any]], size: int) -> Row:
    found = {row["system"]: row for row in recalls if row["user_messages"] == size}
    row = found[WITH_NEIGHBOURS]
    label = f"the same with {size:,}, a neighbour on each side of a hit, and a text for the prompt"
    return _ours(label, _with_p99(row))


def _turns(beside: Mapping[str, Any]) -> list[Row]:
    turns = {(row["system"], row["kind"]): row for row in beside["tables"]["index"]}
    text = {name: row for (name, kind), row in turns.items() if kind == "text"}
    return [
        Row(
            "index of a two-message turn, until it is found",
            {name: _ms(row["p50_ms"]) for name, row in text.items()},
            {name: row["p50_ms"] for name, row in text.items()},
        ),
        _ours(
            "index of the turn, until it is on disk: an agent need not wait longer",
            _with_p99(turns[OURS, "durable"]),
        ),
    ]


def _restart(beside: Mapping[str, Any]) -> Row:
    seconds = {row["system"]: row["restart_s"] for row in beside["tables"]["footprint"]}
    label = "restart, to the first answer, model loaded"
    return Row(label, {name: f"{value:.1f} s" for name, value in seconds.items()}, seconds)


def _footprint(beside: Mapping[str, Any]) -> Row:
    config = beside["config"]
    messages = sum(map(int, config["sizes"].split(",")))
    messages += config["crowd_users"] * config["crowd_messages"]
    return Row(
        f"memory (without mapped files); disk, with {messages:,} messages, in MB",
        {
            row["system"]: f"{row['resident_mb']:.0f} ({row['anonymous_mb']:.0f})"
            f"{'' if row['model_in_it'] else ' without the model'}; {row['disk_mb']:.0f}"
            for row in beside["tables"]["footprint"]
        },
    )


def _large_store(results: Results) -> list[Row]:
    growth, start, memory = (results[name] for name in ("growth", "start", "resident_memory"))
    messages = growth["config"]["crowd_messages"]
    latencies = growth["latencies_ms"]
    ratio = latencies["cold, crowded"]["p50_ms"] / latencies["cold, alone"]["p50_ms"]
    stored = memory["config"]["crowd_messages"]
    bytes_each = [
        memory["figures"][f"{mode}: bytes with all partitions"] / stored / 1000
        for mode in ("default", "low")
    ]
    started = start["config"]
    return [
        _ours(
            f"a user of {growth['config']['messages']:,} messages among {messages:,} of others, "
            "recall / alone",
            f"{ratio:.2f}",
        ),
        _ours(
            f"start with {started['crowd_messages']:,} messages of {started['crowd_resources']:,} "
            "users, to SERVING",
            f"{start['figures']['there: start, seconds']:.1f} s",
        ),
        _ours(
            f"memory a message at {stored:,}, all in memory; `--memory low`",
            f"{bytes_each[0]:.1f}; {bytes_each[1]:.2f} kB",
        ),
    ]


def _imports(result: Mapping[str, Any]) -> Row:
    new, again = (result["figures"][f"{kind}: messages/s"] for kind in ("new", "same ids"))
    label = "import of new text; the same messages again"
    return _ours(label, f"{_rounded(new):,}/s; {_rounded(again):,}/s")


def _parts(table: Mapping[str, Any]) -> Row:
    ratios: list[float] = []
    for order in ("turns", "loops"):
        p50 = {
            series: table["latencies_ms"][f"{order}: {series}"]["p50_ms"]
            for series in ("recall_cold", "raw_embed", "raw_scan", "echo")
        }
        ratios.append(p50.pop("recall_cold") / sum(p50.values()))
    label = "recall of a new question / the sum of its parts (embedding, int8 scan, gRPC echo)"
    return _ours(label, f"{ratios[0]:.2f} (in loops {ratios[1]:.2f})")


def _ours(label: str, text: str) -> Row:
    return Row(label, {OURS: text})


def _line(row: Row, columns: Sequence[str]) -> str:
    lowest = min(row.values.values(), default=math.nan)
    cells = [row.cells.get(name, "") for name in columns]
    bold = [
        f"**{cell}**" if row.values.get(name) == lowest else cell
        for name, cell in zip(columns, cells, strict=True)
    ]
    return f"| {row.label} | " + " | ".join(bold) + " |"


def _caption(results: Results) -> list[str]:
    beside = results["side_by_side"]
    setups = beside["tables"]["setups"]
    measured = [one for one in setups if one["status"] == "measured"]
    holding = {row["system"]: row["model_in_it"] for row in beside["tables"]["footprint"]}
    others = [one["system"] for one in measured if one["system"] != OURS]
    libraries = [name for name in others if holding[name]]
    servers = "".join(
        f"; and with {name}, a process of its own asked over HTTP, whose caller holds the model"
        for name in others
        if not holding[name]
    )
    versions = dict.fromkeys(one["versions"] for one in measured)
    missing = [f"{one['system']} ({one['status']})" for one in setups if one not in measured]
    messages = results["first_table"]["config"]["messages"]
    about = [
        f"Medians, one caller. Texts: the synthetic chat of `benchmarks/corpus.py`, "
        f"{messages:,} messages of one user in the rows of {OURS} alone unless they say otherwise "
        f"([where a recall spends its time, and which bars it misses]({TIME_SPENT})). In loops: "
        "the same call many times over, so that the processor's caches are warm. "
        "Model: all-MiniLM-L6-v2, int8. "
        f"{beside['machine']}; " + "; ".join(versions) + ".",
        f"Not measured: {'; '.join(missing)}." if missing else "",
        "A smoke run: these figures mean nothing." if beside["smoke"] else "",
        "Stored results: `docs/figures`.",
    ]
    return [
        "```sh",
        "make bench-readme   # runs, in this order, and writes picture and table:",
        *(f"{results[name]['command']}   # {found}" for name, found in ROWS.items()),
        "```",
        "",
        f"**Compared with** libraries in the caller's process, which embed with the same model: "
        f"{_listed(libraries)}{servers}. {OURS} is asked over gRPC, a process of its own. Same "
        "texts, vectors, filter and questions, in one run and in turns. In brackets: how many of "
        f"the exact top {beside['config']['top_k']} were found. Bold: the lowest of a row. By the "
        f"median of a recall {OURS} is {_standing(beside)}. Each is set up as its own "
        f"documentation advises for many tenants ([how]({DOCUMENT})); what is on disk when a turn "
        f"is found differs. [Why it is fair]({FAIRNESS}).",
        "",
        f"*{' '.join(one for one in about if one)}*",
    ]


def _standing(beside: Mapping[str, Any]) -> str:
    """Which place ours has at each size: "1 of 3 at 1,000 messages, 2 of 3 at 10,000"."""
    recalls = [row for row in beside["tables"]["recall"] if row["kind"] == "text"]
    told: list[str] = []
    for size in sorted({row["user_messages"] for row in recalls}):
        p50 = {row["system"]: row["p50_ms"] for row in recalls if row["user_messages"] == size}
        p50.pop(WITH_NEIGHBOURS, None)
        place = 1 + sum(other < p50[OURS] for other in p50.values())
        told.append(f"number {place} of {len(p50)} at {size:,} messages")
    return _listed(told)


def share(value: float) -> str:
    """A share as a percentage, rounded down: 100 % is all of them."""
    return f"{math.floor(value * 1000 + 1e-6) / 10:g} %"


def _ms(value: float) -> str:
    """Two digits and more."""
    decimals = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{decimals}f} ms"


def _with_p99(latency: Mapping[str, Any]) -> str:
    return f"{_ms(latency['p50_ms'])}, p99 {_ms(latency['p99_ms'])}"


def _rounded(value: float) -> int:
    """To three digits."""
    digits = max(0, int(math.log10(max(1.0, value))) - 2)
    return int(round(value, -digits))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
