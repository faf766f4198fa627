"""Random lives of a store, its snapshots and what is restored of them, against a dictionary.

A message is an instance, whatever becomes of its text: who forgets it forgets what any snapshot has
of it, in whatever store that was restored from one, however often.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semanticrecall_core.engine.offline_restore import restore_offline
from semanticrecall_core.types.values import ForgetTarget, MessageDraft, Role, VectorRecord
from support.saved_worlds import SavedWorld, budget, content, vector_of

MEMORY = Path("/dev/shm")
RESOURCES = ["u", "u_"]
IDS = ["a", "b", "c", "d"]
SNAPSHOTS_MAX = 4

resources = st.sampled_from(RESOURCES)
ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True)


@dataclass(frozen=True)
class Message:
    """What the model keeps of one."""

    instance: int
    text: str


Held = dict[tuple[str, str], Message]


class LivesOfAStore(RuleBasedStateMachine):
    """Every rule does the same to both."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.home = Path(self._directory.name)
        self.stores = count(1)
        self.instances = count(1)
        self.versions = count(1)
        self.live: Held = {}
        self.saved: dict[str, Held] = {}
        self.forgotten: set[int] = set()

    @initialize()
    def begin(self) -> None:
        self.name = f"store {next(self.stores)}"
        self.world = SavedWorld(self.home, self.name)
        self.write("u", IDS, True)
        self.create()

    @rule(resource=resources, chosen=ids, embedded=st.booleans())
    def write(self, resource: str, chosen: list[str], embedded: bool) -> None:
        drafts = []
        for message_id in chosen:
            text = f"version {next(self.versions)} of it"
            drafts.append(MessageDraft(message_id, "t", Role.USER, text=text))
            before = self.live.get((resource, message_id))
            instance = next(self.instances) if before is None else before.instance
            self.live[resource, message_id] = Message(instance, text)
        outcomes = self.world.store.append(resource, drafts, budget())
        if embedded:
            records = [
                VectorRecord(resource, each.seq, each.revision, vector_of(each.seq))
                for each in outcomes
            ]
            assert all(self.world.store.put_vectors(records))

    @rule(resource=resources, chosen=ids)
    def forget(self, resource: str, chosen: list[str]) -> None:
        self.world.forget(resource, *chosen)
        for message_id in chosen:
            gone = self.live.pop((resource, message_id), None)
            if gone is not None:
                self.forgotten.add(gone.instance)

    @precondition(lambda self: len(self.saved) < SNAPSHOTS_MAX)
    @rule()
    def create(self) -> None:
        made = self.world.create()
        assert made.state.messages == len(self.live)
        self.saved[made.name] = dict(self.live)

    @rule()
    def restart(self) -> None:
        self.world.close()
        self.world = SavedWorld(self.home, self.name)

    @precondition(lambda self: bool(self.saved))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = self._drawn(data)
        self.world.snapshots.delete(name, budget())
        del self.saved[name]

    @precondition(lambda self: bool(self.saved))
    @rule(data=st.data(), offline=st.booleans(), used=st.booleans(), goes_on=st.booleans())
    def restore(self, data: st.DataObject, offline: bool, used: bool, goes_on: bool) -> None:
        """Into another store, which then may take the place of this one."""
        name = self._drawn(data)
        self._restored(name, offline=offline, used=used, goes_on=goes_on)

    @precondition(lambda self: bool(self.saved))
    @rule(data=st.data(), chosen=ids, offline=st.booleans())
    def forget_after_restore(self, data: st.DataObject, chosen: list[str], offline: bool) -> None:
        """What is forgotten in the one that took its place."""
        name = self._drawn(data)
        self._restored(name, offline=offline, used=not offline, goes_on=True)
        self.forget("u", chosen)
        self._restored(name, offline=not offline, used=offline, goes_on=False)

    def _drawn(self, data: st.DataObject) -> str:
        """One of the snapshots: their names are others in every run, their order is not."""
        return list(self.saved)[data.draw(st.integers(0, len(self.saved) - 1))]

    def _restored(self, name: str, *, offline: bool, used: bool, goes_on: bool) -> None:
        other_name = f"store {next(self.stores)}"
        expected = {
            key: message
            for key, message in self.saved[name].items()
            if message.instance not in self.forgotten
        }
        if offline:
            folder = self.world.folder / name
            counts = restore_offline(self.home / other_name, folder, self.world.databases, budget())
            other = SavedWorld(self.home, other_name)
        else:
            other = SavedWorld(self.home, other_name)
            if used:
                other.add("before", ["x", "y"])
                other.store.forget("before", ForgetTarget(everything=True))
            counts = other.restore(name)
        assert counts.messages == len(expected)
        compare(other, expected)
        if goes_on:
            self.world.close()
            self.world, self.name, self.live = other, other_name, expected
        else:
            other.close()

    @rule()
    def rewrite(self) -> None:
        self.world.snapshots.rewrite(self.world.saving, budget())
        for held in self.saved.values():
            for key in [k for k, message in held.items() if message.instance in self.forgotten]:
                del held[key]
        holding = [each.forgotten for each in self.world.snapshots.snapshots()]
        assert holding == [0] * len(self.saved)

    @invariant()
    def snapshots_are_those_that_were_made(self) -> None:
        there = self.world.snapshots.snapshots()
        assert {each.name for each in there} == set(self.saved)
        for each in there:
            held = self.saved[each.name].values()
            gone = sum(message.instance in self.forgotten for message in held)
            assert (each.state.messages, each.forgotten) == (len(held), gone)

    @invariant()
    def the_store_is_what_it_should_be(self) -> None:
        compare(self.world, self.live)

    def teardown(self) -> None:
        self.world.close()
        self._directory.cleanup()


def compare(world: SavedWorld, expected: Held) -> None:
    found = {
        (resource, message.id): message.text
        for resource, messages in content(world.store).items()
        for message in messages
    }
    assert found == {key: message.text for key, message in expected.items()}
    assert list(world.store.verify(None)) == []


LivesOfAStore.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestLivesOfAStore = LivesOfAStore.TestCase
