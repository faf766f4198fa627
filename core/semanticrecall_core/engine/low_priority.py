"""Work beside the calls gives way to them by the operating system's priority of its thread."""

from __future__ import annotations

import os
import threading

import structlog

LOWEST_PRIORITY = 19

_log = structlog.get_logger(__name__)


def lower_priority() -> None:
    """Give the calling thread the lowest priority; what the system does not allow is logged."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
    except OSError:
        _log.warning("priority_not_lowered", thread=threading.current_thread().name)
