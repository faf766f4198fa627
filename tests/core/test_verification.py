"""Verify says what does not agree, whatever it is; a repair mends it and says what it could not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.recalling import Mode
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


def test_damaged_pages_are_salvaged(tmp_path: Path) -> None:
    """Every page in turn: what can be read goes on, the repair gives back all that is sound."""
    made = DamagedEngine(tmp_path / "data")
    texts = {f"m{n}": f"message {n} about thing {n * 7919 % 1000}" for n in range(200)}
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
            assert all(finding.repaired for finding in findings), f"page {page}"
            assert report.self_test_failures == 0
            engine.settle()
            assert engine.kinds() == [], f"page {page}"
            left = engine.ids("u")
            assert set(left) <= set(texts)
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
