"""Text: of any length and script, found wherever it stands; what cannot be embedded is said."""

from __future__ import annotations

import base64
import random
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.values import CallBudget, EmbeddedText
from support.fake_embedder import FakeEmbedder, text_vector
from support.wire_memory import (
    ALONE,
    ASSISTANT,
    BY_COSINE,
    DURABLE,
    INDEXED,
    NOON_NS,
    NOT_EMBEDDED,
    PENDING,
    SECOND_NS,
    SYSTEM,
    TOOL,
    UNCHANGED,
    USER,
    Memory,
    Model,
    conversation,
    eventually,
    hit_ids,
    hits,
    ids,
    said,
    scores,
    window,
)

# TEXT-1 -----------------------------------------------------------------------------------------

LONG_CHARS = 48_000
FACTS = [
    "My passport number is X4471 and it expires in June.",
    "Grandmas apple pie recipe needs three spoons of cinnamon.",
    "The wifi password of the cabin is purple-otter.",
]
OTHER_MATTERS = [
    "We are out of milk",
    "The train leaves at nine",
    "Call the plumber on Monday",
    "Lisbon was lovely in spring",
    "I prefer window seats",
    "The meeting moved to Friday",
    "Happy birthday to you",
    "My bike has a flat tyre",
]
FARM_WORDS = (
    "the harvest was late this year and rain fell on the hills while boats stayed in harbour "
    "because wind came from north over fields of barley old mill wheel turned slowly"
).split()


def english(rng: random.Random, chars: int) -> str:
    return " ".join(rng.choices(FARM_WORDS, k=chars // 3))[:chars]


def chinese(rng: random.Random, chars: int) -> str:
    return "".join(chr(rng.randrange(0x4E00, 0x4E00 + 1500)) for _ in range(chars))


def encoded(rng: random.Random, chars: int) -> str:
    return base64.b64encode(rng.randbytes(chars)).decode()[:chars]


@pytest.mark.model
@pytest.mark.parametrize("filler", [english, chinese, encoded])
def test_a_fact_is_found_at_the_start_in_the_middle_and_at_the_end(
    real_memory: Memory, filler: Callable[[random.Random, int], str]
) -> None:
    rng = random.Random(1)
    half = (LONG_CHARS - sum(map(len, FACTS))) // 2
    text = FACTS[0] + filler(rng, half) + FACTS[1] + filler(rng, half) + FACTS[2]
    assert LONG_CHARS - 2 <= len(text) <= LONG_CHARS
    real_memory.learn(conversation(OTHER_MATTERS))
    assert real_memory.index([said("long", text)], wait=DURABLE) == [PENDING]
    eventually(lambda: not real_memory.stats().pending, seconds=100)
    for position, fact in enumerate(FACTS):
        answer = real_memory.recall(fact, top_k=9, message_range=ALONE, explain=True)
        assert sorted(ids(answer.messages)) == sorted(["long", *(f"m{i}" for i in range(8))])
        best = hits(answer)[0]
        assert best.message.id == "long"
        assert best.message.text == text
        place = best.explain.chunk / (best.explain.chunks - 1)
        assert abs(place - position / 2) < 0.02


# TEXT-2 -----------------------------------------------------------------------------------------

LONG_QUERIES: dict[str, str] = {
    "words": "where is the red kite nest " * 3_704,
    "one word": "a" * 100_000,
    "lines": "kite\n" * 20_000,
    "digits": "0123456789" * 10_000,
    "chinese": "\u6211\u7684\u72d7" * 33_334,
    "emoji": "\U0001f3c6" * 100_000,
    "family emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 20_000,
    "combining": "e\u0301" * 50_000,
    "punctuation": "?!" * 50_000,
}


@pytest.mark.model
@pytest.mark.parametrize("query", LONG_QUERIES.values(), ids=LONG_QUERIES.keys())
def test_a_query_of_100000_characters_is_cut_and_the_answer_says_so(
    real_memory: Memory, query: str
) -> None:
    assert len(query) >= 100_000
    real_memory.learn([said("a", "The red kite nests in the old oak"), said("b", "milk")])
    answer = real_memory.recall(query, top_k=2, message_range=ALONE)
    assert sorted(hit_ids(answer)) == ["a", "b"]
    assert all(-1.0 <= score <= 1.0 for score in scores(answer))
    # One word beyond the tokenizer's limit counts as one unknown token and is cut all the same.
    assert answer.info.query_truncated
    assert 0 < answer.info.query_tokens <= 256


def test_a_query_that_fits_is_not_called_cut(memory: Memory, model: Model) -> None:
    memory.learn(conversation(OTHER_MATTERS))
    fits, too_long = " ".join(["train"] * 64), " ".join(["train"] * 65)
    for query, cut in ((fits, False), (too_long, True), ("train", False)):
        answer = memory.recall(query, top_k=8, message_range=ALONE, ranking=BY_COSINE)
        assert answer.info.query_truncated is cut
        assert hit_ids(answer)[0] == "m1"
        assert answer.info.query_tokens == min(len(query.split()), 64) + 2
    long = memory.recall(too_long, top_k=1, message_range=ALONE, ranking=BY_COSINE)
    model.assert_best(long, fits, memory.listed(), 1)


# TEXT-3 -----------------------------------------------------------------------------------------

INVISIBLE = {
    "empty": "",
    "spaces": "   ",
    "zero width space": "\u200b",
    "line break": "\n",
    "tabs": "\t\t",
    "carriage return": "\r\n",
    "no-break space": "\u00a0",
    "ideographic space": "\u3000",
    "word joiner": "\u2060",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "line separator": "\u2028",
    "direction mark": "\u200f",
    "null": "\x00",
    "all of them": " \n\t\u200b\u00a0\u2060\ufeff\u3000",
}


@pytest.mark.parametrize("text", INVISIBLE.values(), ids=INVISIBLE.keys())
def test_text_that_cannot_be_seen_is_stored_and_windowed_but_not_embedded(
    memory: Memory, embedder: FakeEmbedder, text: str
) -> None:
    memory.learn([said("before", "harvest moon", at=NOON_NS)])
    runs = embedder.runs
    blank = [
        said("user", text, at=NOON_NS + 1),
        said("reply", text, role=ASSISTANT, at=NOON_NS + 2),
    ]
    assert memory.index(blank) == [NOT_EMBEDDED, NOT_EMBEDDED]
    assert embedder.runs == runs
    assert memory.index(blank) == [UNCHANGED, UNCHANGED]
    assert [m.text for m in memory.listed("t")] == ["harvest moon", text, text]
    answer = memory.recall("harvest moon", message_range=window(0, 2))
    assert ids(answer.messages) == ["before", "user", "reply"]
    assert hit_ids(answer) == ["before"]
    stats = memory.stats()
    assert (stats.messages, stats.vectors, stats.pending) == (3, 1, 0)


@pytest.mark.parametrize("role", [SYSTEM, TOOL])
def test_system_and_tool_messages_are_windowed_but_not_embedded(
    memory: Memory, role: types_pb2.Role
) -> None:
    memory.learn([said("before", "harvest moon", at=NOON_NS)])
    assert memory.index([said("x", "harvest moon", role=role, at=NOON_NS + 1)]) == [NOT_EMBEDDED]
    answer = memory.recall("harvest moon", top_k=9)
    assert hit_ids(answer) == ["before"]
    assert ids(answer.messages) == ["before", "x"]


# TEXT-4 -----------------------------------------------------------------------------------------


class FaultyEmbedder(FakeEmbedder):
    """Breaks the port's promises for chosen texts."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, Callable[[], Any]] = {}

    def embed_passage(self, text: str, budget: CallBudget, owner: str = "") -> EmbeddedText:
        if text not in self.wrong:
            return super().embed_passage(text, budget, owner)
        rows = self.wrong[text]()
        return EmbeddedText(rows, 3, False, len(rows), 0)

    def heal(self) -> None:
        super().heal()
        self.wrong.clear()


def out_of_order() -> Any:
    raise ZeroDivisionError("a bug of the model's library")


def good_row() -> Any:
    return text_vector("other words", 64)[np.newaxis]


WRONG_ROWS: dict[str, Callable[[], Any]] = {
    "nan": lambda: np.full((1, 64), np.nan, np.float32),
    "one nan": lambda: np.where(np.arange(64) == 7, np.nan, good_row()).astype(np.float32),
    "infinite": lambda: np.full((1, 64), np.inf, np.float32),
    "zeros": lambda: np.zeros((1, 64), np.float32),
    "one number short": lambda: np.full((1, 63), 63**-0.5, np.float32),
    "one number long": lambda: np.full((1, 65), 65**-0.5, np.float32),
    "other model": lambda: np.full((1, 128), 128**-0.5, np.float32),
    "not unit": lambda: good_row() * np.float32(3),
    "no rows": lambda: np.zeros((0, 64), np.float32),
    "flat": lambda: good_row()[0],
    "bad second chunk": lambda: np.concatenate([good_row(), np.zeros((1, 64), np.float32)]),
    "exception": out_of_order,
}


@pytest.fixture(scope="module")
def faulty(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with start(tmp_path_factory.mktemp("f"), FaultyEmbedder()) as server:
        yield server


def six(tag: str) -> list[types_pb2.Message]:
    return conversation(f"{tag} planet{i} moon{i}" for i in range(6))


@pytest.mark.parametrize("rows", WRONG_ROWS.values(), ids=WRONG_ROWS.keys())
def test_one_bad_vector_of_six_keeps_five_searchable_and_one_pending(
    faulty: Any, fresh: str, rows: Callable[[], Any]
) -> None:
    memory = faulty.sidecar.memory(fresh)
    messages = six(fresh)
    faulty.embedder.wrong[messages[2].text] = rows
    answer = memory.index_answer(messages)
    assert [r.status for r in answer.results] == [INDEXED] * 2 + [PENDING] + [INDEXED] * 3
    error = answer.results[2].error
    assert error.reason == "EMBEDDING_FAILED"
    assert error.retryable
    assert "planet2" not in error.message
    assert [m.text for m in memory.listed("t")] == [m.text for m in messages]
    stats = memory.stats()
    assert (stats.messages, stats.vectors, stats.pending) == (6, 5, 1)
    recalled = memory.recall(
        "planet1 moon1", top_k=6, message_range=window(0, 1), ranking=BY_COSINE
    )
    assert sorted(hit_ids(recalled)) == ["m0", "m1", "m3", "m4", "m5"]
    assert "m2" in ids(recalled.messages)
    assert recalled.info.pending == 1
    assert all(np.isfinite(scores(recalled)))


def test_what_was_pending_becomes_searchable_when_the_embedder_is_well(
    faulty: Any, fresh: str, model: Model
) -> None:
    memories = []
    for number, rows in enumerate(WRONG_ROWS.values()):
        memory = faulty.sidecar.memory(f"{fresh}-{number}")
        messages = six(f"{fresh} {number}")
        faulty.embedder.wrong[messages[2].text] = rows
        assert PENDING in memory.index(messages)
        memories.append((memory, messages))
    faulty.embedder.heal()
    eventually(lambda: not any(memory.stats().pending for memory, _ in memories))
    for memory, messages in memories:
        answer = memory.recall(messages[2].text, top_k=6, message_range=ALONE, ranking=BY_COSINE)
        model.assert_best(answer, messages[2].text, messages, 6)
        assert hit_ids(answer)[0] == "m2"
        assert memory.index(messages) == [UNCHANGED] * 6


# TEXT-5 -----------------------------------------------------------------------------------------

SCRIPTS = {
    "emoji": "\U0001f3c6 won \U0001f469\u200d\U0001f680 and \U0001f44b\U0001f3fd at sea",
    "flags": "\U0001f1f5\U0001f1f9 plays \U0001f1ef\U0001f1f5 tonight",
    "nfc": unicodedata.normalize("NFC", "caf\u00e9 with cr\u00e8me br\u00fbl\u00e9e"),
    "nfd": unicodedata.normalize("NFD", "the na\u00efve fa\u00e7ade of the caf\u00e9"),
    "arabic": "\u0643\u0644\u0628\u064a \u064a\u0639\u0627\u0646\u064a \u0645\u0646 "
    "\u062d\u0633\u0627\u0633\u064a\u0629",
    "hebrew": "\u05d4\u05de\u05e4\u05ea\u05d7 \u05de\u05ea\u05d7\u05ea "
    "\u05dc\u05e9\u05d8\u05d9\u05d7",
    "thai": "\u0e09\u0e31\u0e19\u0e41\u0e1e\u0e49\u0e44\u0e01\u0e48\u0e41\u0e25\u0e30\u0e16\u0e31"
    "\u0e48\u0e27",
    "chinese": "\u6211\u7684\u72d7\u5bf9\u9e21\u8089\u8fc7\u654f",
    "astral": "\U00020000\U00020001\U0001d54f\U0001d4b3 mathematical",
    "private use": "a \ue000\uf8ff\U000f0000 b",
    "noncharacters": "a \ufffe\uffff\U0001ffff b",
    "line ends": "one\r\ntwo\rthree\u2028four\x0bfive",
    "nulls": "before\x00after",
    "combining storm": "z" + "\u0301" * 300 + " algo",
}


@pytest.mark.model
def test_every_script_is_kept_to_the_letter_and_found_by_itself(real_memory: Memory) -> None:
    real_memory.learn([said(name, text) for name, text in SCRIPTS.items()])
    assert {m.id: m.text for m in real_memory.listed()} == SCRIPTS
    assert real_memory.stats().vectors >= len(SCRIPTS)
    for name, text in SCRIPTS.items():
        answer = real_memory.recall(text, top_k=99, message_range=ALONE, threshold=0.999)
        assert name in hit_ids(answer)
        assert {m.message.id: m.message.text for m in answer.messages}[name] == text


@pytest.mark.model
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_composed_and_decomposed_forms_find_each_other(real_memory: Memory, form: Any) -> None:
    text = "The caf\u00e9 in \u00c5lesund serves cr\u00e8me br\u00fbl\u00e9e"
    stored = unicodedata.normalize(form, text)
    real_memory.learn([said("cafe", stored), *conversation(OTHER_MATTERS)])
    for asked in ("NFC", "NFD"):
        answer = real_memory.recall(unicodedata.normalize(asked, text), top_k=1)
        assert hit_ids(answer) == ["cafe"]
        assert scores(answer)[0] >= 0.999
        assert next(m for m in answer.messages if m.hit).message.text == stored


@pytest.mark.model
@pytest.mark.parametrize(
    "unit", ["\U0001f3c6", "\U0001f469\u200d\U0001f680", "e\u0301", "\u0e01\u0e48"]
)
def test_a_chunk_border_splits_no_character_and_loses_nothing(
    real_memory: Memory, unit: str
) -> None:
    # Odd lengths move the border through every place of the repeated unit.
    texts = [f"{'x ' * shift}{f'{unit} ' * 700}harbour light {shift}" for shift in range(3)]
    texts.append(f"{unit} " * 700)
    real_memory.learn([said(f"m{i}", text) for i, text in enumerate(texts)])
    assert [m.text for m in real_memory.listed()] == texts
    assert real_memory.stats().vectors >= 12
    answer = real_memory.recall("harbour light", top_k=3, message_range=ALONE, explain=True)
    assert sorted(hit_ids(answer)) == ["m0", "m1", "m2"]
    for hit in hits(answer):
        assert hit.explain.chunk == hit.explain.chunks - 1


# TEXT-7 and TEXT-8 ------------------------------------------------------------------------------


def test_the_first_part_of_a_reply_is_found_when_sent_as_one_message(
    memory: Memory, model: Model
) -> None:
    parts = ["First I will check the lighthouse archive.", "Final short answer"]
    memory.learn([said("reply", "\n".join(parts), role=ASSISTANT), *conversation(OTHER_MATTERS)])
    for part in parts:
        answer = memory.recall(part, top_k=1, message_range=ALONE, ranking=BY_COSINE)
        assert hit_ids(answer) == ["reply"]
        model.assert_best(answer, part, memory.listed(), 1)


@pytest.mark.parametrize("part", ["lighthouse archive", "final short answer"])
def test_every_part_of_a_reply_is_found_when_sent_as_parts(memory: Memory, part: str) -> None:
    parts = [
        said("part1", "First I will check the lighthouse archive.", role=ASSISTANT),
        said("call", '{"tool": "search"}', role=TOOL),
        said("part2", "Final short answer", role=ASSISTANT),
    ]
    for position, message in enumerate(parts):
        message.group_id = "reply"
        message.create_time.FromNanoseconds(NOON_NS + position * SECOND_NS)
    memory.learn([*parts, *conversation(OTHER_MATTERS, prefix="other")])
    answer = memory.recall(part, top_k=1, message_range=ALONE)
    assert hit_ids(answer) == ["part1" if part.startswith("light") else "part2"]
    assert ids(answer.messages) == ["part1", "call", "part2"]


@pytest.mark.parametrize("query", ["", "  ", "\n", "\u200b", "\ufeff\u00a0"], ids=ascii)
def test_a_turn_without_words_makes_no_query_of_an_older_one(
    memory: Memory, embedder: FakeEmbedder, query: str
) -> None:
    memory.learn([said("question", "where is the harbour", role=USER)])
    memory.index([said("picture", "", payload=b"\x89PNG", payload_type="image/png")])
    runs = embedder.runs
    [streamed] = memory.sidecar.stream([memory.request(query, request_id="s")]).values()
    for answer in (memory.recall(query), memory.recall(query, thread_id="t"), streamed):
        assert list(answer.messages) == []
        assert answer.context_text == ""
        assert answer.info.why_empty == recall_pb2.WHY_EMPTY_NO_QUERY
        assert not answer.info.HasField("best_score")
    assert embedder.runs == runs
