"""An answer within a budget of tokens: prices, what is taken, and the best hit cut to size.

The budget holds for the messages, each counted as "author: text", and for the context. What a
message adds to the context is estimated from its own piece of it; the context as a whole is
counted once it is written, and where the estimate was too low, less is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from semanticrecall_core.engine.answer_size import only
from semanticrecall_core.ranking.budget import Choice, take_what_fits
from semanticrecall_core.ranking.context import ContextForm, Piece
from semanticrecall_core.types.ports import Embedder, MessageCodec
from semanticrecall_core.types.recalling import RecalledMessage
from semanticrecall_core.types.text import has_visible_text
from semanticrecall_core.types.values import CallBudget, MessageDraft, StoredMessage

SLICE_CHARS = 8192
"""Longer texts are counted slice by slice, until there is no room for more."""

COUNTED_AT_ONCE = 16
"""Messages that are counted in one call: the one asked for, and those to be taken next."""

CUT_ATTEMPTS_MAX = 8

CountTokens = Callable[[Sequence[str]], list[int]]
"""`Embedder.count_tokens`."""

Bounded = Callable[
    [Sequence[RecalledMessage], ContextForm | None], tuple[tuple[RecalledMessage, ...], str]
]
"""Those of these messages that the answer has bytes for, and their context; "" without a form."""


@dataclass(frozen=True, slots=True)
class ToFit:
    """What is to be kept within tokens.

    Attributes:
        messages: in answer order.
        choice: of the same messages, which are taken first.
        tokens_max: of all messages, and of the context; 1 or more.
        form: of the context; None for no context.
        bounded: writes the context, and sees to the bytes of the answer.
    """

    messages: Sequence[RecalledMessage]
    choice: Choice
    tokens_max: int
    form: ContextForm | None
    bounded: Bounded


@dataclass(frozen=True, slots=True)
class WithinTokens:
    """What fits the tokens.

    Attributes:
        messages, context_text: of the answer.
        left_out: seqs of messages left out for tokens.
        is_cut: the best hit was cut, in the answer or in the context.
        tokens, context_tokens: of messages and context.
        context_did_not_fit: there is no context for want of room.
    """

    messages: tuple[RecalledMessage, ...]
    context_text: str
    left_out: frozenset[int]
    is_cut: bool
    tokens: int
    context_tokens: int
    context_did_not_fit: bool = False


class TokenBudget:
    """Keeps answers within a budget of tokens. Thread-safe."""

    def __init__(self, embedder: Embedder, codec: MessageCodec) -> None:
        self._embedder = embedder
        self._codec = codec

    def __call__(self, to_fit: ToFit, budget: CallBudget) -> WithinTokens:
        """Take what fits, by the rules of `ranking.budget`.

        Where the context has no room for any of the best hit, there is none.

        Raises:
            DeadlineExceededError, CancelledError: the budget is over.
        """
        tokens_max, form = to_fit.tokens_max, to_fit.form
        prices = _Prices(to_fit, self._embedder.count_tokens, form, budget)
        reserve = 0
        while True:
            room = _TokenRoom(prices, tokens_max, tokens_max - reserve)
            taken = take_what_fits(to_fit.choice, room)
            if taken.best_is_too_large:
                return self._best_alone(to_fit, budget)
            messages, text = to_fit.bounded(only(to_fit.messages, taken.seqs), form)
            context_tokens = self._count(text)
            if context_tokens <= tokens_max:
                break
            # The estimate was too low. What is added doubles each time, so this ends soon.
            reserve += max(context_tokens - tokens_max, reserve)
        return WithinTokens(
            messages,
            text,
            left_out=_seqs(to_fit.messages) - taken.seqs,
            is_cut=False,
            tokens=sum(prices.known(seq).tokens for seq in _seqs(messages)),
            context_tokens=context_tokens,
        )

    def _best_alone(self, to_fit: ToFit, budget: CallBudget) -> WithinTokens:
        """The best hit, and as much of it as fits answer and context."""
        seq = to_fit.choice.hits[0]
        (best,) = only(to_fit.messages, {seq})
        shown, text = self._cut_message(best, to_fit.tokens_max), ""
        if to_fit.form is not None and to_fit.form.piece(best) is not None:
            text = self._cut_context(shown, to_fit.tokens_max, to_fit.form, budget)
            if not text:
                without_context = self(replace(to_fit, form=None), budget)
                return replace(without_context, is_cut=True, context_did_not_fit=True)
        return WithinTokens(
            (shown,),
            text,
            left_out=_seqs(to_fit.messages) - {seq},
            is_cut=True,
            tokens=self._count(counted_text(shown.message)),
            context_tokens=self._count(text),
        )

    def _cut_message(self, recalled: RecalledMessage, tokens_max: int) -> RecalledMessage:
        """A message of at most so many tokens; as it is where it has no more."""
        message = recalled.message
        counted = counted_text(message)
        count = self._embedder.count_tokens
        if not exceeds(count, counted, tokens_max) and self._count(counted) <= tokens_max:
            return recalled
        head = f"{message.author}: " if message.author else ""
        text = self._beginning(counted, tokens_max)[len(head) :]
        if text == message.text:  # its slices had more tokens than the whole
            return recalled
        if has_visible_text(text):
            return self._with_text(recalled, text, message.author)
        # The author's name leaves no room for a word of the text.
        return self._with_text(recalled, self._beginning(message.text, tokens_max), "")

    def _cut_context(
        self, recalled: RecalledMessage, tokens_max: int, form: ContextForm, budget: CallBudget
    ) -> str:
        """A context of at most so many tokens with as much of a message as fits; "" for nothing."""
        text = form.render((recalled,))
        if self._count(text) <= tokens_max:
            return text
        author, whole = recalled.message.author, recalled.message.text
        empty = form.render((self._with_text(recalled, "", author),))
        room = tokens_max - self._count(empty)
        for _ in range(CUT_ATTEMPTS_MAX):
            budget.check()
            beginning = self._embedder.cut_to_tokens(whole, room) if room > 0 else ""
            if not has_visible_text(beginning):
                break
            text = form.render((self._with_text(recalled, beginning, author),))
            excess = self._count(text) - tokens_max
            if excess <= 0:
                return text
            # Escapes make more tokens of a text: as much less of it.
            room = min(room - 1, room * room // (room + excess))
        return ""

    def _beginning(self, text: str, tokens_max: int) -> str:
        """As much of a text as surely has no more tokens."""
        room = tokens_max
        for _ in range(CUT_ATTEMPTS_MAX):
            beginning = self._embedder.cut_to_tokens(text, room)
            excess = self._count(beginning) - tokens_max
            if excess <= 0:
                return beginning
            room = max(0, room - excess)
        return ""

    def _with_text(self, recalled: RecalledMessage, text: str, author: str) -> RecalledMessage:
        """The message with a beginning of its text, and without payload."""
        message = recalled.message
        draft = MessageDraft(
            id=message.id,
            thread_id=message.thread_id,
            role=message.role,
            author=author,
            text=text,
            metadata_json=message.metadata_json,
            payload_type=message.payload_type,
            group_id=message.group_id,
        )
        encoded = self._codec.encode(message.resource_id, draft, message.create_time_ns)
        return recalled._replace(message=replace(message, encoded=encoded), text_cut=True)

    def _count(self, text: str) -> int:
        return self._embedder.count_tokens([text])[0] if text else 0


@dataclass(frozen=True, slots=True)
class _Price:
    """Tokens of a message, of its piece of the context, and of the heading over it."""

    tokens: int
    piece: int = 0
    heading: int = 0
    section: str = ""


class _Prices:
    """What messages cost: each is counted once, and no more text of it than can matter."""

    def __init__(
        self, to_fit: ToFit, count: CountTokens, form: ContextForm | None, budget: CallBudget
    ) -> None:
        self._messages = {recalled.message.seq: recalled for recalled in to_fit.messages}
        self._order = _likely_order(to_fit.choice)
        self._places = {seq: place for place, seq in enumerate(self._order)}
        self._count = count
        self._form = form
        self._budget = budget
        self._known: dict[int, _Price] = {}
        self._more_than: dict[int, int] = {}
        self._headings: dict[str, int] = {}
        self.frame = count([form.frame()])[0] if form is not None else 0

    def of(self, seq: int, room: int) -> _Price | None:
        """A message's price; None where its tokens are more than the room."""
        price = self._known.get(seq)
        if price is None and self._more_than.get(seq, -1) < room:
            price = self._counted(seq, room)
        return price if price is not None and price.tokens <= room else None

    def known(self, seq: int) -> _Price:
        """The price of a message that was taken."""
        return self._known[seq]

    def _counted(self, seq: int, room: int) -> _Price | None:
        self._budget.check()
        if exceeds(self._count, counted_text(self._messages[seq].message), room):
            self._more_than[seq] = room
            return None
        texts: list[str] = []
        pieces: dict[int, Piece | None] = {}
        for one in self._with_next(seq):
            recalled = self._messages[one]
            pieces[one] = piece = self._form.piece(recalled) if self._form is not None else None
            texts.append(counted_text(recalled.message))
            if piece is not None:
                texts.append(piece.text)
                if piece.heading not in self._headings:
                    self._headings[piece.heading] = self._count([piece.heading])[0]
        counts = iter(self._count(texts))
        for one, piece in pieces.items():
            tokens = next(counts)
            self._known[one] = (
                _Price(tokens)
                if piece is None
                else _Price(tokens, next(counts), self._headings[piece.heading], piece.section)
            )
        return self._known[seq]

    def _with_next(self, seq: int) -> list[int]:
        """The message, and short ones that will be asked for next."""
        asked = [seq]
        place = self._places.get(seq, len(self._order))
        for other in self._order[place + 1 : place + COUNTED_AT_ONCE]:
            if other not in self._known and other not in self._more_than:
                if len(self._messages[other].message.encoded) * COUNTED_AT_ONCE > SLICE_CHARS:
                    break
                asked.append(other)
        return asked


def _likely_order(choice: Choice) -> list[int]:
    """In which order messages are taken where none is too large."""
    order = dict.fromkeys(choice.hits)
    for hit in choice.hits:
        before, after = choice.windows.get(hit, ((), ()))
        for pair in zip_longest(before, after):
            order.update(dict.fromkeys(seq for seq in pair if seq is not None))
    return list(order)


class _TokenRoom:
    """A `ranking.budget.Room` of tokens, for messages and context."""

    def __init__(self, prices: _Prices, tokens_max: int, context_max: int) -> None:
        self._prices = prices
        self._tokens_max = self._tokens = tokens_max
        self._context_max = self._context = context_max - prices.frame
        self._sections: set[str] = set()

    def take(self, seqs: Sequence[int]) -> bool:
        """Take these messages, all or none."""
        tokens, context, sections = self._tokens, self._context, set(self._sections)
        for seq in seqs:
            price = self._prices.of(seq, tokens)
            if price is None:
                return False
            tokens -= price.tokens
            if price.piece:
                context -= price.piece + (0 if price.section in sections else price.heading)
                sections.add(price.section)
                if context < 0:
                    return False
        self._tokens, self._context, self._sections = tokens, context, sections
        return True

    def fits_alone(self, seq: int) -> bool:
        """Whether a message would fit if nothing had been taken."""
        price = self._prices.of(seq, self._tokens_max)
        return price is not None and (
            not price.piece or price.piece + price.heading <= self._context_max
        )


def counted_text(message: StoredMessage) -> str:
    """What of a message is counted."""
    return f"{message.author}: {message.text}" if message.author else message.text


def exceeds(count: CountTokens, text: str, room: int) -> bool:
    """Whether a long text has more tokens than there is room for, as far as slices of it tell.

    A short text never exceeds: counting it costs no more than asking.
    """
    start = 0
    while len(text) > SLICE_CHARS and start < len(text) and room >= 0:
        end = start + SLICE_CHARS
        # No word is cut: the parts of a word can be more tokens than the word.
        places = range(end, end - SLICE_CHARS // 2, -1)
        end = next((i for i in places if i < len(text) and text[i].isspace()), end)
        room -= count([text[start:end]])[0]
        start = end
    return room < 0


def _seqs(messages: Sequence[RecalledMessage]) -> frozenset[int]:
    return frozenset(recalled.message.seq for recalled in messages)
