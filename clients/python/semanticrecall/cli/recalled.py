"""How recalled messages look: rank, score bar, when, who, thread and text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..results import RecalledMessage, RecallResult
from ..values import Message, Mode, WhyEmpty
from .output import Output, plain

BAR_CELLS = 8
HIT_CHARS_MAX = 600
NEIGHBOUR_CHARS_MAX = 140
WIDE_CELLS = 100
WORD_LETTERS_MIN = 3
_EIGHTHS = " ▏▎▍▌▋▊▉█"

_WHY_EMPTY = {
    WhyEmpty.NO_QUERY: "the query is empty",
    WhyEmpty.NO_MESSAGES: "there is nothing to search here yet",
    WhyEmpty.FILTERED: "scope, filter, roles, times and exclusions left nothing",
    WhyEmpty.BELOW_THRESHOLD: "nothing is as close as the threshold asks",
    WhyEmpty.NO_WORDS: "no message has a word of the query",
}


def show_recall(
    output: Output, result: RecallResult, query: str, top_k: int, threshold: float | None
) -> None:
    """Print an answer for people: hits stand out, their neighbours are dimmed."""
    if result.messages:
        output.console.print(recalled_messages(output, result, query))
    else:
        output.console.print(no_memories(result, top_k, threshold))
    show_cost(output, result)


def no_memories(result: RecallResult, top_k: int, threshold: float | None) -> str:
    """Why there are no messages, and how close the closest was."""
    best, reason = result.info.best_score, result.info.why_empty
    why = _WHY_EMPTY.get(reason, "nothing was found")
    if best is None:
        return f"No memories: {why}."
    if reason is WhyEmpty.BELOW_THRESHOLD and threshold is not None and best >= threshold:
        # The order is not that of cosines, and what the threshold takes away lets nobody move up.
        return (
            f"No memories: the threshold takes away the best {top_k}, and the closest message "
            f"({best:.3f}) is not among them: raise --top-k, or use --mode dense."
        )
    return f"No memories: {why} (closest: {best:.3f})."


def recalled_messages(output: Output, result: RecallResult, query: str) -> Group:
    """Messages in their order under the names of their threads; the columns of all line up."""
    words = _words(query)
    width = output.console.width
    parts: list[Text | Table] = []
    for thread_id, messages in groupby(result.messages, key=lambda m: m.message.thread_id):
        parts.append(Text(f"── {plain(thread_id)}", style="cyan"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", min_width=2, no_wrap=True)
        table.add_column(width=BAR_CELLS + 6)
        table.add_column(width=16 if width >= WIDE_CELLS else 10)
        table.add_column(ratio=1, overflow="fold")
        for recalled in messages:
            table.add_row(*_row(output, recalled, words), style="" if recalled.hit else "dim")
        parts.append(table)
    return Group(*parts)


def _row(output: Output, recalled: RecalledMessage, words: re.Pattern[str] | None) -> list[Text]:
    message = recalled.message
    most = HIT_CHARS_MAX if recalled.hit else NEIGHBOUR_CHARS_MAX
    said = Text(excerpt(message.text, most) or f"({plain(message.payload_type) or 'no text'})")
    if recalled.hit and words is not None:
        said.highlight_regex(words, "bold yellow")
    when = output.time(message.create_time) if message.create_time else ""
    return [
        Text(str(recalled.rank) if recalled.hit else "", style="bold"),
        score_bar(recalled.score) if recalled.hit else Text(""),
        Text(when if output.console.width >= WIDE_CELLS else when[:10], style="dim"),
        Text.assemble((f"{writer(message)}: ", "bold" if recalled.hit else ""), said),
    ]


def _words(query: str) -> re.Pattern[str] | None:
    found = {word for word in re.findall(r"\w+", query) if len(word) >= WORD_LETTERS_MIN}
    if not found:
        return None
    listed = "|".join(sorted(map(re.escape, found), key=len, reverse=True))
    return re.compile(rf"(?i)\b(?:{listed})\w*")


def excerpt(text: str, most: int = HIT_CHARS_MAX) -> str:
    """The beginning of a text, safe for a terminal."""
    cut = plain(text[:most]).strip()
    return f"{cut} …" if len(text) > most else cut


def writer(message: Message) -> str:
    """Who wrote it."""
    return plain(message.author) or message.role.name.lower()


def score_bar(score: float | None) -> Text:
    """A score as a bar from 0 to 1 and a number."""
    if score is None:
        return Text("by words")
    filled = round(max(0.0, min(1.0, score)) * BAR_CELLS * 8)
    bar = "█" * (filled // 8) + (_EIGHTHS[filled % 8] if filled % 8 else "")
    colour = "green" if score >= 0.5 else "yellow" if score >= 0.3 else "bright_black"
    return Text.assemble((bar.ljust(BAR_CELLS), colour), f" {score:.2f}")


def show_cost(output: Output, result: RecallResult, *more: str) -> None:
    """What the answer cost."""
    if result.info.why_empty is WhyEmpty.NO_QUERY:
        return  # nothing was searched
    facts = (*_cost(result), *more, f"times: {output.zone_name}")
    output.console.print(packed(facts, " · ", output.console.width), style="dim", markup=False)


def packed(facts: Iterable[str], between: str, width: int) -> str:
    """Facts in lines of at most so many cells; a line ends between two facts, not inside one."""
    lines = [""]
    for fact in facts:
        joined = f"{lines[-1]}{between}{fact}" if lines[-1] else fact
        if lines[-1] and cell_len(joined) > width:
            lines.append(fact)
        else:
            lines[-1] = joined
    return "\n".join(lines)


def _cost(result: RecallResult) -> list[str]:
    info, spent = result.info, result.info.timings
    query = "query cached" if info.cache_hit else f"embed {_ms(spent.embed_us)}"
    stages = f"{query}, search {_ms(spent.search_us)}, fetch {_ms(spent.fetch_us)}"
    parts = [
        f"{len(result.hits)} of {info.searchable:,} messages in {_ms(spent.total_us)}",
        "asked before, nothing changed since" if info.answer_cache_hit else stages,
    ]
    if info.mode_used is not Mode.UNSPECIFIED:
        parts.append(f"{info.mode_used.name.lower()}{', exact' if info.exact else ''}")
    if info.candidates != info.searchable:
        lexical = info.mode_used is Mode.LEXICAL
        parts.append(f"{info.candidates:,} {'with a word of the query' if lexical else 'allowed'}")
    if info.pending:
        parts.append(f"{info.pending:,} without a vector yet")
    if info.query_truncated:
        parts.append("the query was cut to the model's window")
    if info.tokens or info.context_tokens:
        parts.append(f"{info.tokens:,} tokens, {info.context_tokens:,} as context")
    if info.messages_dropped_for_tokens:
        parts.append(f"{info.messages_dropped_for_tokens:,} left out or cut: too many tokens")
    if info.messages_dropped:
        parts.append(f"{info.messages_dropped:,} left out: too large an answer")
    if info.unknown_filter_keys:
        parts.append(f"no message has {', '.join(map(plain, info.unknown_filter_keys))}")
    return parts


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f} ms"
