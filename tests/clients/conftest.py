"""A fake sidecar for each test, and clients of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semanticrecall import RecallClient
from support.fake_sidecar import Shelf, fake_sidecar


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEMANTICRECALL_ADDRESS", "SEMANTICRECALL_TOKEN", "SEMANTICRECALL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _processes_that_do_not_import_the_test_runner() -> Iterator[None]:
    """A process that `multiprocessing` starts imports what the first one was started with."""
    with pytest.MonkeyPatch.context() as patched:
        first = sys.modules["__main__"]
        patched.setattr(first, "__spec__", None)
        patched.delattr(first, "__file__", raising=False)
        yield


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def address(shelf: Shelf, tmp_path: Path) -> Iterator[str]:
    with fake_sidecar(f"unix:{tmp_path}/recall.sock", shelf) as served:
        yield served


@pytest.fixture
def memory(address: str) -> Iterator[RecallClient]:
    with RecallClient(address, timeout=30, fail_open=False) as client:
        yield client
