"""The command `recall`: messages with their neighbours, or why each of them was found."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import typer

from ..results import RecallResult
from ..values import ContextFormat, Mode, RecallOptions, Scope
from .explained import show_explained, texts_left_out
from .flags import TimedFlags, command
from .message_flags import (
    PANEL,
    Resource,
    RoleName,
    Roles,
    Since,
    Thread,
    Until,
    json_object,
    roles_named,
)
from .output import plain
from .recalled import no_memories, show_recall

HALF_LIFE_DAYS_MAX = 36_500


class ContextName(StrEnum):
    """Context formats by their names."""

    NONE = "none"
    DEFAULT = "default"
    MASTRA = "mastra"


class ModeName(StrEnum):
    """Ranking modes by their names."""

    DENSE = "dense"
    LEXICAL = "lexical"
    HYBRID = "hybrid"


@dataclass(frozen=True, kw_only=True)
class RecallFlags(TimedFlags):
    """Flags of `recall`."""

    resource: Resource
    query: Annotated[str, typer.Argument(help="What to look for, in any words.")]
    top_k: Annotated[int, typer.Option("--top-k", "-k", help="How many to find.", min=1)] = 4
    before: Annotated[int, typer.Option(help="Neighbours before each hit.", min=0)] = 1
    after: Annotated[int, typer.Option(help="Neighbours after each hit.", min=0)] = 1
    thread: Thread = ""
    this_thread: Annotated[
        bool, typer.Option("--this-thread", help="Search only the conversation of --thread.")
    ] = False
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Least cosine of a hit, -1 to 1; takes away from the --top-k best.",
            min=-1,
            max=1,
        ),
    ] = None
    filter: Annotated[
        str, typer.Option(help='Condition on metadata, e.g. \'{"project": {"$in": ["A"]}}\'.')
    ] = ""
    role: Roles = field(default_factory=list[RoleName])
    since: Since = ""
    until: Until = ""
    exclude: Annotated[
        list[str], typer.Option(metavar="ID", help="Id of a message to leave out. Repeatable.")
    ] = field(default_factory=list[str])
    mode: Annotated[
        ModeName | None,
        typer.Option(
            metavar="MODE",
            help="How to rank: hybrid (by meaning and words; default), dense (by meaning) or "
            "lexical (by words).",
        ),
    ] = None
    also: Annotated[
        list[str], typer.Option(metavar="TEXT", help="The query in other words. Repeatable.")
    ] = field(default_factory=list[str])
    recency: Annotated[
        float, typer.Option(help="Prefer newer messages, 0 (off) to 1.", min=0, max=1)
    ] = 0.0
    half_life: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            help="Age at which recency has halved. Default: 7 days.",
            min=0,
            max=HALF_LIFE_DAYS_MAX,
        ),
    ] = None
    diversity: Annotated[
        float, typer.Option(help="Put what resembles a better hit behind, 0 to 1.", min=0, max=1)
    ] = 0.0
    near_duplicates: Annotated[
        float | None,
        typer.Option(
            metavar="COSINE", help="Leave out what is this close to a better hit, e.g. 0.98."
        ),
    ] = None
    max_tokens: Annotated[
        int, typer.Option(help="Most tokens of the answer. 0: no limit.", min=0)
    ] = 0
    explain: Annotated[
        bool, typer.Option("--explain", help="Show why: the parts of each hit, what is left out.")
    ] = False
    context: Annotated[
        ContextName, typer.Option(help="Print the text for a prompt, written like this.")
    ] = ContextName.NONE


def recall(flags: RecallFlags) -> None:
    """Find the messages that matter to a query, with their neighbours."""
    if flags.this_thread and not flags.thread:
        raise typer.BadParameter("--this-thread needs --thread")
    if flags.explain and flags.context is not ContextName.NONE and not flags.output.as_json:
        raise typer.BadParameter("--explain and --context together need --format json")
    output = flags.output
    with flags.client() as memory:
        result = memory.recall(flags.resource, flags.query, **_recall_options(flags))
        if flags.explain and not output.as_json:
            left_out = texts_left_out(memory, flags.resource, result)
            why_none = no_memories(result, flags.top_k, flags.threshold)
            show_explained(output, result, left_out, why_none)
            return
    if output.as_json:
        output.json(result)
    elif flags.context is not ContextName.NONE:
        _show_context(flags, result)
    else:
        show_recall(output, result, flags.query, flags.top_k, flags.threshold)


def _show_context(flags: RecallFlags, result: RecallResult) -> None:
    if result.context_text:
        sys.stdout.write(plain(result.context_text) + "\n")
    elif result.info.context_did_not_fit:
        flags.output.note(f"No room for a text for a prompt in {flags.max_tokens:,} tokens.")
    elif not result.messages:
        flags.output.note(no_memories(result, flags.top_k, flags.threshold))


def _recall_options(flags: RecallFlags) -> RecallOptions:
    options: RecallOptions = {
        "top_k": flags.top_k,
        "message_range": (flags.before, flags.after),
        "thread_id": flags.thread,
        "scope": Scope.THREAD if flags.this_thread else Scope.UNSPECIFIED,
        "roles": roles_named(flags.role),
        "exclude_message_ids": list(flags.exclude),
        "context_format": ContextFormat[flags.context.name],
        "time_zone": flags.time_zone,
    }
    if flags.threshold is not None:
        options["threshold"] = flags.threshold
    if flags.filter:
        options["filter"] = json_object(flags.filter, "--filter")
    if flags.since:
        options["create_time_from"] = flags.moment(flags.since, "--since")
    if flags.until:
        options["create_time_to"] = flags.moment(flags.until, "--until")
    if flags.max_tokens:
        options["max_tokens"] = flags.max_tokens
    if flags.explain:
        options["explain"] = True
    return options | _ranking_options(flags)


def _ranking_options(flags: RecallFlags) -> RecallOptions:
    options: RecallOptions = {}
    if flags.mode is not None:
        options["mode"] = Mode[flags.mode.name]
    if flags.also:
        options["alternative_queries"] = list(flags.also)
    if flags.recency:
        options["recency_weight"] = flags.recency
    if flags.half_life is not None:
        options["recency_half_life"] = timedelta(days=flags.half_life)
    if flags.diversity:
        options["diversity"] = flags.diversity
    if flags.near_duplicates is not None:
        options["near_duplicate_cosine"] = flags.near_duplicates
    return options


def register(app: typer.Typer) -> None:
    """Add this command."""
    command(
        app,
        "recall",
        panel=PANEL,
        examples="""
        semanticrecall recall user-42 "What can Rex not eat?"
        semanticrecall recall user-42 "What can Rex not eat?" --explain
        semanticrecall recall user-42 "plans for the move" -k 8 --role user
        semanticrecall recall user-42 "ticket ZX-8841" --mode lexical
        semanticrecall recall user-42 "the bug" --also "the crash" --recency 0.3
        semanticrecall recall user-42 "the bug" --since 2024-01-01 --format json
        semanticrecall recall user-42 "the bug" --filter '{"project": "A"}'
        semanticrecall recall user-42 "the bug" --context default > prompt.txt
        """,
    )(recall)
