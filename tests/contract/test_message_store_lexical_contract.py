"""What every message store promises to the lexical index: analyses, and the news of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from semanticrecall_core.types.errors import AlreadyExistsError
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import ForgetTarget, Role, Status
from support.message_stores import FIRST_TICK, append, draft, embed, ticking_clock
from support.model_store import ModelStore
from support.recorded_commits import RecordedCommits
from support.recorded_texts import RecordedTexts, text_rows
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser

ANALYSE = WordAnalyser().analyse


def analyses(store: MessageStore, resource: str = "u") -> dict[int, bytes]:
    return {row[0]: row[-1] for row in text_rows(store.load_lexical(resource))}


def test_a_message_with_something_to_embed_is_there_with_its_analysis(store: MessageStore) -> None:
    assert text_rows(store.load_lexical("u")) == []
    first, second, _ = append(
        store,
        draft("a", text="One two", author="Ann", role=Role.ASSISTANT, create_time_ns=7),
        draft("b", thread="t2", text="three"),
        draft("c", embeddable=False),
    )
    threads = (store.thread_key("u", "t"), store.thread_key("u", "t2"))
    assert text_rows(store.load_lexical("u")) == [
        (first.seq, threads[0], 7, first.revision, Role.ASSISTANT, ANALYSE("One two", "Ann")),
        (second.seq, threads[1], FIRST_TICK, second.revision, Role.USER, ANALYSE("three", "")),
    ]
    assert text_rows(store.load_lexical("somebody else")) == []


def test_rows_come_by_seq_each_message_once(store: MessageStore) -> None:
    outcomes = [append(store, draft(f"m{n}", create_time_ns=9 - n))[0] for n in range(4)]
    embed(store, outcomes[2], [1.0, 0.0], [0.6, 0.8])
    append(store, draft("other"), resource="v")
    append(store, draft("m1", text="again"))
    assert store.load_lexical("u").seqs.tolist() == [outcome.seq for outcome in outcomes]


def test_a_message_is_told_of_with_its_append_before_it_has_vectors(
    store: MessageStore, texts: RecordedTexts
) -> None:
    assert texts.rows("u") == []
    a, b, _ = append(store, draft("a"), draft("b"), draft("c", embeddable=False))
    assert a.pending
    assert texts.calls == [("put", "u", (a.seq, b.seq))]
    assert texts.rows("u") == text_rows(store.load_lexical("u"))
    assert len(texts.rows("u")) == 2
    texts.calls.clear()
    embed(store, a, [1.0, 0.0])
    assert texts.calls == []


def test_an_unchanged_message_is_not_told_of(store: MessageStore, texts: RecordedTexts) -> None:
    (a,) = append(store, draft("a"))
    texts.calls.clear()
    before = text_rows(store.load_lexical("u"))
    assert append(store, draft("a"))[0].status is Status.UNCHANGED
    assert texts.calls == []
    assert text_rows(store.load_lexical("u")) == before
    again, b = append(store, draft("a"), draft("b"))
    assert again.seq == a.seq
    assert texts.calls == [("put", "u", (b.seq,))]


@pytest.mark.parametrize("is_embedded", [False, True], ids=["waiting", "embedded"])
@pytest.mark.parametrize(
    "change",
    [
        {"text": "another"},
        {"author": "Ann"},
        {"role": Role.TOOL},
        {"thread_id": "t2"},
        {"create_time_ns": 99},
        {"metadata_json": '{"k":1}'},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_change_of_a_message_is_told_and_on_record(
    store: MessageStore, texts: RecordedTexts, change: dict[str, object], is_embedded: bool
) -> None:
    one = draft("a", create_time_ns=5)
    outcome, _ = append(store, one, draft("b"))
    if is_embedded:
        embed(store, outcome, [1.0, 0.0])
    texts.rows("u")
    texts.calls.clear()
    now = replace(one, **change)  # type: ignore[arg-type]
    (changed,) = append(store, now)
    assert texts.calls == [("put", "u", (outcome.seq,))]
    rows = text_rows(store.load_lexical("u"))
    assert texts.rows("u") == rows
    assert rows[0] == (
        outcome.seq,
        store.thread_key("u", now.thread_id),
        now.create_time_ns,
        changed.revision,
        now.role,
        ANALYSE(now.text, now.author),
    )


def test_a_message_with_nothing_to_embed_any_more_is_gone_and_comes_back(
    store: MessageStore, texts: RecordedTexts
) -> None:
    a, b = append(store, draft("a"), draft("b"))
    texts.rows("u")
    texts.calls.clear()
    append(store, draft("a", text="secret", embeddable=False))
    assert texts.calls == [("removed", "u", (a.seq,))]
    assert list(analyses(store)) == [b.seq]
    append(store, draft("a", text="still none", embeddable=False))
    assert len(texts.calls) == 1
    append(store, draft("a", text="back"))
    assert texts.calls[1:] == [("put", "u", (a.seq,))]
    assert analyses(store) == {a.seq: ANALYSE("back", ""), b.seq: ANALYSE("text", "")}
    assert texts.rows("u") == text_rows(store.load_lexical("u"))


def test_of_an_id_given_twice_only_the_last_counts(
    store: MessageStore, texts: RecordedTexts
) -> None:
    a, _, b, _, c, _ = append(
        store,
        draft("a", text="first"),
        draft("a", text="last"),
        draft("b"),
        draft("b", text="none", embeddable=False),
        draft("c", text="none", embeddable=False),
        draft("c"),
    )
    assert texts.calls == [("put", "u", (a.seq, c.seq))]
    assert analyses(store) == {a.seq: ANALYSE("last", ""), c.seq: ANALYSE("text", "")}
    texts.calls.clear()
    # The second is UNCHANGED to the first, whatever it says of itself.
    append(store, draft("a", text="new"), draft("a", text="new", embeddable=False))
    assert analyses(store)[a.seq] == ANALYSE("new", "")
    append(store, draft("b", text="b"), draft("a", text="", embeddable=False))
    assert texts.calls == [
        ("put", "u", (a.seq,)),
        ("removed", "u", (a.seq,)),
        ("put", "u", (b.seq,)),
    ]


@pytest.mark.parametrize(
    ("target", "left"),
    [
        (ForgetTarget(message_ids=("a", "c", "none")), ["b", "d"]),
        (ForgetTarget(thread_id="t"), ["d"]),
        (ForgetTarget(create_time_before_ns=FIRST_TICK), ["a", "c", "d"]),
    ],
)
def test_what_is_forgotten_has_no_analysis(
    store: MessageStore, texts: RecordedTexts, target: ForgetTarget, left: list[str]
) -> None:
    given = [
        draft("a"),
        draft("b", create_time_ns=1),
        draft("c", embeddable=False),
        draft("d", thread="t2"),
    ]
    seqs = dict(zip("abcd", (outcome.seq for outcome in append(store, *given)), strict=True))
    texts.rows("u")
    texts.calls.clear()
    gone = store.forget("u", target).seqs
    assert gone == tuple(seq for name, seq in seqs.items() if name not in left)
    assert texts.calls == [("removed", "u", gone)]
    assert list(analyses(store)) == [seqs[name] for name in left if name != "c"]
    assert texts.rows("u") == text_rows(store.load_lexical("u"))


def test_everything_forgotten_is_told_as_a_dropped_resource(
    store: MessageStore, texts: RecordedTexts
) -> None:
    append(store, draft("a"), draft("b"))
    append(store, draft("a"), resource="v")
    texts.calls.clear()
    store.forget("u", ForgetTarget(everything=True))
    assert texts.calls == [("dropped", "u", ())]
    assert analyses(store) == {}
    assert len(analyses(store, "v")) == 1
    store.forget("u", ForgetTarget(everything=True))
    assert len(texts.calls) == 1


@pytest.mark.parametrize("is_embedded", [False, True], ids=["waiting", "embedded"])
def test_an_analysis_moves_with_its_thread(
    store: MessageStore, texts: RecordedTexts, is_embedded: bool
) -> None:
    a, b, stays = append(store, draft("a", text="mine"), draft("b"), draft("c", thread="t2"))
    append(store, draft("here", thread="t2"), resource="v")
    if is_embedded:
        embed(store, a, [1.0, 0.0])
    for resource in "uv":
        texts.rows(resource)
    texts.calls.clear()
    store.transfer_thread("u", "t", "v")
    assert texts.calls == [("removed", "u", (a.seq, b.seq)), ("dropped", "v", ())]
    assert list(analyses(store)) == [stays.seq]
    moved = text_rows(store.load_lexical("v"))
    assert [row[0] for row in moved] == [a.seq, b.seq, stays.seq + 1]
    (now,) = store.get("v", ["a"])
    assert moved[0] == (
        a.seq,
        store.thread_key("v", "t"),
        now.create_time_ns,
        now.revision,
        Role.USER,
        ANALYSE("mine", ""),
    )
    for resource in "uv":
        assert texts.rows(resource) == text_rows(store.load_lexical(resource))


def test_what_fails_tells_nothing(store: MessageStore, texts: RecordedTexts) -> None:
    append(store, draft("a"))
    append(store, draft("a"), resource="v")
    texts.calls.clear()
    with pytest.raises(AlreadyExistsError):
        store.transfer_thread("u", "t", "v")
    assert texts.calls == []
    assert len(analyses(store)) == len(analyses(store, "v")) == 1


def test_the_index_has_heard_before_the_resource_counts_as_changed(store: MessageStore) -> None:
    """An answer that ends with the change is not made again from the words of before."""
    commits, told = RecordedCommits(), RecordedTexts(store)
    told.calls = commits.heard  # both write into one list
    store.subscribe(commits)
    store.subscribe_lexical(told)
    (a,) = append(store, draft("a"))
    store.forget("u", ForgetTarget(message_ids=("a",)))
    heard = [call for call in commits.heard if call in (("changed", "u", ()), *_texts_of(a.seq))]
    assert heard == [
        ("put", "u", (a.seq,)),
        ("changed", "u", ()),
        ("removed", "u", (a.seq,)),
        ("removed", "u", (a.seq,)),
        ("changed", "u", ()),
    ]


def _texts_of(seq: int) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(kind, "u", (seq,)) for kind in ("put", "removed")]


@pytest.fixture(params=["sqlite", "model"])
def unanalysed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    """A store without an analyser."""
    if request.param == "model":
        made: MessageStore = ModelStore(generation="g", clock=ticking_clock())
    else:
        made = open_store(tmp_path / "none", generation="g")
    yield made
    made.close()


def test_without_an_analyser_nothing_is_analysed_and_nobody_told(
    unanalysed: MessageStore,
) -> None:
    told = RecordedTexts(unanalysed)
    unanalysed.subscribe_lexical(told)
    append(unanalysed, draft("a"), draft("b"))
    append(unanalysed, draft("a", embeddable=False))
    unanalysed.transfer_thread("u", "t", "v")
    assert text_rows(unanalysed.load_lexical("v")) == []
    unanalysed.forget("v", ForgetTarget(everything=True))
    assert told.calls == []
