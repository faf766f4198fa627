"""Which messages of an answer fit a budget of tokens.

Taken are, as far as there is room:
1. the hits, best first. A hit of a whole group takes the whole group; where there is no room for
   that, the hit alone, and the group is absent from then on. The first hit that finds no room ends
   the answer: no lower hit and no context follows it. A hit that is larger than all of the room is
   passed over instead, and the best hit of all is kept even then, alone, to be cut.
2. the context: window by window, that of the best hit first, the nearest neighbours first, of two
   as near the earlier. The first neighbour that finds no room ends its side of the window, so that
   no window has a gap. A neighbour of a group takes the whole group, or has no room.

So context makes room for hits, lower hits make room for higher ones, and a group is whole or
absent but for its hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Sides = tuple[Sequence[int], Sequence[int]]
"""A hit's neighbours before and after it, each nearest first."""


class Room(Protocol):
    """What is left of a budget."""

    def take(self, seqs: Sequence[int]) -> bool:
        """Take these messages, all or none; False where there is no room for all."""
        ...

    def fits_alone(self, seq: int) -> bool:
        """Whether a message would fit if nothing had been taken."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """What could be taken, as seqs of messages.

    Attributes:
        hits: best first.
        groups: of each message of a whole group, all members.
        windows: of each hit, its neighbours.
    """

    hits: tuple[int, ...]
    groups: Mapping[int, tuple[int, ...]]
    windows: Mapping[int, Sides]


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken, as seqs; `best_is_too_large`: it is the best hit alone, and does not fit."""

    seqs: frozenset[int]
    best_is_too_large: bool = False


def take_what_fits(choice: Choice, room: Room) -> Taken:
    """The rules at the top of the module."""
    taken: set[int] = set()
    absent: set[tuple[int, ...]] = set()
    for hit in choice.hits:
        if hit in taken:
            continue
        group = choice.groups.get(hit)
        if group is not None and group not in absent:
            if room.take(group):
                taken.update(group)
                continue
            absent.add(group)
        if room.take((hit,)):
            taken.add(hit)
        elif room.fits_alone(hit):
            return Taken(frozenset(taken))
        elif hit == choice.hits[0]:
            return Taken(frozenset((hit,)), best_is_too_large=True)
    for hit in [hit for hit in choice.hits if hit in taken]:
        _take_window(choice, hit, room, taken, absent)
    return Taken(frozenset(taken))


def _take_window(
    choice: Choice, hit: int, room: Room, taken: set[int], absent: set[tuple[int, ...]]
) -> None:
    sides = [iter(side) for side in choice.windows.get(hit, ())]
    while sides:
        for side in tuple(sides):
            neighbour = next(side, None)
            if neighbour in taken:
                continue
            unit = choice.groups.get(neighbour, (neighbour,)) if neighbour is not None else ()
            if not unit or unit in absent or not room.take(unit):
                sides.remove(side)
            else:
                taken.update(unit)
