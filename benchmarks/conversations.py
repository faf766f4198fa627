"""Labelled conversations: sessions of turns, and questions with the turns that answer them.

They are read from a file that the user names; none is shipped. It has the turns, questions and ids
of LoCoMo (Maharana et al., 2024), reshaped: a JSON list of

  conversation   its name, of which there is one in the file
  sessions       [{session: number, date_time: "1:56 pm on 8 May, 2023", turns: [{id, speaker, text,
                 caption?}]}]; a caption describes a picture that was shared; ids are unique in the
                 conversation
  questions      [{question, category, evidence: [ids]}]; a category is a number, see `CATEGORIES`;
                 one string of `evidence` may hold several ids ("D8:6; D9:17"), or none

Other fields are ignored. Where `date_time` is missing or of another form, the turns have no time.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop", 5: "adversarial"}
FILE_BYTES_MAX = 256 << 20
TURN_ID = re.compile(r"D\d+:\d+")
DATE = re.compile(r"(\d{1,2}):(\d{2}) ([ap])m on (\d{1,2}) (\w+),? (\d{4})", re.IGNORECASE)
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one person said.

    Attributes:
        caption: of a picture that was shared; "" where there is none.
    """

    id: str
    speaker: str
    text: str
    caption: str

    @property
    def full_text(self) -> str:
        """The text, and the caption as words in it."""
        return f"{self.text} [shares {self.caption}]" if self.caption else self.text


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order.

    Attributes:
        started: None where it is not said.
    """

    name: str
    started: datetime | None
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a conversation.

    Attributes:
        category: see `CATEGORIES`; other numbers are possible.
        evidence: ids of the turns that answer it, each once; may be empty.
    """

    text: str
    category: int
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One of a file."""

    name: str
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]

    def turns(self) -> Iterator[Turn]:
        """Of all sessions, in order."""
        for session in self.sessions:
            yield from session.turns


class NoConversationsError(Exception):
    """There is nothing to measure; the text says why."""


def conversations_of(path: Path | None) -> list[Conversation]:
    """What a script's `--conversations` names; as `read_conversations`.

    Raises:
        NoConversationsError: no file is named, or it is not there.
    """
    if path is None:
        raise NoConversationsError("name a file of them with --conversations FILE")
    if not path.is_file():
        raise NoConversationsError(f"there is no file {path}")
    return read_conversations(path)


def read_conversations(path: Path) -> list[Conversation]:
    """All of a file.

    Raises:
        ValueError: it is not of the shape above, or too large; a name or an id is there twice.
    """
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"conversations: a file of more than {FILE_BYTES_MAX:,} bytes")
    try:
        found = [_conversation(one) for one in json.loads(path.read_bytes())]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            "conversations: not a JSON list of conversations with sessions and questions; "
            "the shape is described in benchmarks/conversations.py"
        ) from error
    # One would take the other's place where it is indexed.
    if _some_twice(one.name for one in found):
        raise ValueError("conversations: two of them have one name")
    if any(_some_twice(turn.id for turn in one.turns()) for one in found):
        raise ValueError("conversations: two turns of one have the same id")
    return found


def _some_twice(names: Iterable[str]) -> bool:
    return max(Counter(names).values(), default=0) > 1


def evidence_ids(strings: list[str]) -> tuple[str, ...]:
    """The ids in all strings, in order, each once; what is no id is left out.

    Raises:
        TypeError: it is no list of strings.
    """
    if isinstance(strings, str):
        raise TypeError("evidence is a list")
    return tuple(dict.fromkeys(id_ for one in strings for id_ in TURN_ID.findall(one)))


def parsed_date(text: str) -> datetime | None:
    """Of "1:56 pm on 8 May, 2023", as UTC; None where it is of another form."""
    found = DATE.fullmatch(text.strip())
    if found is None:
        return None
    hour, minute, half, day, month, year = found.groups()
    if month.lower() not in MONTHS:
        return None
    try:
        return datetime(
            int(year),
            1 + MONTHS.index(month.lower()),
            int(day),
            int(hour) % 12 + (12 if half.lower() == "p" else 0),
            int(minute),
            tzinfo=UTC,
        )
    except ValueError:
        return None


def _conversation(read: dict[str, Any]) -> Conversation:
    return Conversation(
        str(read["conversation"]),
        tuple(
            Session(
                f"session-{session['session']}",
                parsed_date(str(session.get("date_time", ""))),
                tuple(
                    Turn(turn["id"], turn["speaker"], turn["text"], turn.get("caption") or "")
                    for turn in session["turns"]
                ),
            )
            for session in read["sessions"]
        ),
        tuple(
            Question(one["question"], int(one["category"]), evidence_ids(one["evidence"]))
            for one in read["questions"]
        ),
    )
