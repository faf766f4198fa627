"""The means of the fault tests: the model finds what is wrong, the shim meets every call."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from support import fault_suite
from support.fault_calls import needs_shim, shim
from support.fault_forking import with_tests
from support.fault_model import AckModel, Message
from support.fault_report import REPORT, FaultReport, FaultRun, seeded, table
from support.fault_sidecar import FaultSidecar
from support.running_server import Stubs

# ---- the model ----


def message(name: str, text: str = "") -> Message:
    made = Message(id=name, thread_id="t", resource_id="u", role=types_pb2.ROLE_USER)
    made.text = text or f"the text of {name}"
    made.create_time.seconds = 1_700_000_000
    return made


def put(stubs: Stubs, *messages: Message) -> None:
    request = recall_pb2.IndexRequest(resource_id="u", messages=messages)
    stubs.recall.Index(request, timeout=30)


def lost(stubs: Stubs, model: AckModel) -> None:
    model.begin({("u", "b"): message("b")}).acked()


def foreign(stubs: Stubs, model: AckModel) -> None:
    put(stubs, message("b"))


def another_text(stubs: Stubs, model: AckModel) -> None:
    put(stubs, message("a", "another text"))


def came_back(stubs: Stubs, model: AckModel) -> None:
    model.begin({("u", "a"): None}).acked()


def refused_and_done(stubs: Stubs, model: AckModel) -> None:
    operation = model.begin({("u", "b"): message("b")})
    put(stubs, message("b"))
    operation.failed()


def half(stubs: Stubs, model: AckModel) -> None:
    model.begin({("u", "b"): message("b"), ("u", "c"): message("c")})
    put(stubs, message("b"))


def in_the_wrong_order(stubs: Stubs, model: AckModel) -> None:
    model.begin({("u", "b"): message("b")})
    model.begin({("u", "b"): message("b", "second")}).acked()
    put(stubs, message("b"))


LIES = {
    lost: "1 acknowledged messages are lost",
    foreign: "1 are there that must not be|somebody is there",
    another_text: "1 differ",
    came_back: "1 are there that must not be",
    refused_and_done: "1 are there that must not be|somebody is there",
    half: "half an operation",
    in_the_wrong_order: "half an operation",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: str(lie.__name__))
def test_the_model_finds_what_is_wrong(
    tmp_path: Path, lie: Callable[[Stubs, AckModel], None]
) -> None:
    model = AckModel()
    with FaultSidecar(tmp_path) as sidecar:
        operation = model.begin({("u", "a"): message("a")})
        put(sidecar.stubs, message("a"))
        operation.acked()
        model.check(sidecar.stubs)
        lie(sidecar.stubs, model)
        with pytest.raises(AssertionError, match=LIES[lie]):
            model.check(sidecar.stubs)


def test_what_was_cut_off_may_be_there_or_not(tmp_path: Path) -> None:
    model = AckModel()
    with FaultSidecar(tmp_path) as sidecar:
        for name in ("a", "b"):
            model.begin({("u", name): message(name)})
        put(sidecar.stubs, message("b"))
        checked = model.check(sidecar.stubs)
    assert (checked.unknown_there, checked.unknown_absent) == (1, 1)
    assert [one.id for one in model.messages("u")] == ["b"]


# ---- the report ----


def test_a_failure_names_seed_commit_and_options_and_keeps_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTS_KEEP", str(tmp_path / "kept"))
    monkeypatch.setenv("FAULTS_SEED", "77")
    data = tmp_path / "data"
    data.mkdir()
    (data / "recall.db").write_text("bytes")
    before = len(REPORT.runs)
    firsts: list[float] = []

    def fails() -> None:
        with seeded("F0 self-test", data, kills=3) as run:
            firsts.append(run.random.random())
            run.count("kills", 2)
            raise AssertionError

    with pytest.raises(AssertionError) as failed:
        fails()
    (note,) = failed.value.__notes__
    assert "FAULTS_SEED=77" in note
    assert "commit " in note
    assert "kills=3" in note
    assert (tmp_path / "kept" / "F0-self-test-77" / "recall.db").read_text() == "bytes"
    with seeded("F0 self-test") as again:
        assert [again.random.random()] == firsts
    report = FaultReport()
    report.runs = REPORT.runs[before:]
    del REPORT.runs[before:]
    assert [run["outcome"] for run in report.runs] == ["FAILED", "passed"]
    report.write(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["counts"] == {"kills": 2}


def test_a_run_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(REPORT.runs)
    monkeypatch.setattr(REPORT, "test_ends_at", 0.0)
    with seeded("F0 self-test") as run:
        assert list(run.cycles(5)) == [0]
    assert (run.done, run.wanted, run.is_cut) == (1, 5, True)
    del REPORT.runs[before:]


def test_the_table_says_how_much_was_done_of_what_was_wanted() -> None:
    report = FaultReport()
    for name, outcome in (("F1", "passed"), ("F2", "FAILED")):
        run = FaultRun(name, 7, None, ends_at=float("inf"))
        run.count("kills", len([*run.cycles(1_200)]))
        report.add(run, {}, 1.5, outcome)
    report.tests = {"a.py::b[1]": "left out: why", "a.py::b[2]": "left out: why"}
    first, _, *lines = table(report.content())
    assert first.startswith("commit ")
    assert [line.split() for line in lines[:2]] == [
        "F1 passed 1,200 of 1,200 1.5 7 1,200 kills".split(),
        "F2 FAILED 1,200 of 1,200 1.5 7 1,200 kills".split(),
    ]
    assert lines[2:] == ["2 x left out: why: a.py::b"]


def test_a_suite_that_does_not_end_is_ended(tmp_path: Path) -> None:
    ends, hangs = "raise SystemExit(3)", "import threading; threading.Event().wait()"
    for code, seconds, status in ((ends, 60.0, 3), (hangs, 0.5, 1)):
        command = [sys.executable, "-c", code]
        assert fault_suite.ended(command, tmp_path, dict(os.environ), seconds) == status


# ---- the shim ----

TRACED = (
    "write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,sync_file_range,ftruncate,truncate,"
    "rename,renameat,renameat2,link,linkat,unlink,unlinkat,fallocate,copy_file_range,sendfile,"
    "creat,open,openat"
)


@needs_shim
@pytest.mark.parametrize("name", ["append", "images"])
def test_the_shim_meets_every_system_call_that_changes_a_file(tmp_path: Path, name: str) -> None:
    """What strace sees of a run, the shim has counted."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    trace, folder = tmp_path / "trace", tmp_path / "folder"
    folder.mkdir()
    command = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={TRACED}", "-o", str(trace)]
    command += ["-E", f"LD_PRELOAD={shim()}"]
    command += [sys.executable, "-m", "support.fault_scenarios", name, str(folder)]
    environment = {**os.environ, "PYTHONPATH": with_tests(os.environ.get("PYTHONPATH"))}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if "PTRACE" in ended.stderr or "ptrace" in ended.stderr:
        pytest.skip("tracing is not allowed here")
    assert ended.returncode == 0, ended.stderr
    calls = [line for line in trace.read_text().splitlines() if str(folder) in line]
    calls = [line for line in calls if "resumed>" not in line]
    opens = re.compile(r"^\d+ +open(at)?\(")
    calls = [line for line in calls if not opens.match(line) or "O_CREAT" in line]
    assert len(calls) > 30
    assert int(ended.stdout.splitlines()[-1]) == len(calls)
