"""Images of partitions and cached vectors that are damaged: made anew, said in the log (LIFE-3).

That every single bit and length is found is shown in test_snapshot_files.py; here it is what a
whole engine makes of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.types.recalling import Mode
from semanticrecall_core.types.values import VectorQuery
from support.cache_files import TEXTS, FiledCache, filled
from support.damage_world import vector_of_nothing
from support.damaged_engine import DamagedEngine
from support.fault_report import seeded
from support.fault_sizes import COLUMNS, size

MESSAGES = 300
BLOCK_BYTES = 4096
SAID = {"snapshot_file_not_used", "snapshot_block_damaged"}


@pytest.fixture(scope="module")
def imaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = DamagedEngine(tmp_path_factory.mktemp("images") / "data")
    engine.add("u", texts())
    engine.snapshot()
    return engine.close()


def texts() -> dict[str, str]:
    return {f"m{n}": f"thing{n} belongs to place{n * 31 % 97}" for n in range(MESSAGES)}


def image_of(home: Path) -> Path:
    (path,) = (home / "snapshots").glob("*.snapshot")
    return path


def check(home: Path, where: str) -> None:
    """Everything is found, the damage was said, and Verify and a repair agree."""
    with capture_logs() as logs:
        engine = DamagedEngine(home)
        found = engine.index.search("u", VectorQuery(vector_of_nothing(), 1)).searchable
    try:
        assert found == MESSAGES, where
        assert {log["event"] for log in logs} & SAID, where
        for name, text in list(texts().items())[:: MESSAGES // 10]:
            assert engine.first("u", text, Mode.DENSE) == name, where
        left = engine.kinds()
        assert set(left) <= {"IMAGE_DAMAGED"}, where
        assert engine.kinds(repair=True) == left, where
        assert engine.kinds() == [], where
        engine.snapshot()
        assert engine.verify()[1].images == 1, where
    finally:
        engine.close()


def test_an_image_cut_or_changed_in_any_block_is_rebuilt_from_the_record(
    imaged: Path, tmp_path: Path
) -> None:
    with seeded("F16 damaged images", tmp_path) as run:
        blocks = -(-image_of(imaged).stat().st_size // BLOCK_BYTES)
        assert blocks > 5
        for block in range(blocks):
            for kind in ("cut", "flipped"):
                home = tmp_path / "data"
                shutil.copytree(imaged, home)
                path = image_of(home)
                content = bytearray(path.read_bytes())
                if kind == "cut":
                    del content[block * BLOCK_BYTES :]
                else:
                    stop = min(len(content), (block + 1) * BLOCK_BYTES)
                    at = run.random.randrange(block * BLOCK_BYTES, stop)
                    content[at] ^= 1 << run.random.randrange(8)
                path.write_bytes(content)
                check(home, f"block {block} {kind}")
                run.count(f"{kind} and rebuilt")
                shutil.rmtree(home)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_changed_bit_of_the_cache_is_never_another_vector(tmp_path: Path, column: str) -> None:
    """Nothing depends on the file: what is not sound is not there, and is computed again."""
    number = size("F6_DAMAGES_PER_FILE", column)
    with seeded("F6 bits of embeddings.db", tmp_path, number=number) as run:
        path = filled(tmp_path)
        sound = path.read_bytes()
        used = np.flatnonzero(np.frombuffer(sound, np.uint8)).tolist()  # the others are free
        for _ in run.cycles(number):
            damaged = bytearray(sound)
            damaged[run.random.choice(used)] ^= 1 << run.random.randrange(8)
            path.write_bytes(damaged)
            with capture_logs() as logs:
                filed = FiledCache(tmp_path)
                found = [filed.find(text) for text in TEXTS]  # compares the bytes of what it finds
                told = filed.cache.stats().disk_damaged or any(
                    log["log_level"] in ("warning", "error") for log in logs
                )
                filed.close()
            if told:
                run.count("told")
            elif all(found):
                run.count("without effect")
            else:
                run.count("not found, to be computed again")
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        assert run.counts["told"] > 0.85 * run.done
        assert run.counts["not found, to be computed again"] == 0
