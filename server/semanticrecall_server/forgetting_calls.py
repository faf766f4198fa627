"""What is particular to Forget: its conditions, its answer, and which calls take long."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from semanticrecall.v1 import recall_pb2
from semanticrecall_core.engine import ForgetReport
from semanticrecall_core.types.values import ForgetCondition, ForgetTarget, Role

from .answers import timestamp
from .checks import Violations
from .convert import RequestLimits, forget_target, time_range

AUTHORS_MAX = 100


def checked_target(request: recall_pb2.ForgetRequest, limits: RequestLimits) -> ForgetTarget:
    """What a Forget request names, checked."""
    if request.WhichOneof("target") != "condition":
        return forget_target(request, limits)
    resource = Violations()
    resource.identifier("resource_id", request.resource_id)
    v = Violations("condition.")
    condition = request.condition
    v.optional_identifier("thread_id", condition.thread_id)
    authors = _authors(v, condition)
    time_from, time_to = time_range(v, condition)
    roles = v.roles("roles", condition.roles, Role)
    if not any(condition.HasField(f) for f in ("create_time_from", "create_time_to")) and not (
        condition.thread_id or condition.authors or condition.roles
    ):
        resource.add("condition", "must set at least one field")
    if v.found:
        resource.extend(v.error())
    resource.raise_if_found()
    return ForgetTarget(
        condition=ForgetCondition(
            thread_id=condition.thread_id or None,
            authors=authors,
            time_from_ns=time_from,
            time_to_ns=time_to,
            roles=roles,
        )
    )


def _authors(v: Violations, condition: recall_pb2.ForgetCondition) -> frozenset[str]:
    if len(condition.authors) > AUTHORS_MAX:
        v.add("authors", f"must be at most {AUTHORS_MAX} names; has {len(condition.authors)}")
        return frozenset()
    for position, author in enumerate(condition.authors):
        if not author:
            v.add(f"authors[{position}]", "must not be empty")
        v.name(f"authors[{position}]", author)
    return frozenset(condition.authors)


def forget_response(report: ForgetReport) -> recall_pb2.ForgetResponse:
    """The answer to a Forget."""
    response = recall_pb2.ForgetResponse(
        messages=report.messages,
        vectors=report.vectors,
        threads=report.threads,
        cache_entries=report.cache_entries,
        purged=report.purged,
        snapshots_holding=report.snapshots_holding,
    )
    if report.purge_due_time_ns is not None:
        response.purge_due_time.CopyFrom(timestamp(report.purge_due_time_ns))
    return response


def takes_long(raw: bytes) -> bool:
    """Whether an encoded Forget request may take much longer than a write does."""
    try:
        request = recall_pb2.ForgetRequest.FromString(raw)
    except DecodeError:
        return False
    return request.purge or request.WhichOneof("target") == "condition"
