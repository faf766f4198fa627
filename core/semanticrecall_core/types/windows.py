"""What the record is asked around the hits of an answer, and what a filter allows there.

A message can change between the search, which found it, and the reading of its row. So hits and
filters name the revision that they speak of, and a row of another one is not what was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .values import IntColumn, StoredMessage


@dataclass(frozen=True, slots=True)
class MatchingRows:
    """The rows of a resource that matched a filter.

    Attributes:
        seqs: sorted, unique.
        revision: the record's when they were read; who changed later may match no more.
    """

    seqs: IntColumn
    revision: int

    def allow(self, seq: int, revision: int) -> bool:
        """Whether a row that has this revision now is known to match."""
        if revision > self.revision:
            return False
        position = int(self.seqs.searchsorted(seq))
        return position < len(self.seqs) and int(self.seqs[position]) == seq


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """All windows of all hits of one answer.

    Attributes:
        hits: (seq, revision), best first. A hit whose row has another revision counts as gone.
        before, after: neighbours on each side, within the hit's thread, by (create_time, seq).
        bytes_max: of encoded messages that are read at most (and one message more); the best hit
            is read in any case. Taken are the hits, best first, then their neighbours: hit
            by hit, the earlier side first, the nearest first; from the first that does not fit on,
            nothing more.
        excluded_ids: message ids that are not returned and do not use up a place.
        matching: rows that it does not allow are not returned, though they use up a place; None
            is no filter.
    """

    resource_id: str
    hits: tuple[tuple[int, int], ...]
    before: int
    after: int
    bytes_max: int
    excluded_ids: tuple[str, ...] = ()
    matching: MatchingRows | None = None


@dataclass(frozen=True, slots=True)
class WindowRows:
    """What `MessageStore.windows` read.

    Attributes:
        messages: by (thread's first message here, create_time, seq).
        dropped: seqs of hits and neighbours that did not fit, sorted.
        damaged: seqs of hits and neighbours that do not match their checksum, sorted. They are in
            neither of the others.
    """

    messages: tuple[StoredMessage, ...]
    dropped: tuple[int, ...]
    damaged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """All messages of one group of one thread.

    Attributes:
        messages_max: a group of more is not read.
        bytes_max: nor one of more bytes of encoded messages.
    """

    resource_id: str
    thread_id: str
    group_id: str
    messages_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class GroupRows:
    """What `MessageStore.group` read.

    Attributes:
        messages: by (create_time, seq); None where the group is larger than the query says,
            or a member is damaged.
        dropped: its seqs, sorted, where it is larger in bytes alone; empty otherwise.
    """

    messages: tuple[StoredMessage, ...] | None
    dropped: tuple[int, ...] = ()
