"""The floor of any gRPC answer: a grpc.aio server that returns bytes it was started with.

Usage: python -m benchmarks.echo_server ADDRESS ANSWER_BYTES

For clients that ask a sidecar it also answers Recall and Index: the same each time, whatever is
asked, from bytes made before it serves.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio

from semanticrecall.v1 import recall_pb2, types_pb2

METHOD = "/semanticrecall.benchmarks.Echo/Unary"
STREAM_METHOD = "/semanticrecall.benchmarks.Echo/Stream"
RECALL = "/semanticrecall.v1.RecallService/Recall"
INDEX = "/semanticrecall.v1.RecallService/Index"
HITS = 4
WINDOW = 3
"""Messages that come with each hit: itself and a neighbour on each side."""
TEXT = "We put the blue tent in the attic, behind the boxes with the winter things. " * 2


def recall_answer() -> bytes:
    """Four hits, each with its neighbours: what a recall with the default settings gives."""
    answer = recall_pb2.RecallResponse()
    for number in range(HITS * WINDOW):
        is_hit = number % WINDOW == 1
        answer.messages.add(
            message=types_pb2.Message(
                id=f"message-{number:04}",
                resource_id="user",
                thread_id="thread",
                role=types_pb2.ROLE_USER,
                text=TEXT,
            ),
            hit=is_hit,
            score=0.75 if is_hit else None,
            rank=1 + number // WINDOW if is_hit else 0,
        )
    return answer.SerializeToString()


def index_answer() -> bytes:
    """Two messages were indexed."""
    answer = recall_pb2.IndexResponse()
    for number in range(2):
        answer.results.add(message_id=f"message-{number}", status=types_pb2.STATUS_INDEXED)
    return answer.SerializeToString()


class _Echo(grpc.GenericRpcHandler):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._unary = {METHOD: answer, RECALL: recall_answer(), INDEX: index_answer()}

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method == STREAM_METHOD:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        answer = self._unary.get(details.method)
        return None if answer is None else _always(answer)

    async def _stream(self, requests: object, context: Any) -> None:
        """One answer to each request, read and written as the sidecar's streams do."""
        while await context.read() is not grpc.aio.EOF:
            await context.write(self._answer)


def _always(answer: bytes) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def unary(request: bytes, context: object) -> bytes:
        return answer

    return grpc.unary_unary_rpc_method_handler(unary)


async def _serve(address: str, answer: bytes) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(answer),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], b"x" * int(sys.argv[2])))
