"""Fairness between resources: whose job is next, and how many places one may take.

Nothing here locks or blocks; every operation takes the same time however much waits. What is
remembered is bounded by what waits or is worked on, beside `HOT_MAX` resources that were refused
and `SERVED_MAX` that had their turn.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from .settings_faults import ID_BYTES_MAX

JobT = TypeVar("JobT")

NOBODY = b""
"""What calls without a resource have in common: one turn, one share."""

PLACES_OF_ONE_MIN = 8
"""So many places a resource may take whatever the others hold, if any are free."""

SERVED_MAX = 1_024
HOT_MAX = 1_024
_FIELDS_PASSED_MAX = 4
_BYTES = 2


def resource_of(raw: bytes, number: int) -> bytes:
    """The resource id of an encoded request, field `number` of it, without decoding.

    Protobuf's writers put fields in the order of their numbers, and only strings are before it.
    What is written in another way, or has an id that is too long, counts as NOBODY's: only
    fairness depends on it.
    """
    at, end = 0, len(raw)
    for _ in range(_FIELDS_PASSED_MAX):
        if at + 2 > end:
            break
        tag, size = raw[at], raw[at + 1]
        at += 2
        if tag & 7 != _BYTES or tag >> 3 > number:
            break
        if size >= 0x80:
            if at >= end or raw[at] >= 0x80:
                break
            size = size & 0x7F | raw[at] << 7
            at += 1
        if tag >> 3 == number:
            return raw[at : at + size] if size <= ID_BYTES_MAX else NOBODY
        at += size
    return NOBODY


class FairQueue(Generic[JobT]):
    """Jobs that wait. They are taken in rounds: one of each resource, in the order they came.

    Who has had a turn in this round, though the job is worked on still, waits for the next one;
    who has not is served in this one, before all that those want who have. Of `SERVED_MAX`
    resources a round is full: who comes then is in the next, so that each round ends.
    """

    def __init__(self) -> None:
        # OrderedDict gives its first entry away in the same time however many were taken out
        # before, which dict does not.
        self._jobs: dict[bytes, OrderedDict[JobT, None]] = {}
        self._round: OrderedDict[bytes, None] = OrderedDict()
        self._next_round: OrderedDict[bytes, None] = OrderedDict()
        self._served: set[bytes] = set()
        self._count = 0

    def __len__(self) -> int:
        """Jobs that wait."""
        return self._count

    def add(self, resource: bytes, job: JobT) -> None:
        """Let a job wait."""
        jobs = self._jobs.get(resource)
        if jobs is None:
            jobs = self._jobs[resource] = OrderedDict()
            order = self._round if self._is_in_this_round(resource) else self._next_round
            order[resource] = None
        jobs[job] = None
        self._count += 1

    def take(self) -> JobT | None:
        """The next job, or None where none waits."""
        if not self._count:
            return None
        if not self._round:
            self._round, self._next_round = self._next_round, self._round
            self._served.clear()
        resource, _ = self._round.popitem(last=False)
        self._served.add(resource)
        jobs = self._jobs[resource]
        job, _ = jobs.popitem(last=False)
        self._count -= 1
        if jobs:
            self._next_round[resource] = None
        else:
            del self._jobs[resource]
        return job

    def remove(self, resource: bytes, job: JobT) -> bool:
        """Take a job out; False where it does not wait."""
        jobs = self._jobs.get(resource)
        if jobs is None or job not in jobs:
            return False
        del jobs[job]
        self._count -= 1
        if not jobs:
            del self._jobs[resource]
            self._round.pop(resource, None)
            self._next_round.pop(resource, None)
        return True

    def ahead(self, resource: bytes) -> int:
        """At most so many of the jobs that wait are taken before one of this resource added now."""
        jobs = self._jobs.get(resource)
        if jobs is None:
            in_this_round = len(self._round)
            if self._is_in_this_round(resource):
                return in_this_round
            return in_this_round + len(self._next_round)
        own = len(jobs)
        return own + min(self._count - own, (own + 1) * (len(self._jobs) - 1))

    def _is_in_this_round(self, resource: bytes) -> bool:
        served = self._served
        return resource not in served and len(served) + len(self._round) < SERVED_MAX


@dataclass(slots=True)
class _Holding:
    """What one resource holds."""

    places: int = 0
    size: int = 0


class Shares:
    """Who holds how many places and bytes.

    A resource may hold as many places as are still free, and as many bytes: alone it gets half of
    them, beside another one that wants as much a third each, and there is room for one that comes
    next. `PLACES_OF_ONE_MIN` places are never too many, nor is one request, however large.
    """

    def __init__(self, places: int, bytes_max: int) -> None:
        self._places = places
        self._bytes_max = bytes_max
        self._held: dict[bytes, _Holding] = {}
        self._bytes = 0
        self.taken = 0

    def has_room(self, resource: bytes, size: int, most: int | None = None) -> bool:
        """Whether the resource may take a place and so many bytes.

        Args:
            resource: who.
            size: bytes of the request.
            most: places that it may hold in any case; None: only its share counts.
        """
        free, free_bytes = self._places - self.taken, self._bytes_max - self._bytes
        if free < 1 or free_bytes < size:
            return False
        held = self._held.get(resource)
        if held is None:
            return True
        if most is not None and held.places >= most:
            return False
        if held.places >= PLACES_OF_ONE_MIN and held.places >= free:
            return False
        return held.size + size <= free_bytes

    def holds(self, resource: bytes) -> bool:
        """Whether the resource has any place."""
        return resource in self._held

    def take(self, resource: bytes, size: int) -> None:
        """Take a place, whether there is room or not."""
        held = self._held.get(resource)
        if held is None:
            held = self._held[resource] = _Holding()
        held.places += 1
        held.size += size
        self.taken += 1
        self._bytes += size

    def give_back(self, resource: bytes, size: int) -> None:
        """Give back what `take` took."""
        held = self._held[resource]
        held.places -= 1
        held.size -= size
        if not held.places:
            del self._held[resource]
        self.taken -= 1
        self._bytes -= size


class Hot:
    """Resources that were refused of late: those that ask for more than is done.

    Of more than `HOT_MAX` the ones are forgotten that were refused longest ago.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, resource: bytes, now: float) -> None:
        """The resource was refused."""
        self._until[resource] = now + self._seconds
        self._until.move_to_end(resource)
        if len(self._until) > HOT_MAX:
            self._until.popitem(last=False)

    def has(self, resource: bytes, now: float) -> bool:
        """Whether the resource was refused in the last seconds."""
        until = self._until.get(resource)
        if until is None:
            return False
        if until > now:
            return True
        del self._until[resource]
        return False
