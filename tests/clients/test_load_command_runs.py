"""The command `load`, run: what it writes and where, what it exits with, and what ends it."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest
from typer.testing import CliRunner

from semanticrecall import RecallClient, user
from semanticrecall.care_results import VerifySummary
from semanticrecall.cli.app import app
from semanticrecall.load.live import LiveObserver
from semanticrecall.load.measured import WorkerSecond
from support.fake_sidecar import Shelf
from support.loads import calls, small_sidecar
from support.running_server import InProcessServer, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
TLS = ROOT / "tests/fixtures/tls"
SCHEMA = json.loads((ROOT / "docs/load-result.schema.json").read_text())
TOKEN = "first-token-0123456789"
SMALL = (
    *("--seconds", "0.4", "--warm-up-seconds", "0", "--resources", "4", "--messages-before", "6"),
    *("--arrivals", "constant", "--processes", "1"),
)
Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["load", *arguments])

    return invoke


@pytest.fixture
def served(tmp_path: Path) -> Iterator[InProcessServer]:
    with small_sidecar(tmp_path) as serving:
        yield serving


def address_of(server: InProcessServer) -> str:
    return server.sidecar.addresses[0].target


def messages(address: str) -> int:
    with RecallClient(address, timeout=30) as memory:
        return memory.stats().messages


def test_a_load_writes_its_result_everywhere(
    run: Run, served: InProcessServer, tmp_path: Path
) -> None:
    json_file, html_file = tmp_path / "r.json", tmp_path / "r.html"
    json_file.write_text("an older one")
    address = address_of(served)
    result = run(
        *("--address", address, "--rate", "100,150", *SMALL),
        *("--json", str(json_file), "--html", str(html_file)),
    )
    assert result.exit_code == 0, result.output
    document = json.loads(json_file.read_text())
    jsonschema.validate(document, SCHEMA)
    assert [stage["finished"] for stage in document["stages"]] == [40, 60]
    assert calls(served, "Recall") + calls(served, "Index") == 100
    assert messages(address) == 0
    assert html_file.read_text().startswith("<!")
    assert sorted(path.name for path in tmp_path.iterdir() if "r." in path.name) == [
        "r.html",
        "r.json",
    ]
    assert json_file.stat().st_mode & 0o777 == 0o666 & ~umask()

    lines = result.stdout.splitlines()
    assert lines[0].startswith(tuple(finding["code"] for finding in document["findings"]))
    parts = [
        re.search(found, result.stdout) for found in ("SHARED_MACHINE", "stage +ms", "sent by")
    ]
    positions = [found.start() if found else -1 for found in parts]
    assert -1 not in positions
    assert positions == sorted(positions)
    row = next(line for line in lines if re.match(r"100 calls/s +recall", line)).split()
    recall = document["stages"][0]["operations"]["recall"]
    assert row[3] == str(recall["calls"])
    assert float(row[5]) == pytest.approx(recall["latency_ms"]["p50"], rel=0.05)
    # Where stderr is no terminal, a line for each phase.
    phases = [line.split(":")[0] for line in result.stderr.splitlines()]
    assert phases[0] == "preparing"
    assert [p for p in phases if p.endswith("calls/s")] == ["100 calls/s", "150 calls/s"]
    assert "cleaning up" in phases


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_json_alone_is_on_stdout(run: Run, served: InProcessServer) -> None:
    result = run("--address", address_of(served), "--in-flight", "2", *SMALL, "--format", "json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    document = json.loads(line)
    jsonschema.validate(document, SCHEMA)
    (stage,) = document["stages"]
    assert stage["schedule"] is None
    assert calls(served, "Recall") + calls(served, "Index") == stage["finished"]


def test_links_are_followed_and_what_is_no_plain_file_is_written_to(
    run: Run, served: InProcessServer, tmp_path: Path
) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("an older one")
    link.symlink_to("target")
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    result = run(
        *("--address", address_of(served), "--rate", "50", *SMALL),
        *("--json", str(link), "--html", str(pipe)),
    )
    assert result.exit_code == 0, result.output
    reader.join(30)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert read[0].startswith("<!")
    assert link.is_symlink()
    assert json.loads(target.read_text())["schema"] == SCHEMA["properties"]["schema"]["const"]


def test_nothing_of_yours_is_written_anywhere(
    run: Run, served: InProcessServer, tmp_path: Path
) -> None:
    secrets = {name: f"secret-{name}" for name in ("resource", "text", "query", "token")}
    address = address_of(served)
    with RecallClient(address, timeout=30) as memory:
        memory.index(secrets["resource"], "t", [user(secrets["text"], id="1")])
    queries, token = tmp_path / "questions", tmp_path / "credentials"
    queries.write_text(secrets["query"])
    token.write_text(secrets["token"])
    files = [tmp_path / "r.json", tmp_path / "r.html"]
    result = run(
        *("--address", address, "--rate", "50", *SMALL, "--resource", secrets["resource"]),
        *("--queries-file", str(queries), "--token-file", str(token)),
        *("--json", str(files[0]), "--html", str(files[1])),
    )
    assert result.exit_code == 0, result.output
    document = json.loads(files[0].read_text())
    assert document["stages"][0]["operations"]["recall"]["counts"]["hits"] == 20
    assert messages(address) == 1
    written = [result.output, result.stderr, *(file.read_text() for file in files)]
    assert not [name for name, secret in secrets.items() if any(secret in w for w in written)]


def test_failed_calls_are_exit_code_4_and_come_first(run: Run, address: str, shelf: Shelf) -> None:
    arrive, refusals = shelf.arrive, iter(range(3))

    def refuse_some(method: str, request: Any, context: Any) -> None:
        if method == "Recall" and next(refusals, None) is not None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        arrive(method, request, context)

    shelf.arrive = refuse_some  # type: ignore[method-assign]
    result = run("--address", address, "--rate", "50", *SMALL, "--recall-share", "1")
    assert result.exit_code == 4, result.output
    told = " ".join(result.stdout.split())
    assert told.startswith("ERRORS 50 calls/s: 3 of 20 calls failed (15.0%): RESOURCE_EXHAUSTED 3")
    assert "recall failed: RESOURCE_EXHAUSTED 3" in told
    assert not shelf.messages


def test_a_killed_process_is_an_error_with_what_there_is(
    run: Run, address: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def kill(observer: LiveObserver, worker: int, second: WorkerSecond) -> None:
        if second.second == 1:
            multiprocessing.active_children()[0].kill()

    monkeypatch.setattr(LiveObserver, "second", kill)
    file = tmp_path / "r.json"
    result = run("--address", address, *SMALL, "--seconds", "60", "--json", str(file))
    assert result.exit_code == 1
    assert "the load ended early: sending process 1 was killed (SIGKILL)" in result.stderr
    document = json.loads(file.read_text())
    jsonschema.validate(document, SCHEMA)
    assert document["stages"] == []
    assert document["findings"][0]["code"] == "INTERRUPTED"
    assert "Nothing was measured." in result.stdout
    assert not shelf.messages


def test_over_tls_with_a_token_of_a_file(run: Run, tmp_path: Path) -> None:
    tokens = tmp_path / "token"
    tokens.write_text(f"{TOKEN}\n")
    files = {"tls_cert_file": TLS / "cert.pem", "tls_key_file": TLS / "key.pem"}
    with small_sidecar(tmp_path, listen=("localhost:0",), tokens_file=tokens, **files) as server:
        port = address_of(server).rpartition(":")[2]
        secured = ("--address", f"localhost:{port}", "--tls-ca-file", str(TLS / "cert.pem"))
        refused = run(*secured, *SMALL)
        assert refused.exit_code == 1
        assert "--token-file or SEMANTICRECALL_TOKEN" in refused.stderr
        result = run(*secured, *SMALL, "--rate", "50", "--token-file", str(tokens), "-f", "json")
        assert result.exit_code == 0, result.output
        assert calls(server, "Recall") + calls(server, "Index") == 20
    target = json.loads(result.stdout)["target"]
    assert (target["tls"], target["token"], target["transport"]) == (True, True, "tcp")
    assert TOKEN not in result.output


@pytest.mark.model
def test_a_load_on_a_whole_sidecar(run: Run, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s.sock"
    with (
        ServerProcess(["--listen", address, "--data-dir", str(tmp_path / "data")]) as server,
        RecallClient(address, timeout=30) as memory,
    ):
        server.wait_for("serving")
        memory.index("mine", "t", [user("The key is under the mat", id="k")])
        result = run(
            *("--address", address, "--rate", "50", *SMALL, "--format", "json"),
            *("--thread-scope-share", "0.5", "--top-k", "1,9", "--message-range", "0/0,2/1"),
        )
        assert result.exit_code == 0, result.output
        after = memory.stats()
        assert (after.messages, after.vectors, after.pending, after.threads) == (1, 1, 0, 1)
        (summary,) = memory.verify()
    assert isinstance(summary, VerifySummary)
    assert summary.findings == 0
    document = json.loads(result.stdout)
    assert document["target"]["server"]["messages"] == 1
    assert document["preparation"]["messages"] == 24
    recall = document["stages"][0]["operations"]["recall"]
    assert recall["shares"]["empty"] == 0
    assert recall["counts"]["hits"] > recall["ok"]


# --- Ctrl-C, as a process ---------------------------------------------------------------


class CommandProcess:
    """`semanticrecall load` as a process of its own, in a process group like a terminal's."""

    def __init__(self, *arguments: str) -> None:
        code = "from semanticrecall.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "load", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, begin: str) -> None:
        """Read stderr until a line begins so."""
        assert self.process.stderr is not None
        seen: list[str] = []
        for line in self.process.stderr:
            seen.append(line)
            if line.startswith(begin):
                return
        raise AssertionError(f"no {begin!r} in {seen}")

    def interrupt(self) -> None:
        """What Ctrl-C does in a terminal: every process of the group hears of it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, and the rest of stderr."""
        try:
            out, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


def test_ctrl_c_writes_what_there_is(served: InProcessServer, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    address = address_of(served)
    command = CommandProcess(
        *("--address", address, *SMALL, "--seconds", "600", "--rate", "40", "--processes", "2"),
        *("--json", str(file), "--format", "json"),
    )
    command.wait_for("40 calls/s")
    until = time.monotonic() + 60
    while not calls(served, "Recall"):
        assert time.monotonic() < until, "no call was answered"
        threading.Event().wait(0.02)
    command.interrupt()
    code, out, err = command.end()
    assert code == 130, err
    document = json.loads(out)
    assert json.loads(file.read_text()) == document
    jsonschema.validate(document, SCHEMA)
    assert document["findings"][0]["code"] == "INTERRUPTED"
    (stage,) = document["stages"]
    assert stage["finished"] == stage["scheduled"] > 0
    assert calls(served, "Recall") + calls(served, "Index") == stage["finished"]
    assert messages(address) == 0
    assert "Traceback" not in err
    assert "cleaning up" in err


def test_a_second_ctrl_c_ends_at_once(address: str, shelf: Shelf) -> None:
    command = CommandProcess("--address", address, *SMALL, "--seconds", "600", "--rate", "40")
    command.wait_for("40 calls/s")
    arrive, presses = shelf.arrive, iter([command.interrupt])

    def interrupt_forgetting(method: str, request: Any, context: Any) -> None:
        arrive(method, request, context)
        if method == "Forget":
            ended = threading.Event()
            context.add_callback(ended.set)
            # Several are forgotten at once, and it is pressed a second time only.
            for press in presses:
                press()
            assert ended.wait(30)

    shelf.arrive = interrupt_forgetting  # type: ignore[method-assign]
    command.interrupt()
    code, out, err = command.end()
    assert code == 130
    assert out == ""
    assert "is left in the store (the load was ended at once)" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_while_it_cleans_up(address: str, shelf: Shelf, name: str, times: int) -> None:
    arrive, go_on = shelf.arrive, threading.Event()

    def hold_forgetting(method: str, request: Any, context: Any) -> None:
        arrive(method, request, context)
        if method == "Forget":
            context.add_callback(go_on.set)
            assert go_on.wait(30)

    shelf.arrive = hold_forgetting  # type: ignore[method-assign]
    command = CommandProcess("--address", address, *SMALL, "--rate", "50", "--format", "json")
    command.wait_for("cleaning up")
    command.process.send_signal(signal.Signals[name])
    command.wait_for(
        "Interrupted: it is cleaning up, 4 of 4 resources are left. A second Ctrl-C ends it at "
        "once, and leaves the rest in the store, in resources whose names begin with 'load-"
    )
    if times == 1:
        go_on.set()
        code, out, err = command.end()
        document = json.loads(out)
        assert [stage["finished"] for stage in document["stages"]] == [20]
        assert document["findings"][0]["code"] == "INTERRUPTED"
        assert not shelf.messages
    else:
        command.process.send_signal(signal.Signals[name])
        code, out, err = command.end()
        assert out == ""
        assert "is left in the store (the load was ended at once)" in err
    assert code == 130
    assert "Traceback" not in err


def test_where_nobody_reads_its_progress_it_cleans_up_and_answers(served: InProcessServer) -> None:
    address = address_of(served)
    command = CommandProcess(
        "--address", address, *SMALL, "--rate", "50", "--recall-share", "0.5", "--format", "json"
    )
    process = command.process
    assert process.stderr is not None
    process.stderr.close()
    assert process.stdout is not None
    document = json.loads(process.stdout.read())
    assert process.wait(60) == 0
    process.stdout.close()
    assert document["stages"][0]["finished"] == 20
    assert messages(address) == 0
