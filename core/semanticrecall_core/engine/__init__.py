"""The use cases and recovery."""

from .engine import Engine, EngineLimits, ForgetReport
from .index import IndexTicket
from .verification import VerifyReport

__all__ = ["Engine", "EngineLimits", "ForgetReport", "IndexTicket", "VerifyReport"]
