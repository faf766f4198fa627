"""gRPC's health service, with a limit on the watches left open. A check is never refused."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from semanticrecall_core.types.errors import ResourceExhaustedError

from .errors import abort
from .gate import Places

WATCHES_MAX = 256


class Health(health.aio.HealthServicer):
    """`grpc.health.v1.Health`."""

    def __init__(self) -> None:
        super().__init__()
        self._watches = Places(WATCHES_MAX, "open health watches")

    async def Watch(  # noqa: N802 - the name of the method on the wire
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """The state now and at every change."""
        try:
            with self._watches.hold():
                await super().Watch(request, context)
        except ResourceExhaustedError as error:
            await abort(context, error)
