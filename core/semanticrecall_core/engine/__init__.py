"""The use cases and recovery."""

from .engine import Engine, EngineLimits, ForgetReport, VerifyReport

__all__ = ["Engine", "EngineLimits", "ForgetReport", "VerifyReport"]
