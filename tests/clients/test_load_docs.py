"""docs/load.md says of flags, limits, findings and the JSON what the code says."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from semanticrecall.cli.flags import EXIT_ERROR, EXIT_IN_PART, EXIT_NO_ANSWER, EXIT_USAGE
from semanticrecall.cli.load import INTERRUPTED, RAMP_SECONDS, plan_of
from semanticrecall.cli.load_flags import (
    DEFAULT_RATE,
    DEFAULT_RECALL_SHARE,
    LINES_MAX,
    ArrivalsName,
    LoadFlags,
    WaitName,
)
from semanticrecall.connection import DEFAULT_ADDRESS
from semanticrecall.errors import InvalidArgumentError
from semanticrecall.load.result import FindingCode

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs/load.md").read_text("utf-8")
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs/load-result.schema.json").read_text("utf-8"))
# Defaults that depend on other flags.
DERIVED = {
    "rate": DEFAULT_RATE,
    "ramp_seconds": f"{RAMP_SECONDS:g}, or the warm-up where that is less",
    "recall_share": f"{DEFAULT_RECALL_SHARE:g}; 1 with your users",
    "address": DEFAULT_ADDRESS,
    "keep": "no",
}
# What else must be given for a flag to reach its highest value.
COMPANIONS: dict[str, dict[str, Any]] = {
    "in_flight": {"rate": ""},
    "messages_before": {"resources": 1},
    "resources": {"messages_before": 1},
}


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^##+ {re.escape(heading)}$(.*?)(?=^##|\Z)", DOCUMENT, re.M | re.S)
    assert found, heading
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Cells of the tables in it, without their heads."""
    lines = [line.strip("|").split(" | ") for line in re.findall(r"^\|.*\|$", text, re.M)]
    return [[cell.strip() for cell in line] for line in lines if "---" not in line[0]][1:]


def flag_rows() -> dict[str, tuple[str, str]]:
    """Default and limit by name of the attribute."""
    found: dict[str, tuple[str, str]] = {}
    for line in re.findall(r"^\|(.*)\|$", section("Flags"), re.M)[2:]:
        flag, default, limit, meaning = (cell.strip() for cell in line.split("|"))
        assert re.fullmatch(r"`--[a-z-]+`", flag), flag
        assert meaning.endswith(".")
        found[flag.strip("`-").replace("-", "_")] = (default, limit)
    return found


FLAGS = flag_rows()
FIELDS = {field.name: field for field in dataclasses.fields(LoadFlags)}


def plain(value: Any) -> str:
    """A default as a person writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def test_every_flag_is_there_and_no_other() -> None:
    assert set(FLAGS) == set(FIELDS)


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_the_default_is_the_flag_s(name: str) -> None:
    default = FIELDS[name].default
    is_empty = default is None or default == "" or default is dataclasses.MISSING
    expected = DERIVED.get(name, "" if is_empty else plain(default))
    assert FLAGS[name][0] == expected


def given(name: str, number: str) -> LoadFlags:
    """Flags with one of them at this number."""
    field = FIELDS[name]
    value: Any
    if name in ("query_words", "message_words"):
        value = f"{number}-{number}"
    elif name == "message_range":
        value = f"{number}/{number}"
    elif isinstance(field.default, str):
        value = number
    else:
        value = float(number) if "." in number or isinstance(field.default, float) else int(number)
    return dataclasses.replace(LoadFlags(), **COMPANIONS.get(name, {}), **{name: value})


RANGES = {
    name: tuple(number.replace(",", "") for number in found.groups())
    for name, (_, limit) in FLAGS.items()
    if (found := re.match(r"([\d.,]+) to ([\d.,]*\d)", limit))
}


def test_most_flags_have_a_range() -> None:
    assert len(RANGES) == 20


@pytest.mark.parametrize("name", sorted(RANGES))
def test_the_limits_are_those_of_the_plan(name: str) -> None:
    low, high = RANGES[name]
    for number in (low, high):
        plan_of(given(name, number))
    fine = float(low) < 1 and name not in ("messages_before", "processes", "message_range")
    step = 0.01 if fine else 1
    beyond = [f"{float(high) + 1:.0f}"]
    if float(low) > 0:
        beyond.append(f"{float(low) - step:g}")
    for number in beyond:
        with pytest.raises((InvalidArgumentError, typer.BadParameter)):
            plan_of(given(name, number))


def test_lists_have_as_many_values_as_the_table_says() -> None:
    for name, value in {
        "rate": "1",
        "in_flight": "1",
        "top_k": "1",
        "message_range": "1/1",
    }.items():
        found = re.search(r"; (\d+) (?:stages|values)", FLAGS[name][1])
        assert found, name
        most = int(found[1])
        flags = LoadFlags()
        plan_of(dataclasses.replace(flags, **{name: ",".join([value] * most)}))
        with pytest.raises(InvalidArgumentError):
            plan_of(dataclasses.replace(flags, **{name: ",".join([value] * (most + 1))}))


def test_the_warm_up_bounds_the_ramp() -> None:
    flags = LoadFlags(warm_up_seconds=10)
    plan_of(dataclasses.replace(flags, ramp_seconds=10))
    with pytest.raises(InvalidArgumentError):
        plan_of(dataclasses.replace(flags, ramp_seconds=10.1))
    assert plan_of(LoadFlags(warm_up_seconds=1)).ramp_s == 1


def test_choices_and_files_are_as_the_table_says() -> None:
    assert FLAGS["arrivals"][1].split(", ") == sorted((a.value for a in ArrivalsName), reverse=True)
    assert FLAGS["wait"][1].split(", ") == [w.value for w in WaitName]
    assert FLAGS["format"][1] == "table, json"
    for name in ("resources_file", "queries_file"):
        assert FLAGS[name][1] == f"{LINES_MAX:,} lines"


def test_with_users_of_yours_it_only_recalls() -> None:
    plan = plan_of(LoadFlags(resource=["alice"]))
    assert plan.workload.recall_share == 1
    with pytest.raises(InvalidArgumentError):
        plan_of(LoadFlags(resource=["alice"], recall_share=0.9))


def test_exit_codes_are_the_command_s() -> None:
    codes = {int(row[0]) for row in rows(section("Exit codes"))}
    assert codes == {0, EXIT_ERROR, EXIT_USAGE, EXIT_NO_ANSWER, EXIT_IN_PART, INTERRUPTED}


def test_every_finding_is_explained() -> None:
    explained = re.findall(r"^\| `([A-Z_]+)` \| [^|]{10,}", section("Reading the answer"), re.M)
    assert sorted(explained) == sorted(code.value for code in FindingCode)


@pytest.mark.parametrize("name", ["LoadResult", *SCHEMA["$defs"]])
def test_the_json_is_explained_as_the_schema_does(name: str) -> None:
    described = SCHEMA if name == "LoadResult" else SCHEMA["$defs"][name]
    found = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section(name), re.M))
    assert found == {k: v["description"] for k, v in described["properties"].items()}
    assert described["description"] in section(name)


def test_the_schema_is_named() -> None:
    assert f"`{SCHEMA['properties']['schema']['const']}`" in section("The JSON")
    assert "(load-result.schema.json)" in section("The JSON")
