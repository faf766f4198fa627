"""Commands that work with what is remembered: index, history, threads and the like."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from ..values import EmbedRole, ListOptions, Message, MessageFields
from .flags import EXIT_IN_PART, Flags, TimedFlags, command
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
from .output import Output, plain
from .recalled import excerpt, writer

STDIN_BYTES_MAX = 262_144
HISTORY_DEFAULT = 20


@dataclass(frozen=True, kw_only=True)
class IndexFlags(TimedFlags):
    """Flags of `index`."""

    resource: Resource
    thread: Annotated[str, typer.Argument(help="The conversation.")]
    texts: Annotated[
        list[str], typer.Argument(help="What was said; several are several messages. - is stdin.")
    ]
    role: Annotated[
        RoleName, typer.Option(metavar="ROLE", help="Who said it: user, assistant, system or tool.")
    ] = RoleName.USER
    author: Annotated[
        str, typer.Option(help="Name of the writer: a query that names it favours the message.")
    ] = ""
    id: Annotated[str, typer.Option(help="The message's id. Default: a new one.")] = ""
    time: Annotated[str, typer.Option(help="When it was said. Default: now.")] = ""
    metadata: Annotated[str, typer.Option(help="JSON object for --filter.")] = ""


def index(flags: IndexFlags) -> None:
    """Store what was said, durably, and make it searchable."""
    if flags.id and len(flags.texts) != 1:
        raise typer.BadParameter("--id needs exactly one text")
    fields: MessageFields = {"author": flags.author}
    if flags.id:
        fields["id"] = flags.id
    if flags.time:
        fields["create_time"] = flags.moment(flags.time, "--time")
    if flags.metadata:
        fields["metadata"] = json_object(flags.metadata, "--metadata")
    said = [_stdin() if text == "-" else text for text in flags.texts]
    messages = [Message(roles_named([flags.role])[0], text, **fields) for text in said]
    with flags.client() as memory:
        result = memory.index(flags.resource, flags.thread, messages)
    output = flags.output
    if output.as_json:
        output.json(result)
    else:
        output.table(
            ("message", "status", ""),
            (
                (o.message_id, o.status.name.lower(), o.error.message if o.error else "")
                for o in result.outcomes
            ),
        )
    if result.rejected:
        raise typer.Exit(EXIT_IN_PART)


def _stdin() -> str:
    data = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        raise typer.BadParameter("stdin holds more than 262,144 bytes; use `import`")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("stdin is not UTF-8") from None


@dataclass(frozen=True, kw_only=True)
class HistoryFlags(TimedFlags):
    """Flags of `history`."""

    resource: Resource
    thread: Thread = ""
    last: Annotated[int, typer.Option("--last", "-n", help="The newest so many.", min=1)] = (
        HISTORY_DEFAULT
    )
    all: Annotated[bool, typer.Option("--all", help="All, instead of the newest.")] = False
    role: Roles = field(default_factory=list[RoleName])
    since: Since = ""
    until: Until = ""


def history(flags: HistoryFlags) -> None:
    """Show messages in the order they were said (JSON Lines with --format json)."""
    options: ListOptions = {"thread_id": flags.thread, "roles": roles_named(flags.role)}
    if flags.since:
        options["create_time_from"] = flags.moment(flags.since, "--since")
    if flags.until:
        options["create_time_to"] = flags.moment(flags.until, "--until")
    if not flags.all:
        options["newest_first"], options["limit"] = True, flags.last
    with flags.client() as memory:
        listed = memory.list_messages(flags.resource, **options)
        show_messages(flags.output, listed if flags.all else reversed(list(listed)))


def show_messages(output: Output, messages: Iterable[Message]) -> None:
    """Messages one after the other, with a heading where the thread changes."""
    if output.as_json:
        output.json_lines(messages)
        return
    thread_id: str | None = None
    for message in messages:
        if message.thread_id != thread_id:
            zone = f"  (times: {output.zone_name})" if thread_id is None else ""
            thread_id = message.thread_id
            output.console.print(Text.assemble((f"── {plain(thread_id)}", "bold"), (zone, "dim")))
        when = output.time(message.create_time) if message.create_time else ""
        shown = excerpt(message.text) or f"({plain(message.payload_type) or 'no text'})"
        output.console.print(
            Text.assemble((f"{when} ", "dim"), (f"{writer(message)}: ", "bold cyan"), shown)
        )
    if thread_id is None:
        output.note("No messages.")


@dataclass(frozen=True, kw_only=True)
class ThreadsFlags(TimedFlags):
    """Flags of `threads`."""

    resource: Resource


def threads(flags: ThreadsFlags) -> None:
    """List a resource's conversations, the most recently active first."""
    with flags.client() as memory:
        listed = memory.list_threads(flags.resource)
        if flags.output.as_json:
            flags.output.json_lines(listed)
            return
        rows = [(t.thread_id, t.messages, t.first_create_time, t.last_create_time) for t in listed]
    if not rows:
        flags.output.note("No threads.")
        return
    zone = flags.output.zone_name
    flags.output.table(("thread", "messages", f"first ({zone})", f"last ({zone})"), rows)


@dataclass(frozen=True, kw_only=True)
class GetFlags(TimedFlags):
    """Flags of `get`."""

    resource: Resource
    ids: Annotated[list[str], typer.Argument(help="Ids of messages.")]


def get(flags: GetFlags) -> None:
    """Show messages by id (JSON Lines with --format json)."""
    with flags.client() as memory:
        found = memory.get_messages(flags.resource, flags.ids)
    if flags.output.as_json:
        flags.output.json_lines(found)
        return
    for message in found:
        shown: dict[str, Any] = {
            "id": message.id,
            "thread": message.thread_id,
            "role": message.role.name.lower(),
            "author": message.author,
            f"time ({flags.output.zone_name})": message.create_time,
            "group": message.group_id,
            "metadata": json.dumps(message.metadata, ensure_ascii=False)
            if message.metadata
            else "",
            "payload": f"{len(message.payload):,} bytes {message.payload_type}"
            if message.payload
            else "",
            "text": message.text,
        }
        flags.output.pairs({name: value for name, value in shown.items() if value})


@dataclass(frozen=True, kw_only=True)
class TransferFlags(Flags):
    """Flags of `transfer`."""

    resource: Resource
    thread: Annotated[str, typer.Argument(help="The conversation.")]
    to_resource: Annotated[str, typer.Argument(help="Whose it becomes.")]


def transfer(flags: TransferFlags) -> None:
    """Give a conversation with all its messages to another resource."""
    with flags.client() as memory:
        moved = memory.transfer_thread(flags.resource, flags.thread, flags.to_resource)
    if flags.output.as_json:
        flags.output.json({"messages": moved})
    else:
        flags.output.console.print(f"Moved {moved:,} messages.")


class EmbedRoleName(StrEnum):
    """Embedding roles by their names."""

    QUERY = "query"
    PASSAGE = "passage"


@dataclass(frozen=True, kw_only=True)
class EmbedFlags(Flags):
    """Flags of `embed`."""

    texts: Annotated[list[str], typer.Argument(help="Texts to embed.")]
    role: Annotated[EmbedRoleName, typer.Option(help="A question, or something to be found.")] = (
        EmbedRoleName.PASSAGE
    )


def embed(flags: EmbedFlags) -> None:
    """Show the vectors that the server's model makes of texts."""
    with flags.client() as memory:
        result = memory.embed(flags.texts, role=EmbedRole[flags.role.name])
    output = flags.output
    if output.as_json:
        output.json(result)
        return
    output.table(
        ("text", "tokens", "cut", f"first of {result.dimensions} numbers"),
        (
            (
                excerpt(text, 40),
                made.tokens,
                made.truncated,
                ", ".join(f"{value:+.3f}" for value in made.values[:5]),
            )
            for text, made in zip(flags.texts, result.embeddings, strict=True)
        ),
    )
    output.note(result.index_identity)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        "index",
        panel=PANEL,
        examples="""
        semanticrecall index user-42 kitchen "My dog Rex is allergic to chicken"
        semanticrecall index user-42 kitchen "Noted!" --role assistant \\
            --time 2024-05-01T14:00:00Z --metadata '{"project": "A"}'
        echo "a long text" | semanticrecall index user-42 kitchen -
        """,
    )(index)
    command(
        app,
        "history",
        panel=PANEL,
        examples="""
        semanticrecall history user-42 --thread kitchen --last 10
        semanticrecall history user-42 --since 2024-05-01 --all --format json
        """,
    )(history)
    command(app, "threads", panel=PANEL, examples="semanticrecall threads user-42")(threads)
    command(app, "get", panel=PANEL, examples="semanticrecall get user-42 1f0c 2e1d")(get)
    command(
        app, "transfer", panel=PANEL, examples="semanticrecall transfer user-42 kitchen user-43"
    )(transfer)
    command(
        app,
        "embed",
        panel=PANEL,
        examples="""
        semanticrecall embed "My dog is ill" "The dog is sick"
        semanticrecall embed "Who is ill?" --role query --format json
        """,
    )(embed)
