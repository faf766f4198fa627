"""The embedded message store: SQLite behind the `MessageStore` port."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import structlog

from ..types.errors import CorruptDataError, ResourceExhaustedError, UnavailableError
from ..types.filters import Filter
from ..types.generations import ModelIdentity
from ..types.lexical import LexicalListener, LexicalRows, TextAnalyser
from ..types.ports import CommitListener, MessageCodec
from ..types.stats import (
    StoreStats,
)
from ..types.values import (
    AppendOutcome,
    CallBudget,
    Finding,
    ListQuery,
    MessageDraft,
    PartitionRows,
    PendingRow,
    RowChecksums,
    Status,
    StoredMessage,
    ThreadSummary,
    VectorRecord,
)
from ..types.verifying import RecordCare, RecordDamage
from ..types.windows import GroupQuery, GroupRows, MatchingRows, WindowQuery, WindowRows
from . import reading, windows
from .analysis_rows import AnalysisColumns
from .append import Append
from .arrival_clock import ArrivalClock
from .care import SqliteRecordCare
from .commit import GroupCommit, QueueLimits
from .connection import READER_CACHE_KIB, DatabaseFile, ReaderPool
from .damage_log import DamageLog
from .directory import DataDirectory
from .erasing import RecordErasing
from .generation_rows import GenerationRows
from .generations import (
    BeginGeneration,
    DeleteVectors,
    EndDropped,
    ServeGeneration,
    dropped_vectors,
    has_dropped,
    messages_embedded,
)
from .high_water_mark import damaged_slots
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
from .put_vectors import PutVectors, check_vectors, vector_bytes
from .rows import stored_message
from .salvage_closed import can_be_salvaged, first_page_damaged, salvage_closed
from .saved_database import SqliteSavedDatabases
from .saving import StoreSaving
from .transfer import TransferThread
from .verifying import PAGE_DAMAGED, RecordChecks

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
        accept_loss: open although acknowledged changes are missing, or a damaged page is in the
            way: then what can be believed is written into a new database.
        readers_max: reads that go on at once.
        vfs: SQLite's operating system layer; "" is the default.
        reader_cache_kib: pages that each reading connection keeps, in KiB; the system's own cache
            of the file is beneath it.
        key: of the database's pages, 32 bytes; None: they are plain.
        index_identity: of the model whose generation is given, for people.
        next_model: the one that is to take its place; served if the record is of that one already.
    """

    clock: Callable[[], int] = time.time_ns
    allow_shared_file_system: bool = False
    accept_loss: bool = False
    readers_max: int = 16
    queue: QueueLimits = field(default_factory=QueueLimits)
    vfs: str = ""
    reader_cache_kib: int = READER_CACHE_KIB
    key: bytes | None = field(default=None, repr=False)
    index_identity: str = ""
    next_model: ModelIdentity | None = None


class SqliteMessageStore(RecordErasing):
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
            generation: identity of the vectors that are put and served; see also
                `StoreOptions.next_model` and the property of this name.
            codec: the form in which messages are kept, and given to those who answer with them.
            analyser: makes what the record keeps of a message for the lexical index; None keeps
                nothing and tells it nothing. What others kept stays, as far as it is still right.

        Raises:
            StoreLockedError: another process holds the directory.
            UnsafeEnvironmentError: a file system or SQLite that cannot keep a log.
            FailedPreconditionError: a newer format, a foreign database, another codec's, or one
                with vectors of another model.
            CorruptDataError: acknowledged changes are missing, or the database is damaged.
        """
        options = options or StoreOptions()
        self._clock = ArrivalClock(options.clock)
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
                options.key,
            )
            models = (ModelIdentity(generation, options.index_identity), options.next_model)
            marks = damaged_slots(self._directory.mark)
            opened = _opened(self._directory, file, models, codec, options.accept_loss)
        except BaseException:
            self._directory.close()
            raise
        self._store_id = opened.store_id
        self._damage = DamageLog(marks)
        self._readers = ReaderPool(
            file, connections_max=options.readers_max, damaged=self._damage.page_found
        )
        self._writer = GroupCommit(opened.journal, options.queue)
        self._care = SqliteRecordCare(
            self._readers,
            self._writer,
            RecordChecks(codec.decode, analyser, None),
            self._damage,
            self.load_lexical,
            lambda: (self._served.key, self._served.generation),
        )
        self._served = self._rows_of(*opened.generation)
        self._file = file

    @property
    def store_id(self) -> str:
        """Identity of this data directory; made once."""
        return self._store_id

    def saving(self, saved: SqliteSavedDatabases) -> StoreSaving:
        """Writes it to a file, and fills it from one that `saved` opens."""
        return StoreSaving(self._file, self._readers, self._writer, self, saved)

    @property
    def codec(self) -> MessageCodec:
        """The form in which it keeps messages, and gives them."""
        return self._codec

    @property
    def healthy(self) -> bool:
        """False after the writer died or a sync failed and the store was not yet reopened."""
        return self._writer.healthy

    @property
    def care(self) -> RecordCare:
        """Verifies the record and mends it."""
        return self._care

    def tell_requeued(self, listener: Callable[[list[PendingRow]], None]) -> None:
        """Tell of messages whose vectors were found damaged, and are gone; on any thread."""
        self._damage.tell_requeued(listener)

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
            self._codec.decode,
            self._analyser,
            self._damage,
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
        operation = Append(resource_id, drafts, self._clock(), self._codec)
        outcomes = self._writer.submit(operation, budget, size_bytes=append_bytes(drafts))
        self._damage.written_anew(
            "message", [each.seq for each in outcomes if each.status is not Status.UNCHANGED]
        )
        return outcomes

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

    # ---- vectors ----

    @property
    def generation(self) -> str:
        """The generation that is searched."""
        return self._served.generation

    def put_vectors(
        self, records: Sequence[VectorRecord], generation: str | None = None
    ) -> list[bool]:
        """Store vectors whose row still has that revision, if their generation is searched."""
        if not records:
            return []
        check_vectors(records)
        operation = PutVectors(records, generation or self._served.generation)
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
                self._message_damaged(row[0])
                continue
            rows.append(PendingRow(resource_id, row[0], row[4], text))
        return rows

    def load_partition(self, resource_id: str) -> PartitionRows:
        """All current vectors of a resource; damaged ones are logged and embedded again."""
        return self._served.load_partition(resource_id)

    def row_checksums(self, resource_id: str) -> RowChecksums:
        """Which rows `load_partition` would give; damage is not seen here."""
        return self._served.row_checksums(resource_id)

    def load_rows(self, resource_id: str, seqs: IntColumn) -> PartitionRows:
        """Current vectors of these messages; damaged ones as in `load_partition`."""
        return self._served.load_rows(resource_id, seqs)

    def embedded(self, generation: str) -> int:
        """Messages that have vectors of a generation; 0 for one that is not known."""
        with self._readers.read() as connection:
            return messages_embedded(connection, generation)

    def vectors_of(self, model: ModelIdentity) -> GenerationRows:
        """The vectors of a generation; one that is not searched is the next from now on."""
        if model.generation == self._served.generation:
            return self._served
        return self._rows_of(self._writer.submit(BeginGeneration(model)), model.generation)

    def serve(
        self, generation: str, without: Collection[int], switched: Callable[[], None]
    ) -> tuple[int, ...]:
        """Search another generation from now on; returns what it lacks for that."""

        def committed(key: int) -> None:
            self._served = self._rows_of(key, generation)
            switched()

        return self._writer.submit(ServeGeneration(generation, without, committed))

    def drop_unused_vectors(self, after: tuple[int, int], rows_max: int) -> tuple[int, int] | None:
        """Delete some of the vectors that no generation in use has; returns where to go on."""
        with self._readers.read() as connection:
            if not has_dropped(connection):
                return None
            rows = dropped_vectors(connection, after, rows_max)
        if rows:
            self._writer.submit(DeleteVectors([row[0] for row in rows]), frees_space=True)
            return int(rows[-1][1]), int(rows[-1][2])
        self._writer.submit(EndDropped(), frees_space=True)
        return None if after == (0, 0) else (0, 0)  # once more from the beginning

    def _rows_of(self, key: int, generation: str) -> GenerationRows:
        return GenerationRows(
            self._readers, self._writer, self._codec.decode, self._damage, (key, generation)
        )

    # ---- messages ----

    def _message_damaged(self, seq: int) -> None:
        self._damage.found("message", [seq])

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
            return windows.windows(connection, query, self._codec.decode, self._message_damaged)

    def group(self, query: GroupQuery) -> GroupRows:
        """A group, whole or not at all."""
        with self._readers.read() as connection:
            return windows.group(connection, query, self._codec.decode, self._message_damaged)

    def get(self, resource_id: str, message_ids: Sequence[str]) -> list[StoredMessage]:
        """The messages that are there, in the order of the ids, each once."""
        with self._readers.read() as connection:
            return reading.messages_of_ids(connection, resource_id, message_ids, self._codec.decode)

    def list_messages(self, query: ListQuery) -> list[StoredMessage]:
        """One page of history."""
        with self._readers.read() as connection:
            return reading.list_messages(
                connection, query, self._codec.decode, self._message_damaged
            )

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
        """What `care.examine` finds in the record; see verifying.py for the kinds."""
        for event in self._care.examine(resource_id, budget, None):
            if isinstance(event, RecordDamage):
                yield event.finding

    def close(self) -> None:
        """Finish accepted writes and let go of the directory. Safe to call twice."""
        self._readers.close()
        self._writer.close()
        self._directory.close()


def _opened(
    directory: DataDirectory,
    file: DatabaseFile,
    models: tuple[ModelIdentity, ModelIdentity | None],
    codec: MessageCodec,
    accept_loss: bool,
) -> OpenedJournal:
    """Open the journal; on a full disk once more without the ballast, to be able to forget.

    A database that cannot be opened for a damaged page is salvaged first, where loss is accepted.
    """
    try:
        return open_journal(directory, file, models, codec=codec.name, accept_loss=accept_loss)
    except CorruptDataError as error:
        is_of_a_page = error.reason == PAGE_DAMAGED
        if not is_of_a_page and not isinstance(error.__cause__, apsw.NotADBError):
            raise
        if not can_be_salvaged(file):
            raise first_page_damaged() from error
        if not is_of_a_page:
            raise
        if not accept_loss:
            raise CorruptDataError(
                "a page of recall.db that every start reads is damaged; restore a snapshot, or "
                "start with --accept-loss to take what is sound of it",
                reason=PAGE_DAMAGED,
            ) from error
        salvage_closed(directory, file, models[0].generation, codec.name, codec.decode)
        return open_journal(directory, file, models, codec=codec.name, accept_loss=accept_loss)
    except (ResourceExhaustedError, UnavailableError):
        if not directory.release_ballast():
            raise
        _log.warning("store_ballast_released")
        return open_journal(directory, file, models, codec=codec.name, accept_loss=accept_loss)
