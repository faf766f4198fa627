"""Colours of pictures: told apart by everybody, and from the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from importlib.resources import files

import pytest

from semanticrecall.load.look import COLOURS, DARK, LIGHT, line_look, marker

TEMPLATE = files("semanticrecall.load").joinpath("report.html.jinja").read_text("utf-8")

# What is seen of linear sRGB with a cone missing: Machado, Oliveira, Fernandes, "A Physiologically-
# based Model for Simulation of Color Vision Deficiency", 2009, severity 1.0.
VISIONS = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)


def linear(colour: str) -> list[float]:
    """Of sRGB, the three lights."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def cie_lab(colour: str, vision: str) -> tuple[float, float, float]:
    """CIE 1976 L*a*b* of a colour as it is seen."""
    seen = [min(1.0, max(0.0, part)) for part in times(VISIONS[vision], linear(colour))]
    x, y, z = (
        ratio ** (1 / 3) if ratio > 0.008856 else 7.787 * ratio + 16 / 116
        for ratio in (part / white for part, white in zip(times(XYZ, seen), WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_lines_differ_for_every_kind_of_colour_vision(colours: dict[str, str], vision: str) -> None:
    series = [colour for name, colour in colours.items() if name.startswith("series-")]
    assert len(series) == COLOURS
    for one, other in itertools.combinations(series, 2):
        assert math.dist(cie_lab(one, vision), cie_lab(other, vision)) > 25, (one, other)


def test_lines_are_told_apart_with_and_without_colour() -> None:
    """As many as the systems of the side by side by colour and by point alone, forty by both."""
    assert len({line_look(number)["color"] for number in range(8)}) == 8
    assert len({marker(number) for number in range(8)}) == 8
    looks = [line_look(number) for number in range(40)]
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == 40


def luminance(colour: str) -> float:
    """Relative luminance of sRGB, WCAG 2.2."""
    return times(XYZ, linear(colour))[1]


@pytest.mark.parametrize(("colours", "page_colour"), [(LIGHT, "#ffffff"), (DARK, "#0f1419")])
def test_lines_and_text_stand_out_from_the_page(colours: dict[str, str], page_colour: str) -> None:
    assert f"--page: {page_colour};" in TEMPLATE
    for name, colour in colours.items():
        high, low = sorted((luminance(colour), luminance(page_colour)), reverse=True)
        least = {"line": 1.2, "ink": 7.0, "muted": 4.5}.get(name, 3.0)
        assert (high + 0.05) / (low + 0.05) >= least, name
