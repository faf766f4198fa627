"""The composition root: settings to objects, serve, drain.

Heavy imports are late on purpose: signals are taken over and the environment of the native
libraries is set before any of them is loaded.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import guards

if TYPE_CHECKING:
    from .config import Settings
    from .lifecycle import Parts
    from .logs import Logger

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_NOT_STARTED = 2

CLOSE_GRACE_S = 15.0
"""After the drain: time to close the record before the process is ended from outside the loop."""


def serve_command(arguments: Sequence[str]) -> int:
    """`semanticrecall serve`: read the settings, serve, return the exit status."""
    signals = guards.StopSignals()
    signals.install()
    guards.prepare_process()
    with guards.importing():
        from .command_line import parse_flags
        from .config import SettingsError
        from .settings_loading import load_settings
    fault = guards.environment_fault()
    if fault is not None:
        return _refuse(fault)
    try:
        settings = load_settings(**parse_flags(arguments))
    except SettingsError as error:
        return _refuse(str(error))
    return serve(settings, signals)


def serve(
    settings: Settings, signals: guards.StopSignals | None = None, parts: Parts | None = None
) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP. Main thread only.

    Args:
        settings: checked settings.
        signals: already installed, or None to install them here.
        parts: where the engine comes from; None is the record, model and index of `assembly`.

    Returns:
        0 after a clean stop, 1 after a failure while serving, 2 if it could not start.
    """
    if signals is None:
        signals = guards.StopSignals()
        signals.install()
        guards.prepare_process()
    with guards.importing():
        guards.import_log_library()
        from semanticrecall_core.embedding.threads import worker_threads

        from .assembly import default_parts
        from .errors import code_places, exception_name, known_error
        from .lifecycle import Sidecar, run_sidecar
        from .logs import configure_logs

    log = configure_logs(settings.log_level.value, settings.log_format.value)
    sidecar: Sidecar | None = None

    async def live() -> None:
        nonlocal sidecar
        stop, hurry = asyncio.Event(), asyncio.Event()
        _listen_for_signals(signals, settings, (stop, hurry), log)
        threads = settings.recall_threads or worker_threads()
        sidecar = Sidecar(settings, parts or default_parts(), log, threads)
        await run_sidecar(sidecar, settings.drain_grace_ms / 1000, stop, hurry)

    try:
        asyncio.run(live())
    except Exception as error:
        if sidecar is None or not sidecar.has_served:
            return _refuse(known_error(error, log).message)
        log.error("failed", exception=exception_name(error), at=code_places(error))
        return EXIT_FAILED
    return EXIT_OK


def _listen_for_signals(
    signals: guards.StopSignals,
    settings: Settings,
    events: tuple[asyncio.Event, asyncio.Event],
    log: Logger,
) -> None:
    """First signal: stop. Second: hurry. And a watchdog, should the loop not get there."""
    stop, hurry = events
    limit_s = settings.drain_grace_ms / 1000 + CLOSE_GRACE_S

    def give_up() -> None:
        log.error("stop_took_too_long", seconds=limit_s)
        os._exit(EXIT_FAILED)

    def on_signal(count: int) -> None:
        log.info("signal", count=count)
        if count == 1:
            watchdog = threading.Timer(limit_s, give_up)
            watchdog.daemon = True
            watchdog.start()
            stop.set()
        else:
            hurry.set()

    signals.listen(on_signal)
    loop = asyncio.get_running_loop()
    # The loop's own handlers wake it whichever thread the kernel gave the signal to.
    for number in signals.numbers:
        loop.add_signal_handler(number, signals.notify)


def _refuse(text: str) -> int:
    for line in text.splitlines():
        sys.stderr.write(f"semanticrecall: {line}\n")
    return EXIT_NOT_STARTED
