"""What is sent: pure functions from a method's arguments to its request, checked on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from . import arguments, values
from .errors import InvalidArgumentError
from .v1 import admin_pb2, recall_pb2, types_pb2
from .wire import message_to_wire, refusing, struct, timestamp, vectors_to_wire

LIST_PAGE_SIZE = 200


@refusing
def recall_request(
    resource_id: object, query: object, options: values.RecallOptions
) -> recall_pb2.RecallRequest:
    """A recall, from its keywords; unknown ones are a TypeError, as for any function."""
    given = _given(options, values.RecallOptions.__annotations__)
    request = recall_pb2.RecallRequest(
        resource_id=arguments.text(resource_id, "resource_id"),
        query=arguments.text(query, "query"),
    )
    for name in ("thread_id", "time_zone", "read_token"):
        if name in given:
            setattr(request, name, arguments.text(given[name], name))
    for name in ("explain", "context_other_threads_only"):
        if name in given:
            setattr(request, name, arguments.flag(given[name], name))
    for name, least in (("top_k", 1), ("max_tokens", 0)):
        if name in given:
            setattr(request, name, arguments.whole(given[name], name, least=least))
    for name, what in (("exclude_message_ids", "ids"), ("alternative_queries", "texts")):
        if name in given:
            getattr(request, name).extend(arguments.texts(given[name], name, what))
    if "query_embedding" in given:
        vector = arguments.numbers(given["query_embedding"], "query_embedding")
        request.query_embedding.extend(vector)
    if "threshold" in given:
        request.threshold = arguments.number(given["threshold"], "threshold")
    if "message_range" in given:
        before, after = arguments.pair(given["message_range"], "message_range")
        request.message_range.CopyFrom(recall_pb2.MessageRange(before=before, after=after))
    if "filter" in given:
        request.filter.CopyFrom(struct(given["filter"], "filter"))
    _set_ranking(request, given)
    _set_enums(request, given)
    _set_times_and_roles(request, given)
    return request


def _given(options: Mapping[str, object], known: Mapping[str, object]) -> dict[str, object]:
    """The keywords that say something: None is as if it were not given."""
    _known(options, known)
    return {name: value for name, value in options.items() if value is not None}


def _known(options: Mapping[str, object], known: Mapping[str, object]) -> None:
    for name in options:
        if name not in known:
            raise TypeError(f"unknown keyword {name!r}; known are {', '.join(sorted(known))}")


def _set_enums(request: recall_pb2.RecallRequest, given: Mapping[str, object]) -> None:
    if "scope" in given:
        scope = arguments.member(values.Scope, given["scope"], "scope")
        request.scope = cast("types_pb2.Scope", scope)
    if "context_format" in given:
        named = arguments.member(values.ContextFormat, given["context_format"], "context_format")
        request.context_format = cast("types_pb2.ContextFormat", named)


def _set_times_and_roles(
    request: recall_pb2.RecallRequest | recall_pb2.ListMessagesRequest | recall_pb2.ForgetCondition,
    given: Mapping[str, object],
) -> None:
    if "create_time_from" in given:
        start = timestamp(given["create_time_from"], field="create_time_from")
        request.create_time_from.CopyFrom(start)
    if "create_time_to" in given:
        end = timestamp(given["create_time_to"], field="create_time_to")
        request.create_time_to.CopyFrom(end)
    if "roles" in given:
        roles = arguments.members(values.Role, given["roles"], "roles")
        request.roles.extend(cast("list[types_pb2.Role]", roles))


def _set_ranking(request: recall_pb2.RecallRequest, given: Mapping[str, object]) -> None:
    if "mode" in given:
        mode = arguments.member(values.Mode, given["mode"], "mode")
        request.ranking.mode = cast("types_pb2.Mode", mode)
    for name in ("recency_weight", "diversity", "near_duplicate_cosine"):
        if name in given:
            setattr(request.ranking, name, arguments.number(given[name], name))
    if "recency_half_life" in given:
        half_life = arguments.duration(given["recency_half_life"], "recency_half_life")
        request.ranking.recency_half_life.FromTimedelta(half_life)


def index_batch(
    resource_id: str,
    thread_id: str,
    messages: Sequence[values.Message],
    options: values.IndexOptions,
) -> values.IndexBatch:
    """One index call, from its keywords; unknown ones are a TypeError, as for any function."""
    given = _given(options, values.IndexOptions.__annotations__)
    batch = values.IndexBatch(resource_id, thread_id, messages)
    return replace(batch, **cast("dict[str, Any]", given))


@refusing
def index_request(batch: values.IndexBatch) -> recall_pb2.IndexRequest:
    """An index call. A message that cannot be written is named by its position."""
    if not isinstance(cast("object", batch), values.IndexBatch):
        raise InvalidArgumentError.of("batches", "must be IndexBatch objects")
    request = recall_pb2.IndexRequest(
        resource_id=arguments.text(batch.resource_id, "resource_id"),
        thread_id=arguments.text(batch.thread_id, "thread_id"),
        wait=cast("types_pb2.Wait", arguments.member(values.Wait, batch.wait, "wait")),
    )
    if arguments.mapping(batch.metadata, "metadata"):
        request.metadata.CopyFrom(struct(batch.metadata, "metadata"))
    if isinstance(cast("object", batch.messages), values.Message):
        raise InvalidArgumentError.of("messages", "must be a list; write [message] for one")
    listed = arguments.items(batch.messages, "messages", 'messages, e.g. [user("hello")]')
    for position, given in enumerate(listed):
        field = f"messages[{position}]"
        if not isinstance(given, values.Message):
            kind = type(given).__name__
            raise InvalidArgumentError.of(
                field, f"must be a Message, e.g. user(...) or assistant(...), not {kind}"
            )
        try:
            request.messages.append(message_to_wire(given))
        except InvalidArgumentError as error:
            raise InvalidArgumentError.of(field, error.message) from None
    _add_vectors(request, batch.vectors)
    return request


def _add_vectors(request: recall_pb2.IndexRequest, vectors: object) -> None:
    if isinstance(vectors, values.MessageVectors):
        raise InvalidArgumentError.of("vectors", "must be a list; write [vectors] for one")
    for position, given in enumerate(arguments.items(vectors, "vectors", "MessageVectors")):
        if not isinstance(given, values.MessageVectors):
            kind = type(given).__name__
            raise InvalidArgumentError.of(f"vectors[{position}]", f"must be MessageVectors: {kind}")
        request.vectors.append(vectors_to_wire(given))


@refusing
def forget_messages_request(
    resource_id: object, ids: object, purge: object
) -> recall_pb2.ForgetRequest:
    """Forget these messages."""
    request = _forget_request(resource_id, purge)
    request.message_ids.ids.extend(arguments.texts(ids, "message_ids", "ids"))
    request.message_ids.SetInParent()
    return request


@refusing
def forget_thread_request(
    resource_id: object, thread_id: object, purge: object
) -> recall_pb2.ForgetRequest:
    """Forget one thread."""
    request = _forget_request(resource_id, purge)
    request.thread_id = arguments.text(thread_id, "thread_id")
    return request


@refusing
def forget_everything_request(resource_id: object, purge: object) -> recall_pb2.ForgetRequest:
    """Forget all of the resource."""
    request = _forget_request(resource_id, purge)
    request.everything = True
    return request


@refusing
def forget_before_request(
    resource_id: object, before: object, purge: object
) -> recall_pb2.ForgetRequest:
    """Forget what was created before a time."""
    request = _forget_request(resource_id, purge)
    request.create_time_before.CopyFrom(timestamp(before, field="create_time_before"))
    return request


@refusing
def forget_request(
    resource_id: object, conditions: values.ForgetConditions, purge: object
) -> recall_pb2.ForgetRequest:
    """Forget what meets all of these conditions.

    Raises:
        InvalidArgumentError: there is none, or one is None or empty: without it more would be
            forgotten than was meant.
    """
    _known(conditions, values.ForgetConditions.__annotations__)
    given = cast("dict[str, object]", conditions)
    if not given:
        names = ", ".join(sorted(values.ForgetConditions.__annotations__))
        raise InvalidArgumentError.of(
            "condition", f"give one of {names}; forget_everything forgets all"
        )
    for name, value in given.items():
        if value is None or value in ("", [], ()):
            raise InvalidArgumentError.of(name, "must not be empty: more would be forgotten")
    request = _forget_request(resource_id, purge)
    request.condition.SetInParent()
    if "thread_id" in given:
        request.condition.thread_id = arguments.text(given["thread_id"], "thread_id")
    if "authors" in given:
        request.condition.authors.extend(arguments.texts(given["authors"], "authors", "names"))
    _set_times_and_roles(request.condition, given)
    return request


def _forget_request(resource_id: object, purge: object) -> recall_pb2.ForgetRequest:
    return recall_pb2.ForgetRequest(
        resource_id=arguments.text(resource_id, "resource_id"),
        purge=arguments.flag(purge, "purge"),
    )


@refusing
def list_messages_request(
    resource_id: object, options: values.ListOptions
) -> recall_pb2.ListMessagesRequest:
    """The first page of a history."""
    given = _given(options, values.ListOptions.__annotations__)
    page_size = arguments.whole(given.get("page_size", LIST_PAGE_SIZE), "page_size")
    limit = list_limit(options)
    request = recall_pb2.ListMessagesRequest(
        resource_id=arguments.text(resource_id, "resource_id"),
        thread_id=arguments.text(given.get("thread_id", ""), "thread_id"),
        page_size=page_size if limit is None else min(page_size, limit),
        newest_first=arguments.flag(given.get("newest_first", False), "newest_first"),
    )
    _set_times_and_roles(request, given)
    return request


def list_limit(options: values.ListOptions) -> int | None:
    """After how many messages a listing ends.

    Raises:
        InvalidArgumentError: the limit is below 1.
    """
    limit: object = options.get("limit")
    return None if limit is None else arguments.whole(limit, "limit", least=1)


@refusing
def get_messages_request(resource_id: object, ids: object) -> recall_pb2.GetMessagesRequest:
    """Messages by id."""
    return recall_pb2.GetMessagesRequest(
        resource_id=arguments.text(resource_id, "resource_id"),
        message_ids=arguments.texts(ids, "message_ids", "ids"),
    )


@refusing
def list_threads_request(resource_id: object) -> recall_pb2.ListThreadsRequest:
    """The first page of a resource's threads."""
    return recall_pb2.ListThreadsRequest(
        resource_id=arguments.text(resource_id, "resource_id"), page_size=LIST_PAGE_SIZE
    )


@refusing
def transfer_request(
    resource_id: object, thread_id: object, to_resource_id: object
) -> recall_pb2.TransferThreadRequest:
    """A thread changes hands."""
    return recall_pb2.TransferThreadRequest(
        resource_id=arguments.text(resource_id, "resource_id"),
        thread_id=arguments.text(thread_id, "thread_id"),
        to_resource_id=arguments.text(to_resource_id, "to_resource_id"),
    )


@refusing
def embed_request(texts: object, role: object) -> recall_pb2.EmbedRequest:
    """Texts to embed."""
    named = arguments.member(values.EmbedRole, role, "role")
    return recall_pb2.EmbedRequest(
        texts=arguments.texts(texts, "texts", "texts"), role=cast("recall_pb2.EmbedRole", named)
    )


@refusing
def stats_request(resource_id: object) -> admin_pb2.GetStatsRequest:
    """Counts of one resource, or of the store."""
    return admin_pb2.GetStatsRequest(resource_id=arguments.text(resource_id, "resource_id"))


@refusing
def verify_request(resource_id: object, repair: object) -> admin_pb2.VerifyRequest:
    """Verify one resource, or the store."""
    return admin_pb2.VerifyRequest(
        resource_id=arguments.text(resource_id, "resource_id"),
        repair=arguments.flag(repair, "repair"),
    )


@refusing
def export_request(resource_id: object, *, with_vectors: bool) -> admin_pb2.ExportRequest:
    """Export one resource."""
    return admin_pb2.ExportRequest(
        resource_id=arguments.text(resource_id, "resource_id"), with_vectors=with_vectors
    )


@refusing
def create_snapshot_request(partitions_only: object) -> admin_pb2.CreateSnapshotRequest:
    """Save the store, or write images of its partitions."""
    return admin_pb2.CreateSnapshotRequest(
        partitions_only=arguments.flag(partitions_only, "partitions_only")
    )


@refusing
def delete_snapshot_request(name: object) -> admin_pb2.DeleteSnapshotRequest:
    """Remove a snapshot."""
    return admin_pb2.DeleteSnapshotRequest(name=arguments.text(name, "name"))


@refusing
def restore_snapshot_request(name: object) -> admin_pb2.RestoreSnapshotRequest:
    """Fill an empty store."""
    return admin_pb2.RestoreSnapshotRequest(name=arguments.text(name, "name"))
