"""Writing messages: new, replaced, unchanged.

A draft that equals the message on record changes nothing, unless that row does not match its
checksum: then it is written anew. Giving a history again mends it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import apsw

from ..types.errors import CorruptDataError
from ..types.ports import MessageCodec
from ..types.values import AppendOutcome, MessageDraft, Status
from . import keys
from .commit import Change, LexicalNotice
from .preparing import AnalysisLackingError, PreparedDraft, is_on_record
from .put_analyses import AnalysisChanges
from .put_vectors import VectorNotices, carry_vectors, delete_vectors
from .rows import message_checksum, text_hash


class _Row(NamedTuple):
    """A message as it is, or is going to be, on record; `sound`: it matches its checksum."""

    seq: int
    thread_key: int
    create_time_ns: int
    revision: int
    embeddable: bool
    content_hash: bytes
    text_hash: bytes
    pending: bool
    sound: bool = True


_ON_RECORD = (
    "SELECT c.rowid, m.seq, m.thread_key, m.create_time_ns, m.revision, m.embeddable,"
    " m.content_hash, m.text_hash, EXISTS (SELECT 1 FROM pending p WHERE p.seq = m.seq),"
    " m.role, CAST(m.group_id AS BLOB), CAST(coalesce(m.metadata, '') AS BLOB), m.encoded,"
    " m.checksum FROM carray(?2) c CROSS JOIN messages m"
    " ON m.resource_key = ?1 AND m.id = CAST(c.value AS TEXT)"
)


@dataclass(slots=True)
class _Plan:
    """What one id of the call comes to.

    Attributes:
        before, after: the row.
        draft: the one that won.
        analysed: the analysis of the row after; None where it has nothing to embed.
    """

    before: _Row | None
    after: _Row
    draft: MessageDraft
    analysed: bytes | None
    replaced_text: str | None = None

    @property
    def keeps_vectors(self) -> bool:
        """The text to embed is the same before and after."""
        return (
            self.before is not None
            and self.before.embeddable
            and self.after.embeddable
            and self.before.text_hash == self.after.text_hash
        )


class Append:
    """One call of `MessageStore.append`: an operation for the writer thread.

    Drafts are taken one after another, so that an id given twice is first new and then replaced;
    only what each id comes to in the end is written.
    """

    def __init__(
        self,
        resource_id: str,
        drafts: Sequence[PreparedDraft],
        now_ns: int,
        codec: MessageCodec,
    ) -> None:
        """`now_ns` is the create_time of new rows whose draft has none."""
        self._resource_id = resource_id
        self._drafts = drafts
        self._now_ns = now_ns
        self._codec = codec

    def __call__(self, connection: apsw.Connection, revision: int) -> Change[list[AppendOutcome]]:
        """See commit.Operation. Raises AnalysisLackingError."""
        step = _AppendStep(connection, self._resource_id, revision, self._now_ns, self._codec)
        step.read([each.draft.id for each in self._drafts])
        statuses = list(map(step.take, self._drafts))
        analyses = AnalysisChanges()
        notices = step.write(analyses)
        plans = [step.plans[each.draft.id] for each in self._drafts]
        outcomes = [
            AppendOutcome(
                plan.after.seq,
                plan.after.revision,
                status,
                plan.after.pending,
                plan.replaced_text,
            )
            for plan, status in zip(plans, statuses, strict=True)
        ]
        changed = any(status is not Status.UNCHANGED for status in statuses)
        return Change(
            outcomes,
            changed=changed,
            notices=notices.notices(self._resource_id),
            lexical_notices=step.write_analyses(analyses),
            resources=(self._resource_id,) if changed else (),
        )


class _AppendStep:
    """An append inside its transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        resource_id: str,
        revision: int,
        now_ns: int,
        codec: MessageCodec,
    ) -> None:
        self.plans: dict[str, _Plan] = {}
        self._on_record: dict[str, _Row] = {}
        self._codec = codec
        self._connection = connection
        self._resource_id = resource_id
        self._revision = revision
        self._now_ns = now_ns
        self._resource_key = keys.resource_key(connection, resource_id)
        self._owner = resource_id.encode()
        self._thread_keys: dict[str, int] = {}
        self._thread_names: dict[int, bytes | None] = {}
        self._last_seq = int(
            connection.execute(
                "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0)"
            ).get
        )

    def read(self, ids: Sequence[str]) -> None:
        """Look up the rows that these ids have now."""
        if self._resource_key is not None:
            found = self._connection.execute(_ON_RECORD, (self._resource_key, keys.id_array(ids)))
            rows = cast("Iterator[tuple[Any, ...]]", found)
            self._on_record = {
                ids[(at := int(row[0]) - 1)]: _Row._make((*row[1:9], self._is_sound(row, ids[at])))
                for row in rows
            }

    def _is_sound(self, row: tuple[Any, ...], message_id: str) -> bool:
        """Whether a row of _ON_RECORD matches its checksum.

        This runs for every message that is given again, and costs about a tenth of all its work.
        """
        _, seq, thread_key, time_ns, revision, embeddable = row[:6]
        role, group, metadata, encoded, checksum = row[9:]
        thread = self._thread_names.get(thread_key)
        if thread is None:
            thread = self._thread_names[thread_key] = keys.thread_name(self._connection, thread_key)
        if thread is None or self._resource_key is None:
            return False
        numbers = (seq, self._resource_key, thread_key, time_ns, revision, role, embeddable)
        names = (self._owner, thread, message_id.encode(), group, metadata)
        try:
            return bool(checksum == message_checksum(numbers, names, encoded))
        except (struct.error, TypeError):  # a number that no row can hold
            return False

    def take(self, prepared: PreparedDraft) -> Status:
        """Decide what a draft does; makes its thread where it will be written."""
        draft, content, analysed = prepared.draft, prepared.content, prepared.analysed
        plan = self.plans.get(draft.id)
        before = self._on_record.get(draft.id) if plan is None else plan.before
        row = before if plan is None else plan.after
        if row is None:
            status = Status.INDEXED
        elif row.sound and is_on_record(draft, content, (row.content_hash, row.create_time_ns)):
            status = Status.UNCHANGED
        else:
            status = Status.REPLACED
        if row is None or status is not Status.UNCHANGED:
            if prepared.is_left_out:
                raise AnalysisLackingError
            row = self._row_for(draft, row, content)
        elif plan is not None:
            analysed = plan.analysed
        plan = self.plans[draft.id] = _Plan(before, row, draft, analysed)
        if plan.keeps_vectors and before is not None and not before.pending:
            plan.after = row._replace(pending=False)
        return status

    def write(self, analyses: AnalysisChanges) -> VectorNotices:
        """Write what the ids came to, and say what it does to their analyses."""
        told = VectorNotices()
        written = [plan for plan in self.plans.values() if plan.after.revision == self._revision]
        for plan in written:
            if plan.before is None:
                self._insert(plan)
            else:
                self._update(plan, plan.before, told)
            self._set_pending(plan.after)
            self._note_analysis(plan, analyses)
        left = {plan.before.thread_key for plan in written if plan.before is not None}
        left.update(self._thread_keys.values())
        left.difference_update(plan.after.thread_key for plan in written)
        if left:
            keys.drop_empty_threads(self._connection, sorted(left))
        return told

    def _row_for(self, draft: MessageDraft, row: _Row | None, content: bytes) -> _Row:
        if self._resource_key is None:
            self._resource_key = keys.resource_key_made(self._connection, self._resource_id)
        thread_key = self._thread_keys.get(draft.thread_id)
        if thread_key is None:
            thread_key = keys.thread_key_made(self._connection, self._resource_key, draft.thread_id)
            self._thread_keys[draft.thread_id] = thread_key
        if row is None:
            self._last_seq += 1
        time_ns = draft.create_time_ns
        if time_ns is None:
            time_ns = self._now_ns if row is None else row.create_time_ns
        return _Row(
            seq=self._last_seq if row is None else row.seq,
            thread_key=thread_key,
            create_time_ns=time_ns,
            revision=self._revision,
            embeddable=draft.embeddable,
            content_hash=content,
            text_hash=text_hash(draft.text),
            pending=draft.embeddable,
        )

    def _insert(self, plan: _Plan) -> None:
        self._connection.execute(
            "INSERT INTO messages(thread_key, role, create_time_ns, revision, embeddable, checksum,"
            " content_hash, text_hash, id, group_id, metadata, encoded, resource_key, seq)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self._bindings(plan),
        )

    def _text_of(self, seq: int) -> str | None:
        """The text on record; None where it cannot be read."""
        row = self._connection.execute("SELECT encoded FROM messages WHERE seq = ?", (seq,))
        try:
            return self._codec.decode(row.get).text
        except CorruptDataError:
            return None

    def _update(self, plan: _Plan, before: _Row, told: VectorNotices) -> None:
        if before.embeddable and not plan.keeps_vectors:
            plan.replaced_text = self._text_of(before.seq)
        self._connection.execute(
            "UPDATE messages SET thread_key = ?, role = ?, create_time_ns = ?, revision = ?,"
            " embeddable = ?, checksum = ?, content_hash = ?, text_hash = ?, id = ?, group_id = ?,"
            " metadata = ?, encoded = ? WHERE resource_key = ? AND seq = ?",
            self._bindings(plan),
        )
        after, resource_key = plan.after, self._resource_key
        assert resource_key is not None
        if plan.keeps_vectors:
            columns = (after.thread_key, after.create_time_ns, int(plan.draft.role), after.revision)
            carried = carry_vectors(self._connection, resource_key, after.seq, columns)
            if carried is not None:
                told.put(carried)
                return
            plan.after = after._replace(pending=True)
        delete_vectors(self._connection, resource_key, [after.seq])
        told.removed(before.seq)

    def _set_pending(self, row: _Row) -> None:
        if row.pending:
            self._connection.execute(
                "INSERT INTO pending(seq, resource_key) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (row.seq, self._resource_key),
            )
        else:
            self._connection.execute("DELETE FROM pending WHERE seq = ?", (row.seq,))

    def _note_analysis(self, plan: _Plan, analyses: AnalysisChanges) -> None:
        row = plan.after
        assert self._resource_key is not None
        if row.embeddable and plan.analysed is not None:
            analyses.put(
                (
                    row.seq,
                    self._resource_key,
                    row.thread_key,
                    row.create_time_ns,
                    int(plan.draft.role),
                    row.revision,
                ),
                plan.analysed,
            )
        elif plan.before is not None and plan.before.embeddable:
            analyses.removed(row.seq)

    def write_analyses(self, analyses: AnalysisChanges) -> tuple[LexicalNotice, ...]:
        """Write what became of the analyses; returns what the lexical index is told."""
        if self._resource_key is None:
            return ()
        return analyses.write(self._connection, self._resource_id, self._resource_key)

    def _bindings(self, plan: _Plan) -> tuple[object, ...]:
        row, draft = plan.after, plan.draft
        assert self._resource_key is not None
        encoded = self._codec.encode(self._resource_id, draft, row.create_time_ns)
        checksum = message_checksum(
            (
                row.seq,
                self._resource_key,
                row.thread_key,
                row.create_time_ns,
                row.revision,
                int(draft.role),
                int(row.embeddable),
            ),
            (
                self._resource_id.encode(),
                draft.thread_id.encode(),
                draft.id.encode(),
                draft.group_id.encode(),
                draft.metadata_json.encode(),
            ),
            encoded,
        )
        return (
            row.thread_key,
            int(draft.role),
            row.create_time_ns,
            row.revision,
            int(row.embeddable),
            checksum,
            row.content_hash,
            row.text_hash,
            draft.id,
            draft.group_id,
            draft.metadata_json or None,
            encoded,
            self._resource_key,
            row.seq,
        )
