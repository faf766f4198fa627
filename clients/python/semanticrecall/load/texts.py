"""Made-up chat: plain sentences of a given number of words, each text with a name of its own.

A text is told from all others by one made-up name in it ("Tanvormi"), whose number is the text's:
two texts of a load are never equal, however short they are. What is around the name is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_Opener = tuple[str, int]

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
_FILLED_CLAUSES = 512
# A name can follow each of these.
_QUESTIONS = (
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
_STATEMENTS = (
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
_FURTHER = (
    "We talked",
    "I was worried",
    "You asked me",
    "It happened",
    "I will call you",
    "We should meet",
    "I wrote it down",
    "That was different",
    "It works better",
)
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


class Chat:
    """Makes texts of parts of sentences that are filled with words once: a text costs some us.

    Args:
        seed: of the parts.
    """

    def __init__(self, seed: str) -> None:
        draws = random.Random(seed)
        self._clauses = {
            length: [_filled(draws, clauses) for _ in range(_FILLED_CLAUSES)]
            for length, clauses in _CLAUSES.items()
        }
        self._questions = _by_words_left(_QUESTIONS)
        self._statements = _by_words_left(_STATEMENTS)
        self._further = [(opener, len(opener.split())) for opener in _FURTHER]

    def question(self, draws: random.Random, words: int, named: str) -> str:
        """A question of `words` words (1 or more), one of which is the name."""
        return self._text(draws, words, named, self._questions) + "?"

    def statement(self, draws: random.Random, words: int, named: str) -> str:
        """What somebody says, the name in its first sentence: `words` words, 1 or more."""
        return self._text(draws, words, named, self._statements) + "."

    def _text(
        self, draws: random.Random, words: int, named: str, openers: Sequence[Sequence[_Opener]]
    ) -> str:
        if words == 1:
            return named
        random01 = draws.random
        fitting = openers[min(words, len(openers) - 1)]
        opener, length = fitting[int(random01() * len(fitting))]
        parts = [opener, named]
        left, sentence = words - length - 1, length + 1
        while left:
            if sentence >= _SENTENCE_WORDS and left > _CLAUSE_WORDS_MAX:
                parts[-1] += "."
                opener, length = self._further[int(random01() * len(self._further))]
                parts.append(opener)
                left, sentence = left - length, length
            length = 1 + int(random01() * min(left, _CLAUSE_WORDS_MAX))
            parts.append(self._clauses[length][int(random01() * _FILLED_CLAUSES)])
            left, sentence = left - length, sentence + length
        return " ".join(parts)


def _filled(draws: random.Random, clauses: Sequence[Sequence[str]]) -> str:
    clause = draws.choice(clauses)
    return " ".join(draws.choice(_SLOTS[word]) if word in _SLOTS else word for word in clause)


def _by_words_left(openers: Sequence[str]) -> list[list[_Opener]]:
    """For each number of words (the last: and more) the openers that leave room for a name."""
    counted = [(opener[0].upper() + opener[1:], len(opener.split())) for opener in openers]
    longest = max(length for _, length in counted)
    return [
        [(opener, length) for opener, length in counted if length < words]
        for words in range(longest + 2)
    ]
