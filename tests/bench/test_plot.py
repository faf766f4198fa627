"""Charts become pictures: the rows they name, in the order they say, and nothing else."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from benchmarks import plot
from benchmarks.plot import Line, PlotError, drawn, lines_of, main, results_of
from benchmarks.report import Chart
from semanticrecall.load.look import look, number_text

SVG = "{http://www.w3.org/2000/svg}"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ROWS = [
    {"system": "ours", "size": 10_000, "p50_ms": 2.5, "kind": "text"},
    {"system": "ours", "size": 1_000, "p50_ms": 1.5, "kind": "text"},
    {"system": "others", "size": 1_000, "p50_ms": 4.0, "kind": "text"},
    {"system": "others", "size": 10_000, "p50_ms": None, "kind": "text"},
    {"system": "others", "size": 1_000, "p50_ms": 9.0, "kind": "vector"},
]


def chart(**changes: Any) -> Chart:
    """Of the rows above, one kind."""
    plain = Chart(
        name="by-size",
        title="Latency by size",
        table="points",
        x="size",
        y="p50_ms",
        by=("system",),
        x_label="messages",
        y_label="p50, ms",
        only={"kind": "text"},
    )
    return dataclasses.replace(plain, **changes)


def result(*charts: Chart, rows: Any = None, **changes: Any) -> dict[str, Any]:
    """As a benchmark writes it."""
    return {
        "script": "example",
        "command": "python -m benchmarks.example --sizes 1000,10000",
        "smoke": False,
        "machine": "Example processor, 8 cores",
        "config": {"sizes": "1000,10000", "seed": 7},
        "skipped": "",
        "tables": {"points": ROWS if rows is None else rows},
        "charts": [dataclasses.asdict(one) for one in charts],
        **changes,
    }


def written(tmp_path: Path, *results: dict[str, Any]) -> list[str]:
    """Files with these results, to be passed on the command line."""
    names: list[str] = []
    for number, one in enumerate(results):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(one))
        names.append(str(file))
    return names


def texts(svg: Path) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.parse(svg).iter(f"{SVG}text")]


def shown_numbers(axes: Axes) -> list[str]:
    """Those at the y axis that are within it."""
    low, high = axes.get_ylim()
    return [
        label.get_text()
        for label in axes.get_yticklabels()
        if low * 0.999 <= label.get_position()[1] <= high * 1.001
    ]


def test_lines_are_the_rows_of_a_chart_in_the_order_of_their_numbers() -> None:
    assert lines_of(result(), chart()) == [
        Line("ours", [(1_000, 1.5), (10_000, 2.5)]),
        Line("others", [(1_000, 4.0)]),
    ]
    assert lines_of(result(), chart(only={}, by=("system", "kind"))) == [
        Line("ours, text", [(1_000, 1.5), (10_000, 2.5)]),
        Line("others, text", [(1_000, 4.0)]),
        Line("others, vector", [(1_000, 9.0)]),
    ]
    assert [line.name for line in lines_of(result(), chart(by=()))] == [""]
    assert lines_of(result(), chart(table="other")) == []
    assert lines_of(result(), chart(only={"kind": "picture"})) == []


def test_words_stay_in_the_order_of_the_table() -> None:
    rows = [{"x": x, "y": y} for x, y in (("b", 1), ("a", 2), ("c", math.nan), ("d", 0))]
    plain = chart(x="x", y="y", by=(), only={})
    for kind in ("line", "bar"):
        one = dataclasses.replace(plain, kind=kind)
        assert lines_of(result(rows=rows), one) == [Line("", [("b", 1.0), ("a", 2.0), ("d", 0.0)])]
    # A log axis has no zero.
    logarithmic = dataclasses.replace(plain, y_log=True)
    assert lines_of(result(rows=rows), logarithmic) == [Line("", [("b", 1.0), ("a", 2.0)])]


def test_a_line_goes_through_its_points() -> None:
    with look():
        picture = drawn(result(), chart(x_log=True, y_log=True))
        assert picture is not None
        (axes,) = picture.axes
        points = [
            (line.get_label(), list(line.get_xdata()), list(line.get_ydata()))
            for line in axes.get_lines()
        ]
        assert points == [("ours", [1_000, 10_000], [1.5, 2.5]), ("others", [1_000], [4.0])]
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        looks = {(line.get_linestyle(), line.get_marker()) for line in axes.get_lines()}
        assert len(looks) == 2
        picture.draw_without_rendering()
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1k", "10k"]
        assert shown_numbers(axes) == ["1", "2", "5"]


def test_bars_are_as_high_as_their_numbers_and_stand_side_by_side() -> None:
    with look():
        picture = drawn(result(), chart(kind="bar"))
        assert picture is not None
        (axes,) = picture.axes
        assert axes.get_ylim()[0] == 0
        bars = [
            [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in group]
            for group in axes.containers
        ]
        assert [[height for *_, height in group] for group in bars] == [[2.5, 1.5], [4.0]]
        edges = sorted((x, x + width) for group in bars for x, width, _ in group)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(edges))
        # 10,000 comes first in the table.
        assert [label.get_text() for label in axes.get_xticklabels()] == ["10k", "1k"]


def test_pictures_say_what_measured_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = written(tmp_path, result(chart()))
    out = tmp_path / "deep" / "out"
    assert main([*files, "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"by-size.png", "by-size.svg"}
    assert (out / "by-size.png").read_bytes().startswith(PNG_SIGNATURE)
    shown = texts(out / "by-size.svg")
    for text in ("Latency by size", "messages", "p50, ms", "system", "ours", "others"):
        assert text in shown
    print_ = "\n".join(shown)
    for text in ("Example processor, 8 cores", "sizes=1000,10000, seed=7", "--sizes 1000,10000"):
        assert text in print_
    assert not re.search("smoke", print_, re.IGNORECASE)
    assert capsys.readouterr().out == f"by-size: {out / 'by-size'}.png, .svg\n"


def test_a_smoke_run_says_that_it_is_one(tmp_path: Path) -> None:
    files = written(tmp_path, result(chart(), smoke=True))
    assert main([*files, "--out", str(tmp_path)]) == 0
    shown = texts(tmp_path / "by-size.svg")
    assert "SMOKE RUN" in shown
    assert plot.SMOKE in "\n".join(shown)


def test_nothing_to_draw_is_said_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = result(chart(), rows=[])
    skipped = result(script="other", skipped="the package is not installed")
    plain = {**result(script="plain"), "charts": []}
    files = written(tmp_path, empty, skipped, plain)
    out = tmp_path / "out"
    assert main([*files, "--out", str(out)]) == 0
    assert list(out.iterdir()) == []
    assert capsys.readouterr().out.splitlines() == [
        "other: nothing was measured: the package is not installed",
        "plain: it has no charts",
        "by-size: skipped, no rows",
    ]


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    files = written(tmp_path, result(chart()))
    contents = []
    for name in ("a", "b"):
        assert main([*files, "--out", str(tmp_path / name)]) == 0
        contents.append([(tmp_path / name / f"by-size.{e}").read_bytes() for e in ("png", "svg")])
    assert contents[0] == contents[1]
    assert b"<dc:date>" not in contents[0][1]


def test_a_file_may_hold_the_results_of_several_scripts(tmp_path: Path) -> None:
    both = {"results": [result(chart()), result(chart(name="other"))]}
    files = written(tmp_path, both)
    assert results_of(Path(files[0])) == json.loads(json.dumps(both["results"]))
    assert main([*files, "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob("*.svg")} == {"by-size.svg", "other.svg"}


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"results": []}', '{"results": [1]}', "{"])
def test_a_file_that_is_no_result_is_an_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(PlotError):
        results_of(file)
    assert main([str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("plot: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", ".hidden", "a" * 81])
def test_a_name_that_is_none_for_a_file_writes_nothing(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([*written(tmp_path, result(chart(name=name))), "--out", str(out)]) == 2
    assert not out.exists()


def test_two_charts_of_one_name_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = written(tmp_path, result(chart()), result(chart()))
    assert main([*files, "--out", str(tmp_path / "out")]) == 2
    assert "by-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0005, "0.0005"),
        (0.05, "0.05"),
        (2.5, "2.5"),
        (250, "250"),
        (999.4, "999"),
        (999.6, "1k"),
        (1_000, "1k"),
        (12_500, "12.5k"),
        (100_000, "100k"),
        (1_000_000, "1M"),
        (2.5e9, "2.5G"),
        (-20_000, "-20k"),
    ],
)
def test_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([2.1, 4.8], ["2", "5"]),
        ([3.0, 3.0], ["2", "5"]),
        ([0.12, 90], ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50", "100"]),
        ([0.12, 9_000], ["0.1", "1", "10", "100", "1k", "10k"]),
    ],
)
def test_a_log_axis_has_numbers_at_both_ends(values: list[float], labels: list[str]) -> None:
    rows = [{"size": n, "p50_ms": ms} for n, ms in enumerate(values)]
    with look():
        picture = drawn(result(rows=rows), chart(by=(), only={}, y_log=True))
        assert picture is not None
        (axes,) = picture.axes
        picture.draw_without_rendering()
        assert shown_numbers(axes) == labels
