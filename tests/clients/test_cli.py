"""The command line, against a sidecar made of a dictionary."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from semanticrecall.cli.app import app
from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_sidecar import Failure, Shelf

Result = Any
Run = Callable[..., Result]


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", address)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TZ", "UTC")

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return invoke


def documents(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- index and recall --------------------------------------------------------------------------


def test_index_then_recall(run: Run) -> None:
    indexed = run("index", "u", "t", "Rex is allergic to chicken", "--id", "m1")
    assert (indexed.exit_code, indexed.stderr) == (0, "")
    assert indexed.stdout.split() == ["message", "status", "m1", "indexed"]
    recalled = run("recall", "u", "chicken allergic")
    assert recalled.exit_code == 0
    assert "── t\n" in recalled.stdout
    assert " 1  ████████ 1.00" in recalled.stdout
    assert "user: Rex is allergic to chicken" in recalled.stdout
    assert "1 of 0 messages in 1.5 ms" in recalled.stdout


def test_index_takes_all_fields_and_stdin(run: Run, shelf: Shelf) -> None:
    result = run(
        *("index", "u", "t", "-", "--role", "assistant", "--author", "Kim", "--id", "m"),
        *("--time", "2024-05-01T14:00:00+02:00", "--metadata", '{"n": [1, null]}'),
        stdin="from stdin",
    )
    assert result.exit_code == 0
    expected = types_pb2.Message(
        id="m",
        thread_id="t",
        resource_id="u",
        role=types_pb2.ROLE_ASSISTANT,
        author="Kim",
        text="from stdin",
    )
    expected.create_time.seconds = 1_714_564_800
    expected.metadata.update({"n": [1, None]})
    assert shelf.messages == {("u", "m"): expected}


def test_recall_as_json(run: Run) -> None:
    run("index", "u", "t", "red", "--id", "a", "--time", "2024-05-01T14:00:00Z")
    (document,) = documents(run("recall", "u", "red", "--format", "json"))
    assert document["messages"] == [
        {
            "message": {
                "id": "a",
                "thread_id": "t",
                "resource_id": "u",
                "role": "user",
                "text": "red",
                "create_time": "2024-05-01T14:00:00Z",
            },
            "hit": True,
            "score": 1.0,
            "rank": 1,
            "group_state": "unspecified",
            "explain": None,
            "relevance": 2.0,
            "lexical_only": False,
            "text_cut": False,
        }
    ]
    assert set(document) == {
        *("messages", "context_text", "info", "degraded", "request_id", "excluded"),
    }
    assert document["info"]["timings"]["total_us"] == 1500


def test_flags_of_recall_reach_the_wire(run: Run, shelf: Shelf) -> None:
    result = run(
        *("recall", "u", "q", "-k", "7", "--before", "2", "--after", "3", "-t", "t"),
        *("--this-thread", "--threshold", "-0.5", "--filter", '{"a": 1}', "--role", "user"),
        *("--role", "tool", "--since", "2024-01-01T00:00:00Z", "--until", "2024-01-02T00:00:00Z"),
        *("--exclude", "x", "--mode", "dense", "--context", "mastra"),
        *("--also", "p", "--also", "r", "--recency", "0.5", "--half-life", "1.5"),
        *("--diversity", "0.25", "--near-duplicates", "0.75", "--max-tokens", "100"),
    )
    assert result.exit_code == 0
    expected = recall_pb2.RecallRequest(
        resource_id="u",
        query="q",
        thread_id="t",
        scope=types_pb2.SCOPE_THREAD,
        top_k=7,
        message_range=recall_pb2.MessageRange(before=2, after=3),
        threshold=-0.5,
        roles=[types_pb2.ROLE_USER, types_pb2.ROLE_TOOL],
        exclude_message_ids=["x"],
        ranking=recall_pb2.Ranking(
            mode=types_pb2.MODE_DENSE,
            recency_weight=0.5,
            diversity=0.25,
            near_duplicate_cosine=0.75,
        ),
        alternative_queries=["p", "r"],
        max_tokens=100,
        context_format=types_pb2.CONTEXT_MASTRA,
        time_zone="UTC",
    )
    expected.filter.update({"a": 1})
    expected.ranking.recency_half_life.seconds = 129_600
    expected.create_time_from.seconds = 1_704_067_200
    expected.create_time_to.seconds = 1_704_153_600
    assert shelf.seen[0].request == expected


def test_nothing_found_says_why(run: Run) -> None:
    result = run("recall", "u", "q")
    assert result.exit_code == 0
    assert result.stdout.startswith("No memories: the query is empty.")


def test_stored_text_cannot_steer_the_terminal(run: Run, shelf: Shelf) -> None:
    run("index", "u", "t", "red \x1b[2J[bold]\x07 end", "--id", "a")
    for arguments in (("recall", "u", "red"), ("history", "u"), ("get", "u", "a")):
        shown = run(*arguments).stdout
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "[bold]" in shown


# --- history and forgetting --------------------------------------------------------------------


def test_history_is_in_order_and_pages(run: Run) -> None:
    for number in range(7):
        run("index", "u", "t", f"text {number}", "--id", str(number))
    newest = documents(run("history", "u", "--last", "5", "--format", "json"))
    assert [m["id"] for m in newest] == ["2", "3", "4", "5", "6"]
    assert [m["id"] for m in documents(run("history", "u", "--all", "-f", "json"))] == list(
        "0123456"
    )
    assert "user: text 6" in run("history", "u").stdout


def test_threads_get_transfer_embed(run: Run) -> None:
    run("index", "u", "t", "red", "--id", "a")
    assert [t["thread_id"] for t in documents(run("threads", "u", "-f", "json"))] == ["t"]
    assert documents(run("get", "u", "a", "-f", "json"))[0]["text"] == "red"
    assert run("get", "u", "unknown").exit_code == 1
    assert run("transfer", "u", "t", "v").stdout == "Moved 1 messages.\n"
    (embedded,) = documents(run("embed", "one two", "--role", "query", "-f", "json"))
    assert embedded["embeddings"] == [{"values": [1.0, 0.0], "tokens": 4, "truncated": False}]
    assert "+1.000, +0.000" in run("embed", "one").stdout


def test_forget_asks_and_needs_one_target(run: Run, shelf: Shelf) -> None:
    run("index", "u", "t", "red", "--id", "a")
    run("index", "u", "t", "green", "--id", "b")
    run("index", "u", "s", "blue", "--id", "c")
    assert run("forget", "u").exit_code == 2
    assert run("forget", "u", "--thread", "t", "--everything").exit_code == 2
    assert run("forget", "u", "--everything", stdin="n\n").exit_code == 1
    assert len(shelf.messages) == 3
    assert run("forget", "u", "-m", "a").stdout == "Forgot 1 messages, 1 vectors, 0 threads.\n"
    assert run("forget", "u", "--thread", "t", stdin="y\n").exit_code == 0
    (counts,) = documents(run("forget", "u", "--everything", "--yes", "-f", "json"))
    assert counts["messages"] == 1
    assert shelf.messages == {}


# --- care --------------------------------------------------------------------------------------


def test_stats(run: Run) -> None:
    run("index", "u", "t", "fine", "--id", "a")
    assert documents(run("stats", "-f", "json"))[0]["messages"] == 1
    assert "71% of 7 look-ups found" in run("stats").stdout


# --- errors and exit codes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 2),
        (grpc.StatusCode.NOT_FOUND, 1),
        (grpc.StatusCode.INTERNAL, 1),
        (grpc.StatusCode.UNAUTHENTICATED, 1),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 3),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 3),
    ],
)
def test_exit_codes(run: Run, shelf: Shelf, code: grpc.StatusCode, exit_code: int) -> None:
    detail = types_pb2.ErrorDetail(
        code=code.value[0], message="what is wrong", reason="X", retryable=exit_code == 3
    )
    shelf.failures = [Failure(code, detail)]
    result = run("recall", "u", "q")
    assert result.exit_code == exit_code
    assert result.stderr.startswith("semanticrecall: what is wrong")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_no_sidecar_says_how_to_start_one(run: Run, tmp_path: Path) -> None:
    result = run("recall", "u", "q", "--address", f"unix:{tmp_path}/nobody.sock")
    assert result.exit_code == 3
    assert "semanticrecall serve" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("recall", "u", "q", "--filter", "[1]"),
        ("recall", "u", "q", "--since", "yesterday"),
        ("recall", "u", "q", "--top-k", "0"),
        ("recall", "u", "q", "--address", "nonsense"),
        ("recall", "u", "q", "--token-file", "/nowhere/token"),
        ("index", "u", "t", "a", "b", "--id", "x"),
        ("index", "u", "t", "a", "--metadata", "x"),
        ("import", "/nowhere.jsonl"),
        ("export", "u", "-o", "/nowhere/out.jsonl"),
        ("recall", "u"),
        ("nonsense",),
    ],
)
def test_wrong_usage(run: Run, shelf: Shelf, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert shelf.seen == []


def test_the_token_file_is_used(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    run("stats", "--token-file", str(tmp_path / "token"))
    assert shelf.seen[0].metadata["authorization"] == "Bearer t0ken"


def test_every_command_teaches_with_examples(run: Run) -> None:
    commands = "index recall forget history threads get transfer embed import export stats"
    care = "verify purge reembed demo snapshot%create snapshot%list snapshot%delete"
    for name in [*commands.split(), *care.split(), "snapshot%restore"]:
        name = name.replace("%", " ")
        shown = run(*name.split(), "--help")
        assert shown.exit_code == 0
        assert f"  semanticrecall {name}" in shown.stdout.replace("snapshot\n", "snapshot create\n")
        assert "--format" in shown.stdout


# --- as a process ------------------------------------------------------------------------------


def script(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    code = code or "from semanticrecall.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_typer_it_says_what_to_install() -> None:
    block = "import sys; sys.modules['typer'] = None; "
    result = script(code=block + "from semanticrecall.cli import main; main()")
    assert result.returncode == 2
    assert result.stderr == (
        "semanticrecall: the command line needs typer and rich: "
        "pip install 'semanticrecall-sidecar[cli]' (in a checkout: '.[cli]')\n"
    )


def test_without_the_server_it_says_what_to_install() -> None:
    block = "import sys; sys.modules['pydantic_settings'] = None; sys.argv[1:] = ['serve']; "
    result = script(code=block + "from semanticrecall.cli import main; main()")
    assert result.returncode == 2
    assert "pip install 'semanticrecall-sidecar[server]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_client_pulls_nothing_else() -> None:
    code = (
        "import sys, semanticrecall; heavy = {'typer', 'rich', 'numpy', 'faiss', 'pydantic', "
        "'semanticrecall_core', 'semanticrecall_server'}; print(sorted(heavy & set(sys.modules)))"
    )
    assert script(code=code).stdout == "[]\n"


def test_version_and_plugins() -> None:
    assert script("--version").stdout == "semanticrecall 0.1.0\n"
    shown = script("model", "--help")
    assert shown.returncode == 0
    assert "semanticrecall model install" in shown.stdout


def test_a_reader_that_has_enough_is_no_error(address: str, shelf: Shelf) -> None:
    for number in range(3000):
        message = types_pb2.Message(id=str(number), resource_id="u", thread_id="t", text="x" * 100)
        shelf.messages[("u", str(number))] = message
    code = "from semanticrecall.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "export", "u", "--address", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0
