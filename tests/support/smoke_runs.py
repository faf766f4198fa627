"""Runs a benchmark's smoke mode as a person would, and reads its result."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.provision import find_model
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_server.message_codec import ProtobufMessages

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 100


def run(module: str, file: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """The result of `python -m benchmarks.MODULE FLAGS --json FILE` and what it printed."""
    printed = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *flags, "--json", str(file)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert printed.returncode == 0, printed.stderr
    result: dict[str, Any] = json.loads(file.read_text())
    return result, printed.stdout


def assert_charts_can_be_drawn(result: dict[str, Any]) -> None:
    """Every chart has rows, and its columns are theirs; the columns of a table are one set."""
    for rows in result["tables"].values():
        assert all(row.keys() == rows[0].keys() for row in rows)
    assert result["charts"]
    for chart in result["charts"]:
        rows = result["tables"][chart["table"]]
        only = chart["only"]
        shown = [row for row in rows if all(row[k] == v for k, v in only.items())]
        assert shown
        for row in shown:
            assert {chart["x"], chart["y"], *chart["by"]} <= row.keys()
            assert isinstance(row[chart["y"]], int | float)


def assert_store_is_as_built(directory: Path, messages: int, resources: int) -> None:
    """A kept store has so many messages with as many vectors, and its record is sound."""
    generation = EncoderModel.of_files(find_model()).generation
    store = SqliteMessageStore(directory / "data", generation=generation, codec=ProtobufMessages())
    try:
        stats = store.stats(None)
        found = (stats.messages, stats.vectors, stats.pending, stats.resources)
        assert found == (messages, messages, 0, resources)
        assert list(store.verify(None)) == []
    finally:
        store.close()
    assert current_analyses(directory / "data") == messages


def current_analyses(data_dir: Path) -> int:
    """How many messages of a closed store have the analysis that a sidecar would make of them."""
    connection = sqlite3.connect(data_dir / "recall.db")
    try:
        found = connection.execute("SELECT analysed FROM analyses").fetchall()
    finally:
        connection.close()
    return sum(Analyser().is_current(analysed) for (analysed,) in found)
