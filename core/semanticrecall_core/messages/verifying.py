"""Reading everything and saying what does not agree. Changes nothing.

Kinds of findings:
  ROW_CORRUPT        a message does not match its checksum or its hashes.
  VECTOR_CORRUPT     a vector does not match its checksum.
  VECTOR_NOT_FINITE  a vector holds a NaN or an infinity.
  VECTOR_ORPHAN      a vector of no message.
  VECTOR_STALE       a vector made from another text, or with another revision, thread, time or
                     role than its message.
  VECTOR_MISSING     an embeddable message has no current vector and is not waiting for one.
  ANALYSIS_CORRUPT   an analysis does not match its checksum.
  ANALYSIS_ORPHAN    an analysis of no message, or of one that has nothing to embed.
  ANALYSIS_STALE     an analysis with another revision, thread, time or role than its message.
  DATABASE_CORRUPT   SQLite's own check found damage (whole store only).

A message without an analysis, or with one of an older analyser, is not a finding: it is analysed
anew when its resource is next read, as all are after an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import apsw
import numpy as np

from ..types.errors import CorruptDataError
from ..types.stored_message import DecodeMessage
from ..types.values import Finding
from .analysis_rows import ANALYSIS_COLUMNS, ANALYSIS_COLUMNS_COUNT, AnalysisColumns
from .rows import (
    MESSAGE_COLUMNS,
    MESSAGE_COLUMNS_COUNT,
    MESSAGE_EMBEDDABLE,
    MESSAGE_ID,
    MESSAGES,
    content_hash,
    draft_of,
    shown,
    stored_message,
    text_hash,
)
from .vector_rows import VECTOR_COLUMNS, VectorColumns

_BATCH_ROWS = 256
_SQLITE_FINDINGS_MAX = 100

ReadTransaction = Callable[[], AbstractContextManager[apsw.Connection]]


def verify(
    read: ReadTransaction, resource_id: str | None, generation_key: int, decode: DecodeMessage
) -> Iterator[Finding]:
    """Findings as they are met; each batch of rows is one short read transaction."""
    if resource_id is None:
        yield from _database(read)
    for batch in _batches(read, _MESSAGES, resource_id, (generation_key,)):
        for row in batch:
            yield from _message(row, decode)
    for batch in _batches(read, _VECTORS, resource_id, ()):
        yield from _vectors(batch)
    yield from _analyses(read, resource_id)


_MESSAGES = (
    f"SELECT {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB), m.content_hash, m.text_hash,"
    " EXISTS (SELECT 1 FROM vectors v WHERE v.resource_key = m.resource_key AND v.seq = m.seq"
    "  AND v.generation_key = ?3),"
    " EXISTS (SELECT 1 FROM pending p WHERE p.seq = m.seq), m.seq"
    f" FROM {MESSAGES} LEFT JOIN resources r ON r.resource_key = m.resource_key"
    " WHERE m.seq > ?1 AND (?2 IS NULL OR r.resource_id = ?2) ORDER BY m.seq LIMIT 256"
)
_VECTORS = (
    f"SELECT {VECTOR_COLUMNS}, CAST(m.id AS BLOB), m.revision, m.thread_key, m.create_time_ns,"
    " m.role, m.text_hash = v.text_hash, CAST(r.resource_id AS BLOB), v.vector_key"
    " FROM vectors v LEFT JOIN messages m ON m.seq = v.seq AND m.resource_key = v.resource_key"
    " LEFT JOIN resources r ON r.resource_key = v.resource_key"
    " WHERE v.vector_key > ?1 AND (?2 IS NULL OR r.resource_id = ?2)"
    " ORDER BY v.vector_key LIMIT 256"
)
_ANALYSES = (
    f"SELECT {ANALYSIS_COLUMNS}, CAST(m.id AS BLOB), m.embeddable, m.revision, m.thread_key,"
    " m.create_time_ns, m.role, CAST(r.resource_id AS BLOB)"
    " FROM analyses a LEFT JOIN messages m ON m.seq = a.seq AND m.resource_key = a.resource_key"
    " LEFT JOIN resources r ON r.resource_key = a.resource_key"
    " WHERE (a.resource_key, a.seq) > (?1, ?2) AND (?3 IS NULL OR r.resource_id = ?3)"
    " ORDER BY a.resource_key, a.seq LIMIT 256"
)


def _batches(
    read: ReadTransaction, text: str, resource_id: str | None, more: tuple[int, ...]
) -> Iterator[list[tuple[Any, ...]]]:
    """Rows in order of their last column, a batch a transaction."""
    last = 0
    while True:
        with read() as connection:
            rows = connection.execute(text, (last, resource_id, *more)).fetchall()
        if rows:
            yield rows
        if len(rows) < _BATCH_ROWS:
            return
        last = int(rows[-1][-1] or 0)


def _database(read: ReadTransaction) -> Iterator[Finding]:
    with read() as connection:
        rows = connection.execute(f"PRAGMA integrity_check({_SQLITE_FINDINGS_MAX})").fetchall()
    for (detail,) in rows:
        if detail != "ok":
            yield Finding("DATABASE_CORRUPT", "", "", str(detail))


def _message(row: tuple[Any, ...], decode: DecodeMessage) -> Iterator[Finding]:
    seq, embeddable = row[0], row[MESSAGE_EMBEDDABLE]
    resource_id, content, text, has_vector, is_pending = row[MESSAGE_COLUMNS_COUNT:][:5]
    where = (shown(resource_id), shown(row[MESSAGE_ID]))
    try:
        draft = draft_of(stored_message(row, where[0], decode))
    except CorruptDataError:
        yield Finding("ROW_CORRUPT", *where, f"row {seq} does not match its checksum")
        return
    if content_hash(draft) != content or text_hash(draft.text) != text:
        yield Finding("ROW_CORRUPT", *where, f"row {seq} does not match its hashes")
    if embeddable and not has_vector and not is_pending:
        yield Finding("VECTOR_MISSING", *where, f"row {seq} has no vector and waits for none")


def _vectors(rows: list[tuple[Any, ...]]) -> Iterator[Finding]:
    damaged = set(VectorColumns.of([row[:10] for row in rows]).corrupt_seqs)
    for row in rows:
        seq, chunk, thread, time_ns, role, revision = row[0], row[1], *row[3:7]
        message_id, m_revision, m_thread, m_time_ns, m_role, same_text, resource_id = row[10:17]
        where = (shown(resource_id), shown(message_id))
        name = f"chunk {chunk} of row {seq}"
        if seq in damaged and VectorColumns.of([row[:10]]).corrupt_seqs:
            yield Finding("VECTOR_CORRUPT", *where, f"{name} does not match its checksum")
            continue
        if not np.isfinite(np.frombuffer(row[9], "<f4")).all():
            yield Finding("VECTOR_NOT_FINITE", *where, f"{name} holds no finite numbers")
        if message_id is None:
            yield Finding("VECTOR_ORPHAN", *where, f"{name} has no message")
        elif not same_text or (revision, thread, time_ns, role) != (
            m_revision,
            m_thread,
            m_time_ns,
            m_role,
        ):
            yield Finding("VECTOR_STALE", *where, f"{name} is not of its message as it is now")


def _analyses(read: ReadTransaction, resource_id: str | None) -> Iterator[Finding]:
    """As `_batches` and what follows, by the two columns of the key."""
    last = (-(1 << 63), 0)
    while True:
        with read() as connection:
            rows: list[tuple[Any, ...]]
            rows = connection.execute(_ANALYSES, (*last, resource_id)).fetchall()
        for row in rows:
            yield from _analysis(row)
        if len(rows) < _BATCH_ROWS:
            return
        last = (int(rows[-1][1]), int(rows[-1][0]))


def _analysis(row: tuple[Any, ...]) -> Iterator[Finding]:
    seq, _, thread, time_ns, role, revision = row[:6]
    message_id, embeddable, *now, owner = row[ANALYSIS_COLUMNS_COUNT:]
    where = (shown(owner), shown(message_id))
    name = f"the analysis of row {seq}"
    if AnalysisColumns.of([row[:ANALYSIS_COLUMNS_COUNT]]).corrupt_seqs:
        yield Finding("ANALYSIS_CORRUPT", *where, f"{name} does not match its checksum")
    elif not embeddable:
        yield Finding("ANALYSIS_ORPHAN", *where, f"{name} has no message to embed")
    elif (revision, thread, time_ns, role) != tuple(now):
        yield Finding("ANALYSIS_STALE", *where, f"{name} is not of its message as it is now")
