"""Calls of the client for asyncio that care for a store."""

from __future__ import annotations

from collections.abc import AsyncIterator

from . import care_answers, care_results, requests, wire
from .aio_calls import AsyncCalls
from .v1 import admin_pb2
from .values import Message


class AsyncCareCalls(AsyncCalls):
    """What `AsyncRecallClient` offers to people who run a sidecar; see `CareCalls`."""

    async def stats(
        self, resource_id: str = "", *, timeout: float | None = None
    ) -> care_results.Stats:
        """Counts, sizes and identity; of one resource, or of the whole store."""
        request = requests.stats_request(resource_id)
        return care_answers.stats(await self._call(self._admin.GetStats, request, timeout))

    async def verify(
        self, resource_id: str = "", *, repair: bool = False, timeout: float | None = None
    ) -> AsyncIterator[
        care_results.Finding | care_results.VerifyProgress | care_results.VerifySummary
    ]:
        """Compare all that is stored; see `RecallClient.verify`."""
        request = requests.verify_request(resource_id, repair)
        async for item in self._stream(self._admin.Verify, request, timeout):
            yield care_answers.verify_item(item)

    async def export(
        self, resource_id: str, *, timeout: float | None = None
    ) -> AsyncIterator[Message]:
        """Every message of one resource by time, on one stream."""
        request = requests.export_request(resource_id, with_vectors=False)
        async for item in self._stream(self._admin.Export, request, timeout):
            yield wire.message(item.message)

    async def export_with_vectors(
        self, resource_id: str, *, timeout: float | None = None
    ) -> AsyncIterator[care_results.ExportedMessage]:
        """Every message of one resource by time, with the vectors that it has."""
        request = requests.export_request(resource_id, with_vectors=True)
        async for item in self._stream(self._admin.Export, request, timeout):
            yield care_answers.exported_message(item)

    async def create_snapshot(
        self, *, partitions_only: bool = False, timeout: float | None = None
    ) -> care_results.Snapshot:
        """Save the whole store; see `RecallClient.create_snapshot`."""
        request = requests.create_snapshot_request(partitions_only)
        deadline = self._settings.long_deadline(timeout)
        made = await self._once(self._admin.CreateSnapshot, request, deadline)
        return care_answers.snapshot(made.snapshot)

    async def list_snapshots(self, *, timeout: float | None = None) -> care_results.SnapshotList:
        """The snapshots in the server's folder, newest first."""
        request = admin_pb2.ListSnapshotsRequest()
        listed = await self._call(self._admin.ListSnapshots, request, timeout)
        return care_answers.snapshot_list(listed)

    async def delete_snapshot(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a snapshot; see `RecallClient.delete_snapshot`."""
        request = requests.delete_snapshot_request(name)
        await self._once(self._admin.DeleteSnapshot, request, self._settings.deadline(timeout))

    async def restore_snapshot(
        self, name: str, *, timeout: float | None = None
    ) -> care_results.RestoreResult:
        """Fill an empty store with a snapshot; see `RecallClient.restore_snapshot`."""
        request = requests.restore_snapshot_request(name)
        deadline = self._settings.long_deadline(timeout)
        restored = await self._once(self._admin.RestoreSnapshot, request, deadline)
        return care_answers.restore_result(restored)

    async def purge(self, *, timeout: float | None = None) -> care_results.PurgeResult:
        """Remove from all files what was forgotten; see `RecallClient.purge`."""
        seconds = self._settings.stream_timeout(timeout)
        request = admin_pb2.PurgeRequest()
        return care_answers.purge_result(await self._call(self._admin.Purge, request, seconds))

    async def reembed(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[care_results.ReembedProgress]:
        """Make all vectors anew with the next model; see `RecallClient.reembed`."""
        request = admin_pb2.ReembedRequest()
        async for item in self._stream(self._admin.Reembed, request, timeout):
            yield care_answers.reembed_progress(item)
