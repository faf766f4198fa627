"""What is sent: pure functions from a method's arguments to its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast

from . import values
from .errors import InvalidArgumentError
from .v1 import recall_pb2, types_pb2
from .wire import message_to_wire, refusing, struct, timestamp

LIST_PAGE_SIZE = 200


@refusing
def recall_request(
    resource_id: str, query: str, options: values.RecallOptions
) -> recall_pb2.RecallRequest:
    """A recall, from its keywords; unknown ones are a TypeError, as for any function."""
    _refuse_unknown(options, values.RecallOptions.__annotations__)
    request = recall_pb2.RecallRequest(
        resource_id=resource_id,
        query=query,
        thread_id=options.get("thread_id", ""),
        scope=cast("types_pb2.Scope", options.get("scope", 0)),
        roles=cast("Sequence[types_pb2.Role]", options.get("roles", ())),
        exclude_message_ids=options.get("exclude_message_ids", ()),
        max_tokens=options.get("max_tokens", 0),
        context_format=cast("types_pb2.ContextFormat", options.get("context_format", 0)),
        context_other_threads_only=options.get("context_other_threads_only", False),
        time_zone=options.get("time_zone", ""),
        explain=options.get("explain", False),
        read_token=options.get("read_token", ""),
        query_embedding=options.get("query_embedding", ()),
        alternative_queries=options.get("alternative_queries", ()),
    )
    if "top_k" in options:
        request.top_k = options["top_k"]
    if "threshold" in options:
        request.threshold = options["threshold"]
    if "message_range" in options:
        before, after = options["message_range"]
        request.message_range.CopyFrom(recall_pb2.MessageRange(before=before, after=after))
    if "filter" in options:
        request.filter.CopyFrom(struct(options["filter"], "filter"))
    _set_times(request, options)
    if "ranking" in options:
        request.ranking.CopyFrom(_ranking(options["ranking"]))
    return request


def _refuse_unknown(options: Mapping[str, object], known: Mapping[str, object]) -> None:
    for name in options:
        if name not in known:
            raise TypeError(f"unknown keyword {name!r}; known are {', '.join(sorted(known))}")


def _set_times(
    request: recall_pb2.RecallRequest | recall_pb2.ListMessagesRequest,
    options: values.RecallOptions | values.ListOptions,
) -> None:
    if "create_time_from" in options:
        start = options["create_time_from"]
        request.create_time_from.CopyFrom(timestamp(start, field="create_time_from"))
    if "create_time_to" in options:
        end = options["create_time_to"]
        request.create_time_to.CopyFrom(timestamp(end, field="create_time_to"))


def _ranking(ranking: values.Ranking) -> recall_pb2.Ranking:
    wire = recall_pb2.Ranking(
        mode=cast("types_pb2.Mode", ranking.mode),
        recency_weight=ranking.recency_weight,
        diversity=ranking.diversity,
    )
    if ranking.recency_half_life is not None:
        wire.recency_half_life.FromTimedelta(ranking.recency_half_life)
    return wire


@refusing
def index_request(batch: values.IndexBatch) -> recall_pb2.IndexRequest:
    """An index call. A message that cannot be written is named by its position."""
    request = recall_pb2.IndexRequest(
        resource_id=batch.resource_id,
        thread_id=batch.thread_id,
        wait=cast("types_pb2.Wait", batch.wait),
    )
    if batch.metadata:
        request.metadata.CopyFrom(struct(batch.metadata, "metadata"))
    for position, given in enumerate(batch.messages):
        try:
            request.messages.append(message_to_wire(given))
        except InvalidArgumentError as error:
            raise InvalidArgumentError.of(f"messages[{position}]", error.message) from None
    return request


@refusing
def forget_messages_request(resource_id: str, ids: Sequence[str]) -> recall_pb2.ForgetRequest:
    """Forget these messages."""
    if isinstance(ids, str):
        raise InvalidArgumentError.of("message_ids", "must be a list of ids, not one string")
    return recall_pb2.ForgetRequest(
        resource_id=resource_id, message_ids=recall_pb2.MessageIds(ids=ids)
    )


@refusing
def forget_thread_request(resource_id: str, thread_id: str) -> recall_pb2.ForgetRequest:
    """Forget one thread."""
    return recall_pb2.ForgetRequest(resource_id=resource_id, thread_id=thread_id)


@refusing
def forget_everything_request(resource_id: str) -> recall_pb2.ForgetRequest:
    """Forget all of the resource."""
    return recall_pb2.ForgetRequest(resource_id=resource_id, everything=True)


@refusing
def forget_before_request(resource_id: str, before: datetime) -> recall_pb2.ForgetRequest:
    """Forget what was created before a time."""
    return recall_pb2.ForgetRequest(
        resource_id=resource_id,
        create_time_before=timestamp(before, field="create_time_before"),
    )


@refusing
def list_messages_request(
    resource_id: str, options: values.ListOptions
) -> recall_pb2.ListMessagesRequest:
    """The first page of a history."""
    _refuse_unknown(options, values.ListOptions.__annotations__)
    page_size = options.get("page_size", LIST_PAGE_SIZE)
    request = recall_pb2.ListMessagesRequest(
        resource_id=resource_id,
        thread_id=options.get("thread_id", ""),
        page_size=min(page_size, options.get("limit", page_size)),
        newest_first=options.get("newest_first", False),
        roles=cast("Sequence[types_pb2.Role]", options.get("roles", ())),
    )
    _set_times(request, options)
    return request


def list_limit(options: values.ListOptions) -> int | None:
    """After how many messages a listing ends.

    Raises:
        InvalidArgumentError: the limit is below 1.
    """
    limit = options.get("limit")
    if limit is not None and limit < 1:
        raise InvalidArgumentError.of("limit", "must be at least 1")
    return limit


@refusing
def get_messages_request(resource_id: str, ids: Sequence[str]) -> recall_pb2.GetMessagesRequest:
    """Messages by id."""
    if isinstance(ids, str):
        raise InvalidArgumentError.of("message_ids", "must be a list of ids, not one string")
    return recall_pb2.GetMessagesRequest(resource_id=resource_id, message_ids=ids)


@refusing
def list_threads_request(resource_id: str) -> recall_pb2.ListThreadsRequest:
    """The first page of a resource's threads."""
    return recall_pb2.ListThreadsRequest(resource_id=resource_id, page_size=LIST_PAGE_SIZE)


@refusing
def transfer_request(
    resource_id: str, thread_id: str, to_resource_id: str
) -> recall_pb2.TransferThreadRequest:
    """A thread changes hands."""
    return recall_pb2.TransferThreadRequest(
        resource_id=resource_id, thread_id=thread_id, to_resource_id=to_resource_id
    )


@refusing
def embed_request(texts: Sequence[str], role: values.EmbedRole) -> recall_pb2.EmbedRequest:
    """Texts to embed."""
    if isinstance(texts, str):
        raise InvalidArgumentError.of("texts", "must be a list of texts, not one string")
    return recall_pb2.EmbedRequest(texts=texts, role=cast("recall_pb2.EmbedRole", role))
