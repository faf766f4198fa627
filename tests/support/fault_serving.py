"""A sidecar with a made-up embedder, as a program and as what a forked process runs.

    python -m support.fault_serving --data-dir ... --listen ...

Record, indexes, server and wire are those of `semanticrecall serve`; only the vectors come from
`FakeEmbedder`. Everything heavy is imported with this module, so that a process forked from one
that has imported it serves within a tenth of a second.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from semanticrecall_server import guards

guards.prepare_process()
guards.import_log_library()

from semanticrecall_server import engine_assembly, main  # noqa: E402
from semanticrecall_server.assembly import default_parts  # noqa: E402
from semanticrecall_server.command_line import parse_flags  # noqa: E402
from semanticrecall_server.config import Settings, SettingsError  # noqa: E402
from semanticrecall_server.lifecycle import Parts  # noqa: E402
from semanticrecall_server.settings_loading import load_settings  # noqa: E402
from support.fake_embedder import FakeEmbedder  # noqa: E402

PR_SET_PDEATHSIG = 1
IMPORTED = (engine_assembly,)
Prepare = Callable[[], object]


def fake_embedder(settings: Settings) -> FakeEmbedder:
    """The model of these sidecars."""
    del settings
    return FakeEmbedder()


def served(arguments: Sequence[str], parts: Parts | None = None) -> int:
    """What `semanticrecall serve` does, with another embedder."""
    signals = guards.StopSignals()
    signals.install()
    try:
        settings = load_settings(**parse_flags(arguments))
    except SettingsError as error:
        sys.stderr.write(f"semanticrecall: {error}\n")
        return main.EXIT_NOT_STARTED
    return main.serve(settings, signals, parts or default_parts(fake_embedder))


def serve_forked(stderr: Connection, arguments: Sequence[str], prepare: Prepare | None) -> None:
    """Serve in a forked process; it ends with the one it was forked from.

    Args:
        stderr: where its log goes.
        arguments: flags.
        prepare: called before it serves.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(stderr.fileno(), 2)
    stderr.close()
    faulthandler.enable(2)
    for name in [name for name in os.environ if name.startswith("SEMANTICRECALL_")]:
        del os.environ[name]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # whatever the test's process makes of them
    if prepare is not None:
        prepare()
    status = served(arguments)
    sys.stderr.flush()
    os._exit(status)  # nothing of the test's process is run at the end


if __name__ == "__main__":
    real = default_parts() if os.environ.get("FAULTS_REAL_MODEL") else None
    sys.exit(served(sys.argv[1:], real))
