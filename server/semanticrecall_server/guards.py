"""What has to hold in the process before anything heavy is imported.

This module imports the standard library only. `prepare_process` runs before numpy, FAISS,
onnxruntime, tokenizers and grpc are imported, since each of them reads its environment once.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

SWITCH_INTERVAL_S = 0.0005
"""How long one Python thread keeps the interpreter while another waits.

Measured with a busy Python thread beside a recall: 30-38 ms at the default of 5 ms, 2.4-4.7 ms
with this one.
"""

_ENVIRONMENT = {
    # FAISS makes a pool of threads for every thread that calls it: 64 callers made 514 threads.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # The process never forks; gRPC's fork handlers only cost.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # onnxruntime would report to its maker and write a device id into the user's cache.
    "ORT_DISABLE_TELEMETRY": "1",
}
_ENVIRONMENT_DEFAULTS = {
    # gRPC's C core writes lines of its own to stderr; what matters is logged by the server.
    "GRPC_VERBOSITY": "NONE",
}


def set_environment() -> None:
    """Set the variables that native libraries read while they are imported."""
    os.environ.update(_ENVIRONMENT)
    for name, value in _ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)


def environment_fault() -> str | None:
    """One line that says why this interpreter must not serve, or None.

    With `python -O` the checks of the vector library vanish and it answers with garbage. The
    pure-Python protobuf runtime can be brought down by nested messages.
    """
    if sys.flags.optimize:
        return "python -O and PYTHONOPTIMIZE switch safety checks off; start without them"
    from google.protobuf.internal import api_implementation

    kind = api_implementation.Type()
    if kind != "upb":
        return (
            f"protobuf runs on its {kind!r} implementation; "
            "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION and install a wheel with upb"
        )
    return None


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard


def prepare_process() -> None:
    """Everything above that changes the process, in order."""
    set_environment()
    raise_file_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


@contextmanager
def importing() -> Generator[None, None, None]:
    """Import inside: the collector rests meanwhile, and leaves alone for good what is there then.

    Imports make half a megabyte of garbage, and every full collection would walk all that was
    imported before: about a tenth of the time that they take.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def import_log_library() -> None:
    """Import structlog without rich, which it takes for its tracebacks where it is installed.

    The logs show no tracebacks. rich and what it imports are 60 modules, a twentieth of a start;
    an entry of None is how Python says that a module is not to be had, and structlog then does
    without.
    """
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import_module("structlog")
    finally:
        del sys.modules["rich"]


class StopSignals:
    """SIGTERM, SIGINT and SIGHUP from the first line to the last.

    SIGHUP is a closed terminal, or an operator who expects settings to be read anew, which a
    restart does: in both cases calls in flight are answered first. Under nohup it stays ignored.
    SIGUSR1 and SIGUSR2 mean nothing here and are ignored; by default they would kill the process.

    Until somebody listens, the first signal ends the process at once with exit status 0: nothing
    has been accepted yet. A handler is needed even then, since the kernel drops SIGTERM for
    process 1 of a container that has none.
    """

    def __init__(self) -> None:
        self.received = 0
        self.numbers: tuple[signal.Signals, ...] = ()
        self._listener: Callable[[int], None] | None = None

    def install(self) -> None:
        """Take over the signals, from then on in `numbers`. Main thread only."""
        self.numbers = (signal.SIGTERM, signal.SIGINT)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.numbers += (signal.SIGHUP,)
        for number in self.numbers:
            signal.signal(number, self._on_signal)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)

    def listen(self, listener: Callable[[int], None]) -> None:
        """From now on call `listener(how_many_so_far)` instead of leaving."""
        self._listener = listener

    def notify(self) -> None:
        """Count one signal and tell the listener."""
        self.received += 1
        if self._listener is not None:
            self._listener(self.received)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._listener is None:
            raise SystemExit(0)
        self.notify()
