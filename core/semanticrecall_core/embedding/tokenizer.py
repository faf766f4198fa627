"""Text to token ids, with a bound on the work and on the length.

The library's truncation and padding are mutable state shared by all callers, and truncation does
not bound its time; so both are switched off once, and what it is given is bounded by us (see
`chunking`). Text is data: special tokens spelt in a text are read as ordinary characters.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..types.errors import EmbeddingFailedError, ModelUnavailableError, SemanticRecallError

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read by the library when it is first used

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from ..types.values import IntColumn

CHARS_PER_TOKEN = 8
"""Characters of a window's slice for each token of the window; English takes 4 to 5."""

TOKENS_MIN = 8
"""No window is smaller: prompt and special tokens need room beside text."""

_TRIAL = "Met at 9, in caf\u00e9 \u6771\u4eac: it's \U0001f600 unknownwordofnobody."
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
_HANGUL_JAMO = range(0x1160, 0x1200)


class Tokens:
    """One encoded text.

    Attributes:
        ids: int64, shape (n,), special tokens included.
    """

    __slots__ = ("_columns", "_encoding", "_start", "ids")

    def __init__(self, encoding: Any, start: int) -> None:
        """`encoding`: the library's; the text begins at this character of what was encoded."""
        self.ids: IntColumn = np.array(encoding.ids, dtype=np.int64)
        self._encoding = encoding
        self._start = start
        self._columns: tuple[list[tuple[int, int]], list[int]] | None = None

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each token of the text itself, in order, the half-open range of its characters."""
        return self._of_text()[0]

    @property
    def words(self) -> list[int]:
        """For each of the `spans`, the position of the word it belongs to."""
        return self._of_text()[1]

    def reaches_beyond(self, position: int, seen: int) -> bool:
        """Whether one of the `spans` ends after a character.

        Args:
            position: of the character.
            seen: of a character there or later that is no white space: it nearly always has a
                token, and that is all that is read of most texts.
        """
        if self._encoding.char_to_token(self._start + seen) is not None:
            return True
        return any(end > position for _, end in self.spans)

    def _of_text(self) -> tuple[list[tuple[int, int]], list[int]]:
        if self._columns is None:
            encoding, start = self._encoding, self._start
            spans: list[tuple[int, int]] = []
            words: list[int] = []
            columns = zip(
                encoding.offsets, encoding.special_tokens_mask, encoding.word_ids, strict=True
            )
            for (begin, end), special, word in columns:
                if not special and end > start:
                    spans.append((max(0, begin - start), end - start))
                    words.append(-1 if word is None else word)
            self._columns = spans, words
        return self._columns


class TextTokenizer:
    """An immutable tokenizer. Thread-safe.

    Args:
        tokenizer_json: the file of the `tokenizers` library, already checked by digest.
        max_tokens: the model's window, special tokens included.

    Raises ModelUnavailableError for a file that the library cannot read or work with.
    """

    def __init__(self, tokenizer_json: bytes, max_tokens: int) -> None:
        if max_tokens < TOKENS_MIN:
            raise ModelUnavailableError(f"the model's window is below {TOKENS_MIN} tokens")
        try:
            tokenizer: Any = Tokenizer.from_buffer(tokenizer_json)
        except BaseException as error:
            raise named_error(
                error, ModelUnavailableError("tokenizer.json cannot be read")
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.slice_chars = CHARS_PER_TOKEN * max_tokens
        word_chars = getattr(tokenizer.model, "max_input_chars_per_word", None)
        self._word_chars: int = word_chars or 0
        self._long_word = _long_word_pattern(word_chars) if word_chars else None
        try:
            self.encode("", _TRIAL)
        except EmbeddingFailedError as error:
            raise ModelUnavailableError("tokenizer.json fails on a plain sentence") from error

    def prepare(self, before: str, text: str) -> str:
        """The text as it is embedded: NFC, no lone surrogate, no word above the model's limit.

        WordPiece makes one unknown token of a longer word (Thai, base64, a hash), which would
        lose it; it is broken by spaces instead. Give it a bounded slice: composing is quadratic
        in the number of combining marks in a row.

        Args:
            before: prepared text that `text` goes on from; comes back at the beginning.
            text: raw text.
        """
        if not text.isascii():
            text = unicodedata.normalize("NFC", _SURROGATE.sub(_REPLACEMENT, text))
        joined = before + text
        if self._long_word is None:
            return joined
        # No word is longer than all of it, nor than what stands between two spaces: a tenth of the
        # pattern's time.
        limit = self._word_chars
        if joined.isascii() and (
            len(joined) <= limit or max(map(len, joined.split()), default=0) <= limit
        ):
            return joined
        return self._long_word.sub(r"\g<0> ", joined)

    def encode(self, prompt: str, text: str) -> Tokens:
        """Encode `prompt + text`; spans count from the start of `text`. Not bounded: see module.

        Raises EmbeddingFailedError for a text that the library cannot encode.
        """
        try:
            encoding: Any = self._tokenizer.encode(prompt + text)
        except BaseException as error:  # it may quote the text
            failure = EmbeddingFailedError("the tokenizer fails on this text")
            raise named_error(error, failure) from None
        return Tokens(encoding, len(prompt))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each prepared text, special tokens left out. The interpreter's lock is free.

        Not bounded: see module.
        """
        encodings: list[Any] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(encoding.ids) for encoding in encodings]


def named_error(error: BaseException, ours: SemanticRecallError) -> BaseException:
    """What to raise for an error of the library.

    It raises the bare class, and where a file is damaged its language's panics, which are no
    `Exception`.
    """
    return error if isinstance(error, KeyboardInterrupt | SystemExit) else ours


def slice_end(text: str, start: int, length: int) -> int:
    """Where to end a slice of at most `length` characters: before white space, or near enough.

    Never inside what NFC would compose: a base and its marks, the parts of a Hangul syllable.
    """
    end = start + length
    if end >= len(text):
        return len(text)
    for position in range(end, start + length - length // 4, -1):
        if text[position].isspace():
            return position
    for position in range(end, start + length // 2, -1):
        if not unicodedata.combining(text[position]) and ord(text[position]) not in _HANGUL_JAMO:
            return position
    return end


def _long_word_pattern(limit: int) -> re.Pattern[str]:
    """`limit` characters of one word with more of it to come.

    A Hangul syllable counts up to three times, because the models decompose it. ASCII punctuation
    and white space end a word for every tokenizer of this kind.
    """
    part = r"[^\s!-/:-@\[-`{-~]"
    hangul = "[\uac00-\ud7a3]"
    return re.compile(f"{hangul}{{{limit // 3}}}(?={hangul})|{part}{{{limit}}}(?={part})")
