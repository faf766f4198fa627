"""Text to words, codes and character pairs; before any stemming, so for every language the same.

A run is what stands between spaces and punctuation, with the joints inside it (`src/foo.py`,
`ZX-8841`, `don't`). It becomes parts: its words, and the whole where it has several words, so that
a query with the exact code finds that first and a query with a piece of it finds it too. Scripts
that put no spaces between words become pairs of neighbouring characters.
"""

# ruff: noqa: RUF001, RUF002 characters that look like others, on purpose
from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import islice
from operator import add
from typing import NamedTuple

from .analysis_stems import WORD_CHARS_MAX

RUNS_CACHED = 16_384
# Runs above this are data more than words: no whole, and only the parts that look like words.
RUN_CHARS_MAX = 512
RUN_CHARS_CACHED_MAX = 64


class Part(NamedTuple):
    """A part of a run.

    Attributes:
        text: case-folded.
        is_word: whether it is stemmed; else it is taken as it is.
        length: what it adds to the length of the message, in words.
    """

    text: str
    is_word: bool
    length: int


class Split(NamedTuple):
    """A text taken apart.

    Attributes:
        runs: with their case, in order.
        grams: of scripts that put no spaces between words, in order; taken as they are.
        length: what the grams add to the length of the message, in words.
    """

    runs: list[str]
    grams: list[str]
    length: int


def _combining_marks() -> str:
    """Marks that belong to the letter before them, as ranges of a character class.

    `\\w` does not hold them: without, Devanagari and Thai would fall apart at every vowel sign.
    """
    marks = [
        code
        for code in range(0x300, 0xFE00)
        if unicodedata.category(chr(code)) in ("Mn", "Mc") and code not in (0x200C, 0x200D)
    ]
    ranges: list[list[int]] = []
    for code in marks:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\u{low:04x}-\\u{high:04x}" for low, high in ranges)


_MARKS = _combining_marks()
_LETTER = rf"\w[\w{_MARKS}]*"
_RUN = re.compile(rf"{_LETTER}(?:(?:://|::|(?<=\d),(?=\d)|['.\-/\\:@+&=~]){_LETTER})*(?:\+\+|#)?")
_RUN_ASCII = re.compile(
    r"\w+(?:(?:://|::|(?<=\d),(?=\d)|['.\-/\\:@+&=~])\w+)*(?:\+\+|#)?", re.ASCII
)
_CJK = (
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303b\u3041-\u3096\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_SOUTH_EAST = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u1089\u1780-\u17d3"
_HANGUL = "\u1100-\u11ff\uac00-\ud7a3"
# A number with the sign for year, month or day, or a stretch of one kind of script.
_STRETCH = re.compile(
    rf"(?<!\d)(\d{{1,4}}) ?([年月日号號년월일])|([{_CJK}]+)|([{_SOUTH_EAST}]+)|([{_HANGUL}]+)"
)
# A stretch of one of these scripts; and what could be a name: such a stretch, or a word.
UNSPACED = re.compile(f"[{_CJK}{_SOUTH_EAST}{_HANGUL}]+")
_OTHER = rf"(?:(?![{_CJK}{_SOUTH_EAST}{_HANGUL}])[^\W_])"
NAME = re.compile(
    rf"[{_CJK}]+|[{_SOUTH_EAST}]+|[{_HANGUL}]+"
    rf"|{_OTHER}(?:{_OTHER}|[{_MARKS}])*(?:['’ʼ＇]{_OTHER}(?:{_OTHER}|[{_MARKS}])*)*"
)
# The same in a text of ASCII characters, in a third of the time.
NAME_ASCII = re.compile(r"[^\W_]+(?:'[^\W_]+)*", re.ASCII)
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# A letter with its marks; more than these on one letter is play.
_CLUSTER = re.compile(rf"\w[{_MARKS}]{{0,8}}")
# Not seen, and inside words: soft hyphen, joiners, marks of direction.
_INVISIBLE = re.compile("[\u00ad\u200c-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+")
# Apostrophes, and what is typed for a hyphen.
_ONE_SPELLING = str.maketrans("’ʼʹ＇`´‐‑‒–", "''''''----")
# Josa: what Korean hangs on a noun, the longest first.
_PARTICLES = tuple(
    "에서는 에게서 으로는 이라고 까지 부터 에서 에게 한테 으로 처럼 보다 하고 이랑 이나 라고"
    " 은 는 이 가 을 를 에 의 와 과 도 로 만 랑".split()
)

_JOINTS = re.compile(r"://|::|[._\-/\\:@+&=~,]")
_CASES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
# Two words written as one: e-mail, co-workers.
_HYPHENATED = re.compile(r"[^\W\d_]+-[^\W\d_]+")
# U.S.A, p.m, R&D.
_ABBREVIATION = re.compile(r"[^\W\d_](?:[.&][^\W\d_])+")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_NUMBERS_INSIDE = re.compile(r"(?<![^\W_])[vV]?(\d+(?:[.:/\-]\d+)+)")
_SEPARATOR = re.compile(r"(?<!\d)[^\w#+]+|[^\w#+]+(?!\d)|_+")


def normal(text: str) -> str:
    """NFKC, without what is not seen; apostrophes and hyphens in one spelling."""
    if text.isascii():
        return text.replace("`", "'") if "`" in text else text
    text = unicodedata.normalize("NFKC", text)
    return _INVISIBLE.sub("", text.translate(_ONE_SPELLING))


def split(text: str) -> Split:
    """Runs and grams of a text that is `normal`."""
    if text.isascii():
        return Split(_RUN_ASCII.findall(text), [], 0)
    grams: list[str] = []
    lengths: list[int] = []
    if UNSPACED.search(text):
        text = _STRETCH.sub(lambda found: _unspaced(found, grams, lengths), text)
    return Split(_RUN.findall(text), grams, sum(lengths))


def _unspaced(found: re.Match[str], grams: list[str], lengths: list[int]) -> str:
    """Adds what a stretch has; what it is replaced with in the text."""
    number, sign, cjk, south_east, hangul = found.groups()
    if number is not None:
        digits = _digits(number)
        grams.append(month_gram(int(digits)) if sign in "月월" else digits)
        lengths.append(1)
    elif hangul is not None:
        lengths.append(_add_hangul(hangul, grams))
    elif cjk is not None:
        lengths.append(_add_pairs(cjk, grams))
        if len(cjk) > 1:
            grams += _HAN.findall(cjk)
    else:
        lengths.append(_add_pairs(_CLUSTER.findall(south_east), grams))
    return " "


def _add_pairs(characters: str | list[str], grams: list[str]) -> int:
    """Every two neighbours, or the one there is; how many."""
    if len(characters) < 2:
        grams += characters
        return len(characters)
    grams += map(add, characters, islice(characters, 1, None))
    return len(characters) - 1


def _add_hangul(word: str, grams: list[str]) -> int:
    """The word, the word without its particle, and its pairs of syllables; how many words."""
    if len(word) > WORD_CHARS_MAX:
        return _add_pairs(word, grams)
    forms = [word]
    forms += (word[: -len(p)] for p in _PARTICLES if len(word) > len(p) and word.endswith(p))
    del forms[2:]
    if len(word) > 2:
        _add_pairs(word, forms)
    grams += dict.fromkeys(forms)
    return 1


def month_gram(month: int) -> str:
    """A month that is written as a number."""
    return f"{month}月"


def parts_of(run: str) -> tuple[Part, ...]:
    """The parts of a run: one for a plain word."""
    return _cached_parts(run) if len(run) <= RUN_CHARS_CACHED_MAX else _parts(run)


def _digits(number: str) -> str:
    """A number in plain digits without zeros before it: 05, ٥ and 5 meet."""
    return str(int(number)) if len(number) <= 18 else number


def _parts(run: str) -> tuple[Part, ...]:
    if run.isalpha() and (run.islower() or run[1:].islower()):
        return (Part(run.casefold(), len(run) <= WORD_CHARS_MAX, 1),)
    if run.isdecimal():
        return (Part(_digits(run), False, 1),)
    if _THOUSANDS.fullmatch(run):
        return (Part(run.replace(",", ""), False, 1),)
    if len(run) > RUN_CHARS_MAX:
        return _parts_of_data(run)
    parts: list[Part] = []
    pieces = [piece for piece in _JOINTS.split(run.rstrip("#+")) if _LETTER_OR_DIGIT.search(piece)]
    for piece in pieces:
        _add_piece(piece, parts)
    if len(pieces) == 1 and run[-1] not in "#+":
        return tuple(parts)
    if _ABBREVIATION.fullmatch(run):
        # Its letters are not worth finding.
        return (Part("".join(pieces).casefold(), False, 1),)
    parts.extend(_wholes(run))
    return tuple(dict.fromkeys(part for part in parts if part.text))


_cached_parts = lru_cache(RUNS_CACHED)(_parts)


def _parts_of_data(run: str) -> tuple[Part, ...]:
    """Of a very long run: itself, and what looks like words and numbers in it."""
    words = (
        piece
        for piece in _JOINTS.split(run)
        if 1 < len(piece) <= WORD_CHARS_MAX
        and ((piece.isalpha() and (piece.islower() or piece[1:].islower())) or piece.isdecimal())
    )
    found = [Part(word.casefold(), word.isalpha(), 1) for word in words]
    return (*found, Part(run.casefold(), False, 1))


def _add_piece(piece: str, parts: list[Part]) -> None:
    """A word between joints: itself, and its parts by case and digits unless it is a blob."""
    word = piece.casefold()
    if piece.isdecimal():
        parts.append(Part(_digits(piece), False, 1))
        return
    if _ORDINAL.fullmatch(word):
        parts.append(Part(_digits(word[:-2]), False, 1))
        return
    if len(piece) > WORD_CHARS_MAX:
        parts.append(Part(word, False, 1))
        return
    letters = piece.replace("'", "")
    is_word = not any(character.isdecimal() for character in letters)
    parts.append(Part(word, is_word, 1))
    if letters.isupper() and is_word:
        return
    inside = _CASES.findall(piece) if "'" not in piece and piece.isascii() else []
    is_legible = len(inside) > 1 and len(piece) >= 2.5 * len(inside)
    if is_legible or (len(inside) == 2 and not is_word):
        for part in inside:
            if part.isdecimal():
                parts.append(Part(_digits(part), False, 0))
            elif len(part) > 1:
                parts.append(Part(part.casefold(), True, 0))


def _wholes(run: str) -> list[Part]:
    """A run as a whole, its file name and its numbers with their joints."""
    out: list[Part] = []
    whole = _joined(run)
    out.append(Part(whole, _HYPHENATED.fullmatch(run) is not None, 0))
    last = re.split(r"[/\\@]", run)[-1]
    if last != run and len(_JOINTS.split(last)) > 1:
        out.append(Part(_joined(last), False, 0))
    for number in _NUMBERS_INSIDE.findall(run):
        out.append(Part(number, False, 0))
    return out


def _joined(run: str) -> str:
    """A run without its joints, but for those between digits: ZX-8841 and zx8841 meet."""
    return _SEPARATOR.sub("", run.casefold())
