"""A record and the models of its vectors: which it is opened with, and what becomes of the rest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import numpy as np
import pytest

from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.types.errors import FailedPreconditionError
from semanticrecall_core.types.generations import ModelIdentity
from semanticrecall_core.types.values import ForgetTarget, VectorRecord
from support.message_stores import append, draft, embed
from support.stored_messages import open_store

UNIT = np.array([[0.6, 0.8, 0.0]], np.float32)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "data"


def opened(home: Path, generation: str, **more: object) -> SqliteMessageStore:
    return open_store(home, generation=generation, options=StoreOptions(**more))  # type: ignore[arg-type]


@pytest.mark.parametrize("embedded", [True, False], ids=["vectors", "pending only"])
def test_another_model_is_refused_where_there_is_something_of_one(
    home: Path, embedded: bool
) -> None:
    store = opened(home, "g", index_identity="small@1/2")
    a, _ = append(store, draft("a"), draft("b", embeddable=False))
    if embedded:
        embed(store, a, [1.0, 0.0])
    store.close()
    before = (home / "recall.db").read_bytes()
    with pytest.raises(FailedPreconditionError) as refused:
        opened(home, "other", index_identity="large@2/768")
    assert refused.value.reason == "MODEL_CHANGED"
    for part in ("small@1/2", "large@2/768", "--next-model-dir", "semanticrecall reembed"):
        assert part in refused.value.message
    assert (home / "recall.db").read_bytes() == before
    store = opened(home, "g")
    assert len(store.pending(0, 9)) == (not embedded)
    assert store.load_partition("u").seqs.tolist() == [a.seq] * embedded
    store.close()


def test_a_record_with_nothing_to_search_takes_any_model(home: Path) -> None:
    opened(home, "g").close()
    opened(home, "other").close()
    store = opened(home, "g")
    (a,) = append(store, draft("a", embeddable=False))
    store.close()
    store = opened(home, "other")
    (b,) = append(store, draft("b"))
    assert store.put_vectors([VectorRecord("u", b.seq, b.revision, UNIT)], "g") == [False]
    assert store.put_vectors([VectorRecord("u", b.seq, b.revision, UNIT)], "other") == [True]
    assert a.seq < b.seq
    store.close()


def test_a_record_that_was_switched_serves_with_either_flag(home: Path) -> None:
    following = ModelIdentity("next", "large@2/768")
    store = opened(home, "g", next_model=following)
    (a,) = append(store, draft("a"))
    embed(store, a, [1.0, 0.0])
    made = store.vectors_of(following)
    assert store.serve("next", (), lambda: None) == (a.seq,)
    assert store.generation == "g"
    made.put([VectorRecord("u", a.seq, a.revision, UNIT)])
    assert store.serve("next", (), lambda: None) == ()
    store.close()
    store = opened(home, "g", next_model=following)
    assert store.generation == "next"
    assert np.array_equal(store.load_partition("u").vectors, UNIT)
    store.close()
    store = opened(home, "next")
    assert store.generation == "next"
    store.close()
    with pytest.raises(FailedPreconditionError, match="large@2/768"):
        opened(home, "g")
    with pytest.raises(FailedPreconditionError, match="large@2/768"):
        opened(home, "g", next_model=ModelIdentity("third"))


def test_what_a_former_model_left_is_deleted_also_after_a_restart(home: Path) -> None:
    following = ModelIdentity("next")
    store = opened(home, "g", next_model=following)
    outcomes = append(store, *(draft(f"m{n}") for n in range(7)))
    for outcome in outcomes:
        embed(store, outcome, [1.0, 0.0])
    made = store.vectors_of(following)
    made.put([VectorRecord("u", o.seq, o.revision, UNIT) for o in outcomes])
    assert store.serve("next", (), lambda: None) == ()
    place = store.drop_unused_vectors((0, 0), 3)
    assert place is not None
    store.close()
    assert generation_keys(home) == {1: 4, 2: 7}
    store = opened(home, "next")
    place = (0, 0)
    while place is not None:
        place = store.drop_unused_vectors(place, 3)
    store.close()
    assert generation_keys(home) == {2: 7}
    # The former model may come back: as another generation, of which nothing is there.
    store = opened(home, "next", next_model=ModelIdentity("g"))
    assert len(store.vectors_of(ModelIdentity("g")).lacking(0, 10).rows) == 7
    assert store.embedded("g") == 0
    assert store.embedded("next") == 7
    store.close()


def generation_keys(home: Path) -> dict[int, int]:
    """Vectors on record by the key of their generation."""
    connection = apsw.Connection(str(home / "recall.db"))
    rows = connection.execute(
        "SELECT generation_key, count(*) FROM vectors GROUP BY generation_key"
    ).fetchall()
    connection.close()
    return dict(rows)


def test_vectors_of_both_generations_follow_an_edit_and_a_move(home: Path) -> None:
    following = ModelIdentity("next")
    store = opened(home, "g", next_model=following)
    kept, changed = append(store, draft("kept", text="same"), draft("changed", text="before"))
    made = store.vectors_of(following)
    for outcome in (kept, changed):
        embed(store, outcome, [1.0, 0.0])
        made.put([VectorRecord("u", outcome.seq, outcome.revision, UNIT)])
    later, _ = append(
        store,
        draft("kept", text="same", thread="other", metadata_json='{"a":1}'),
        draft("changed", text="after"),
    )
    for vectors in (store, made):
        rows = vectors.load_partition("u")
        assert rows.seqs.tolist() == [kept.seq]
        assert rows.revisions.tolist() == [later.revision]
    assert [row.seq for row in made.lacking(0, 10).rows] == [changed.seq]
    store.transfer_thread("u", "other", "v")
    for vectors in (store, made):
        assert vectors.load_partition("u").seqs.tolist() == []
        assert vectors.load_partition("v").seqs.tolist() == [kept.seq]
    store.forget("v", ForgetTarget(everything=True))
    assert made.load_partition("v").seqs.tolist() == []
    store.close()
    assert generation_keys(home) == {}


def test_damaged_vectors_of_a_generation_are_made_again_and_the_others_stay(home: Path) -> None:
    following = ModelIdentity("next")
    store = opened(home, "g", next_model=following)
    (a,) = append(store, draft("a"))
    embed(store, a, [1.0, 0.0])
    store.vectors_of(following).put([VectorRecord("u", a.seq, a.revision, UNIT)])
    store.close()
    with closing(apsw.Connection(str(home / "recall.db"))) as connection:
        connection.execute("UPDATE vectors SET checksum = 0 WHERE generation_key = 2")
    store = opened(home, "g", next_model=following)
    made = store.vectors_of(following)
    assert made.load_partition("u").seqs.tolist() == []
    append(store, draft("b"))  # what is posted is done before
    assert [row.seq for row in made.lacking(0, 10).rows] == [a.seq, a.seq + 1]
    assert store.load_partition("u").seqs.tolist() == [a.seq]
    assert [row.seq for row in store.pending(0, 10)] == [a.seq + 1]
    store.close()
