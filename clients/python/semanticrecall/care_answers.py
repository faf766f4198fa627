"""What came back from the calls that care for a store: pure functions from answer to value."""

from __future__ import annotations

from . import care_results
from .v1 import admin_pb2
from .wire import message, message_vectors, moment


def stats(wire: admin_pb2.GetStatsResponse) -> care_results.Stats:
    """Counts."""
    cache, snapshots = wire.cache, wire.snapshots
    return care_results.Stats(
        messages=wire.messages,
        vectors=wire.vectors,
        pending=wire.pending,
        threads=wire.threads,
        resources=wire.resources,
        disk_bytes=wire.disk_bytes,
        resident_bytes=wire.resident_bytes,
        partitions_loaded=wire.partitions_loaded,
        cache=care_results.CacheStats(
            entries=cache.entries,
            bytes=cache.bytes,
            hits=cache.hits,
            misses=cache.misses,
            evictions=cache.evictions,
            hit_ratio=cache.hit_ratio,
            disk_entries=cache.disk_entries,
            disk_bytes=cache.disk_bytes,
            disk_hits=cache.disk_hits,
            disk_evictions=cache.disk_evictions,
            disk_damaged=cache.disk_damaged,
        ),
        index_identity=wire.index_identity,
        device=wire.device,
        server_version=wire.server_version,
        uptime_seconds=wire.uptime_seconds,
        snapshots=care_results.SnapshotStats(
            files=snapshots.files,
            bytes=snapshots.bytes,
            partitions=snapshots.partitions,
            rows=snapshots.rows,
            damaged=snapshots.damaged,
            failures=snapshots.failures,
        ),
        lexical_partitions_loaded=wire.lexical_partitions_loaded,
        lexical_bytes=wire.lexical_bytes,
        next_index_identity=wire.next_index_identity,
        next_embedded=wire.next_embedded,
        expired=wire.expired,
        purge_pending=wire.purge_pending,
        damaged=wire.damaged,
        encrypted=wire.encrypted,
    )


def verify_item(
    wire: admin_pb2.VerifyResponse,
) -> care_results.Finding | care_results.VerifyProgress | care_results.VerifySummary:
    """A finding, progress, or the summary."""
    event = wire.WhichOneof("event")
    if event == "finding":
        found = wire.finding
        return care_results.Finding(
            found.kind, found.resource_id, found.message_id, found.detail, found.repaired
        )
    if event == "progress":
        return care_results.VerifyProgress(
            wire.progress.stage, wire.progress.done, wire.progress.total
        )
    end = wire.summary
    return care_results.VerifySummary(
        messages=end.messages,
        vectors=end.vectors,
        findings=end.findings,
        repaired=end.repaired,
        analyses=end.analyses,
        images=end.images,
        snapshots=end.snapshots,
        self_test_recalls=end.self_test_recalls,
        self_test_failures=end.self_test_failures,
        lost=end.lost,
    )


def snapshot(wire: admin_pb2.Snapshot) -> care_results.Snapshot:
    """A snapshot."""
    return care_results.Snapshot(
        name=wire.name,
        create_time=moment(wire.create_time),
        bytes=wire.bytes,
        messages=wire.messages,
        vectors=wire.vectors,
        revision=wire.revision,
        digest=wire.digest,
        index_identity=wire.index_identity,
        server_version=wire.server_version,
        format=wire.format,
        encrypted=wire.encrypted,
        forgotten=wire.forgotten,
    )


def snapshot_list(wire: admin_pb2.ListSnapshotsResponse) -> care_results.SnapshotList:
    """The snapshots, and what else lies beside them."""
    return care_results.SnapshotList.of(map(snapshot, wire.snapshots), wire.left_out)


def restore_result(wire: admin_pb2.RestoreSnapshotResponse) -> care_results.RestoreResult:
    """What was restored."""
    return care_results.RestoreResult(
        wire.messages, wire.vectors, wire.forgotten, wire.without_ledger
    )


def purge_result(wire: admin_pb2.PurgeResponse) -> care_results.PurgeResult:
    """What was purged."""
    return care_results.PurgeResult(
        wire.revision, tuple(wire.snapshots_rewritten), tuple(wire.snapshots_holding)
    )


def reembed_progress(wire: admin_pb2.ReembedResponse) -> care_results.ReembedProgress:
    """How far a re-embedding has come."""
    return care_results.ReembedProgress(
        done=wire.done,
        total=wire.total,
        from_index_identity=wire.from_index_identity,
        to_index_identity=wire.to_index_identity,
        complete=wire.complete,
    )


def exported_message(wire: admin_pb2.ExportResponse) -> care_results.ExportedMessage:
    """A message with its vectors."""
    vectors = message_vectors(wire.vectors) if wire.HasField("vectors") else None
    return care_results.ExportedMessage(message(wire.message), vectors)
