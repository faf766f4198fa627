"""Made-up chat: plain sentences of a given number of words, each text with a name of its own.

A text is told from all others by one made-up name in it ("Tanvormi"), whose number is the text's:
two texts of a load are never equal, however short they are. What is around the name is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_ADJECTIVES = """new old small large blue green quiet noisy early late cheap expensive heavy light
simple strange broken clean warm cold fresh dirty empty full plain bright dark soft rough sharp
boring funny serious famous careful sudden gentle narrow wide short long sweet bitter salty dry wet
pretty ugly modern slow fast loose tight thick thin crowded""".split()
_NOUNS = """kitchen garden budget meeting train ticket report invoice recipe doctor dentist bicycle
car engine holiday hotel flight passport suitcase camera picture song concert guitar piano lesson
school teacher exam homework book library novel chapter letter parcel present birthday wedding
dinner breakfast lunch cake bread cheese coffee tea allergy headache medicine exercise gym race
team match ticket stadium weather storm snow umbrella jacket shoes laundry washing vacuum carpet
sofa lamp window door key lock neighbour landlord contract rent deposit bank loan insurance tax
salary interview office desk printer laptop charger battery phone password account backup server
database script test release deadline project client customer order delivery refund warranty
repair plumber painter roof ceiling wall floor stairs bathroom shower mirror towel dog cat puppy
rabbit parrot vet leash walk park forest lake river beach island mountain map compass tent
campfire boat ferry bridge tunnel road bus taxi airport museum theatre film ticket painting
sculpture language grammar accent word sentence speech slide chart table plan list note reminder
calendar clock alarm""".split()
_PEOPLE = """sister brother mother father cousin uncle aunt friend boss colleague neighbour
daughter son grandmother grandfather manager roommate doctor teacher coach""".split()
_VERBS = """fixed sold bought painted moved cancelled booked planned finished started forgot found
lost changed checked cleaned cooked packed opened closed ordered returned shared visited borrowed
printed replaced renewed measured tasted watched""".split()
_TIMES = """Monday Tuesday Wednesday Thursday Friday Saturday Sunday Christmas holidays""".split()
_ADVERBS = "today again soon later maybe tomorrow yesterday somehow finally already".split()

_SLOTS = {"A": _ADJECTIVES, "N": _NOUNS, "P": _PEOPLE, "V": _VERBS, "T": _TIMES, "B": _ADVERBS}
# Parts of sentences by their number of words: any length can be made of them.
_CLAUSES: dict[int, Sequence[Sequence[str]]] = {
    length: [clause.split() for clause in clauses]
    for length, clauses in {
        1: ("B",),
        2: ("on T", "before T", "after T", "with N"),
        3: ("for my P", "about the N", "with the N", "near the N", "without any N", "like my P"),
        4: ("about the A N", "with an old P", "from my A P", "and the A N", "instead of the N"),
        5: ("since we V the N", "after my P V it", "and the N looked A", "when you V the N"),
        6: ("because the N was too A", "and my P likes the N", "while we V the A N"),
        7: ("if the A N is still A", "so that my P V the N", "but the N was not so A"),
    }.items()
}
_CLAUSE_WORDS_MAX = max(_CLAUSES)
# A name can follow each of these.
_QUESTIONS = [
    opener.split()
    for opener in (
        "about",
        "who is",
        "where is",
        "when did I meet",
        "do you remember",
        "can you tell me about",
        "what did we decide about",
        "what did I say about",
        "how do I find",
        "why did we choose",
        "have you heard of",
        "which day did we visit",
    )
]
_STATEMENTS = [
    opener.split()
    for opener in (
        "about",
        "I met",
        "we saw",
        "I wrote to",
        "we talked about",
        "remember to ask",
        "I am waiting for",
        "you asked me about",
        "let us call it",
        "my favourite is still",
        "I cannot decide on",
        "please send this to",
    )
]
_FURTHER = [
    opener.split()
    for opener in (
        "we talked",
        "I was worried",
        "you asked me",
        "it happened",
        "I will call you",
        "we should meet",
        "I wrote it down",
        "that was different",
        "it works better",
    )
]
_SENTENCE_WORDS = 9

_SYLLABLES = [
    start + vowel + end
    for start in "bdfghjklmnprstvwyzc" + "x"
    for vowel in "aeiou"
    for end in ("", "l", "n", "r", "s")
]
_NAME_SYLLABLES = 4
_NAMES = len(_SYLLABLES) ** _NAME_SYLLABLES
# Shares no factor with _NAMES = 2^8 * 5^12, so that it maps numbers one to one; near the golden
# section of it, so that neighbouring numbers are far apart.
_STRIDE = 38_627_124_297


def name(number: int, offset: int = 0) -> str:
    """A pronounceable name for a number: equal only for equal numbers (with equal offsets).

    Args:
        number: 0 or above. Below 62.5e9 the name has four syllables.
        offset: 0 or above; another one gives the numbers other names.
    """
    block, within = divmod(number, _NAMES)
    rest = (within * _STRIDE + offset) % _NAMES
    syllables: list[str] = []
    for _ in range(_NAME_SYLLABLES):
        rest, syllable = divmod(rest, len(_SYLLABLES))
        syllables.append(_SYLLABLES[syllable])
    while block:
        block, syllable = divmod(block, len(_SYLLABLES))
        syllables.append(_SYLLABLES[syllable])
    return "".join(syllables).capitalize()


def question(draws: random.Random, words: int, named: str) -> str:
    """A question of `words` words (1 or more), one of which is the name."""
    return _text(draws, words, named, _QUESTIONS, "?")


def statement(draws: random.Random, words: int, named: str) -> str:
    """What somebody says, in sentences, with the name in the first: `words` words, 1 or more."""
    return _text(draws, words, named, _STATEMENTS, ".")


def _text(
    draws: random.Random, words: int, named: str, openers: Sequence[Sequence[str]], end: str
) -> str:
    first = [opener for opener in openers if len(opener) < words]
    text = [*_pick(draws, first), named] if first else [named]
    begins = 0
    while len(text) < words:
        left = words - len(text)
        if len(text) - begins >= _SENTENCE_WORDS and left > _CLAUSE_WORDS_MAX:
            _close(text, begins, end)
            begins = len(text)
            text += _pick(draws, _FURTHER)
            left = words - len(text)
        length = 1 + int(draws.random() * min(left, _CLAUSE_WORDS_MAX))
        for word in _pick(draws, _CLAUSES[length]):
            slot = _SLOTS.get(word)
            text.append(word if slot is None else slot[int(draws.random() * len(slot))])
    _close(text, begins, end)
    return " ".join(text)


def _pick(draws: random.Random, choices: Sequence[Sequence[str]]) -> Sequence[str]:
    return choices[int(draws.random() * len(choices))]


def _close(text: list[str], begins: int, end: str) -> None:
    text[begins] = text[begins][0].upper() + text[begins][1:]
    text[-1] += end
