"""Everything of one resource: out of a sidecar as JSON Lines, into another one, and out again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semanticrecall import (
    FailedPreconditionError,
    Message,
    NotFoundError,
    RecallClient,
    Role,
    assistant,
    tool,
    user,
)
from semanticrecall.cli.app import app
from semanticrecall.cli.demo import conversation
from support.running_server import ServerProcess

pytestmark = pytest.mark.model

RESOURCE = "whose / memory? ünï\N{DOG FACE}"
AT = datetime(1999, 12, 31, 23, 59, 59, 999_999, UTC)
NUMBERS = [0, -0.0, 1, -1, 0.1, 1e-320, 1.7976931348623157e308, 2**53, -(2**53), 2.0**60, 3.5]
QUESTIONS = ["What is our dog allergic to?", "seventh chapter", "four eyes", "Rex"]


def said() -> list[Message]:
    """Messages of every kind: each field empty and full, odd characters, ties in time."""
    long = " ".join(
        f"The {n}th chapter tells of the {n * 7}th lighthouse keeper." for n in range(90)
    )
    messages = [
        *conversation(),
        user("", id="empty"),
        user(" \t\n ", id="blank"),
        user("nul \x00, u2028 \u2028, bom \ufeff, rtl \u202e, accents e\u0301 é", id="odd"),
        user(long, id="long", create_time=AT, thread_id="book"),
        user("same time, first", id="z", create_time=AT, thread_id="ties"),
        user("same time, second", id="a", create_time=AT, thread_id="ties"),
        Message(
            Role.TOOL,
            "four eyes see more than two",
            id="ïd / with \N{DOG FACE} % _ * '",
            author="Kïm O'Hara",
            create_time=AT,
            extra_ns=987,
            metadata={
                "numbers": NUMBERS,
                "nested": {"ä": {"b": [None, True, False, "", {}, []]}},
                "z": "\u2028",
                "": "no name",
            },
            payload=bytes(range(256)) * 5,
            payload_type="application/octet-stream; x=\N{DOG FACE}",
            group_id="group 1",
            thread_id="t / \N{DOG FACE}",
        ),
        assistant("old", id="old", create_time=datetime(1678, 1, 1, tzinfo=UTC), extra_ns=1),
        tool("far", id="far", create_time=datetime(2261, 12, 31, 23, 59, 59, tzinfo=UTC)),
        Message(Role.SYSTEM, "Be kind.", id="system", payload=b"\x00"),
    ]
    return [replace(message, thread_id=message.thread_id or "default") for message in messages]


@contextmanager
def sidecar(directory: Path) -> Iterator[str]:
    address = f"unix:{directory}/s.sock"
    with ServerProcess(["--listen", address, "--data-dir", str(directory / "data")]) as server:
        server.wait_for("serving")
        yield address
        server.signal()
        code, text = server.wait()
        assert code == 0, text


def run(address: str, *arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--address", address, "--format", "json"])
    assert result.exit_code == 0, result.output
    return result


def recalled(memory: RecallClient) -> list[Any]:
    """What questions find, without what it cost."""
    answers = [memory.recall(RESOURCE, question, top_k=5) for question in QUESTIONS]
    return [(answer.messages, answer.context_text) for answer in answers]


@pytest.mark.parametrize("with_vectors", [False, True])
def test_nothing_is_lost_on_the_way(tmp_path: Path, with_vectors: bool) -> None:
    flags = ["--with-vectors"] if with_vectors else []
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with sidecar(tmp_path / "old") as old, RecallClient(old, timeout=30, fail_open=False) as memory:
        # Of somebody else: nothing of it may come along.
        memory.index("foreign", "t", [user("four eyes", id="foreign")])
        memory.index(RESOURCE, "", said()).raise_for_rejected()
        run(old, "export", RESOURCE, "-o", str(first), *flags)
        stored = list(memory.export(RESOURCE))
        found = recalled(memory)
        vectors = {e.message.id: e.vectors for e in memory.export_with_vectors(RESOURCE)}
    with sidecar(tmp_path / "new") as new, RecallClient(new, timeout=30, fail_open=False) as memory:
        misses = memory.stats().cache.misses
        counts = json.loads(run(new, "import", str(first)).stdout)
        assert (memory.stats().cache.misses == misses) is with_vectors
        assert counts["indexed"] + counts["not_embedded"] == counts["messages"] == len(stored)
        run(new, "export", RESOURCE, "-o", str(second), *flags)
        assert list(memory.export(RESOURCE)) == stored
        assert recalled(memory) == found
        again = {e.message.id: e.vectors for e in memory.export_with_vectors(RESOURCE)}
        assert memory.stats().messages == len(stored)
        assert run(new, "verify").exit_code == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().count(b"\n") == len(stored)
    assert b"foreign" not in first.read_bytes()
    assert again == vectors
    embedded = {m.id for m in stored if m.role in (Role.USER, Role.ASSISTANT) and m.text.strip()}
    assert {message_id for message_id, of in vectors.items() if of is not None} == embedded
    long = vectors["long"]
    assert long is not None
    assert len(long.data) > 384 * 4


def test_a_message_is_what_was_said(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with sidecar(tmp_path / "s") as address, RecallClient(address, timeout=30) as memory:
        given = {m.id: m for m in said()}
        memory.index(RESOURCE, "", list(given.values())).raise_for_rejected()
        for back in memory.export(RESOURCE):
            sent = given[back.id]
            for name in ("role", "text", "author", "payload", "payload_type", "group_id"):
                assert getattr(back, name) == getattr(sent, name), (back.id, name)
            assert json.dumps(back.metadata, sort_keys=True) == json.dumps(
                sent.metadata, sort_keys=True
            )
            if sent.create_time is not None:
                assert (back.create_time, back.extra_ns) == (sent.create_time, sent.extra_ns)
            assert back.thread_id == sent.thread_id
            assert back.resource_id == RESOURCE


def test_a_snapshot_comes_back_with_and_without_a_sidecar(tmp_path: Path) -> None:
    for name in ("old", "new", "offline"):
        (tmp_path / name).mkdir()
    with sidecar(tmp_path / "old") as old, RecallClient(old, timeout=30, fail_open=False) as memory:
        memory.index(RESOURCE, "", said()).raise_for_rejected()
        made = json.loads(run(old, "snapshot").stdout)
        (listed,) = memory.list_snapshots()
        assert (listed.name, listed.messages) == (made["name"], len(said()))
        memory.forget_messages(RESOURCE, ["long", "odd"])
        kept = list(memory.export(RESOURCE))
        questions = recalled(memory)
        memory.index(RESOURCE, "", [user("of later", id="later", thread_id="default")])
    saved = tmp_path / "old" / "data" / "saved"
    restored = ("snapshot", "restore", str(saved / made["name"]))
    offline = [*restored, "--data-dir", str(tmp_path / "offline" / "data"), "--format", "json"]
    told = subprocess.run([*command(), *offline], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    counts = json.loads(told.stdout)
    assert (counts["messages"], counts["forgotten"]) == (len(kept), 2)
    again = subprocess.run([*command(), *offline], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert again.stderr.startswith("semanticrecall: ")
    assert again.stderr.count("\n") == 1
    with sidecar(tmp_path / "offline") as address, RecallClient(address, timeout=30) as memory:
        assert list(memory.export(RESOURCE)) == kept
        assert recalled(memory) == questions
    (tmp_path / "new" / "data").mkdir(mode=0o700)
    shutil.copytree(saved, tmp_path / "new" / "data" / "saved")
    with sidecar(tmp_path / "new") as new, RecallClient(new, timeout=30, fail_open=False) as memory:
        answer = memory.restore_snapshot(made["name"])
        assert (answer.messages, answer.forgotten) == (len(kept), 2)
        assert list(memory.export(RESOURCE)) == kept
        assert recalled(memory) == questions
        with pytest.raises(FailedPreconditionError) as caught:
            memory.restore_snapshot(made["name"])
        assert caught.value.reason == "STORE_NOT_EMPTY"
        memory.delete_snapshot(made["name"])
        with pytest.raises(NotFoundError):
            memory.delete_snapshot(made["name"])


def command() -> list[str]:
    return [sys.executable, "-c", "from semanticrecall.cli import main; main()"]
