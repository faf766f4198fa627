"""A system of the side by side in a process of its own, so that its libraries stay out of ours."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.competitors.port import Found, Rows, Setup, System

T = TypeVar("T")
SECONDS_MAX = 100

_open_here: System | None = None


class WorkerSystem:
    """The same calls as a System's, answered by the one that is open in the worker."""

    def __init__(self, worker: ProcessPoolExecutor, module: str) -> None:
        self._worker = worker
        self._module = module

    def open(self, directory: Path, dimensions: int) -> None:
        """Open the system; it must not be open."""
        self._run(_open, self._module, directory, dimensions)

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        return self._run(_setup)

    def add(self, rows: Rows) -> None:
        """See System."""
        self._run(_call, "add", rows)

    def loaded(self) -> None:
        """See System."""
        self._run(_call, "loaded")

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """See System."""
        found: list[Found] = self._run(_call, "search", resource_id, vector, top_k)
        return found

    def call(self, method: str, *arguments: object, **keywords: object) -> Any:
        """Any call of a system that has more than System's."""
        return self._run(_call, method, *arguments, **keywords)

    def attribute(self, name: str) -> Any:
        """Any attribute of a system that has more than System's."""
        return self._run(_attribute, name)

    def close(self) -> None:
        """See System; nothing where it is closed."""
        self._run(_close)

    def _run(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        return self._worker.submit(function, *arguments, **keywords).result(SECONDS_MAX)


def new_worker() -> ProcessPoolExecutor:
    """A process for one system; end it with `shutdown`."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _open(module: str, directory: Path, dimensions: int) -> None:
    global _open_here
    offers = importlib.import_module(f"benchmarks.competitors.{module}")
    _open_here = offers.open_system(directory, dimensions)


def _opened() -> System:
    assert _open_here is not None
    return _open_here


def _setup() -> Setup:
    return _opened().setup


def _call(method: str, *arguments: object, **keywords: object) -> Any:
    return getattr(_opened(), method)(*arguments, **keywords)


def _attribute(name: str) -> Any:
    return getattr(_opened(), name)


def _close() -> None:
    global _open_here
    if _open_here is not None:
        _open_here.close()
        _open_here = None
