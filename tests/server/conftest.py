"""A server around an engine that stores nothing, for tests of the wire."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_engine import FakeEngine
from support.running_server import InProcessServer, parts_of, running


@pytest.fixture
def engine() -> FakeEngine:
    """The engine behind `server`."""
    return FakeEngine()


@pytest.fixture
def server(engine: FakeEngine, tmp_path: Path) -> Iterator[InProcessServer]:
    """A serving server on a Unix socket. The engine tells of no changes: no answer is kept."""
    with running(tmp_path, parts_of(engine), answer_cache_bytes_max=0) as serving:
        yield serving


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine leaks into a test."""
    for name in list(os.environ):
        if name.upper().startswith("SEMANTICRECALL_"):
            monkeypatch.delenv(name)
