"""Ctrl-C: the first one asks a load to end and to clean up, a second one ends it at once.

So do SIGTERM, and SIGHUP, which a terminal sends when it is closed or its connection breaks. Under
`nohup` SIGHUP stays ignored.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """What has become of Ctrl-C (SIGTERM, SIGHUP) while it is entered.

    On a thread other than the main one, which no signal reaches, only `request` asks.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """The load shall end."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask it to."""
        self._requested.set()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            # None: it was set by something else than Python.
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.request()
