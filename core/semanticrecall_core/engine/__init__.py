"""The use cases and recovery."""

from .engine import Engine, EngineLimits, ForgetReport, VerifyReport
from .index import IndexTicket

__all__ = ["Engine", "EngineLimits", "ForgetReport", "IndexTicket", "VerifyReport"]
