"""Recall over messages that are too large for one answer: what it reads, keeps and tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_core.messages import windows
from semanticrecall_core.types.recalling import ContextFormat, GroupState
from support.running_engine import Running, draft, hit_ids, ids

PAYLOAD = b"x" * 10_000
LIMIT = 50_000  # four such messages and what belongs to them


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "data", answer_bytes_max=LIMIT)
    yield made
    made.engine.stop()


@pytest.fixture
def bodies_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seqs of the messages whose bodies are read around hits, as it goes."""
    read: list[int] = []
    reading = windows.stored_message

    def counted(row: tuple[Any, ...], resource_id: str, decode: Any) -> Any:
        read.append(row[0])
        return reading(row, resource_id, decode)

    monkeypatch.setattr(windows, "stored_message", counted)
    return read


def test_hits_that_an_answer_cannot_hold_are_not_read(
    running: Running, bodies_read: list[int]
) -> None:
    running.add(*(draft(f"m{n}", f"needle {'straw ' * n}", payload=PAYLOAD) for n in range(40)))
    answer = running.recall("needle", top_k=30, context_format=ContextFormat.NONE)
    assert hit_ids(answer) == ["m0", "m1", "m2", "m3"]
    assert answer.info.messages_dropped == 31 - 4  # thirty hits and the neighbour of the last
    assert len(bodies_read) <= 6


def test_neighbours_that_an_answer_cannot_hold_are_not_read(
    running: Running, bodies_read: list[int]
) -> None:
    running.add(
        *(draft(f"b{n}", "straw", payload=PAYLOAD) for n in range(20)),
        draft("hit", "needle", payload=PAYLOAD),
        *(draft(f"a{n}", "straw", payload=PAYLOAD) for n in range(20)),
    )
    answer = running.recall(
        "needle", top_k=1, before=10, after=10, context_format=ContextFormat.NONE
    )
    assert ids(answer) == ["b17", "b18", "b19", "hit"]
    assert answer.info.messages_dropped == 21 - 4
    assert len(bodies_read) <= 6


def test_groups_that_an_answer_cannot_hold_are_not_read(
    running: Running, bodies_read: list[int]
) -> None:
    for n in range(10):
        group = {"payload": PAYLOAD, "group_id": f"g{n}", "thread_id": f"t{n}"}
        running.add(
            draft(f"hit{n}", f"needle {'straw ' * n}", **{**group, "payload": b""}),
            *(draft(f"m{n}-{i}", "", embeddable=False, **group) for i in range(3)),
        )
    answer = running.recall(
        "needle", top_k=10, before=0, after=0, context_format=ContextFormat.NONE
    )
    whole = [m.message.id for m in answer.messages if m.group_state is GroupState.WHOLE]
    assert whole == ["hit0", "m0-0", "m0-1", "m0-2"]  # the best hit's
    assert hit_ids(answer) == [f"hit{n}" for n in range(10)]
    assert sorted(answer.info.absent_group_ids) == [f"g{n}" for n in range(1, 10)]
    assert answer.info.messages_dropped == 9 * 3
    assert len(bodies_read) <= 10 + 4


def test_a_hit_too_large_for_any_answer_is_answered_alone(running: Running) -> None:
    running.add(draft("n", "straw"), draft("hit", "needle", payload=b"x" * 2 * LIMIT))
    answer = running.recall("needle", top_k=1, before=1, after=1)
    assert ids(answer) == ["hit"]
    assert answer.info.messages_dropped == 1
