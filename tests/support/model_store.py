"""The message store as a plain dictionary: the reference that real stores are compared with.

Written from the docstrings of `MessageStore` alone, one message after another, nothing clever.
Not durable, not thread-safe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from semanticrecall_core.types.errors import AlreadyExistsError, NotFoundError
from semanticrecall_core.types.filters import Filter
from semanticrecall_core.types.lexical import LexicalListener, LexicalRows, TextAnalyser
from semanticrecall_core.types.ports import CommitListener
from semanticrecall_core.types.stats import (
    StoreStats,
)
from semanticrecall_core.types.values import (
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
from semanticrecall_core.types.verifying import RecordCare
from semanticrecall_core.types.windows import (
    GroupQuery,
    GroupRows,
    MatchingRows,
    WindowQuery,
    WindowRows,
)
from support.model_erasing import ModelErasing
from support.model_filter import has_key, holds
from support.model_generations import ModelGenerations
from support.model_rows import Row, replaced_text, same_to_embed, size_bytes, stored_row


class ModelStore(ModelErasing, ModelGenerations):
    """A list of rows, searched from end to end."""

    store_id = "model"
    healthy = True

    def __init__(
        self,
        *,
        generation: str,
        clock: Callable[[], int],
        analyser: TextAnalyser | None = None,
    ) -> None:
        self.generation = generation
        self._kept = {generation}
        self._analyser = analyser
        self._lexical_listeners: list[LexicalListener] = []
        self._clock = clock
        self.rows: list[Row] = []
        self._last_seq = 0
        self._revision = 0
        self._thread_keys: dict[tuple[str, str], int] = {}
        self._last_thread_key = 0
        self._listeners: list[CommitListener] = []

    def subscribe(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def subscribe_lexical(self, listener: LexicalListener) -> None:
        self._lexical_listeners.append(listener)

    def load_lexical(self, resource_id: str) -> LexicalRows:
        rows = [] if self._analyser is None else self._of(resource_id)
        return self._lexical([r for r in rows if r.draft.embeddable])

    def _lexical(self, rows: Sequence[Row]) -> LexicalRows:
        rows = sorted(rows, key=lambda r: r.seq)
        thread_keys = [self._thread_keys[r.resource_id, r.draft.thread_id] for r in rows]
        analyser = self._analyser
        return LexicalRows(
            seqs=np.array([r.seq for r in rows], np.int64),
            thread_keys=np.array(thread_keys, np.int64),
            times_ns=np.array([r.time_ns for r in rows], np.int64),
            revisions=np.array([r.revision for r in rows], np.int64),
            roles=np.array([r.draft.role for r in rows], np.uint8),
            analysed=tuple(
                analyser.analyse(r.draft.text, r.draft.author) for r in rows if analyser is not None
            ),
        )

    def append(
        self, resource_id: str, drafts: Sequence[MessageDraft], budget: CallBudget
    ) -> list[AppendOutcome]:
        budget.check()
        revision, now_ns = self._revision + 1, self._clock()
        before = {row.seq: replace(row) for row in self.rows}
        statuses = [self._take(resource_id, d, revision, now_ns, before) for d in drafts]
        if any(status is not Status.UNCHANGED for status in statuses):
            self._revision = revision
        self._settle()
        rows = [self._find(resource_id, draft.id) for draft in drafts]
        self._tell_appended(resource_id, [row for row in rows if row.revision == revision], before)
        if self._revision == revision:
            self._tell_changed(resource_id)
        return [
            AppendOutcome(
                row.seq,
                row.revision,
                status,
                self._is_pending(row),
                replaced_text(before.get(row.seq), row),
            )
            for row, status in zip(rows, statuses, strict=True)
        ]

    def _take(
        self,
        resource_id: str,
        draft: MessageDraft,
        revision: int,
        now_ns: int,
        before: dict[int, Row],
    ) -> Status:
        row = next((r for r in self._of(resource_id) if r.draft.id == draft.id), None)
        if row is None:
            self._last_seq += 1
            time_ns = now_ns if draft.create_time_ns is None else draft.create_time_ns
            self.rows.append(Row(self._last_seq, resource_id, draft, time_ns, revision))
            return Status.INDEXED
        same = replace(draft, create_time_ns=None, embeddable=True) == replace(
            row.draft, create_time_ns=None, embeddable=True
        )
        if same and draft.create_time_ns in (None, row.time_ns):
            return Status.UNCHANGED
        if draft.create_time_ns is not None:
            row.time_ns = draft.create_time_ns
        row.draft, row.revision = draft, revision
        old = before.get(row.seq)
        keeps = old is not None and same_to_embed(old.draft, draft)
        row.made = dict(old.made) if old is not None and keeps else {}
        return Status.REPLACED

    def _tell_appended(self, resource_id: str, rows: Sequence[Row], before: dict[int, Row]) -> None:
        replaced = {row.seq: row for row in rows if row.seq in before}.values()
        gone = sorted(
            row.seq for row in replaced if not same_to_embed(before[row.seq].draft, row.draft)
        )
        if gone:
            self._tell_removed(resource_id, gone)
        self._tell_texts(resource_id, rows, before)
        kept = [row for row in replaced if self.generation in row.made]
        if kept:
            self._tell_put(resource_id, kept)

    def _tell_texts(self, resource_id: str, rows: Sequence[Row], before: dict[int, Row]) -> None:
        written = {row.seq: row for row in rows}.values()
        had_text = [r.seq for r in written if r.seq in before and before[r.seq].draft.embeddable]
        put = [row for row in written if row.draft.embeddable]
        removed = sorted(set(had_text) - {row.seq for row in put})
        for listener in self._heard_of_texts():
            if removed:
                listener.texts_removed(resource_id, np.array(removed, np.int64))
            if put:
                listener.texts_put(resource_id, self._lexical(put))

    def _tell_put(self, resource_id: str, rows: Sequence[Row]) -> None:
        for listener in self._listeners:
            listener.vectors_put(resource_id, self._partition(rows, self.generation))

    def _tell_removed(self, resource_id: str, seqs: Sequence[int]) -> None:
        for listener in self._listeners:
            listener.vectors_removed(resource_id, np.array(sorted(seqs), np.int64))

    def _tell_gone(self, resource_id: str, seqs: Sequence[int]) -> None:
        self._tell_removed(resource_id, seqs)
        for listener in self._heard_of_texts():
            listener.texts_removed(resource_id, np.array(sorted(seqs), np.int64))

    def _tell_dropped(self, resource_id: str) -> None:
        for listener in (*self._listeners, *self._heard_of_texts()):
            listener.resource_dropped(resource_id)

    def _heard_of_texts(self) -> list[LexicalListener]:
        return [] if self._analyser is None else self._lexical_listeners

    def _tell_changed(self, *resource_ids: str) -> None:
        for resource_id in resource_ids:
            for listener in self._listeners:
                listener.resource_changed(resource_id)

    def put_vectors(
        self, records: Sequence[VectorRecord], generation: str | None = None
    ) -> list[bool]:
        if generation not in (None, self.generation):
            return [False] * len(records)
        return self.put_of(records, self.generation)

    def put_of(self, records: Sequence[VectorRecord], generation: str) -> list[bool]:
        if generation not in self._kept:
            return [False] * len(records)
        results: list[bool] = []
        put: dict[str, dict[int, Row]] = {}
        for record in records:
            row = next((r for r in self.rows if r.seq == record.seq), None)
            fits = (
                row is not None
                and row.revision == record.revision
                and row.resource_id == record.resource_id
            )
            results.append(fits)
            if row is not None and fits:
                row.made[generation] = record.vectors.copy()
                put.setdefault(row.resource_id, {})[row.seq] = row
        if put:
            self._revision += 1
        if generation != self.generation:
            return results
        for resource_id, rows in put.items():
            self._tell_put(resource_id, list(rows.values()))
        self._tell_changed(*put)
        return results

    def pending(self, after_seq: int, limit: int) -> list[PendingRow]:
        waiting = [r for r in self.rows if r.seq > after_seq and self._is_pending(r)]
        waiting.sort(key=lambda r: r.seq)
        return [PendingRow(r.resource_id, r.seq, r.revision, r.draft.text) for r in waiting[:limit]]

    def load_partition(self, resource_id: str) -> PartitionRows:
        return self.partition_of(resource_id, self.generation)

    def partition_of(self, resource_id: str, generation: str) -> PartitionRows:
        rows = [r for r in self._of(resource_id) if generation in r.made]
        return self._partition(sorted(rows, key=lambda r: r.seq), generation)

    def row_checksums(self, resource_id: str) -> RowChecksums:
        rows = self.load_partition(resource_id)
        return RowChecksums(rows.seqs, rows.chunks, rows.checksums)

    def load_rows(self, resource_id: str, seqs: np.ndarray) -> PartitionRows:
        return self.rows_of(resource_id, seqs, self.generation)

    def rows_of(self, resource_id: str, seqs: np.ndarray, generation: str) -> PartitionRows:
        rows = self.partition_of(resource_id, generation)
        chosen = np.array([seq in set(seqs.tolist()) for seq in rows.seqs.tolist()], np.bool_)
        return PartitionRows(*(getattr(rows, name)[chosen] for name in PartitionRows.__slots__))

    def _checksum(self, row: Row, chunk: int, vector: np.ndarray, generation: str) -> int:
        thread_key = self.thread_key(row.resource_id, row.draft.thread_id)
        whole = (row.seq, chunk, row.resource_id, thread_key, row.time_ns, int(row.draft.role))
        text = f"{whole} {row.revision} {generation}".encode() + vector.tobytes()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)

    def _partition(self, rows: Sequence[Row], generation: str) -> PartitionRows:
        flat = [
            (row, chunk, vector)
            for row in rows
            for chunk, vector in enumerate(row.made.get(generation, ()))
        ]
        return PartitionRows(
            seqs=np.array([row.seq for row, _, _ in flat], np.int64),
            thread_keys=np.array(
                [self.thread_key(row.resource_id, row.draft.thread_id) for row, _, _ in flat],
                np.int64,
            ),
            times_ns=np.array([row.time_ns for row, _, _ in flat], np.int64),
            roles=np.array([row.draft.role for row, _, _ in flat], np.uint8),
            chunks=np.array([chunk for _, chunk, _ in flat], np.int64),
            revisions=np.array([row.revision for row, _, _ in flat], np.int64),
            vectors=np.array([vector for _, _, vector in flat], np.float32).reshape(
                len(flat), -1 if flat else 0
            ),
            checksums=np.array([self._checksum(*entry, generation) for entry in flat], np.int64),
        )

    def thread_key(self, resource_id: str, thread_id: str) -> int | None:
        return self._thread_keys.get((resource_id, thread_id))

    def seqs_matching(
        self, resource_id: str, condition: Filter, budget: CallBudget
    ) -> MatchingRows:
        budget.check()
        found = [r.seq for r in self._of(resource_id) if holds(condition, r.draft.metadata_json)]
        return MatchingRows(np.array(sorted(found), np.int64), self._revision)

    def unknown_metadata_keys(
        self, resource_id: str, keys: frozenset[str], budget: CallBudget
    ) -> tuple[str, ...]:
        budget.check()
        known = {
            key
            for key in keys
            for row in self._of(resource_id)
            if has_key(row.draft.metadata_json, key)
        }
        return tuple(sorted(keys - known))

    def seqs_of_ids(self, resource_id: str, message_ids: Sequence[str]) -> np.ndarray:
        found = [r.seq for r in self._of(resource_id) if r.draft.id in message_ids]
        return np.array(sorted(found), np.int64)

    def windows(self, query: WindowQuery) -> WindowRows:
        def allowed(row: Row) -> bool:
            rows = query.matching
            return rows is None or (row.seq in rows.seqs and row.revision <= rows.revision)

        hits = [
            row
            for pair in query.hits
            for row in self._of(query.resource_id)
            if (row.seq, row.revision) == pair and allowed(row)
        ]
        wanted = list(hits)
        for hit in hits:
            others = [
                r
                for r in self._thread(query.resource_id, hit.draft.thread_id)
                if r.draft.id not in query.excluded_ids and r is not hit
            ]
            earlier = [r for r in others if r.place < hit.place][::-1]
            later = [r for r in others if r.place > hit.place]
            wanted += filter(allowed, [*earlier[: query.before], *later[: query.after]])
        wanted = list({row.seq: row for row in wanted}.values())
        fitting, size = 0, 0
        for row in wanted:
            size += size_bytes(row)
            if fitting and size > query.bytes_max:
                break
            fitting += 1
        threads: dict[str, list[Row]] = {}
        for row in sorted(wanted[:fitting], key=lambda r: r.place):
            threads.setdefault(row.draft.thread_id, []).append(row)
        return WindowRows(
            tuple(stored_row(row) for rows in threads.values() for row in rows),
            tuple(sorted(row.seq for row in wanted[fitting:])),
        )

    def group(self, query: GroupQuery) -> GroupRows:
        members = [
            r
            for r in self._thread(query.resource_id, query.thread_id)
            if r.draft.group_id == query.group_id and query.group_id
        ]
        if len(members) > query.messages_max:
            return GroupRows(None)
        if sum(map(size_bytes, members)) > query.bytes_max:
            return GroupRows(None, tuple(sorted(row.seq for row in members)))
        return GroupRows(tuple(map(stored_row, members)))

    def get(self, resource_id: str, message_ids: Sequence[str]) -> list[StoredMessage]:
        by_id = {row.draft.id: row for row in self._of(resource_id)}
        return [stored_row(by_id[i]) for i in dict.fromkeys(message_ids) if i in by_id]

    def list_messages(self, query: ListQuery) -> list[StoredMessage]:
        rows = sorted(
            self._of(query.resource_id), key=lambda r: r.place, reverse=query.newest_first
        )
        if query.thread_id is not None:
            rows = [r for r in rows if r.draft.thread_id == query.thread_id]
        if query.after is not None and query.newest_first:
            rows = [r for r in rows if r.place < query.after]
        elif query.after is not None:
            rows = [r for r in rows if r.place > query.after]
        if query.time_from_ns is not None:
            rows = [r for r in rows if r.time_ns >= query.time_from_ns]
        if query.time_to_ns is not None:
            rows = [r for r in rows if r.time_ns < query.time_to_ns]
        if query.roles:
            rows = [r for r in rows if r.draft.role in query.roles]
        return [stored_row(row) for row in rows[: query.limit]]

    def list_threads(
        self, resource_id: str, limit: int, after: tuple[int, int] | None
    ) -> list[ThreadSummary]:
        found: list[ThreadSummary] = []
        for thread_id in {r.draft.thread_id for r in self._of(resource_id)}:
            rows = self._thread(resource_id, thread_id)
            first, last = rows[0], rows[-1]
            found.append(ThreadSummary(thread_id, len(rows), first.time_ns, last.time_ns, last.seq))
        found.sort(key=lambda t: (t.last_create_time_ns, t.last_seq), reverse=True)
        if after is not None:
            found = [t for t in found if (t.last_create_time_ns, t.last_seq) < after]
        return found[:limit]

    def transfer_thread(self, resource_id: str, thread_id: str, to_resource_id: str) -> int:
        rows = self._thread(resource_id, thread_id)
        if not rows:
            raise NotFoundError("no such thread")
        taken = {r.draft.id for r in self._of(to_resource_id)}
        if self._thread(to_resource_id, thread_id) or taken & {r.draft.id for r in rows}:
            raise AlreadyExistsError("taken")
        self._revision += 1
        for row in rows:
            row.resource_id, row.revision = to_resource_id, self._revision
        self._settle()
        self._tell_gone(resource_id, [r.seq for r in rows])
        self._tell_dropped(to_resource_id)
        self._tell_changed(resource_id, to_resource_id)
        return len(rows)

    def recent_resources(self, limit: int) -> list[str]:
        newest: dict[str, int] = {}
        for row in self.rows:
            newest[row.resource_id] = max(newest.get(row.resource_id, row.time_ns), row.time_ns)
        return sorted(newest, key=lambda resource_id: -newest[resource_id])[:limit]

    def stats(self, resource_id: str | None) -> StoreStats:
        rows = self.rows if resource_id is None else self._of(resource_id)
        return StoreStats(
            messages=len(rows),
            vectors=sum(len(r.made.get(self.generation, ())) for r in rows),
            pending=sum(self._is_pending(r) for r in rows),
            threads=len({(r.resource_id, r.draft.thread_id) for r in rows}),
            resources=len({r.resource_id for r in rows}) if resource_id is None else 0,
        )

    def verify(
        self, resource_id: str | None, budget: CallBudget | None = None
    ) -> Iterator[Finding]:
        return iter(())

    @property
    def care(self) -> RecordCare:
        raise NotImplementedError("a model has nothing to mend")

    def tell_requeued(self, listener: Callable[[list[PendingRow]], None]) -> None:
        pass

    def close(self) -> None:
        pass

    def _of(self, resource_id: str) -> list[Row]:
        return [row for row in self.rows if row.resource_id == resource_id]

    def _thread(self, resource_id: str, thread_id: str) -> list[Row]:
        rows = [r for r in self._of(resource_id) if r.draft.thread_id == thread_id]
        return sorted(rows, key=lambda r: r.place)

    def _find(self, resource_id: str, message_id: str) -> Row:
        return next(r for r in self._of(resource_id) if r.draft.id == message_id)

    def _is_pending(self, row: Row) -> bool:
        return row.draft.embeddable and self.generation not in row.made

    def _settle(self) -> None:
        """Threads with messages have keys; a thread that comes back gets another one."""
        there = {(row.resource_id, row.draft.thread_id) for row in self.rows}
        for gone in self._thread_keys.keys() - there:
            del self._thread_keys[gone]
        for new in sorted(there - self._thread_keys.keys()):
            self._last_thread_key += 1
            self._thread_keys[new] = self._last_thread_key
