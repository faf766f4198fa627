"""Client, command line and demo against a real sidecar with the default model."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import semanticrecall as sr
from semanticrecall import AsyncRecallClient, IndexBatch, RecallClient, Status, user
from semanticrecall.cli.app import app
from semanticrecall.cli.demo import QUESTIONS, RESOURCE, conversation
from support.running_server import ServerProcess

pytestmark = pytest.mark.model

LOOKED_FOR = {
    "What is our dog allergic to?": "rex-07",
    "Why were the bills a penny too high?": "invoice-cents-01",
    "Which seafood makes me ill?": "hives-05",
    "What was my finishing time over 42 kilometres?": "marathon-09",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("sidecar")
    address = f"unix:{directory}/s.sock"
    with ServerProcess(["--listen", address, "--data-dir", str(directory / "data")]) as server:
        server.wait_for("serving")
        yield address
        server.signal()
        code, text = server.wait()
        assert code == 0, text


@pytest.fixture
def memory(served: str) -> Iterator[RecallClient]:
    with RecallClient(served, timeout=30, fail_open=False) as client:
        yield client


def run_json(served: str, *arguments: str) -> list[Any]:
    result = CliRunner().invoke(app, [*arguments, "--address", served, "--format", "json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_questions_of_the_demo_find_what_they_mean(memory: RecallClient) -> None:
    (result,) = memory.index_stream([IndexBatch(RESOURCE, "", conversation())])
    assert not result.rejected
    assert set(LOOKED_FOR) == set(QUESTIONS)
    for question, message_id in LOOKED_FOR.items():
        found = memory.recall(RESOURCE, question, top_k=2)
        assert found.hits[0].message.id == message_id
        assert found.info.exact
        assert found.info.timings.total_us > 0


def test_everything_a_message_holds_comes_back(memory: RecallClient) -> None:
    said = conversation()[0]
    memory.index("whole", "", [said], metadata={"for": "all"})
    (back,) = memory.export("whole")
    assert (back.id, back.text, back.author) == (said.id, said.text, said.author)
    assert back.create_time == said.create_time
    assert back.metadata == {**said.metadata, "for": "all"}


def test_a_read_token_and_a_stream(memory: RecallClient) -> None:
    token = memory.index("s", "t", [user("The key is under the mat", id="k")]).read_token
    with memory.recall_stream() as session:
        found = session.recall("s", "Where is the key?", read_token=token)
        assert [m.message.id for m in found.hits] == ["k"]
        with pytest.raises(sr.InvalidArgumentError) as caught:
            session.recall("s", "q", top_k=100_000)
        assert [v.field for v in caught.value.violations] == ["top_k"]


def test_mistakes_name_their_field(memory: RecallClient) -> None:
    with pytest.raises(sr.InvalidArgumentError) as caught:
        memory.recall("", "q")
    assert [v.field for v in caught.value.violations] == ["resource_id"]
    with pytest.raises(sr.NotFoundError):
        memory.get_messages("s", ["of nobody"])
    with pytest.raises(sr.NotFoundError):
        memory.transfer_thread("s", "of nobody", "v")
    with pytest.raises(sr.NotFoundError):
        memory.restore_snapshot("of nobody")
    with pytest.raises(sr.FailedPreconditionError) as refused:
        list(memory.reembed())
    assert refused.value.reason == "NO_NEXT_MODEL"


def test_forgotten_is_gone(memory: RecallClient) -> None:
    memory.index("f", "t", [user("My locker code is 4711", id="x")])
    assert memory.forget_messages("f", ["x", "unknown"]).messages == 1
    assert list(memory.recall("f", "locker code")) == []
    assert memory.recall("f", "locker code").info.why_empty is sr.WhyEmpty.NO_MESSAGES


def test_for_asyncio(served: str) -> None:
    async def remember() -> tuple[list[str], list[str]]:
        async with AsyncRecallClient(served, timeout=30, fail_open=False) as memory:
            await memory.index("a", "t", [user("The bike has a flat tyre", id="b")])
            found = await memory.recall("a", "What is wrong with my bicycle?")
            async with memory.recall_stream() as session:
                again = await session.recall("a", "What is wrong with my bicycle?")
            return [m.message.id for m in found], [m.message.id for m in again]

    assert asyncio.run(remember()) == (["b"], ["b"])


def test_import_export_and_care(served: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    source = tmp_path / "source.jsonl"
    lines = [{"role": "user", "text": f"note {n}", "id": f"n{n}"} for n in range(250)]
    source.write_text("\n".join(map(json.dumps, lines)))
    (counts,) = run_json(served, "import", str(source), "-r", "i", "-t", "t")
    assert (counts["indexed"], counts["rejected"]) == (250, 0)
    (counts,) = run_json(served, "import", str(source), "-r", "i", "-t", "t")
    assert (counts["unchanged"], counts["indexed"]) == (250, 0)
    run_json(served, "export", "i", "-o", str(first))
    run_json(served, "forget", "i", "--everything", "--yes")
    run_json(served, "import", str(first))
    run_json(served, "export", "i", "-o", str(second))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().count(b"\n") == 250
    assert run_json(served, "stats", "i")[0]["messages"] == 250
    assert run_json(served, "verify", "i")[-1]["findings"] == 0
    assert len(run_json(served, "history", "i", "--all")) == 250
    assert run_json(served, "embed", "x")[0]["dimensions"] == 384


def start_demo(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SEMANTICRECALL_ADDRESS")}
    code = "from semanticrecall.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, "COLUMNS": "80", **environment},
    )


def test_the_demo_once() -> None:
    with start_demo("--once", "--format", "json") as process:
        out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    documents = [json.loads(line) for line in out.splitlines()]
    assert [d["question"] for d in documents] == list(QUESTIONS)
    assert all(d["result"]["messages"] and d["round_trip_ms"] > 0 for d in documents)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_serves_on_until_it_is_stopped(number: int, tmp_path: Path) -> None:
    with start_demo("--data-dir", str(tmp_path / "data")) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        told = next(line for line in process.stderr if "until Ctrl-C" in line)
        address = told.split()[2]
        with RecallClient(address, fail_open=False) as memory:
            assert memory.is_serving()
            process.send_signal(number)
            shown = process.stdout.read()
            assert process.stderr.read() == "Stopped.\n"
            assert process.wait(60) == 0
            assert not memory.is_serving()
    assert "Sidecar ready in" in shown
    assert "Indexed 80 messages of 8 conversations" in shown
    assert "from semanticrecall import RecallClient" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_advice_of_the_demo_can_be_typed_as_it_stands(tmp_path: Path) -> None:
    with start_demo(PATH=str(tmp_path)) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        told = next(line for line in process.stderr if "until Ctrl-C" in line)
        assert "is deleted; --data-dir" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        shown = process.stdout.read().splitlines()
    address = told.split()[2]
    (advice,) = [line for line in shown if " threads " in line]
    program, command, resource, *_ = shlex.split(advice)
    assert Path(program).resolve() == Path(sys.executable).parent.resolve() / "semanticrecall"
    assert (command, resource) == ("threads", RESOURCE)
    assert any(Path(sys.executable).name in line for line in shown if "From Python" in line)
    assert address.startswith("127.0.0.1:")


def test_the_demo_says_why_it_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with start_demo("--once", "--data-dir", str(tmp_path / "file")) as process:
        _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert err.startswith("semanticrecall: the sidecar could not start")
    assert "Traceback" not in err


def test_statuses_of_a_batch_with_a_bad_message(memory: RecallClient) -> None:
    result = memory.index("b", "t", [user("fine", id="1"), user("bad", id=""), user(" ", id="3")])
    assert [o.status for o in result.outcomes] == [
        Status.INDEXED,
        Status.REJECTED,
        Status.NOT_EMBEDDED,
    ]
    with pytest.raises(sr.InvalidArgumentError, match=r"messages\[1\]\.id"):
        result.raise_for_rejected()
