"""Real servers over real Unix sockets for the cases.

`sidecar` runs in this process with the deterministic embedder; `real` is a process of its own with
the default model. Every test gets a resource of its own.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_server.assembly import default_parts
from support.fake_embedder import FakeEmbedder
from support.running_server import ServerProcess, running
from support.wire_memory import Memory, Model, Sidecar

_numbers = itertools.count()


@dataclass(frozen=True)
class LocalServer:
    """A server in this process, and the embedder it works with."""

    sidecar: Sidecar
    embedder: FakeEmbedder


@contextmanager
def _started(
    directory: Path, embedder: FakeEmbedder | None = None, **settings: Any
) -> Iterator[LocalServer]:
    used = embedder or FakeEmbedder()
    directory.mkdir(exist_ok=True)
    with running(directory, default_parts(lambda _: used), **settings) as server:
        sidecar = Sidecar(server.sidecar.addresses[0].target)
        try:
            yield LocalServer(sidecar, used)
        finally:
            used.heal()
            sidecar.close()


@contextmanager
def _process(
    directory: Path, *, environment: dict[str, str] | None = None, arguments: tuple[str, ...] = ()
) -> Iterator[Sidecar]:
    """A server process with the default model that serves `directory`; SIGTERM ends it with 0."""
    socket = f"unix:{directory}/s.sock"
    options = ("--listen", socket, "--data-dir", f"{directory}/data", *arguments)
    with ServerProcess(options, environment) as process:
        process.wait_for("serving")
        sidecar = ProcessSidecar(socket, process)
        yield sidecar
        sidecar.close()
        if not sidecar.ended:
            process.signal(signal.SIGTERM)
            status, log = process.wait()
            assert status == 0, log


class ProcessSidecar(Sidecar):
    """The stubs of a server process."""

    def __init__(self, target: str, process: ServerProcess) -> None:
        super().__init__(target)
        self.process = process
        self.ended = False

    def kill(self) -> None:
        """SIGKILL: nothing is finished or cleaned up."""
        self.process.signal(signal.SIGKILL)
        self.process.wait()
        self.ended = True


@pytest.fixture(scope="session")
def start() -> Callable[..., AbstractContextManager[LocalServer]]:
    """`start(directory, embedder, **settings)`: a server in this process."""
    return _started


@pytest.fixture(scope="session")
def start_process() -> Callable[..., AbstractContextManager[Sidecar]]:
    """`start_process(directory, environment=..., arguments=...)`: a process with the real model."""
    return _process


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The module's server."""
    with _started(tmp_path_factory.mktemp("s"), recall_threads=8) as server:
        yield server


@pytest.fixture(scope="module")
def sidecar(local: LocalServer) -> Sidecar:
    """Stubs of the module's server."""
    return local.sidecar


@pytest.fixture
def embedder(local: LocalServer) -> Iterator[FakeEmbedder]:
    """The embedder of the module's server; its faults end with the test."""
    yield local.embedder
    local.embedder.heal()


@pytest.fixture
def fresh() -> str:
    """A resource id that nobody has used."""
    return f"resource-{next(_numbers)}"


@pytest.fixture
def memory(sidecar: Sidecar, fresh: str) -> Memory:
    """The empty memory of a new resource."""
    return sidecar.memory(fresh)


@pytest.fixture(scope="session")
def model() -> Model:
    """What the answers ought to be."""
    return Model()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A server process with the default model."""
    with _process(tmp_path_factory.mktemp("r")) as sidecar:
        yield sidecar


@pytest.fixture
def real_memory(real: Sidecar, fresh: str) -> Memory:
    """The empty memory of a new resource at the server with the default model."""
    return real.memory(fresh)
