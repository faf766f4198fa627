"""Recall quality: the metrics on cases worked out by hand, the file's shape, and the whole run.

No published data is here: the conversation is one of our own, and the run over it is compared with
brute force over vectors of the bare model.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks import quality
from benchmarks.conversations import (
    Conversation,
    Question,
    Session,
    Turn,
    evidence_ids,
    parsed_date,
    read_conversations,
)
from benchmarks.evidence import (
    Scored,
    by_category,
    mean_figures,
    recall_at,
    reciprocal_rank,
    scored,
    share_found,
    window,
    within,
)
from benchmarks.raw_parts import RawEmbed
from semanticrecall.v1 import recall_pb2, types_pb2
from support import smoke_runs

RANKED = ["D1:4", "D2:1", "D1:9", "D3:3"]


# ---- Metrics ----


@pytest.mark.parametrize(
    ("k", "evidence", "share"),
    [
        (1, ["D1:4"], 1.0),
        (1, ["D2:1"], 0.0),
        (2, ["D2:1"], 1.0),
        (2, ["D1:9", "D2:1"], 0.5),
        (3, ["D1:9", "D2:1"], 1.0),
        (20, ["D1:4", "D3:3", "D7:7"], 2 / 3),
        (20, ["D7:7"], 0.0),
        # An id that is named twice is one piece of evidence.
        (1, ["D1:4", "D1:4", "D2:1"], 0.5),
    ],
)
def test_recall_is_the_share_of_the_evidence_among_the_first_k(
    k: int, evidence: list[str], share: float
) -> None:
    assert recall_at(k, RANKED, evidence) == pytest.approx(share)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (["D1:4"], 1.0),
        (["D1:9"], 1 / 3),
        # The first of several counts, in whatever order they are named.
        (["D3:3", "D2:1"], 1 / 2),
        (["D7:7"], 0.0),
        ([], 0.0),
    ],
)
def test_the_reciprocal_rank_is_that_of_the_first_evidence(
    evidence: list[str], expected: float
) -> None:
    assert reciprocal_rank(RANKED, evidence) == pytest.approx(expected)


def test_an_answer_may_be_empty_but_the_evidence_may_not() -> None:
    assert recall_at(5, [], ["D1:1"]) == 0.0
    assert reciprocal_rank([], ["D1:1"]) == 0.0
    with pytest.raises(ValueError, match="without evidence"):
        share_found(RANKED, [])


def test_means_are_over_questions_and_not_over_evidence() -> None:
    one = scored(1, RANKED, ["D1:4"])
    two = scored(1, RANKED, ["D3:3", "D2:1", "D7:7", "D8:8"])
    assert mean_figures([one, two]) == pytest.approx(
        {
            "recall_at_1": (1 + 0) / 2,
            "recall_at_5": (1 + 2 / 4) / 2,
            "recall_at_10": (1 + 2 / 4) / 2,
            "recall_at_20": (1 + 2 / 4) / 2,
            "mrr": (1 + 1 / 2) / 2,
        }
    )


def test_categories_are_counted_alone_together_and_all() -> None:
    made = [Scored(category, {}, category / 10) for category in (5, 2, 4, 2)]
    groups = {name: [one.category for one in found] for name, found in by_category(made).items()}
    assert groups == {"2": [2, 2], "4": [4], "5": [5], "1-4": [2, 4, 2], "all": [5, 2, 4, 2]}
    assert by_category([]) == {}
    assert list(by_category(made[:1])) == ["5", "all"]


def test_groups_are_taken_while_they_fit_and_each_message_once() -> None:
    tokens = {"a": 10, "b": 20, "c": 30, "d": 5}
    groups = [["a", "b"], ["b", "c"], ["d"]]
    assert within(60, groups, tokens) == ["a", "b", "c"]
    assert within(65, groups, tokens) == ["a", "b", "c", "d"]
    # What comes after the first group that does not fit is not there, though it would fit.
    assert within(59, groups, tokens) == ["a", "b"]
    assert within(29, groups, tokens) == []


def test_a_window_ends_where_its_thread_does() -> None:
    thread = ["a", "b", "c", "d", "e"]
    assert window(thread, "c", 1) == ["b", "c", "d"]
    assert window(thread, "a", 2) == ["a", "b", "c"]
    assert window(thread, "e", 2) == ["c", "d", "e"]
    assert window(thread, "d", 0) == ["d"]


def test_hits_are_ordered_by_rank_and_neighbours_are_none() -> None:
    """An answer is ordered by time; two hits of one score have the ranks the server gave them."""
    answer = recall_pb2.RecallResponse(
        messages=[
            _recalled("D1:1", rank=3, score=0.2),
            _recalled("D1:2"),
            _recalled("D2:1", rank=2, score=0.5),
            _recalled("D2:2", rank=1, score=0.5),
        ]
    )
    assert quality.ranked_hits(answer) == ["D2:2", "D2:1", "D1:1"]


def _recalled(id_: str, *, rank: int = 0, score: float = 0.0) -> recall_pb2.RecalledMessage:
    return recall_pb2.RecalledMessage(
        message=types_pb2.Message(id=id_), hit=bool(rank), rank=rank, score=score
    )


# ---- The file ----


@pytest.mark.parametrize(
    ("strings", "ids"),
    [
        (["D1:3"], ("D1:3",)),
        (["D8:6; D9:17"], ("D8:6", "D9:17")),
        (["D8:6 D9:17", "D8:6"], ("D8:6", "D9:17")),
        (["D10:19", "D1:1"], ("D10:19", "D1:1")),
        (["D", "D:11:26", ""], ()),
        ([], ()),
    ],
)
def test_every_id_in_a_string_is_evidence(strings: list[str], ids: tuple[str, ...]) -> None:
    assert evidence_ids(strings) == ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1:56 pm on 8 May, 2023", (2023, 5, 8, 13, 56)),
        ("12:48 am on 1 February, 2023", (2023, 2, 1, 0, 48)),
        ("12:05 pm on 17 December, 2022", (2022, 12, 17, 12, 5)),
        ("31 February 2023", None),
        ("1:00 pm on 31 February, 2023", None),
        ("1:00 pm on 3 Mai, 2023", None),
        ("", None),
    ],
)
def test_dates_of_sessions_are_read(text: str, expected: tuple[int, ...] | None) -> None:
    wanted = datetime(*expected, tzinfo=UTC) if expected else None  # type: ignore[misc, arg-type]
    assert parsed_date(text) == wanted


def a_file(path: Path, *names: str, ids: tuple[str, ...] = ("D1:1",), evidence: Any = ()) -> Path:
    """Conversations of these names, each of one session and one question."""
    turns = [{"id": id_, "speaker": "Ann", "text": "My boat is red."} for id_ in ids]
    asked = {"question": "What colour is the boat?", "category": 4, "evidence": evidence}
    path.write_text(
        json.dumps(
            [
                {
                    "conversation": name,
                    "sessions": [{"session": 1, "turns": turns}],
                    "questions": [asked],
                }
                for name in names
            ]
        )
    )
    return path


def test_names_and_ids_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    """They would replace each other in the sidecar, and figures would be of half the turns."""
    file = tmp_path / "conversations.json"
    assert len(read_conversations(a_file(file, "one", "two", ids=("D1:1", "D1:2")))) == 2
    with pytest.raises(ValueError, match="one name"):
        read_conversations(a_file(file, "one", "one"))
    with pytest.raises(ValueError, match="same id"):
        read_conversations(a_file(file, "one", ids=("D1:1", "D1:1")))


def test_evidence_that_is_no_list_is_refused(tmp_path: Path) -> None:
    """Its letters hold no id: the question would be left out without a word."""
    with pytest.raises(ValueError, match="conversations: not a JSON list"):
        read_conversations(a_file(tmp_path / "conversations.json", "one", evidence="D1:1"))


def test_evidence_that_no_turn_has_is_counted(tmp_path: Path) -> None:
    file = a_file(tmp_path / "conversations.json", "one", "two", evidence=["D1:1; D1:2", "D9:9"])
    assert quality.ids_not_there(read_conversations(file)) == 4


@pytest.mark.parametrize("content", ["{", "[1]", '[{"conversation": "x"}]', '{"a": 1}'])
def test_a_file_of_another_shape_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="conversations: "):
        read_conversations(file)


def test_a_turn_becomes_a_message() -> None:
    turns = (Turn("D1:1", "Ann", "Look.", "a red boat"), Turn("D1:2", "Ben", "Oh!", ""))
    started = datetime(2024, 3, 4, 9, 5, tzinfo=UTC)
    conversation = Conversation("c", (Session("session-1", started, turns),), ())
    (request,) = quality.index_requests(conversation, with_authors=True)
    assert (request.resource_id, request.thread_id) == ("c", "session-1")
    assert [(m.id, m.author, m.text) for m in request.messages] == [
        ("D1:1", "Ann", "Look. [shares a red boat]"),
        ("D1:2", "Ben", "Oh!"),
    ]
    assert [m.create_time.ToJsonString() for m in request.messages] == [
        "2024-03-04T09:05:00Z",
        "2024-03-04T09:05:01Z",
    ]
    (bare,) = quality.index_requests(conversation, with_authors=False)
    assert [(m.id, m.author) for m in bare.messages] == [("D1:1", ""), ("D1:2", "")]


def test_a_long_session_is_sent_in_parts_and_without_a_date_has_no_times() -> None:
    turns = tuple(Turn(f"D1:{n}", "Ann", f"number {n}", "") for n in range(1, 251))
    conversation = Conversation("c", (Session("s", None, turns),), ())
    requests = quality.index_requests(conversation, with_authors=True)
    assert [len(request.messages) for request in requests] == [100, 100, 50]
    assert not any(m.HasField("create_time") for r in requests for m in r.messages)


# ---- Modes ----


class _Refused(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


def _server_of(modes: set[int], refusal: grpc.StatusCode) -> Any:
    def recall(request: recall_pb2.RecallRequest) -> recall_pb2.RecallResponse:
        if request.ranking.mode not in modes:
            raise _Refused(refusal)
        return recall_pb2.RecallResponse()

    return SimpleNamespace(Recall=recall)


ASKED = Conversation("c", (), (Question("Why?", 1, ("D1:1",)),))


def test_modes_that_the_server_refuses_are_not_measured() -> None:
    unimplemented = grpc.StatusCode.UNIMPLEMENTED
    only_dense = _server_of({types_pb2.MODE_DENSE}, unimplemented)
    assert list(quality.modes_there(only_dense, ASKED)) == ["dense"]
    all_three = _server_of({types_pb2.MODE_DENSE, types_pb2.MODE_LEXICAL, types_pb2.MODE_HYBRID},
                           unimplemented)  # fmt: skip
    assert list(quality.modes_there(all_three, ASKED)) == ["dense", "lexical", "hybrid"]


def test_any_other_refusal_is_a_failure() -> None:
    broken = _server_of({types_pb2.MODE_DENSE}, grpc.StatusCode.INTERNAL)
    with pytest.raises(_Refused):
        quality.modes_there(broken, ASKED)


# ---- Bars ----


def _rows(mode: str, figures: float) -> list[dict[str, Any]]:
    names = ("recall_at_1", "recall_at_5", "recall_at_10", "recall_at_20", "mrr")
    return [
        {"mode": mode, "category": category, "note": "", **dict.fromkeys(names, figures)}
        for category in ("1-4", "all")
    ]


def test_bars_are_those_of_hybrid_ranking() -> None:
    rows = _rows("dense", 0.9) + _rows("hybrid", 0.7)
    answers = [
        {"mode": mode, "shape": shape, "evidence": evidence}
        for mode, shape, evidence in (
            ("dense", "5 hits, 2 each side", 0.5),
            ("hybrid", "5 hits, 2 each side", 0.99),
            ("dense", quality.budget_shape(500), 0.98),
            ("hybrid", quality.budget_shape(500), 0.9),
        )
    ]
    bars = quality.bars(quality.Config(budget_tokens=500), rows, answers)
    assert [(bar.measured, bar.limit, bar.met) for bar in bars] == [
        (0.7, 0.80, False),
        (0.7, 0.79, False),
        (0.7, 0.69, True),
        (0.7, 0.57, True),
        (0.9, 0.86, True),
        (1.8, 1.6, True),
    ]
    (bare,) = quality.bars(quality.Config(authors=0), rows, answers)
    assert (bare.measured, bare.limit, bare.met) == (0.7, 0.76, False)
    assert quality.bars(quality.Config(), rows[:2], answers) == []


# ---- The run ----


def brute_force() -> list[tuple[int, list[str], list[str]]]:
    """Of each question of the sample with evidence: category, all turns by cosine, evidence."""
    (sample,) = json.loads(quality.SAMPLE.read_text())
    embed = RawEmbed()
    turns = [turn for session in sample["sessions"] for turn in session["turns"]]
    vectors = np.stack(
        [
            embed(turn["text"] + (f" [shares {turn['caption']}]" if "caption" in turn else ""))
            for turn in turns
        ]
    )
    answers = []
    for one in sample["questions"]:
        evidence = [part.strip() for text in one["evidence"] for part in text.split(";")]
        if evidence:
            best = np.argsort(-(vectors @ embed(one["question"])), kind="stable")
            answers.append((one["category"], [turns[at]["id"] for at in best], evidence))
    return answers


def test_the_sample_is_measured_as_brute_force_does(tmp_path: Path) -> None:
    result, printed = smoke_runs.run("quality", tmp_path / "result.json", "--smoke")
    assert result["skipped"] == ""
    assert f"answers {result['answers_digest']}" in printed
    smoke_runs.assert_charts_can_be_drawn(result)
    rows = {(row["mode"], row["category"]): row for row in result["tables"]["quality"]}
    answers = brute_force()
    groups = {
        "1 multi-hop": [1],
        "2 temporal": [2],
        "3 open": [3],
        "4 single-hop": [4],
        "5 adversarial": [5],
        "1-4": [1, 2, 3, 4],
        "all": [1, 2, 3, 4, 5],
    }
    for name, categories in groups.items():
        mine = [(ranked, set(ids)) for category, ranked, ids in answers if category in categories]
        row = rows["reference: text [caption]", name]
        assert row["questions"] == len(mine)
        for k in (1, 5, 10, 20):
            shares = [len(ids & set(ranked[:k])) / len(ids) for ranked, ids in mine]
            assert row[f"recall_at_{k}"] == pytest.approx(sum(shares) / len(shares)), (name, k)
        ranks = [min(ranked.index(one) for one in ids) for ranked, ids in mine]
        assert row["mrr"] == pytest.approx(sum(1 / (1 + rank) for rank in ranks) / len(ranks))
    # Whichever text the sidecar embeds, its dense ranking is that of brute force over it.
    figures = {
        mode: [{**rows[mode, name], "mode": ""} for name in groups]
        for mode in ("dense", *quality.REFERENCES)
    }
    assert figures.pop("dense") in figures.values()
    assert result["latencies_ms"]["dense"]["count"] == 6
    for mode in quality.MODES:
        there = mode in result["latencies_ms"]
        notes = {row["note"] for row in result["tables"]["quality"] if row["mode"] == mode}
        assert notes == ({""} if there else {"not in this version"})
    # All 19 turns fit into the budget: every answer up to it holds all evidence.
    shapes = {(row["mode"], row["shape"]): row for row in result["tables"]["answers"]}
    whole = shapes["dense", "hits, 1000 tokens"]
    assert (whole["messages"], whole["evidence"], whole["questions"]) == (19, 1.0, 4)


def test_turns_without_text_and_conversations_without_evidence_are_borne(tmp_path: Path) -> None:
    turns = [
        {"id": "D1:1", "speaker": "Ann", "text": "My boat is red."},
        {"id": "D1:2", "speaker": "Ben", "text": ""},
    ]
    asked = {"question": "What colour is the boat?", "category": 4}
    file = tmp_path / "conversations.json"
    file.write_text(
        json.dumps(
            [
                {
                    "conversation": name,
                    "sessions": [{"session": 1, "turns": turns}],
                    "questions": [{**asked, "evidence": evidence}],
                }
                for name, evidence in (("one", ["D1:1"]), ("two", []), ("three", ["D1:2"]))
            ]
        )
    )
    result, _ = smoke_runs.run(
        "quality", tmp_path / "result.json", "--conversations", str(file), "--references", "0"
    )
    rows = [row for row in result["tables"]["quality"] if row["mode"] == "dense"]
    assert [(row["category"], row["questions"], row["mrr"]) for row in rows] == [
        ("4 single-hop", 2, 0.5),
        ("1-4", 2, 0.5),
        ("all", 2, 0.5),
    ]
    # The turn without text is no hit, but it is the neighbour of one.
    shapes = {row["shape"]: row["evidence"] for row in result["tables"]["answers"]}
    assert shapes["5 hits, 2 each side"] == 1.0
    assert shapes["hits, 1000 tokens"] == 0.5


@pytest.mark.parametrize("flags", [(), ("--conversations", "nowhere/conversations.json")])
def test_without_conversations_it_says_so_and_is_no_failure(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    result, printed = smoke_runs.run("quality", tmp_path / "result.json", *flags)
    assert "\nSKIPPED: no conversations: " in printed
    assert result["skipped"].startswith("no conversations: ")
    assert (result["tables"], result["latencies_ms"], result["answers_digest"]) == ({}, {}, "")
