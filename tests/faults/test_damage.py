"""Flipped bits, zeroed pages, lost ends and old copies of every file: told, or without effect.

For each damaged copy of a directory that a store has worked in: it is opened as at a start,
everything is read in every way, and what is found is compared with what was given. Whatever differs
must have been told: the start refused, a call failed, a log line, a finding of Verify, a count.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from semanticrecall_core.types.values import MessageDraft, Role
from support.damage_batches import Outcome, counts, outcomes, require_told
from support.damage_worker import Mutation
from support.damage_world import Builder, World, build, copy_of, read_all
from support.fault_report import FaultRun, seeded
from support.fault_sizes import COLUMNS, size

PAGE_BYTES = 8192
BLOCK_BYTES = 4096
SLOT_BYTES = 48  # of each of the two slots of MARK
SHARE_TOLD_MIN = 0.999
BATCH = 200  # read by one process; the time is looked at between them


@dataclass(frozen=True, slots=True)
class Directories:
    """Copies of one store's directory.

    Attributes:
        closed: after it was closed: all is in recall.db.
        killed: as a killed process leaves it: all is in the log.
        older: closed, some changes earlier.
    """

    closed: Path
    killed: Path
    older: Path
    world: World
    killed_world: World

    def of(self, name: str) -> tuple[Path, World]:
        """The directory in which a file is in use, and what is in it."""
        if name == "recall.db-wal":
            return self.killed, self.killed_world
        return self.closed, self.world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directories]:
    # In memory where there is room: thousands of copies are written and synced.
    shared = Path("/dev/shm")
    base = tmp_path_factory.mktemp("damage")
    if shared.is_dir() and shutil.disk_usage(shared).free > 256 << 20:
        base = Path(tempfile.mkdtemp(prefix="damage-", dir=shared))
    builder = build(base / "live")
    killed = copy_of(base / "live", base / "killed")
    builder.store.close()
    older = copy_of(base / "live", base / "older")
    again = build_more(base / "live", builder.world)
    yield Directories(copy_of(base / "live", base / "closed"), killed, older, again, builder.world)
    shutil.rmtree(base, ignore_errors=True)


def build_more(home: Path, world: World) -> World:
    """One more message, so that what was closed before is a stale copy."""
    more = Builder(home)
    more.world = World.of_json(world.to_json())
    more._time_ns = 1_800_000_000_000_000_000
    more.add("alice", [MessageDraft("late", "t0", Role.USER, text="alice says one thing more")])
    more.store.close()
    return more.world


def run_of(
    run: FaultRun, base: Path, made: Path, world: World, mutations: list[Mutation]
) -> list[Outcome]:
    """The outcomes, counted in the report; fails where one was silent or killed the process."""
    found: list[Outcome] = []
    for part in run.batches(mutations, BATCH):
        some = outcomes(base / "work", made, world, list(part))
        for what, number in counts(some).items():
            run.count(what, number)
        require_told(some)
        found += some
    return found


def used_pages(database: Path) -> list[int]:
    """Numbers of pages, from 0, that a table or an index has; others are free."""
    connection = apsw.Connection(str(database))
    pages = connection.execute("SELECT pageno - 1 FROM dbstat ORDER BY 1").fetchall()
    connection.close()
    return sorted({0, *(int(page[0]) for page in pages)})


def flips_in(
    run: FaultRun, name: str, ranges: list[tuple[int, int]], number: int
) -> list[Mutation]:
    """Bits by chance, each byte of the ranges (start, stop) as likely as any other."""
    total = sum(stop - start for start, stop in ranges)
    found: list[Mutation] = []
    for _ in range(number):
        at = run.random.randrange(total)
        for start, stop in ranges:
            if at < stop - start:
                found.append([name, "flip", start + at, run.random.randrange(8)])
                break
            at -= stop - start
    return found


def require_share(run: FaultRun, found: list[Outcome]) -> None:
    """Nearly all flips in used bytes are told, whether they make a difference or not."""
    told = sum(one.is_reported for one in found)
    share = told / len(found)
    run.count("per mille of used bits told", round(1000 * share))
    unnoticed = [one.mutation for one in found if not one.is_reported]
    assert share >= SHARE_TOLD_MIN, f"{told} of {len(found)} told; not told: {unnoticed[:10]}"


def require_all(found: list[Outcome]) -> None:
    """Each is told, whether it makes a difference or not."""
    assert [one.mutation for one in found if not one.is_reported] == []


def test_what_is_sound_is_found_whole(made: Directories, tmp_path: Path) -> None:
    """Else nothing that follows would mean anything."""
    for name in ("recall.db", "recall.db-wal"):
        home, world = made.of(name)
        reading = read_all(copy_of(home, tmp_path / home.name), world)
        assert (reading.refused, reading.reports, reading.differences) == (None, set(), set())


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", ["recall.db", "recall.db-wal", "MARK"])
def test_flipped_bits_are_told(made: Directories, tmp_path: Path, name: str, column: str) -> None:
    home, world = made.of(name)
    number = size("F6_DAMAGES_PER_FILE", column)
    with seeded(f"F6 bits of {name}", tmp_path, number=number) as run:
        if name == "recall.db":
            pages = used_pages(copy_of(home, tmp_path / "read") / name)
            ranges = [(page * PAGE_BYTES, (page + 1) * PAGE_BYTES) for page in pages]
        elif name == "MARK":
            ranges = [(at, at + SLOT_BYTES) for at in (0, BLOCK_BYTES)]
        else:
            ranges = [(0, (home / name).stat().st_size)]
        mutations = flips_in(run, name, ranges, number)
        require_share(run, run_of(run, tmp_path, home, world, mutations))


@pytest.mark.parametrize("name", ["recall.db", "recall.db-wal", "MARK"])
def test_zeroed_blocks_are_told(made: Directories, tmp_path: Path, name: str) -> None:
    home, world = made.of(name)
    blocks = (home / name).stat().st_size // BLOCK_BYTES
    with seeded(f"F6 zeroed blocks of {name}", tmp_path) as run:
        content = (home / name).read_bytes()
        full = [at for at in range(blocks) if any(content[at * BLOCK_BYTES :][:BLOCK_BYTES])]
        chosen = sorted(run.random.sample(full, min(len(full), 40)))
        mutations: list[Mutation] = [[name, "zero", at * BLOCK_BYTES, BLOCK_BYTES] for at in chosen]
        require_all(run_of(run, tmp_path, home, world, mutations))


@pytest.mark.parametrize("name", ["recall.db", "recall.db-wal", "MARK"])
def test_a_file_that_ends_early_is_told(made: Directories, tmp_path: Path, name: str) -> None:
    home, world = made.of(name)
    blocks = -(-(home / name).stat().st_size // BLOCK_BYTES)
    with seeded(f"F6 truncated {name}", tmp_path) as run:
        chosen = sorted(run.random.sample(range(blocks), min(blocks, 40)))
        mutations: list[Mutation] = [[name, "truncate", at * BLOCK_BYTES] for at in chosen]
        mutations += [[name, "remove"]]
        require_all(run_of(run, tmp_path, home, world, mutations))


@pytest.mark.parametrize("column", COLUMNS)
def test_a_lost_end_of_the_log_is_told(made: Directories, tmp_path: Path, column: str) -> None:
    """At the end of a frame the log looks whole: only MARK knows that there was more."""
    number = size("F7_LOST_TAILS", column)
    frame, head = PAGE_BYTES + 24, 32
    with seeded("F7 lost log tails", tmp_path, number=number) as run:
        frames = ((made.killed / "recall.db-wal").stat().st_size - head) // frame
        mutations: list[Mutation] = [
            ["recall.db-wal", "truncate", head + frame * run.random.randrange(frames)]
            for _ in range(number)
        ]
        found = run_of(run, tmp_path, made.killed, made.killed_world, mutations)
        assert {one.refused for one in found} == {"ACKNOWLEDGED_CHANGES_MISSING"}


def test_an_older_copy_is_told(made: Directories, tmp_path: Path) -> None:
    mutations: list[Mutation] = [["recall.db", "replace", str(made.older / "recall.db")]]
    (found,) = outcomes(tmp_path / "work", made.closed, made.world, mutations)
    assert found.refused == "ACKNOWLEDGED_CHANGES_MISSING"
