"""What tests of one sending process share: plans, a run of one stage, and that no call is lost."""

from __future__ import annotations

from collections.abc import Callable

from semanticrecall.connection import connection
from semanticrecall.load.histograms import Histogram
from semanticrecall.load.measured import WorkerSecond, WorkerStage
from semanticrecall.load.plan import Arrivals, LoadPlan, Loop, Stage, Workload
from semanticrecall.load.sending import Sender, StageTask

RECALLS = Workload(recall_share=1.0, resources=5)
Tell = Callable[[WorkerSecond], None]


def nobody(second: WorkerSecond) -> None:
    """Does not listen."""
    del second


def open_plan(address: str, rate_per_s: float, duration_s: float = 1.0) -> LoadPlan:
    return LoadPlan(
        connection=connection(address, {}),
        workload=RECALLS,
        arrivals=Arrivals.CONSTANT,
        stages=(Stage(rate_per_s=rate_per_s, duration_s=duration_s),),
    )


def closed_plan(address: str, in_flight: int, duration_s: float = 60.0) -> LoadPlan:
    return LoadPlan(
        connection=connection(address, {}),
        workload=RECALLS,
        loop=Loop.CLOSED,
        stages=(Stage(in_flight=in_flight, duration_s=duration_s),),
    )


def task_of(plan: LoadPlan, calls_max: int = 1_000_000, drain_s: float = 30.0) -> StageTask:
    return StageTask(
        stage=plan.stages[0], number=1, worker=0, workers=1, calls_max=calls_max, drain_s=drain_s
    )


async def sent(plan: LoadPlan, task: StageTask | None = None, tell: Tell = nobody) -> WorkerStage:
    sender = Sender(plan, 0, 1)
    await sender.open()
    try:
        return await sender.run(task or task_of(plan), tell)
    finally:
        await sender.close()


def all_adds_up(stage: WorkerStage) -> bool:
    """No call is lost: every one that was due ended or is unfinished, in totals and seconds."""
    answered = sum(len(Histogram.decode(o.latency)) for o in stage.operations.values())
    failed = sum(sum(o.errors.values()) for o in stage.operations.values())
    recorded = sum(len(Histogram.decode(o.failed_latency)) for o in stage.operations.values())
    seconds = stage.seconds
    return (
        stage.scheduled == stage.finished + stage.unfinished
        and stage.started <= stage.scheduled
        and stage.finished == answered + failed
        and recorded == failed
        and [second.second for second in seconds] == list(range(len(seconds)))
        and sum(second.finished for second in seconds) == stage.finished
        and sum(second.failed for second in seconds) == failed
    )


def sum_s(encoded: bytes, least: int = 0) -> float:
    """The sum of a histogram's times, to a thousandth; checks how many there are."""
    found = Histogram.decode(encoded).percentiles()
    assert found.count >= least
    return found.count * found.mean / 1e3
