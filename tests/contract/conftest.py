"""Every implementation of a port, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from semanticrecall_core.messages import StoreOptions
from semanticrecall_core.types.ports import MessageStore
from support.message_stores import ticking_clock
from support.model_store import ModelStore
from support.recorded_commits import RecordedCommits
from support.recorded_texts import RecordedTexts
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser


@pytest.fixture(params=["sqlite", "model"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    """An empty message store of generation "g" that analyses; its clock ticks once a reading."""
    with ExitStack() as undo:
        if request.param == "model":
            made: MessageStore = ModelStore(
                generation="g", clock=ticking_clock(), analyser=WordAnalyser()
            )
        else:
            options = StoreOptions(clock=ticking_clock())
            made = open_store(
                tmp_path / "data", generation="g", analyser=WordAnalyser(), options=options
            )
        undo.callback(made.close)
        yield made


@pytest.fixture
def commits(store: MessageStore) -> RecordedCommits:
    """What the store tells its listener."""
    listener = RecordedCommits()
    store.subscribe(listener)
    return listener


@pytest.fixture
def texts(store: MessageStore) -> RecordedTexts:
    """What the store tells its lexical listener."""
    listener = RecordedTexts(store)
    store.subscribe_lexical(listener)
    return listener
