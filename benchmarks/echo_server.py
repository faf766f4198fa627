"""The floor of any gRPC answer: a grpc.aio server that returns bytes it was started with.

Usage: python -m benchmarks.echo_server ADDRESS ANSWER_BYTES
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio

METHOD = "/semanticrecall.benchmarks.Echo/Unary"
STREAM_METHOD = "/semanticrecall.benchmarks.Echo/Stream"


class _Echo(grpc.GenericRpcHandler):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method == METHOD:
            return grpc.unary_unary_rpc_method_handler(self._unary)
        if details.method == STREAM_METHOD:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return None

    async def _unary(self, request: bytes, context: object) -> bytes:
        return self._answer

    async def _stream(self, requests: object, context: Any) -> None:
        """One answer to each request, read and written as the sidecar's streams do."""
        while await context.read() is not grpc.aio.EOF:
            await context.write(self._answer)


async def _serve(address: str, answer: bytes) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(answer),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], b"x" * int(sys.argv[2])))
