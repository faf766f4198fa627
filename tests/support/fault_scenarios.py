"""Small scripts of everything that writes, to be cut off or failed at every call that they make.

A scenario is a list of steps. Each says what it does to the store, and what it makes of a
dictionary that stands for the store. A process runs the steps and tells of each when it begins and
when it was acknowledged or refused; whatever happened, the store must be found as some of the steps
make it: all that were acknowledged, each of the others wholly or not at all.

    LD_PRELOAD=... python -m support.fault_scenarios append DIRECTORY      runs one and counts
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.values import ForgetTarget, ListQuery, VectorRecord
from support import fault_calls, format_2, message_stores
from support.model_snapshots import image, same
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser

GENERATION = "g"
STORE_ID = "0123456789abcdef"
FAILED_MAX = 8
State = dict[str, Any]
Tell = Callable[[tuple[str, Any]], object]


@dataclass(frozen=True)
class Step:
    """What is done, and what it makes of the model."""

    act: Callable[[Any], object]
    effect: Callable[[State], object]


@dataclass(frozen=True)
class Scenario:
    """See the module.

    Attributes:
        prepare: makes what the script begins with, in an empty folder.
        open: the store of a folder.
        close: lets go of it.
        dump: what is in it, to be compared with the model.
        before: the model of what `prepare` made.
        steps: the script; the last one is done when the fault is over.
        verify: what is wrong with an opened store, beside its content.
        refused_is_undone: nothing of a step that was refused is done; images may be gone.
    """

    prepare: Callable[[Path], object]
    open: Callable[[Path], Any]
    close: Callable[[Any], object]
    dump: Callable[[Any], State]
    before: Callable[[], State]
    steps: Sequence[Step]
    verify: Callable[[Any], list[str]]
    refused_is_undone: bool = True


# ---- running, and what must come of it ----


def run(name: str, folder: Path, tell: Tell, mend: Callable[[], object] = lambda: None) -> None:
    """Open, do every step, close; go on after a step that is refused.

    Args:
        name: of SCENARIOS.
        folder: where.
        tell: told of everything.
        mend: ends the fault; called before the last step, which must then succeed.
    """
    scenario = SCENARIOS[name]
    store = opened(scenario, folder, tell)
    if store is None:
        return
    for number, step in enumerate(scenario.steps):
        if step is scenario.steps[-1]:
            tell(("dump", scenario.dump(store)))
            mend()
        tell(("begun", number))
        try:
            step.act(store)
        except SemanticRecallError as error:
            tell(("refused", (number, type(error).__name__)))
        else:
            tell(("acked", number))
    tell(("end", None))
    scenario.close(store)


def recover(name: str, folder: Path, tell: Tell, mend: Callable[[], object]) -> None:
    """Open what a killed process left, and close it when the fault is over."""
    scenario = SCENARIOS[name]
    store = opened(scenario, folder, tell)
    mend()
    if store is not None:
        tell(("end", None))
        scenario.close(store)


def opened(scenario: Scenario, folder: Path, tell: Tell) -> Any:
    """The store, at the second attempt if need be; None where that fails too."""
    for _ in range(2):
        try:
            store = scenario.open(folder)
        except SemanticRecallError as error:
            tell(("not opened", type(error).__name__))
        else:
            tell(("opened", None))
            return store
    return None


@dataclass
class Told:
    """What a process told of its run."""

    begun: list[int]
    acked: list[int]
    refused: dict[int, str]
    not_opened: list[str]
    dump: State | None
    ended: bool


def heard(events: Sequence[tuple[str, Any]]) -> Told:
    """The events of a run in order."""
    told = Told([], [], {}, [], None, False)
    for what, value in events:
        match what:
            case "begun":
                told.begun.append(value)
            case "acked":
                told.acked.append(value)
            case "refused":
                told.refused[value[0]] = value[1]
            case "not opened":
                told.not_opened.append(value)
            case "dump":
                told.dump = value
            case "end":
                told.ended = True
            case _:
                pass
    return told


def made_of(scenario: Scenario, steps: Sequence[int]) -> State:
    """The model after these steps."""
    state = scenario.before()
    for number in steps:
        scenario.steps[number].effect(state)
    return state


def check(name: str, folder: Path, told: Told) -> None:
    """Open the store and compare.

    Raises:
        AssertionError: it is what no run could have left.
    """
    scenario = SCENARIOS[name]
    if told.dump is not None and scenario.refused_is_undone:
        acked = [number for number in told.acked if number < len(scenario.steps) - 1]
        assert told.dump == made_of(scenario, acked), "not what was acknowledged, while it ran"
    store = scenario.open(folder)
    found = scenario.dump(store)
    unknown = [number for number in told.begun if number not in told.acked]
    assert len(unknown) <= FAILED_MAX
    possible = []
    for choice in product((False, True), repeat=len(unknown)):
        done = {number for number, is_done in zip(unknown, choice, strict=True) if is_done}
        possible.append(made_of(scenario, sorted({*told.acked, *done})))
    assert found in possible, (
        f"found {sorted(found)} where {told.acked} were acknowledged and {unknown} were not"
    )
    assert scenario.verify(store) == []
    scenario.close(store)


# ---- the record ----


def _open_record(folder: Path) -> SqliteMessageStore:
    return open_store(folder / "data", generation=GENERATION, analyser=WordAnalyser())


def _dump_record(store: SqliteMessageStore) -> State:
    """Text and vector of every message."""
    messages = store.list_messages(ListQuery("u", None, 1000))
    rows = store.load_partition("u")
    vectors = dict(zip(rows.seqs.tolist(), rows.vectors.tolist(), strict=True))
    return {message.id: (message.text, vectors.get(message.seq)) for message in messages}


def _verify_record(store: SqliteMessageStore) -> list[str]:
    return [finding.kind for finding in store.verify(None)]


def _append(*ids: str, thread: str = "t", text: str = "text") -> Step:
    """One request."""

    def act(store: SqliteMessageStore) -> None:
        drafts = [
            message_stores.draft(one, thread=thread, text=f"{text} of {one} {'x' * 3000}")
            for one in ids
        ]
        message_stores.append(store, *drafts)

    def effect(state: State) -> None:
        state.update({one: (f"{text} of {one} {'x' * 3000}", None) for one in ids})

    return Step(act, effect)


def _embed(*ids: str) -> Step:
    """The vectors of messages that wait for theirs, in one call."""

    def act(store: SqliteMessageStore) -> None:
        waiting = {row.seq: row for row in store.pending(0, 100)}
        records = [
            VectorRecord(
                "u",
                message.seq,
                waiting[message.seq].revision,
                np.array([[1.0, ids.index(message.id)]], np.float32),
            )
            for message in store.list_messages(ListQuery("u", None, 1000))
            if message.id in ids and message.seq in waiting
        ]
        store.put_vectors(records)

    def effect(state: State) -> None:
        for place, one in enumerate(ids):
            if one in state and state[one][1] is None:
                state[one] = (state[one][0], [1.0, float(place)])

    return Step(act, effect)


def _forget(target: ForgetTarget, *ids: str) -> Step:
    def effect(state: State) -> None:
        for one in ids:
            state.pop(one, None)

    return Step(lambda store: store.forget("u", target), effect)


def _prepare_history(folder: Path) -> None:
    """Eight messages in two threads, with vectors; synced and closed."""
    store = _open_record(folder)
    for step in HISTORY:
        step.act(store)
    store.close()


def _history() -> State:
    state: State = {}
    for step in HISTORY:
        step.effect(state)
    return state


HISTORY = (
    _append("a", "b", "c", "d"),
    _append("e", "f", "g", "h", thread="t2"),
    _embed("a", "b", "c", "d", "e", "f"),
)
_RECORD: dict[str, Any] = {
    "open": _open_record,
    "close": lambda store: store.close(),
    "dump": _dump_record,
    "verify": _verify_record,
}


# ---- an older record ----


def _open_older(folder: Path) -> SqliteMessageStore:
    return open_store(folder / "data", generation=format_2.GENERATION, analyser=WordAnalyser())


def _dump_older(store: SqliteMessageStore) -> State:
    """Texts of every resource."""
    return {
        f"{resource} {message.id}": message.text
        for resource in format_2.CONTENT
        for message in store.list_messages(ListQuery(resource, None, 1000))
    }


def _older() -> State:
    return {
        f"{resource} {draft.id}": draft.text
        for resource, drafts in format_2.CONTENT.items()
        for draft in drafts
    }


def _append_older(one: str) -> Step:
    def act(store: SqliteMessageStore) -> None:
        message_stores.append(store, message_stores.draft(one), resource="bob")

    return Step(act, lambda state: state.update({f"bob {one}": "text"}))


# ---- images of partitions ----


def _open_images(folder: Path) -> FileSnapshotStore:
    return FileSnapshotStore(folder / "data" / "snapshots", store_id=STORE_ID, mapped=False)


def _dump_images(store: FileSnapshotStore) -> State:
    """Which image each resource has, by the number that it was made of."""
    found: State = {}
    for resource in store.resources():
        there = store.read(resource)
        if there is not None:  # None: it was cut off while it was erased, and is not used
            known = [n for n in range(4) if same(there, image(resource, 60, seed=n))]
            found[resource] = known[0] if known else "another one"
    return found


def _write_images(**seeds: int) -> Step:
    def act(store: FileSnapshotStore) -> None:
        store.write([image(resource, 60, seed=seed) for resource, seed in seeds.items()])

    return Step(act, lambda state: state.update(seeds))


def _forget_image(resource: str) -> Step:
    return Step(lambda store: store.forget([resource]), lambda state: state.pop(resource, None))


SCENARIOS: dict[str, Scenario] = {
    "append": Scenario(
        prepare=lambda folder: None,
        before=dict,
        steps=(
            _append("a", "b"),
            _embed("a", "b"),
            _append("a", text="another text"),
            _append("c", thread="t2"),
            _embed("a", "c"),
            _forget(ForgetTarget(message_ids=("b",)), "b"),
            _append("last"),
        ),
        **_RECORD,
    ),
    "forget": Scenario(
        prepare=_prepare_history,
        before=_history,
        steps=(
            _forget(ForgetTarget(message_ids=("a", "e")), "a", "e"),
            _forget(ForgetTarget(thread_id="t2"), "e", "f", "g", "h"),
            _append("a", text="another text"),
            _forget(ForgetTarget(everything=True), *"abcdefgh"),
            _append("last"),
        ),
        **_RECORD,
    ),
    "images": Scenario(
        prepare=lambda folder: None,
        open=_open_images,
        close=lambda store: store.close(),
        dump=_dump_images,
        before=dict,
        steps=(
            _write_images(u=1, v=1),
            _write_images(w=1),
            _write_images(u=2),
            _forget_image("v"),
            _forget_image("u"),
            _write_images(last=3),
        ),
        verify=lambda store: [],
        refused_is_undone=False,
    ),
    "upgrade": Scenario(
        prepare=format_2.unpacked,
        open=_open_older,
        close=lambda store: store.close(),
        dump=_dump_older,
        before=_older,
        steps=(_append_older("last"),),
        verify=_verify_record,
    ),
}


def main(name: str, folder: Path) -> None:
    """Run one, and say how many calls that change files were met."""
    fault_calls.arm(fault_calls.Fault(str(folder), fault_calls.Action.COUNT))
    run(name, folder, lambda told: None)
    sys.stdout.write(f"{fault_calls.counted()}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
