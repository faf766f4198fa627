"""Importing and exporting: JSON Lines, chat exports, bad lines, round trips."""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from semanticrecall import Message, RecallClient, Role
from semanticrecall.cli.app import app
from semanticrecall.cli.demo import conversation
from semanticrecall.cli.files import Importer
from semanticrecall.cli.jsonlines import LineError, message_from_json, message_to_json
from semanticrecall.cli.reading import MessageReader, Read, batches
from semanticrecall.v1 import types_pb2
from semanticrecall.values import Wait
from semanticrecall.wire import message, message_to_wire
from support.fake_sidecar import Shelf

CHAT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in"}, {"text": "Porto?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "Porto"}'}},
            {"id": "c2", "function": {"name": "clock", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
    {"role": "tool", "tool_call_id": "c2", "content": "noon"},
    {"role": "assistant", "content": "18 degrees at noon.", "name": "Bot", "created_at": 1.5},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
]


def read(data: bytes, resource_id: str = "u", thread_id: str = "t") -> list[Read]:
    reader = MessageReader(resource_id, thread_id, default_thread_id="file")
    return list(reader.read(io.BytesIO(data)))


def lines(*documents: object) -> bytes:
    return b"".join(json.dumps(d).encode() + b"\n" for d in documents)


def test_a_line_with_every_field() -> None:
    line = {
        "id": "m",
        "thread_id": "t",
        "resource_id": "u",
        "role": "tool",
        "author": "Kim",
        "text": "hello",
        "create_time": "2024-02-29T23:59:59.123456789+02:00",
        "metadata": {"a": [1, {"b": None}]},
        "payload": base64.b64encode(b"\x00\xff").decode(),
        "payload_type": "x",
        "group_id": "g",
    }
    message = message_from_json(line)
    assert message == Message(
        Role.TOOL,
        "hello",
        id="m",
        author="Kim",
        create_time=datetime(2024, 2, 29, 21, 59, 59, 123456, UTC),
        extra_ns=789,
        metadata={"a": [1, {"b": None}]},
        payload=b"\x00\xff",
        payload_type="x",
        group_id="g",
        thread_id="t",
        resource_id="u",
    )
    assert message_to_json(message) == {**line, "create_time": "2024-02-29T21:59:59.123456789Z"}


def test_metadata_is_written_in_one_order_whatever_order_it_came_in() -> None:
    forth = {"a": 1, "b": {"c": [{"d": 2, "e": 3}], "f": 4}}
    back = {"b": {"f": 4, "c": [{"e": 3, "d": 2}]}, "a": 1}
    lines = {
        json.dumps(message_to_json(Message(Role.USER, id="m", metadata=fields)))
        for fields in (forth, back)
    }
    assert len(lines) == 1


@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, -1.0, 2.0**53, 2.0**60, 0.1, 5e-324, 1e308])
def test_every_number_of_metadata_survives_wire_and_file(number: float) -> None:
    sent = message_to_wire(Message(Role.USER, id="m", metadata={"n": number}))
    line = json.dumps(message_to_json(message(sent)))
    again = message_to_wire(message_from_json(json.loads(line)))
    assert struct.pack("<d", again.metadata["n"]) == struct.pack("<d", number)


@given(
    text=st.text(),
    author=st.text(),
    payload=st.binary(),
    seconds=st.integers(-9_214_560_000, 9_214_646_399),
    nanos=st.integers(0, 999_999_999),
    metadata=st.dictionaries(
        st.text(),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4),
    ),
)
def test_what_is_written_is_read_back(
    text: str, author: str, payload: bytes, seconds: int, nanos: int, metadata: dict[str, Any]
) -> None:
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)
    message = Message(
        Role.USER,
        text,
        id="m",
        author=author,
        create_time=moment,
        extra_ns=nanos % 1000,
        metadata=metadata,
        payload=payload,
    )
    written = json.dumps(message_to_json(message), ensure_ascii=True)
    assert message_from_json(json.loads(written)) == message


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"role": "user", "txt": "x"}, "unknown field 'txt'"),
        ({"text": "x"}, "role must be one of"),
        ({"role": "robot"}, "role must be one of"),
        ({"role": 1}, "role must be one of"),
        ({"role": "user", "text": 1}, "text must be a string"),
        ({"role": "user", "metadata": []}, "metadata must be an object"),
        ({"role": "user", "payload": "*"}, "payload must be base64"),
        ({"role": "user", "create_time": "2024-01-01T00:00:00"}, "with a zone"),
        ({"role": "user", "create_time": "2024-13-01T00:00:00Z"}, "an hour that does not exist"),
        ({"role": "user", "create_time": 5}, "with a zone"),
    ],
)
def test_bad_lines_say_why(line: dict[str, Any], problem: str) -> None:
    with pytest.raises(LineError, match=problem):
        message_from_json(line)


def test_bad_lines_are_told_by_number_and_the_others_go_on() -> None:
    data = (
        lines({"role": "user", "text": "one"})
        + b"\n{broken\n[1]\n"
        + lines({"role": "user", "metadata": {"n": 2**60}}, {"role": "user", "text": "two"})
        + b'{"role": "user", "text": "half \\ud83d"}'
    )
    items = read(data)
    assert [(i.place, i.problem[:20]) for i in items] == [
        ("line 1", ""),
        ("line 3", "is not JSON"),
        ("line 4", "is not a JSON object"),
        ("line 5", "metadata.n: is beyon"),
        ("line 6", ""),
        ("line 7", "request: a text hold"),
    ]


def test_a_line_that_is_too_long_is_skipped() -> None:
    data = lines({"role": "user", "text": "a"}, {"role": "user", "text": "x" * 9_000_000})
    items = read(data + lines({"role": "user", "text": "b"}))
    assert [(i.place, i.problem) for i in items] == [
        ("line 1", ""),
        ("line 2", "is longer than 8 MiB"),
        ("line 3", ""),
    ]


def test_resource_and_thread_come_from_the_line_or_the_flags() -> None:
    data = lines(
        {"role": "user", "text": "a", "resource_id": "v", "thread_id": "s"},
        {"role": "user", "text": "a"},
    )
    named = [(i.resource_id, i.message.thread_id) for i in read(data) if i.message]
    # Whose memory it is, the caller decides; a thread keeps its name.
    assert named == [("u", "s"), ("u", "t")]
    as_it_says = read(data, resource_id="")
    assert [(i.resource_id, i.problem) for i in as_it_says] == [
        ("v", ""),
        ("", "names no resource_id; give --resource"),
    ]
    assert [i.problem for i in read(data, thread_id="")] == [
        "",
        "names no thread_id; give --thread",
    ]


@pytest.mark.parametrize("kind", ["array", "pretty", "object", "lines", "byte order mark"])
def test_chat_exports_in_every_wrapping(kind: str) -> None:
    data = {
        "array": json.dumps(CHAT).encode(),
        "pretty": json.dumps({"messages": CHAT}, indent=2).encode(),
        "object": json.dumps({"model": "x", "messages": CHAT}).encode(),
        "lines": lines(*CHAT),
        "byte order mark": b"\xef\xbb\xbf" + json.dumps(CHAT).encode(),
    }[kind]
    messages = [i.message for i in read(data)]
    assert all(m is not None for m in messages)
    assert [(m.role, m.text) for m in messages if m] == [
        (Role.SYSTEM, "Be brief."),
        (Role.USER, "Weather in\nPorto?"),
        (Role.TOOL, 'weather({"city": "Porto"})\nclock({})'),
        (Role.TOOL, "18 degrees"),
        (Role.TOOL, "noon"),
        (Role.ASSISTANT, "18 degrees at noon."),
        (Role.USER, ""),
    ]
    groups = [m.group_id for m in messages if m]
    assert groups[2] == groups[3] == groups[4] != ""
    assert [groups[n] for n in (0, 1, 5, 6)] == [""] * 4
    assert messages[5] is not None
    assert (messages[5].author, messages[5].create_time) == (
        "Bot",
        datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
    )
    assert [json.loads(m.payload) for m in messages if m] == CHAT


BREAKS = [
    '{"messages":[{"role":"system","content":"Be brief."},\n{"role":"user","content":"Hi"}]}',
    '{\n"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}',
    '{"messages":\n[{"role":"system","content":"Be brief."},{"role":"user",\n"content":"Hi"}]}',
    '[\n{"role":"system","content":"Be brief."},\n{"role":"user","content":"Hi"}\n]',
]


@pytest.mark.parametrize("text", BREAKS)
def test_where_lines_break_does_not_matter(text: str) -> None:
    items = read(text.encode())
    assert [(i.message.role, i.message.text) for i in items if i.message] == [
        (Role.SYSTEM, "Be brief."),
        (Role.USER, "Hi"),
    ]
    assert [i.problem for i in items] == ["", ""]


def conversations() -> list[dict[str, Any]]:
    one = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    two = {"messages": [{"role": "user", "content": "a"}], "resource_id": "v"}
    named = {"thread_id": "kitchen", "messages": [{"role": "user", "text": "ours"}, {"role": 1}]}
    return [one, two, named]


@pytest.mark.parametrize("wrapping", ["lines", "array"])
def test_conversations_are_threads_of_their_own(wrapping: str) -> None:
    whole = conversations()
    data = lines(*whole) if wrapping == "lines" else json.dumps(whole, indent=1).encode()
    items = read(data, resource_id="", thread_id="")
    found = [(i.resource_id, i.message.thread_id, i.message.text) for i in items if i.message]
    assert found == [("v", "file-2", "a")]
    items = read(data, resource_id="u", thread_id="")
    found = [(i.resource_id, i.message.thread_id, i.message.text) for i in items if i.message]
    assert found == [
        ("u", "file", "a"),
        ("u", "file", "b"),
        ("u", "file-2", "a"),
        ("u", "kitchen", "ours"),
    ]
    kind = "line" if wrapping == "lines" else "conversation"
    (bad,) = [i for i in items if i.problem]
    assert (bad.place, bad.problem[:16]) == (f"{kind} 3, message 2", "role must be one")
    ids = [i.message.id for i in items if i.message]
    assert len(set(ids)) == 4


def test_a_damaged_first_line_is_one_bad_line() -> None:
    items = read(b'{"role": "us\n' + lines({"role": "user", "text": "fine"}))
    assert [(i.place, i.problem) for i in items] == [("line 1", "is not JSON"), ("line 2", "")]


def test_a_damaged_document_says_where(address: str, shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[\n{"role": "user"},\n{"role" "user"}]')
    result = CliRunner().invoke(app, ["import", str(path), "-r", "u", "--address", address])
    assert result.exit_code == 2
    assert "is not JSON (line 3, column 9)" in result.stderr.replace("\n", " ")
    assert shelf.messages == {}


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_holds_no_messages(
    memory: RecallClient, address: str, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["import", str(path), "--address", address])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].split() == ["messages", "0"]


def test_the_summary_names_whose_memory_it_became(
    address: str, shelf: Shelf, tmp_path: Path
) -> None:
    path = tmp_path / "backup.jsonl"
    path.write_bytes(lines({"role": "user", "text": "x", "resource_id": "user-42"}, 1, 2))
    arguments = ["import", str(path), "-t", "t", "--address", address]
    summary = CliRunner().invoke(app, arguments).stdout
    assert [line.split()[:2] for line in summary.splitlines()][:4] == [
        ["messages", "3"],
        ["indexed", "1"],
        ["unreadable", "2"],
        ["of", "user-42"],
    ]
    assert all(line == line.rstrip() for line in summary.splitlines())
    assert "_" not in summary
    assert "of          user-43\n" in CliRunner().invoke(app, [*arguments, "-r", "user-43"]).stdout
    assert {owner for owner, _ in shelf.messages} == {"user-42", "user-43"}


def test_ids_are_the_same_again_and_tell_equal_messages_apart() -> None:
    same = [{"role": "user", "content": "ok"}, {"role": "user", "content": "ok"}]
    first = [i.message.id for i in read(json.dumps(same).encode()) if i.message]
    again = [i.message.id for i in read(json.dumps(same, indent=1).encode()) if i.message]
    other = [i.message.id for i in read(json.dumps(same).encode(), thread_id="s") if i.message]
    assert first == again
    assert len({*first, *other}) == 4


def test_calls_whose_ids_repeat_are_two_groups() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    messages = [i.message for i in read(json.dumps([call, result, call, result]).encode())]
    groups = [m.group_id for m in messages if m]
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert groups[0] != groups[2]


def test_batches_hold_one_resource_and_stay_within_limits() -> None:
    def item(resource_id: str, size_bytes: int) -> Read:
        return Read("", Message(Role.USER), resource_id, size_bytes)

    items = [item("u", 1), item("u", 1), item("v", 1), item("v", 9), item("v", 2), item("v", 50)]
    made = batches(items, messages_max=2, bytes_max=10)
    assert [[(i.resource_id, i.size_bytes) for i in batch] for batch in made] == [
        [("u", 1), ("u", 1)],
        [("v", 1), ("v", 9)],
        [("v", 2)],
        [("v", 50)],
    ]


def test_import_counts_and_reports(address: str, shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    good = [{"role": "user", "text": f"text {n}", "id": str(n)} for n in range(450)]
    path.write_bytes(lines(*good[:200]) + b"broken\n" + lines(*good[200:]))
    arguments = ["import", str(path), "-r", "u", "-t", "t", "--address", address, "-f", "json"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 4
    assert first.stderr == "line 201: is not JSON\n"
    counts = json.loads(first.stdout)
    assert (counts["messages"], counts["indexed"], counts["unreadable"]) == (451, 450, 1)
    assert counts["resources"] == ["u"]
    assert len(shelf.messages) == 450
    assert len([c for c in shelf.seen if c.method == "IndexStream"]) == 3
    again = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert (again["unchanged"], again["indexed"]) == (450, 0)


def test_export_then_import_gives_the_same(address: str, shelf: Shelf, tmp_path: Path) -> None:
    path, copy = tmp_path / "all.jsonl", tmp_path / "copy.jsonl"
    with RecallClient(address) as memory:
        for message in conversation():
            memory.index("demo", "", [message])
    before = dict(shelf.messages)
    runner = CliRunner()
    assert (
        runner.invoke(app, ["export", "demo", "-o", str(path), "--address", address]).exit_code == 0
    )
    shelf.messages.clear()
    assert runner.invoke(app, ["import", str(path), "--address", address]).exit_code == 0
    assert shelf.messages == before
    to_stdout = runner.invoke(app, ["export", "demo", "--address", address])
    assert to_stdout.stdout_bytes == path.read_bytes()
    assert (
        runner.invoke(app, ["export", "demo", "-o", str(path), "--address", address]).exit_code == 2
    )
    assert not copy.exists()


def test_import_reads_stdin(address: str, shelf: Shelf) -> None:
    arguments = ["import", "-", "-r", "u", "--address", address]
    result = CliRunner().invoke(app, arguments, input=json.dumps(CHAT))
    assert result.exit_code == 0
    assert {m.thread_id for m in shelf.messages.values()} == {"stdin"}
    assert result.stdout.split()[:4] == ["messages", "7", "indexed", "7"]


def test_a_file_of_another_kind_is_refused(address: str, shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{\n"a": 1}')
    result = CliRunner().invoke(app, ["import", str(path), "-r", "u", "--address", address])
    assert result.exit_code == 2
    assert "must be JSON Lines" in result.stderr
    assert shelf.messages == {}


def test_a_batch_that_came_at_a_bad_time_is_sent_again(memory: RecallClient, shelf: Shelf) -> None:
    full = types_pb2.ErrorDetail(code=8, message="full", reason="QUEUE_FULL", retryable=True)
    shelf.batch_errors = [full]
    items = read(lines(*({"role": "user", "text": str(n)} for n in range(3))))
    importer = Importer(memory, Wait.DURABLE)
    importer.run(iter(items))
    assert importer.tally.statuses["indexed"] == 3
    assert importer.tally.failed == 0
    assert [c.method for c in shelf.seen] == ["IndexStream", "Index"]


def test_the_conversation_of_the_demo() -> None:
    messages = conversation()
    assert 60 <= len(messages) <= 90
    assert 6 <= len({m.thread_id for m in messages}) <= 8
    times = [m.create_time for m in messages if m.create_time]
    assert len(times) == len(messages)
    assert (max(times) - min(times)).days > 600
    for group in {m.group_id for m in messages if m.group_id}:
        roles = [m.role for m in messages if m.group_id == group]
        assert roles.count(Role.TOOL) >= 2


def test_progress_follows_the_answers(memory: RecallClient) -> None:
    data = lines(*({"role": "user", "text": str(n), "id": str(n)} for n in range(450)))
    steps: list[tuple[int, int]] = []
    Importer(memory, Wait.DURABLE, lambda *step: steps.append(step)).run(iter(read(data)))
    first_200 = data.split(b"\n")[:200]
    assert [count for count, _ in steps] == [200, 400, 450]
    assert steps[0][1] == len(b"\n".join(first_200)) + 1
    assert steps[-1][1] == len(data)
