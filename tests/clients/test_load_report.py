"""The report of a load: one file, nothing from elsewhere, and text in it stays text."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from semanticrecall.load.html_report import (
    SETTINGS_MAX,
    TEXT_MAX,
    count_text,
    html_of,
    ms_text,
    settings_rows,
    share_text,
    write_html,
)
from semanticrecall.load.look import DARK, LIGHT, look
from semanticrecall.load.pictures import ERRORS_MAX, POINTS_MAX, figures, pictures
from semanticrecall.load.result import Finding, FindingCode, Percentiles, StageResult, Target
from support import load_results

SVG = "{http://www.w3.org/2000/svg}"
# HTML elements that have no end tag.
VOID = {"meta", "br"}
ATTACK = "</code><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


class Page(HTMLParser):
    """What is in a page: elements, texts by element, and whether every element ends."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def tags(self) -> Counter[str]:
        return Counter(tag for tag, _ in self.elements)

    def attributes(self, name: str) -> list[str]:
        return [found for _, attrs in self.elements if (found := attrs.get(name)) is not None]


@functools.cache
def sweep() -> str:
    """A page with every picture."""
    stages = [load_results.stage(100), load_results.stage(200, errors={"UNAVAILABLE": 7})]
    return html_of(load_results.load_result(stages))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(sweep())


def test_every_element_ends_and_no_id_is_there_twice(page: Page) -> None:
    assert page.open == []
    ids = page.attributes("id")
    assert len(page.tags()) > 20
    assert len(ids) == len(set(ids))


def test_what_is_referred_to_is_in_the_page(page: Page) -> None:
    ids = set(page.attributes("id"))
    used = [found for name in ("xlink:href", "href") for found in page.attributes(name)]
    used += re.findall(r"url\(([^)]*)\)", sweep())
    assert len(used) > 20
    assert [one for one in used if not (one.startswith("#") and one[1:] in ids)] == []
    labelled = [name for found in page.attributes("aria-labelledby") for name in found.split()]
    assert [one for one in labelled if one not in ids] == []


def test_the_page_loads_nothing(page: Page) -> None:
    tags = page.tags()
    for tag in ("script", "link", "img", "image", "iframe", "object", "embed", "form", "base"):
        assert tags[tag] == 0, tag
    assert page.attributes("src") == []
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", sweep()))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in sweep()
    assert "@font-face" not in sweep()


def test_the_policy_forbids_what_the_page_does_not_need(page: Page) -> None:
    policies = [
        attrs["content"]
        for tag, attrs in page.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    rules = dict(rule.strip().split(" ", 1) for rule in str(policies[0]).split(";"))
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_text_from_outside_stays_text() -> None:
    result = dataclasses.replace(
        load_results.load_result(
            [dataclasses.replace(load_results.stage(), name=ATTACK)],
            [Finding(code=FindingCode.ERRORS, text=ATTACK, stage=ATTACK)],
        ),
        command=ATTACK,
        machine=ATTACK,
        target=Target(
            address=ATTACK, transport=ATTACK, tls=True, token=False, server={ATTACK: ATTACK}
        ),
        plan={ATTACK: {ATTACK: [ATTACK]}},
    )
    page = Page(html_of(result))
    assert page.tags()["script"] == page.tags()["img"] == 0
    assert ATTACK in page.texts["pre"]
    assert ATTACK in page.texts["h1"][0]
    assert page.attributes("onerror") == []


def test_findings_come_first_in_plain_words() -> None:
    text = sweep()
    assert (
        text.index("Client and sidecar share a machine.")
        < text.index("<caption>")
        < text.index("<figure>")
    )
    assert "<strong>200 calls/s:</strong> 99.99 is the slowest call." in text
    assert "Nothing stands in the way" not in text
    clean = html_of(load_results.load_result(findings=[]))
    assert "Nothing stands in the way of the figures below" in clean


def test_a_finding_of_several_stages_is_shown_once() -> None:
    busy = [
        Finding(code=FindingCode.CLIENT_SATURATED, stage=f"{rate} calls/s", text=f"Busy at {rate}.")
        for rate in (1, 2, 3)
    ]
    text = html_of(load_results.load_result(findings=busy))
    assert "<strong>1 calls/s:</strong> Busy at 1. Likewise at 2 calls/s, 3 calls/s." in text
    assert "Busy at 2" not in text


def test_rates_leave_out_a_last_second_that_was_not_whole() -> None:
    """Nothing is sent in it any more: drawn as a rate it looks like an outage."""
    whole = load_results.stage(seconds=4)
    rest = dataclasses.replace(whole.timeline[0], second=4, started_per_s=0.0, finished_per_s=3.0)
    stage = dataclasses.replace(whole, timeline=[*whole.timeline, rest])
    with look():
        drawn = dict(figures(load_results.load_result([stage])))["time"]
        started = drawn.figure.axes[0].get_lines()[0]
        assert started.get_label() == "started"
        *rates, last = [float(rate) for rate in started.get_ydata()]
    assert rates == [one.started_per_s for one in whole.timeline]
    assert math.isnan(last)


def test_findings_are_shown_by_their_weight() -> None:
    findings = [Finding(code=code, text=code.value) for code in FindingCode]
    text = html_of(load_results.load_result([], findings))
    by_code = {code: weight for weight, code in re.findall(r'<li class="(\w+)">(\w+) ', text)}
    assert by_code == {
        "CLIENT_SATURATED": "warning",
        "SCHEDULE_NOT_KEPT": "warning",
        "ERRORS": "failure",
        "UNFINISHED": "failure",
        "EMPTY_ANSWERS": "warning",
        "MOSTLY_CACHED": "warning",
        "FEW_CALLS": "remark",
        "SHARED_MACHINE": "remark",
        "INTERRUPTED": "failure",
        "NOT_CLEANED_UP": "failure",
        "CALLS_MAX_REACHED": "warning",
    }


def table(text: str, number: int) -> list[list[str]]:
    """Cells of the n-th table, row by row."""
    found = re.findall(r"<table.*?</table>", text, re.DOTALL)[number]
    return [
        [
            " ".join(re.sub(r"<[^>]+>", " ", cell).split())
            for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)
    ]


def test_the_summary_has_the_figures_of_the_result() -> None:
    stage = load_results.stage(errors={"DEADLINE_EXCEEDED": 3, "RESOURCE_EXHAUSTED": 7})
    latency = Percentiles(
        count=4800, p50=2.5, p90=4.05, p99=12.34, p99_9=123.4, p99_99=1234.5, max=1240.0
    )
    recall = dataclasses.replace(stage.operations["recall"], latency_ms=latency)
    nothing = dataclasses.replace(stage.operations["index"], latency_ms=Percentiles(), ok=0)
    stage = dataclasses.replace(stage, operations={"recall": recall, "index": nothing})
    text = html_of(load_results.load_result([stage]))
    head, *rows = table(text, 0)
    assert head[:4] == ["Stage", "Operation", "Calls", "OK/s"]
    assert head[4:] == ["p50", "p90", "p99", "p99.9", "p99.99", "max", "Errors", "by code"]
    figures = "4,810 160 2.50 4.05 12.3 123 1,234 1,240 10".split()
    assert rows == [
        ["200 calls/s", "recall", *figures, "3 DEADLINE_EXCEEDED 7 RESOURCE_EXHAUSTED"],
        ["index", "1,200", "40", *([""] * 6), "0", ""],
    ]
    # 4,800 calls tell 99.9 from their slowest, and not 99.99.
    assert re.findall(r'<td class="few">([^<]*)</td>', text) == ["1,234"]
    kept = "kept: 199.6 of 200 calls/s"
    shares = ["0.129", "0", "12.5 %", "25 %", "–", "1 process", "31 %", "0.194"]
    assert table(text, 1)[1] == ["200 calls/s", kept, *shares]


def test_what_went_wrong_is_marked() -> None:
    stage = load_results.stage(errors={"UNAVAILABLE": 1})
    assert stage.schedule is not None
    late = dataclasses.replace(stage.schedule, kept=False, started_per_s=120.0)
    busy = dataclasses.replace(stage.client, saturated=True, cpu_shares=(0.9996, 1.0))
    stage = dataclasses.replace(stage, schedule=late, client=busy, unfinished=5)
    text = html_of(load_results.load_result([stage]))
    marked = re.findall(r'<td class="(?:text )?bad">([^<]*)</td>', text)
    assert marked == ["1", "NOT kept: 120 of 200 calls/s", "5", "1 process, a bottleneck"]
    assert "&gt; 99.9 %, 100 %" in text


def test_a_closed_loop_has_no_schedule() -> None:
    stages = [load_results.stage(4, closed=True), load_results.stage(16, closed=True)]
    text = html_of(load_results.load_result(stages))
    assert [row[1] for row in table(text, 1)[1:]] == ["closed loop", "closed loop"]
    assert "from when each was sent" in text
    assert "by the number of callers" in text


def test_tables_say_what_their_headers_are_for(page: Page) -> None:
    headers = [attrs for tag, attrs in page.elements if tag == "th"]
    assert {attrs.get("scope") for attrs in headers} == {"col", "row", "rowgroup"}
    assert page.tags()["caption"] == page.tags()["table"]


def svg_elements(text: str) -> Iterator[ElementTree.Element]:
    for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        yield ElementTree.fromstring(found)


def test_pictures_can_be_read_out_and_follow_the_page_s_colours() -> None:
    found = list(svg_elements(sweep()))
    assert len(found) == 4
    for svg in found:
        assert svg.get("role") == "img"
        title, text = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
        assert title is not None
        assert text is not None
        assert svg.get("aria-labelledby") == f"{title.get('id')} {text.get('id')}"
        assert len(title.text or "") > 5
        assert len(text.text or "") > 40
        painted = " ".join(one.get("style", "") for one in svg.iter())
        assert set(re.findall(r"(?:fill|stroke): (#\w+)", painted)) == set()
        assert set(re.findall(r"var\(--([\w-]+)", painted)) <= set(LIGHT)
        assert len(svg.findall(f".//{SVG}text")) > 10
    assert set(LIGHT) == set(DARK)
    for name, colour in DARK.items():
        assert f"--{name}: {colour};" in sweep()


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "1.html", tmp_path / "2.html"
    write_html(load_results.load_result(), first)
    write_html(load_results.load_result(), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_load_of_a_day_is_thinned_out_and_says_so() -> None:
    result = load_results.load_result([load_results.stage(seconds=86_400)])
    text = html_of(result)
    assert len(text) < 500_000
    assert "Each point is 144 seconds" in text
    for svg in svg_elements(text):
        for path in svg.iter(f"{SVG}path"):
            # A band goes there and back.
            assert len(re.findall("[ML]", path.get("d", ""))) <= 2 * POINTS_MAX + 5
    short = html_of(load_results.load_result([load_results.stage(seconds=POINTS_MAX)]))
    assert "Each point is one second." in short


def test_a_stall_of_one_second_is_seen_in_a_long_load() -> None:
    """The band of the rate that finished goes down to zero, where the mean does not."""
    stage = load_results.stage(seconds=10 * POINTS_MAX)
    stalled = pictures(load_results.load_result([stage]))[1]
    even = dataclasses.replace(
        stage,
        timeline=[dataclasses.replace(s, finished_per_s=s.started_per_s) for s in stage.timeline],
    )
    assert stalled.name == "time"
    assert stalled.svg != pictures(load_results.load_result([even]))[1].svg


def test_pictures_are_of_what_was_measured() -> None:
    def names(*stages: StageResult) -> list[str]:
        return [picture.name for picture in pictures(load_results.load_result(stages))]

    one = load_results.stage()
    assert names(one) == ["percentiles", "time", "client"]
    assert names(one, load_results.stage(400)) == ["percentiles", "knee", "time", "client"]
    assert names() == []
    failed = dataclasses.replace(load_results.operation(0, 30, 1.0), latency_ms=Percentiles())
    lag = dataclasses.replace(one.client, loop_lag_ms=Percentiles())
    silent = dataclasses.replace(
        one, operations={"recall": failed}, timeline=(), client=lag, schedule=None
    )
    assert names(silent) == []
    assert "No call was measured." in html_of(load_results.load_result([]))


def test_percentiles_stand_on_an_axis_of_nines() -> None:
    curve = ((0.0, 1.0), (50.0, 2.0), (90.0, 4.0), (99.0, 8.0), (100.0, 16.0))
    latency = Percentiles(count=100, p50=2.0, max=16.0, curve=curve)
    stage = load_results.stage()
    recall = dataclasses.replace(stage.operations["recall"], latency_ms=latency)
    result = load_results.load_result([dataclasses.replace(stage, operations={"recall": recall})])
    svg = ElementTree.fromstring(pictures(result)[0].svg)
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert [t for t in texts if t in {"0", "50", "90", "99", "99.9", "99.99"}] == [
        "0",
        "50",
        "90",
        "99",
    ]
    line = next(
        path.get("d", "") for path in svg.iter(f"{SVG}path") if "series-0" in path.get("style", "")
    )
    points = [tuple(map(float, pair)) for pair in re.findall(r"[ML] ([\d.]+) ([\d.]+)", line)]
    # Log scales on both sides: 50 is at 2, 90 at 10, 99 at 100, each height twice the one before.
    x = [point[0] - points[0][0] for point in points]
    assert [round(at / x[2], 3) for at in x[1:4]] == [0.301, 1.0, 2.0]
    assert x[4] == pytest.approx(x[3])
    steps = [before[1] - after[1] for before, after in itertools.pairwise(points)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.01)


def test_rare_codes_are_drawn_as_one() -> None:
    errors = {f"CODE_{number:02}": 20 - number for number in range(ERRORS_MAX + 3)}
    result = load_results.load_result([load_results.stage(errors=errors)])
    svg = next(one for one in pictures(result) if one.name == "time").svg
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert [t for t in texts if t.startswith("CODE_")] == list(errors)[:ERRORS_MAX]
    assert "other codes" in texts


def test_numbers_are_short_and_never_say_too_much() -> None:
    assert [ms_text(v) for v in (0.0, 0.0123, 1.005, 9.994, 12.34, 123.4, 12_345.6)] == [
        "0",
        "0.012",
        "1.00",
        "9.99",
        "12.3",
        "123",
        "12,346",
    ]
    assert [count_text(v) for v in (0, 12, 99.84, 12_000.4)] == ["0", "12", "99.8", "12,000"]
    shares = (0.0, 0.00001, 0.125, 0.5, 0.99951, 1.0)
    assert [share_text(v) for v in shares] == [
        "0 %",
        "< 0.1 %",
        "12.5 %",
        "50 %",
        "> 99.9 %",
        "100 %",
    ]


def test_settings_are_flat_and_not_endless() -> None:
    rows = settings_rows(
        {"a": True, "b": {"c": 1_000, "d": {"e": [1.5, 2]}}, "f": None, "g": [], "h": "x" * 9_999}
    )
    assert settings_rows({"s": [{"rate": 1.5}, {"rate": 2}], "r": [(0, 1), (2, 2)]}) == [
        ("s.1.rate", "1.5"),
        ("s.2.rate", "2"),
        ("r", "(0, 1), (2, 2)"),
    ]
    assert rows[:5] == [
        ("a", "yes"),
        ("b.c", "1,000"),
        ("b.d.e", "1.5, 2"),
        ("f", "none"),
        ("g", "none"),
    ]
    assert rows[5] == ("h", "x" * TEXT_MAX + " …")
    many = settings_rows({str(number): number for number in range(10 * SETTINGS_MAX)})
    assert len(many) == SETTINGS_MAX + 1
    assert many[-1] == ("…", "more is in the JSON")


def test_a_home_that_cannot_be_written_is_no_matter(tmp_path: Path) -> None:
    """The library says so itself in some environments; nothing of that reaches a user."""
    home = tmp_path / "home"
    home.write_text("a file, so that nothing can be made below it")
    target = tmp_path / "report.html"
    program = (
        "import sys; from pathlib import Path; from support import load_results;"
        " from semanticrecall.load.html_report import write_html;"
        " write_html(load_results.load_result(), Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(target)],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("XDG_")},
            "HOME": str(home),
            "MPLCONFIGDIR": str(home / "matplotlib"),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert target.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_user_s_own_look_does_not_change_the_report(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text(
        "figure.figsize: 3, 3\naxes.grid: False\nfont.size: 30\n"
    )
    program = (
        "from support import load_results; from semanticrecall.load.html_report import html_of;"
        " import hashlib; text = html_of(load_results.load_result());"
        " print(hashlib.sha256(text.encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    here = html_of(load_results.load_result()).encode()
    assert done.stdout.strip() == hashlib.sha256(here).hexdigest()
