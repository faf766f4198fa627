"""A load's result for people: what must be known first, then its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .output import Output

if TYPE_CHECKING:
    from ..load.result import Finding, LoadResult, OperationResult, StageResult

# Codes of findings.
FAILURES = {"ERRORS", "UNFINISHED", "INTERRUPTED", "NOT_CLEANED_UP"}
REMARKS = {"FEW_CALLS", "SHARED_MACHINE"}
PERCENTILES = (
    ("p50", "p50"),
    ("p90", "p90"),
    ("p99", "p99"),
    ("p99.9", "p99_9"),
    ("p99.99", "p99_99"),
    ("max", "max"),
)
SHARES_SHOWN_MAX = 8
SHARES = {
    "answer_cache_hits": "answers from cache",
    "query_cache_hits": "queries from cache",
    "repeated": "asked before",
    "empty": "empty",
}


def show_load(
    output: Output, result: LoadResult, findings: Sequence[tuple[Finding, Sequence[str]]]
) -> None:
    """Print what must be known, and then each stage with its times in milliseconds.

    Args:
        findings: those of the result, each with the other stages that have it too.
    """
    console = output.console
    for finding, others in findings:
        console.print(_finding(finding, others))
    if result.findings:
        console.print()
    if result.preparation.messages:
        made = result.preparation
        console.print(
            f"Prepared {made.messages:,} messages in {made.seconds:,.1f} s "
            f"({made.messages_per_s:,.0f} a second)."
        )
    if not result.stages:
        console.print("Nothing was measured.")
        return
    output.print_trimmed(_times(result))
    for stage in result.stages:
        console.print()
        console.print(Text(stage.name, style="bold"))
        for line in _facts(stage):
            output.print_trimmed(Padding(Text(line), (0, 0, 0, 2)))


def _finding(finding: Finding, others: Sequence[str]) -> Text:
    style = "red" if finding.code in FAILURES else "dim" if finding.code in REMARKS else "yellow"
    where = f"{finding.stage}: " if finding.stage else ""
    more = f" Likewise at {', '.join(others)}." if others else ""
    return Text.assemble((finding.code.value, f"bold {style}"), "  ", where, finding.text, more)


def _times(result: LoadResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    table.add_column("ms")
    for name in ("calls", "OK/s", *(shown for shown, _ in PERCENTILES)):
        table.add_column(name, justify="right", no_wrap=True)
    for stage in result.stages:
        for number, (name, operation) in enumerate(stage.operations.items()):
            table.add_row(stage.name if number == 0 else "", name, *_row(operation))
    return table


def _row(operation: OperationResult) -> list[str]:
    times = operation.latency_ms
    shown = (milliseconds(getattr(times, name)) if times.count else "-" for _, name in PERCENTILES)
    return [f"{operation.calls:,}", f"{operation.per_s:,.1f}", *shown]


def milliseconds(value: float) -> str:
    """Three significant digits: 0.12, 3.45, 34.5, 345, 3,450."""
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _facts(stage: StageResult) -> list[str]:
    facts = [
        f"{stage.scheduled:,} calls in {stage.seconds:,.1f} s: {stage.finished:,} ended"
        + (f", {stage.unfinished:,} given up" if stage.unfinished else "")
    ]
    schedule = stage.schedule
    if schedule is not None:
        late = schedule.lateness_ms
        facts.append(
            f"schedule: {schedule.scheduled_per_s:,.1f}/s due, {schedule.started_per_s:,.1f}/s sent"
            f" in time, late by p99 {milliseconds(late.p99)} ms"
            f" ({milliseconds(schedule.client_lateness_ms.p99)} ms by itself)"
        )
    for name, operation in stage.operations.items():
        if operation.errors:
            facts.append(f"{name} failed: {_counts(operation.errors)}")
        told = [
            f"{SHARES[key]} {share:.1%}" for key, share in operation.shares.items() if key in SHARES
        ]
        if told:
            facts.append(f"{name}: {', '.join(told)}")
    facts.append(_client(stage))
    return facts


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _client(stage: StageResult) -> str:
    client = stage.client
    shares = ", ".join(f"{share:.0%}" for share in client.cpu_shares)
    if client.processes > SHARES_SHOWN_MAX:
        shares = f"{min(client.cpu_shares):.0%} to {max(client.cpu_shares):.0%}"
    plural = "es" if client.processes > 1 else ""
    return (
        f"sent by {client.processes} process{plural}, {shares} of a core, event loop late by p99 "
        f"{milliseconds(client.loop_lag_ms.p99)} ms"
    )
