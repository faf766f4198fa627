"""The floor of any gRPC answer: a grpc.aio server that returns bytes it was started with.

Usage: python -m benchmarks.echo_server ADDRESS ANSWER_BYTES
"""

from __future__ import annotations

import asyncio
import sys

import grpc.aio

METHOD = "/semanticrecall.benchmarks.Echo/Unary"


class _Echo(grpc.GenericRpcHandler):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method == METHOD:
            return grpc.unary_unary_rpc_method_handler(self._unary)
        return None

    async def _unary(self, request: bytes, context: object) -> bytes:
        return self._answer


async def _serve(address: str, answer: bytes) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(answer),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], b"x" * int(sys.argv[2])))
