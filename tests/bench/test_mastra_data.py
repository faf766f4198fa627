"""What the benchmark beside Mastra is given: texts, vectors, and stores filled with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import mastra_data, store_builder
from benchmarks.mastra_data import Plan
from benchmarks.raw_parts import RawEmbed
from benchmarks.store_builder import open_store
from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.provision import find_model

PLAN = Plan(sizes=(50, 120), resource_messages=50, queries=3, seed=7)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("mastra")
    return directory, mastra_data.make(directory, PLAN)


def json_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_there_is_a_vector_for_each_text(made: tuple[Path, dict[str, Any]]) -> None:
    texts = Path(made[1]["texts"])
    messages = json_lines(texts / "messages.jsonl")
    assert [message["id"] for message in messages] == [f"m{number}" for number in range(120)]
    assert [message["role"] for message in messages[:3]] == ["user", "assistant", "user"]
    vectors = np.fromfile(texts / "vectors.f32", dtype="<f4").reshape(120, 384)
    for number in (0, 77, 119):
        assert float(RawEmbed()(messages[number]["text"]) @ vectors[number]) > 0.999
    queries = json_lines(texts / "queries.jsonl")
    assert len(set(queries)) == 3


@pytest.mark.parametrize(
    ("store", "counts"),
    [
        ("resources-50", {"user-0": 50}),
        ("resources-120", {"user-0": 50, "user-1": 50, "user-2": 20}),
        ("one_user-50", {"user-0": 50}),
        ("one_user-120", {"user-0": 120}),
    ],
)
def test_stores_hold_what_their_layout_says(
    made: tuple[Path, dict[str, Any]], store: str, counts: dict[str, int]
) -> None:
    generation = EncoderModel.of_files(find_model()).generation
    opened = open_store(Path(made[1]["stores"][store]), generation)
    try:
        found = {owner: opened.stats(owner).messages for owner in counts}
        assert found == counts
        assert opened.stats(None).messages == sum(counts.values())
    finally:
        opened.close()


def test_what_is_there_is_not_made_again(
    made: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, first = made

    def refuse(*_: object) -> None:
        raise AssertionError("it is made again")

    monkeypatch.setattr(mastra_data, "embed_all", refuse)
    monkeypatch.setattr(store_builder, "open_store", refuse)
    assert mastra_data.make(directory, PLAN) == first


@pytest.mark.parametrize(
    "flags",
    [
        ["--sizes", "0,10"],
        ["--sizes", "200001"],
        ["--resource-messages", "60"],
        ["--queries", "0"],
    ],
)
def test_flags_that_make_no_sense_are_refused(tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        mastra_data.plan_of(["--data-dir", str(tmp_path), *flags])
