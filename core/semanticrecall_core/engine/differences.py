"""What is on record and what is searched, compared message by message."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.values import PartitionRows

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn

Difference = tuple[int, bytes | int | None, bytes | int | None]
"""A message's seq, what the record has of it and what is searched; None for nothing."""


def differences(
    record: dict[int, bytes] | dict[int, int],
    searched: dict[int, bytes] | dict[int, int],
    left_out: set[int],
) -> set[Difference]:
    """Where two sides differ, by seq; none of `left_out`."""
    return {
        (seq, record.get(seq), searched.get(seq))
        for seq in (record.keys() | searched.keys()) - left_out
        if record.get(seq) != searched.get(seq)
    }


def digests(rows: PartitionRows) -> dict[int, bytes]:
    """By seq, a digest of all that a search reads of a message."""
    columns = (rows.chunks, rows.thread_keys, rows.times_ns, rows.roles, rows.revisions)
    numbers = np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
    vectors = np.ascontiguousarray(rows.vectors, np.float32)
    found: dict[int, bytes] = {}
    for seq, number, vector in zip(rows.seqs.tolist(), numbers, vectors, strict=True):
        digest = hashlib.blake2b(found.get(seq, b"") + number.tobytes(), digest_size=16)
        digest.update(vector)
        found[seq] = digest.digest()
    return found


def by_seq(seqs: IntColumn, revisions: IntColumn) -> dict[int, int]:
    """Revisions by seq."""
    return dict(zip(seqs.tolist(), revisions.tolist(), strict=True))
