"""Pictures of results: every chart of a benchmark's JSON, as PNG and as SVG.

Usage: python -m benchmarks.plot RESULT.json [RESULT.json ...] --out DIRECTORY

A chart says which table it draws (`report.Chart`). A file holds one result, or several under
"results" (`benchmarks.bars`). Below each picture stand the machine, the settings and the command
that measured it; the result of a smoke run says that it is one. A chart without rows is left out,
and a line says so. Equal results give equal files.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from benchmarks.report import Chart
from semanticrecall.load.look import (
    LIGHT,
    counted,
    figure,
    line_look,
    logarithmic,
    look,
    marker,
    number_text,
    panels,
    svg_text,
)

HEIGHT_IN = 4.2
PNG_DPI = 160
TICKS_MAX = 12
LABELLED_BARS_MAX = 16
NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
PRINT_COLUMNS = 150
PRINT_POINTS = 6.5
PRINT_LINE_IN = 0.115
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")
SMOKE = "Smoke run: it shows that everything runs; its figures mean nothing."


class PlotError(Exception):
    """A file that is no result, or charts that cannot be told apart. Its text is for people."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or one colour of bars. The points of a line over numbers are in their order."""

    name: str
    points: Sequence[tuple[Any, float]]


def results_of(file: Path) -> list[dict[str, Any]]:
    """The results that a file holds.

    Raises:
        PlotError: it cannot be read, or holds none.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PlotError(f"{file}: {error}") from None
    results = found.get("results", [found]) if isinstance(found, dict) else []
    if not results or not all(isinstance(one, dict) and "script" in one for one in results):
        raise PlotError(f"{file} holds no result of a benchmark")
    return list(results)


def charts_of(result: Mapping[str, Any]) -> Iterator[Chart]:
    """Its charts; attributes of a later version are left out.

    Raises:
        PlotError: a name that is none for a file.
    """
    known = {field.name for field in fields(Chart)}
    for written in result.get("charts", []):
        chart = Chart(**{name: value for name, value in written.items() if name in known})
        if not NAME.fullmatch(chart.name):
            raise PlotError(f"{chart.name!r} is no name for a picture")
        yield chart


def lines_of(result: Mapping[str, Any], chart: Chart) -> list[Line]:
    """What is drawn: the rows of the chart that have a number, by line, in order of appearance."""
    points: dict[str, list[tuple[Any, float]]] = {}
    for row in result.get("tables", {}).get(chart.table, []):
        if any(row[name] != value for name, value in chart.only.items()):
            continue
        y = row.get(chart.y)
        if isinstance(y, int | float) and math.isfinite(y) and not (chart.y_log and y <= 0):
            name = ", ".join(str(row[column]) for column in chart.by)
            points.setdefault(name, []).append((row[chart.x], float(y)))
    if chart.kind == "line" and _is_numeric(points.values()):
        for line in points.values():
            line.sort(key=lambda point: point[0])
    return [Line(name, line) for name, line in points.items()]


def drawn(result: Mapping[str, Any], chart: Chart) -> Figure | None:
    """The picture; None where there is nothing to draw. To be called within `look`."""
    lines = lines_of(result, chart)
    if not lines:
        return None
    small_print = _small_print(result)
    bottom_in = PRINT_LINE_IN * (len(small_print) + 1)
    height_in = HEIGHT_IN + bottom_in
    picture = figure(height_in, below_in=bottom_in)
    (axes,) = panels(picture, 1, 1)
    (_bars if chart.kind == "bar" else _lines)(axes, chart, lines)
    axes.set_title(chart.title, fontsize=11, pad=10)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.by:
        picture.legend(
            loc="outside right upper",
            title=", ".join(column.replace("_", " ") for column in chart.by),
            alignment="left",
            handlelength=3.2,
        )
    picture.text(
        0.012,
        0.3 * PRINT_LINE_IN / height_in,
        "\n".join(small_print),
        fontsize=PRINT_POINTS,
        color=LIGHT["muted"],
        va="bottom",
        linespacing=1.25,
    )
    if result.get("smoke"):
        _mark_smoke(axes)
    return picture


def _lines(axes: Axes, chart: Chart, lines: Sequence[Line]) -> None:
    numeric = _is_numeric(line.points for line in lines)
    places = {x: at for at, x in enumerate(_appearing(lines))}
    for number, line in enumerate(lines):
        axes.plot(
            [x if numeric else places[x] for x, _ in line.points],
            [y for _, y in line.points],
            label=line.name,
            marker=marker(number),
            **line_look(number),
        )
    if not numeric:
        axes.set_xticks(list(places.values()), [_category(x) for x in places])
    elif chart.x_log:
        logarithmic(axes, "x")
    _ticks_at_points(axes, lines, numeric=numeric)
    _y_axis(axes, chart)


def _bars(axes: Axes, chart: Chart, lines: Sequence[Line]) -> None:
    places = {x: at for at, x in enumerate(_appearing(lines))}
    width = 0.82 / len(lines)
    labelled = len(lines) * len(places) <= LABELLED_BARS_MAX
    for number, line in enumerate(lines):
        left = (number - (len(lines) - 1) / 2) * width
        bars = axes.bar(
            [places[x] + left for x, _ in line.points],
            [y for _, y in line.points],
            width * 0.92,
            label=line.name,
            color=line_look(number)["color"],
            edgecolor="white",
            linewidth=0.4,
            hatch=HATCHES[number % len(HATCHES)],
        )
        if labelled:
            texts = [number_text(y) for _, y in line.points]
            axes.bar_label(bars, texts, padding=2, fontsize=7)
    axes.set_xticks(list(places.values()), [_category(x) for x in places])
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.08)
    _y_axis(axes, chart)


def _y_axis(axes: Axes, chart: Chart) -> None:
    if chart.y_log:
        logarithmic(axes, "y")
    else:
        counted(axes, "y")


def _ticks_at_points(axes: Axes, lines: Sequence[Line], *, numeric: bool) -> None:
    """What was measured is what stands at the axis, where that is not too much."""
    if not numeric:
        return
    measured = sorted({x for line in lines for x, _ in line.points})
    if len(measured) > TICKS_MAX:
        return
    axes.xaxis.set_major_locator(FixedLocator(measured))
    axes.xaxis.set_major_formatter(FixedFormatter([number_text(x) for x in measured]))


def _appearing(lines: Sequence[Line]) -> list[Any]:
    """Values of x in the order in which they first appear."""
    return list(dict.fromkeys(x for line in lines for x, _ in line.points))


def _is_numeric(lines: Any) -> bool:
    return all(
        isinstance(x, int | float) and not isinstance(x, bool) for line in lines for x, _ in line
    )


def _category(x: Any) -> str:
    numeric = isinstance(x, int | float) and not isinstance(x, bool)
    return number_text(x) if numeric else textwrap.fill(str(x), 16)


def _small_print(result: Mapping[str, Any]) -> list[str]:
    """Machine, settings and command, in lines that fit."""
    settings = ", ".join(f"{name}={value}" for name, value in result["config"].items())
    smoke = [SMOKE] if result.get("smoke") else []
    paragraphs = [*smoke, str(result["machine"]), settings, str(result["command"])]
    return [line for text in paragraphs for line in textwrap.wrap(text, PRINT_COLUMNS)]


def _mark_smoke(axes: Axes) -> None:
    axes.text(
        0.5,
        0.5,
        "SMOKE RUN",
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=48,
        fontweight="bold",
        color=LIGHT["muted"],
        alpha=0.15,
        rotation=18,
    )


def write_pictures(results: Sequence[Mapping[str, Any]], out: Path) -> Iterator[str]:
    """Draw every chart of the results into a directory; yields a line for each of them.

    Raises:
        PlotError: two charts have one name, or one's name is none for a file.
        OSError: a file cannot be written.
    """
    charts = [(result, chart) for result in results for chart in charts_of(result)]
    names = [chart.name for _, chart in charts]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PlotError(f"more than one chart is named {', '.join(sorted(twice))}")
    for result in results:
        if result.get("skipped"):
            yield f"{result['script']}: nothing was measured: {result['skipped']}"
        elif not result.get("charts"):
            yield f"{result['script']}: it has no charts"
    out.mkdir(parents=True, exist_ok=True)
    for result, chart in charts:
        with look():
            picture = drawn(result, chart)
            if picture is None:
                yield f"{chart.name}: skipped, no rows"
                continue
            (out / f"{chart.name}.svg").write_text(svg_text(picture, chart.name), "utf-8")
            no_date = {"Software": None}
            picture.savefig(out / f"{chart.name}.png", dpi=PNG_DPI, metadata=no_date)
        yield f"{chart.name}: {out / chart.name}.png, .svg"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0, or 2 where a file is no result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="what --json of benchmarks wrote")
    parser.add_argument("--out", type=Path, required=True, help="directory of the pictures")
    chosen = parser.parse_args(arguments)
    try:
        results = [result for file in chosen.results for result in results_of(file)]
        for line in write_pictures(results, chosen.out):
            print(line)
    except (PlotError, OSError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
