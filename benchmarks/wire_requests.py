"""Requests that the benchmarks send, as messages and as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks import corpus
from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2

BATCH_MESSAGES = 100
TOP_K = 4

_SERVICE = recall_pb2.DESCRIPTOR.services_by_name["RecallService"].full_name
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
RECALL = f"/{_SERVICE}/Recall"
RECALL_STREAM = f"/{_SERVICE}/RecallStream"
INDEX = f"/{_SERVICE}/Index"
FORGET = f"/{_SERVICE}/Forget"
LIST_MESSAGES = f"/{_SERVICE}/ListMessages"
GET_STATS = f"/{_ADMIN}/GetStats"
CREATE_SNAPSHOT = f"/{_ADMIN}/CreateSnapshot"


def recall(resource_id: str, query: str, request_id: str = "") -> recall_pb2.RecallRequest:
    """A recall of 4 hits with one neighbour on each side, by vectors alone.

    That is the work whose parts can be measured beside it, and what others do too. What hybrid
    ranking adds to it is measured by `topk_latency`.
    """
    return recall_pb2.RecallRequest(
        request_id=request_id,
        resource_id=resource_id,
        query=query,
        top_k=TOP_K,
        ranking=recall_pb2.Ranking(mode=types_pb2.MODE_DENSE),
    )


def recall_of_vector(resource_id: str, vector: NDArray[np.float32]) -> recall_pb2.RecallRequest:
    """A recall that brings its query's vector, so that nothing is embedded."""
    return recall_pb2.RecallRequest(
        resource_id=resource_id, query_embedding=vector.tolist(), top_k=TOP_K
    )


def message(chat_message: corpus.ChatMessage, id_prefix: str = "") -> types_pb2.Message:
    """A message of the synthetic chat."""
    return types_pb2.Message(
        id=id_prefix + chat_message.id,
        thread_id=chat_message.thread_id,
        role=types_pb2.ROLE_USER if chat_message.from_user else types_pb2.ROLE_ASSISTANT,
        text=chat_message.text,
    )


def imports(
    resource_id: str, messages: Sequence[types_pb2.Message], batch: int = BATCH_MESSAGES
) -> Iterator[recall_pb2.IndexRequest]:
    """Index requests of so many messages each."""
    for start in range(0, len(messages), batch):
        yield recall_pb2.IndexRequest(
            resource_id=resource_id, messages=messages[start : start + batch]
        )


def chat_imports(
    resource_id: str, messages: int, *, seed: int
) -> Iterator[recall_pb2.IndexRequest]:
    """Index requests that bring the synthetic chat into a resource."""
    yield from imports(resource_id, [message(one) for one in corpus.chat(messages, seed=seed)])


def turn(
    resource_id: str, number: int, text: str, wait: types_pb2.Wait, plain: bool = False
) -> recall_pb2.IndexRequest:
    """A turn of two messages.

    Args:
        number: of the turn; names its thread and its messages.
        plain: as a tool's messages, which are stored and not embedded.
    """
    roles = (types_pb2.ROLE_USER, types_pb2.ROLE_ASSISTANT)
    if plain:
        roles = (types_pb2.ROLE_TOOL, types_pb2.ROLE_TOOL)
    texts = (text, f"I noted that {text}")
    return recall_pb2.IndexRequest(
        resource_id=resource_id,
        thread_id=f"turns-{number // 20}",
        messages=[
            types_pb2.Message(id=f"{side}{number}", role=role, text=said)
            for side, role, said in zip("ua", roles, texts, strict=True)
        ],
        wait=wait,
    )


def single(resource_id: str, message_id: str, text: str) -> recall_pb2.IndexRequest:
    """One more message of a user, searchable when the answer comes."""
    return recall_pb2.IndexRequest(
        resource_id=resource_id,
        thread_id="later",
        messages=[types_pb2.Message(id=message_id, role=types_pb2.ROLE_USER, text=text)],
    )


def recalled_ids(answer: recall_pb2.RecallResponse) -> list[str]:
    """The ids of an answer in order.

    Raises:
        RuntimeError: the recall failed.
    """
    if answer.HasField("error"):
        raise RuntimeError(answer.error.message)
    return [recalled.message.id for recalled in answer.messages]


def stored_ids(answer: recall_pb2.IndexResponse) -> list[str]:
    """The ids of the messages that an Index call brought, in order.

    Raises:
        RuntimeError: one of them was rejected, or there are none.
    """
    statuses = [result.status for result in answer.results]
    if not statuses or types_pb2.STATUS_REJECTED in statuses:
        raise RuntimeError("a message was not stored")
    return [result.message_id for result in answer.results]
