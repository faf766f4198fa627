"""What the command line says to people: help, times, questions, empty answers, mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from semanticrecall.cli.app import app
from semanticrecall.v1 import types_pb2
from support.fake_engine import FakeEngine
from support.fake_sidecar import Failure, Shelf, invalid
from support.running_server import parts_of, running

Result = Any
Run = Callable[..., Result]

COMMANDS = (
    "demo index recall forget history threads get transfer embed import export stats verify "
    "purge snapshot reembed"
).split()


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", address)
    monkeypatch.setenv("COLUMNS", "80")
    # Of the machine: nothing may depend on it.
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return invoke


# --- help --------------------------------------------------------------------------------------


def test_without_a_command_it_helps_and_is_content(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    assert "Usage: semanticrecall" in result.stdout
    assert "no sidecar reached" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_into_80_columns(run: Run, name: str) -> None:
    shown = run(name, "--help").stdout
    assert "<bool>" not in shown
    (usage,) = re.findall("Usage: .*", shown)
    assert "{" not in usage
    examples = shown[shown.index("Examples") :].split("╭")[0].splitlines()[1:]
    starts = ("semanticrecall ", "zcat ", "echo ", "--")
    assert all(line.strip().startswith(starts) for line in examples if line.strip())


def test_help_of_import_shows_the_formats(run: Run) -> None:
    shown = run("import", "--help").stdout
    assert '{"role": "user", "text": "Hi", "thread_id": "kitchen"}' in shown
    assert '{"messages": [{"role": "user", "content": "Hi"}, ...]}' in shown


def test_what_a_server_lacks_is_said(run: Run, shelf: Shelf) -> None:
    shelf.failures = [Failure(grpc.StatusCode.UNIMPLEMENTED)]
    assert run("reembed").stderr.startswith("semanticrecall: `reembed`: ")
    shelf.failures = [Failure(grpc.StatusCode.UNIMPLEMENTED)]
    assert run("snapshot", "list").stderr.startswith("semanticrecall: `snapshot list`: ")


def test_what_to_install_depends_on_the_command() -> None:
    def told(*arguments: str, missing: str = "typer") -> str:
        code = (
            f"import sys; sys.modules[{missing!r}] = None; "
            "from semanticrecall.cli import main; main()"
        )
        command = [sys.executable, "-c", code, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return result.stderr

    assert "'semanticrecall-sidecar[server]'" in told("serve", missing="pydantic")
    assert "'semanticrecall-sidecar[server]'" in told("model", "install")
    assert "'semanticrecall-sidecar[cli]'" in told("recall", "u", "q")


# --- times -------------------------------------------------------------------------------------


def test_times_are_in_utc_and_say_so(run: Run) -> None:
    run("index", "u", "t", "red", "--id", "a", "--time", "2024-05-01T23:30:00Z")
    assert "── t  (times: UTC)\n2024-05-01 23:30 user: red" in run("history", "u").stdout
    assert re.search(r"time \(UTC\) +2024-05-01 23:30", run("get", "u", "a").stdout)
    assert "first (UTC)" in run("threads", "u").stdout
    recalled = run("recall", "u", "red").stdout
    assert "2024-05-01" in recalled
    assert "times: UTC" in recalled


def test_another_zone_is_honoured_everywhere(run: Run) -> None:
    run("index", "u", "t", "red", "--id", "a", "--time", "2024-05-01T23:30:00Z")
    zone = ("--time-zone", "Europe/Berlin")
    history = run("history", "u", *zone).stdout
    assert "(times: Europe/Berlin)\n2024-05-02 01:30 user: red" in history
    assert "2024-05-02 01:30" in run("get", "u", "a", *zone).stdout
    assert "first (Europe/Berlin)" in run("threads", "u", *zone).stdout
    recalled = run("recall", "u", "red", *zone).stdout
    assert "2024-05-02" in recalled
    assert "times: Europe/Berlin" in recalled
    (message,) = json.loads(run("recall", "u", "red", *zone, "-f", "json").stdout)["messages"]
    assert message["message"]["create_time"] == "2024-05-01T23:30:00Z"
    wrong = run("history", "u", "--time-zone", "Mars/Olympus")
    assert wrong.exit_code == 2
    assert "is not a zone" in wrong.stderr


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ((), 1_714_521_600),
        (("--time-zone", "Europe/Berlin"), 1_714_514_400),
    ],
)
def test_a_time_without_a_zone_is_of_that_zone(
    run: Run, shelf: Shelf, flags: tuple[str, ...], seconds: int
) -> None:
    run("index", "u", "t", "x", "--time", "2024-05-01", *flags)
    run("recall", "u", "q", "--since", "2024-05-01", "--until", "2024-05-01", *flags)
    run("history", "u", "--since", "2024-05-01", *flags)
    run("forget", "u", "--before", "2024-05-01", "--yes", *flags)
    index, recall, history, forget = (seen.request for seen in shelf.seen)
    found = [
        index.messages[0].create_time.seconds,  # type: ignore[attr-defined]
        recall.create_time_from.seconds,  # type: ignore[attr-defined]
        recall.create_time_to.seconds,  # type: ignore[attr-defined]
        history.create_time_from.seconds,  # type: ignore[attr-defined]
        forget.create_time_before.seconds,  # type: ignore[attr-defined]
    ]
    assert found == [seconds] * 5


# --- questions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        (("--thread", "t"), "Forget thread t of u (2 messages) for good?"),
        (("--everything",), "Forget everything of u (3 messages) for good?"),
        (
            ("--before", "2024-05-01"),
            "Forget all messages of u before 2024-05-01 00:00 UTC (3 messages) for good?",
        ),
    ],
)
def test_forget_says_what_goes(run: Run, target: tuple[str, ...], asked: str) -> None:
    run("index", "u", "t", "one", "two")
    run("index", "u", "s", "three")
    result = run("forget", "u", *target, stdin="n\n")
    assert asked in result.stderr
    assert "Nothing was forgotten." in result.stderr
    assert (result.exit_code, result.stdout) == (1, "")


def test_forget_with_nobody_to_answer(run: Run, shelf: Shelf) -> None:
    run("index", "u", "t", "one", "--id", "a")
    result = run("forget", "u", "--everything", stdin="")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--yes" in result.stderr
    assert len(shelf.messages) == 1


# --- empty answers -----------------------------------------------------------------------------


def test_empty_answers_say_so(run: Run) -> None:
    for command, told in (("history", "No messages.\n"), ("threads", "No threads.\n")):
        result = run(command, "nobody")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", told)
        as_json = run(command, "nobody", "--format", "json")
        assert (as_json.exit_code, as_json.stdout, as_json.stderr) == (0, "", "")


# --- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("top_k", "--top-k"),
        ("message_range.before", "--before"),
        ("create_time_to", "--until"),
        ("exclude_message_ids", "--exclude"),
        ("resource_id", "RESOURCE"),
        ("thread_id", "--thread"),
        ("of_the_future", "of_the_future"),
    ],
)
def test_mistakes_name_the_flag(run: Run, shelf: Shelf, field: str, flag: str) -> None:
    shelf.failures = [Failure(grpc.StatusCode.INVALID_ARGUMENT, invalid(field, "is wrong"))]
    result = run("recall", "u", "q")
    assert (result.exit_code, result.stderr) == (2, f"semanticrecall: {flag}: is wrong\n")


def test_this_thread_needs_a_thread(run: Run, shelf: Shelf) -> None:
    result = run("recall", "u", "q", "--this-thread")
    assert result.exit_code == 2
    assert "--this-thread needs --thread" in result.stderr
    assert shelf.seen == []


def test_a_ca_file_that_is_none_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not PEM")
    result = run("stats", "--tls-ca-file", str(tmp_path / "ca.pem"))
    assert result.exit_code == 2
    assert result.stderr.startswith("semanticrecall: --tls-ca-file: ")
    assert "ca.pem is not a PEM file" in result.stderr


def test_a_server_with_tls_is_not_called_absent(run: Run, tmp_path: Path) -> None:
    tls = Path(__file__).resolve().parents[1] / "fixtures/tls"
    with running(
        tmp_path,
        parts_of(FakeEngine()),
        listen=("localhost:0",),
        tls_cert_file=tls / "cert.pem",
        tls_key_file=tls / "key.pem",
    ) as server:
        target = server.sidecar.addresses[0].target
        result = run("stats", "--address", target)
        assert result.exit_code == 3
        assert "something listens at" in result.stderr
        assert "--tls-ca-file" in result.stderr
        trusted = run("stats", "--address", target, "--tls-ca-file", str(tls / "cert.pem"))
        assert trusted.exit_code == 0


# --- widths ------------------------------------------------------------------------------------


def test_the_cost_line_ends_between_facts(run: Run, shelf: Shelf) -> None:
    message = types_pb2.Message(id="a", resource_id="u", thread_id="t", text="red")
    shelf.messages[("u", "a")] = message
    shown = run("recall", "u", "red").stdout.splitlines()
    assert max(map(len, shown)) <= 80
    start = next(n for n, line in enumerate(shown) if line.startswith("1 of 0 messages"))
    facts = " · ".join(line.rstrip() for line in shown[start:]).split(" · ")
    assert facts == [
        "1 of 0 messages in 1.5 ms",
        "embed 0.0 ms, search 0.0 ms, fetch 0.0 ms",
        "times: UTC",
    ]


def test_tables_have_no_trailing_blanks(run: Run) -> None:
    run("index", "u", "a-long-thread-name", "red", "--id", "a")
    run("index", "u", "t", "green", "--id", "b")
    for command in (("threads", "u"), ("stats",), ("get", "u", "a"), ("embed", "x", "a longer x")):
        lines = run(*command).stdout.splitlines()
        assert len(lines) > 1
        assert [line for line in lines if line != line.rstrip()] == []
