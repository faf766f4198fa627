"""Reading ahead after a start: a moment before the first call, the rest beside the calls."""

from __future__ import annotations

import os
import threading

import pytest

from semanticrecall_core.engine.warming import Warming, WarmingLimits
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.values import VectorAnswer, VectorQuery
from support.brute_force import BruteForceIndex
from support.message_stores import append, draft, ticking_clock
from support.model_store import ModelStore

WAIT_S = 30.0


class Index(BruteForceIndex):
    """Says who was read and at which priority, and waits on demand."""

    def __init__(self, store: ModelStore) -> None:
        super().__init__(2, store.load_partition)
        self.read: list[str] = []
        self.priorities: list[int] = []
        self.go_on = threading.Event()
        self.waits_at = ""
        self.fails_at = ""

    def search(self, resource_id: str, query: VectorQuery) -> VectorAnswer:
        if resource_id == self.waits_at:
            assert self.go_on.wait(WAIT_S)
        if resource_id == self.fails_at:
            raise UnavailableError("the disk")
        self.priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        answer = super().search(resource_id, query)
        self.read.append(resource_id)
        return answer


@pytest.fixture
def store() -> ModelStore:
    made = ModelStore(generation="g", clock=ticking_clock())
    for resource in "abcde":
        append(made, draft("m"), resource=resource)
    return made


def warming(store: ModelStore, index: Index, seconds: float = WAIT_S, room: int = 100) -> Warming:
    return Warming(store, index, 2, WarmingLimits(seconds, 4), lambda: len(index.read) < room)


def test_the_most_recent_are_read_first_and_no_more_than_allowed(store: ModelStore) -> None:
    index = Index(store)
    assert warming(store, index).start() == 4
    assert index.read == ["e", "d", "c", "b"]


def test_nothing_is_read_that_would_evict_others(store: ModelStore) -> None:
    index = Index(store)
    assert warming(store, index, room=2).start() == 2
    assert index.read == ["e", "d"]


def test_a_start_does_not_wait_for_all_and_the_rest_has_the_lowest_priority(
    store: ModelStore,
) -> None:
    index = Index(store)
    index.waits_at = "d"
    warm = warming(store, index, seconds=0.01)
    assert warm.start() <= 1
    index.go_on.set()
    warm._thread.join(WAIT_S)
    assert index.read == ["e", "d", "c", "b"]
    assert index.priorities[-1] == 19


def test_a_stop_ends_it(store: ModelStore) -> None:
    index = Index(store)
    index.waits_at = "d"
    warm = warming(store, index, seconds=0.01)
    warm.start()
    stopping = threading.Thread(target=warm.stop)
    stopping.start()
    assert warm._stopped.wait(WAIT_S)
    index.go_on.set()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert "c" not in index.read


def test_what_cannot_be_read_ends_it_and_nothing_else(store: ModelStore) -> None:
    index = Index(store)
    index.fails_at = "c"
    assert warming(store, index).start() == 2
