"""Caches under replayed conversations: the replay, what it makes possible, what was measured."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import replay
from benchmarks.query_cache import Point
from benchmarks.replay import Call, Manner, Possible, Turn
from semanticrecall.v1 import recall_pb2
from support import smoke_runs

EVENLY = Manner(turns=100, model_calls=2, zipf_exponent=0.0, repeat_share=0.0, seed=1)


NAMES = map(str, itertools.count())


def conversation(*spoken: tuple[str, str]) -> dict[str, object]:
    """One session, as in a file."""
    turns = [{"id": str(n), "speaker": who, "text": text} for n, (who, text) in enumerate(spoken)]
    sessions = [{"session": 1, "turns": turns}]
    return {"conversation": next(NAMES), "sessions": sessions, "questions": []}


FILE = [
    conversation(
        ("Ann", "Where is my bicycle?"),
        ("Bot", "In the shed."),
        ("Ann", "Which colour was the tent?"),
        ("Bot", "Green."),
        ("Ann", "Where is my bicycle?"),
        ("Bot", "Still in the shed."),
        ("Ann", "Nobody answers this."),
    ),
    conversation(
        ("Ben", "Where is my bicycle?"),
        ("Bot", "In the old harbour."),
        ("Ben", "In the old harbour."),
        ("Bot", "So I said."),
    ),
]
"""Each user asks once more what is known: a question of his own, and what he was told. The question
that both ask is new to each."""

FILE_RECALLS = 10
FILE_HITS = 7  # the second recall of each of five turns, and the first of Ann's and Ben's last
FILE_ANSWER_HITS = 5


@pytest.mark.slow
def test_a_file_s_conversations_hit_as_often_as_they_must(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(FILE))
    result, printed = smoke_runs.run(
        "query_cache",
        tmp_path / "result.json",
        *("--conversations", str(file), "--repeat-share", "0", "--model-calls", "2"),
        *("--cache-bytes", "0,67108864", "--answer-cache-bytes", "0,16777216"),
    )
    assert result["figures"]["turns"] == 5
    assert f"answers {result['answers_digest']}" in printed
    smoke_runs.assert_charts_can_be_drawn(result)
    rows = {
        (row["cache_bytes"], row["answer_cache_bytes"]): row for row in result["tables"]["caches"]
    }
    hits = {  # of answers, of queries
        (0, 0): (0, 0),
        (67108864, 0): (0, FILE_HITS),
        (0, 16777216): (FILE_ANSWER_HITS, 0),
        (67108864, 16777216): (FILE_ANSWER_HITS, FILE_HITS - FILE_ANSWER_HITS),
    }
    assert rows.keys() == hits.keys()
    for sizes, (answers, queries) in hits.items():
        row = rows[sizes]
        assert row["recalls"] == FILE_RECALLS
        assert row["answer_cache_hit_share"] == pytest.approx(answers / FILE_RECALLS)
        assert row["query_cache_hit_share"] == pytest.approx(queries / FILE_RECALLS)
        assert row["hit_share"] == pytest.approx((answers + queries) / FILE_RECALLS)
        assert row["possible_hit_share"] == pytest.approx(FILE_HITS / FILE_RECALLS)
        assert row["possible_answer_hit_share"] == pytest.approx(FILE_ANSWER_HITS / FILE_RECALLS)
        assert (row["p50_answer_hit_ms"] is None) is (answers == 0)
        assert (row["p50_query_hit_ms"] is None) is (queries == 0)
        # Of ten messages five are questions just asked, and one more was said before.
        known = 0 if sizes[0] == 0 else 5
        assert row["index_cached_share"] == pytest.approx(known / 10)


@pytest.mark.slow
def test_a_cache_that_holds_everything_finds_all_that_is_possible(tmp_path: Path) -> None:
    result, _ = smoke_runs.run("query_cache", tmp_path / "result.json", "--smoke")
    rows = result["tables"]["caches"]
    assert [(row["cache"], row["answer_cache"]) for row in rows] == [
        ("64 KiB", "0"),
        ("64 MiB", "0"),
        ("64 KiB", "16 MiB"),
        ("64 MiB", "16 MiB"),
    ]
    manner = Manner(
        **{
            name: result["config"][name]
            for name in ("turns", "model_calls", "zipf_exponent", "repeat_share", "seed")
        }
    )
    calls = replay.calls(replay.made_up(result["config"]["users"], 60, seed=manner.seed), manner)
    texts = [(call.user, call.said.text) for call in calls if not call.is_index]
    new = len(set(texts))
    assert result["figures"]["recalls"] == len(texts) == 120
    for row in rows:
        assert row["possible_hit_share"] == pytest.approx(1 - new / len(texts))
        assert row["possible_answer_hit_share"] == pytest.approx(0.5)
        assert row["answer_cache_hit_share"] == (0.5 if row["answer_cache_bytes"] else 0)
    small, large = rows[0]["hit_share"], rows[1]["hit_share"]
    assert 0 < small < large == pytest.approx(rows[1]["possible_hit_share"])
    assert rows[3]["hit_share"] == pytest.approx(large)
    # The answers do not depend on what is cached.
    other, _ = smoke_runs.run(
        "query_cache",
        tmp_path / "other.json",
        *("--smoke", "--cache-bytes", "0", "--answer-cache-bytes", "0"),
    )
    assert other["answers_digest"] == result["answers_digest"]


def test_a_file_is_read_as_turns_of_who_speaks_first(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    two_messages = conversation(
        ("Cy", "One"), ("Cy", "and two"), ("Dee", "Three"), ("Eve", ""), ("Dee", "four"), ("Cy", "")
    )
    file.write_text(json.dumps([*FILE, two_messages, conversation(("Cy", "alone"))]))
    assert replay.read(file) == [
        [
            Turn("Where is my bicycle?", "In the shed."),
            Turn("Which colour was the tent?", "Green."),
            Turn("Where is my bicycle?", "Still in the shed."),
        ],
        [
            Turn("Where is my bicycle?", "In the old harbour."),
            Turn("In the old harbour.", "So I said."),
        ],
        [Turn("One and two", "Three four")],
    ]


def test_a_file_without_turns_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([conversation(("Cy", "alone"))]))
    with pytest.raises(ValueError, match="conversations with turns"):
        replay.read(file)
    file.write_text("[{}]")
    with pytest.raises(ValueError, match="not a JSON list of conversations"):
        replay.read(file)


def test_each_user_recalls_then_indexes_turn_by_turn_among_others() -> None:
    conversations = replay.made_up(4, 30, seed=5)
    calls = replay.calls(conversations, EVENLY)
    assert calls == replay.calls(conversations, EVENLY)
    assert sum(call.is_index for call in calls) == EVENLY.turns
    for number, turns in enumerate(conversations):
        mine = [call for call in calls if call.user == f"user-{number}"]
        indexed = [call for call in mine if call.is_index]
        assert [call.said for call in indexed] == list(turns[: len(indexed)])
        assert mine == [
            Call(f"user-{number}", turn, said, is_index)
            for turn, said in enumerate(turns[: len(indexed)])
            for is_index in (False, False, True)
        ]
    # Others come between the calls of one turn.
    assert any(one.user != other.user and not one.is_index for one, other in pairwise(calls))


def test_some_users_speak_more_and_some_turns_come_back() -> None:
    manner = Manner(turns=400, model_calls=1, zipf_exponent=1.0, repeat_share=0.5, seed=3)
    calls = replay.calls(replay.made_up(8, 400, seed=5), manner)
    turns = [call for call in calls if call.is_index]
    by_user = Counter(call.user for call in turns)
    assert by_user["user-0"] > 2 * by_user["user-7"] > 0
    said: set[tuple[str, str]] = set()
    again = 0
    for call in turns:
        text = (call.user, call.said.text)
        assert call.said.reply.startswith("As I said: ") is (text in said)
        again += text in said
        said.add(text)
    assert 0.4 < again / len(turns) < 0.6


def test_what_is_possible_is_a_user_s_own() -> None:
    question = Turn("When?", "Then.")
    recall_ann, index_ann = Call("ann", 0, question, False), Call("ann", 0, question, True)
    told = Call("ann", 1, Turn("Then.", "Yes."), False)
    recall_ben = Call("ben", 0, question, False)
    replayed = [recall_ann, recall_ann, recall_ben, index_ann, recall_ann, told, recall_ben]
    assert replay.possible(replayed) == [
        Possible(vector=False, answer=False),
        Possible(vector=True, answer=True),
        Possible(vector=False, answer=False),
        Possible(vector=True, answer=False),
        Possible(vector=True, answer=False),
        Possible(vector=True, answer=True),
    ]


@pytest.mark.parametrize(
    ("info", "known"),
    [
        (recall_pb2.RecallInfo(cache_hit=True), Possible(vector=False, answer=False)),
        (
            recall_pb2.RecallInfo(cache_hit=True, answer_cache_hit=True),
            Possible(vector=True, answer=False),
        ),
    ],
)
def test_a_hit_that_cannot_be_is_an_error(info: recall_pb2.RecallInfo, known: Possible) -> None:
    point = Point(cache_bytes=0, answer_cache_bytes=0)
    answer = recall_pb2.RecallResponse(info=info).SerializeToString()
    with pytest.raises(RuntimeError, match="was"):
        point.recalled(answer, 0.001, known)
    point.recalled(answer, 0.001, Possible(vector=True, answer=True))
    assert len(point.ids) == 2


@pytest.mark.parametrize(
    "manner",
    [
        Manner(turns=0, model_calls=2, zipf_exponent=1.0, repeat_share=0.2, seed=1),
        Manner(turns=1, model_calls=0, zipf_exponent=1.0, repeat_share=0.2, seed=1),
        Manner(turns=1, model_calls=1, zipf_exponent=-1.0, repeat_share=0.2, seed=1),
        Manner(turns=1, model_calls=1, zipf_exponent=1.0, repeat_share=1.0, seed=1),
    ],
)
def test_manners_out_of_range_are_refused(manner: Manner) -> None:
    with pytest.raises(ValueError, match="must be"):
        replay.calls([[Turn("a", "b")]], manner)
