"""The processes that send: started, told what to do and when, listened to, and ended.

Each is a fresh interpreter ("spawn") with one event loop and one `Sender`. All that passes between
them and this process goes through pipes, the token too: none of it is on a command line. Every wait
has a limit, and a process that dies ends the load instead of being waited for.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

from ..errors import SemanticRecallError
from .interruption import SIGNALS
from .loops import StageTask
from .measured import WorkerSecond, WorkerStage
from .plan import LoadPlan
from .sending import Sender, event_loop

OPEN_SECONDS_MAX = 60.0
# From the order to the begin of a stage: every process has read it by then.
LEAD_SECONDS = 0.2
MARGIN_SECONDS = 15.0
# Calls that were due and could not be sent are counted one by one when a stage has ended: at a rate
# far beyond what the server answers, these are most of the plan's.
SECONDS_PER_CALL_LEFT = 2e-6
CLOSE_SECONDS_MAX = 2.0
POLL_SECONDS = 0.1


class SendingError(SemanticRecallError):
    """Raised when a process that sends died, failed, or did not answer in time."""

    default_reason = "SENDING_FAILED"


@dataclass(frozen=True, slots=True)
class Begin:
    """An order: run this stage from this moment (of `time.monotonic()`, which all share)."""

    task: StageTask
    at: float


class Order(StrEnum):
    """The other orders: end the stage early; end."""

    STOP = "stop"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Opened:
    """A report: the process is connected."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A report, the last one: what went wrong, without texts, ids or tokens."""

    message: str


# --- in a process that sends ---------------------------------------------------------------------


def work(pipe: Connection, plan: LoadPlan, worker: int, workers: int) -> None:
    """What a process that sends does, from its begin to its end."""
    # They reach every process of a terminal, or a service. What becomes of them is the first one's
    # to say, whose end is seen at the pipe.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(_Worker(pipe, plan, worker, workers).live())
    except SemanticRecallError as error:
        pipe.send(Failed(error.message))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        pipe.send(Failed(f"{type(error).__name__} at {where}"))


class _Worker:
    def __init__(self, pipe: Connection, plan: LoadPlan, worker: int, workers: int) -> None:
        self._pipe = pipe
        self._sender = Sender(plan, worker, workers)
        self._orders: asyncio.Queue[Begin | None] = asyncio.Queue()

    async def live(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._read)
        await self._sender.open()
        try:
            self._pipe.send(Opened())
            while (order := await self._orders.get()) is not None:
                self._pipe.send(await self._run(order))
        finally:
            await self._sender.close()

    async def _run(self, order: Begin) -> WorkerStage:
        await asyncio.sleep(order.at - time.monotonic())
        return await self._sender.run(order.task, self._pipe.send)

    def _read(self) -> None:
        try:
            order: Begin | Order = self._pipe.recv()
        except (EOFError, OSError):
            # The first process is gone: there is nobody to send for, and nobody to clean up.
            os._exit(1)
        if order is Order.STOP:
            self._sender.stop()
        else:
            self._orders.put_nowait(order if isinstance(order, Begin) else None)


# --- in the first process ------------------------------------------------------------------------


@dataclass(slots=True)
class _Sending:
    number: int
    process: SpawnProcess
    pipe: Connection

    def receive(self) -> Any:
        """Its next report.

        Raises:
            SendingError: it is dead, or says that it failed.
        """
        try:
            report: object = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(CLOSE_SECONDS_MAX)
            raise SendingError(f"{self.name} {_end(self.process.exitcode)}") from None
        if isinstance(report, Failed):
            raise SendingError(f"{self.name} failed: {report.message}")
        return report

    def tell(self, order: Begin | Order) -> None:
        """Give an order. Whether it is dead is found out when its answer is waited for."""
        with suppress(OSError):
            self.pipe.send(order)

    @property
    def name(self) -> str:
        return f"sending process {self.number + 1}"


def _end(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with suppress(ValueError):
            return f"was killed ({signal.Signals(-exitcode).name})"
    return f"ended by itself (exit code {exitcode})"


class Fleet:
    """All processes that send. A context manager: they live inside, and are gone after it.

    Args:
        workers: how many.
        on_second: called with the number of a process and what it measured in a second.
        stop: whether to end before the time.

    Raises:
        SendingError: from `open` and `run`: one of them died, failed, or did not answer.
    """

    def __init__(
        self,
        plan: LoadPlan,
        workers: int,
        on_second: Callable[[int, WorkerSecond], None],
        stop: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._on_second = on_second
        self._stop = stop
        self._sending: list[_Sending] = []

    def __enter__(self) -> Self:
        # It blocks and unblocks signals itself when it starts, so it starts before.
        resource_tracker.ensure_running()
        try:
            with _without_interrupts():
                for number in range(self._workers):
                    self._sending.append(self._start(number))
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            for sending in self._sending:
                sending.tell(Order.CLOSE)
            until = time.monotonic() + CLOSE_SECONDS_MAX
            for sending in self._sending:
                sending.process.join(max(0.0, until - time.monotonic()))
        self._kill()

    def _start(self, number: int) -> _Sending:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=work,
            args=(theirs, self._plan, number, self._workers),
            name=f"load-{number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Sending(number, process, ours)

    def _kill(self) -> None:
        for sending in self._sending:
            sending.process.kill()
        for sending in self._sending:
            sending.process.join()
            sending.process.close()
            sending.pipe.close()
        self._sending.clear()

    def __len__(self) -> int:
        return self._workers

    @property
    def pids(self) -> list[int | None]:
        """The process ids."""
        return [sending.process.pid for sending in self._sending]

    def open(self) -> None:
        """Wait until all are connected."""
        until = time.monotonic() + OPEN_SECONDS_MAX
        for sending in self._sending:
            if not sending.pipe.poll(max(0.0, until - time.monotonic())):
                raise SendingError(f"{sending.name} was not ready in {OPEN_SECONDS_MAX:.0f} s")
            sending.receive()

    def run(self, task: Callable[[int], StageTask]) -> list[WorkerStage]:
        """Run a stage in all of them, from the same moment; what each measured, by its number.

        Args:
            task: of the process with this number.
        """
        begin = time.monotonic() + LEAD_SECONDS
        until, drain_s = begin, 0.0
        for sending in self._sending:
            given = task(sending.number)
            sending.tell(Begin(given, begin))
            drain_s = max(drain_s, given.drain_s)
            counting_s = SECONDS_PER_CALL_LEFT * min(
                given.calls_max, given.stage.rate_per_s * given.stage.duration_s
            )
            over = begin + given.stage.duration_s + given.drain_s
            until = max(until, over + counting_s + MARGIN_SECONDS)
        return self._listen(until, drain_s)

    def _listen(self, until: float, drain_s: float) -> list[WorkerStage]:
        stages: dict[int, WorkerStage] = {}
        stopping = False
        while waited := [s for s in self._sending if s.number not in stages]:
            if not stopping and self._stop():
                stopping = True
                until = min(until, time.monotonic() + drain_s + MARGIN_SECONDS)
                for sending in self._sending:
                    sending.tell(Order.STOP)
            if time.monotonic() > until:
                raise SendingError(f"{waited[0].name} did not end its stage in time")
            ready = wait([sending.pipe for sending in waited], POLL_SECONDS)
            for sending in (s for s in waited if s.pipe in ready):
                report = sending.receive()
                if isinstance(report, WorkerStage):
                    stages[sending.number] = report
                else:
                    self._on_second(sending.number, report)
        return [stages[number] for number in range(self._workers)]


@contextmanager
def _without_interrupts() -> Generator[None, None, None]:
    """Keep signals from processes that begin here until they can say that they do not want them.

    They inherit what is blocked. Here it is only put off.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
