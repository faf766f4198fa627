"""Long texts cut to the model's window, losing nothing.

Chunks follow one another through the text and overlap by about OVERLAP_TOKENS tokens, so that a
phrase of that length is whole in one chunk. A chunk is a text of its own: it is encoded again by
itself, so that its vector depends on (prompt, chunk text) alone and can be kept under that key. A
chunk ends at white space where there is some in its last quarter, else between words, else between
tokens. Work is linear in the text: the tokenizer never sees more than one slice of
`TextTokenizer.slice_chars` characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..types.errors import EmbeddingFailedError
from .tokenizer import TextTokenizer, Tokens, slice_end

if TYPE_CHECKING:
    from ..types.values import IntColumn

OVERLAP_TOKENS = 32
OVERLAP_WINDOW_SHARE = 4
"""The overlap is at most this share of the window: 1/4."""

WINDOW_CHARS_SPARE = 64

_NOT_SPACE = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One window of a text.

    Attributes:
        text: as embedded (prepared), without the prompt.
        ids: int64, shape (n,), n <= max_tokens, special tokens and prompt included.
        last: nothing of the text that has tokens comes after it.
    """

    text: str
    ids: IntColumn
    last: bool


def chunks_of(
    tokenizer: TextTokenizer, prompt: str, text: str, prepared: str | None = None
) -> Iterator[Chunk]:
    """The chunks of a text, in order; none for a text without tokens (blank, control characters).

    A text that fits one window is one chunk whose ids are its plain encoding.

    Args:
        prepared: all of the text, prepared, where the caller has it; for a text of at most
            `TextTokenizer.slice_chars` characters.
    """
    walk = _Walk(tokenizer, prompt, text, prepared)
    while (chunk := walk.next_chunk()) is not None:
        yield chunk
        if chunk.last:
            return


class _Walk:
    """Position in a raw text: prepared text waiting in `buffer`, the rest from `position` on."""

    def __init__(
        self, tokenizer: TextTokenizer, prompt: str, text: str, prepared: str | None
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._text = text
        self._position = 0 if prepared is None else len(text)
        self._buffer = prepared or ""
        self._window_chars = tokenizer.slice_chars
        self._fresh_from = 0  # where in the buffer the text begins that no chunk holds yet

    def next_chunk(self) -> Chunk | None:
        while True:
            self._fill()
            if not self._buffer:
                return None
            window = self._buffer[: slice_end(self._buffer, 0, self._window_chars)]
            tokens = self._tokenizer.encode(self._prompt, window)
            at_end = len(window) == len(self._buffer) and self._position >= len(self._text)
            fresh = _NOT_SPACE.search(window, self._fresh_from)
            if fresh is None or not tokens.reaches_beyond(self._fresh_from, fresh.start()):
                self._drop(len(window))
            elif at_end and len(tokens.ids) <= self._tokenizer.max_tokens:
                self._buffer = ""
                return Chunk(window, tokens.ids, last=True)
            elif fresh.start() - self._fresh_from > self._tokenizer.max_tokens // 2:
                # White space is tokens to some models: it must not fill the chunk.
                self._drop(fresh.start())
            else:
                return self._take(window, tokens)

    def _fill(self) -> None:
        """Have a slice's worth of prepared text in the buffer, if there is so much."""
        wanted = self._tokenizer.slice_chars + 1
        while len(self._buffer) < wanted and self._position < len(self._text):
            end = slice_end(self._text, self._position, self._tokenizer.slice_chars)
            self._buffer = self._tokenizer.prepare(self._buffer, self._text[self._position : end])
            self._position = end

    def _take(self, window: str, tokens: Tokens) -> Chunk:
        end = len(window)
        chunk_tokens = tokens
        while len(chunk_tokens.ids) > self._tokenizer.max_tokens:
            end = self._shorter_end(window, chunk_tokens)
            chunk_tokens = self._tokenizer.encode(self._prompt, window[:end])
        text = window[:end]
        # Dense text fills the model's window early: do not tokenize far past it every time.
        self._window_chars = min(self._tokenizer.slice_chars, 2 * len(text) + WINDOW_CHARS_SPARE)
        self._drop(self._overlap_start(text, chunk_tokens), covered=end)
        return Chunk(text, chunk_tokens.ids, last=self._rest_is_blank(self._fresh_from))

    def _shorter_end(self, window: str, tokens: Tokens) -> int:
        """End of the longest good beginning that fits; `tokens` are those of `window[:end]`."""
        spans, words = tokens.spans, tokens.words
        keep = len(spans) - (len(tokens.ids) - self._tokenizer.max_tokens)
        if keep < 1:
            raise EmbeddingFailedError("the prompt leaves no room for text in the model's window")
        lowest = max(0, keep - 1 - self._tokenizer.max_tokens // 4)
        between_words = 0
        for index in range(keep, lowest, -1):
            begin, previous_end = spans[index][0], spans[index - 1][1]
            if begin < previous_end or previous_end <= self._fresh_from:
                continue
            if window[begin].isspace() or window[begin - 1].isspace():
                return previous_end
            if not between_words and words[index] != words[index - 1]:
                between_words = previous_end
        return between_words or self._forced_end(tokens, keep)

    def _forced_end(self, tokens: Tokens, keep: int) -> int:
        """An end inside a word; one character fewer than all of it in the worst case."""
        whole = tokens.spans[-1][1]
        for index in range(keep - 1, -1, -1):
            end = tokens.spans[index][1]
            if self._fresh_from < end < whole:
                return end
        if whole - 1 > self._fresh_from:
            return whole - 1
        raise EmbeddingFailedError("one character needs more than the model's window")

    def _overlap_start(self, text: str, tokens: Tokens) -> int:
        """Where the next chunk begins, so that it repeats the end of this one."""
        spans, words = tokens.spans, tokens.words
        overlap = min(OVERLAP_TOKENS, self._tokenizer.max_tokens // OVERLAP_WINDOW_SHARE)
        first = len(spans) - overlap
        if first < 1:
            return len(text)
        for index in range(first, max(0, first - overlap // 2), -1):
            if words[index] != words[index - 1] or spans[index][0] > spans[index - 1][1]:
                return spans[index][0]
        return spans[first][0]

    def _drop(self, length: int, covered: int | None = None) -> None:
        """Let go of the buffer's beginning; `covered` is the end of what chunks hold by now."""
        self._buffer = self._buffer[length:]
        self._fresh_from = (length if covered is None else covered) - length

    def _rest_is_blank(self, start: int) -> bool:
        """Whether only white space is left: then the next chunk would repeat the overlap alone."""
        return not (
            _NOT_SPACE.search(self._buffer, start) or _NOT_SPACE.search(self._text, self._position)
        )
