"""A load from its begin to its end: connect, prepare, warm up, measure, clean up, add up.

Whatever happens between, what the load wrote is forgotten before it returns or raises, unless it
shall be kept: after an error, after a process that died, and after Ctrl-C. Only a second Ctrl-C
leaves it, and says so.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from .. import __version__
from ..client import RecallClient
from ..errors import SemanticRecallError
from .adding_up import stage_result
from .findings import (
    findings_of,
    in_flight_reached,
    interrupted,
    not_cleaned_up,
)
from .fleet import Fleet, SendingError
from .interruption import Interruption
from .loops import StageTask
from .measured import WorkerSecond
from .plan import PROCESSES_MAX, LoadPlan, Loop, Stage
from .preparing import Preparer, forget_all
from .result import Finding, LoadResult, Preparation, StageResult
from .schedule import share
from .sending import Sender
from .target import client_of, target_of
from .workload import resource_id, resource_ids

# How long answers are waited for after the last call was sent.
DRAIN_SECONDS_MAX = 60.0
# One process is enough for a load that takes no more of a core, and that it sends so punctually.
ENOUGH_CPU_SHARE = 0.8
PUNCTUAL_MS = 5.0
IDLE_CPU_SHARE = 0.3
# A stage that reached the most calls so near to its end would not have sent more of them.
CUT_SHORT_CALLS = 5
CUT_SHORT_SHARE = 0.01


class Observer:
    """Is told how a load goes. Its methods do nothing; a subclass shows what it wants to."""

    def phase(self, name: str, *, seconds: float = 0.0, processes: int = 0) -> None:
        """Another part of the load begins.

        Args:
            name: "preparing", "warm-up", a stage's name, "cleaning up".
            seconds: how long it takes, where that is known.
            processes: that send in it.
        """

    def progress(self, done: int, total: int) -> None:
        """Of a phase without seconds; `total` is 0 where it is not known."""

    def second(self, worker: int, second: WorkerSecond) -> None:
        """What a process measured in a second."""

    def note(self, text: str) -> None:
        """Something worth to know."""


class LoadEndedError(SemanticRecallError):
    """Raised when the sending side failed in the middle of a load.

    Attributes:
        result: of the stages that were complete by then.
    """

    default_reason = "LOAD_ENDED"
    result: LoadResult


def run_load(plan: LoadPlan, command: str, observer: Observer) -> LoadResult:
    """Run a load where its plan points.

    On the main thread the first SIGINT or SIGTERM ends it early, with what was measured so far.

    Args:
        command: the command line that repeats it; becomes a part of the result as it is.

    Raises:
        InvalidArgumentError: the plan breaks a limit.
        UnavailableError: no sidecar answers.
        SemanticRecallError: the server refused to be asked or prepared.
        LoadEndedError: a process that sends died or failed.
        KeyboardInterrupt: at the second signal. Nothing is cleaned up then.
    """
    plan.check()
    # It knows more limits, and would else be made in other processes only.
    Sender(plan, 0, plan.processes or 1)
    with Interruption() as interruption, client_of(plan.connection) as memory:
        return _Load(plan, command, observer, interruption, memory).run()


class _Load:
    def __init__(
        self,
        plan: LoadPlan,
        command: str,
        observer: Observer,
        interruption: Interruption,
        memory: RecallClient,
    ) -> None:
        self._plan = plan
        self._command = command
        self._observer = observer
        self._interruption = interruption
        self._memory = memory
        self._started_at = datetime.now(UTC)
        self._preparer = Preparer(plan, lambda: interruption.requested)
        self._preparation = Preparation()
        self._stages: list[StageResult] = []
        self._calls_left = plan.calls_max
        # Numbers of the resources that calls wrote to, as far as the processes have handed it over.
        self._numbers_written: set[int] = set()
        self._is_handed_over = True
        # Whether calls may have been cut off, so that the server goes on with them.
        self._cut_off = False
        self._ends: list[Finding] = []
        self._told_of_stop = False
        self._cut_short_by_stop = False

    def run(self) -> LoadResult:
        self._memory.wait_until_reachable()
        self._target = target_of(self._plan.connection, self._memory)
        try:
            try:
                self._prepare()
                self._send()
            except SendingError as error:
                self._cut_off = True
                self._ends.append(interrupted(f"The load ended early: {error.message}."))
                self._clean_up()
                ended = LoadEndedError(error.message, reason=error.reason)
                ended.result = self._result()
                raise ended from None
            except Exception:
                self._cut_off = True
                self._clean_up()
                raise
            self._clean_up()
        except KeyboardInterrupt:
            self._say_what_is_left("the load was ended at once")
            raise
        return self._result()

    # --- before, and after ------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self._plan.workload.existing_resources or not self._plan.workload.messages_before:
            return
        self._observer.phase("preparing")
        self._preparation = self._preparer.run(self._prepared)
        if self._preparer.pending:
            self._observer.note(
                f"{self._preparer.pending:,} of the messages that were prepared are stored, but "
                "not searchable yet: recalls find less until they are."
            )
        self._cut_off |= self._preparer.cut_off
        self._shall_stop()

    def _prepared(self, done: int, total: int) -> None:
        self._observer.progress(done, total)
        self._shall_stop()

    def _clean_up(self) -> None:
        # A stop that comes later cuts nothing short of what was measured.
        self._cut_short_by_stop = self._interruption.requested
        if not self._has_written:
            return
        if self._plan.workload.keep:
            self._say_what_is_left("--keep")
            return
        self._observer.phase("cleaning up")
        swept = forget_all(self._memory, self._written, self._forgotten, again=self._cut_off)
        if swept.problem:
            found = not_cleaned_up(self._plan.workload.resource_prefix, swept.problem)
            self._ends.append(found)
            self._observer.note(found.text)

    @property
    def _has_written(self) -> bool:
        workload = self._plan.workload
        if workload.existing_resources:
            return False
        if not self._is_handed_over and workload.recall_share < 1:
            return True
        return bool(self._preparer.written or self._numbers_written)

    def _written(self) -> Collection[str]:
        """Resources that may hold something: those prepared, and those that calls wrote to.

        Where a process did not say which, all that are made up.
        """
        workload = self._plan.workload
        if not self._is_handed_over and workload.recall_share < 1:
            return list(resource_ids(workload))
        numbered = {resource_id(workload, number) for number in self._numbers_written}
        return sorted(numbered | self._preparer.written)

    def _forgotten(self, done: int, total: int) -> None:
        self._observer.progress(done, 0)
        if self._interruption.requested and not self._told_of_stop:
            self._told_of_stop = True
            self._observer.note(
                f"Interrupted: it is cleaning up, {total - done:,} of {total:,} resources are "
                "left. A second Ctrl-C ends it at once, and leaves the rest in the store, in "
                f"resources whose names begin with {self._plan.workload.resource_prefix!r}."
            )

    def _say_what_is_left(self, why: str) -> None:
        if self._has_written:
            prefix = self._plan.workload.resource_prefix
            self._observer.note(
                f"What this load wrote is left in the store ({why}), in resources whose names "
                f"begin with {prefix!r}. `semanticrecall forget RESOURCE --everything` removes one."
            )

    # --- sending ----------------------------------------------------------------------------------

    def _send(self) -> None:
        processes = self._plan.processes or 1
        while not self._interruption.requested:
            with self._fleet(processes) as fleet:
                fleet.open()
                more = self._warm_up(fleet)
                if more == processes:
                    self._measure(fleet)
                    return
            self._observer.note(
                "The sending side would be the bottleneck of this load: it goes on with "
                f"{more} processes instead of {processes}, and warms up again."
            )
            processes = more

    def _fleet(self, processes: int) -> Fleet:
        return Fleet(self._plan, processes, self._observer.second, self._shall_stop)

    def _shall_stop(self) -> bool:
        if self._interruption.requested and not self._told_of_stop:
            self._told_of_stop = True
            self._observer.note(
                "Interrupted: the calls under way are waited for, then it cleans up. Another "
                "Ctrl-C ends it at once."
            )
        return self._interruption.requested

    def _warm_up(self, fleet: Fleet) -> int:
        """Send without measuring; how many processes it takes."""
        plan = self._plan
        if not plan.warm_up_s:
            return len(fleet)
        stage = dataclasses.replace(plan.stages[0], duration_s=plan.warm_up_s)
        found = self._stage(fleet, stage, "warm-up", ramp_s=plan.ramp_s, calls_max=plan.calls_max)
        if plan.processes or self._interruption.requested:
            return len(fleet)
        return processes_wanted(plan, found)

    def _measure(self, fleet: Fleet) -> None:
        for stage in self._plan.stages:
            if self._interruption.requested or self._calls_left <= 0:
                break
            found = self._stage(fleet, stage, stage.name, calls_max=self._calls_left)
            if found.scheduled or not self._interruption.requested:
                self._stages.append(found)
            # Not more than `in_flight_max` of those that did not end can have been sent.
            cut_off = min(found.unfinished, self._plan.in_flight_max)
            self._calls_left -= found.finished + cut_off

    def _stage(
        self, fleet: Fleet, stage: Stage, name: str, *, calls_max: int, ramp_s: float = 0.0
    ) -> StageResult:
        self._observer.phase(name, seconds=stage.duration_s, processes=len(fleet))
        number = len(self._stages) + (name != "warm-up")
        self._is_handed_over = False
        parts = fleet.run(
            lambda worker: StageTask(
                stage=stage,
                number=number,
                worker=worker,
                workers=len(fleet),
                ramp_s=ramp_s,
                calls_max=share(calls_max, worker, len(fleet)),
                drain_s=min(DRAIN_SECONDS_MAX, self._plan.timeout_ms / 1000),
            )
        )
        for part in parts:
            self._numbers_written.update(part.resources_written)
        self._is_handed_over = True
        found = stage_result(self._plan.loop, stage, parts)
        failed = any(operation.errors for operation in found.operations.values())
        self._cut_off |= bool(found.unfinished or failed)
        return found

    @property
    def _is_cut_short(self) -> bool:
        """Calls were to be sent beyond the most that may be."""
        if self._calls_left > 0:
            return False
        if len(self._stages) < len(self._plan.stages):
            return True
        planned, ran = self._plan.stages[-1], self._stages[-1]
        left_s = planned.duration_s - ran.seconds
        if self._plan.loop is Loop.OPEN:
            return left_s * planned.rate_per_s > CUT_SHORT_CALLS
        return left_s > CUT_SHORT_SHARE * planned.duration_s

    # --- what it came to --------------------------------------------------------------------------

    def _result(self) -> LoadResult:
        if self._cut_short_by_stop:
            self._ends.insert(0, interrupted("The load was interrupted: what follows is a part."))
        elif self._interruption.requested:
            told = "It was interrupted while it cleaned up: what follows is whole."
            self._ends.insert(0, interrupted(told))
        found = findings_of(
            self._plan, self._target, self._stages, calls_max_reached=self._is_cut_short
        )
        return LoadResult(
            started_at=self._started_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            version=__version__,
            command=self._command,
            machine=_machine(),
            target=self._target,
            plan=settings_of(self._plan),
            preparation=self._preparation,
            stages=self._stages,
            findings=[*self._ends, *found],
        )


def processes_wanted(plan: LoadPlan, warm_up: StageResult) -> int:
    """How many processes a load takes: as many as warmed it up, or double that, and so on.

    A process that has no time left, or that is late by its own fault, is a bottleneck. So is one
    that would have none left at the highest rate of the plan.
    """
    processes = warm_up.client.processes
    most = min(PROCESSES_MAX, os.cpu_count() or 1, _callers(plan))
    busiest = max(warm_up.client.cpu_shares) * _growth(plan)
    wanted = processes
    while busiest * processes / wanted > ENOUGH_CPU_SHARE and wanted * 2 <= most:
        wanted *= 2
    if wanted == processes and _is_late(plan, warm_up) and processes * 2 <= most:
        wanted *= 2
    return wanted


def _callers(plan: LoadPlan) -> int:
    """Into how many processes the calls under way can be divided."""
    if plan.loop is Loop.OPEN:
        return plan.in_flight_max
    return min(stage.in_flight for stage in plan.stages)


def _growth(plan: LoadPlan) -> float:
    """How much more the heaviest stage asks than the first one, which the warm-up is like."""
    if plan.loop is Loop.CLOSED:
        return 1.0
    return max(stage.rate_per_s for stage in plan.stages) / plan.stages[0].rate_per_s


def _is_late(plan: LoadPlan, warm_up: StageResult) -> bool:
    """Whether another process would send what this one sends late.

    One that is late though it has time does not get a core: then it would not either.
    """
    schedule = warm_up.schedule
    if schedule is None or max(warm_up.client.cpu_shares) < IDLE_CPU_SHARE:
        return False
    if schedule.client_lateness_ms.p99 > PUNCTUAL_MS:
        return True
    return not schedule.kept and not in_flight_reached(warm_up, plan.in_flight_max)


def settings_of(plan: LoadPlan) -> Mapping[str, Any]:
    """A plan without its connection, and with counts where it holds texts and names."""
    found = _fields(plan, without={"connection", "workload", "stages"})
    workload = _fields(plan.workload, without={"queries", "existing_resources"})
    workload["queries"] = len(plan.workload.queries)
    workload["existing_resources"] = len(plan.workload.existing_resources)
    return {
        **found,
        "stages": [dataclasses.asdict(stage) for stage in plan.stages],
        "workload": workload,
    }


def _fields(value: Any, *, without: set[str]) -> dict[str, Any]:
    plain: Callable[[Any], Any] = lambda v: dataclasses.asdict(v) if _is_object(v) else v  # noqa: E731
    return {
        field.name: plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.name not in without
    }


def _is_object(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _machine() -> str:
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
