"""Counting the model's tokens in pieces, and cutting a text to so many."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from semanticrecall_core.embedding.token_counting import count_tokens, cut_to_tokens
from semanticrecall_core.embedding.tokenizer import TextTokenizer
from support import tiny_model

WINDOW = 16
"""Slices of 128 characters."""
CORPUS = [
    "the quick brown fox jumps over the lazy dog, and where is the harbour?",
    "Grüße aus München: naïve Café-Besitzer zählen 3.14 Äpfel (etwa 42 km weit).",
    "今日は東京で会議があります。 мы не знаем, где ключ  от лодки.",
]


def _trained(made: Tokenizer, trainer: trainers.Trainer) -> bytes:
    made.train_from_iterator(CORPUS * 3, trainer)
    return made.to_str().encode()


def byte_level() -> bytes:
    """Byte-level BPE, as GPT-2, RoBERTa and ModernBERT have it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(
        made,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False),
    )


def metaspace() -> bytes:
    """Unigram behind a sign for each space, as XLM-R, E5 and T5 have it."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return _trained(
        made,
        trainers.UnigramTrainer(
            vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        ),
    )


FILES: dict[str, Callable[[], bytes]] = {
    "word pieces": tiny_model.tokenizer_json,
    "byte level": byte_level,
    "metaspace": metaspace,
}
TOKENIZERS = {name: TextTokenizer(file(), WINDOW) for name, file in FILES.items()}
REFERENCES = {name: Tokenizer.from_str(file().decode()) for name, file in FILES.items()}
for reference in REFERENCES.values():
    reference.no_padding()
    reference.no_truncation()
    reference.encode_special_tokens = True

names = st.sampled_from(sorted(FILES))
words = st.text(st.characters(exclude_categories=("Zs", "Zl", "Zp", "Cc", "Cs")), max_size=12)
plain = st.text("abcxyz0189éñßжя東京ก", min_size=1, max_size=9)
spaces = st.sampled_from([" ", " ", " ", "  ", "\n", "\t ", ", ", ". "])
texts = st.lists(st.tuples(st.one_of(plain, plain, words), spaces), max_size=120).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)

long_texts = st.lists(
    st.tuples(plain, st.sampled_from([" "] * 8 + ["  ", ", ", "\n"])), min_size=60, max_size=120
).map(lambda pairs: "".join(word + space for word, space in pairs))


def own_count(name: str, text: str) -> int:
    """The tokenizer's own count of a text as it is embedded, encoded at once."""
    prepared = TOKENIZERS[name].prepare("", text)
    return len(REFERENCES[name].encode(prepared, add_special_tokens=False).ids)


def has_good_places(text: str) -> bool:
    """Whether every stretch of half a slice has a single space between letters or digits."""
    tokens = [
        place
        for place in range(1, len(text) - 1)
        if text[place] == " " and text[place - 1].isalnum() and text[place + 1].isalnum()
    ]
    ends = [0, *tokens, len(text)]
    return all(after - before < 60 for before, after in pairwise(ends))


@given(names, st.one_of(texts, long_texts))
def test_the_count_is_the_tokenizers_own(name: str, text: str) -> None:
    (count,) = count_tokens(TOKENIZERS[name], [text])
    if has_good_places(text) or len(text) <= TOKENIZERS[name].slice_chars:
        assert count == own_count(name, text)
    else:
        assert abs(count - own_count(name, text)) <= 2 * (1 + len(text) // 64)


@given(names, st.text(max_size=400))
def test_any_text_at_all_is_counted_nearly(name: str, text: str) -> None:
    counts = count_tokens(TOKENIZERS[name], [text, "", text])
    assert counts == [counts[0], 0, counts[0]]
    slack = 0 if len(text) <= TOKENIZERS[name].slice_chars else 2 * (1 + len(text) // 64)
    assert abs(counts[0] - own_count(name, text)) <= slack


@given(names, st.one_of(texts, long_texts, st.text(max_size=400)), st.integers(-1, 300))
def test_a_cut_text_begins_the_text_and_has_no_more_tokens(
    name: str, text: str, tokens_max: int
) -> None:
    tokenizer = TOKENIZERS[name]
    cut = cut_to_tokens(tokenizer, text, tokens_max)
    assert text.startswith(cut)
    (whole,) = count_tokens(tokenizer, [text])
    if whole <= tokens_max:
        assert cut == text
    else:
        assert cut != text or not text
        assert count_tokens(tokenizer, [cut])[0] <= max(0, tokens_max)
        rest = text[len(cut) :]
        assert not rest or not unicodedata.category(rest[0]).startswith("M") or not cut


@given(names, st.lists(plain, min_size=1, max_size=60), st.integers(0, 80))
def test_no_whole_word_more_would_fit(name: str, parts: list[str], tokens_max: int) -> None:
    tokenizer, text = TOKENIZERS[name], " ".join(parts)
    cut = cut_to_tokens(tokenizer, text, tokens_max)
    for count in range(1, len(parts) + 1):
        beginning = " ".join(parts[:count])
        if own_count(name, beginning) <= tokens_max:
            assert len(cut) >= len(beginning)


@pytest.mark.parametrize(
    ("text", "tokens_max", "cut"),
    [
        ("turn on dark mode", 2, "turn on"),
        ("turn on dark mode  ", 4, "turn on dark mode  "),
        ("  turn on", 1, "  turn"),
        ("cafe\u0301 on", 1, "cafe\u0301"),
        ("caf\u00e9 on", 1, "caf\u00e9"),
        ("turn cafe\u0301 on", 2, "turn cafe\u0301"),
        ("turn on", 0, ""),
        ("turn on", -3, ""),
        ("", 0, ""),
        (" \n ", 0, " \n "),
    ],
)
def test_where_texts_are_cut(text: str, tokens_max: int, cut: str) -> None:
    assert cut_to_tokens(TOKENIZERS["word pieces"], text, tokens_max) == cut


@pytest.mark.parametrize(
    "sign",
    [
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # a family
        "\U0001f44d\U0001f3fd",  # a thumb with the colour of its skin
        "❤\ufe0f",
        "ที่",  # one letter with two marks
    ],
)
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_sign_that_people_see_as_one_is_not_cut(name: str, sign: str) -> None:
    tokenizer, text = TOKENIZERS[name], f"on {sign} off"
    for tokens_max in range(own_count(name, text)):
        cut = cut_to_tokens(tokenizer, text, tokens_max)
        assert (sign[0] in cut) == (sign in cut)


@pytest.mark.parametrize("text", ["a" * 5_000, "\u0301" * 5_000, " " * 5_000, "東" * 5_000])
@pytest.mark.parametrize("name", sorted(FILES))
def test_long_texts_without_words_come_to_an_end(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    (whole,) = count_tokens(tokenizer, [text])
    cut = cut_to_tokens(tokenizer, text, whole // 2)
    assert text.startswith(cut)
    assert count_tokens(tokenizer, [cut])[0] <= whole // 2


def test_special_tokens_spelt_in_a_text_are_its_characters() -> None:
    (count,) = count_tokens(TOKENIZERS["word pieces"], ["[SEP] hello [CLS]"])
    assert count == own_count("word pieces", "[SEP] hello [CLS]") > 3


def test_the_tokenizers_here_are_of_three_kinds() -> None:
    kinds = {json.loads(file())["model"]["type"] for file in FILES.values()}
    assert kinds == {"WordPiece", "BPE", "Unigram"}
