"""Tokenizer bounds, and chunks: nothing is lost, nothing is too long, borders are sensible.

The reference is the `tokenizers` library on the whole text, which the code under test never sees
whole; and the positions of the text's own characters.
"""

from __future__ import annotations

import base64
import random
import unicodedata
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from semanticrecall_core.embedding.chunking import OVERLAP_TOKENS, Chunk, chunks_of
from semanticrecall_core.embedding.tokenizer import TextTokenizer, slice_end
from semanticrecall_core.types.errors import EmbeddingFailedError, ModelUnavailableError
from support import tiny_model

FACT = "the fact is blue harbour"


def plain_reference() -> Tokenizer:
    reference = tiny_model.tokenizer()
    reference.no_padding()
    reference.no_truncation()
    return reference


def byte_level() -> bytes:
    """A byte-level BPE: one emoji is four tokens, and white space belongs to the word after it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the harbour is blue and the mode is dark"] * 4, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return made.to_str().encode()


WORD_PIECE = TextTokenizer(tiny_model.tokenizer_json(), 48)
TOKENIZERS = {"wordpiece": WORD_PIECE, "bytes": TextTokenizer(byte_level(), 48)}
REFERENCE = plain_reference()


def chunks(text: str, tokenizer: TextTokenizer = WORD_PIECE, prompt: str = "") -> list[Chunk]:
    found = list(chunks_of(tokenizer, prompt, text))
    assert all(1 <= len(chunk.ids) <= tokenizer.max_tokens for chunk in found)
    assert [chunk.last for chunk in found[:-1]] == [False] * (len(found) - 1)
    return found


def without_space(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).split())


def places(part: str, whole: str) -> Iterator[int]:
    at = whole.find(part)
    while at >= 0:
        yield at
        at = whole.find(part, at + 1)


def assert_nothing_lost(text: str, found: list[Chunk]) -> None:
    """The chunks lie along the text's visible characters so that each goes on where the last ended.

    A chunk that stands in several places may lie in any of them.
    """
    whole = without_space(text)
    lying = {(0, 0)}
    for number, chunk in enumerate(found):
        part = without_space(chunk.text)
        lying = {
            (at, at + len(part))
            for at in places(part, whole)
            if any(start <= at <= end < at + len(part) for start, end in lying)
        }
        assert lying, f"chunk {number} leaves something out, or holds nothing new"
    assert max(end for _, end in lying) == len(whole)


@pytest.mark.parametrize("text", ["hello world", " hello\n", "dark-mode: on!", "今日の会議", "a"])
def test_a_short_text_is_one_chunk_with_its_plain_encoding(text: str) -> None:
    (only,) = chunks(text)
    assert only.last
    assert only.ids.tolist() == REFERENCE.encode(text).ids
    assert only.ids.dtype == np.int64


@pytest.mark.parametrize("words", [45, 46, 47])
def test_the_window_is_used_to_the_last_token(words: int) -> None:
    found = chunks(" ".join(["blue"] * words))
    assert len(found) == (1 if words <= 46 else 2)  # [CLS] and [SEP] take two of 48
    assert len(found[0].ids) == min(words + 2, 48)


@pytest.mark.parametrize("text", ["", "  ", "\n", "\u200b", "\x00\x01", "\u0301", " " * 5000])
def test_a_text_without_tokens_has_no_chunk(text: str) -> None:
    assert chunks(text) == []


def test_tokens_of_a_long_text_are_each_in_some_chunk_and_overlap() -> None:
    rng = random.Random(5)
    text = " ".join(rng.choice(tiny_model.WORDS) for _ in range(600))
    whole = REFERENCE.encode(text).ids[1:-1]
    found = chunks(text)
    covered, position = 0, 0
    for chunk in found:
        ids = chunk.ids.tolist()[1:-1]
        position = next(p for p in range(position, covered + 1) if whole[p : p + len(ids)] == ids)
        assert position <= max(0, covered - 12)  # 48 // 4 tokens are repeated
        covered = position + len(ids)
    assert covered == len(whole)
    assert len(found) <= 600 // (46 - 18) + 1


def test_overlap_of_a_wide_window_is_the_stated_one() -> None:
    found = chunks(" ".join(["blue"] * 1000), TextTokenizer(tiny_model.tokenizer_json(), 256))
    lengths = [len(chunk.ids) - 2 for chunk in found]
    repeated = sum(lengths) - 1000
    assert repeated == OVERLAP_TOKENS * (len(found) - 1)


def test_chunks_break_between_words_where_there_are_spaces() -> None:
    text = "harbour-blue unheardof " * 100
    words = set(text.split())
    for chunk in chunks(text):
        pieces = chunk.text.split()
        # A chunk may begin inside a word, by its overlap; it never ends inside one.
        assert pieces[-1] in words or words & {w for w in words if w.endswith(pieces[-1])}
        assert all(piece in words for piece in pieces[1:])


ALPHABETS = {
    "letters": "abcdefghijklmnop",
    "digits and signs": "0123456789+/=-_.",
    "chinese": "今日東京都会議",
    "thai": "ภาษไทย",
    "arabic and hebrew": "مرحباשלום",
    "composed": "aeiouáéíóúñç",
    "decomposed": ("e\u0301", "o\u0308", "n\u0303", "a", "u", "c\u0327", "i"),
    "hangul parts": ("\u1112\u1161\u11ab", "\u1100\u1173\u11af", "\u1102", "\u1161"),
    "emoji": ("😀", "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "👍🏽", "🎉", "☂", "é"),
}


def unlike_itself(kind: str, signs: int, spaces: float, seed: int) -> str:
    """A text whose passages are found in one place only."""
    rng = random.Random(seed)
    alphabet = ALPHABETS[kind]
    parts = [rng.choice(alphabet) + " " * (rng.random() < spaces) for _ in range(signs)]
    return "".join(parts)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("kind", ALPHABETS)
@pytest.mark.parametrize("spaces", [0.0, 0.01, 0.3])
def test_nothing_is_lost(name: str, kind: str, spaces: float) -> None:
    text = unlike_itself(kind, 1500, spaces, 3)
    found = chunks(text, TOKENIZERS[name])
    assert len(found) > 1
    assert_nothing_lost(text, found)


@given(
    st.sampled_from(sorted(TOKENIZERS)),
    st.lists(
        st.builds(
            unlike_itself,
            st.sampled_from(sorted(ALPHABETS)),
            st.integers(1, 200),
            st.sampled_from((0.0, 0.02, 0.2, 0.9)),
            st.integers(0, 2**32),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from((" ", "", "\n\n", " " * 500)),
)
def test_nothing_is_lost_of_mixed_texts(name: str, parts: list[str], between: str) -> None:
    text = between.join(parts)
    assert_nothing_lost(text, chunks(text, TOKENIZERS[name]))


def test_words_far_apart_are_both_there() -> None:
    found = chunks("hello " + " " * 30_000 + "world")
    assert [chunk.text.strip() for chunk in found] == ["hello", "world"]


@given(st.text(max_size=900), st.sampled_from(sorted(TOKENIZERS)))
def test_any_text_is_chunked_from_end_to_end(text: str, name: str) -> None:
    found = chunks(f"blue {text} harbour", TOKENIZERS[name])
    assert found[0].text.startswith("blue")
    assert found[-1].text.endswith("harbour")


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["english", "cjk", "base64"])
def test_a_fact_anywhere_in_48000_characters_is_whole_in_a_chunk(kind: str, place: float) -> None:
    filler = {
        "english": "we met nine times and turned the mode off again ",
        "cjk": "今日東京都会議",
        "base64": base64.b64encode(random.Random(2).randbytes(36_000)).decode(),
    }[kind]
    body = (filler * (48_000 // len(filler) + 1))[:48_000]
    at = int(place * len(body))
    found = chunks(
        f"{body[:at]} {FACT} {body[at:]}", TextTokenizer(tiny_model.tokenizer_json(), 256)
    )
    assert any(FACT in chunk.text for chunk in found)


def test_a_word_above_the_models_limit_is_not_one_unknown_token() -> None:
    (only,) = chunks("ab" * 60, TextTokenizer(tiny_model.tokenizer_json(), 256))
    vocabulary = tiny_model.vocabulary()
    assert REFERENCE.encode("ab" * 60).ids[1] == vocabulary["[UNK]"]  # what it would be
    assert vocabulary["[UNK]"] not in only.ids
    assert len(only.ids) == 122


def test_composed_and_decomposed_forms_are_the_same_text() -> None:
    (composed,) = chunks("caf\u00e9")
    (decomposed,) = chunks("cafe\u0301")
    assert composed.text == decomposed.text
    long = chunks("caf\u00e9 " * 200), chunks("cafe\u0301 " * 200)
    assert {c.text.strip() for c in long[0]} & {c.text.strip() for c in long[1]}


def test_a_lone_surrogate_is_replaced() -> None:
    (only,) = chunks("hello \ud83d world")
    assert only.text == "hello \ufffd world"


def test_special_tokens_spelt_in_a_text_are_text() -> None:
    (only,) = chunks("[SEP] hello [CLS]")
    vocabulary = tiny_model.vocabulary()
    assert only.ids.tolist().count(vocabulary["[SEP]"]) == 1
    assert only.ids.tolist().count(vocabulary["[CLS]"]) == 1


def test_a_prompt_is_in_every_chunk_and_counts() -> None:
    vocabulary = tiny_model.vocabulary()
    found = chunks(" ".join(["blue"] * 100), prompt="passage : ")
    assert len(found) > 2
    for chunk in found:
        assert chunk.ids[1:3].tolist() == [vocabulary["passage"], vocabulary[":"]]
        assert "passage" not in chunk.text


def test_a_prompt_as_long_as_the_window_is_an_error() -> None:
    with pytest.raises(EmbeddingFailedError, match="no room"):
        chunks("hello world", prompt="passage " * 48)


def test_the_tokenizer_never_sees_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    encode = TextTokenizer.encode

    def watched(self: TextTokenizer, prompt: str, text: str) -> object:
        seen.append(len(text))
        return encode(self, prompt, text)

    monkeypatch.setattr(TextTokenizer, "encode", watched)
    text = "blue harbour " * 10_000
    next(iter(chunks_of(WORD_PIECE, "", text)))
    assert max(seen) <= 8 * 48
    first = sum(seen)
    list(chunks_of(WORD_PIECE, "", text))
    assert max(seen) <= 8 * 48
    assert first <= 2 * 8 * 48
    assert sum(seen) <= 5 * len(text)


@pytest.mark.parametrize(
    ("text", "length", "end"),
    [
        ("short", 16, 5),
        ("aaaa bbbb cccc dddd", 16, 14),  # before the last space in the last quarter
        ("a" * 30, 16, 16),
        ("a" * 14 + "e\u0301\u0301" + "a" * 9, 16, 14),  # not between a letter and its marks
        ("\u1112\u1161\u11ab" * 10, 16, 15),  # not inside a Hangul syllable
    ],
)
def test_slices_end_where_nothing_is_torn(text: str, length: int, end: int) -> None:
    assert slice_end(text, 0, length) == end


@pytest.mark.parametrize("damaged", [b"", b"{}", b"\xff\xfe", tiny_model.tokenizer_json()[:-100]])
def test_an_unreadable_tokenizer_is_refused(damaged: bytes) -> None:
    with pytest.raises(ModelUnavailableError, match="tokenizer"):
        TextTokenizer(damaged, 48)


def test_a_window_without_room_is_refused() -> None:
    with pytest.raises(ModelUnavailableError, match="window"):
        TextTokenizer(tiny_model.tokenizer_json(), 4)
