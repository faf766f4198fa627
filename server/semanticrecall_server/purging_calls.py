"""Purge, and what the statistics say of purges and of the retention."""

from __future__ import annotations

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.engine import Engine

from .observability import Reading
from .service import Call


class PurgingCalls:
    """Purge. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def purge(self, request: admin_pb2.PurgeRequest, call: Call) -> admin_pb2.PurgeResponse:
        """Remove from the files what was forgotten."""
        del request
        report = self._engine.purge(call.budget)
        return admin_pb2.PurgeResponse(
            revision=report.revision,
            snapshots_rewritten=report.snapshots_rewritten,
            snapshots_holding=report.snapshots_holding,
        )

    def fill_stats(self, response: admin_pb2.GetStatsResponse) -> None:
        """What GetStats says of purges and of the retention."""
        response.purge_pending = self._engine.purge_stats().pending
        response.expired = self._engine.expired()


def purging_readings(engine: Engine) -> list[Reading]:
    """What purges and the retention count by themselves."""
    purges = engine.purge_stats()
    return [
        Reading("purges", "Purges that ended well.", purges.runs, True),
        Reading("purge_failures", "Purges that failed.", purges.failures, True),
        Reading("purge_pending", "1: something forgotten may be in files.", purges.pending),
        Reading("expired_messages", "Forgotten by the retention.", engine.expired(), True),
        Reading("retention_failures", "Looks that failed.", engine.retention_failures(), True),
    ]
