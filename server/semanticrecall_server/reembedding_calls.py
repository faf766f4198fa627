"""Reembed, and what the statistics say of it."""

from __future__ import annotations

from collections.abc import Generator

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.engine import Engine
from semanticrecall_core.types.values import CallBudget

from .observability import Reading

PROGRESS_INTERVAL_S = 0.25
"""How often a caller is told how far it is; no thread waits meanwhile."""


class ReembeddingCalls:
    """Reembed. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def reembed(
        self, request: admin_pb2.ReembedRequest, budget: CallBudget
    ) -> Generator[list[bytes]]:
        """Begin or join; how far it is, as often as asked."""
        del request
        for progress in self._engine.exchange.reembed(budget):
            response = admin_pb2.ReembedResponse(
                done=progress.done,
                total=progress.total,
                from_index_identity=progress.before,
                to_index_identity=progress.after,
                complete=progress.complete,
            )
            yield [response.SerializeToString()]

    def fill_stats(self, response: admin_pb2.GetStatsResponse) -> None:
        """What GetStats says of the next model."""
        response.next_index_identity = self._engine.exchange.next_index_identity

    def fill_counts(self, response: admin_pb2.GetStatsResponse) -> None:
        """What it says of the whole store besides."""
        response.next_embedded = self._engine.exchange.embedded()


def reembedding_readings(engine: Engine) -> list[Reading]:
    """What the exchange of the model counts by itself."""
    exchange = engine.exchange
    return [
        Reading("next_embedded", "Messages with vectors of the next model.", exchange.embedded()),
        Reading("reembed_running", "1 while vectors are made anew.", exchange.running()),
    ]
