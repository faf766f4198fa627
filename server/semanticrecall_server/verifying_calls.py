"""Verify over the wire: findings, progress and the summary, in batches."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import asdict

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.engine import Engine, VerifyReport
from semanticrecall_core.types.values import CallBudget, Finding
from semanticrecall_core.types.verifying import VerifyProgress

from .checks import Violations

BATCH_SECONDS = 0.2
"""A batch ends with the first event after so long, progress at once: somebody waits for it."""

BATCH_EVENTS_MAX = 1_000


def verify(
    engine: Engine, request: admin_pb2.VerifyRequest, budget: CallBudget
) -> Generator[list[bytes]]:
    """Encoded answers: findings and progress as they come, then the summary."""
    v = Violations()
    v.optional_identifier("resource_id", request.resource_id)
    v.raise_if_found()
    batch: list[bytes] = []
    since = time.monotonic()
    events = engine.verify(request.resource_id or None, budget, repair=request.repair)
    for event in events:
        budget.check()
        batch.append(_response(event).SerializeToString())
        is_late = time.monotonic() - since > BATCH_SECONDS
        if is_late or isinstance(event, VerifyProgress) or len(batch) >= BATCH_EVENTS_MAX:
            yield batch
            batch, since = [], time.monotonic()
    if batch:
        yield batch


def _response(event: Finding | VerifyProgress | VerifyReport) -> admin_pb2.VerifyResponse:
    match event:
        case Finding():
            return admin_pb2.VerifyResponse(
                finding=admin_pb2.Finding(
                    kind=event.kind,
                    resource_id=event.resource_id,
                    message_id=event.message_id,
                    detail=event.detail,
                    repaired=event.repaired,
                )
            )
        case VerifyProgress():
            progress = admin_pb2.VerifyProgress(
                stage=event.stage, done=event.done, total=event.total
            )
            return admin_pb2.VerifyResponse(progress=progress)
        case VerifyReport():
            # The same names on both sides.
            return admin_pb2.VerifyResponse(summary=admin_pb2.VerifySummary(**asdict(event)))
