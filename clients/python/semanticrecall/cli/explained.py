"""Why hits were found, and why other candidates were not.

A wide terminal gets tables, one line a candidate. A narrow one gets some lines for each hit, and
two for each of the first candidates that are no hits: what was found must stay in sight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rich.cells import cell_len
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..client import RecallClient
from ..errors import SemanticRecallError
from ..results import ExcludedCandidate, Explain, RecalledMessage, RecallResult
from ..values import ExcludedReason, Message
from .output import Output, plain
from .recalled import excerpt, packed, show_cost, writer

TEXT_CHARS = 60
ID_CELLS_MAX = 14
GAP_CELLS = 1
INDENT_CELLS = 5
TEXT_CELLS_MIN = 24
"""Fewer leave nothing to read of a message: the table gives way to lines."""
ONE_LINE_CELLS_MIN = 72
"""In a narrower terminal what was said takes two lines or three: one would say too little."""
LEFT_OUT_IN_LINES_MAX = 5
"""Candidates that are no hits, in a narrow terminal."""

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
    ExcludedReason.BELOW_THRESHOLD: "below the threshold",
    ExcludedReason.NO_VECTOR: "no vector for the threshold",
    ExcludedReason.DIVERSITY: "others add more",
    ExcludedReason.TOKENS: "does not fit the tokens",
    ExcludedReason.ANSWER_SIZE: "does not fit the answer",
    ExcludedReason.CONDITIONS: "the request excludes it",
    ExcludedReason.CHANGED: "changed meanwhile",
}
_LEFT_COLUMNS = ("message", "who", "when", "text", "why")


@dataclass(frozen=True)
class _Line:
    """One candidate as it is shown; `why` is "" for a hit, and what is not known is ""."""

    rank: int
    name: str
    relevance: float
    explain: Explain
    why: str
    who: str = ""
    when: str = ""
    said: str = ""


def texts_left_out(
    memory: RecallClient, resource_id: str, result: RecallResult
) -> dict[str, Message]:
    """The messages of the candidates that are no hits, by id; none where they cannot be had."""
    ids = [candidate.message_id for candidate in result.excluded]
    try:
        found = memory.get_messages(resource_id, ids) if ids else ()
    except SemanticRecallError:
        # One of them was forgotten meanwhile, say. Why they are no hits can be told without.
        return {}
    return {message.id: message for message in found}


def show_explained(
    output: Output, result: RecallResult, left_out: Mapping[str, Message], why_none: str
) -> None:
    """Print the parts of each hit, then what is not in the answer and why, then the cost.

    Args:
        output: where to.
        result: the answer.
        left_out: messages of candidates that are no hits, by id, as far as they are known.
        why_none: what to say where there are no messages.
    """
    if not result.messages:
        output.console.print(why_none)
    hits = [_of_hit(output, hit) for hit in result.hits]
    excluded = [
        _of_excluded(output, candidate, left_out.get(candidate.message_id))
        for candidate in result.excluded
    ]
    # What the request excludes has its places from another search: it says nothing of these.
    allowed = [
        line
        for line, candidate in zip(excluded, result.excluded, strict=True)
        if candidate.reason is not ExcludedReason.CONDITIONS
    ]
    _show(output, "Hits", _notes([*hits, *allowed]), hits)
    _show(output, "Not in the answer", _notes_on_left_out(hits), excluded)
    best = result.info.best_score if result.messages else None
    show_cost(output, result, *([] if best is None else [f"best cosine {best:.3f}"]))


def _of_hit(output: Output, hit: RecalledMessage) -> _Line:
    explain = hit.explain or Explain(hit.score, 0, 0, 0)
    message = hit.message
    return _Line(
        hit.rank, plain(message.id), hit.relevance or 0.0, explain, "", *_said(output, message)
    )


def _of_excluded(output: Output, candidate: ExcludedCandidate, message: Message | None) -> _Line:
    return _Line(
        candidate.rank,
        plain(candidate.message_id),
        candidate.relevance,
        candidate.explain,
        reason_of(candidate),
        *(_said(output, message) if message is not None else ()),
    )


def _said(output: Output, message: Message) -> tuple[str, str, str]:
    """Who wrote it, on which day, and its beginning."""
    when = output.time(message.create_time)[:10] if message.create_time else ""
    said = excerpt(" ".join(message.text[: 2 * TEXT_CHARS].split()), TEXT_CHARS)
    return writer(message), when, said


def reason_of(candidate: ExcludedCandidate) -> str:
    """Why a candidate is not in the answer, in words."""
    if candidate.reason is ExcludedReason.NEAR_DUPLICATE:
        return f"nearly the same as {_short(plain(candidate.near_duplicate_of)) or 'a better hit'}"
    return _REASONS.get(candidate.reason, "the server does not say")


def _notes(lines: Sequence[_Line]) -> list[str]:
    """What a reader of these numbers would stumble over."""
    notes: list[str] = []
    placed = [line.explain for line in lines if line.explain.dense_rank]
    placed.sort(key=lambda explain: explain.dense_rank)
    cosines = [explain.cosine for explain in placed if explain.cosine is not None]
    if any(later > earlier for earlier, later in pairwise(cosines)):
        notes.append("meaning is of the query without names, cosine of all of it")
    if any(line.explain.recency_part for line in lines):
        notes.append("with recency only differences of relevance count")
    return notes


def _notes_on_left_out(hits: Sequence[_Line]) -> list[str]:
    before_diversity = any(hit.explain.diversity_part for hit in hits)
    return [
        "rank before anything was left out",
        *(["relevance before diversity"] if before_diversity else []),
    ]


def _show(output: Output, title: str, notes: Sequence[str], lines: Sequence[_Line]) -> None:
    if not lines:
        return
    width = output.console.width
    heading = Text(packed([title, *notes], " · ", width), style="dim")
    heading.stylize("bold cyan not dim", 0, len(title))
    output.console.print(heading)
    columns, rows = _cells(lines)
    widths = _widths(columns, rows, width)
    if widths[-1] >= TEXT_CELLS_MIN:
        output.print_trimmed(_table(columns, widths, rows))
        return
    if not lines[0].why:
        output.print_trimmed(Group(*(_hit_in_lines(line, width) for line in lines)))
        return
    shown, more = lines[:LEFT_OUT_IN_LINES_MAX], lines[LEFT_OUT_IN_LINES_MAX:]
    output.print_trimmed(Group(*(_left_out_in_lines(line, width) for line in shown)))
    if more:
        output.console.print(Text(f"{len(more)} more: --format json", style="dim"))


# ---- in a wide terminal ----


def _cells(lines: Sequence[_Line]) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the cells of each line; parts that are 0 everywhere are not."""
    parts = [(name, of) for name, of in _PARTS if any(of(line.explain) for line in lines)]
    numbers = ["relevance", *(name for name, _ in parts), "#meaning", "cosine"]
    numbers += ["#words", "BM25 in context", "own"]
    rest = ["why", "text"] if lines[0].why else ["who", "when", "text"]
    rows: list[list[str]] = []
    for line in lines:
        explain = line.explain
        rows.append(
            [
                str(line.rank),
                _short(line.name),
                f"{line.relevance:.3f}",
                *(f"{of(explain):+.3f}" if of(explain) else "-" for _, of in parts),
                _place(explain.dense_rank),
                _cosine(explain),
                _place(explain.lexical_rank),
                _bm25(explain.bm25_in_context),
                _bm25(explain.bm25),
                *([line.why, _quoted(line)] if line.why else [line.who, line.when, line.said]),
            ]
        )
    return ["", "message", *numbers, *rest], rows


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Cells of each column: as many as it needs, and for the last one what is left."""
    widths = [
        max(cell_len(name), *(cell_len(row[position]) for row in rows))
        for position, name in enumerate(columns[:-1])
    ]
    return [*widths, width - sum(widths) - len(widths) * GAP_CELLS]


def _table(columns: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP_CELLS, 0, 0), header_style="bold")
    for name, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if name in _LEFT_COLUMNS else "right"
        table.add_column(name, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


# ---- in a narrow one ----


def _hit_in_lines(line: _Line, width: int) -> Group:
    explain = line.explain
    room = width - INDENT_CELLS
    parts = [f"{of(explain):+.2f} {name}" for name, of in _PARTS if of(explain)]
    relevance = f"relevance {line.relevance:.2f}"
    sum_of = [f"{relevance} = {parts[0]}", *parts[1:]] if parts else [relevance]
    facts = (
        f"meaning {_place(explain.dense_rank, '#')},",
        f"cosine {_cosine(explain)},",
        f"words {_place(explain.lexical_rank, '#')},",
        f"BM25 in context {_bm25(explain.bm25_in_context)},",
        f"own words {_bm25(explain.bm25)}",
    )
    numbers = Text(f"{packed(sum_of, ' ', room)}\n{packed(facts, ' ', room)}")
    in_one_line = width >= ONE_LINE_CELLS_MIN
    said = Text(_quoted(line), no_wrap=in_one_line, overflow="ellipsis" if in_one_line else "fold")
    return Group(_heading(line), Padding(Group(numbers, said), (0, 0, 0, INDENT_CELLS)))


def _left_out_in_lines(line: _Line, width: int) -> Group:
    facts = Text(packed([f"{line.relevance:.2f},", line.why], " ", width - INDENT_CELLS))
    first = Text.assemble(_heading(line), "  ", facts)
    below = [Text(_quoted(line), no_wrap=True, overflow="ellipsis")] if line.said else []
    if first.cell_len > width:
        first, below = _heading(line), [facts, *below]
    return Group(first, Padding(Group(*below), (0, 0, 0, INDENT_CELLS)))


def _heading(line: _Line) -> Text:
    return Text(f"{line.rank:>3}  {line.name}", style="bold")


def _quoted(line: _Line) -> str:
    """Who said it, when, and what; as far as that is known."""
    head = ", ".join(filter(None, (line.who, line.when)))
    return f"{head}: {line.said}" if head else line.said


def _short(name: str) -> str:
    """A long id by its two ends."""
    if cell_len(name) <= ID_CELLS_MAX or len(name) <= ID_CELLS_MAX:
        return name
    return f"{name[: ID_CELLS_MAX - 6]}…{name[-5:]}"


def _cosine(explain: Explain) -> str:
    return "-" if explain.cosine is None else f"{explain.cosine:.3f}"


def _place(rank: int, mark: str = "") -> str:
    return f"{mark}{rank}" if rank else "-"


def _bm25(value: float) -> str:
    return f"{value:.2f}" if value else "-"
