"""What every snapshot store promises: files (mapped, not, encrypted), and a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.ports import SnapshotStore
from semanticrecall_core.types.values import PartitionImage
from support.model_snapshots import ModelSnapshots, image, same


@pytest.fixture(params=["mapped", "in memory", "encrypted", "model"])
def snapshots(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SnapshotStore]:
    if request.param == "model":
        made: SnapshotStore = ModelSnapshots()
    else:
        mapped = request.param == "mapped"
        key = bytes(range(32)) if request.param == "encrypted" else None
        made = FileSnapshotStore(tmp_path / "snapshots", store_id="s", mapped=mapped, key=key)
    yield made
    made.close()


def test_nothing_is_there_at_first(snapshots: SnapshotStore) -> None:
    assert snapshots.read("u") is None
    assert snapshots.resources() == {}
    stats = snapshots.stats()
    assert (stats.partitions, stats.rows, stats.damaged, stats.files) == (0, 0, 0, 0)


@pytest.mark.parametrize(("count", "dimensions"), [(0, 0), (0, 5), (1, 1), (7, 64), (300, 384)])
def test_an_image_comes_back_bit_for_bit(
    snapshots: SnapshotStore, count: int, dimensions: int
) -> None:
    given = image("u", count, dimensions=dimensions, generation="model@1/é")
    assert snapshots.write([given]) == 1
    assert same(snapshots.read("u"), given)
    assert snapshots.resources() == {"u": count}


def test_a_later_image_replaces_an_earlier_one(snapshots: SnapshotStore) -> None:
    older, newer, other = image("u", 9, seed=1), image("u", 4, seed=2), image("v", 2)
    snapshots.write([older, other])
    snapshots.write([newer])
    assert same(snapshots.read("u"), newer)
    assert same(snapshots.read("v"), other)
    assert snapshots.resources() == {"u": 4, "v": 2}
    assert [snapshots.rows_of(name) for name in ("u", "v", "w")] == [4, 2, None]
    assert (snapshots.stats().partitions, snapshots.stats().rows) == (2, 6)


def test_the_last_of_two_images_in_one_write_counts(snapshots: SnapshotStore) -> None:
    assert snapshots.write([image("u", 9, seed=1), image("u", 4, seed=2)]) == 2
    assert same(snapshots.read("u"), image("u", 4, seed=2))
    assert snapshots.stats().rows == 4


@pytest.mark.parametrize("resource_id", ["../x", "a/b", "\x00", "a" * 512, "é\u200d", "u.tmp", ""])
def test_a_resource_id_is_a_name_and_not_a_path(snapshots: SnapshotStore, resource_id: str) -> None:
    others = [image("u"), image("U"), image("u "), image("u_"), image("u%")]
    snapshots.write([image(resource_id, 2), *others])
    assert same(snapshots.read(resource_id), image(resource_id, 2))
    snapshots.forget([resource_id])
    assert snapshots.read(resource_id) is None
    assert snapshots.resources() == {other.resource_id: 3 for other in others}


def test_writing_nothing_changes_nothing(snapshots: SnapshotStore) -> None:
    snapshots.write([image("u")])
    before = snapshots.stats()
    assert snapshots.write([]) == 0
    assert snapshots.stats() == before


def test_what_is_forgotten_is_not_there_and_others_are(snapshots: SnapshotStore) -> None:
    snapshots.write([image("u"), image("v"), image("w")])
    snapshots.write([image("u", seed=1)])
    snapshots.forget(["u", "w", "never there"])
    assert snapshots.read("u") is None
    assert snapshots.read("w") is None
    assert same(snapshots.read("v"), image("v"))
    assert snapshots.resources() == {"v": 3}


def test_what_is_withdrawn_is_not_given_until_it_is_written_again(
    snapshots: SnapshotStore,
) -> None:
    snapshots.write([image("u"), image("v")])
    snapshots.withdraw(["u", "never there"])
    assert snapshots.read("u") is None
    assert snapshots.resources() == {"v": 3}
    assert same(snapshots.read("v"), image("v"))
    snapshots.write([image("u", seed=1)])
    assert same(snapshots.read("u"), image("u", seed=1))


def test_whose_rows_there_may_be(snapshots: SnapshotStore) -> None:
    snapshots.write([image("u", 20), image("v")])
    assert snapshots.seqs_of("u").tolist() == sorted(image("u", 20).rows.seqs.tolist())
    assert snapshots.seqs_of("u").dtype == np.int64
    snapshots.forget(["u"])
    assert snapshots.seqs_of("u").tolist() == snapshots.seqs_of("w").tolist() == []
    assert len(snapshots.seqs_of("v")) == 3


def test_an_image_in_use_stays_as_it_was_while_others_are_forgotten(
    snapshots: SnapshotStore,
) -> None:
    snapshots.write([image("u", 50), image("v", 50)])
    given = snapshots.read("u")
    snapshots.forget(["v"])
    assert same(given, image("u", 50))
    assert same(snapshots.read("u"), image("u", 50))
    assert snapshots.read("v") is None


def test_what_was_forgotten_can_be_written_again(snapshots: SnapshotStore) -> None:
    snapshots.write([image("u")])
    snapshots.forget(["u"])
    snapshots.write([image("u", seed=1)])
    assert same(snapshots.read("u"), image("u", seed=1))


def test_an_image_given_before_stays_as_it_was(snapshots: SnapshotStore) -> None:
    snapshots.write([image("u", 50), image("v")])
    given = snapshots.read("u")
    assert given is not None
    snapshots.write([image("u", seed=1)])
    snapshots.forget(["u"])
    snapshots.close()
    assert same(given, image("u", 50))


def test_many_writes_keep_the_newest_of_each(snapshots: SnapshotStore) -> None:
    newest: dict[str, PartitionImage] = {}
    for turn in range(40):
        images = [image(f"r{(turn * 7 + at) % 11}", turn % 5, seed=turn) for at in range(3)]
        snapshots.write(images)
        newest.update({one.resource_id: one for one in images})
    assert snapshots.resources() == {name: len(one.rows.seqs) for name, one in newest.items()}
    assert all(same(snapshots.read(name), one) for name, one in newest.items())


def test_a_failing_source_of_images_changes_nothing(snapshots: SnapshotStore) -> None:
    def failing() -> Iterator[PartitionImage]:
        yield image("u", seed=1)
        raise LookupError("from the source")

    snapshots.write([image("u"), image("v")])
    with pytest.raises(LookupError, match="from the source"):
        snapshots.write(failing())
    assert same(snapshots.read("u"), image("u"))
    assert snapshots.resources() == {"u": 3, "v": 3}


def test_after_close_nothing_is_read_and_nothing_written(snapshots: SnapshotStore) -> None:
    snapshots.write([image("u")])
    snapshots.close()
    snapshots.close()
    assert snapshots.read("u") is None
    with pytest.raises(UnavailableError):
        snapshots.write([image("u")])


def test_arrays_may_be_strided(snapshots: SnapshotStore) -> None:
    wide = image("u", 4, dimensions=10)
    snapshots.write(
        [
            PartitionImage(
                "u",
                "g",
                wide.rows.__class__(
                    **{
                        name: np.repeat(getattr(wide.rows, name), 2)[::2]
                        for name in ("seqs", "thread_keys", "times_ns", "chunks", "revisions")
                    },
                    roles=np.repeat(wide.rows.roles, 2)[::2],
                    checksums=np.repeat(wide.rows.checksums, 2)[::2],
                    vectors=np.asfortranarray(wide.rows.vectors),
                ),
                np.asfortranarray(wide.codes),
                np.repeat(wide.errors, 2)[::2],
                wide.scale_clip,
            )
        ]
    )
    assert same(snapshots.read("u"), wide)
