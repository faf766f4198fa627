"""The command `demo`: a sidecar, a small conversation, and questions in other words."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.syntax import Syntax
from rich.text import Text

from ..client import RecallClient
from ..connection import DEFAULT_ADDRESS
from ..values import IndexBatch, Message, Status
from .flags import EXIT_ERROR, Flags, command
from .output import Output
from .reading import MessageReader
from .recalled import recalled_messages, show_cost
from .sidecar_process import SidecarFailedError, SidecarProcess

RESOURCE = "demo-sam"
# As people ask: most of it in other words than the messages that answer them.
QUESTIONS = (
    "What is our dog allergic to?",
    "Why were the bills a penny too high?",
    "Which seafood makes me ill?",
    "What was my finishing time over 42 kilometres?",
)
CHECK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class DemoFlags(Flags):
    """Flags of `demo`."""

    address: Annotated[
        str,
        typer.Option(
            help="Use the sidecar at this address instead of starting one. The conversation is "
            f"then indexed there, for the resource {RESOURCE}."
        ),
    ] = ""
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Keep the sidecar's data here. Default: a folder that goes at the end."),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="End after the questions.")] = False


@dataclass(frozen=True)
class Started:
    """The sidecar of a demo; `process` is None where it was there before."""

    address: str
    process: SidecarProcess | None


def demo(flags: DemoFlags) -> None:
    """See it work: start a sidecar, index a small conversation, recall from it, and serve on.

    Ends with Ctrl-C. With --format json: one JSON document a question.
    """
    output = flags.output
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with _sidecar(flags) as started, replace(flags, address=started.address).client() as memory:
            _get_ready(output, started, memory)
            _index(output, memory)
            for question in QUESTIONS:
                _ask(output, memory, question)
            if not flags.once:
                _serve_on(output, started, kept=flags.data_dir is not None)
    except KeyboardInterrupt:
        output.note("Stopped.")
    except SidecarFailedError as error:
        output.error(f"the sidecar could not start\n{error}")
        raise typer.Exit(EXIT_ERROR) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _sidecar(flags: DemoFlags) -> Generator[Started, None, None]:
    if flags.address:
        yield Started(flags.address, None)
        return
    with tempfile.TemporaryDirectory(prefix="semanticrecall-") as scratch:
        address = f"unix:{scratch}/recall.sock" if flags.once else _free_address()
        data_dir = flags.data_dir or Path(scratch, "data")
        arguments = ["--listen", address, "--data-dir", str(data_dir)]
        with SidecarProcess(arguments, Path(scratch, "sidecar.log")) as process:
            yield Started(address, process)


def _free_address() -> str:
    """The usual address if nobody has it, so that clients need not be told one."""
    host, _, port = DEFAULT_ADDRESS.partition(":")
    for candidate in (int(port), 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            return f"{host}:{probe.getsockname()[1]}"
    raise SidecarFailedError("this machine has no free port")


def _get_ready(output: Output, started: Started, memory: RecallClient) -> None:
    start = time.monotonic()
    with output.notes.status("Starting a sidecar ..."):
        if started.process is None:
            memory.wait_until_reachable(timeout=5.0)
        else:
            started.process.wait_until_serving(memory)
    took = time.monotonic() - start
    which = "found" if started.process is None else f"ready in {took:.1f} s"
    _step(output, f"Sidecar {which} at {started.address}")


def conversation() -> list[Message]:
    """The conversation that ships with the package, in the order it was said."""
    source = files("semanticrecall") / "demo" / "conversation.jsonl"
    with source.open("rb") as file:
        items = list(MessageReader("", "", default_thread_id="").read(file))
    return [item.message for item in items if item.message is not None]


def _index(output: Output, memory: RecallClient) -> None:
    messages = conversation()
    start = time.monotonic()
    new = 0
    with output.notes.status("Indexing a conversation ..."):
        for result in memory.index_stream([IndexBatch(RESOURCE, "", messages)]):
            result.raise_for_rejected()
            new += sum(o.status is not Status.UNCHANGED for o in result.outcomes)
    took = time.monotonic() - start
    threads = len({message.thread_id for message in messages})
    what = f"{len(messages)} messages of {threads} conversations over two years"
    cost = f"in {took:.2f} s ({len(messages) / took:,.0f} a second)"
    _step(output, f"Indexed {what} {cost}" if new else f"Found {what}, indexed before")


def _step(output: Output, text: str) -> None:
    if not output.as_json:
        output.console.print(Text.assemble(("✓ ", "bold green"), text))


def _ask(output: Output, memory: RecallClient, question: str) -> None:
    start = time.perf_counter()
    result = memory.recall(RESOURCE, question, top_k=2)
    round_trip_ms = (time.perf_counter() - start) * 1000
    if output.as_json:
        output.json({"question": question, "round_trip_ms": round_trip_ms, "result": result})
        return
    output.console.print()
    output.console.print(Text.assemble(("? ", "bold magenta"), (question, "bold")))
    output.console.print(recalled_messages(output, result, question))
    show_cost(output, result, f"round trip {round_trip_ms:.1f} ms")


def _serve_on(output: Output, started: Started, *, kept: bool) -> None:
    if not output.as_json:
        _show_how_to_connect(output, started.address)
    if started.process is None:
        return
    output.note(f"\nServing at {started.address} until Ctrl-C.")
    if not kept:
        output.note("Then what was indexed here is deleted; --data-dir FOLDER keeps it.")
    while not started.process.ended(CHECK_SECONDS):
        pass
    raise SidecarFailedError("it ended by itself")


def _show_how_to_connect(output: Output, address: str) -> None:
    usual = address == DEFAULT_ADDRESS
    argument, flag = ("", "") if usual else (f'"{address}"', f" --address {address}")
    python = (
        "from semanticrecall import RecallClient, user\n"
        f"with RecallClient({argument}) as memory:\n"
        '    memory.index("me", "chat-1", [user("I parked on level 3")])\n'
        '    for m in memory.recall("me", "Where is my car?"):\n'
        "        print(m.score, m.message.text)"
    )
    shell = (
        f'semanticrecall recall {RESOURCE} "Who is my landlady?"{flag}\n'
        f"semanticrecall threads {RESOURCE}{flag}\n"
        f"semanticrecall stats{flag}"
    )
    if not _on_path():
        shell = shell.replace("semanticrecall ", f"{_typed('semanticrecall')} ")
    interpreter = _typed(Path(sys.executable).name)
    listed = ((f"Python ({interpreter})", python, "python"), ("the shell", shell, "bash"))
    for title, text, language in listed:
        # At the left edge and without a frame, never folded: so that it can be copied.
        code = Syntax(text, language, theme="ansi_dark", background_color="default")
        output.console.print(Text(f"\nFrom {title}", style="bold"))
        output.console.print(code, soft_wrap=True)


def _on_path() -> bool:
    """Whether a shell finds the command of this installation by its name."""
    found = shutil.which("semanticrecall")
    return found is not None and Path(found).parent == Path(sys.executable).parent


def _typed(name: str) -> str:
    """A program of this installation as it is typed here, where it may not be on PATH."""
    path, here = Path(sys.executable).parent / name, Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def register(app: typer.Typer) -> None:
    """Add this command."""
    command(
        app,
        "demo",
        panel="Start here",
        examples="""
        semanticrecall demo
        semanticrecall demo --once
        semanticrecall demo --address 127.0.0.1:7650
        """,
    )(demo)
