"""What comes back from the calls that care for a store: frozen values, without protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from .values import Message, MessageVectors


@dataclass(frozen=True, slots=True)
class CacheStats:
    """State of the server's embedding cache; counters are since its start.

    Attributes:
        entries, bytes, evictions: in memory.
        hits, misses: look-ups that found a vector, in memory or on disk, and that found none.
        hit_ratio: hits among look-ups, 0 to 1.
        disk_entries, disk_bytes, disk_hits, disk_evictions: on disk.
        disk_damaged: damaged entries and files that were dropped.
    """

    entries: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    hit_ratio: float = 0.0
    disk_entries: int = 0
    disk_bytes: int = 0
    disk_hits: int = 0
    disk_evictions: int = 0
    disk_damaged: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotStats:
    """The server's images of partitions, from which a start reads them quicker.

    Attributes:
        files, bytes: on disk.
        partitions, rows: resources that have one, and vectors in them.
        damaged: found damaged since the start of the server, and not used.
        failures: that could not be written, read or removed since then.
    """

    files: int = 0
    bytes: int = 0
    partitions: int = 0
    rows: int = 0
    damaged: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of the store, or of one resource (then only the first four and the identities).

    Attributes:
        pending: messages that wait to be embedded.
        disk_bytes: the database with its log.
        resident_bytes: memory of the server's process.
        index_identity: which vectors: model, revision, dimensions, arithmetic.
        device: where the model runs: "cpu" or "cuda".
        partitions_loaded, lexical_partitions_loaded: resources whose vectors, and whose words, are
            in memory.
        lexical_bytes: memory that those words take.
        next_index_identity: of the next model's vectors; "" without one.
        next_embedded: messages that have vectors of the next model.
        expired: messages that the retention has removed since the start of the server.
        purge_pending: what was forgotten has not left all files yet.
        damaged: what was found damaged since the start: each message, vector and analysis once, and
            1 for pages of the database.
        encrypted: the files are encrypted.
    """

    messages: int
    vectors: int
    pending: int
    threads: int
    resources: int = 0
    disk_bytes: int = 0
    resident_bytes: int = 0
    partitions_loaded: int = 0
    cache: CacheStats = CacheStats()
    index_identity: str = ""
    device: str = ""
    server_version: str = ""
    uptime_seconds: float = 0.0
    snapshots: SnapshotStats = SnapshotStats()
    lexical_partitions_loaded: int = 0
    lexical_bytes: int = 0
    next_index_identity: str = ""
    next_embedded: int = 0
    expired: int = 0
    purge_pending: bool = False
    damaged: int = 0
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `verify` found not to agree. Never holds message text.

    Attributes:
        kind: stable word, e.g. "VECTOR_MISSING".
        repaired: it was mended. Never so for a message that is lost (kind "MESSAGE_LOST").
    """

    kind: str
    resource_id: str
    message_id: str
    detail: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far `verify` is.

    Attributes:
        stage: what is read: "database", "messages", "vectors", "words", "partitions", "images",
            "snapshots", "self-test".
        done, total: rows, partitions or files of it; `total` is 0 where that is not known.
    """

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """What `verify` looked at; its last item.

    Attributes:
        messages, vectors: read.
        findings: that came before this; 0 where all agrees.
        repaired: of these, mended.
        analyses: messages whose words were compared.
        images, snapshots: images of partitions, and saved snapshots, that were read.
        self_test_recalls: stored messages that were recalled by their own text, after a repair.
        self_test_failures: of these, those that did not come first.
        lost: messages that the repair has removed, for nothing on record gives them back. A saved
            snapshot or an export may have them.
    """

    messages: int
    vectors: int
    findings: int
    repaired: int = 0
    analyses: int = 0
    images: int = 0
    snapshots: int = 0
    self_test_recalls: int = 0
    self_test_failures: int = 0
    lost: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong: nothing was found, or all of it was mended and is recalled."""
        return self.findings == self.repaired and not (self.self_test_failures or self.lost)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved store.

    Attributes:
        name: made by the server: time, revision and a random part. "" where only images of
            partitions were written: then `bytes` and `vectors` are those of all images.
        create_time: when it was made.
        bytes: of its files.
        messages, vectors: in it.
        revision: it holds all changes of the store up to this one, and none after.
        digest: SHA-256 of its data, in hexadecimal digits.
        index_identity: what made its vectors.
        server_version: of the server that made it.
        format: of the record in it.
        encrypted: it can be read with the key of the store that it was made of, and not without.
        forgotten: messages that were forgotten since and are still in its files. A restore leaves
            them out; a purge removes them.
    """

    name: str
    create_time: datetime
    bytes: int
    messages: int
    vectors: int = 0
    revision: int = 0
    digest: str = ""
    index_identity: str = ""
    server_version: str = ""
    format: int = 0
    encrypted: bool = False
    forgotten: int = 0


class SnapshotList(tuple[Snapshot, ...]):
    """The snapshots of a folder.

    Attributes:
        left_out: names of what else lies there, cannot be read as a snapshot of its own name, and
            may hold messages of the store: no purge is complete while it is there.
    """

    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot], left_out: Iterable[str]) -> SnapshotList:
        """Put both together."""
        made = cls(snapshots)
        made.left_out = tuple(left_out)
        return made


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restored store holds.

    Attributes:
        messages, vectors: in the store now.
        forgotten: messages of the snapshot that were left out: forgotten after it was made.
        without_ledger: no file FORGOTTEN lay beside it: what was forgotten may have come back.
    """

    messages: int
    vectors: int
    forgotten: int
    without_ledger: bool = False


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """What a purge did.

    Attributes:
        revision: everything forgotten up to this revision of the store has left the files.
        snapshots_rewritten: by name.
        snapshots_holding: what lies beside the snapshots and may hold it still; where there is any,
            `revision` is that of the last purge that was complete.
    """

    revision: int
    snapshots_rewritten: tuple[str, ...] = ()
    snapshots_holding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReembedProgress:
    """How far `reembed` has come.

    Attributes:
        done, total: messages.
        from_index_identity: of the model that served when the call came.
        to_index_identity: of the next one.
        complete: the next model serves now; only of the last item.
    """

    done: int
    total: int
    from_index_identity: str = ""
    to_index_identity: str = ""
    complete: bool = False


@dataclass(frozen=True, slots=True)
class ExportedMessage:
    """One message of an export with vectors; None where it has none."""

    message: Message
    vectors: MessageVectors | None = None
