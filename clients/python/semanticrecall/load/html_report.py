"""The report of a load as one HTML file that needs nothing from anywhere: no network, no scripts.

Its policy (the meta element in `report.html.jinja`) forbids everything but its own style, so that
nothing in a result, an address or a command line, can make it more than text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from .findings import likewise
from .look import DARK, LIGHT
from .pictures import pictures
from .result import FindingCode, LoadResult, OperationResult, StageResult

TEMPLATE = "report.html.jinja"
SETTINGS_MAX = 300
"""Rows of a table of settings; what the sidecar said of itself has no limit of its own."""
TEXT_MAX = 2_000
"""Characters of one value in it."""

_FAILURES = {
    FindingCode.ERRORS,
    FindingCode.UNFINISHED,
    FindingCode.INTERRUPTED,
    FindingCode.NOT_CLEANED_UP,
}
_REMARKS = {FindingCode.FEW_CALLS, FindingCode.SHARED_MACHINE}


@dataclass(frozen=True, slots=True)
class _Cell:
    """A number of the table. `few`: so few calls that it is the slowest one's."""

    text: str
    few: bool = False


@dataclass(frozen=True, slots=True)
class _Row:
    """One operation in one stage; the stage's name stands in its first row."""

    stage: StageResult
    first: bool
    rows: int
    operation: str
    result: OperationResult
    latencies: Sequence[_Cell]
    failed: int


def write_html(result: LoadResult, file: Path) -> None:
    """Write the report; what is in the file is overwritten.

    Raises:
        OSError: the file cannot be written.
    """
    file.write_text(html_of(result), encoding="utf-8")


def html_of(result: LoadResult) -> str:
    """The report: the same for the same result."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "ms": ms_text,
        "number": count_text,
        "share": share_text,
        "weight": weight,
    }
    template = environment.from_string(
        files("semanticrecall.load").joinpath(TEMPLATE).read_text("utf-8")
    )
    return template.render(
        result=result,
        findings=likewise(result.findings),
        rows=list(_rows(result)),
        pictures=pictures(result),
        settings=settings_rows(result.plan),
        server=settings_rows(result.target.server),
        light=LIGHT,
        dark=DARK,
        few_calls=_has_few(result),
    )


def ms_text(value: float) -> str:
    """Milliseconds with three significant digits: 0.123, 2.91, 12.3, 1,240."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def count_text(value: float) -> str:
    """A number of calls, or of calls a second: 12,000, 99.8."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.1f}"


def share_text(value: float) -> str:
    """A share as percent: 12.5 %; never 100 or 0 where something is missing or there."""
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    if 0 < value < 0.0005:
        return "< 0.1 %"
    return f"{value * 100:.1f}".removesuffix(".0") + " %"


def weight(code: FindingCode) -> str:
    """How a finding is shown: "failure", "warning", or "remark"."""
    return "failure" if code in _FAILURES else "remark" if code in _REMARKS else "warning"


def settings_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings by name, those within others as outer.inner, as text and in order; not endless."""
    rows: list[tuple[str, str]] = []
    for name, value in _flat(settings, ""):
        if len(rows) == SETTINGS_MAX:
            rows.append(("…", "more is in the JSON"))
            break
        text = _value_text(value)
        rows.append((name, text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + " …"))
    return rows


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            value = {str(number): one for number, one in enumerate(value, 1)}
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return (
            ", ".join(
                f"({_value_text(one)})" if isinstance(one, list | tuple) else _value_text(one)
                for one in value
            )
            or "none"
        )
    return "none" if value is None else str(value) or "none"


def _rows(result: LoadResult) -> Iterator[_Row]:
    for stage in result.stages:
        for number, (name, operation) in enumerate(stage.operations.items()):
            yield _Row(
                stage=stage,
                first=number == 0,
                rows=len(stage.operations),
                operation=name,
                result=operation,
                latencies=_latencies(operation),
                failed=sum(operation.errors.values()),
            )


def _latencies(operation: OperationResult) -> list[_Cell]:
    """p50 to max; a percentile above the last call but one is the slowest call's."""
    series = operation.latency_ms
    if not series.count:
        return [_Cell("")] * 6
    cells = (
        (series.p50, 2),
        (series.p90, 10),
        (series.p99, 100),
        (series.p99_9, 1_000),
        (series.p99_99, 10_000),
    )
    found = [_Cell(ms_text(ms), few=series.count < calls) for ms, calls in cells]
    return [*found, _Cell(ms_text(series.max))]


def _has_few(result: LoadResult) -> bool:
    return any(
        cell.few
        for stage in result.stages
        for operation in stage.operations.values()
        for cell in _latencies(operation)
    )
