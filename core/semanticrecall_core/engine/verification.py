"""Comparing everything that is kept of the messages, and saying what does not agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from semanticrecall_core.types.lexical import LexicalIndex
from semanticrecall_core.types.ports import MessageStore, VectorIndex
from semanticrecall_core.types.values import CallBudget, Finding, PartitionRows


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a Verify looked at; always its last event."""

    messages: int
    vectors: int
    findings: int


class Verification:
    """The use case Verify. Thread-safe."""

    def __init__(
        self, store: MessageStore, index: VectorIndex, lexical: LexicalIndex | None
    ) -> None:
        """What is compared: the record with itself, and with what is searched."""
        self._store = store
        self._index = index
        self._lexical = lexical

    def __call__(
        self, resource_id: str | None, budget: CallBudget | None
    ) -> Iterator[Finding | VerifyReport]:
        """Findings as they are met, then the report. See Engine.verify."""
        findings = 0
        for finding in self._store.verify(resource_id, budget):
            findings += 1
            yield finding
        if resource_id is not None:
            if budget is not None:
                budget.check()
            for finding in self._compare_partition(resource_id):
                findings += 1
                yield finding
        stats = self._store.stats(resource_id)
        yield VerifyReport(stats.messages, stats.vectors, findings)

    def _compare_partition(self, resource_id: str) -> Iterator[Finding]:
        """Differences between what is on record and what Recall searches: vectors and words.

        Rows that change while this looks are compared once more, and reported only if they still
        differ.
        """
        for kind, differing_seqs in (
            ("PARTITION_DIFFERS", self._differing_vectors),
            ("WORDS_DIFFER", self._differing_words),
        ):
            differing = differing_seqs(resource_id)
            if differing:
                differing &= differing_seqs(resource_id)
            for seq in sorted(differing):
                yield Finding(kind, resource_id, "", f"row {seq}")

    def _differing_vectors(self, resource_id: str) -> set[int]:
        def by_seq(rows: PartitionRows) -> dict[int, bytes]:
            vectors: dict[int, bytes] = {}
            for seq, vector in zip(rows.seqs.tolist(), rows.vectors, strict=True):
                vectors[seq] = vectors.get(seq, b"") + np.ascontiguousarray(vector).tobytes()
            return vectors

        return _differing(
            by_seq(self._store.load_partition(resource_id)),
            by_seq(self._index.partition_rows(resource_id)),
        )

    def _differing_words(self, resource_id: str) -> set[int]:
        if self._lexical is None:
            return set()
        record = self._store.load_lexical(resource_id)
        seqs, revisions = self._lexical.partition_seqs(resource_id)
        return _differing(
            dict(zip(record.seqs.tolist(), record.revisions.tolist(), strict=True)),
            dict(zip(seqs.tolist(), revisions.tolist(), strict=True)),
        )


def _differing(record: Mapping[int, object], searchable: Mapping[int, object]) -> set[int]:
    return {
        seq for seq in record.keys() | searchable.keys() if record.get(seq) != searchable.get(seq)
    }
