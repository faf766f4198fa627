"""Why hits were found, and why other candidates were not: tables, or lines in a narrow terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..results import ExcludedCandidate, Explain, RecalledMessage, RecallResult
from ..values import ExcludedReason
from .output import Output, plain
from .recalled import excerpt, show_cost, show_why_empty, writer

TEXT_CHARS = 60
GAP_CELLS = 1
INDENT_CELLS = 5
TEXT_CELLS_MIN = 24
"""Fewer leave nothing to read of a message: the table gives way to lines."""

_PARTS: tuple[tuple[str, Callable[[Explain], float]], ...] = (
    ("meaning", lambda e: e.dense_part),
    ("words", lambda e: e.lexical_part),
    ("neighbour", lambda e: e.neighbour_part),
    ("author", lambda e: e.author_part),
    ("recency", lambda e: e.recency_part),
    ("diversity", lambda e: e.diversity_part),
)
_REASONS = {
    ExcludedReason.TOP_K: "behind the last hit",
    ExcludedReason.BELOW_THRESHOLD: "its cosine is below the threshold",
    ExcludedReason.NO_VECTOR: "no vector yet, and there is a threshold",
    ExcludedReason.DIVERSITY: "others add more (diversity)",
    ExcludedReason.TOKENS: "does not fit the tokens",
    ExcludedReason.ANSWER_SIZE: "does not fit the server's limit of an answer",
    ExcludedReason.CONDITIONS: "scope, filter, roles, times or exclusions do not allow it",
    ExcludedReason.CHANGED: "it changed while the answer was made",
}


@dataclass(frozen=True)
class _Line:
    """One candidate as it is shown."""

    rank: int
    name: str
    relevance: float
    explain: Explain
    rest: tuple[str, ...]


def show_explained(output: Output, result: RecallResult) -> None:
    """Print the parts of each hit, then what is not in the answer and why, then the cost."""
    if not result.messages:
        show_why_empty(output, result)
    hits = [_of_hit(output, hit) for hit in result.hits]
    _show(output, "Hits", ("who", "when", "text"), hits)
    excluded = [_of_excluded(candidate) for candidate in result.excluded]
    _show(output, "Not in the answer", ("why",), excluded)
    best = result.info.best_score if result.messages else None
    show_cost(output, result, *([] if best is None else [f"best cosine {best:.3f}"]))


def _of_hit(output: Output, hit: RecalledMessage) -> _Line:
    message = hit.message
    when = output.time(message.create_time)[:10] if message.create_time else ""
    said = excerpt(" ".join(message.text[: 2 * TEXT_CHARS].split()), TEXT_CHARS)
    explain = hit.explain or Explain(hit.score, 0, 0, 0)
    return _Line(
        hit.rank, plain(message.id), hit.relevance or 0.0, explain, (writer(message), when, said)
    )


def _of_excluded(candidate: ExcludedCandidate) -> _Line:
    return _Line(
        candidate.rank,
        plain(candidate.message_id),
        candidate.relevance,
        candidate.explain,
        (reason_of(candidate),),
    )


def reason_of(candidate: ExcludedCandidate) -> str:
    """Why a candidate is not in the answer, in words."""
    if candidate.reason is ExcludedReason.NEAR_DUPLICATE:
        return f"says nearly the same as {plain(candidate.near_duplicate_of) or 'a better hit'}"
    return _REASONS.get(candidate.reason, "the server does not say")


def _show(output: Output, title: str, rest: Sequence[str], lines: Sequence[_Line]) -> None:
    if not lines:
        return
    output.console.print(Text(title, style="bold cyan"))
    columns, rows = _cells(rest, lines)
    if _least_width(columns, rows) <= output.console.width:
        output.print_trimmed(_table(columns, rows))
        return
    for line in lines:
        output.print_trimmed(_block(line))


def _cells(rest: Sequence[str], lines: Sequence[_Line]) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the cells of each line; parts that are 0 everywhere are not."""
    parts = [(name, of) for name, of in _PARTS if any(of(line.explain) for line in lines)]
    numbers = ["relevance", *(name for name, _ in parts), "cosine", "#cosine"]
    numbers += ["BM25", "in context", "#BM25"]
    rows: list[list[str]] = []
    for line in lines:
        explain = line.explain
        rows.append(
            [
                str(line.rank),
                line.name,
                f"{line.relevance:.3f}",
                *(f"{of(explain):+.3f}" if of(explain) else "-" for _, of in parts),
                _cosine(explain),
                _place(explain.dense_rank),
                _bm25(explain.bm25),
                _bm25(explain.bm25_in_context),
                _place(explain.lexical_rank),
                *line.rest,
            ]
        )
    return ["", "message", *numbers, *rest], rows


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Cells that the table needs, if its last column has no more than is worth reading."""
    widths = [
        max(cell_len(name), *(cell_len(row[position]) for row in rows))
        for position, name in enumerate(columns[:-1])
    ]
    return sum(widths) + len(widths) * GAP_CELLS + TEXT_CELLS_MIN


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP_CELLS, 0, 0), header_style="bold")
    texts = ("message", "who", "when", "text", "why")
    for position, name in enumerate(columns):
        is_last = position == len(columns) - 1
        justify: Literal["left", "right"] = "left" if name in texts else "right"
        table.add_column(name, justify=justify, no_wrap=not is_last, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _block(line: _Line) -> Group:
    """The same of one candidate, a fact a line."""
    explain = line.explain
    sum_of = " ".join(f"{of(explain):+.3f} {name}" for name, of in _PARTS if of(explain))
    facts = [
        f"relevance {line.relevance:.3f}" + (f" = {sum_of}" if sum_of else ""),
        f"cosine {_cosine(explain)} (#{_place(explain.dense_rank)})",
        f"BM25 {_bm25(explain.bm25)} (#{_place(explain.lexical_rank)}), "
        f"in context {_bm25(explain.bm25_in_context)}",
        ", ".join(filter(None, line.rest[:-1])),
        line.rest[-1],
    ]
    below = Text("\n".join(filter(None, facts)))
    return Group(
        Text(f"{line.rank:>3}  {line.name}", style="bold"), Padding(below, (0, 0, 0, INDENT_CELLS))
    )


def _cosine(explain: Explain) -> str:
    return "-" if explain.cosine is None else f"{explain.cosine:.3f}"


def _place(rank: int) -> str:
    return str(rank) if rank else "-"


def _bm25(value: float) -> str:
    return f"{value:.2f}" if value else "-"
