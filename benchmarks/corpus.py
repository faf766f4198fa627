"""A synthetic chat, the same on every machine: no data set is downloaded or shipped.

Messages are composed from word lists of our own, so that texts are distinct, of a chosen length
and alike enough that a query has close and distant neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_PEOPLE = "Ann Ben Carla Dmitri Elif Farid Grace Hugo Ines Jonas Kaya Liam Mina Noor Olga".split()
_THINGS = (
    "bicycle,apartment,violin,garden,laptop,passport,kitchen,camera,novel,sofa,backpack,guitar,"
    "telescope,boat,greenhouse,printer,wallet,umbrella,scooter,piano,fridge,tent,ladder,watch"
).split(",")
_PLACES = (
    "Lisbon,Oslo,the office,the old harbour,Kyoto,the mountains,a small bakery,Berlin,the library,"
    "Nairobi,the train station,Quito,the clinic,Dublin,the market,Hanoi,the workshop,Krakow"
).split(",")
_VERBS = (
    "bought,sold,repaired,lost,found,painted,borrowed,returned,photographed,packed,measured,"
    "insured,cleaned,wrapped,sketched,described,forgot,dreamt about,compared,carried"
).split(",")
_REASONS = (
    "because the landlord asked for it,since the meeting was moved,after the doctor called back,"
    "because it had rained for three days,as a present for the twins,to save money for the trip,"
    "since nobody answered the phone,because the deadline is on Friday,before the guests arrive,"
    "after reading the manual twice,to please an old neighbour,although it was far too expensive"
).split(",")
_TAILS = (
    "Remind me about it next week.,I am still not sure that it was right.,It took the whole day.,"
    "The colour is dark green.,We should write that down.,That was the third time this year.,"
    "Nobody else knows yet.,It cost {n} euros in the end.,The number on it is {n}.,"
    "Room {n} would have been better.,Please keep the receipt.,I felt much better afterwards."
).split(",")

THREAD_MESSAGES = 40


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of the synthetic chat."""

    id: str
    thread_id: str
    from_user: bool
    text: str


def sentence(rng: random.Random) -> str:
    """About 16 tokens for MiniLM's tokenizer."""
    return (
        f"{rng.choice(_PEOPLE)} {rng.choice(_VERBS)} the {rng.choice(_THINGS)} in "
        f"{rng.choice(_PLACES)} {rng.choice(_REASONS)}."
    )


def chat(
    messages: int, *, seed: int, thread_messages: int = THREAD_MESSAGES
) -> Iterator[ChatMessage]:
    """`messages` messages of about 40 tokens, in threads of `thread_messages`."""
    rng = random.Random(seed)
    for i in range(messages):
        tail = rng.choice(_TAILS).replace("{n}", str(rng.randrange(2, 900)))
        yield ChatMessage(
            id=f"m{i}",
            thread_id=f"thread-{i // thread_messages}",
            from_user=i % 2 == 0,
            text=f"{sentence(rng)} {tail} {sentence(rng)}",
        )


def queries(count: int, *, seed: int) -> list[str]:
    """Distinct queries of about 16 tokens."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[f"When was it that {sentence(rng)[:-1]}?"] = None
    return list(found)


def queries_of_tokens(
    count: int, tokens: int, *, count_tokens: Callable[[str], int], seed: int
) -> list[str]:
    """Distinct queries that a tokenizer makes exactly so many tokens of, about 12 to 20."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        text = (
            f"When did {rng.choice(_PEOPLE)} and {rng.choice(_PEOPLE)} talk about "
            f"{rng.choice(_PLACES)} and the {rng.choice(_THINGS)} {rng.randrange(10_000)}?"
        )
        if text not in found and count_tokens(text) == tokens:
            found[text] = None
    return list(found)
