"""The pictures of a load: latency by percentile, over time, against load, beside the client's own.

Each has a name, a title and a sentence that says what it shows, which is also read out in its
place. A load of a day is drawn with at most `POINTS_MAX` points to a line; the sentence says what
one of them is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .look import (
    LIGHT,
    counted,
    figure,
    inline_svg,
    legend_above,
    legend_below,
    line_look,
    logarithmic,
    look,
    marker,
    panels,
)
from .result import LoadResult, Percentiles, Second, StageResult

POINTS_MAX = 600
WHOLE_TOLERANCE_S = 0.01
MS_MIN = 0.001
"""The histograms' own resolution: what is less is drawn there on a log axis."""
ERRORS_MAX = 8
_STAGE_NAMES_MAX = 8
_WIDE_LOAD = 20
"""Loads that differ by more get a log axis."""
_COLOURS = {"recall": LIGHT["series-0"], "index": LIGHT["series-1"]}
_OWN_COLOURS = {"sent late": LIGHT["series-3"], "event loop late": LIGHT["series-5"]}
_CLOCKS = ((10_800, 3600, "hours"), (600, 60, "minutes"), (0, 1, "seconds"))
_PERCENTS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999)


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture, ready for a page.

    Attributes:
        name: unique among the pictures of a result, usable as an id.
        text: what it shows, in a sentence or two.
        svg: an element for an HTML page; see `look.inline_svg`.
    """

    name: str
    title: str
    text: str
    svg: str


@dataclass(frozen=True, slots=True)
class _Drawn:
    title: str
    text: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Neighbouring seconds of a stage as one point.

    Attributes:
        at: seconds from the load's begin, the middle.
        low, mean, high: calls a second, by "started", "finished" and "failed"; NaN where no second
            was whole: the stage's last one would look like an outage.
        p50, p99: the highest of the seconds, by operation; NaN where nothing was answered.
        errors: the most in a second, by code.
    """

    at: float
    low: dict[str, float]
    mean: dict[str, float]
    high: dict[str, float]
    p50: dict[str, float]
    p99: dict[str, float]
    errors: dict[str, int]


def pictures(result: LoadResult) -> list[Picture]:
    """All that the result has figures for, in the order in which they are read."""
    with look():
        return [
            Picture(name, drawn.title, drawn.text, inline_svg(*_named(name, drawn)))
            for name, drawn in figures(result)
        ]


def figures(result: LoadResult) -> Iterator[tuple[str, _Drawn]]:
    """The same as figures of the library, by name. To be drawn within `look`."""
    makers: dict[str, Callable[[LoadResult], _Drawn | None]] = {
        "percentiles": _by_percentile,
        "knee": _against_load,
        "time": _over_time,
        "client": _beside_the_client,
    }
    for name, maker in makers.items():
        if (drawn := maker(result)) is not None:
            yield name, drawn


def _named(name: str, drawn: _Drawn) -> tuple[Figure, str, str, str]:
    return drawn.figure, name, drawn.title, drawn.text


# --- latency by percentile ----------------------------------------------------------------------


def _by_percentile(result: LoadResult) -> _Drawn | None:
    operations = _operations(result)
    if not operations:
        return None
    several = len(result.stages) > 1
    drawn = figure(3.1 + (0.16 * math.ceil(len(result.stages) / 4) if several else 0))
    grid = panels(drawn, 1, len(operations), same_y=True)
    for axes, operation in zip(grid, operations, strict=True):
        reach = 1.0
        for number, stage in enumerate(result.stages):
            series = _latency(stage, operation)
            x, y = _curve(series)
            axes.plot(x, y, label=stage.name, **line_look(number))
            reach = max(reach, series.count)
        axes.set_title(operation)
        _percent_axis(axes, reach)
        logarithmic(axes, "y")
    grid[0].set_ylabel("ms")
    if several:
        legend_below(drawn, *grid)
    return _Drawn(
        "Latency by percentile",
        "How long the slowest calls took: at 99, one call of a hundred took longer than the line "
        "says. One line for each stage; both axes are logarithmic.",
        drawn,
    )


def _curve(series: Percentiles) -> tuple[list[float], list[float]]:
    """Of a percentile curve: 1 / (1 - share) and milliseconds.

    The last percentile, 100, has no place there. It stands where one call in all of them does.
    """
    x: list[float] = []
    y: list[float] = []
    for percent, ms in series.curve:
        share = percent / 100
        x.append(min(1 / (1 - share), series.count) if share < 1 else float(series.count))
        y.append(max(ms, MS_MIN))
    return x, y


def _percent_axis(axes: Axes, reach: float) -> None:
    axes.set_xscale("log")
    shown = [percent for percent in _PERCENTS if 1 / (1 - percent / 100) <= max(reach, 2) * 1.001]
    axes.set_xticks([1 / (1 - percent / 100) for percent in shown])
    axes.set_xticklabels([f"{percent:g}" for percent in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlim(1, max(reach, 10) * 1.2)
    axes.set_xlabel("percentile")


# --- over time ----------------------------------------------------------------------------------


def _over_time(result: LoadResult) -> _Drawn | None:
    size_s, buckets = _thinned(result.stages)
    if not any(buckets):
        return None
    codes = sorted({code for stage in buckets for bucket in stage for code in bucket.errors})
    rows = 3 if codes else 2
    drawn = figure(1.0 + 1.75 * rows)
    axes = panels(drawn, rows, 1)
    _rates(axes[0], buckets, banded=size_s > 1)
    _latencies(axes[1], buckets, _operations(result))
    if codes:
        _errors(axes[2], buckets, codes)
    _stage_names(axes, result.stages)
    legend_above(axes[0], gap=0.11 if len(result.stages) > 1 else 0.0)
    legend_above(axes[1])
    if codes:
        # Codes have long names, and there may be many of them.
        legend_below(drawn, axes[2])
    return _Drawn(
        "Over time",
        "Calls a second that began, ended and failed; latency of the calls that ended then"
        + ("; errors by code. " if codes else ". ")
        + _point_text(size_s),
        drawn,
    )


def _point_text(size_s: int) -> str:
    if size_s == 1:
        return "Each point is one second."
    return (
        f"Each point is {size_s} seconds: rates are their mean, with a band from the lowest to the "
        "highest second; latency is that of the slowest second, errors those of the worst."
    )


def _thinned(stages: Sequence[StageResult]) -> tuple[int, list[list[_Bucket]]]:
    """Seconds in a point, and the points of each stage, one stage after the other."""
    lengths = [_length_s(stage) for stage in stages]
    size_s = max(1, math.ceil(sum(lengths) / POINTS_MAX))
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    return size_s, [
        _buckets(stage, size_s, begin) for stage, begin in zip(stages, begins, strict=True)
    ]


def _length_s(stage: StageResult) -> float:
    """Of a stage in the picture: calls that it waited for at its end count in."""
    last = stage.timeline[-1].second + 1 if stage.timeline else 0
    return max(stage.seconds, float(last))


def _buckets(stage: StageResult, size_s: int, begin: float) -> list[_Bucket]:
    groups: dict[int, list[Second]] = {}
    for second in stage.timeline:
        groups.setdefault(second.second // size_s, []).append(second)
    whole_seconds = math.floor(stage.seconds + stage.drain_seconds + WHOLE_TOLERANCE_S)
    return [
        _bucket(group, begin + (number + 0.5) * size_s, whole_seconds)
        for number, group in sorted(groups.items())
    ]


def _bucket(seconds: Sequence[Second], at: float, whole_seconds: int) -> _Bucket:
    whole = [one for one in seconds if one.second < whole_seconds]
    rates = {
        "started": [one.started_per_s for one in whole] or [math.nan],
        "finished": [one.finished_per_s for one in whole] or [math.nan],
        "failed": [one.failed_per_s for one in whole] or [math.nan],
    }
    errors: dict[str, int] = {}
    p50: dict[str, float] = {}
    p99: dict[str, float] = {}
    for one in seconds:
        for code, count in one.errors.items():
            errors[code] = max(count, errors.get(code, 0))
        for operation, ms in one.p50_ms.items():
            p50[operation] = max(ms, p50.get(operation, 0.0))
        for operation, ms in one.p99_ms.items():
            p99[operation] = max(ms, p99.get(operation, 0.0))
    return _Bucket(
        at=at,
        low={name: min(values) for name, values in rates.items()},
        mean={name: sum(values) / len(values) for name, values in rates.items()},
        high={name: max(values) for name, values in rates.items()},
        p50=p50,
        p99=p99,
        errors=errors,
    )


def _rates(axes: Axes, buckets: list[list[_Bucket]], *, banded: bool) -> None:
    for number, name in enumerate(("started", "finished", "failed")):
        for stage in buckets:
            at = [bucket.at for bucket in stage]
            style = line_look(number)
            axes.plot(at, [bucket.mean[name] for bucket in stage], label=name, **style)
            if banded:
                low = [bucket.low[name] for bucket in stage]
                high = [bucket.high[name] for bucket in stage]
                axes.fill_between(at, low, high, color=style["color"], alpha=0.2, linewidth=0.7)
    axes.set_title("Rate")
    axes.set_ylabel("calls/s")
    counted(axes, "y")


def _latencies(axes: Axes, buckets: list[list[_Bucket]], operations: Sequence[str]) -> None:
    for operation in operations:
        for percentile, dashes in (("p50", "-"), ("p99", ":")):
            for stage in buckets:
                found = [(b.p50 if percentile == "p50" else b.p99).get(operation) for b in stage]
                axes.plot(
                    [bucket.at for bucket in stage],
                    [math.nan if ms is None else max(ms, MS_MIN) for ms in found],
                    label=f"{operation} {percentile}",
                    color=_COLOURS[operation],
                    linestyle=dashes,
                )
    axes.set_title("Latency")
    axes.set_ylabel("ms")
    logarithmic(axes, "y")


def _errors(axes: Axes, buckets: list[list[_Bucket]], codes: Sequence[str]) -> None:
    """The commonest codes by themselves, the others as one."""
    totals = {c: sum(b.errors.get(c, 0) for stage in buckets for b in stage) for c in codes}
    ranked = sorted(codes, key=lambda code: (-totals[code], code))
    lines: dict[str, Sequence[str]] = {code: (code,) for code in ranked[:ERRORS_MAX]}
    if len(ranked) > ERRORS_MAX:
        lines["other codes"] = ranked[ERRORS_MAX:]
    for number, (name, counted_codes) in enumerate(lines.items()):
        for stage in buckets:
            values = [sum(b.errors.get(code, 0) for code in counted_codes) for b in stage]
            style = line_look(number + 1)
            axes.plot(
                [b.at for b in stage],
                values,
                label=name,
                marker=marker(number),
                markevery=max(1, len(values) // 12),
                **style,
            )
    axes.set_title("Errors by code")
    axes.set_ylabel("calls/s")
    counted(axes, "y")


def _stage_names(grid: Sequence[Axes], stages: Sequence[StageResult]) -> None:
    """Where each stage begins, its name above the first panel, and a clock below the last."""
    lengths = [_length_s(stage) for stage in stages]
    total = sum(lengths)
    _clock(grid[-1], total)
    if len(stages) == 1:
        return
    grid[0].set_title("Rate", pad=18)
    begin = 0.0
    for number, (stage, length) in enumerate(zip(stages, lengths, strict=True)):
        if number:
            for axes in grid:
                axes.axvline(begin, color=LIGHT["muted"], linewidth=0.9, linestyle=(0, (4, 3)))
        grid[0].text(
            (begin + length / 2) / total,
            1.0,
            stage.name if len(stages) <= _STAGE_NAMES_MAX else str(number + 1),
            transform=grid[0].transAxes,
            ha="center",
            va="bottom",
            fontsize=7.5,
            color=LIGHT["muted"],
        )
        begin += length


def _clock(axes: Axes, total_s: float) -> None:
    """A time axis in seconds, minutes or hours, all of it."""
    unit_s, name = next((unit, name) for least, unit, name in _CLOCKS if total_s >= least)
    axes.set_xlim(0, total_s)
    steps = MaxNLocator(nbins=10, steps=[1, 2, 3, 5, 6, 10], integer=True)
    axes.set_xticks([tick * unit_s for tick in steps.tick_values(0, total_s / unit_s)])
    axes.set_xlim(0, total_s)

    def text(at: float, position: object) -> str:
        return f"{at / unit_s:g}"

    axes.xaxis.set_major_formatter(FuncFormatter(text))
    axes.set_xlabel(f"{name} of measured load")


# --- against load -------------------------------------------------------------------------------


def _against_load(result: LoadResult) -> _Drawn | None:
    loops = {stage.loop for stage in result.stages}
    operations = _operations(result)
    if len(result.stages) < 2 or len(loops) > 1 or not operations:
        return None
    is_open = all(stage.rate_per_s > 0 for stage in result.stages)
    stages = sorted(result.stages, key=lambda stage: (stage.rate_per_s, stage.in_flight))
    load = [stage.rate_per_s if is_open else float(stage.in_flight) for stage in stages]
    drawn = figure(3.5)
    left, right = panels(drawn, 1, 2)
    for number, operation in enumerate(operations):
        for percentile, dashes in (("p50", "-"), ("p99", ":")):
            series = [_latency(stage, operation) for stage in stages]
            ms = [one.p50 if percentile == "p50" else one.p99 for one in series]
            left.plot(
                load,
                [max(v, MS_MIN) if s.count else math.nan for v, s in zip(ms, series, strict=True)],
                label=f"{operation} {percentile}",
                color=_COLOURS[operation],
                linestyle=dashes,
                marker=marker(number),
            )
    left.set_title("Latency")
    left.set_ylabel("ms")
    logarithmic(left, "y")
    is_wide = load[-1] > _WIDE_LOAD * load[0]
    _achieved(right, stages, load, is_open=is_open)
    (logarithmic if is_wide else counted)(right, "y")
    for axes in (left, right):
        axes.set_xlabel("calls/s scheduled" if is_open else "in flight")
        (logarithmic if is_wide else counted)(axes, "x")
    legend_below(drawn, left, right)
    return _Drawn(
        "Against load",
        "Latency, and what was answered, at each stage's load. Where latency bends up and the "
        "answered rate leaves the scheduled one, the sidecar (or the sending side; see the "
        "findings) is at its limit: the knee."
        if is_open
        else "Latency, and what was answered, by the number of callers. More callers than the "
        "sidecar has cores for raise latency and leave the rate as it is.",
        drawn,
    )


def _achieved(
    axes: Axes, stages: Sequence[StageResult], load: Sequence[float], *, is_open: bool
) -> None:
    answered = [sum(o.per_s for o in stage.operations.values()) for stage in stages]
    if is_open:
        ends = [min(load), max(load)]
        axes.plot(ends, ends, color=LIGHT["muted"], linestyle="--", linewidth=1, label="scheduled")
        started = [s.schedule.started_per_s if s.schedule else math.nan for s in stages]
        axes.plot(load, started, label="sent in time", marker=marker(3), **line_look(3))
    axes.plot(load, answered, label="answered OK", marker=marker(2), **line_look(2))
    axes.set_title("Rate")
    axes.set_ylabel("calls/s")


# --- beside the client --------------------------------------------------------------------------


def _beside_the_client(result: LoadResult) -> _Drawn | None:
    rows: list[tuple[str, str, Percentiles]] = []
    for stage in result.stages:
        rows += [(stage.name, o, _latency(stage, o)) for o in stage.operations]
        if stage.schedule is not None:
            rows.append((stage.name, "sent late", stage.schedule.client_lateness_ms))
        rows.append((stage.name, "event loop late", stage.client.loop_lag_ms))
    rows = [row for row in rows if row[2].count]
    if not rows:
        return None
    drawn = figure(0.95 + 0.2 * len(rows) + 0.12 * len(result.stages))
    (axes,) = panels(drawn, 1, 1)
    places: list[float] = []
    y, stage_before = 0.0, ""
    for stage_name, kind, series in rows:
        y += 1.0 if stage_name == stage_before else 1.6
        stage_before = stage_name
        places.append(-y)
        _reach(axes, -y, series, {**_COLOURS, **_OWN_COLOURS}[kind])
    several = len(result.stages) > 1
    names = [f"{stage}: {kind}" if several else kind for stage, kind, _ in rows]
    axes.set_yticks(places, names)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(-y - 0.8, -0.8)
    logarithmic(axes, "x")
    axes.set_xlabel("ms")
    for shape, name in (("o", "p50"), ("d", "p99"), ("|", "p99.9")):
        axes.plot([], [], marker=shape, color=LIGHT["ink"], linestyle="none", label=name)
    legend_below(drawn, axes)
    return _Drawn(
        "Latency beside the sending side's own delays",
        "From the median to 99.9 of 100, with a mark at 99. “Sent late” is what this tool "
        "added by sending a call after it was due; “event loop late” is how late its own "
        "timers ran. Where they reach into the latencies, part of those is the tool's.",
        drawn,
    )


def _reach(axes: Axes, y: float, series: Percentiles, colour: str) -> None:
    values = [max(ms, MS_MIN) for ms in (series.p50, series.p99, series.p99_9)]
    axes.plot([values[0], values[2]], [y, y], color=colour, linewidth=1.8)
    for ms, shape, size in zip(values, "od|", (5, 5, 9), strict=True):
        axes.plot([ms], [y], color=colour, marker=shape, markersize=size, linestyle="none")


# --- of all -------------------------------------------------------------------------------------


def _operations(result: LoadResult) -> list[str]:
    """Those that were answered OK at least once, in the order of the first stage."""
    seen = [name for stage in result.stages for name in stage.operations]
    return [
        name
        for name in dict.fromkeys(seen)
        if any(_latency(stage, name).count for stage in result.stages)
    ]


def _latency(stage: StageResult, operation: str) -> Percentiles:
    found = stage.operations.get(operation)
    return found.latency_ms if found else Percentiles()
