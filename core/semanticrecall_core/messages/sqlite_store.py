"""The embedded message store: SQLite behind the `MessageStore` port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import structlog

from ..types.errors import CorruptDataError, ResourceExhaustedError, UnavailableError
from ..types.filters import Filter
from ..types.lexical import LexicalListener, LexicalRows, TextAnalyser
from ..types.ports import CommitListener, MessageCodec
from ..types.stats import (
    StoreStats,
)
from ..types.values import (
    AppendOutcome,
    CallBudget,
    Finding,
    ForgetOutcome,
    ForgetTarget,
    ListQuery,
    MessageDraft,
    PartitionRows,
    PendingRow,
    RowChecksums,
    StoredMessage,
    ThreadSummary,
    VectorRecord,
)
from ..types.windows import GroupQuery, GroupRows, MatchingRows, WindowQuery, WindowRows
from . import reading, verifying, windows
from .analysis_rows import AnalysisColumns
from .append import Append
from .commit import Change, GroupCommit, QueueLimits
from .connection import READER_CACHE_KIB, DatabaseFile, ReaderPool
from .directory import DataDirectory
from .forget import Forget
from .journal import OpenedJournal, open_journal
from .lexical_loading import load_analyses
from .preparing import (
    LOOKED_UP_FROM,
    AnalysisLackingError,
    PreparedDraft,
    StoredContent,
    append_bytes,
    contents_of_ids,
    prepared,
)
from .put_analyses import WriteBack
from .put_vectors import PutVectors, check_vectors, requeue, vector_bytes
from .rows import stored_message
from .transfer import TransferThread
from .vector_rows import VectorColumns

if TYPE_CHECKING:
    from ..types.values import IntColumn

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is opened.

    Attributes:
        clock: nanoseconds since the epoch, for messages without create_time.
        allow_shared_file_system: open on a network or shared file system after all; SQLite then
            keeps its index of the log in memory instead of a shared map.
        accept_loss: open although acknowledged changes are missing.
        readers_max: reads that go on at once.
        vfs: SQLite's operating system layer; "" is the default.
        reader_cache_kib: pages that each reading connection keeps, in KiB; the system's own cache
            of the file is beneath it.
    """

    clock: Callable[[], int] = time.time_ns
    allow_shared_file_system: bool = False
    accept_loss: bool = False
    readers_max: int = 16
    queue: QueueLimits = field(default_factory=QueueLimits)
    vfs: str = ""
    reader_cache_kib: int = READER_CACHE_KIB


class SqliteMessageStore:
    """See `MessageStore` in types/ports.py for what each method promises."""

    def __init__(
        self,
        directory: Path | DataDirectory,
        *,
        generation: str,
        codec: MessageCodec,
        analyser: TextAnalyser | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        """Lock the directory, open or make the record, start the writer thread.

        Args:
            directory: made (0700) if it is not there. One that is held already is taken over,
                without a moment in which another process could take it; the store closes it, also
                when it cannot be opened.
            generation: identity of the vectors that are put and served; after a change every
                embeddable message is pending again.
            codec: the form in which messages are kept, and given to those who answer with them.
            analyser: makes what the record keeps of a message for the lexical index; None keeps
                nothing and tells it nothing. What others kept stays, as far as it is still right.

        Raises:
            StoreLockedError: another process holds the directory.
            UnsafeEnvironmentError: a file system or SQLite that cannot keep a log.
            FailedPreconditionError: a newer format, a foreign database or another codec's.
            CorruptDataError: acknowledged changes are missing, or the database is damaged.
        """
        options = options or StoreOptions()
        self._clock = options.clock
        self._codec = codec
        self._analyser = analyser
        self._directory = (
            directory
            if isinstance(directory, DataDirectory)
            else DataDirectory(directory, allow_shared_file_system=options.allow_shared_file_system)
        )
        try:
            shared = self._directory.on_shared_file_system
            file = DatabaseFile(
                self._directory.database,
                self._directory.lock,
                options.vfs or ("unix-excl" if shared else ""),
                options.reader_cache_kib,
            )
            opened = _opened(self._directory, file, generation, codec.name, options.accept_loss)
        except BaseException:
            self._directory.close()
            raise
        self._store_id = opened.store_id
        self._generation_key = opened.generation_key
        self._readers = ReaderPool(file, connections_max=options.readers_max)
        self._writer = GroupCommit(opened.journal, options.queue)

    @property
    def store_id(self) -> str:
        """Identity of this data directory; made once."""
        return self._store_id

    @property
    def codec(self) -> MessageCodec:
        """The form in which it keeps messages, and gives them."""
        return self._codec

    @property
    def healthy(self) -> bool:
        """False after the writer died or a sync failed and the store was not yet reopened."""
        return self._writer.healthy

    def subscribe(self, listener: CommitListener) -> None:
        """Register a listener, before the first write; told in the order they came."""
        self._writer.subscribe(listener)

    def subscribe_lexical(self, listener: LexicalListener) -> None:
        """Register the lexical index, before the first write; without an analyser it hears none."""
        if self._analyser is not None:
            self._writer.subscribe_lexical(listener)

    def load_lexical(self, resource_id: str) -> LexicalRows:
        """All messages of a resource with something to embed; made analyses are kept later."""
        if self._analyser is None:
            return AnalysisColumns.of([]).lexical_rows()
        loaded = load_analyses(
            self._readers.read,
            resource_id,
            self._generation_key,
            self._codec.decode,
            self._analyser,
        )
        if loaded.made.analysed:
            _log.info("store_analyses_made", messages=len(loaded.made.analysed))
            self._writer.post(WriteBack(resource_id, loaded.made))
        return loaded.rows

    def append(
        self, resource_id: str, drafts: Sequence[MessageDraft], budget: CallBudget
    ) -> list[AppendOutcome]:
        """Store drafts in one transaction."""
        if not drafts:
            return []
        on_record = self._contents(resource_id, drafts, budget)
        try:
            return self._append(resource_id, prepared(drafts, self._analyser, on_record), budget)
        except AnalysisLackingError:  # something came between
            return self._append(resource_id, prepared(drafts, self._analyser, {}), budget)

    def _append(
        self, resource_id: str, drafts: Sequence[PreparedDraft], budget: CallBudget
    ) -> list[AppendOutcome]:
        operation = Append(resource_id, drafts, self._clock(), self._generation_key, self._codec)
        return self._writer.submit(operation, budget, size_bytes=append_bytes(drafts))

    def _contents(
        self, resource_id: str, drafts: Sequence[MessageDraft], budget: CallBudget
    ) -> dict[str, StoredContent]:
        """What is on record under the ids of many drafts; of few, that need not be known."""
        if self._analyser is None or len(drafts) < LOOKED_UP_FROM:
            return {}
        try:
            with self._readers.read(budget) as connection:
                return contents_of_ids(connection, resource_id, [draft.id for draft in drafts])
        except (CorruptDataError, ResourceExhaustedError, UnavailableError):
            return {}  # whether it can be written the writer says

    def put_vectors(self, records: Sequence[VectorRecord]) -> list[bool]:
        """Store vectors whose row still has that revision."""
        if not records:
            return []
        check_vectors(records)
        operation = PutVectors(records, self._generation_key)
        return self._writer.submit(operation, size_bytes=vector_bytes(records))

    def pending(self, after_seq: int, limit: int) -> list[PendingRow]:
        """Rows that wait to be embedded; a damaged row is logged and left out."""
        with self._readers.read() as connection:
            found = reading.pending_rows(connection, after_seq, limit)
        rows: list[PendingRow] = []
        for resource_id, row in found:
            try:
                text = stored_message(row, resource_id, self._codec.decode).text
            except CorruptDataError:
                _log.error("store_row_corrupt", seq=row[0])
                continue
            rows.append(PendingRow(resource_id, row[0], row[4], text))
        return rows

    def load_partition(self, resource_id: str) -> PartitionRows:
        """All current vectors of a resource; damaged ones are logged and embedded again."""
        with self._readers.read() as connection:
            found = reading.partition_columns(connection, resource_id, self._generation_key)
        return self._sound_rows(resource_id, *found)

    def row_checksums(self, resource_id: str) -> RowChecksums:
        """Which rows `load_partition` would give; damage is not seen here."""
        with self._readers.read() as connection:
            return reading.row_checksums(connection, resource_id, self._generation_key)

    def load_rows(self, resource_id: str, seqs: IntColumn) -> PartitionRows:
        """Current vectors of these messages; damaged ones as in `load_partition`."""
        with self._readers.read() as connection:
            found = reading.row_columns(connection, resource_id, seqs, self._generation_key)
        return self._sound_rows(resource_id, *found)

    def _sound_rows(
        self, resource_id: str, resource_key: int, columns: VectorColumns
    ) -> PartitionRows:
        if columns.corrupt_seqs:
            _log.error("store_vectors_corrupt", seqs=columns.corrupt_seqs[:100])
            damaged = (resource_id, resource_key, columns.corrupt_seqs)
            self._writer.post(partial(_requeue, damaged))
        return columns.partition_rows()

    def thread_key(self, resource_id: str, thread_id: str) -> int | None:
        """The key of a thread."""
        with self._readers.read() as connection:
            return reading.thread_key(connection, resource_id, thread_id)

    def seqs_matching(
        self, resource_id: str, condition: Filter, budget: CallBudget
    ) -> MatchingRows:
        """The resource's messages whose metadata match."""
        with self._readers.read(budget) as connection:
            return reading.seqs_matching(connection, resource_id, condition)

    def unknown_metadata_keys(
        self, resource_id: str, keys: frozenset[str], budget: CallBudget
    ) -> tuple[str, ...]:
        """Those of `keys` that no message of the resource carries, sorted."""
        with self._readers.read(budget) as connection:
            return reading.unknown_metadata_keys(connection, resource_id, keys)

    def seqs_of_ids(self, resource_id: str, message_ids: Sequence[str]) -> IntColumn:
        """Sorted seqs of those ids that are there."""
        with self._readers.read() as connection:
            return reading.seqs_of_ids(connection, resource_id, message_ids)

    def windows(self, query: WindowQuery) -> WindowRows:
        """Hits and neighbours in answer order, and what did not fit."""
        with self._readers.read() as connection:
            return windows.windows(connection, query, self._codec.decode)

    def group(self, query: GroupQuery) -> GroupRows:
        """A group, whole or not at all."""
        with self._readers.read() as connection:
            return windows.group(connection, query, self._codec.decode)

    def get(self, resource_id: str, message_ids: Sequence[str]) -> list[StoredMessage]:
        """The messages that are there, in the order of the ids, each once."""
        with self._readers.read() as connection:
            return reading.messages_of_ids(connection, resource_id, message_ids, self._codec.decode)

    def list_messages(self, query: ListQuery) -> list[StoredMessage]:
        """One page of history."""
        with self._readers.read() as connection:
            return reading.list_messages(connection, query, self._codec.decode)

    def list_threads(
        self, resource_id: str, limit: int, after: tuple[int, int] | None
    ) -> list[ThreadSummary]:
        """Threads, most recently active first."""
        with self._readers.read() as connection:
            return reading.list_threads(connection, resource_id, limit, after)

    def transfer_thread(self, resource_id: str, thread_id: str, to_resource_id: str) -> int:
        """Move a thread; returns its messages."""
        operation = TransferThread(resource_id, thread_id, to_resource_id, self._codec)
        return self._writer.submit(operation)

    def forget(self, resource_id: str, target: ForgetTarget) -> ForgetOutcome:
        """Remove messages, their vectors and threads that are empty then."""
        operation = Forget(resource_id, target, self._codec.decode)
        return self._writer.submit(operation, frees_space=True)

    def recent_resources(self, limit: int) -> list[str]:
        """Resources by the time of their newest message, newest first."""
        with self._readers.read() as connection:
            return reading.recent_resources(connection, limit)

    def stats(self, resource_id: str | None) -> StoreStats:
        """Counts of one resource or of all."""
        with self._readers.read() as connection:
            if resource_id is None:
                return reading.store_stats(connection, self._directory.disk_bytes())
            return reading.resource_stats(connection, resource_id)

    def verify(
        self, resource_id: str | None, budget: CallBudget | None = None
    ) -> Iterator[Finding]:
        """Read everything and yield what does not agree; see verifying.py for the kinds."""
        return verifying.verify(
            lambda: self._readers.read(budget),
            resource_id,
            self._generation_key,
            self._codec.decode,
        )

    def close(self) -> None:
        """Finish accepted writes and let go of the directory. Safe to call twice."""
        self._readers.close()
        self._writer.close()
        self._directory.close()


def _opened(
    directory: DataDirectory, file: DatabaseFile, generation: str, codec: str, accept_loss: bool
) -> OpenedJournal:
    """Open the journal; on a full disk once more without the ballast, to be able to forget."""
    try:
        return open_journal(directory, file, generation, codec=codec, accept_loss=accept_loss)
    except (ResourceExhaustedError, UnavailableError):
        if not directory.release_ballast():
            raise
        _log.warning("store_ballast_released")
        return open_journal(directory, file, generation, codec=codec, accept_loss=accept_loss)


def _requeue(
    damaged: tuple[str, int, tuple[int, ...]], connection: apsw.Connection, _revision: int
) -> Change[None]:
    resource_id, resource_key, seqs = damaged
    requeue(connection, resource_key, seqs)
    return Change(None, resources=(resource_id,))
