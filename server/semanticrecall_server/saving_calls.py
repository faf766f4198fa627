"""Snapshots of the whole store, over the wire."""

from __future__ import annotations

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.engine import Engine
from semanticrecall_core.engine.saving import Saving
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.saving import SavedSnapshot

from .answers import timestamp
from .checks import Violations
from .service import Call

NAME_BYTES_MAX = 128


class SavingCalls:
    """The calls of AdminService about snapshots. Thread-safe.

    A name that a caller gives is compared with those in the folder, and nothing else is done with
    it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self, request: admin_pb2.CreateSnapshotRequest, call: Call
    ) -> admin_pb2.CreateSnapshotResponse:
        """Images of partitions, and the whole store unless only these are wanted."""
        images = self._engine.create_snapshot(call.budget)
        response = admin_pb2.CreateSnapshotResponse()
        if request.partitions_only:
            response.snapshot.create_time.GetCurrentTime()
            response.snapshot.bytes, response.snapshot.vectors = images.bytes, images.rows
        else:
            fill_snapshot(response.snapshot, self._saving().create(call.budget))
        return response

    def list(
        self, request: admin_pb2.ListSnapshotsRequest, call: Call
    ) -> admin_pb2.ListSnapshotsResponse:
        """Those in the folder, newest first."""
        del request
        call.budget.check()
        response = admin_pb2.ListSnapshotsResponse()
        for snapshot in self._saving().snapshots():
            fill_snapshot(response.snapshots.add(), snapshot)
        response.left_out.extend(self._saving().left_out())
        return response

    def delete(
        self, request: admin_pb2.DeleteSnapshotRequest, call: Call
    ) -> admin_pb2.DeleteSnapshotResponse:
        """Remove one."""
        _require_name(request.name)
        self._saving().delete(request.name, call.budget)
        return admin_pb2.DeleteSnapshotResponse()

    def restore(
        self, request: admin_pb2.RestoreSnapshotRequest, call: Call
    ) -> admin_pb2.RestoreSnapshotResponse:
        """Fill the store, which must be empty, with one."""
        _require_name(request.name)
        counts = self._saving().restore(request.name, call.budget)
        return admin_pb2.RestoreSnapshotResponse(
            messages=counts.messages,
            vectors=counts.vectors,
            forgotten=counts.forgotten,
            without_ledger=counts.without_ledger,
        )

    def _saving(self) -> Saving:
        saving = self._engine.saving
        if saving is None:
            raise UnavailableError("no snapshots are kept here")
        return saving


def fill_snapshot(target: admin_pb2.Snapshot, snapshot: SavedSnapshot) -> None:
    """Write one."""
    state = snapshot.state
    target.name = snapshot.name
    target.create_time.CopyFrom(timestamp(snapshot.create_time_ns))
    target.bytes = snapshot.bytes
    target.messages = state.messages
    target.vectors = state.vectors
    target.revision = state.revision
    target.digest = snapshot.digest
    target.index_identity = snapshot.index_identity
    target.server_version = snapshot.program_version
    target.format = state.record_format
    target.encrypted = snapshot.encrypted
    target.forgotten = snapshot.forgotten


def _require_name(name: str) -> None:
    v = Violations()
    if not name:
        v.add("name", "is required")
    v.size("name", name, NAME_BYTES_MAX)
    v.raise_if_found()
