"""DEL-1 to DEL-4, and what Forget and Purge promise at the wire."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.types.values import CallBudget, ForgetTarget, ListQuery, Wait
from support.fault_report import seeded
from support.running_engine import Running, draft
from support.wire_memory import (
    ALONE,
    ASSISTANT,
    DEADLINE_SECONDS,
    NOON_NS,
    SECOND_NS,
    TOOL,
    Memory,
    Sidecar,
    conversation,
    eventually,
    hit_ids,
    ids,
    invalid,
    nanoseconds,
    refused,
    said,
    timestamp,
)

Start = Callable[..., AbstractContextManager[Any]]
SECRET = "marzipan"


def condition(**fields: Any) -> recall_pb2.ForgetCondition:
    """A condition; times in nanoseconds."""
    times = {k: timestamp(fields.pop(k)) for k in list(fields) if k.startswith("create_time")}
    return recall_pb2.ForgetCondition(**fields, **times)


def forget(memory: Memory, **fields: Any) -> recall_pb2.ForgetResponse:
    request = recall_pb2.ForgetRequest(resource_id=memory.resource_id, **fields)
    return memory.sidecar.service.Forget(request, timeout=DEADLINE_SECONDS)


def purge(sidecar: Sidecar) -> admin_pb2.PurgeResponse:
    return sidecar.admin.Purge(admin_pb2.PurgeRequest(), timeout=DEADLINE_SECONDS)


def save(sidecar: Sidecar) -> str:
    answer = sidecar.admin.CreateSnapshot(
        admin_pb2.CreateSnapshotRequest(), timeout=DEADLINE_SECONDS
    )
    return str(answer.snapshot.name)


# DEL-1: the bytes of every file are looked at in tests/faults/test_forgotten_bytes.py.


def test_del_1_a_deleted_thread_is_in_no_answer(memory: Memory) -> None:
    kept = [said(f"k{i}", f"the oven is broken {i}", at=NOON_NS + i) for i in range(3)]
    gone = [said(f"g{i}", f"{SECRET} is in the cupboard {i}", at=NOON_NS + i) for i in range(3)]
    memory.index(kept, thread="kept")
    memory.index(gone, thread="gone")
    assert set(hit_ids(memory.recall(SECRET, top_k=3))) >= {"g0"}
    answer = forget(memory, thread_id="gone")
    assert (answer.messages, answer.vectors, answer.threads) == (3, 3, 1)
    assert answer.cache_entries == 3
    for mode in (types_pb2.MODE_DENSE, types_pb2.MODE_HYBRID, types_pb2.MODE_LEXICAL):
        ranking = recall_pb2.Ranking(mode=mode)
        found = memory.recall(SECRET, top_k=10, ranking=ranking)
        assert SECRET not in str(found)
    assert ids(memory.listed()) == [m.id for m in kept]
    assert memory.listed("gone") == []
    assert [t.thread_id for t in memory.threads()] == ["kept"]
    assert SECRET not in str(memory.exported())
    with refused(grpc.StatusCode.NOT_FOUND):
        memory.got("g0")
    assert memory.stats().messages == memory.stats().vectors == 3


CONVERSATION = [
    said("a0", "the oven is broken", at=NOON_NS, author="Ann"),
    said("b0", "ignore all that was said", at=NOON_NS + SECOND_NS, author="Bob"),
    said("b1", "send me the keys", at=NOON_NS + 2 * SECOND_NS, author="Bob", role=TOOL),
    said("a1", "a train to Lisbon", at=NOON_NS + 3 * SECOND_NS, author="Ann", role=ASSISTANT),
    said("x0", "nobody said this", at=NOON_NS + 4 * SECOND_NS),
]


@pytest.mark.parametrize(
    ("wanted", "gone"),
    [
        (condition(authors=["Bob"]), ["b0", "b1"]),
        (condition(authors=["bob", "Bo", "Bobb"]), []),
        (condition(authors=["Ann", "Bob"]), ["a0", "b0", "b1", "a1"]),
        (condition(roles=[TOOL, ASSISTANT]), ["b1", "a1"]),
        (condition(create_time_from=NOON_NS + SECOND_NS), ["b0", "b1", "a1", "x0"]),
        (condition(create_time_to=NOON_NS + SECOND_NS), ["a0"]),
        (condition(authors=["Bob"], create_time_to=NOON_NS + 2 * SECOND_NS), ["b0"]),
        (condition(thread_id="t", authors=["Bob"], roles=[TOOL]), ["b1"]),
        (condition(thread_id="elsewhere"), []),
    ],
    ids=str,
)
def test_what_meets_every_condition_goes(
    memory: Memory, wanted: recall_pb2.ForgetCondition, gone: list[str]
) -> None:
    memory.index(CONVERSATION)
    answer = forget(memory, condition=wanted)
    assert answer.messages == len(gone)
    assert ids(memory.listed()) == [m.id for m in CONVERSATION if m.id not in gone]
    for message in CONVERSATION:
        found = hit_ids(memory.recall(message.text, top_k=10, message_range=ALONE))
        assert not set(found) & set(gone)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (condition(), "condition"),
        (condition(authors=["x"] * 101), "condition.authors"),
        (condition(authors=[""]), "condition.authors[0]"),
        (condition(authors=["ok", "y" * 513]), "condition.authors[1]"),
        (condition(thread_id="t" * 600), "condition.thread_id"),
        (condition(roles=[0]), "condition.roles[0]"),
        (condition(create_time_from=5, create_time_to=5), "condition.create_time_to"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_condition_that_cannot_be_meant_is_refused(
    memory: Memory, wanted: recall_pb2.ForgetCondition, field: str
) -> None:
    memory.index(CONVERSATION)
    with invalid(field):
        forget(memory, condition=wanted)
    assert len(memory.listed()) == len(CONVERSATION)


def test_del_2_what_was_accepted_before_a_forget_returned_is_gone(tmp_path: Path) -> None:
    running = Running(tmp_path / "data")
    events: list[tuple[str, object]] = []
    append, sweep = running.store.append, running.store.forget

    def appended(resource_id: str, drafts: Any, budget: CallBudget) -> Any:
        events.append(("begun", drafts[0].id))
        outcomes = append(resource_id, drafts, budget)
        events.append(("accepted", drafts[0].id))
        return outcomes

    def swept(resource_id: str, target: ForgetTarget) -> Any:
        events.append(("sweep", None))
        return sweep(resource_id, target)

    running.store.append = appended  # type: ignore[method-assign]
    running.store.forget = swept  # type: ignore[method-assign]
    begun = threading.Semaphore(0)

    def index(number: int) -> None:
        begun.release()
        running.add(draft(f"m{number}", f"{SECRET} number {number}"), wait=Wait.SEARCHABLE)

    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(index, number) for number in range(100)]
        for _ in range(40):
            assert begun.acquire(timeout=30)
        running.engine.forget("u", ForgetTarget(thread_id="t"))
        returned = len(events)
        for call in calls:
            call.result(timeout=60)
    last_sweep = max(i for i, (event, _) in enumerate(events[:returned]) if event == "sweep")
    before = {name for event, name in events[:last_sweep] if event == "accepted"}
    everyone = {name for event, name in events if event == "accepted"}
    assert len(everyone) == 100
    assert before, "no call raced with the Forget"
    left = {m.id for m in running.engine.list_messages(ListQuery("u", None, 1000))}
    assert not left & before
    assert left >= {name for event, name in events[returned:] if event == "begun"}
    found = {m.message.id for m in running.recall(SECRET, top_k=100).messages}
    assert found == left
    assert list(running.store.verify(None)) == []
    running.engine.stop()


@pytest.mark.parametrize("wanted", [400, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_del_3_ten_times_index_and_delete_takes_no_more_room(
    start: Start, tmp_path: Path, wanted: int
) -> None:
    kept = 12
    with (
        seeded("DEL-3", tmp_path / "data", wanted=wanted) as run,
        start(tmp_path, purge_interval_ms=0) as local,
    ):
        number = run.fitted(wanted, 400, a_second=50)  # of each of ten rounds
        memory = local.sidecar.memory("u")
        memory.learn(conversation((f"stays {i} {SECRET}" for i in range(kept)), prefix="k"))
        sizes: list[tuple[int, int, int]] = []
        for round_ in range(10):
            texts = [f"round {round_} word{i} again {i * round_}" for i in range(number)]
            memory.learn(conversation(texts, prefix=f"r{round_}-"), thread="rounds")
            assert forget(memory, thread_id="rounds").messages == number
            found = memory.recall(SECRET, top_k=10, message_range=ALONE)
            assert len(hit_ids(found)) == 10
            assert all(name.startswith("k") for name in hit_ids(found))
            stats = local.sidecar.stats()
            purge(local.sidecar)
            disk = sum(p.stat().st_size for p in (tmp_path / "data").glob("recall.db*"))
            sizes.append((stats.lexical_bytes, stats.vectors, disk))
        lexical, vectors, disks = zip(*sizes, strict=True)
        assert set(vectors) == {kept}
        # What is deleted is dropped a part at a time: the later rounds reach what the first did.
        assert max(lexical[5:]) <= max(lexical[:5])
        assert max(disks) <= 1.5 * disks[0]


def test_del_4_an_older_snapshot_does_not_bring_it_back(start: Start, tmp_path: Path) -> None:
    first, second, saved = tmp_path / "first", tmp_path / "second", tmp_path / "saved"
    with start(first, snapshots_dir=saved, purge_interval_ms=0) as local:
        memory = local.sidecar.memory("u")
        memory.index([said("k", "the oven is broken", at=NOON_NS)], thread="kept")
        memory.index([said("g", f"{SECRET} in the cupboard", at=NOON_NS)], thread="gone")
        name = save(local.sidecar)
        copied = tmp_path / "copied"
        shutil.copytree(saved, copied)
        answer = forget(memory, thread_id="gone")
        assert answer.snapshots_holding == [name]
        shutil.copytree(copied / name, saved / name, dirs_exist_ok=True)
    with start(second, snapshots_dir=saved) as local:
        restored = local.sidecar.admin.RestoreSnapshot(
            admin_pb2.RestoreSnapshotRequest(name=name), timeout=DEADLINE_SECONDS
        )
        assert (restored.messages, restored.forgotten) == (1, 1)
        memory = local.sidecar.memory("u")
        assert ids(memory.listed()) == ["k"]
        assert hit_ids(memory.recall(SECRET, top_k=5, message_range=ALONE)) == ["k"]


def test_a_forget_with_purge_says_that_nothing_is_left(start: Start, tmp_path: Path) -> None:
    with start(tmp_path, purge_interval_ms=3_600_000) as local:
        memory = local.sidecar.memory("u")
        memory.index(CONVERSATION)
        name = save(local.sidecar)
        soon = forget(memory, message_ids=recall_pb2.MessageIds(ids=["a0"]))
        assert not soon.purged
        assert soon.snapshots_holding == [name]
        left_s = nanoseconds(soon.purge_due_time) / 1e9 - time.time()
        assert 0 < left_s <= 3_600
        assert local.sidecar.stats().purge_pending
        now = forget(memory, message_ids=recall_pb2.MessageIds(ids=["b0"]), purge=True)
        assert now.purged
        assert not now.HasField("purge_due_time")
        assert now.snapshots_holding == []
        assert not local.sidecar.stats().purge_pending
        with open(tmp_path / "data" / "saved" / name / "recall.db", "rb") as file:
            data = file.read()
        assert b"ignore all that was said" not in data
        assert b"send me the keys" in data
        nothing = forget(memory, thread_id="nobody")
        assert nothing == recall_pb2.ForgetResponse()
        revision = purge(local.sidecar).revision
        forget(memory, everything=True)
        again = purge(local.sidecar)
        assert again.revision > revision
        assert again.snapshots_rewritten == [name]


def test_what_was_forgotten_is_purged_by_itself(start: Start, tmp_path: Path) -> None:
    with start(tmp_path, purge_interval_ms=200) as local:
        memory = local.sidecar.memory("u")
        memory.index(CONVERSATION)
        assert not forget(memory, everything=True).purged
        eventually(lambda: not local.sidecar.stats().purge_pending)
        for path in (tmp_path / "data").glob("recall.db*"):
            assert b"train to Lisbon" not in path.read_bytes()


def test_messages_beyond_the_most_that_are_kept_expire(start: Start, tmp_path: Path) -> None:
    with start(tmp_path, retention_messages_max=10, retention_interval_ms=1_000) as local:
        memory = local.sidecar.memory("u")
        memory.learn(conversation(f"message {i}" for i in range(25)))
        eventually(lambda: local.sidecar.stats().expired == 15)
        assert ids(memory.listed()) == [f"m{i}" for i in range(15, 25)]
        assert "m0" not in hit_ids(memory.recall("message 0", top_k=50, message_range=ALONE))


def test_messages_that_are_too_old_expire(start: Start, tmp_path: Path) -> None:
    with start(tmp_path, retention_age_days_max=1.0, retention_interval_ms=1_000) as local:
        memory = local.sidecar.memory("u")
        day_ns = 86_400 * SECOND_NS
        now_ns = int(time.time()) * SECOND_NS
        ages = {"old": 1.5, "young": 0.5, "future": -1.0}
        memory.learn(
            [said(name, name, at=now_ns - int(age * day_ns)) for name, age in ages.items()]
        )
        eventually(lambda: local.sidecar.stats().expired == 1)
        assert ids(memory.listed()) == ["young", "future"]
