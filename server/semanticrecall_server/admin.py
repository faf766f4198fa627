"""AdminService: state and care of the store, on plain threads.

Streams are iterators of encoded answers in batches, so that a slow reader holds no thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from importlib import metadata

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.engine import Engine
from semanticrecall_core.types.values import CallBudget, ListQuery

from . import answers, verifying_calls
from .checks import Violations
from .given_vectors import ExportedVectors
from .purging_calls import PurgingCalls
from .reembedding_calls import ReembeddingCalls
from .saving_calls import SavingCalls
from .service import Call, require_resource

EXPORT_BATCH_BYTES = 1024 * 1024
"""A batch ends here: it is kept in memory for as long as its reader takes."""

EXPORT_READ_FIRST = 4
EXPORT_READ_MAX = 32
"""Messages read at once: so few at first, then as many as fit a batch."""

DISTRIBUTION = "semanticrecall-sidecar"


class AdminService:
    """The use cases of AdminService. Thread-safe."""

    def __init__(self, engine: Engine, *, encrypted: bool = False) -> None:
        """`encrypted`: whether the files of the data directory are."""
        self._engine = engine
        self._encrypted = encrypted
        self.saving = SavingCalls(engine)
        self.purging = PurgingCalls(engine)
        self.reembedding = ReembeddingCalls(engine)
        self._since = time.monotonic()
        self._version = server_version()

    def get_stats(
        self, request: admin_pb2.GetStatsRequest, call: Call
    ) -> admin_pb2.GetStatsResponse:
        """Counts, sizes and identity."""
        v = Violations()
        v.optional_identifier("resource_id", request.resource_id)
        v.raise_if_found()
        call.budget.check()
        engine = self._engine
        stats = engine.stats(request.resource_id or None)
        response = admin_pb2.GetStatsResponse(
            messages=stats.messages,
            vectors=stats.vectors,
            pending=stats.pending,
            threads=stats.threads,
            index_identity=engine.index_identity,
            device=engine.device,
            server_version=self._version,
            uptime_seconds=time.monotonic() - self._since,
        )
        self.reembedding.fill_stats(response)
        if not request.resource_id:
            cache = engine.cache_stats()
            response.resources = stats.resources
            response.disk_bytes = stats.disk_bytes
            response.encrypted = self._encrypted
            response.damaged = things_damaged(engine.damaged())
            response.resident_bytes = resident_bytes()
            self.purging.fill_stats(response)
            self.reembedding.fill_counts(response)
            response.partitions_loaded = engine.partitions_loaded()
            response.lexical_partitions_loaded = engine.lexical_partitions_loaded()
            response.lexical_bytes = engine.lexical_bytes()
            snapshots = engine.snapshot_stats()
            if snapshots is not None:
                response.snapshots.files = snapshots.files
                response.snapshots.bytes = snapshots.bytes
                response.snapshots.partitions = snapshots.partitions
                response.snapshots.rows = snapshots.rows
                response.snapshots.damaged = snapshots.damaged
                response.snapshots.failures = engine.snapshot_failures()
            response.cache.entries = cache.entries
            response.cache.bytes = cache.bytes
            response.cache.hits = cache.hits
            response.cache.misses = cache.misses
            response.cache.evictions = cache.evictions
            response.cache.hit_ratio = cache.hit_ratio
            response.cache.disk_entries = cache.disk_entries
            response.cache.disk_bytes = cache.disk_bytes
            response.cache.disk_hits = cache.disk_hits
            response.cache.disk_evictions = cache.disk_evictions
            response.cache.disk_damaged = cache.disk_damaged
        return response

    def export(
        self, request: admin_pb2.ExportRequest, budget: CallBudget
    ) -> Generator[list[bytes]]:
        """Every message of one resource by (create_time, arrival), in batches."""
        require_resource(request.resource_id)
        query: ListQuery | None = ListQuery(request.resource_id, None, EXPORT_READ_FIRST)
        vectors = (
            ExportedVectors(self._engine, request.resource_id) if request.with_vectors else None
        )
        while query is not None:
            budget.check()
            batch, query = self._export_batch(query, vectors)
            yield batch

    def _export_batch(
        self, query: ListQuery, vectors: ExportedVectors | None
    ) -> tuple[list[bytes], ListQuery | None]:
        """Encoded messages up to about EXPORT_BATCH_BYTES, and where to go on, None at the end.

        Messages that were read and did not fit are read again: nothing but the batch is kept.
        """
        rows = self._engine.list_messages(query)
        with_vectors = {} if vectors is None else vectors.of(rows)
        batch: list[bytes] = []
        size = 0
        for row in rows:
            response = admin_pb2.ExportResponse(vectors=with_vectors.get(row.seq))
            answers.fill_message(response.message, row)
            batch.append(response.SerializeToString())
            size += len(batch[-1])
            if size >= EXPORT_BATCH_BYTES:
                break
        if len(batch) == len(rows) < query.limit:
            return batch, None
        last = rows[len(batch) - 1]
        fitting = EXPORT_BATCH_BYTES * len(batch) // size
        return batch, replace(
            query,
            limit=max(1, min(fitting, EXPORT_READ_MAX)),
            after=(last.create_time_ns, last.seq),
        )

    def verify(
        self, request: admin_pb2.VerifyRequest, budget: CallBudget
    ) -> Generator[list[bytes]]:
        """Findings and progress, then the summary."""
        return verifying_calls.verify(self._engine, request, budget)


def things_damaged(counts: Mapping[str, int]) -> int:
    """Of what an engine counts by kind: how many things, not how often they were met.

    Which page a read met is not known: however many reads met one, pages are 1.
    """
    return sum(min(count, 1) if kind == "page" else count for kind, count in counts.items())


def resident_bytes() -> int:
    """Resident memory of this process (Linux: second number of /proc/self/statm, in pages)."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def server_version() -> str:
    """Version of the installed distribution."""
    return metadata.version(DISTRIBUTION)
