"""How many tokens a text is, and how much of a text so many tokens are.

Tokens are those of the text as it is embedded (see `TextTokenizer.prepare`), without special tokens
and prompt. A short text is encoded whole. A long one is encoded in pieces of at most
`TextTokenizer.slice_chars` characters that end before a single space between two letters or digits:
there every tokenizer we know begins a word, so that the sum is the count of the whole. A piece that
has no such place in its second half ends behind a punctuation mark, or else anywhere: there the sum
may be off by a token. Work is linear in the text, and the interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from .tokenizer import TextTokenizer, slice_end

_WORD_BORDER = re.compile(r"(?<=\w)(?= \w)")
_MARK_BORDER = re.compile("(?<=[\n.,;:!?\u3002\u3001\uff01\uff0c\uff1a\uff1b\uff1f])(?=\\w)")
_JOINER = "\u200d"
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


def count_tokens(tokenizer: TextTokenizer, texts: Sequence[str]) -> list[int]:
    """The number of tokens of each text; see the module."""
    pieces: list[str] = []
    owners: list[int] = []
    for owner, text in enumerate(texts):
        for start, end in _cuts(tokenizer, text):
            pieces.append(text[start:end])
            owners.append(owner)
    counts = [0] * len(texts)
    for owner, count in zip(owners, _counts(tokenizer, pieces), strict=True):
        counts[owner] += count
    return counts


def cut_to_tokens(tokenizer: TextTokenizer, text: str, tokens_max: int) -> str:
    """The longest beginning of a text that ends with one of its tokens and has at most so many.

    All of the text where it has no more. Never ends between a sign and its combining marks, nor
    inside a sign that is joined of several.
    """
    left = tokens_max
    for start, end in _cuts(tokenizer, text):
        (count,) = _counts(tokenizer, [text[start:end]])
        if count > left:
            return _cut(tokenizer, text, (start, end), left, tokens_max)
        left -= count
    return text


def _cut(
    tokenizer: TextTokenizer, text: str, piece: tuple[int, int], left: int, tokens_max: int
) -> str:
    """A beginning that ends in this piece, with so many of its tokens `left`, or before it.

    What is cut is encoded otherwise at times, so that each beginning is counted: for nearly every
    text the first one is right.
    """
    start, end = piece
    raw = text[start:end]
    prepared = tokenizer.prepare("", raw)
    ends = [end for _, end in tokenizer.encode("", prepared).spans]
    place, step = min(left, len(ends)), 1
    while place > 0:
        at = ends[place - 1]
        if prepared != raw:
            at = _raw_end(tokenizer, raw, at)
        beginning = text[: _sign_end(text, start + at)]
        if count_tokens(tokenizer, [beginning])[0] <= tokens_max:
            return beginning
        place, step = place - step, 2 * step
    return cut_to_tokens(tokenizer, text[:start], tokens_max) if start else ""


def _raw_end(tokenizer: TextTokenizer, raw: str, prepared_end: int) -> int:
    """The last position in a raw text up to which it is no longer than so, prepared."""
    return bisect_right(
        range(1, len(raw) + 1), prepared_end, key=lambda end: len(tokenizer.prepare("", raw[:end]))
    )


def _sign_end(text: str, end: int) -> int:
    """The end of the whole sign, as people see it, whose part ends at `end`."""
    while end < len(text):
        sign = text[end]
        joined = sign == _JOINER or text[end - 1] == _JOINER
        if not (joined or unicodedata.category(sign)[0] == "M" or sign in _SKIN_TONES):
            break
        end += 1
    return end


def _counts(tokenizer: TextTokenizer, pieces: Sequence[str]) -> list[int]:
    return tokenizer.count([tokenizer.prepare("", piece) for piece in pieces])


def _cuts(tokenizer: TextTokenizer, text: str) -> Iterator[tuple[int, int]]:
    """Where the pieces of a text begin and end."""
    start, length = 0, tokenizer.slice_chars
    while len(text) - start > length:
        end = (
            _last(_WORD_BORDER, text, start + length // 2, start + length)
            or _last(_MARK_BORDER, text, start + length // 2, start + length)
            or slice_end(text, start, length)
        )
        yield start, end
        start = end
    if start < len(text):
        yield start, len(text)


def _last(border: re.Pattern[str], text: str, start: int, stop: int) -> int:
    """The last such border in [start, stop], 0 where there is none."""
    last = 0
    for found in border.finditer(text, start, stop + 1):
        last = found.start()
    return last
