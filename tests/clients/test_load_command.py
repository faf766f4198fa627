"""The command `load`: what its flags mean, what it refuses before it sends, and what it writes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semanticrecall.cli import load as load_module
from semanticrecall.cli.app import app
from semanticrecall.cli.load import plan_of
from semanticrecall.cli.load_flags import (
    ArrivalsName,
    LoadFlags,
    WaitName,
    command_line,
)
from semanticrecall.errors import InvalidArgumentError
from semanticrecall.load.plan import Arrivals, LoadPlan, Loop, Span, Stage, WaitMode, Workload
from support.fake_sidecar import Shelf

ROOT = Path(__file__).resolve().parents[2]
TLS = ROOT / "tests/fixtures/tls"
SCHEMA = json.loads((ROOT / "docs/load-result.schema.json").read_text())
TOKEN = "first-token-0123456789"
FAR = "recall.example:7650"
SMALL = (
    *("--seconds", "1", "--warm-up-seconds", "0", "--resources", "4", "--messages-before", "6"),
    *("--arrivals", "constant", "--processes", "1"),
)
Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["load", *arguments])

    return invoke


def plan_from(**flags: Any) -> LoadPlan:
    return plan_of(LoadFlags(address="127.0.0.1:7650", **flags))


# --- flags ---------------------------------------------------------------


def test_without_flags_a_plan_is_as_plans_are_by_default() -> None:
    found = plan_from()
    assert found.stages == (Stage(rate_per_s=50),)
    expected = LoadPlan(connection=found.connection, workload=found.workload, stages=found.stages)
    assert found == expected
    prefix = found.workload.resource_prefix
    assert found.workload == Workload(resource_prefix=prefix)
    assert re.fullmatch(r"load-[0-9a-f]{8}-", prefix)
    assert plan_from().workload.resource_prefix != prefix


def test_every_flag_is_in_the_plan(tmp_path: Path) -> None:
    queries = tmp_path / "queries"
    queries.write_text("first question\n\n  second question \n", encoding="utf-8")
    found = plan_from(
        rate="10, 20.5",
        seconds=3.0,
        warm_up_seconds=9.0,
        ramp_seconds=8.0,
        arrivals=ArrivalsName.CONSTANT,
        recall_share=0.25,
        resources=7,
        zipf=0.5,
        threads=3,
        messages_before=11,
        query_repeat=0.75,
        query_words="2-5",
        message_words="9",
        messages_per_index=6,
        wait=WaitName.SEARCHABLE,
        thread_scope_share=0.125,
        top_k="4,10",
        message_range="1/1,0/2",
        queries_file=queries,
        seed=99,
        keep=True,
        calls_max=1_234,
        in_flight_max=56,
        timeout_ms=789,
        processes=3,
        timeout=12.5,
    )
    expected = LoadPlan(
        connection=found.connection,
        workload=Workload(
            recall_share=0.25,
            resources=7,
            zipf_exponent=0.5,
            threads=3,
            query_repeat_share=0.75,
            query_words=Span(2, 5),
            message_words=Span(9, 9),
            messages_per_index=6,
            wait=WaitMode.SEARCHABLE,
            thread_scope_share=0.125,
            top_k=(4, 10),
            message_range=((1, 1), (0, 2)),
            messages_before=11,
            queries=("first question", "second question"),
            keep=True,
            seed=99,
            resource_prefix=found.workload.resource_prefix,
        ),
        loop=Loop.OPEN,
        arrivals=Arrivals.CONSTANT,
        stages=(
            Stage(rate_per_s=10, duration_s=3.0),
            Stage(rate_per_s=20.5, duration_s=3.0),
        ),
        warm_up_s=9.0,
        ramp_s=8.0,
        in_flight_max=56,
        calls_max=1_234,
        timeout_ms=789,
        processes=3,
    )
    assert found == expected
    assert found.connection.timeout_seconds == 12.5


def test_no_flag_is_without_a_test_of_what_it_does() -> None:
    covered = {"address", "token_file", "tls_ca_file", "format", "json", "html"} | {
        "in_flight",
        "resource",
        "resources_file",
    }
    given = {"rate", "seconds", "warm_up_seconds", "ramp_seconds", "arrivals", "recall_share"} | {
        *("resources", "zipf", "threads", "messages_before", "query_repeat", "query_words"),
        *("message_words", "messages_per_index", "wait", "thread_scope_share", "top_k"),
        *("message_range", "queries_file", "seed", "keep", "calls_max", "in_flight_max"),
        *("timeout_ms", "processes", "timeout"),
    }
    assert {declared.name for declared in dataclasses.fields(LoadFlags)} == covered | given


def test_callers_are_a_closed_loop() -> None:
    found = plan_from(in_flight="1,8", seconds=2.0)
    assert found.loop is Loop.CLOSED
    assert found.stages == (
        Stage(in_flight=1, duration_s=2.0),
        Stage(in_flight=8, duration_s=2.0),
    )


def test_own_resources_are_only_recalled_from(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("b\nc\n", encoding="utf-8")
    found = plan_from(resource=["a"], resources_file=file).workload
    assert found.existing_resources == ("a", "b", "c")
    assert found.recall_share == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rate", "5", "--in-flight", "1"), "--rate and --in-flight exclude each other"),
        (("--rate", "fast"), "--rate: 'fast' is no list like 50"),
        (("--rate", "5,,6"), "--rate: '5,,6' is no list"),
        (("--rate", "0"), "--rate: 0 is not within 0.1 and 100,000"),
        (("--rate", "nan"), "--rate: nan is not within"),
        (("--in-flight", "1.5"), "--in-flight: '1.5' is no list like 8"),
        (("--in-flight", "0"), "--in-flight: 0 is not within 1 and 10,000"),
        (("--rate", ",".join(["5"] * 21)), "--rate: must be 1 to 20"),
        (("--seconds", "0"), "--seconds: 0 is not within 0.1 and 86,400"),
        (("--warm-up-seconds", "-1"), "--warm-up-seconds: -1 is not within"),
        (("--warm-up-seconds", "1", "--ramp-seconds", "2"), "--ramp-seconds: 2 is not within 0"),
        (("--recall-share", "1.5"), "--recall-share: 1.5 is not within 0 and 1"),
        (("--query-repeat", "-0.5"), "--query-repeat: -0.5 is not within 0 and 1"),
        (("--zipf", "6"), "--zipf: 6 is not within 0 and 5"),
        (("--query-words", "few"), "--query-words: 'few' is no span like 6-16"),
        (("--message-words", "9-3"), "--message-words: 9-3 must be LOW-HIGH within 1"),
        (("--top-k", "0"), "--top-k: 0 is not within 1 and 1,000"),
        (("--message-range", "1"), "--message-range: '1' is no list like 1/1"),
        (("--message-range", "1/99"), "--message-range: 99 is not within 0 and 50"),
        (("--calls-max", "0"), "--calls-max: 0 is not within 1"),
        (("--timeout-ms", "0"), "--timeout-ms: 0 is not within 1 and 600,000"),
        (("--processes", "65"), "--processes: 65 is not within 0 and 64"),
        (("--in-flight-max", "1", "--processes", "2"), "--in-flight-max: must be at least 2"),
        (("--resource", "a", "--recall-share", "0.5"), "--recall-share: must be 1 with existing"),
        (("--wait", "accepted"), "Invalid value for '--wait'"),
        (("--resources-file", "/nonexistent/users"), "--resources-file: cannot read"),
        (("--queries-file", "/"), "--queries-file: cannot read"),
        (("--resource", "\udcff"), "--resource: must be UTF-8"),
        (("--resource", "a", "--resource", "\ud800b"), "--resource: must be UTF-8"),
        (("--resource", "é" * 257), "--resource: id 1 must be at most 512 bytes; has 514"),
        (("-r", "a", "-r", "b\x07"), "--resource: id 2 must not hold control characters"),
        (("--resource", ""), "--resource: id 1 must not be empty"),
        (("--resources-file", "\udcff"), "--resources-file: must be UTF-8"),
        (("--queries-file", "\udcff"), "--queries-file: must be UTF-8"),
        (("--token-file", "\udcff"), "--token-file: must be UTF-8"),
        (("--json", "\udcff.json"), "--json: must be UTF-8"),
        (("--html", "\udcff.html"), "--html: must be UTF-8"),
        (("--address", "unix:/\udcff"), "--address: must be UTF-8"),
        (("--json", "/nonexistent/r.json"), "--json: cannot write /nonexistent/r.json"),
        (("--html", "/"), "--html: cannot write"),
        (("--token-file", "/nonexistent/token"), "--token-file: cannot read"),
        (("--address", "nowhere"), "--address: must be HOST:PORT or unix:"),
        (("--address", FAR, "--token-file", str(TLS / "README.md")), "--token-file"),
    ],
)
def test_mistakes_name_the_flag_and_send_nothing(
    run: Run, address: str, shelf: Shelf, arguments: tuple[str, ...], told: str
) -> None:
    where = () if "--address" in arguments else ("--address", address)
    result = run(*where, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert told in " ".join(re.sub("[│╭╰─╮╯]", " ", result.stderr).split())
    assert shelf.seen == []


@pytest.mark.parametrize("content", ["", " \n\n", "\xff"])
def test_files_that_hold_no_lines_are_refused(run: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "queries"
    file.write_bytes(content.encode("latin-1"))
    result = run("--queries-file", str(file))
    assert result.exit_code == 2
    assert ("is empty" if content.isspace() or not content else "is not UTF-8") in result.stderr


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("c" * 513, "must be at most 512 bytes; has 513"),
        ("c\x7fd", "must not hold control characters"),
    ],
)
def test_a_line_that_is_no_id_is_named(
    run: Run, address: str, shelf: Shelf, tmp_path: Path, line: str, fault: str
) -> None:
    file = tmp_path / "users"
    file.write_text(f"a\n\n{'b' * 512}\n{line}\n", encoding="utf-8")
    result = run("--address", address, "--resources-file", str(file))
    assert result.exit_code == 2
    told = "".join(re.sub("[│╭╰─╮╯ \n]", "", result.stderr))
    assert f"--resources-file:line4of{file}{fault.replace(' ', '')}" in told
    assert shelf.seen == []


def test_bytes_that_are_not_utf_8_are_refused(address: str, shelf: Shelf) -> None:
    code = "from semanticrecall.cli import main; main()"
    command: list[str | bytes] = [sys.executable, "-c", code, "load", "--address", address]
    done = subprocess.run([*command, "--resource", b"\xff"], capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"--resource: must be UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
    assert shelf.seen == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"existing_resources": ("a", "\ud800"), "recall_share": 1}, "id 2 must be UTF-8"),
        ({"existing_resources": ("a" * 513,), "recall_share": 1}, "id 1 must be at most 512"),
        ({"queries": ("a", "\udfff")}, "query 2 must be UTF-8"),
    ],
)
def test_a_plan_knows_what_cannot_be_sent(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        Workload(**fields).check()


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"\xef\xbb\xbfalice\r\nbob\r\n")
    assert plan_from(resources_file=file).workload.existing_resources == ("alice", "bob")


def test_one_file_for_both_results_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("r")
    result = run("--json", str(tmp_path / "r"), "--html", str(tmp_path / "link"))
    assert result.exit_code == 2
    assert "both cannot be one file" in result.stderr


def test_another_machine_is_taken_from_the_command_line_only(
    run: Run, monkeypatch: pytest.MonkeyPatch, address: str, shelf: Shelf
) -> None:
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", FAR)
    refused = run()
    assert refused.exit_code == 2
    told = " ".join(re.sub("[│╭╰─╮╯]", " ", refused.stderr).split())
    assert f"SEMANTICRECALL_ADDRESS is {FAR}, which is not this machine" in told
    assert f"--address {FAR}" in told
    asked: list[str] = []
    monkeypatch.setattr(
        load_module, "_run", lambda flags, plan: asked.append(plan.connection.address) or 0
    )
    assert run("--address", FAR).exit_code == 0
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", address)
    assert run().exit_code == 0
    monkeypatch.delenv("SEMANTICRECALL_ADDRESS")
    assert run().exit_code == 0
    assert asked == [FAR, address, "127.0.0.1:7650"]


def test_every_example_of_the_help_is_a_load(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("--help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    examples = shown[shown.index("Examples") :].split("╭")[0].replace("\\", "").splitlines()[1:]
    text = "\n".join(line.strip() for line in examples if not line.strip().startswith("#"))
    commands = [shlex.split(c) for c in text.replace("\n--", " --").split("semanticrecall load")]
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").write_bytes((TLS / "cert.pem").read_bytes())
    for name in ("token", "users.txt", "questions.txt"):
        Path(name).write_text("one\n")
    plans: list[LoadPlan] = []
    monkeypatch.setattr(load_module, "_run", lambda flags, plan: plans.append(plan) or 0)
    for arguments in commands[1:]:
        result = run(*arguments)
        assert result.exit_code == 0, result.output
    assert [len(plan.stages) for plan in plans] == [1, 4, 1, 1, 1]
    assert [plan.loop for plan in plans].count(Loop.CLOSED) == 1
    assert plans[3].workload.existing_resources == plans[3].workload.queries == ("one",)
    assert plans[4].connection.metadata == (("authorization", "Bearer one"),)


def test_nobody_is_there(run: Run, tmp_path: Path) -> None:
    result = run("--address", f"unix:{tmp_path}/nobody.sock")
    assert result.exit_code == 3
    assert f"no sidecar answers at unix:{tmp_path}/nobody.sock" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("absent", "arguments", "told"),
    [
        ({"hdrh"}, (), "`load` needs hdrh: pip install 'semanticrecall-sidecar[load]'"),
        ({"matplotlib", "jinja2"}, ("--html", "x.html"), "`load` needs matplotlib, jinja2: pip"),
        ({"matplotlib", "jinja2"}, (), ""),
    ],
)
def test_what_is_not_installed_is_said_before(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    absent: set[str],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else find(name)
    )
    monkeypatch.setattr(load_module, "_run", lambda flags, plan: 0)
    result = run(*arguments)
    assert result.exit_code == (2 if told else 0)
    assert told in result.stderr


def test_other_commands_start_without_what_a_load_needs() -> None:
    code = (
        "import sys, semanticrecall.cli.app; "
        "print(*(n for n in sys.modules if n.split('.')[0] in {'hdrh', 'matplotlib', 'jinja2', "
        "'multiprocessing'} or n.startswith('semanticrecall.load')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_command_line_repeats_what_differs_and_names_nobody(tmp_path: Path) -> None:
    flags = LoadFlags(
        rate="10,20",
        address="unix:/tmp/a b.sock",
        token_file=Path("token"),
        resource=["user 42", "user 43"],
        keep=True,
        wait=WaitName.SEARCHABLE,
        json=tmp_path / "r.json",
        zipf=0.0,
    )
    assert command_line(flags) == (
        "semanticrecall load --address 'unix:/tmp/a b.sock' --token-file token --rate 10,20 "
        "--zipf 0.0 --wait searchable --resource RESOURCE --resource RESOURCE --keep"
    )
