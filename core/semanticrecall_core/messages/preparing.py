"""What an append does with its drafts before the writer thread has them: hashes and analyses.

Analysing a text takes about as long as all else that an append does for it, and most messages of a
history that is given again are on record as they are. So where many are given, it is looked up
first which are; those are not analysed. What was looked up may be otherwise by the time of the
transaction. Where that lets an analysis lack, the append gives up (`AnalysisLackingError`), and
its caller tries again with all analyses made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import apsw

from ..types.lexical import TextAnalyser
from ..types.values import MessageDraft
from . import keys
from .rows import content_hash

LOOKED_UP_FROM = 8
"""How many drafts of a call make it worth while to look first; a turn has fewer."""

_ROW_OVERHEAD_BYTES = 512
_CONTENTS = (
    "SELECT c.rowid, m.content_hash, m.create_time_ns FROM carray(?2) c CROSS JOIN messages m"
    " ON m.resource_key = (SELECT resource_key FROM resources WHERE resource_id = ?1)"
    " AND m.id = CAST(c.value AS TEXT)"
)


StoredContent = tuple[bytes, int]
"""`content_hash` and `create_time_ns` of a row: what tells whether a draft changes it."""


class AnalysisLackingError(Exception):
    """A message is written that was not analysed because it seemed to be on record as it is."""


def is_on_record(draft: MessageDraft, content: bytes, row: StoredContent) -> bool:
    """Whether a draft of this content hash is a row as it is; a missing time equals any."""
    row_content, row_time_ns = row
    return content == row_content and draft.create_time_ns in (None, row_time_ns)


@dataclass(frozen=True, slots=True)
class PreparedDraft:
    """A draft with what is made of it on the calling thread.

    Attributes:
        content: its hash, rows.py.
        analysed: None where there is nothing to embed, no analyser, or `is_left_out`.
        is_left_out: it was not analysed because it seemed to be on record as it is.
    """

    draft: MessageDraft
    content: bytes
    analysed: bytes | None
    is_left_out: bool


def prepared(
    drafts: Sequence[MessageDraft],
    analyser: TextAnalyser | None,
    on_record: Mapping[str, StoredContent],
) -> list[PreparedDraft]:
    """Hash and analyse drafts, but for those that equal what is on record under their id."""

    def of(draft: MessageDraft) -> PreparedDraft:
        content = content_hash(draft)
        if analyser is None or not draft.embeddable:
            return PreparedDraft(draft, content, None, False)
        row = on_record.get(draft.id)
        if row is not None and is_on_record(draft, content, row):
            return PreparedDraft(draft, content, None, True)
        return PreparedDraft(draft, content, analyser.analyse(draft.text, draft.author), False)

    return list(map(of, drafts))


def contents_of_ids(
    connection: apsw.Connection, resource_id: str, ids: Sequence[str]
) -> dict[str, StoredContent]:
    """What is on record under these ids (at least one)."""
    found = connection.execute(_CONTENTS, (resource_id, keys.id_array(ids)))
    rows = cast("Iterator[tuple[int, bytes, int]]", found)
    return {ids[row - 1]: (content, time_ns) for row, content, time_ns in rows}


def append_bytes(drafts: Sequence[PreparedDraft]) -> int:
    """Roughly what an append writes."""
    return sum(
        _ROW_OVERHEAD_BYTES
        + 2 * len(each.draft.text)
        + len(each.draft.metadata_json)
        + len(each.draft.payload)
        + len(each.analysed or b"")
        for each in drafts
    )
