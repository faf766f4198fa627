"""A lexical listener that writes down what it is told, and keeps the partitions it follows."""

from __future__ import annotations

import numpy as np

from semanticrecall_core.types.lexical import LexicalRows
from semanticrecall_core.types.ports import MessageStore

TextRow = tuple[int, int, int, int, int, bytes]


def text_rows(rows: LexicalRows) -> list[TextRow]:
    """(seq, thread_key, time_ns, revision, role, analysed) of each row."""
    columns = (rows.seqs, rows.thread_keys, rows.times_ns, rows.revisions, rows.roles)
    assert [column.dtype for column in columns] == [np.int64] * 4 + [np.uint8]
    lists = [column.tolist() for column in columns]
    return list(zip(*lists, rows.analysed, strict=True))


class RecordedTexts:
    """Calls in order, as plain tuples, and what a resource has if one believes them.

    A resource that was dropped is read from the store again, as an index would.
    """

    def __init__(self, store: MessageStore) -> None:
        self.calls: list[tuple[str, str, tuple[int, ...]]] = []
        self._store = store
        self._partitions: dict[str, dict[int, TextRow]] = {}

    def texts_put(self, resource_id: str, rows: LexicalRows) -> None:
        self.calls.append(("put", resource_id, tuple(rows.seqs.tolist())))
        if resource_id in self._partitions:
            self._partitions[resource_id].update({row[0]: row for row in text_rows(rows)})

    def texts_removed(self, resource_id: str, seqs: np.ndarray) -> None:
        self.calls.append(("removed", resource_id, tuple(seqs.tolist())))
        for seq in seqs.tolist():
            self._partitions.get(resource_id, {}).pop(seq, None)

    def resource_dropped(self, resource_id: str) -> None:
        self.calls.append(("dropped", resource_id, ()))
        self._partitions.pop(resource_id, None)

    def rows(self, resource_id: str) -> list[TextRow]:
        """By seq, as `text_rows` of a load would be."""
        if resource_id not in self._partitions:
            loaded = text_rows(self._store.load_lexical(resource_id))
            self._partitions[resource_id] = {row[0]: row for row in loaded}
        return sorted(self._partitions[resource_id].values())
