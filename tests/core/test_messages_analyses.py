"""Analyses on record: who makes them, when they are made anew, damage, and older formats."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.messages import (
    SqliteMessageStore,
    analysis_rows,
    lexical_loading,
    put_analyses,
    sqlite_store,
)
from semanticrecall_core.messages.schema import FORMAT
from semanticrecall_core.types.errors import FailedPreconditionError
from semanticrecall_core.types.values import ForgetTarget, Status
from support import format_2
from support.message_stores import append, draft, embed
from support.recorded_texts import RecordedTexts, text_rows
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser

ANALYSE = WordAnalyser().analyse
ANALYSE_2 = WordAnalyser(version=2).analyse
MANY = [draft(f"m{n}", text=f"text {n}") for n in range(10)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "data"


def opened(home: Path, analyser: WordAnalyser | None = None) -> SqliteMessageStore:
    return open_store(home, generation="g", analyser=analyser or WordAnalyser())


def on_record(home: Path, statement: str = "", *values: object) -> dict[int, bytes]:
    """Analyses by seq as the file has them, after the statement."""
    connection = apsw.Connection(str(home / "recall.db"))
    if statement:
        connection.execute(statement, values)
    found = dict(connection.execute("SELECT seq, analysed FROM analyses"))
    connection.close()
    return found


def analyses(store: SqliteMessageStore, resource: str = "u") -> dict[int, bytes]:
    return {row[0]: row[-1] for row in text_rows(store.load_lexical(resource))}


def settled(store: SqliteMessageStore, parts: int = 1) -> None:
    """Wait until so many parts of what was made are written: each goes before one append."""
    for _ in range(parts):
        append(store, draft("last", embeddable=False))


# -- who analyses, and what -------------------------------------------------------------------


def test_texts_are_analysed_on_the_threads_of_the_callers(home: Path) -> None:
    analyser = WordAnalyser()
    store = opened(home, analyser)

    def write() -> None:
        append(store, draft("a"), draft("none", embeddable=False))
        append(store, draft("a", text="again"))
        store.transfer_thread("u", "t", "v")
        store.forget("v", ForgetTarget(message_ids=("a",)))

    caller = threading.Thread(target=write, name="caller")
    caller.start()
    caller.join(30)
    assert analyser.threads == ["caller", "caller"]
    store.close()


@pytest.mark.parametrize("messages", [1, put_analyses._FEW_ROWS, put_analyses._FEW_ROWS + 1])
def test_rows_of_a_few_and_of_many_messages_match_their_checksums(
    home: Path, messages: int
) -> None:
    drafts = [draft(f"m{n}", text=f"text {n}") for n in range(messages)]
    store = opened(home)
    append(store, *drafts)
    assert list(store.verify("u")) == []
    store.close()
    assert list(on_record(home).values()) == [ANALYSE(each.text, "") for each in drafts]


@pytest.mark.parametrize("numbers", [(1, 2, 3, 4, 5, 6), (2**62, 7, 0, -(2**63), 2, 2**63 - 1)])
def test_the_checksum_of_one_row_is_that_of_its_column(numbers: tuple[int, ...]) -> None:
    column = analysis_rows.analysis_checksums(np.array([numbers], np.int64), [b"some words"])
    assert analysis_rows.analysis_checksum(numbers, b"some words") == column.tolist()[0]


def test_a_history_given_again_is_not_analysed_again(home: Path) -> None:
    store = opened(home)
    append(store, *MANY)
    store.close()
    analyser = WordAnalyser()
    store = opened(home, analyser)
    assert {o.status for o in append(store, *MANY)} == {Status.UNCHANGED}
    assert analyser.threads == []
    outcomes = append(store, *MANY, draft("new"), replace(MANY[3], author="Ann"))
    assert len(analyser.threads) == 2
    store.close()
    last = outcomes[10].seq
    assert on_record(home) == {
        **{o.seq: ANALYSE(d.text, "") for o, d in zip(outcomes, MANY, strict=False)},
        outcomes[3].seq: ANALYSE("text 3", "Ann"),
        last: ANALYSE("text", ""),
    }


@pytest.mark.parametrize(
    "between",
    [
        lambda store: store.forget("u", ForgetTarget(message_ids=("m4",))),
        lambda store: append(store, draft("m4", text="other")),
        lambda store: append(store, replace(MANY[4], create_time_ns=5)),
        lambda store: store.transfer_thread("u", "t", "v"),
    ],
    ids=["forgotten", "edited", "dated", "moved"],
)
def test_what_changes_after_it_was_looked_up_is_analysed_after_all(
    home: Path, monkeypatch: pytest.MonkeyPatch, between: Callable[[Any], object]
) -> None:
    store = opened(home)
    told = RecordedTexts(store)
    store.subscribe_lexical(told)
    append(store, *MANY)
    look_up = sqlite_store.contents_of_ids
    changes = [between]

    def looked_up_too_early(*arguments: Any) -> dict[str, tuple[bytes, int]]:
        found = look_up(*arguments)
        while changes:
            changes.pop()(store)
        return found

    monkeypatch.setattr(sqlite_store, "contents_of_ids", looked_up_too_early)
    (looked_up,) = store.get("u", ["m4"])
    given = replace(MANY[4], create_time_ns=looked_up.create_time_ns)
    outcomes = append(store, *MANY[:4], given, *MANY[5:])
    assert outcomes[4].status is not Status.UNCHANGED
    assert outcomes[4].seq in told.calls[-1][2]
    assert told.calls[-1][:2] == ("put", "u")
    store.close()
    kept = on_record(home)
    assert [kept[outcome.seq] for outcome in outcomes] == [ANALYSE(one.text, "") for one in MANY]


def test_a_message_changed_and_changed_back_in_one_call_keeps_its_analysis(home: Path) -> None:
    store = opened(home)
    append(store, *MANY)
    outcomes = append(store, replace(MANY[0], text="other"), *MANY)
    assert outcomes[0].seq == outcomes[1].seq
    assert analyses(store)[outcomes[0].seq] == ANALYSE("text 0", "")
    store.close()
    assert on_record(home)[outcomes[0].seq] == ANALYSE("text 0", "")


# -- made anew --------------------------------------------------------------------------------


def test_analyses_of_an_older_version_are_made_anew_and_kept(home: Path) -> None:
    store = opened(home)
    seqs = [outcome.seq for outcome in append(store, *MANY)]
    store.close()
    analyser = WordAnalyser(version=2)
    store = opened(home, analyser)
    expected = {seq: ANALYSE_2(f"text {n}", "") for n, seq in enumerate(seqs)}
    told = RecordedTexts(store)
    store.subscribe_lexical(told)
    assert analyses(store) == expected
    assert len(analyser.threads) == 10
    settled(store)
    assert analyses(store) == expected
    assert len(analyser.threads) == 10
    assert told.calls == []
    store.close()
    assert on_record(home) == expected


def test_what_was_made_is_written_in_parts_between_which_others_write(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(home, generation="g")
    seqs = [outcome.seq for outcome in append(store, *MANY)]
    store.close()
    assert on_record(home) == {}
    monkeypatch.setattr(put_analyses, "WRITE_BACK_ROWS", 3)
    sizes: list[int] = []
    put = put_analyses.put_analyses
    monkeypatch.setattr(
        put_analyses,
        "put_analyses",
        lambda c, rows: (sizes.append(len(rows.analysed)), put(c, rows)),
    )
    store = opened(home)
    assert list(analyses(store)) == seqs
    settled(store, parts=4)
    store.close()
    assert sizes == [3, 3, 3, 1]
    assert on_record(home) == {seq: ANALYSE(f"text {n}", "") for n, seq in enumerate(seqs)}


class _Meddler(WordAnalyser):
    """While it analyses the first text, something else happens."""

    meddle: Callable[[], object] | None = None

    def analyse(self, text: str, author: str) -> bytes:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()
        return super().analyse(text, author)


def test_what_was_made_of_a_message_as_it_was_is_not_kept(home: Path) -> None:
    store = open_store(home, generation="g")
    a, b, c, d = append(
        store, draft("a"), draft("b", thread="t2"), draft("c"), draft("d", thread="t3")
    )
    store.close()
    analyser = _Meddler()
    store = opened(home, analyser)

    def meddle() -> None:
        append(store, draft("a", text="edited"))
        store.transfer_thread("u", "t2", "v")
        store.forget("u", ForgetTarget(message_ids=("c",)))

    analyser.meddle = meddle
    assert list(analyses(store)) == [a.seq, b.seq, c.seq, d.seq]
    settled(store)
    assert list(store.verify(None)) == []
    store.close()
    assert on_record(home) == {a.seq: ANALYSE("edited", ""), d.seq: ANALYSE("text", "")}


def test_what_changes_while_texts_are_read_is_read_as_it_is_then(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexical_loading, "_BATCH_ROWS", 1)
    store = open_store(home, generation="g")
    given = [draft(name, thread=name) for name in "abcde"]
    a, *_, e = append(store, *given)
    store.close()
    analyser = _Meddler()
    store = opened(home, analyser)

    def meddle() -> None:
        store.transfer_thread("u", "b", "v")
        store.forget("u", ForgetTarget(message_ids=("c",)))
        append(store, replace(given[3], text="-", embeddable=False))
        append(store, replace(given[4], text="edited"))

    analyser.meddle = meddle
    assert analyses(store) == {a.seq: ANALYSE("text", ""), e.seq: ANALYSE("edited", "")}
    settled(store)
    assert list(store.verify(None)) == []
    store.close()


def test_without_an_analyser_no_analysis_is_kept_beyond_its_message(home: Path) -> None:
    given = [draft(f"m{n}", thread=f"t{n}", text=f"text {n}") for n in range(5)]
    store = opened(home)
    seqs = [outcome.seq for outcome in append(store, *given)]
    store.close()
    store = open_store(home, generation="g")
    append(store, replace(given[0], text="edited"), replace(given[1], metadata_json='{"k":1}'))
    store.transfer_thread("u", "t2", "v")
    store.forget("u", ForgetTarget(message_ids=("m3",)))
    assert list(store.verify(None)) == []
    store.close()
    assert on_record(home) == {seqs[n]: ANALYSE(f"text {n}", "") for n in (2, 4)}
    store = opened(home)
    assert analyses(store) == {
        seqs[0]: ANALYSE("edited", ""),
        seqs[1]: ANALYSE("text 1", ""),
        seqs[4]: ANALYSE("text 4", ""),
    }
    assert analyses(store, "v") == {seqs[2]: ANALYSE("text 2", "")}
    store.close()


# -- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "analysed = x'00'",
        "analysed = x''",
        "analysed = CAST(analysed || x'00' AS BLOB)",
        "checksum = checksum + 1",
        "thread_key = thread_key + 1",
        "create_time_ns = 0",
        "role = 2",
        "role = -1",
        "revision = revision + 1",
    ],
)
def test_a_damaged_analysis_is_made_again_from_the_text(home: Path, change: str) -> None:
    store = opened(home)
    a, b = append(store, draft("a", text="one"), draft("b"))
    embed(store, b, [1.0, 0.0])
    expected = text_rows(store.load_lexical("u"))
    store.close()
    on_record(home, f"UPDATE analyses SET {change} WHERE seq = ?", a.seq)
    analyser = WordAnalyser()
    store = opened(home, analyser)
    found = [(f.kind, f.resource_id, f.message_id) for f in store.verify(None)]
    assert found == [("ANALYSIS_CORRUPT", "u", "a")]
    analyser.threads.clear()
    with capture_logs() as logs:
        assert text_rows(store.load_lexical("u")) == expected
    assert [log["seqs"] for log in logs if log["event"] == "store_analyses_corrupt"] == [(a.seq,)]
    assert len(analyser.threads) == 1
    settled(store)
    assert list(store.verify(None)) == []
    store.close()
    assert on_record(home)[a.seq] == ANALYSE("one", "")


def test_an_analysis_under_another_resource_is_not_served_there(home: Path) -> None:
    store = opened(home)
    (mine,) = append(store, draft("a", text="mine"))
    (other,) = append(store, draft("b", text="other"), resource="v")
    store.close()
    on_record(
        home,
        "UPDATE analyses SET resource_key = (SELECT resource_key FROM resources"
        " WHERE resource_id = 'v') WHERE seq = ?",
        mine.seq,
    )
    store = opened(home)
    assert [f.kind for f in store.verify(None)] == ["ANALYSIS_CORRUPT"]
    assert analyses(store, "v") == {other.seq: ANALYSE("other", "")}
    assert analyses(store) == {mine.seq: ANALYSE("mine", "")}
    store.close()


def test_a_damaged_message_without_an_analysis_is_left_out_and_logged(home: Path) -> None:
    store = open_store(home, generation="g")
    a, b = append(store, draft("a"), draft("b"))
    store.close()
    on_record(home, "UPDATE messages SET encoded = x'ff' WHERE seq = ?", a.seq)
    store = opened(home)
    with capture_logs() as logs:
        assert list(analyses(store)) == [b.seq]
    assert [log["seqs"] for log in logs if log["event"] == "store_row_corrupt"] == [(a.seq,)]
    settled(store)
    store.close()
    assert list(on_record(home)) == [b.seq]


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("DELETE FROM messages WHERE seq = ?", "ANALYSIS_ORPHAN"),
        ("UPDATE messages SET embeddable = 0 WHERE seq = ?", "ANALYSIS_ORPHAN"),
        ("UPDATE messages SET revision = revision + 1 WHERE seq = ?", "ANALYSIS_STALE"),
        ("UPDATE messages SET thread_key = thread_key + 1 WHERE seq = ?", "ANALYSIS_STALE"),
        ("UPDATE messages SET role = 2 WHERE seq = ?", "ANALYSIS_STALE"),
        ("UPDATE messages SET create_time_ns = 0 WHERE seq = ?", "ANALYSIS_STALE"),
    ],
)
def test_verify_names_an_analysis_that_does_not_fit(home: Path, statement: str, kind: str) -> None:
    store = opened(home)
    a, _ = append(store, draft("a"), draft("b"))
    store.close()
    on_record(home, statement, a.seq)
    store = opened(home)
    found = [finding for finding in store.verify(None) if finding.kind.startswith("ANALYSIS")]
    assert [finding.kind for finding in found] == [kind]
    assert str(a.seq) in found[0].detail
    assert [f.kind for f in store.verify("u") if f.kind.startswith("ANALYSIS")] == [kind]
    assert list(store.verify("somebody else")) == []
    store.close()


def test_verify_reads_beyond_one_batch(home: Path) -> None:
    store = opened(home)
    for resource in "uv":
        append(store, *(draft(f"m{n}") for n in range(300)), resource=resource)
    store.close()
    on_record(home, "UPDATE analyses SET checksum = checksum + 1 WHERE seq % 100 = 0")
    store = opened(home)
    assert len([f for f in store.verify(None) if f.kind == "ANALYSIS_CORRUPT"]) == 6
    assert len([f for f in store.verify("v") if f.kind == "ANALYSIS_CORRUPT"]) == 3
    store.close()


def test_a_missing_or_older_analysis_is_no_finding(home: Path) -> None:
    store = opened(home)
    a, _ = append(store, draft("a"), draft("b"))
    store.close()
    on_record(home, "DELETE FROM analyses WHERE seq = ?", a.seq)
    store = opened(home, WordAnalyser(version=2))
    assert list(store.verify(None)) == []
    store.close()


# -- a directory of format 2 ------------------------------------------------------------------


def format_of(home: Path) -> int:
    connection = apsw.Connection(str(home / "recall.db"))
    version = connection.pragma("user_version")
    connection.close()
    return int(version)


def test_a_directory_of_format_2_is_opened_and_has_everything(tmp_path: Path) -> None:
    home = format_2.unpacked(tmp_path)
    assert format_of(home) == 2
    with capture_logs() as logs:
        store = open_store(home, generation=format_2.GENERATION, analyser=WordAnalyser())
    (upgraded,) = [log for log in logs if log["event"] == "store_format_upgraded"]
    assert (upgraded["before"], upgraded["now"]) == (2, FORMAT)
    assert format_of(home) == FORMAT == 4
    assert list(store.verify(None)) == []
    times = count(format_2.FIRST_TIME_NS, 1_000_000_000)
    for resource, drafts in format_2.CONTENT.items():
        stored = {m.id: m for m in store.get(resource, [one.id for one in drafts])}
        assert list(stored) == [one.id for one in drafts]
        for one in drafts:
            message = stored[one.id]
            assert (message.text, message.author, message.role) == (one.text, one.author, one.role)
            assert (message.metadata_json, message.group_id, message.payload) == (
                one.metadata_json,
                one.group_id,
                one.payload,
            )
            assert message.create_time_ns == next(times)
        to_embed = [one for one in drafts if one.embeddable]
        embedded = [one for one in to_embed if (resource, one.id) != format_2.WAITING]
        partition = store.load_partition(resource)
        assert partition.seqs.tolist() == [stored[one.id].seq for one in embedded]
        assert partition.vectors.tolist() == [[1.0, stored[one.id].seq] for one in embedded]
        assert text_rows(store.load_lexical(resource)) == [
            (
                stored[one.id].seq,
                store.thread_key(resource, one.thread_id),
                stored[one.id].create_time_ns,
                stored[one.id].revision,
                one.role,
                ANALYSE(one.text, one.author),
            )
            for one in to_embed
        ]
    assert [row.resource_id for row in store.pending(0, 9)] == [format_2.WAITING[0]]
    settled(store, parts=2)
    store.close()
    kept = sum(one.embeddable for drafts in format_2.CONTENT.values() for one in drafts)
    assert len(on_record(home)) == kept


def test_a_directory_of_format_2_goes_on_as_one_of_this_format(tmp_path: Path) -> None:
    home = format_2.unpacked(tmp_path)
    open_store(home, generation=format_2.GENERATION).close()
    with capture_logs() as logs:
        store = open_store(home, generation=format_2.GENERATION, analyser=WordAnalyser())
    assert [log for log in logs if log["event"] == "store_format_upgraded"] == []
    (edited,) = append(store, draft("first", thread="travel", text="Found it."), resource="alice")
    assert edited.status is Status.REPLACED
    (new,) = append(store, draft("new"), resource="bob")
    assert analyses(store, "alice")[edited.seq] == ANALYSE("Found it.", "")
    store.transfer_thread("bob", "t", "carol")
    assert analyses(store, "carol") == {new.seq: ANALYSE("text", "")}
    store.forget("alice", ForgetTarget(everything=True))
    assert analyses(store, "alice") == {}
    assert list(store.verify(None)) == []
    store.close()


def test_a_directory_of_format_2_that_is_refused_is_left_as_it_was(tmp_path: Path) -> None:
    """Whoever wrote it can still open it."""
    home = format_2.unpacked(tmp_path)
    connection = apsw.Connection(str(home / "recall.db"))
    connection.execute("UPDATE record SET codec = 'another'")
    connection.close()
    with pytest.raises(FailedPreconditionError, match="another form"):
        open_store(home, generation=format_2.GENERATION)
    assert format_of(home) == 2
    with pytest.raises(FailedPreconditionError, match="another form"):
        open_store(home, generation=format_2.GENERATION)
