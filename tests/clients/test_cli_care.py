"""The command line's care of a store: forget and purge, snapshots, verify, reembed, stats."""

from __future__ import annotations

import base64
import json
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
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return invoke


def documents(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def say(run: Run, shelf: Shelf) -> None:
    said = [("a", "Mallory", "05-01"), ("b", "Kim", "05-02"), ("c", "Mallory", "05-03")]
    for message_id, author, day in said:
        flags = ("--id", message_id, "--author", author, "--time", f"2024-{day}T00:00:00Z")
        assert run("index", "u", "t", message_id, *flags).exit_code == 0
    shelf.seen.clear()


# --- forget and purge --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "question"),
    [
        (["--author", "Mallory"], "all messages of u by Mallory (2 messages)"),
        (
            ["--author", "Mallory", "--from", "2024-05-02", "--to", "2024-05-09"],
            "all messages of u by Mallory since 2024-05-02 00:00 before 2024-05-09 00:00 "
            "UTC (1 messages)",
        ),
        (["--role", "user", "--thread", "t"], "all messages of u in thread t of role user (3 "),
        (["--before", "2024-05-02"], "all messages of u before 2024-05-02 00:00 UTC (1 "),
        (["--thread", "t"], "thread t of u (3 messages)"),
        (["--everything"], "everything of u (3 messages)"),
    ],
)
def test_forget_asks_with_the_count(
    run: Run, shelf: Shelf, flags: list[str], question: str
) -> None:
    say(run, shelf)
    result = run("forget", "u", *flags, stdin="n\n")
    assert result.exit_code == 1
    assert f"Forget {question}" in result.stderr
    assert len(shelf.messages) == 3
    assert all(seen.method != "Forget" for seen in shelf.seen)


def test_forget_by_author_and_time(run: Run, shelf: Shelf) -> None:
    say(run, shelf)
    flags = ("--author", "Mallory", "--since", "2024-05-02", "--until", "2024-05-09")
    result = run("forget", "u", *flags, "--role", "user", "--role", "tool", "--yes")
    assert result.exit_code == 0
    assert result.stdout == "Forgot 1 messages, 1 vectors, 0 threads.\n"
    assert result.stderr == (
        "It leaves the files by 2024-05-01 00:00 UTC; `semanticrecall purge` does it now.\n"
    )
    assert [key[1] for key in shelf.messages] == ["a", "b"]
    expected = recall_pb2.ForgetCondition(
        authors=["Mallory"], roles=[types_pb2.ROLE_USER, types_pb2.ROLE_TOOL]
    )
    expected.create_time_from.FromJsonString("2024-05-02T00:00:00Z")
    expected.create_time_to.FromJsonString("2024-05-09T00:00:00Z")
    assert shelf.seen[-1].request.condition == expected  # type: ignore[attr-defined]


def test_forget_with_a_purge(run: Run, shelf: Shelf) -> None:
    say(run, shelf)
    run("snapshot")
    result = run("forget", "u", "-m", "a")
    assert "Snapshots that hold it until then: saved-0" in result.stderr
    result = run("forget", "u", "-m", "b", "--purge")
    assert result.stderr == "Nothing of it is left in the files.\n"
    assert shelf.seen[-1].request.purge  # type: ignore[attr-defined]
    assert shelf.seen[-1].seconds_left > 3000
    (told,) = documents(run("forget", "u", "-m", "c", "-f", "json"))
    assert told["purge_due_time"] == "2024-05-01T00:00:00Z"
    assert told["snapshots_holding"] == ["saved-0"]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--everything", "--author", "Mallory"],
        ["--message", "a", "--role", "user"],
        ["--until", "2024-05-01", "--before", "2024-05-01"],
        ["--since", "yesterday"],
    ],
)
def test_forget_needs_one_kind_of_target(run: Run, shelf: Shelf, flags: list[str]) -> None:
    assert run("forget", "u", *flags, "--yes").exit_code == 2
    assert shelf.seen == []


def test_purge(run: Run, shelf: Shelf) -> None:
    run("snapshot")
    shown = run("purge").stdout
    assert "up to revision 71 has left the files; 1 snapshots were rewritten." in shown
    assert documents(run("purge", "-f", "json")) == [
        {"revision": 71, "snapshots_rewritten": ["saved-0"], "snapshots_holding": []}
    ]


# --- snapshots ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("snapshot",), ("snapshot", "create")])
def test_snapshot_alone_creates(run: Run, shelf: Shelf, arguments: tuple[str, ...]) -> None:
    say(run, shelf)
    shown = run(*arguments)
    assert shown.exit_code == 0
    assert shown.stdout.split()[-7:] == "saved-0 2024-05-01 00:00 3 3.0 KiB 0".split()
    assert list(shelf.snapshots) == ["saved-0"]


def test_flags_without_a_command_are_those_of_create(run: Run, shelf: Shelf) -> None:
    shown = run("snapshot", "--partitions-only").stdout
    assert shown == "Images of partitions: 7 vectors, 2.0 KiB.\n"
    assert shelf.snapshots == {}
    assert documents(run("snapshot", "--format", "json"))[0]["name"] == "saved-0"


def test_snapshot_list_delete_restore(run: Run, shelf: Shelf) -> None:
    assert "No snapshots." in run("snapshot", "list").stderr
    say(run, shelf)
    run("snapshot")
    run("forget", "u", "-m", "a")
    (row,) = [line for line in run("snapshot", "list").stdout.splitlines() if "saved-0" in line]
    assert row.split() == ["saved-0", "2024-05-01", "00:00", "3", "3.0", "KiB", "1"]
    (listed,) = documents(run("snapshot", "list", "-f", "json"))
    assert (listed["name"], listed["forgotten"], listed["encrypted"]) == ("saved-0", 1, True)
    assert run("snapshot", "restore", "saved-0").stdout == (
        "Restored 3 messages and 61 vectors; 62 were forgotten since and left out.\n"
    )
    assert documents(run("snapshot", "restore", "saved-0", "-f", "json")) == [
        {"messages": 3, "vectors": 61, "forgotten": 62, "without_ledger": False}
    ]
    assert run("snapshot", "delete", "saved-0").stdout == "Deleted saved-0.\n"
    assert run("snapshot", "delete", "saved-0").exit_code == 1
    assert run("snapshot", "restore", "saved-0").exit_code == 1


def test_what_lies_beside_the_snapshots_is_told(run: Run, shelf: Shelf) -> None:
    say(run, shelf)
    run("snapshot")
    shelf.left_out = ("before-upgrade", "old")
    listed = run("snapshot", "list")
    assert "saved-0" in listed.stdout
    assert "2 more in the folder" in listed.stderr
    assert "before-upgrade, old" in listed.stderr.replace("\n", " ")
    for arguments in (("forget", "u", "-m", "a", "--purge"), ("purge",)):
        result = run(*arguments)
        assert result.exit_code == 4
        assert "it may be left in the files" in result.stderr
        assert "before-upgrade, old" in result.stderr
        assert "Nothing of it is left" not in result.stderr
    assert "has left the files" not in result.stdout
    as_json = run("purge", "-f", "json")
    assert as_json.exit_code == 4
    assert documents(as_json)[0]["snapshots_holding"] == ["before-upgrade", "old"]
    told = run("snapshot", "restore", "saved-0").stderr
    assert "no FORGOTTEN lies beside the snapshot" in told


@pytest.mark.parametrize("columns", ["20", "40", "80"])
def test_names_of_snapshots_are_whole_however_narrow_it_is(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "20261130T140501Z-r1234567890123456789-8f3a"
    shelf.snapshots[name] = {}
    lines = run("snapshot", "list").stdout.splitlines()
    assert any(line.startswith(f"{name} ") for line in lines)


def test_a_damaged_snapshot_says_so(run: Run, shelf: Shelf) -> None:
    detail = types_pb2.ErrorDetail(code=15, message="the snapshot is damaged", reason="DAMAGED")
    shelf.failures = [Failure(grpc.StatusCode.DATA_LOSS, detail)]
    result = run("snapshot", "restore", "n")
    assert result.exit_code == 1
    assert result.stderr == "semanticrecall: the snapshot is damaged\n"


def test_the_key_goes_with_the_directory(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    flags = ("--encryption-key-file", str(tmp_path / "key"))
    assert run("snapshot", "restore", "n", *flags).exit_code == 2
    assert shelf.seen == []


class Plugin:
    """Stands for the part of the sidecar's package that restores."""

    name = "restore"

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    def load(self) -> Callable[[list[str]], int]:
        def restore(arguments: list[str]) -> int:
            self.given.append(arguments)
            return 5

        return restore


def test_restore_into_a_directory_is_the_sidecars_part(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin()
    monkeypatch.setattr("semanticrecall.cli.snapshots.entry_points", lambda **_: [plugin])
    more = ("--data-dir", "d", "--encryption-key-file", "k", "-f", "json")
    assert run("snapshot", "restore", "./saved/n", *more).exit_code == 5
    flags = ["--data-dir", "d", "--format", "json", "--encryption-key-file", "k"]
    assert plugin.given == [["./saved/n", *flags]]
    assert shelf.seen == []


def test_restore_into_a_directory_without_the_sidecar_says_what_to_install(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semanticrecall.cli.snapshots.entry_points", lambda **_: [])
    result = run("snapshot", "restore", "n", "--data-dir", "d")
    assert result.exit_code == 1
    assert "semanticrecall-sidecar[server]" in result.stderr
    assert shelf.seen == []


# --- verify and reembed ------------------------------------------------------------------------


def test_verify(run: Run) -> None:
    run("index", "u", "t", "fine", "--id", "a")
    assert run("verify").stdout == "1 messages and 0 vectors: all agree\n"
    run("index", "u", "t", "broken", "--id", "b")
    verified = run("verify", "-f", "json")
    assert verified.exit_code == 4
    finding, summary = documents(verified)
    assert finding == {
        "kind": "VECTOR_MISSING",
        "resource_id": "u",
        "message_id": "b",
        "detail": "no vector",
        "repaired": False,
    }
    assert (summary["messages"], summary["findings"], summary["repaired"]) == (2, 1, 0)
    shown = run("verify")
    assert shown.exit_code == 4
    assert "VECTOR_MISSING  u b  no vector\n" in shown.stdout


def test_verify_repair(run: Run, shelf: Shelf) -> None:
    run("index", "u", "t", "broken", "--id", "b")
    mended = run("verify", "--repair")
    assert mended.exit_code == 0
    assert "VECTOR_MISSING  u b  no vector  (mended)\n" in mended.stdout
    assert "1 findings, 1 of them mended; 5 of 5 messages recalled by their own" in mended.stdout
    shelf.mendable = False
    left = run("verify", "--repair")
    assert left.exit_code == 4
    assert "1 findings, 0 of them mended; 4 of 5 messages recalled by their own" in left.stdout


def test_lost_messages_are_told_with_what_may_have_them(run: Run) -> None:
    run("index", "u", "t", "lost", "--id", "b")
    shown = run("verify", "--repair")
    assert shown.exit_code == 4
    assert "MESSAGE_LOST  u  row 7\n" in shown.stdout
    assert "1 findings, 0 of them mended; 1 messages were lost;" in shown.stdout
    assert "snapshot list" not in shown.stdout  # there is none
    run("snapshot", "create")
    shown = run("verify", "--repair")
    assert "A saved snapshot may have them: semanticrecall snapshot list\n" in shown.stdout
    told = run("verify", "--repair", "-f", "json")
    assert told.exit_code == 4
    assert documents(told)[-1]["lost"] == 1


def test_reembed(run: Run, shelf: Shelf) -> None:
    say(run, shelf)
    result = run("reembed")
    assert result.exit_code == 0
    assert result.stdout == "3 of 3 messages re-embedded.\nfrom  fake@1/2\nto    next@1/3\n"
    (told,) = documents(run("reembed", "-f", "json"))
    assert told["complete"] is True
    shelf.mendable = False
    assert run("reembed").exit_code == 4


def test_stats_show_what_is_new(run: Run) -> None:
    shown = run("stats").stdout
    rows = {line[:24].strip(): line[24:].strip() for line in shown.splitlines()}
    assert rows["encrypted"] == "yes"
    assert rows["found damaged"] == "33"
    assert rows["expired"] == "32"
    assert "next@1/3" in shown
    assert "forgotten, in files still" in shown


# --- vectors in files --------------------------------------------------------------------------


def test_export_with_vectors_and_import(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    say(run, shelf)
    data = bytes(range(8))
    vectors = types_pb2.MessageVectors(message_id="a", index_identity="fake@1/2", data=data)
    shelf.vectors[("u", "a")] = vectors
    path = tmp_path / "u.jsonl"
    assert run("export", "u", "--with-vectors", "-o", str(path)).exit_code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("vectors") for line in lines] == [
        {"index_identity": "fake@1/2", "float32": base64.b64encode(data).decode()},
        None,
        None,
    ]
    shelf.messages.clear()
    shelf.vectors.clear()
    assert run("import", str(path)).exit_code == 0
    assert len(shelf.messages) == 3
    assert shelf.vectors == {("u", "a"): vectors}
    assert all("vectors" not in line for line in documents(run("export", "u")))


@pytest.mark.parametrize(
    "vectors",
    [
        [],
        "AAAA",
        {"index_identity": "m"},
        {"index_identity": 1, "float32": "AAAAAA=="},
        {"index_identity": "m", "float32": "*"},
        {"index_identity": "m", "float32": ""},
        {"index_identity": "m", "float32": "AAAA"},
        {"index_identity": "m", "float32": "AAAAAA==", "more": 1},
    ],
)
def test_bad_vectors_in_a_file_are_told(
    run: Run, shelf: Shelf, tmp_path: Path, vectors: Any
) -> None:
    path = tmp_path / "u.jsonl"
    line = {"id": "a", "role": "user", "text": "x", "thread_id": "t", "vectors": vectors}
    path.write_text(json.dumps(line))
    result = run("import", str(path), "-r", "u")
    assert result.exit_code == 4
    assert "line 1: vectors" in result.stderr
    assert shelf.messages == {}
