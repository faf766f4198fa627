"""How pictures look, on a page of the load report and in the files of the benchmarks.

Figures are drawn with the colours of `LIGHT`. `inline_svg` puts a CSS variable in the place of each
of them, so that one picture is readable on light and on dark pages. The library is used through its
object API; the only state of its own that it knows, its settings, is set and put back by `look`,
which is why pictures are drawn by one thread at a time.
"""

from __future__ import annotations

import html
import io
import logging
import math
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_library_log = logging.getLogger("matplotlib")
_level = _library_log.level
# Without a home to write to it says, when it is imported, that it keeps its cache elsewhere. That
# is no concern of whoever runs a load.
_library_log.setLevel(logging.ERROR)
try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
finally:
    _library_log.setLevel(_level)

WIDTH_IN = 9.0
# What is laid out with, and what is asked for where the picture is shown: the first one comes with
# the library, so that layouts are the same on every machine, and is wider than the others.
_LAYOUT_FONT = "DejaVu Sans"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Eight colours that differ for every kind of colour vision, in lightness too, each at least 3:1
# against its page (a test simulates them). Names are those of the CSS variables.
LIGHT = {
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#d1d9e0",
    "series-0": "#1596e5",
    "series-1": "#e36f0d",
    "series-2": "#104f3f",
    "series-3": "#901687",
    "series-4": "#5e4508",
    "series-5": "#899098",
    "series-6": "#6600ee",
    "series-7": "#0b0b26",
}
DARK = {
    "ink": "#e6edf3",
    "muted": "#9aa5b1",
    "line": "#3a424c",
    "series-0": "#4cb4ff",
    "series-1": "#f7a774",
    "series-2": "#1a7552",
    "series-3": "#b62297",
    "series-4": "#8b6404",
    "series-5": "#b3b6bf",
    "series-6": "#7744ee",
    "series-7": "#aaff00",
}
COLOURS = 8
# As many as have no factor with the colours: a pair comes back after forty lines.
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 1.5, 1, 1.5, 1, 1.5)))
_MARKERS = "os^DvPX<"

_SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["muted"],
    "axes.grid": True,
    "axes.labelcolor": LIGHT["ink"],
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": LIGHT["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "font.family": _LAYOUT_FONT,
    "font.size": 9,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": LIGHT["ink"],
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "text.color": LIGHT["ink"],
    "text.parse_math": False,
    "xtick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "xtick.labelsize": 8.5,
    "ytick.color": LIGHT["muted"],
    "ytick.labelcolor": LIGHT["ink"],
    "ytick.labelsize": 8.5,
}

_ID = re.compile(r' id="([^"]+)"')
_USED = re.compile(r'(url\(#|href="#)([^)"]+)')


@contextmanager
def look() -> Generator[None, None, None]:
    """Draw and save figures inside this: the same look whatever a user's own settings say."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams  # which names there are differs between versions
        settings.update(_SETTINGS)
        yield


def figure(height_in: float, *, below_in: float = 0.0) -> Figure:
    """An empty figure that makes room for its labels.

    Args:
        below_in: of the height, what is kept free at the bottom for text.
    """
    kept = below_in / height_in
    engine = ConstrainedLayoutEngine(rect=(0, kept, 1, 1 - kept))
    return Figure(figsize=(WIDTH_IN, height_in), layout=engine)


def panels(drawn: Figure, rows: int, columns: int, *, same_y: bool = False) -> list[Axes]:
    """Axes of a figure, row by row; those of a column share x, those of a row y where asked."""
    grid: Any = drawn.subplots(
        rows, columns, sharex="col", sharey="row" if same_y else False, squeeze=False
    )
    return list(grid.flat)


def line_look(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line: told apart without colour, and by forty lines."""
    return {
        "color": LIGHT[f"series-{number % COLOURS}"],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def marker(number: int) -> str:
    """The shape of the n-th line's points."""
    return _MARKERS[number % len(_MARKERS)]


def logarithmic(axes: Axes, axis: str) -> None:
    """A log axis "x" or "y" of what is plotted, with numbers a person reads: 0.5, 20, 1k, 1M.

    It begins and ends at 1, 2 or 5 times a power of ten, so that it has two numbers at least. Where
    nothing is plotted it stays as it is.
    """
    low, high = axes.dataLim.intervalx if axis == "x" else axes.dataLim.intervaly
    shared = (axes.get_shared_x_axes() if axis == "x" else axes.get_shared_y_axes()).get_siblings
    for one in shared(axes):
        other = one.dataLim.intervalx if axis == "x" else one.dataLim.intervaly
        low, high = min(low, other[0]), max(high, other[1])
    if not 0 < low <= high < math.inf:
        return
    (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    low, high = _step(low * 0.98, math.floor), _step(high * 1.02, math.ceil)
    (axes.set_xlim if axis == "x" else axes.set_ylim)(low, high)
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low <= 1000 else (1,)))
    ticks.set_major_formatter(FuncFormatter(_tick_text))
    ticks.set_minor_locator(NullLocator())


def _step(value: float, whole: Callable[[float], int]) -> float:
    """The next of 1, 2, 5, 10, 20, ... below or above."""
    power = math.floor(math.log10(value))
    steps = (1.0, 2.0, 5.0, 10.0)
    within = value / 10.0**power
    found = [s for s in steps if (s <= within if whole is math.floor else s >= within)]
    return float((found[-1] if whole is math.floor else found[0]) * 10.0**power)


def counted(axes: Axes, axis: str) -> None:
    """A linear axis from zero, with the same kind of numbers."""
    if axis == "x":
        axes.set_xlim(left=0)
    else:
        axes.set_ylim(bottom=0)
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    ticks.set_major_formatter(FuncFormatter(_tick_text))


def number_text(value: float) -> str:
    """0.05, 2.5, 250, 1k, 12.5k, 1M: three significant digits, without zeros at the end."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:g}"


def _tick_text(value: float, position: object) -> str:
    return number_text(value)


def legend_above(axes: Axes, *, gap: float = 0.0) -> None:
    """A legend in the line of the title, at its right; each name once.

    Args:
        gap: room under it, in heights of the axes.
    """
    named = _named_once(axes)
    if named:
        axes.legend(
            list(named.values()),
            list(named),
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0 + gap),
            borderaxespad=0.1,
            ncols=len(named),
            columnspacing=1.2,
            handlelength=2.6,
        )


def legend_below(drawn: Figure, *axes: Axes, columns: int = 4) -> None:
    """One legend for all of these axes, under the figure; each name once."""
    named = _named_once(*axes)
    if named:
        drawn.legend(
            list(named.values()),
            list(named),
            loc="outside lower left",
            ncols=min(columns, len(named)),
            handlelength=3.2,
        )


def _named_once(*axes: Axes) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for one in axes:
        for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
            named.setdefault(str(name), handle)
    return named


def svg_text(drawn: Figure, name: str, *, transparent: bool = False) -> str:
    """A figure as a file of its own: text as text, the same bytes for the same figure."""
    written = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        drawn.savefig(written, format="svg", metadata=nothing, transparent=transparent)
    return written.getvalue().decode().replace(f"'{_LAYOUT_FONT}'", _FONT).replace(" \n", "\n")


def inline_svg(drawn: Figure, name: str, title: str, description: str) -> str:
    """A figure as an element of an HTML page.

    Args:
        name: unique within the page; ids begin with it.
        title, description: what is read out instead of the picture.
    """
    text = svg_text(drawn, name, transparent=True)
    inside = text[text.index("<svg") :].partition(">")[2].strip()
    inside = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", inside, flags=re.DOTALL)
    used = {found[1] for found in _USED.findall(inside)}
    inside = _ID.sub(lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", inside)
    inside = _USED.sub(rf"\g<1>{name}-\g<2>", inside)
    for variable, colour in LIGHT.items():
        inside = inside.replace(colour, f"var(--{variable}, {colour})")
    width, height = (points * 72 for points in drawn.get_size_inches())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' viewBox="0 0 {width:g} {height:g}" role="img"'
        f' aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-text">{html.escape(description)}</desc>{inside}'
    )
