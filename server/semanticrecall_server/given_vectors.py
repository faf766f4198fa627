"""Vectors of messages on the wire: read from an Index request, written to an export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.engine import Engine
from semanticrecall_core.types.errors import FieldViolation, InvalidArgumentError
from semanticrecall_core.types.given_vectors import GivenVectors, VectorForm
from semanticrecall_core.types.values import StoredMessage

from .checks import Violations
from .convert import IndexBatch

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows

VECTORS_MAX = 256
UNIT_TOLERANCE = 1e-3
"""How far a length may be from 1."""

_FLOAT_BYTES = 4
_TRIES = 3


def given_vectors(
    request: recall_pb2.IndexRequest, batch: IndexBatch, form: VectorForm
) -> tuple[IndexBatch, GivenVectors]:
    """What of a request's vectors can be used, and the batch without the messages of bad ones.

    Vectors of another model are left aside; so are those of an id that the request has twice, since
    it is not known which of the texts they are of.

    Raises:
        InvalidArgumentError: one names no message of the request, or a message has two.
    """
    counts = Counter(message.id for message in request.messages)
    _require_messages(request, counts)
    by_id: dict[str, FloatRows] = {}
    bad: dict[str, InvalidArgumentError] = {}
    for position, given in enumerate(request.vectors):
        if given.index_identity != form.index_identity or counts[given.message_id] > 1:
            continue
        vectors, fault = _read(given.data, form.dimensions)
        if vectors is None:
            field = f"vectors[{position}].data"
            bad[given.message_id] = InvalidArgumentError((FieldViolation(field, fault),))
        else:
            by_id[given.message_id] = vectors
    return _without(batch, bad), GivenVectors(form.generation, by_id)


def _require_messages(request: recall_pb2.IndexRequest, counts: Counter[str]) -> None:
    v = Violations()
    seen: set[str] = set()
    for position, given in enumerate(request.vectors):
        field = f"vectors[{position}].message_id"
        if not counts[given.message_id]:
            v.add(field, "names no message of this request")
        elif given.message_id in seen:
            v.add(field, "has vectors already")
        seen.add(given.message_id)
    v.raise_if_found()


def _read(data: bytes, dimensions: int) -> tuple[FloatRows | None, str]:
    """The vectors, or what is wrong with them."""
    size = _FLOAT_BYTES * dimensions
    if not data or len(data) % size or len(data) > VECTORS_MAX * size:
        return None, (
            f"must be 1 to {VECTORS_MAX} vectors of {dimensions} float32 numbers;"
            f" has {len(data)} bytes"
        )
    vectors = np.frombuffer(data, "<f4").astype(np.float32).reshape(-1, dimensions)
    if not np.isfinite(vectors).all():
        return None, "must be finite numbers"
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    if (np.abs(lengths - 1.0) > UNIT_TOLERANCE).any():
        return None, "must be vectors of length 1"
    return vectors, ""


def _without(batch: IndexBatch, bad: dict[str, InvalidArgumentError]) -> IndexBatch:
    """The batch with these messages rejected, too."""
    if not bad:
        return batch
    pairs = list(zip(batch.drafts, batch.positions, strict=True))
    kept = [pair for pair in pairs if pair[0].id not in bad]
    rejected = {position: bad[draft.id] for draft, position in pairs if draft.id in bad}
    return replace(
        batch,
        drafts=tuple(draft for draft, _ in kept),
        positions=tuple(position for _, position in kept),
        rejected={**batch.rejected, **rejected},
    )


class ExportedVectors:
    """Reads the vectors of exported messages."""

    def __init__(self, engine: Engine, resource_id: str) -> None:
        self._vectors = engine.vectors
        self._resource_id = resource_id

    def of(self, messages: Sequence[StoredMessage]) -> dict[int, types_pb2.MessageVectors]:
        """Those that are there, by seq: each of the message as it is given."""
        revisions = {message.seq: message.revision for message in messages}
        ids = {message.seq: message.id for message in messages}
        for _ in range(_TRIES):
            form = self._vectors.form
            rows = self._vectors.of(self._resource_id, sorted(revisions))
            if self._vectors.form != form:  # another model came to serve meanwhile
                continue
            found: dict[int, types_pb2.MessageVectors] = {}
            for seq, revision, vector in zip(
                rows.seqs.tolist(), rows.revisions.tolist(), rows.vectors, strict=True
            ):
                if revisions[seq] == revision:
                    given = found.setdefault(
                        seq,
                        types_pb2.MessageVectors(
                            message_id=ids[seq], index_identity=form.index_identity
                        ),
                    )
                    given.data += np.ascontiguousarray(vector, "<f4").tobytes()
            return found
        return {}
