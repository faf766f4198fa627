"""Which words of a query are taken out of what is embedded."""

from __future__ import annotations

import numpy as np
import pytest

from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from support.lexical_model import Text, rows_of


def an_index(*texts: tuple[str, str]) -> InMemoryLexicalIndex:
    """An index of a resource `r` with these texts and their authors."""
    rows = rows_of(
        Text(i, 1, i, i, 1, text, author) for i, (text, author) in enumerate(texts, start=1)
    )
    return InMemoryLexicalIndex(lambda _: rows)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("When did Nora go to the sea?", ("Nora",)),
        ("What is Nora's favourite colour", ("Nora",)),
        ("What is Nora’s favourite colour", ("Nora",)),
        ("did NORA meet bela", ("NORA", "bela")),
        ("did Nora meet Nora's sister", ("Nora",)),
        ("did Quist write", ("Quist",)),
        ("Nora", ()),
        ("Nora and Bela?", ("Nora", "Bela")),
        ("Nora, Bela?", ()),
        ("the harbour  at night", ()),
        ("Tariq at the harbour", ()),
        ("what did the user say", ()),
        ("", ()),
    ],
)
def test_names_are_those_of_the_authors_of_the_partition(
    query: str, names: tuple[str, ...]
) -> None:
    index = an_index(("at the sea", "Nora Quist"), ("hello", "Bela"), ("a letter", "user"))
    assert index.names_in("r", query) == names


def test_a_query_has_eight_names_at_most() -> None:
    authors = [f"Nora{number}" for number in range(12)]
    index = an_index(*(("hello", author) for author in authors))
    assert index.names_in("r", "who met " + " ".join(authors)) == tuple(authors[:8])


def test_in_another_partition_they_stay() -> None:
    index = InMemoryLexicalIndex(
        lambda resource_id: rows_of(
            [Text(1, 1, 0, 1, 1, "hello", "Nora" if resource_id == "a" else "")]
        )
    )
    assert index.names_in("a", "what did Nora say") == ("Nora",)
    assert index.names_in("b", "what did Nora say") == ()


@pytest.mark.parametrize("author", ["", "user"])
def test_without_authors_common_words_with_a_capital_are_names(author: str) -> None:
    texts = [("hi Nora, the weather is fine", author)] * 8 + [("we saw Bela there", author)] * 7
    index = an_index(*texts)
    assert index.names_in("r", "did Nora see the weather") == ("Nora",)
    assert index.names_in("r", "did nora see the weather") == ()
    assert index.names_in("r", "Nora saw it") == ()  # the first word has one anyway
    assert index.names_in("r", "was Bela there") == ()  # in 7 messages only
    assert index.names_in("r", "do I see Nora's dog") == ("Nora",)


def test_common_grows_with_the_partition() -> None:
    index = an_index(*[("Nora is here", "")] * 9, *[("nobody is", "")] * 491)
    assert index.names_in("r", "where is Nora now") == ()
    index = an_index(*[("Nora is here", "")] * 10, *[("nobody is", "")] * 490)
    assert index.names_in("r", "where is Nora now") == ("Nora",)


def test_with_an_author_only_authors_are_names() -> None:
    index = an_index(*[("hi Nora, the weather is fine", "")] * 20, ("hello", "Bela"))
    assert index.names_in("r", "did Nora see Bela") == ("Bela",)


def test_german_writes_all_nouns_with_a_capital() -> None:
    index = an_index(*[("ich habe das Haus und den Garten gesehen", "")] * 20)
    query = "wann war ich in dem Haus mit dem Garten"
    assert index.names_in("r", query) == ()


def test_messages_that_are_gone_make_no_name() -> None:
    texts = ["Nora was here"] * 9 + ["Bela was there"] * 9 + ["the weather is fine"] * 9
    index = an_index(*((text, "") for text in texts))
    assert index.names_in("r", "did Nora see Bela") == ("Nora", "Bela")
    index.texts_removed("r", np.array([1, 10, 11]))  # 8 messages name Nora now, and 7 Bela
    assert index.names_in("r", "did Nora see Bela") == ("Nora",)


def test_a_name_that_few_messages_have_often_is_none() -> None:
    texts = ["Nora, Nora and Nora: Nora said Nora"] * 7 + ["the weather is fine"] * 20
    index = an_index(*((text, "") for text in texts))
    assert index.names_in("r", "did Nora see it") == ()


@pytest.mark.parametrize(("count", "names"), [(7, ()), (8, ("Marken",))])
def test_messages_count_once_by_whichever_stem_they_have(
    count: int, names: tuple[str, ...]
) -> None:
    """German messages are among them, so that the query is stemmed in two languages."""
    german = "das Wetter ist heute schön und wir gehen nicht mehr an den See"
    both = "Marken and Mark were here with all of the others"
    index = an_index(*([(german, "")] * 5 + [(both, "")] * count + [("it is fine", "")] * 15))
    assert index.names_in("r", "did Marken see it") == names


def test_marks_without_a_letter_are_no_name() -> None:
    """The model drops them, and there is nothing to embed: the recall would fail."""
    marks = "\u0e31\u0e34"
    index = an_index(("hello", marks), ("hello", "Nora"))
    assert index.names_in("r", f"did Nora see {marks} there") == ("Nora",)
    assert index.names_in("r", f"did {marks} see it") == ()
