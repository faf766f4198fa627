"""The use cases and recovery."""

from semanticrecall_core.types.verifying import VerifyReport

from .engine import Engine
from .forgetting import ForgetReport
from .index import IndexTicket
from .limits import EngineLimits
from .purging import PurgePlan, PurgeReport
from .retention import RetentionPlan

__all__ = [
    "Engine",
    "EngineLimits",
    "ForgetReport",
    "IndexTicket",
    "PurgePlan",
    "PurgeReport",
    "RetentionPlan",
    "VerifyReport",
]
