"""Conversations of several users as an agent has them, call by call, and what could be cached.

In each turn the agent recalls with the user's words before every model call, and then indexes the
turn: the words and the reply. Users take turns with each other, the first ones more often (zipf),
also within a turn: between two recalls of one user come calls of others. A share of the turns asks
again what the same user asked before.

The conversations are made up, or read from a file of the user's (see `conversations`). Each is one
user's: the one who speaks first is the user, everybody else is the agent.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import corpus
from benchmarks.conversations import read_conversations

USERS_MAX = 10_000
TURNS_MAX = 1_000_000
MODEL_CALLS_MAX = 100


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user said, and the reply to it."""

    text: str
    reply: str


@dataclass(frozen=True, slots=True)
class Call:
    """A recall, or the index call that ends a turn.

    Attributes:
        user: whose.
        turn: number of the user's turn, from 0.
        is_index: it is the index call.
    """

    user: str
    turn: int
    said: Turn
    is_index: bool


@dataclass(frozen=True, slots=True)
class Manner:
    """How conversations are replayed.

    Attributes:
        turns: at most so many, of all users together.
        model_calls: recalls in each turn, 1 to 100.
        zipf_exponent: the n-th user's share of the calls goes with n ** -exponent. 0: evenly.
        repeat_share: of turns that ask again what the user asked before, 0 to below 1.
    """

    turns: int
    model_calls: int
    zipf_exponent: float
    repeat_share: float
    seed: int

    def check(self) -> None:
        """Raises ValueError where something is out of its range."""
        if not 1 <= self.turns <= TURNS_MAX:
            raise ValueError(f"--turns must be 1 to {TURNS_MAX:,}")
        if not 1 <= self.model_calls <= MODEL_CALLS_MAX:
            raise ValueError(f"--model-calls must be 1 to {MODEL_CALLS_MAX}")
        if not (0 <= self.repeat_share < 1 and self.zipf_exponent >= 0):
            raise ValueError("--repeat-share must be 0 to below 1, --zipf-exponent at least 0")


def made_up(users: int, turns: int, *, seed: int) -> list[list[Turn]]:
    """`users` conversations of `turns` turns each, in which a user never repeats a text.

    The texts are the same for all users, in another order: what one asked, others ask too.
    """
    if not 1 <= users <= USERS_MAX:
        raise ValueError(f"--users must be 1 to {USERS_MAX:,}")
    texts = corpus.queries(turns, seed=seed)
    replies = [message.text for message in corpus.chat(turns, seed=seed + 1)]
    rng = random.Random(seed)
    return [
        [Turn(text, reply) for text, reply in zip(*_shuffled(rng, texts, replies), strict=True)]
        for _ in range(users)
    ]


def _shuffled(rng: random.Random, *lists: list[str]) -> Iterator[list[str]]:
    for one in lists:
        yield rng.sample(one, len(one))


def read(file: Path) -> list[list[Turn]]:
    """The conversations of a file. Turns without words of either side are left out.

    Raises:
        ValueError: the file is too large, of another shape, or without turns.
    """
    spoken = (
        ((turn.speaker, turn.full_text.strip()) for turn in conversation.turns())
        for conversation in read_conversations(file)
    )
    found = [turns for turns in map(_turns, spoken) if turns]
    if not 1 <= len(found) <= USERS_MAX:
        raise ValueError(f"--conversations: 1 to {USERS_MAX:,} conversations with turns")
    return found


def _turns(spoken: Iterator[tuple[str, str]]) -> list[Turn]:
    """What one speaker says until the other begins is one text."""
    user = ""
    parts: list[tuple[bool, list[str]]] = []
    for speaker, text in spoken:
        user = user or speaker
        is_user = speaker == user
        if parts and parts[-1][0] is is_user:
            parts[-1][1].append(text)
        else:
            parts.append((is_user, [text]))
    said = [" ".join(filter(None, texts)) for _, texts in parts]
    return [
        Turn(text, reply)
        for text, reply in zip(said[::2], said[1::2], strict=False)
        if text and reply
    ]


def calls(conversations: Sequence[Sequence[Turn]], manner: Manner) -> list[Call]:
    """All calls in their order. Equal conversations and manners give equal calls."""
    manner.check()
    rng = random.Random(manner.seed)
    users = [
        _User(f"user-{number}", turns, rng.randrange(2**32))
        for number, turns in enumerate(conversations)
    ]
    weights = [(number + 1) ** -manner.zipf_exponent for number in range(len(users))]
    found: list[Call] = []
    begun = 0
    while True:
        able = [
            number
            for number, user in enumerate(users)
            if user.is_in_turn or (begun < manner.turns and user.can_begin)
        ]
        if not able:
            return found
        user = users[rng.choices(able, [weights[number] for number in able])[0]]
        if not user.is_in_turn:
            begun += 1
            user.begin(manner)
        found.append(user.next_call())


class _User:
    """Where a user's conversation has come to."""

    def __init__(self, name: str, turns: Sequence[Turn], seed: int) -> None:
        self._name = name
        self._rng = random.Random(seed)
        self._new = iter(turns)
        self._left = len(turns)
        self._said: list[Turn] = []
        self._begun = 0
        self._coming: list[Call] = []

    @property
    def is_in_turn(self) -> bool:
        """Calls of the present turn are left."""
        return bool(self._coming)

    @property
    def can_begin(self) -> bool:
        """Something new is left to say."""
        return self._left > 0

    def begin(self, manner: Manner) -> None:
        """The next turn: something new, or something again."""
        if self._said and self._rng.random() < manner.repeat_share:
            before = self._rng.choice(self._said)
            said = Turn(before.text, f"As I said: {before.reply}")
        else:
            said = next(self._new)
            self._left -= 1
            self._said.append(said)
        recall = Call(self._name, self._begun, said, is_index=False)
        index = Call(self._name, self._begun, said, is_index=True)
        self._coming = [recall] * manner.model_calls + [index]
        self._begun += 1

    def next_call(self) -> Call:
        """The present turn's next call."""
        return self._coming.pop(0)


@dataclass(frozen=True, slots=True)
class Possible:
    """What caches without bounds could do for one recall.

    Attributes:
        vector: the user has asked, said or been told the same text before.
        answer: the user has asked the same, and nothing was indexed for him since.
    """

    vector: bool
    answer: bool


def possible(replayed: Sequence[Call]) -> list[Possible]:
    """For every recall, in order; from the calls alone."""
    known: set[tuple[str, str]] = set()
    asked: dict[str, set[str]] = {}
    found = []
    for call in replayed:
        text = unicodedata.normalize("NFC", call.said.text)
        since = asked.setdefault(call.user, set())
        if call.is_index:
            reply = unicodedata.normalize("NFC", call.said.reply)
            known |= {(call.user, text), (call.user, reply)}
            since.clear()
        else:
            found.append(Possible((call.user, text) in known, text in since))
            known.add((call.user, text))
            since.add(text)
    return found
