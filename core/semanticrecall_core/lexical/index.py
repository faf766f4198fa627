"""The lexical index: words inside each resource, in memory, made from the record.

Nothing of it is on disk but the analysed text that the record keeps beside each message, so it is
as durable as the message and gone with it. Which partitions are in memory: `partitions.resident`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.partitions.resident import ResidentPartitions
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery, LexicalRows

from .matching import ScoredView
from .names import names_in
from .partition import Partition, Tuning
from .scoring import Scoring

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn

BYTES_MAX = 2**30


class InMemoryLexicalIndex:
    """Implements `LexicalIndex`. Thread-safe.

    The LexicalListener methods are for one thread at a time (the record's writer).
    """

    def __init__(
        self,
        loader: Callable[[str], LexicalRows],
        *,
        bytes_max: int = BYTES_MAX,
        scoring: Scoring | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Make an empty index.

        Args:
            loader: reads all messages of a resource from the record.
            bytes_max: memory beyond which the least recently used partitions are forgotten.
            scoring: constants of the scores; None is the chosen ones.
            tuning: sizes; None is the measured ones.

        Raises:
            InvalidArgumentError: bytes_max below 1.
        """
        if bytes_max < 1:
            raise InvalidArgumentError.of("lexical_bytes_max", "must be positive")
        self._loader = loader
        self._scoring = scoring or Scoring()
        self._tuning = tuning or Tuning()
        self._partitions = ResidentPartitions(self._read, bytes_max)

    def match(self, resource_id: str, query: LexicalQuery) -> LexicalMatch:
        """Candidates with their scores. No match at all is an answer of no rows.

        Raises:
            InvalidArgumentError: no text, or top_k below 0.
            SemanticRecallError: what the loader raises.
        """
        return self._scored(resource_id, query.texts, query.top_k).match(query)

    def scored(self, resource_id: str, texts: tuple[str, ...], top_k: int) -> ScoredView:
        """What takes long of `match`, and can be done before the rest of the query is known.

        Raises: as `match`.
        """
        return self._scored(resource_id, texts, top_k).with_best(top_k)

    def names_in(self, resource_id: str, text: str) -> tuple[str, ...]:
        """The names of people of this partition that the text has, as it spells them.

        Raises:
            SemanticRecallError: what the loader raises.
        """
        return names_in(self._partitions.get(resource_id).view, text)

    def partition_seqs(self, resource_id: str) -> tuple[IntColumn, IntColumn]:
        """Seqs and revisions of what the partition holds now, by seq; for Verify."""
        return self._partitions.get(resource_id).view.seqs_and_revisions()

    def resources_loaded(self) -> list[str]:
        """The resources whose partitions are in memory."""
        return self._partitions.names()

    def partitions_loaded(self) -> int:
        """How many partitions are in memory."""
        return self._partitions.count()

    def memory_bytes(self) -> int:
        """Bytes of all partitions in memory: postings, columns and a fixed overhead each."""
        return self._partitions.nbytes()

    def reload(self, resource_id: str) -> bool:
        """Read a loaded partition anew while the present one serves; False where it was not.

        Raises:
            SemanticRecallError: what the loader raises; the partition stays as it is.
        """
        return self._partitions.reload(resource_id)

    def texts_put(self, resource_id: str, rows: LexicalRows) -> None:
        """These messages are new, or replace what was known of them."""
        self._partitions.change(resource_id, lambda partition: partition.put(rows))

    def texts_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """These messages have nothing to search for now."""
        gone = np.unique(seqs)
        self._partitions.change(resource_id, lambda partition: partition.remove(gone))

    def resource_dropped(self, resource_id: str) -> None:
        """Forget the partition; whoever asks next reads the record."""
        self._partitions.drop(resource_id)

    def _scored(self, resource_id: str, texts: tuple[str, ...], top_k: int) -> ScoredView:
        if not texts:
            raise InvalidArgumentError.of("texts", "must not be empty")
        if top_k < 0:
            raise InvalidArgumentError.of("top_k", "must not be negative")
        view = self._partitions.get(resource_id).view
        return ScoredView(view, texts, self._scoring, self._tuning)

    def _read(self, resource_id: str) -> Partition:
        return Partition(self._tuning, self._loader(resource_id))
