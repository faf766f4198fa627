"""Snapshots made while others write hold all changes up to their revision, and none after."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import NamedTuple

from semanticrecall_core.types.values import ForgetTarget, MessageDraft, Role
from support.saved_worlds import SavedWorld, budget, content

WRITERS = 4
SNAPSHOTS = 5
IDS_EACH = 40
SEED = 20261130


class Change(NamedTuple):
    """What was acknowledged: by this revision the message had this text, or none."""

    revision: int
    id: str
    text: str | None


def write(world: SavedWorld, writer: int, stop: threading.Event, told: list[Change]) -> None:
    """New messages, edits and deletions of this writer's own ids, until told to stop."""
    chosen = random.Random(SEED + writer)
    number = 0
    while not stop.is_set():
        number += 1
        message_id = f"{writer}-{chosen.randrange(IDS_EACH)}"
        if chosen.random() < 0.2:
            target = ForgetTarget(message_ids=(message_id,))
            outcome = world.store.forget("u", target)
            if outcome.seqs:
                told.append(Change(outcome.revision, message_id, None))
        else:
            text = f"{message_id} for the {number}th time"
            draft = MessageDraft(message_id, "t", Role.USER, text=text)
            (written,) = world.store.append("u", [draft], budget())
            told.append(Change(written.revision, message_id, text))


def as_of(changes: list[Change], revision: int) -> dict[str, str]:
    """What a history comes to."""
    held: dict[str, str] = {}
    for change in sorted(changes):
        if change.revision > revision:
            break
        if change.text is None:
            held.pop(change.id, None)
        else:
            held[change.id] = change.text
    return held


def test_a_snapshot_is_consistent_to_its_revision(tmp_path: Path) -> None:
    world = SavedWorld(tmp_path)
    stop = threading.Event()
    told: list[list[Change]] = [[] for _ in range(WRITERS)]
    writers = [
        threading.Thread(target=write, args=(world, number, stop, changes))
        for number, changes in enumerate(told)
    ]
    for writer in writers:
        writer.start()
    made = [world.create() for _ in range(SNAPSHOTS)]
    stop.set()
    for writer in writers:
        writer.join(60)
    changes = [change for each in told for change in each]
    assert len({each.state.revision for each in made}) == SNAPSHOTS
    # Not through the folder, whose ledger would leave out what was forgotten after the snapshot.
    for number, snapshot in enumerate(made):
        other = SavedWorld(tmp_path, f"other {number}", saved=tmp_path / "nothing")
        path = world.folder / snapshot.name / "recall.db"
        other.saving.restore(path, [], budget())
        found = {m.id: m.text for messages in content(other.store).values() for m in messages}
        assert found == as_of(changes, snapshot.state.revision), (SEED, tmp_path)
        other.close()
    world.close()
