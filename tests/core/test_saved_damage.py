"""Saved snapshots that are damaged, and snapshots of what was damaged before."""

from __future__ import annotations

import os
import random
from pathlib import Path

import apsw
import pytest

from semanticrecall_core.messages.connection import connect
from semanticrecall_core.types.errors import CorruptDataError, SemanticRecallError
from support.saved_worlds import DATABASE, LEDGER, MANIFEST, SavedWorld, budget, content, texts

FLIPS_PER_FILE = 200
BLOCK_BYTES = 4096
TEXTS = [f"text {number}" for number in range(40)]


def everything_refused(world: SavedWorld, other: SavedWorld, name: str) -> bool:
    """Neither verify nor restore takes it."""
    with pytest.raises(CorruptDataError):
        world.snapshots.verify(name, budget())
    with pytest.raises(CorruptDataError):
        other.restore(name)
    return content(other.store) == {}


@pytest.mark.parametrize("file", [DATABASE, MANIFEST])
def test_every_flipped_bit_is_seen(world: SavedWorld, other: SavedWorld, file: str) -> None:
    world.add("u", TEXTS)
    made = world.create()
    path = world.path(made, file)
    sound = path.read_bytes()
    seed = 20261130
    chosen = random.Random(seed)
    for flip in range(FLIPS_PER_FILE):
        place, bit = chosen.randrange(len(sound)), chosen.randrange(8)
        damaged = bytearray(sound)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        assert everything_refused(world, other, made.name), (seed, flip, place, bit)
    path.write_bytes(sound)
    assert other.restore(made.name).messages == len(TEXTS)


@pytest.mark.parametrize("file", [DATABASE, MANIFEST])
def test_every_truncation_is_seen(world: SavedWorld, other: SavedWorld, file: str) -> None:
    world.add("u", TEXTS)
    made = world.create()
    path = world.path(made, file)
    sound = path.read_bytes()
    for size in sorted({*range(0, len(sound), BLOCK_BYTES), 1, len(sound) - 1}):
        path.write_bytes(sound[:size])
        assert everything_refused(world, other, made.name), size
    path.unlink()
    assert everything_refused(world, other, made.name)
    assert world.snapshots.snapshots() == ()
    world.snapshots.delete(made.name, budget())
    assert os.listdir(world.folder) == [LEDGER]


def test_damage_below_the_digest_is_seen_as_well(world: SavedWorld, other: SavedWorld) -> None:
    """The page's checksum, and the row's: a digest of damaged data says nothing of it."""
    world.add("u", TEXTS)
    made = world.create()
    path = world.path(made)
    sound = path.read_bytes()
    place = sound.index(b"about text 7")
    path.write_bytes(sound.replace(b"about text 7", b"about text 8", 1))
    assert path.read_bytes() != sound, place
    with pytest.raises(SemanticRecallError):
        world.databases.check(path, budget())


def damaged_before_it_was_saved(home: Path) -> None:
    """A message, another's vector and a third's analysis do not match their checksums."""
    connection = connect((home / "data" / DATABASE).as_uri(), apsw.SQLITE_OPEN_READWRITE)
    for table, seq in (("messages", 3), ("vectors", 5), ("analyses", 7)):
        connection.execute(f"UPDATE {table} SET checksum = checksum + 1 WHERE seq = ?", (seq,))
        assert connection.changes() == 1
    connection.close()


def test_a_damaged_row_keeps_the_others_from_nobody(tmp_path: Path) -> None:
    first = SavedWorld(tmp_path)
    first.add("u", TEXTS)
    first.close()
    damaged_before_it_was_saved(tmp_path)
    world, other = SavedWorld(tmp_path), SavedWorld(tmp_path, "other")
    made = world.create()
    with pytest.raises(CorruptDataError):
        world.snapshots.verify(made.name, budget())
    counts = other.restore(made.name)
    assert (counts.messages, counts.vectors) == (len(TEXTS) - 1, len(TEXTS) - 2)
    assert texts(other.store) == {"u": sorted(set(TEXTS) - {TEXTS[2]})}
    assert [row.text for row in other.store.pending(0, 10)] == [f"about {TEXTS[4]}"]
    assert list(other.store.verify(None)) == []
    for each in (world, other):
        each.close()
