"""Forks processes for fault tests from one that has imported everything and has no threads."""

from __future__ import annotations

import multiprocessing
import os
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

from support.fault_calls import shim

TESTS = Path(__file__).resolve().parents[1]
IMPORTED = ["support.fault_serving", "support.fault_children"]


@cache
def forking() -> ForkServerContext:
    """What forks processes that have everything imported, and the shim of `fault_calls` loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    library = shim()
    # The only way to tell it where to look: it is given a path and does not use it.
    given = {"PYTHONPATH": with_tests(os.environ.get("PYTHONPATH"))}
    if library is not None:
        given["LD_PRELOAD"] = str(library)
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return context


def with_tests(path: str | None) -> str:
    """A PYTHONPATH with which another interpreter finds `support`."""
    return os.pathsep.join([str(TESTS), *([path] if path else [])])
