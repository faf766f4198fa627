"""Which words of a message a query meets, and which not."""

from __future__ import annotations

import random
import string
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semanticrecall_core.lexical.analysis import (
    QUERY_TOKENS_MAX,
    QUERY_WORDS_MAX,
    Analyser,
    Language,
    date_terms,
    query_tokens,
    query_words,
)
from support.analysed_blobs import read_blob, terms

ANALYSER = Analyser()
ENGLISH = {Language.ENGLISH}
ALL = set(Language) - {Language.NONE}


def terms_of(text: str) -> set[int]:
    return set(read_blob(ANALYSER.analyse(text, "")).counts)


def meetings(message: str, query: str) -> int:
    """How many words of a query a message has, in a partition of that message."""
    blob = read_blob(ANALYSER.analyse(message, ""))
    tokens = query_tokens(query, {blob.language})
    return sum(not blob.counts.keys().isdisjoint(token.terms) for token in tokens)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The dogs' owner didn't bark", ["the", "dog", "owner", "didn't", "bark"]),
        ("Caroline’s", ["carolin"]),
        ("ZX-8841", ["zx", "8841", "zx8841"]),
        ("zx8841", ["zx", "8841", "zx8841"]),
        ("src/foo/bar.py", ["src", "foo", "bar", "py", "srcfoobarpy", "barpy"]),
        ("foo_bar", ["foo", "bar", "foobar"]),
        ("getUserName", ["getusernam", "get", "user", "name"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("IPHONE iPhone", ["iphon", "phone"]),
        ("ann.b@mail.org", ["ann", "b", "mail", "org", "annbmailorg", "mailorg"]),
        ("v1.2.3", ["v1", "1", "2", "3", "v1.2.3", "1.2.3"]),
        ("10:30", ["10", "30", "10:30"]),
        ("2023-05-07", ["2023", "5", "7", "2023-05-07"]),
        ("1,250,000 and 8th and 007", ["1250000", "and", "8", "7"]),
        ("e-mail", ["e", "mail", "email"]),
        ("U.S.A. R&D", ["usa", "rd"]),
        ("C++ or C#", ["c", "c++", "or", "c#"]),
        ("😀 ___ '' -- 👍🏽", []),
        ("naïve ﬁre Straße", ["naiv", "fire", "strass"]),
        ("我喝茶", ["我喝", "喝茶", "我", "喝", "茶"]),
        ("茶", ["茶"]),
        ("カメラ", ["カメ", "メラ"]),
        ("食べた", ["食べ", "べた", "食"]),
        ("5月7日 2023年", ["5月", "7", "2023"]),
        ("학교에서 책을", ["학교에서", "학교", "교에", "에서", "책을", "책"]),
        ("กินข้าว", ["กิน", "นข้", "ข้า", "าว"]),
        ("हिन्दी", ["हिन्द"]),
    ],
)
def test_the_terms_of_a_text(text: str, words: list[str]) -> None:
    assert terms_of(text) == terms(*words)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("the dog barks", 3),
        ("ZX-8841", 2),
        ("getUserName", 1),
        ("well-known", 2),
        ("我喝茶", 2),
        ("학교에서 책을", 2),
        ("", 0),
    ],
)
def test_a_word_counts_once_towards_the_length_of_a_message(text: str, length: int) -> None:
    assert read_blob(ANALYSER.analyse(text, "")).length == length


@pytest.mark.parametrize(
    ("message", "query", "words"),
    [
        ("cafe", "CAFÉ", 1),
        ("cafe\u0301", "café", 1),
        ("Je vais au café avec toi", "cafe", 1),
        ("El volcán está cerca de la casa", "volcan", 1),
        ("Sie haben die Häuser nicht gesehen", "haus", 1),
        ("Wir haben eine Autoversicherung für das Auto", "Versicherungen", 1),
        ("Er hat Rückenschmerzen und ist müde", "Rücken Schmerzen", 2),
        ("J'ai bu de l'eau, qu'il dit", "eau", 1),
        ("Ankara'da bir evim var ve çok güzel", "Ankara", 1),
        ("Ｆｕｌｌ ｗｉｄｔｈ", "full width", 2),
        ("full width", "Ｆｕｌｌ　ｗｉｄｔｈ", 2),
        ("order zx 8841", "ZX-8841", 2),
        ("see ZX-8841", "zx8841", 3),
        ("open src/foo/bar.py", "bar.py", 3),
        ("write to anna@example.org", "example.org", 3),
        ("my e-mail", "email", 1),
        ("at 10:30am", "10:30", 3),
        ("it costs 1,000", "1000", 1),
        ("on the 8th", "8", 1),
        ("العَرَبِيَّة", "العربية", 1),
        ("والكتاب هنا", "كتاب", 1),
        ("שָׁלוֹם", "שלום", 1),
        ("ёлка", "елки", 1),
        ("٢٠٢٣", "2023", 1),
        ("我喝茶", "茶", 1),
        ("我们去公园", "公园", 3),
        ("책을 샀어", "책", 1),
        ("soft\u00adware zero\u200dwidth", "software zerowidth", 2),
        ("dog", "cat", 0),
        ("public", "pub", 0),
        ("ZX-8842", "ZX-8841", 1),
        ("我喝茶", "你好", 0),
    ],
)
def test_what_a_query_meets(message: str, query: str, words: int) -> None:
    assert meetings(message, query) == words


def test_a_code_meets_the_exact_one_with_more_words_than_any_other() -> None:
    others = ["ZX-8842", "ZY-8841", "8841", "the zx", "ZX 884 1", "x8841"]
    assert meetings("The part ZX-8841 is back", "ZX-8841") == 3
    assert max(meetings(other, "ZX-8841") for other in others) < 3


@pytest.mark.parametrize("filler", ["english", "chinese", "base64"])
@pytest.mark.parametrize("place", [0, 24_000, 48_000])
def test_a_fact_is_found_anywhere_in_a_long_text(filler: str, place: int) -> None:
    chance = random.Random(7)
    letters = string.ascii_letters + string.digits + "+/"
    text = {
        "english": " ".join(chance.choices(["some", "words", "of", "a", "long", "day"], k=14_000)),
        "chinese": "".join(chr(chance.randrange(0x4E00, 0x9000)) for _ in range(48_000)),
        "base64": "".join(chance.choices(letters, k=48_000)),
    }[filler][:48_000]
    fact = " The vault code is QK-7731. "
    message = text[:place] + fact + text[place:]
    assert meetings(message, "vault QK-7731") == 4


def test_words_without_end_are_one_word() -> None:
    chance = random.Random(3)
    assert len(terms_of("x" * (1 << 20))) == 1
    assert len(terms_of("aB1" * 300_000)) == 1
    assert len(terms_of("e" + "\u0301" * 500_000)) == 1
    letters = string.ascii_letters + string.digits
    lines = "\n".join("".join(chance.choices(letters, k=76)) for _ in range(1_000))
    assert read_blob(ANALYSER.analyse(lines, "")).length == 1_000


def test_a_word_of_a_query_counts_once() -> None:
    tokens = query_tokens("Dogs, dog, DOG's and a dog", ENGLISH)
    assert [token.terms for token in tokens] == [
        tuple(terms("dog")),
        tuple(terms("and")),
        tuple(terms("a")),
    ]


def test_function_words_and_codes_of_a_query_are_known_as_such() -> None:
    def kinds(query: str, languages: set[Language]) -> list[tuple[bool, bool]]:
        return [(t.is_function, t.is_exact) for t in query_tokens(query, languages)]

    function, exact, word = (True, False), (False, True), (False, False)
    assert kinds("Which seafood makes me ill", ENGLISH) == [function, word, word, function, word]
    assert kinds("ZX-8841", ENGLISH) == [word, exact, exact]
    assert kinds("10:30 v2 2023", ENGLISH) == [exact] * 6
    assert kinds("der Hund", ENGLISH) == [word, word]
    assert kinds("der Hund", {Language.ENGLISH, Language.GERMAN}) == [function, word]
    assert kinds("猫 собака", ENGLISH) == [word, word]


def test_a_query_is_read_in_every_language_of_the_partition() -> None:
    (in_english,) = query_tokens("Häuser", ENGLISH)
    (in_both,) = query_tokens("Häuser", {Language.ENGLISH, Language.GERMAN})
    assert set(in_english.terms) == terms("hauser")
    assert set(in_both.terms) == terms("hauser", "haus", "\0in haus")


def test_a_partition_without_latin_script_reads_a_query_as_english() -> None:
    assert query_tokens("dogs", {Language.NONE}) == query_tokens("dogs", ENGLISH)


def test_long_queries_are_cut() -> None:
    words = " ".join(f"word{i}x" for i in range(5_000))
    tokens = query_tokens(words, ENGLISH)
    assert len(tokens) == QUERY_TOKENS_MAX
    assert query_tokens(words + " tail", ENGLISH) == tokens
    assert len(query_tokens("".join(map(chr, range(0x4E00, 0x9000))), ENGLISH)) == QUERY_TOKENS_MAX
    assert len(query_words(words)) <= QUERY_WORDS_MAX
    assert query_words(words + " tail") == query_words(words)
    assert len(query_words("猫" * 100_000)) == QUERY_WORDS_MAX


def test_a_query_is_cut_after_normalisation_too() -> None:
    """U+FDFA alone is 18 characters of NFKC: 500 of them leave no room for what follows."""
    long = query_tokens("\ufdfa " * 500 + "boat", ENGLISH)
    short = query_tokens("\ufdfa " * 100 + "boat", ENGLISH)
    (boat,) = query_tokens("boat", ENGLISH)
    assert boat in short
    assert boat not in long


def test_what_is_longer_than_a_name_stands_nowhere_as_one() -> None:
    found = query_words("é" * 300 + " Zoë")
    assert [(word.start, word.end) for word in found] == [(301, 304)]


@pytest.mark.parametrize(
    ("query", "languages", "month"),
    [
        ("in May", {Language.ENGLISH}, 5),
        ("on 3 Sept", {Language.ENGLISH}, 9),
        ("in May", {Language.GERMAN, Language.ENGLISH}, 5),
        ("im März", {Language.GERMAN}, 3),
        ("en mai", {Language.FRENCH}, 5),
        ("en fevrier", {Language.FRENCH}, 2),
        ("en mayo", {Language.SPANISH}, 5),
        ("Toukokuussa", {Language.FINNISH}, 5),
        ("Mayıs'ta", {Language.TURKISH}, 5),
        ("в мае", {Language.NONE}, 5),
        ("7 июля", {Language.NONE}, 7),
        ("في مايو", {Language.NONE}, 5),
        ("5月に", {Language.NONE}, 5),
        ("５月", {Language.NONE}, 5),
        ("五月", {Language.NONE}, 5),
        ("5월", {Language.NONE}, 5),
        ("2023-05-07", {Language.ENGLISH}, 5),
    ],
)
def test_a_query_that_names_a_month_meets_a_message_of_it(
    query: str, languages: set[Language], month: int
) -> None:
    by_month = {
        number: date_terms([_ns(datetime(2023, number, 20, tzinfo=UTC))])[0][0]
        for number in range(1, 13)
    }
    asked = {term for token in query_tokens(query, languages) for term in token.terms}
    assert {number for number, term in by_month.items() if term in asked} == {month}


def _ns(time: datetime) -> int:
    return int(time.timestamp()) * 1_000_000_000


def test_a_date_has_its_month_its_day_and_its_year() -> None:
    last = _ns(datetime(2023, 5, 7, 23, 59, 59, tzinfo=UTC))
    days = date_terms([last, last + 1_000_000_000, _ns(datetime(1969, 12, 31, tzinfo=UTC))])
    assert [set(day[1:]) for day in days] == [
        terms("7", "2023"),
        terms("8", "2023"),
        terms("31", "1969"),
    ]
    assert days[0][0] == days[1][0] != days[2][0]
    (eighth, may, year) = query_tokens("8th May 2023?", ENGLISH)
    assert set(days[1]) <= {*eighth.terms, *may.terms, *year.terms}
    assert date_terms([]) == []


@pytest.mark.parametrize(
    ("author", "query", "named"),
    [
        ("Melanie", "What did MELANIE say?", True),
        ("Melanie", "What is Melanie’s dog called?", True),
        ("Melanie Smith", "Did Smith call?", True),
        ("Élodie", "que dit Elodie", True),
        ("Jörg", "jorg said", True),
        ("Will", "What does Will like?", True),
        ("The Duke of York", "the best of all", False),
        ("Anna", "annals", False),
        ("Ayşe", "Ayşe'nin kedisi", True),
        ("Анна", "собака Анны", True),
        ("田中", "田中さんの犬は？", True),
        ("김민수", "민수가 뭐라고 했어?", True),
        ("สมชาย", "สมช", False),
        ("Ｂｏｂ", "bob", True),
        ("", "anyone", False),
        ("7", "7", False),
    ],
)
def test_a_query_names_an_author(author: str, query: str, named: bool) -> None:
    authors = read_blob(ANALYSER.analyse("text", author)).authors
    names = {name for word in query_words(query) for name in word.names}
    assert bool(authors & names) == named


def test_where_the_words_of_a_query_stand() -> None:
    query = "Ｄid Caroline’s dog see d'Anna?"
    words = query_words(query)
    assert [query[word.start : word.end] for word in words] == [
        *("Ｄid", "Caroline’s", "dog", "see", "d'Anna"),
    ]
    assert set(words[1].names) == terms("caroline")
    assert terms("anna") <= set(words[4].names)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("How are you?", True),
        ("How are you? Fine.", True),
        ("Really?!", True),
        ('"Why?" she said', True),
        ("你好吗？我很好", True),
        ("كيف حالك؟", True),
        ("see https://a.example/x?y=1", False),
        ("No.", False),
        ("", False),
    ],
)
def test_a_message_asks_something(text: str, asks: bool) -> None:
    assert read_blob(ANALYSER.analyse(text, "")).asks == asks


def test_threads_do_not_disturb_each_other() -> None:
    texts = [
        "Die Häuser der Kinder sind nicht mehr da",
        "Les maisons des enfants ne sont plus là",
        "The children's houses are gone running",
        "Дома детей уже разрушены собаками",
    ]
    many = [f"{text} {word}{i}ing" for i in range(300) for text in texts for word in ("walk", "sp")]
    alone = [Analyser().analyse(text, "") for text in many]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: ANALYSER.analyse(text, ""), many))
    assert together == alone


@given(st.text(max_size=200), st.text(max_size=40))
@settings(max_examples=300, deadline=None)
@example("5:é", "_\u0301")
@example("_\u0301", "5:é")
def test_any_text_is_analysed_and_meets_itself(text: str, author: str) -> None:
    data = ANALYSER.analyse(text, author)
    assert data == ANALYSER.analyse(text, author)
    assert ANALYSER.is_current(data)
    blob = read_blob(data)
    tokens = query_tokens(text, ALL)
    if len(tokens) < QUERY_TOKENS_MAX:
        asked = {term for token in tokens for term in token.terms}
        is_compounding = blob.language not in (*range(7), Language.TURKISH)
        assert blob.counts.keys() <= asked or (is_compounding and blob.counts.keys() & asked)
    for word in query_words(text):
        assert 0 <= word.start < word.end <= len(text)


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_forms_of_unicode_are_equal(text: str) -> None:
    composed = ANALYSER.analyse(unicodedata.normalize("NFKC", text), "")
    for form in ("NFC", "NFD", "NFKD"):
        assert read_blob(ANALYSER.analyse(unicodedata.normalize(form, text), "")).counts == (
            read_blob(composed).counts
        )


@settings(deadline=None)
@given(st.text("abcxyz .,'-/:@0189", max_size=60))
def test_case_and_width_do_not_matter(text: str) -> None:
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    assert terms_of(text) == terms_of(text.upper()) == terms_of(wide) == terms_of(wide.upper())
