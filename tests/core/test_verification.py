"""Verify says what does not agree, whatever it is; a repair mends it and says what it could not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import apsw
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.engine import VerifyReport, verification
from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.recalling import Mode
from semanticrecall_core.types.values import Finding
from support.damaged_engine import TEXTS, DamagedEngine, on_record

OTHERS = {name: f"{text} elsewhere" for name, text in TEXTS.items()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = DamagedEngine(tmp_path / "data")
    made.add("u", TEXTS)
    made.add("v", OTHERS)
    made.snapshot()
    return made.close()


def test_a_sound_store_has_nothing_to_repair(home: Path) -> None:
    engine = DamagedEngine(home)
    findings, report = engine.verify()
    assert findings == []
    assert (report.messages, report.vectors, report.analyses, report.images) == (10, 10, 10, 2)
    findings, report = engine.verify(repair=True)
    assert findings == []
    assert (report.self_test_recalls, report.self_test_failures) == (10, 0)
    findings, report = engine.verify("u", repair=True)
    assert (report.messages, report.images, report.self_test_recalls) == (5, 1, 5)
    assert findings == []
    engine.close()


SEQ_1 = "seq = (SELECT m.seq FROM messages m JOIN resources r USING (resource_key)" + (
    " WHERE r.resource_id = 'u' AND m.id = 'm1')"
)


def without_images(kinds: list[str]) -> list[str]:
    """Images are compared in the background of a start as well."""
    return [kind for kind in kinds if kind != "IMAGE_UNRECORDED"]


@pytest.mark.parametrize(
    ("statement", "kinds"),
    [
        (f"UPDATE vectors SET checksum = checksum + 1 WHERE {SEQ_1}", ["VECTOR_CORRUPT"]),
        (f"UPDATE vectors SET vector = zeroblob(64) WHERE {SEQ_1}", ["VECTOR_CORRUPT"]),
        (f"UPDATE vectors SET vector = x'00' WHERE {SEQ_1}", ["VECTOR_CORRUPT"]),
        (f"UPDATE vectors SET role = 3 WHERE {SEQ_1}", ["VECTOR_CORRUPT"]),
        (f"UPDATE vectors SET text_hash = x'00' WHERE {SEQ_1}", ["VECTOR_STALE"]),
        (f"DELETE FROM vectors WHERE {SEQ_1}", ["VECTOR_MISSING"]),
        (f"DELETE FROM messages WHERE {SEQ_1}", ["ANALYSIS_ORPHAN", "VECTOR_ORPHAN"]),
        ("INSERT INTO pending VALUES (999, 1)", ["PENDING_WRONG"]),
        (f"UPDATE analyses SET analysed = x'00' WHERE {SEQ_1}", ["ANALYSIS_CORRUPT"]),
        (f"UPDATE messages SET content_hash = x'00' WHERE {SEQ_1}", ["ROW_CORRUPT"]),
        ("INSERT INTO threads VALUES (77, 1, 'nobody')", ["THREAD_WRONG"]),
        ("INSERT INTO resources VALUES (77, 'nobody')", ["RESOURCE_ORPHAN"]),
        ("UPDATE threads SET resource_key = 99 WHERE resource_key = 1", ["THREAD_WRONG"]),
    ],
)
def test_what_is_derived_is_mended(home: Path, statement: str, kinds: list[str]) -> None:
    on_record(home, statement)
    engine = DamagedEngine(home)
    assert without_images(engine.kinds()) == kinds
    assert without_images(engine.kinds()) == kinds  # nothing was changed
    findings, _ = engine.verify(repair=True)
    assert all(finding.repaired for finding in findings)
    assert without_images(sorted(finding.kind for finding in findings)) == kinds
    engine.settle()
    assert engine.kinds() == []
    gone = {"m1"} if "DELETE FROM messages" in statement else set()
    assert engine.ids("u") == [name for name in TEXTS if name not in gone]
    assert engine.ids("v") == list(OTHERS)
    for mode in Mode:
        for name, text in TEXTS.items():
            assert name in gone or engine.first("u", text, mode) == name
    engine.close()
    again = DamagedEngine(home)
    assert again.kinds() == []
    again.close()


def pages_of(home: Path) -> int:
    return (home / "recall.db").stat().st_size // 8192


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def lost_of(findings: list[Finding], report: VerifyReport) -> list[tuple[str, str]]:
    """(resource, message) of those that are told as lost; all else was mended."""
    lost = [finding for finding in findings if finding.kind == "MESSAGE_LOST"]
    assert not any(finding.repaired for finding in lost)
    assert all(finding.repaired for finding in findings if finding.kind != "MESSAGE_LOST")
    assert report.lost == len(lost)
    return sorted((finding.resource_id, finding.message_id) for finding in lost)


def test_damaged_pages_are_salvaged(tmp_path: Path) -> None:
    """Every page in turn: what can be read goes on, the repair gives back all that is sound."""
    made = DamagedEngine(tmp_path / "data")
    texts = {f"m{n}": f"message {n} about thing {n * 7919 % 1000}" for n in range(80)}
    made.add("u", texts)
    made.add("v", TEXTS)
    home = made.close()
    pages = pages_of(home)
    assert pages > 15
    refused = []
    for page in range(pages):
        case = tmp_path / f"page-{page}"
        shutil.copytree(home, case)
        flip(case / "recall.db", page * 8192 + 4321)
        try:
            engine = DamagedEngine(case)
        except CorruptDataError as error:
            refused.append((page, error.reason))
            continue
        try:
            kinds = engine.kinds()
            assert kinds, f"page {page}"
            assert set(kinds) <= {"PAGE_DAMAGED"}, f"page {page}"
            assert engine.store.healthy
            findings, report = engine.verify(repair=True)
            lost = lost_of(findings, report)
            assert report.self_test_failures == 0
            engine.settle()
            assert engine.kinds() == [], f"page {page}"
            left = engine.ids("u")
            assert lost == sorted(("u", name) for name in set(texts) - set(left)), f"page {page}"
            assert len(left) >= len(texts) - 1, f"page {page}"
            assert engine.ids("v") == list(TEXTS)
            engine.add("u", {"new": "a new one"})
            assert engine.first("u", "a new one") == "new"
        finally:
            engine.close()
        again = DamagedEngine(case)
        assert again.kinds() == []
        again.close()
    # What a start reads whole: the schema, the record's row, the generations, what is pending.
    assert {reason for _, reason in refused} <= {"PAGE_DAMAGED"}
    assert len(refused) < 8, refused


def test_a_damaged_message_is_left_out_and_the_next_best_takes_its_place(home: Path) -> None:
    on_record(home, f"UPDATE messages SET encoded = x'ff' WHERE {SEQ_1}")
    engine = DamagedEngine(home)
    left = [name for name in TEXTS if name != "m1"]
    assert engine.ids("u") == left
    assert engine.ids("v") == list(OTHERS)
    for mode in Mode:
        # Its own text finds another message, not nothing; all others are found.
        assert engine.first("u", TEXTS["m1"], mode) in left
        assert [engine.first("u", TEXTS[name], mode) for name in left] == left
    with pytest.raises(CorruptDataError):
        engine.engine.get_messages("u", ["m1"])
    assert engine.engine.damaged()["message"] == 1
    assert engine.engine.healthy()
    assert "ROW_CORRUPT" in engine.kinds()
    findings, report = engine.verify(repair=True)
    assert lost_of(findings, report) == [("u", "m1")]
    assert "ROW_CORRUPT" not in {finding.kind for finding in findings}
    assert report.self_test_failures == 0
    assert engine.kinds() == []
    assert engine.ids("u") == left
    # It is as if it had never been there: the same id can be stored again.
    engine.add("u", {"m1": TEXTS["m1"]})
    assert engine.first("u", TEXTS["m1"]) == "m1"
    assert engine.kinds() == []
    engine.close()


@pytest.mark.parametrize(
    ("table", "column"), [("resources", "resource_id"), ("threads", "thread_id")]
)
def test_a_damaged_name_costs_no_message(home: Path, table: str, column: str) -> None:
    """The name stands in every message too, and each message's checksum tells that it is right."""
    key = "resource_key"
    on_record(home, f"UPDATE {table} SET {column} = 'x' WHERE {key} = 1")
    engine = DamagedEngine(home)
    assert set(without_images(engine.kinds())) == {"ROW_CORRUPT"}
    findings, _ = engine.verify(repair=True)
    assert all(finding.repaired for finding in findings)
    engine.settle()
    assert engine.kinds() == []
    assert engine.ids("u") == list(TEXTS)
    assert [engine.first("u", text) for text in TEXTS.values()] == list(TEXTS)
    engine.close()


def test_indexes_that_disagree_with_their_table_are_made_anew(home: Path) -> None:
    more = DamagedEngine(home)
    others = {f"m{n}": f"one more, the {n}th" for n in range(5, 9)}
    more.add("u", others, thread="t2")
    more.close()
    connection = apsw.Connection(str(home / "recall.db"))
    connection.pragma("writable_schema", "ON")
    root = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'messages_by_time'"
    ).get
    other = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'messages_by_thread'"
    ).get
    # Two indexes change places: each has the entries of the other.
    connection.execute(
        "UPDATE sqlite_schema SET rootpage = CASE rootpage WHEN ?1 THEN ?2 ELSE ?1 END"
        " WHERE rootpage IN (?1, ?2)",
        (root, other),
    )
    connection.close()
    engine = DamagedEngine(home)
    told = [f.detail for f in engine.verify()[0] if f.kind == "DATABASE_CORRUPT"]
    assert len(told) == 4  # and not one for each row and index
    assert re.fullmatch(r"[0-9]+ more of these were found in the file", told[-1])
    with capture_logs() as logs:
        findings, report = engine.verify(repair=True)
    assert all(f.repaired for f in findings if f.kind == "DATABASE_CORRUPT")
    assert "store_database_salvaged" not in {log["event"] for log in logs}
    assert report.self_test_failures == 0
    assert engine.kinds() == []
    assert engine.ids("u") == [*TEXTS, *others]
    engine.close()


def test_a_damaged_page_of_an_encrypted_store_costs_its_rows_and_no_more(tmp_path: Path) -> None:
    """Such a page cannot be read in part."""
    key = bytes(range(32))
    made = DamagedEngine(tmp_path / "data", key=key)
    texts = {f"m{n}": f"message {n} about thing {n * 7919 % 1000}" for n in range(200)}
    made.add("u", texts)
    made.add("v", TEXTS)
    home = made.close()
    mended = lost = 0
    told: set[str] = set()
    for page in range(3, pages_of(home), 4):
        case = tmp_path / f"page-{page}"
        shutil.copytree(home, case)
        flip(case / "recall.db", page * 8192 + 4000)
        if refusal(case, key) is not None:
            continue
        engine = DamagedEngine(case, key=key)
        findings, _ = engine.verify()
        assert {finding.kind for finding in findings} == {"PAGE_DAMAGED"}, page
        told |= {re.sub("[0-9]+", "N", finding.detail) for finding in findings}
        findings, report = engine.verify(repair=True)
        assert report.self_test_failures == 0
        engine.settle()
        assert engine.kinds() == []
        gone = [("u", name) for name in texts.keys() - set(engine.ids("u"))]
        gone += [("v", name) for name in TEXTS.keys() - set(engine.ids("v"))]
        assert lost_of(findings, report) == sorted(gone), page
        lost += len(gone)
        assert len(engine.ids("u")) + len(engine.ids("v")) > 0.6 * (len(texts) + len(TEXTS))
        mended += 1
        engine.close()
        again = DamagedEngine(case, key=key)
        assert again.kinds() == []
        again.close()
    assert mended > 3
    assert lost > 3
    assert "messages: rows N to N cannot be read" in told
    assert not any("behind" in detail for detail in told)


def test_of_many_lost_messages_some_are_named_and_the_others_counted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "LOST_TOLD_MAX", 2)
    on_record(home, "UPDATE messages SET encoded = x'ff' WHERE resource_key = 1")
    engine = DamagedEngine(home)
    findings, report = engine.verify(repair=True)
    engine.close()
    lost = [finding for finding in findings if finding.kind == "MESSAGE_LOST"]
    assert len(TEXTS) == 5
    assert [finding.message_id for finding in lost] == ["m0", "m1", ""]
    assert lost[-1].detail == "3 more messages were removed"
    assert report.lost == 5
    assert "ROW_CORRUPT" not in {finding.kind for finding in findings}


def refusal(home: Path, key: bytes | None = None) -> str | None:
    """Why a directory is not opened; None where it is."""
    try:
        DamagedEngine(home, key=key).close()
    except CorruptDataError as error:
        return error.reason
    return None


@pytest.mark.parametrize("at", [0, 20, 25, 105, 4000, 8190])
def test_a_damaged_first_page_names_only_what_can_help(home: Path, at: int) -> None:
    """Neither --accept-loss nor a repair, which needs a server that runs."""
    flip(home / "recall.db", at, bit=3)
    for accept_loss in (False, True):
        with pytest.raises(CorruptDataError) as refused:
            DamagedEngine(home, accept_loss=accept_loss)
        told = refused.value.message
        assert "restore a snapshot" in told
        assert "--" not in told
        assert "first page" in told


def test_a_start_that_meets_a_damaged_page_salvages_where_loss_is_accepted(
    home: Path, tmp_path: Path
) -> None:
    """Whatever page it is, the first one apart: it holds the schema, and no checksum is beside."""
    met = 0
    for page in range(1, pages_of(home)):
        case = tmp_path / f"page-{page}"
        shutil.copytree(home, case)
        flip(case / "recall.db", page * 8192 + 4000)  # no row lies there
        if refusal(case) != "PAGE_DAMAGED":
            continue
        met += 1
        with capture_logs() as logs:
            engine = DamagedEngine(case, accept_loss=True)
        assert "store_database_salvaged" in {log["event"] for log in logs}
        engine.settle()
        assert engine.kinds() == []
        assert engine.ids("u") == list(TEXTS)
        assert engine.ids("v") == list(OTHERS)
        assert [engine.first("u", text) for text in TEXTS.values()] == list(TEXTS)
        store_id = engine.store.store_id
        engine.close()
        again = DamagedEngine(case)
        assert again.store.store_id == store_id
        assert again.kinds() == []
        again.close()
    assert met >= 2
