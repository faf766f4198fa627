"""Counts that the parts give of themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotStats:
    """What the snapshots hold.

    Attributes:
        files, bytes: on disk.
        partitions, rows: the newest image of each resource.
        damaged: images and files that were found damaged and are not used, since the start.
    """

    files: int
    bytes: int
    partitions: int
    rows: int
    damaged: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """State of the embedding cache, and counters since the start.

    Attributes:
        entries, bytes: in memory.
        hits, misses: look-ups that found a vector, in memory or on disk, and that found none.
        evictions: from memory.
        disk_entries, disk_bytes: on disk; the bytes with SQLite's log.
        disk_hits: those of the hits that were found on disk.
        disk_evictions: from the disk.
        disk_damaged: damaged entries and files that were dropped.
    """

    entries: int
    bytes: int
    hits: int
    misses: int
    evictions: int
    disk_entries: int = 0
    disk_bytes: int = 0
    disk_hits: int = 0
    disk_evictions: int = 0
    disk_damaged: int = 0

    @property
    def hit_ratio(self) -> float:
        """Hits among look-ups, 0 to 1; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What waits to be embedded and what has run.

    Attributes:
        queued_texts, queued_tokens: waiting now, in all queues.
        running_texts: in hand now.
        batches: runs of the model since the start; a text that runs alone is a batch of one.
        batched_texts: texts in those; divided by `batches` it is the mean size.
        refused: texts refused because their queue was full.
    """

    queued_texts: int = 0
    queued_tokens: int = 0
    running_texts: int = 0
    batches: int = 0
    batched_texts: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class PurgeStats:
    """What purges did since the start.

    Attributes:
        runs, failures: that ended well, and those that did not and are tried again.
        pending: something that was forgotten may still be in the files.
    """

    runs: int
    failures: int
    pending: bool


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counts of the record; of one resource, or (with disk_bytes, resources) of all."""

    messages: int
    vectors: int
    pending: int
    threads: int
    resources: int = 0
    disk_bytes: int = 0
