"""The places of messages: neighbours in a thread stand together, threads apart."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.lexical.thread_order import DEAD_PLACE, FIRST_PLACE, REACH, ThreadOrder

Message = tuple[int, int, int]
"""Thread, time, seq."""


class Placed:
    """Messages and the places they were given."""

    def __init__(self, messages: list[Message]) -> None:
        self.order = ThreadOrder()
        places = self.order.build(*columns(messages))
        self.places = dict(zip(messages, places.tolist(), strict=True))

    def change(self, gone: list[Message], added: list[Message]) -> bool:
        """Apply a change; whether anyone else moved."""
        at = np.array([self.places[message] for message in gone], np.int64)
        placed = self.order.change((columns(gone)[0], at), columns(added), self.times_at)
        for message in gone:
            del self.places[message]
        if placed.moves is not None:
            self.move(placed.moves)
        self.places.update(zip(added, placed.places.tolist(), strict=True))
        return placed.moves is not None

    def move(self, moves: NDArray[np.int64]) -> None:
        self.places = {message: int(moves[place]) for message, place in self.places.items()}

    def times_at(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        at = {place: message for message, place in self.places.items()}
        found = [at[place] for place in places.tolist()]
        return columns(found)[1], columns(found)[2]

    def check(self) -> None:
        """Threads stand in order, without holes, apart from each other and from the ends."""
        taken: dict[int, int] = {}
        for thread in {message[0] for message in self.places}:
            ordered = sorted(message for message in self.places if message[0] == thread)
            places = [self.places[message] for message in ordered]
            assert places == list(range(places[0], places[0] + len(places)))
            taken.update(dict.fromkeys(places, thread))
        assert len(taken) == len(self.places)
        for place, thread in taken.items():
            assert FIRST_PLACE <= place < self.order.end - REACH
            for distance in range(1, REACH + 1):
                assert taken.get(place + distance, thread) == thread


def columns(
    messages: list[Message],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Threads, times and seqs."""
    array = np.array(messages, np.int64).reshape(-1, 3)
    return array[:, 0].copy(), array[:, 1].copy(), array[:, 2].copy()


@pytest.mark.parametrize("seed", range(20))
def test_any_changes_keep_threads_together_and_apart(seed: int) -> None:
    rng = random.Random(seed)
    seq = 0

    def some(count: int) -> list[Message]:
        nonlocal seq
        out = []
        for _ in range(count):
            seq += 1
            out.append((rng.randrange(1, 6), rng.choice([seq, rng.randrange(0, seq + 1)]), seq))
        return out

    placed = Placed(some(rng.randrange(0, 40)))
    placed.check()
    for _ in range(60):
        known = sorted(placed.places)
        gone = rng.sample(known, min(len(known), rng.choice([0, 0, 1, 1, 3, 30])))
        placed.change(gone, some(rng.choice([0, 1, 1, 2, 9])))
        placed.check()
        if rng.randrange(10) == 0:
            placed.move(placed.order.compacted())
            placed.check()


def test_messages_at_the_end_of_their_threads_seldom_move_others() -> None:
    placed = Placed([(thread, 0, thread) for thread in range(1, 11)])
    moved = 0
    for seq in range(11, 1011):
        moved += placed.change([], [(seq % 10 + 1, seq, seq)])
    placed.check()
    assert moved <= 10 * 7  # a thread of 100 has doubled its room seven times
    assert placed.order.end < 6 * 1010


def test_unused_places_are_noticed_and_given_up() -> None:
    placed = Placed([(1, seq, seq) for seq in range(1, 3001)])
    assert not placed.order.is_wasteful()
    placed.change([(1, seq, seq) for seq in range(1, 3001)], [(2, 0, 4000)])
    assert placed.order.is_wasteful()
    placed.move(placed.order.compacted())
    assert not placed.order.is_wasteful()
    assert placed.order.end < 20
    placed.check()


def test_the_dead_stay_where_they_are() -> None:
    placed = Placed([(1, 1, 1), (1, 2, 2)])
    result = placed.order.change(
        (np.array([1]), np.array([placed.places[1, 1, 1]])), columns([]), placed.times_at
    )
    assert result.moves is not None
    assert result.moves[DEAD_PLACE] == DEAD_PLACE
    assert result.moves[placed.places[1, 1, 1]] == DEAD_PLACE
