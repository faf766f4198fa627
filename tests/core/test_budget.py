"""What an answer leaves out to keep within a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from semanticrecall_core.ranking.context import CUT
from semanticrecall_core.types.errors import CancelledError
from semanticrecall_core.types.recalling import ContextFormat, ExcludedReason, GroupState
from semanticrecall_core.types.values import CallBudget, MessageDraft, Role
from support.assembled_answers import Assembling, PlainTokenizer, assert_within_tokens, counted


@pytest.fixture(params=[0, 60], ids=["additive", "superadditive"])
def tokenizer(request: pytest.FixtureRequest) -> PlainTokenizer:
    return PlainTokenizer(request.param)


@pytest.fixture
def answers(tmp_path: Path, tokenizer: PlainTokenizer) -> Iterator[Assembling]:
    made = Assembling(tmp_path / "data", tokenizer)
    yield made
    made.store.close()


def _draft(id: str, text: str, **fields: object) -> MessageDraft:
    number = int("".join(c for c in id if c.isdigit()) or 0)
    values: dict[str, object] = {
        "thread_id": "t",
        "role": Role.USER,
        "create_time_ns": (1_700_000_000 + 60 * number) * 10**9,
        **fields,
    }
    return MessageDraft(id=id, text=text, **values)  # type: ignore[arg-type]


def _ids(answer: object) -> list[str]:
    return [recalled.message.id for recalled in answer.messages]  # type: ignore[attr-defined]


@pytest.mark.parametrize("style", list(ContextFormat))
def test_every_budget_is_kept_and_more_never_shows_less(
    answers: Assembling, style: ContextFormat
) -> None:
    answers.add(
        *(_draft(f"m{n}", "word " * (5 + n % 3), thread_id=f"t{n // 10}") for n in range(30))
    )
    hits = ("m15", "m4", "m27")
    before = 0
    for tokens_max in (*range(1, 420, 7), 10_000):
        answer = answers.answer(
            *hits, before=2, after=2, tokens_max=tokens_max, context_format=style
        )
        assert_within_tokens(answers, answer, tokens_max)
        assert _ids(answer)
        ranked = sorted((m for m in answer.messages if m.rank), key=lambda m: m.rank)
        assert [m.message.id for m in ranked] == list(hits[: len(ranked)])
        if len(ranked) < len(hits):
            assert len(answer.messages) == len(ranked)
        is_cut = (
            any(m.text_cut for m in answer.messages)
            or CUT in answer.context_text
            or (style is not ContextFormat.NONE and not answer.context_text)
        )
        dropped = 15 - len(answer.messages) + is_cut
        assert answers.info.messages_dropped_for_tokens == dropped
        assert answers.info.context_did_not_fit is (
            style is not ContextFormat.NONE and not answer.context_text
        )
        assert [one.reason for one in answer.left_out] == (
            [ExcludedReason.TOKENS] * (len(hits) - len(ranked))
        )
        if style is ContextFormat.NONE:
            assert len(answer.messages) >= before
            before = len(answer.messages)
    assert len(answer.messages) == 15
    assert answers.info.messages_dropped_for_tokens == 0


def test_nearer_neighbours_of_better_hits_come_first(tmp_path: Path) -> None:
    answers = Assembling(tmp_path / "data", PlainTokenizer())
    answers.add(*(_draft(f"m{n}", "one two three four five") for n in range(20)))
    shown = [
        set(
            _ids(
                answers.answer(
                    "m14",
                    "m5",
                    before=2,
                    after=2,
                    tokens_max=5 * size,
                    context_format=ContextFormat.NONE,
                )
            )
        )
        for size in range(1, 11)
    ]
    added = [next(iter(now - old)) for old, now in zip([set[str](), *shown], shown, strict=False)]
    assert added == ["m14", "m5", "m13", "m15", "m12", "m16", "m4", "m6", "m3", "m7"]
    answers.store.close()


def test_a_neighbour_without_room_ends_its_side_alone(answers: Assembling) -> None:
    """FMT-6: a result of 1 MB in the window; what is left out is counted."""
    answers.add(
        _draft("m1", "near"),
        _draft("m2", "result " * 150_000, role=Role.TOOL),
        _draft("m3", "nearer"),
        _draft("m4", "hit"),
        _draft("m5", "after"),
    )
    answer = answers.answer("m4", before=3, after=3, tokens_max=1000)
    assert _ids(answer) == ["m3", "m4", "m5"]
    assert answers.info.messages_dropped_for_tokens == 2
    assert "result" not in answer.context_text
    assert_within_tokens(answers, answer, 1000)


def test_a_hit_larger_than_the_budget_is_passed_over(answers: Assembling) -> None:
    answers.add(_draft("m1", "first hit"), _draft("m2", "huge " * 5000), _draft("m3", "third hit"))
    answer = answers.answer("m1", "m2", "m3", before=0, after=0, tokens_max=500)
    assert [(m.message.id, m.rank) for m in answer.messages] == [("m1", 1), ("m3", 2)]
    (left,) = answer.left_out
    assert (left.hit.relevance, left.reason) == (0.5, ExcludedReason.TOKENS)
    assert left.message is not None
    assert left.message.id == "m2"
    assert not any(m.text_cut for m in answer.messages)


@pytest.mark.parametrize("tokens_max", [1, 2, 3, 10, 60, 100, 400, 1000])
@pytest.mark.parametrize("style", list(ContextFormat))
def test_the_best_hit_is_cut_where_it_alone_is_larger(
    answers: Assembling, style: ContextFormat, tokens_max: int
) -> None:
    """FMT-6: never above the budget, and what was cut is said."""
    text = " ".join(f"<word{n}>" for n in range(2000))
    metadata = '{"a":1}'
    answers.add(
        _draft(
            "m1", text, author="Ann", payload=b"p" * 99, payload_type="x", metadata_json=metadata
        ),
        _draft("m2", "small"),
    )
    answer = answers.answer("m1", "m2", tokens_max=tokens_max, context_format=style)
    assert_within_tokens(answers, answer, tokens_max)
    (best,) = answer.messages
    message = best.message
    assert best.text_cut
    assert message.text
    assert text.startswith(message.text)
    assert answers.tokenizer.of(counted(message)) > tokens_max - 4 or tokens_max < 4
    assert (message.author, message.payload) == ("Ann" if tokens_max > 2 else "", b"")
    assert (message.id, message.thread_id, message.metadata_json) == ("m1", "t", metadata)
    assert (message.resource_id, message.seq, message.revision) == ("u", 1, 1)
    assert message.create_time_ns == (1_700_000_000 + 60) * 10**9
    assert answers.info.messages_dropped_for_tokens == 2
    if style is not ContextFormat.NONE and tokens_max >= 100:
        assert CUT in answer.context_text
        assert "word0" in answer.context_text
    if style is ContextFormat.NONE or tokens_max < 10:
        assert answer.context_text == ""


def test_a_hit_too_large_for_the_context_alone_is_cut_there_alone(tmp_path: Path) -> None:
    answers = Assembling(tmp_path / "data", PlainTokenizer())
    answers.add(_draft("m1", "word " * 195), _draft("m2", "small"))
    answer = answers.answer("m1", "m2", tokens_max=200)
    (best,) = answer.messages
    assert best.message.text == "word " * 195
    assert not best.text_cut
    assert CUT in answer.context_text
    assert answers.info.messages_dropped_for_tokens == 2
    assert_within_tokens(answers, answer, 200)
    answers.store.close()


def test_a_budget_too_small_for_any_context_still_fills_with_messages(answers: Assembling) -> None:
    answers.add(*(_draft(f"m{n}", "one two") for n in range(9)))
    answer = answers.answer("m1", "m5", before=0, after=0, tokens_max=6)
    assert _ids(answer) == ["m1", "m5"]
    assert answer.context_text == ""
    assert answers.info.context_did_not_fit
    assert answers.info.messages_dropped_for_tokens == 1  # it is not in the context


@pytest.mark.parametrize("tokens_max", [0, 6])
def test_a_context_without_anything_to_say_is_not_one_that_did_not_fit(
    answers: Assembling, tokens_max: int
) -> None:
    answers.add(_draft("m1", "one two"), _draft("m2", "three"))
    answer = answers.answer(
        "m1", thread_id="t", tokens_max=tokens_max, context_format=ContextFormat.MASTRA
    )
    assert "m1" in _ids(answer)
    assert answer.context_text == ""
    assert not answers.info.context_did_not_fit


# ---- groups ----


def _call(ids: Sequence[str], group: str, words: int = 3) -> list[MessageDraft]:
    roles = (Role.ASSISTANT, *[Role.TOOL] * (len(ids) - 1))
    return [
        _draft(id, "word " * words, role=role, group_id=group)
        for id, role in zip(ids, roles, strict=True)
    ]


@pytest.mark.parametrize("tools", [1, 3])
@pytest.mark.parametrize("hit", ["m10", "m16"])
def test_a_group_at_the_edge_of_a_window_is_whole_or_absent(
    answers: Assembling, tools: int, hit: str
) -> None:
    """WIN-5: a call with its result, and three parallel calls, before and after a hit."""
    group = [f"m{n}" for n in range(12, 13 + tools)]
    answers.add(_draft("m10", "hit"), _draft("m16", "hit"), *_call(group, "g"))
    fields = {"before": 1, "after": 1, "context_format": ContextFormat.NONE}
    whole = answers.answer(hit, **fields)
    states = {m.message.id: m.group_state for m in whole.messages}
    assert states == {hit: GroupState.NO_GROUP, **dict.fromkeys(group, GroupState.WHOLE)}
    assert answers.info.absent_group_ids == ()
    enough = 1 + 3 * len(group)
    for tokens_max in range(1, enough + 2):
        answer = answers.answer(hit, tokens_max=tokens_max, **fields)
        is_whole = tokens_max >= enough
        if answers.tokenizer.of("word " * 3) == 3:
            assert set(_ids(answer)) == {hit, *(group if is_whole else ())}
            assert answers.info.absent_group_ids == (() if is_whole else ("g",))
        assert set(_ids(answer)) in ({hit}, {hit, *group})


def test_a_hit_goes_alone_where_its_group_has_no_room(tmp_path: Path) -> None:
    answers = Assembling(tmp_path / "data", PlainTokenizer())
    answers.add(*_call(["m1", "m2", "m3"], "g", words=10), _draft("m5", "hit"), _draft("m6", "x"))
    fields = {"before": 2, "after": 2, "context_format": ContextFormat.NONE}
    answer = answers.answer("m2", "m5", tokens_max=29, **fields)
    assert [(m.message.id, m.group_state) for m in answer.messages] == [
        ("m2", GroupState.HIT_ONLY),
        ("m5", GroupState.NO_GROUP),
        ("m6", GroupState.NO_GROUP),
    ]
    assert answers.info.absent_group_ids == ("g",)
    assert answers.info.messages_dropped_for_tokens == 2
    whole = answers.answer("m2", "m5", tokens_max=30, **fields)
    assert _ids(whole) == ["m1", "m2", "m3"]
    assert [one.message.id for one in whole.left_out if one.message] == ["m5"]
    answers.store.close()


def test_a_group_broken_by_the_bytes_of_an_answer_is_named(tmp_path: Path) -> None:
    answers = Assembling(tmp_path / "data", PlainTokenizer(), bytes_max=3000)
    payload = b"x" * 700
    answers.add(
        _draft("m1", "hit", payload=payload),
        *(_draft(f"m{n}", "<" * 300, group_id="g") for n in (2, 3)),
    )
    answer = answers.answer("m1", "m2", before=0, after=0)
    assert {m.message.id: m.group_state for m in answer.messages} == {
        "m1": GroupState.NO_GROUP,
        "m2": GroupState.HIT_ONLY,
    }
    assert answers.info.absent_group_ids == ("g",)
    assert answers.info.messages_dropped == 1
    answers.store.close()


# ---- what it costs ----


def test_no_more_text_is_counted_than_can_matter(tmp_path: Path) -> None:
    """Four hits with a window of 1 MB results: little of them is counted."""
    tokenizer = PlainTokenizer()
    answers = Assembling(tmp_path / "data", tokenizer, bytes_max=32 * 2**20)
    big = "result " * 150_000
    answers.add(
        *(
            _draft(
                f"m{n}", "hit" if n % 5 == 2 else big, role=Role.TOOL if n % 5 != 2 else Role.USER
            )
            for n in range(20)
        )
    )
    answer = answers.answer("m2", "m7", "m12", "m17", before=2, after=2, tokens_max=1000)
    assert _ids(answer) == ["m2", "m7", "m12", "m17"]
    assert tokenizer.chars < 20 * 10_000
    answers.store.close()


def test_a_cancelled_caller_ends_it(answers: Assembling) -> None:
    answers.add(_draft("m1", "word " * 50))
    budget = CallBudget(float("inf"), lambda: answers.tokenizer.chars > 0)
    with pytest.raises(CancelledError):
        answers.answer("m1", tokens_max=10, budget=budget)
