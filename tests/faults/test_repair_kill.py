"""A repair that is killed, at each step of exchanging the database, loses nothing that is sound."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from semanticrecall_core.types.recalling import Mode
from support.damaged_engine import TEXTS, DamagedEngine, on_record

TESTS = Path(__file__).resolve().parents[1]
PAGE_BYTES = 8192
OTHERS = {name: f"{text} elsewhere" for name, text in TEXTS.items()}
REPAIR = """
import os, sys
from pathlib import Path
from semanticrecall_core.messages import high_water_mark, journal, page_checksums
from support.damaged_engine import DamagedEngine

home, point = Path(sys.argv[1]), sys.argv[2]
engine = DamagedEngine(home)

def killed_before(owner, name, when=lambda *_: True):
    really = getattr(owner, name)
    def replaced(*arguments, **options):
        if when(*arguments):
            os._exit(9)
        return really(*arguments, **options)
    setattr(owner, name, replaced)

def killed_after(owner, name):
    really = getattr(owner, name)
    def replaced(*arguments, **options):
        result = really(*arguments, **options)
        os._exit(9)
        return result
    setattr(owner, name, replaced)

match point:
    case "written": killed_after(journal, "write_beside")
    case "closed": killed_before(Path, "replace", lambda path, *_: "salvaged" in path.name)
    case "renamed": killed_before(
        page_checksums, "sync", lambda path, *_: path.is_dir())
    case "opened": killed_before(
        high_water_mark.HighWaterMark, "write", lambda *_: True)
list(engine.engine.verify(None, repair=True))
os._exit(0)
"""


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A page with a flipped bit between its rows, a message and a vector that do not match."""
    made = DamagedEngine(tmp_path / "data")
    made.add("u", TEXTS)
    made.add("v", OTHERS)
    home = made.close()
    on_record(home, "UPDATE messages SET encoded = x'ff' WHERE id = 'm3' AND resource_key = 1")
    on_record(home, "UPDATE vectors SET checksum = checksum + 1 WHERE seq = 2")
    engine = DamagedEngine(home)
    with engine.store._readers.read() as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages'").get
    engine.close()
    with (home / "recall.db").open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES + 4000)
        byte = file.read(1)[0]
        file.seek((page - 1) * PAGE_BYTES + 4000)
        file.write(bytes([byte ^ 4]))
    return home


@pytest.mark.parametrize("point", ["written", "closed", "renamed", "opened"])
def test_a_killed_repair_leaves_the_old_database_or_the_new_one(
    damaged: Path, tmp_path: Path, point: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REPAIR, str(damaged), point],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert ran.returncode == 9, ran.stderr[-2000:]
    shutil.copytree(damaged, tmp_path / "as-it-was-left")
    engine = DamagedEngine(damaged)
    assert not list(damaged.glob("*.salvaged*"))
    findings, report = engine.verify(repair=True)
    lost = [finding for finding in findings if finding.kind == "MESSAGE_LOST"]
    assert {finding.message_id for finding in lost} <= {"m3"}
    assert all(finding.repaired for finding in findings if finding not in lost)
    assert report.self_test_failures == 0
    engine.settle()
    assert engine.kinds() == []
    left = [name for name in TEXTS if name != "m3"]
    assert engine.ids("u") == left
    assert engine.ids("v") == list(OTHERS)
    assert [engine.first("u", TEXTS[name], Mode.DENSE) for name in left] == left
    engine.close()
