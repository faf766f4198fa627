"""kill -9 of a process that changes collections: each change is there as a whole, or not at all.

And every one that was acknowledged is there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from semanticrecall_core.types.collections import Metric, VectorQuery
from support.collection_model import ANY_TIME, KEY, opened, opened_with_mark
from support.faulty_disk import FaultyDisk
from support.killed_writer import killed_writer

KILLS = 15

# Three threads, each with collections of its own, and one that purges. A line is written before a
# change ("?") and after it ("="). Every change of a thread's collection gives it one more "round":
# an upsert of 40 vectors in the place of those of the round before last; some replace, some delete.
WRITER = """
import sys, threading
from pathlib import Path
from semanticrecall_core.types.collections import Metric, VectorChange, VectorEntry, VectorSelection
from support.collection_model import ANY_TIME, KEY, opened_with_mark
home, cycle = Path(sys.argv[1]), int(sys.argv[2])
collections = opened_with_mark(home, key=KEY if home.name == "encrypted" else None)
mutex = threading.Lock()
def say(line):
    with mutex:
        sys.stdout.write(line + "\\n")
        sys.stdout.flush()
def write(name):
    resource = f"u{name}"
    collections.create(resource, "c", 32, Metric.DOT_PRODUCT)
    for n in range(10**9):
        round = cycle * 10**6 + n
        say(f"? {name} {round}")
        fields = {"round": round, "text": "x" * 300}
        ids = [f"v{i}" if i < 10 else f"{round}-{i}" for i in range(40)]
        entries = [VectorEntry(id, [round] * 32, fields) for id in ids]
        collections.upsert(resource, "c", entries, {"round": {"$lt": round}}, ANY_TIME)
        say(f"= {name} {round}")
        if n % 5 == 4:
            collections.create(resource, f"t{round}", 2, Metric.COSINE)
            one = [VectorEntry("t", [1, 1], {})]
            collections.upsert(resource, f"t{round}", one, None, ANY_TIME)
            say(f"made {name} {round}")
            collections.delete(resource, f"t{round}")
            say(f"gone {name} {round}")
def purge():
    while True:
        collections.purge(ANY_TIME)
        say("purged")
for name in range(3):
    threading.Thread(target=write, args=(name,)).start()
threading.Thread(target=purge).start()
"""


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_what_was_acknowledged_is_there_and_whole_after_kill_9(kind: str, tmp_path: Path) -> None:
    home = tmp_path / kind
    home.mkdir()
    key = KEY if kind == "encrypted" else None
    before: dict[str, int] = {}
    done: Counter[str] = Counter()
    for cycle in range(KILLS):
        begun: dict[str, int] = {}
        acknowledged = dict(before)
        made, gone = set(), set()
        for line in killed_writer(WRITER, home, cycle, lines=1 + 9 * cycle):
            match line.split():
                case ["?", name, number]:
                    begun[name] = int(number)
                case ["=", name, number]:
                    acknowledged[name] = int(number)
                    done["upserts"] += 1
                case ["made", name, number]:
                    made.add((name, number))
                case ["gone", name, number]:
                    gone.add((name, number))
                    done["collections removed"] += 1
                case ["purged"]:
                    done["purges"] += 1
        collections = opened_with_mark(home, key=key)
        assert list(collections.verify(None, ANY_TIME)) == [], f"{home}, cycle {cycle}"
        for name in ("0", "1", "2"):
            names = {one.name for one in collections.list(f"u{name}")}
            assert {f"t{number}" for who, number in made - gone if who == name} <= names | {
                f"t{begun.get(name)}"
            }
            assert not {f"t{number}" for who, number in gone if who == name} & names
            if name not in acknowledged and "c" not in names:
                continue
            query = VectorQuery([1.0] * 32, 1_000, include_values=True)
            found = collections.query(f"u{name}", "c", query, ANY_TIME)
            rounds = {int(str(one.metadata["round"])) for one in found}
            assert len(rounds) <= 1
            assert len(found) == 40 * len(rounds)
            for one in found:
                assert one.values is not None
                assert one.values.tolist() == [one.metadata["round"]] * 32
            allowed = {acknowledged.get(name), begun.get(name)} - {None}
            assert rounds <= allowed
            assert rounds or name not in acknowledged
            if rounds:
                before[name] = rounds.pop()
        collections.close()
    assert done["upserts"] > 20 * KILLS
    assert done["collections removed"] > KILLS
    assert done["purges"] > 5


def test_a_file_that_was_being_made_is_gone_on_with(tmp_path: Path) -> None:
    """What lies there at each write and sync of the first collection is what a kill leaves."""
    home = tmp_path / "data"
    home.mkdir()
    disk = FaultyDisk()

    def keep(_operation: str, _name: str) -> None:
        shutil.copytree(home, tmp_path / f"{disk.calls}")

    disk.fault = keep
    collections = opened(home, vfs=disk.vfs_name)
    collections.create("u", "c", 4, Metric.COSINE)
    disk.fault = None
    last = disk.calls + 1
    shutil.copytree(home, tmp_path / f"{last}")
    collections.close()
    found = []
    for calls in range(1, last + 1):
        collections = opened(tmp_path / f"{calls}")
        found.append([one.name for one in collections.list("u")])
        assert list(collections.verify(None, ANY_TIME)) == []
        assert collections.create("u", "c", 4, Metric.COSINE)[1] is (found[-1] == [])
        collections.close()
    assert found == sorted(found)
    assert found[0] == []
    assert found[-1] == ["c"]
    assert len(found) > 20
