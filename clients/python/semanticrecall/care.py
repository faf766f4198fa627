"""Calls of the client for threads that care for a store."""

from __future__ import annotations

from collections.abc import Iterator

from . import care_answers, care_results, requests, wire
from .calls import Calls
from .v1 import admin_pb2
from .values import Message


class CareCalls(Calls):
    """Counts, checks, snapshots, purges: what `RecallClient` offers to people who run a sidecar.

    A store of any size can be in question: unless it says otherwise, a call may take an hour.
    """

    def stats(self, resource_id: str = "", *, timeout: float | None = None) -> care_results.Stats:
        """Counts, sizes and identity; of one resource, or of the whole store.

        Args:
            timeout: seconds. Default: the client's.
        """
        request = requests.stats_request(resource_id)
        return care_answers.stats(self._call(self._admin.GetStats, request, timeout))

    def verify(
        self, resource_id: str = "", *, repair: bool = False, timeout: float | None = None
    ) -> Iterator[care_results.Finding | care_results.VerifyProgress | care_results.VerifySummary]:
        """Compare all that is stored: what does not agree, progress, then one summary.

        Args:
            repair: mend what is derived, remove and tell what is lost, and end with recalls of
                stored messages by their own text.
        """
        request = requests.verify_request(resource_id, repair)
        for item in self._stream(self._admin.Verify, request, timeout):
            yield care_answers.verify_item(item)

    def export(self, resource_id: str, *, timeout: float | None = None) -> Iterator[Message]:
        """Every message of one resource by time, on one stream."""
        request = requests.export_request(resource_id, with_vectors=False)
        for item in self._stream(self._admin.Export, request, timeout):
            yield wire.message(item.message)

    def export_with_vectors(
        self, resource_id: str, *, timeout: float | None = None
    ) -> Iterator[care_results.ExportedMessage]:
        """Every message of one resource by time, with the vectors that it has."""
        request = requests.export_request(resource_id, with_vectors=True)
        for item in self._stream(self._admin.Export, request, timeout):
            yield care_answers.exported_message(item)

    def create_snapshot(
        self, *, partitions_only: bool = False, timeout: float | None = None
    ) -> care_results.Snapshot:
        """Save the whole store, as it is at one revision, to a folder of the server's.

        It is not sent twice.

        Args:
            partitions_only: write only images of partitions, from which the next start reads; the
                snapshot then has no name.

        Raises:
            ResourceExhaustedError: the disk has no room ("DISK_FULL").
        """
        request = requests.create_snapshot_request(partitions_only)
        deadline = self._settings.long_deadline(timeout)
        made = self._once(self._admin.CreateSnapshot, request, deadline)
        return care_answers.snapshot(made.snapshot)

    def list_snapshots(self, *, timeout: float | None = None) -> care_results.SnapshotList:
        """The snapshots in the server's folder, newest first.

        Args:
            timeout: seconds. Default: the client's.
        """
        request = admin_pb2.ListSnapshotsRequest()
        listed = self._call(self._admin.ListSnapshots, request, timeout)
        return care_answers.snapshot_list(listed)

    def delete_snapshot(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a snapshot from the server's folder.

        Args:
            timeout: seconds. Default: the client's.

        Raises:
            NotFoundError: no such name. Also after a call that was lost on its way back: it is
                never sent twice by itself.
        """
        request = requests.delete_snapshot_request(name)
        self._once(self._admin.DeleteSnapshot, request, self._settings.deadline(timeout))

    def restore_snapshot(
        self, name: str, *, timeout: float | None = None
    ) -> care_results.RestoreResult:
        """Fill the server's store, which must be empty, with a snapshot of its folder.

        All or nothing. What was forgotten since it was made is left out. It is not sent twice.

        Raises:
            FailedPreconditionError: the store has messages ("STORE_NOT_EMPTY").
            NotFoundError: no such name.
            DataLossError: the snapshot is damaged; nothing was taken.
        """
        request = requests.restore_snapshot_request(name)
        deadline = self._settings.long_deadline(timeout)
        restored = self._once(self._admin.RestoreSnapshot, request, deadline)
        return care_answers.restore_result(restored)

    def purge(self, *, timeout: float | None = None) -> care_results.PurgeResult:
        """Remove from all files what was forgotten: logs, free pages, images, snapshots.

        Raises:
            DeadlineExceededError: it goes on.
        """
        seconds = self._settings.stream_timeout(timeout)
        request = admin_pb2.PurgeRequest()
        return care_answers.purge_result(self._call(self._admin.Purge, request, seconds))

    def reembed(self, *, timeout: float | None = None) -> Iterator[care_results.ReembedProgress]:
        """Make all vectors anew with the server's next model, then switch to it; gives progress.

        The present model serves meanwhile. A call joins one that runs; it goes on when the caller
        leaves.

        Raises:
            FailedPreconditionError: the server has no next model ("NO_NEXT_MODEL").
        """
        request = admin_pb2.ReembedRequest()
        for item in self._stream(self._admin.Reembed, request, timeout):
            yield care_answers.reembed_progress(item)
