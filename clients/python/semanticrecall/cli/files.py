"""Commands that move many messages: import and export."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ..client import RecallClient
from ..errors import ResourceExhaustedError
from ..results import IndexResult
from ..values import IndexBatch, Status, Wait
from .flags import EXIT_IN_PART, EXIT_USAGE, Flags, LongFlags, command
from .jsonlines import LineError, message_to_json, vectors_to_json
from .output import Output, plain
from .reading import MessageReader, Read, batches

PANEL = "Files"
BATCH_MESSAGES = 200
BATCH_BYTES = 2 * 1024 * 1024
STREAM_SECONDS_MAX = 86_400.0
PROBLEMS_SHOWN_MAX = 20
RESOURCES_SHOWN_MAX = 10
FORMATS = """
One message a line, or a JSON array of messages:
  {"role": "user", "text": "Hi", "thread_id": "kitchen"}
  role is user, assistant, system or tool. Optional: id, resource_id,
  thread_id, author, create_time ("2024-05-01T14:00:00Z"), metadata
  (an object), payload (base64), payload_type, group_id, vectors (as
  `export --with-vectors` writes them).
The same with messages as chat APIs keep them:
  {"role": "user", "content": "Hi"}
  content is a string or a list of parts; tool_calls are kept with
  their results.
One conversation a line (fine-tuning files), or an array of them:
  {"messages": [{"role": "user", "content": "Hi"}, ...]}
  each is a thread, named by its thread_id or id, if it has one.
"""


class WaitName(StrEnum):
    """When a batch counts as done."""

    SEARCHABLE = "searchable"
    DURABLE = "durable"


@dataclass(frozen=True, kw_only=True)
class ImportFlags(Flags):
    """Flags of `import`."""

    file: Annotated[Path, typer.Argument(help="The file; - is stdin.", allow_dash=True)]
    resource: Annotated[
        str,
        typer.Option(
            "--resource",
            "-r",
            help="Whose memory; wins over what the file says. Default: as it says.",
        ),
    ] = ""
    thread: Annotated[
        str,
        typer.Option(
            "--thread",
            "-t",
            help="The conversation, where the file does not say. Default for chat exports: the "
            "file's name.",
        ),
    ] = ""
    wait: Annotated[
        WaitName, typer.Option(help="Wait until messages are searchable, or only on disk.")
    ] = WaitName.SEARCHABLE


@dataclass
class Tally:
    """What became of a file's messages."""

    statuses: Counter[str] = field(default_factory=Counter)
    resources: set[str] = field(default_factory=set[str])
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def answered(self) -> int:
        """Messages that the server answered for."""
        return sum(self.statuses.values())

    @property
    def messages(self) -> int:
        """Messages of the file, those that could not be read too."""
        return self.answered + self.unreadable

    @property
    def failed(self) -> int:
        """Messages that are not stored."""
        return self.unreadable + self.statuses["rejected"]

    def problem(self, place: str, text: str) -> None:
        """Keep the first few."""
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(f"{place}: {text}")


def import_file(flags: ImportFlags) -> None:
    """Index the messages of a file: JSON Lines, or chat messages as their APIs keep them.

    A bad line is reported and left out; the others go on. Importing a file again changes nothing:
    messages without an id get one from thread, position and content.
    """
    output = flags.output
    with _opened(flags.file) as file, flags.client() as memory, _progress(output) as progress:
        size = None if _is_stdin(flags.file) else flags.file.stat().st_size
        task = progress.add_task("importing", total=size, messages="")
        reader = MessageReader(
            flags.resource,
            flags.thread,
            default_thread_id="stdin" if size is None else flags.file.stem,
        )
        importer = Importer(
            memory,
            Wait[flags.wait.name],
            lambda count, offset: progress.update(
                task, messages=f"{count:,} messages", completed=offset
            ),
        )
        try:
            importer.run(reader.read(file))
        except LineError as error:
            output.error(f"{flags.file}: {error}")
            raise typer.Exit(EXIT_USAGE) from None
    _report(output, importer.tally)
    if importer.tally.failed:
        raise typer.Exit(EXIT_IN_PART)


class Importer:
    """Sends what was read on one stream, and keeps count of the answers.

    Args:
        advance: called with the messages that were answered for, and where in the file they end.
    """

    def __init__(
        self,
        memory: RecallClient,
        wait: Wait,
        advance: Callable[[int, int], None] = lambda count, offset: None,
    ) -> None:
        self._memory = memory
        self._wait = wait
        self._advance = advance
        self._sent: deque[list[Read]] = deque()
        self.tally = Tally()

    def run(self, items: Iterator[Read]) -> None:
        """Send all; returns when all is answered for."""
        start = time.monotonic()
        for result in self._memory.index_stream(self._requests(items), timeout=STREAM_SECONDS_MAX):
            batch = self._sent.popleft()
            if result.error is not None and result.error.retryable:
                result = self._again(batch)
            self._count(batch, result)
            self._advance(self.tally.answered, batch[-1].offset)
        self.tally.seconds = time.monotonic() - start

    def _requests(self, items: Iterator[Read]) -> Iterator[IndexBatch]:
        # Runs on the stream's own thread, a little ahead of the answers.
        readable = (item for item in items if self._is_readable(item))
        for batch in batches(readable, messages_max=BATCH_MESSAGES, bytes_max=BATCH_BYTES):
            self._sent.append(batch)
            self.tally.resources.add(batch[0].resource_id)
            yield self._request(batch)

    def _request(self, batch: list[Read]) -> IndexBatch:
        messages = [item.message for item in batch if item.message is not None]
        vectors = [item.vectors for item in batch if item.vectors is not None]
        return IndexBatch(batch[0].resource_id, "", messages, self._wait, vectors=vectors)

    def _is_readable(self, item: Read) -> bool:
        if item.message is None:
            self.tally.unreadable += 1
            self.tally.problem(item.place, item.problem)
        return item.message is not None

    def _again(self, batch: list[Read]) -> IndexResult:
        """A batch that came at a bad time, as a call of its own, which is retried."""
        request = self._request(batch)
        try:
            return self._memory.index(
                request.resource_id,
                "",
                request.messages,
                wait=self._wait,
                vectors=request.vectors,
            )
        except ResourceExhaustedError as error:
            return IndexResult((), error=error)

    def _count(self, batch: list[Read], result: IndexResult) -> None:
        if result.error is not None:
            self.tally.statuses["rejected"] += len(batch)
            self.tally.problem(f"{batch[0].place} to {batch[-1].place}", result.error.message)
            return
        for item, outcome in zip(batch, result.outcomes, strict=True):
            self.tally.statuses[outcome.status.name.lower()] += 1
            if outcome.status is Status.REJECTED:
                reason = outcome.error.message if outcome.error else "rejected"
                self.tally.problem(item.place, reason)


def _is_stdin(path: Path) -> bool:
    return str(path) == "-"


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    if _is_stdin(path):
        return nullcontext(sys.stdin.buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from None


def _progress(output: Output) -> AbstractContextManager[Progress]:
    return output.progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[messages]}"),
        TimeElapsedColumn(),
    )


def _report(output: Output, tally: Tally) -> None:
    for problem in tally.problems:
        output.note(problem)
    hidden = tally.failed - len(tally.problems)
    if hidden > 0:
        output.note(f"... and {hidden:,} more")
    rate = tally.answered / tally.seconds if tally.seconds else 0.0
    named = sorted(tally.resources)
    counts: dict[str, int] = {
        "messages": tally.messages,
        **{status.name.lower(): tally.statuses[status.name.lower()] for status in Status if status},
        "unreadable": tally.unreadable,
    }
    if output.as_json:
        output.json(
            {
                **counts,
                "resources": named[:RESOURCES_SHOWN_MAX],
                "seconds": round(tally.seconds, 3),
                "messages_per_second": round(rate, 1),
            }
        )
        return
    shown = ", ".join(named[:RESOURCES_SHOWN_MAX])
    hidden = len(named) - RESOURCES_SHOWN_MAX
    output.pairs(
        {
            "messages": tally.messages,
            **{name: count for name, count in counts.items() if count},
            **({"of": shown + (f" and {hidden:,} more" if hidden > 0 else "")} if named else {}),
            "took": f"{tally.seconds:,.2f} s ({rate:,.0f} a second)",
        }
    )


@dataclass(frozen=True, kw_only=True)
class ExportFlags(LongFlags):
    """Flags of `export`."""

    resource: Annotated[str, typer.Argument(help="Whose memory.")]
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; must not exist. Default: stdout."),
    ] = None
    with_vectors: Annotated[
        bool,
        typer.Option(
            "--with-vectors",
            help="Write the vectors too: a sidecar with the same model need not embed again.",
        ),
    ] = False


def export_file(flags: ExportFlags) -> None:
    """Write every message of a resource as JSON Lines, which `import` reads back.

    A file is there when all is in it, and nobody else can read it (mode 0600).
    """
    output, path = flags.output, flags.output_file
    count = 0
    with nullcontext(sys.stdout.buffer) if path is None else _written(path) as target:
        with flags.client() as memory, _progress(output) as progress:
            task = progress.add_task("exporting", total=None, messages="")
            for line in _exported(flags, memory):
                target.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                count += 1
                progress.update(task, messages=f"{count:,} messages")
        target.flush()
    if not count:
        output.note(f"{plain(flags.resource)} has no messages.")
    if path is not None:
        output.note(f"Wrote {count:,} messages to {path}.")


@contextmanager
def _written(path: Path) -> Generator[IO[bytes], None, None]:
    """A file that gets its name, which must be free, once it is whole."""
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        descriptor, name = tempfile.mkstemp(prefix=".export-", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from None
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.rename(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _exported(flags: ExportFlags, memory: RecallClient) -> Iterator[dict[str, Any]]:
    if not flags.with_vectors:
        yield from map(message_to_json, memory.export(flags.resource))
        return
    for found in memory.export_with_vectors(flags.resource):
        line = message_to_json(found.message)
        if found.vectors is not None:
            line["vectors"] = vectors_to_json(found.vectors)
        yield line


def register(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        "import",
        panel=PANEL,
        examples="""
        semanticrecall import backup.jsonl
        semanticrecall import export.json --resource user-42 --thread support-17
        zcat chats.jsonl.gz | semanticrecall import - --resource user-42
        """,
        formats=FORMATS,
    )(import_file)
    command(
        app,
        "export",
        panel=PANEL,
        examples="""
        semanticrecall export user-42 -o user-42.jsonl
        semanticrecall export user-42 --with-vectors -o user-42.jsonl
        semanticrecall export user-42 | wc -l
        """,
    )(export_file)
