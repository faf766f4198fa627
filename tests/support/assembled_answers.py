"""Answers put together from hits that a test names, over a real record and a plain tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from semanticrecall_core.engine.answer_assembly import AnswerAssembly, Assembled, Found
from semanticrecall_core.types.recalling import Hit, RecallInfo, RecallQuery
from semanticrecall_core.types.values import CallBudget, MessageDraft
from semanticrecall_core.types.windows import MatchingRows, WindowQuery
from support.stored_messages import open_store

_TOKEN = re.compile(r"\w{1,8}|[^\w\s]")


class PlainTokenizer:
    """Eight letters, or a sign, are a token.

    Args:
        every: so many characters of a text are one token more; the tokens of two texts together
            are then more than those of each. 0 for none.

    Attributes:
        chars: how many characters were counted.
    """

    def __init__(self, every: int = 0) -> None:
        self._every = every
        self.chars = 0

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        self.chars += sum(map(len, texts))
        return [self.of(text) for text in texts]

    def of(self, text: str) -> int:
        more = len(text) // self._every if self._every else 0
        return sum(1 for _ in _TOKEN.finditer(text)) + more

    def cut_to_tokens(self, text: str, tokens_max: int) -> str:
        if self.of(text) <= tokens_max:
            return text
        ends = [0]
        for found in _TOKEN.finditer(text):
            if self.of(text[: found.end()]) > tokens_max:
                break
            ends.append(found.end())
        return text[: ends[-1]]


class Assembling:
    """A record, and the answers that are put together of it.

    Attributes:
        resource: whose messages are added and answered with.
    """

    def __init__(
        self, directory: Path, tokenizer: PlainTokenizer, bytes_max: int = 3 * 2**20
    ) -> None:
        self.tokenizer = tokenizer
        self.store = open_store(directory, generation="g")
        self.bytes_max = bytes_max
        self.resource = "u"
        embedder = SimpleNamespace(
            count_tokens=tokenizer.count_tokens, cut_to_tokens=tokenizer.cut_to_tokens
        )
        self.assembly = AnswerAssembly(self.store, embedder, bytes_max)  # type: ignore[arg-type]
        self.info = RecallInfo(RecallQuery("u", "x").scope)

    def add(self, *drafts: MessageDraft) -> None:
        self.store.append(self.resource, drafts, CallBudget.of_seconds(30))

    def answer(
        self,
        *hits: str,
        matching: MatchingRows | None = None,
        budget: CallBudget | None = None,
        **fields: object,
    ) -> Assembled:
        """The answer with these messages as hits, best first; `info` is that of the last."""
        query = RecallQuery(self.resource, "x", **fields)  # type: ignore[arg-type]
        found = tuple(
            Hit(message.seq, message.revision, 1.0 / rank, 1.0 / rank, 0, 1)
            for rank, message in enumerate(self.store.get(self.resource, hits), 1)
        )
        windows = self.store.windows(
            WindowQuery(
                self.resource,
                tuple((hit.seq, hit.revision) for hit in found),
                query.before,
                query.after,
                self.bytes_max,
                query.excluded_ids,
                matching,
            )
        )
        self.info = RecallInfo(query.scope)
        budget = budget or CallBudget.of_seconds(30)
        return self.assembly(query, Found(found, windows, matching), self.info, budget)


def counted(message: object) -> str:
    """What of a message counts, as recall.proto says."""
    author, text = message.author, message.text  # type: ignore[attr-defined]
    return f"{author}: {text}" if author else text


def assert_within_tokens(answers: Assembling, answer: Assembled, tokens_max: int) -> None:
    """The promise, and that `info` tells the true counts."""
    of = answers.tokenizer.of
    assert answers.info.tokens == sum(of(counted(m.message)) for m in answer.messages) <= tokens_max
    assert answers.info.context_tokens == of(answer.context_text) <= tokens_max
