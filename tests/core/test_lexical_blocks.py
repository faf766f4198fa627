"""Messages as columns and postings: a few are taken one by one, and come out as many do."""

from __future__ import annotations

import numpy as np
import pytest

from semanticrecall_core.lexical import blocks
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.types.lexical import LexicalRows

DAY_NS = 86_400 * 1_000_000_000
TEXTS = [
    "What does Rex eat on November 30?",
    "",
    "30 November 1970 30 30",
    "tea " * 300,
    "Grüner Tee aus Uji",
    "one odd count",
]
AUTHORS = ["Ann Lee", "", "Bob", "Ann Lee", "Eve", "Bob"]


def rows_of(chosen: list[int]) -> LexicalRows:
    analyse = Analyser().analyse
    count = len(chosen)
    return LexicalRows(
        seqs=np.arange(10, 10 + count),
        thread_keys=np.full(count, 3),
        times_ns=np.array([i * 40 * DAY_NS - 1 for i in chosen], np.int64),
        revisions=np.full(count, 7),
        roles=np.ones(count, np.uint8),
        analysed=tuple(analyse(TEXTS[i], AUTHORS[i]) for i in chosen),
    )


@pytest.mark.parametrize("chosen", [[0], [1], [2, 3], [0, 1, 2, 3, 4, 5], [3, 3, 5]])
def test_a_few_messages_come_out_as_many_do(
    chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(chosen)
    few_authors, many_authors = blocks.Authors(2), blocks.Authors(2)
    few = blocks.text_block(rows, few_authors)
    monkeypatch.setattr(blocks, "FEW_ROWS_MAX", 0)
    many = blocks.text_block(rows, many_authors)
    names = (*blocks.COLUMNS, "rows", "terms", "counts")
    for name in names:
        of_few = getattr(few if name not in blocks.COLUMNS else few.columns, name)
        of_many = getattr(many if name not in blocks.COLUMNS else many.columns, name)
        assert of_few.dtype == of_many.dtype, name
        assert of_few.tolist() == of_many.tolist(), name
    assert few_authors.by_term == many_authors.by_term


def test_a_count_is_cut_to_what_a_posting_holds() -> None:
    block = blocks.text_block(rows_of([3]), blocks.Authors(2))
    assert block.counts.max() == blocks.COUNT_MAX
