"""Files of every format that there was are opened, and everything is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from semanticrecall_core.types.collections import CollectionInfo, VectorQuery
from support.collection_model import ANY_TIME, opened_with_mark
from support.collections_1 import KEYS, PLACES, VECTORS, unpacked


@pytest.mark.parametrize("kind", list(KEYS))
def test_format_1_is_opened_and_everything_is_found(kind: str, tmp_path: Path) -> None:
    home = unpacked(tmp_path) / kind
    collections = opened_with_mark(home, key=KEYS[kind])
    for (resource, name), metric in PLACES.items():
        assert collections.list(resource) == [CollectionInfo(name, 3, metric, len(VECTORS))]
        for id, (values, metadata) in VECTORS.items():
            query = VectorQuery(values, top_k=3, include_values=True)
            found = collections.query(resource, name, query, ANY_TIME)
            assert len(found) == len(VECTORS)
            assert (found[0].id, found[0].metadata) == (id, metadata)
            assert found[0].score == pytest.approx(1.0)
            assert found[0].values is not None
            assert found[0].values.tolist() == pytest.approx(values)
    assert list(collections.verify(None, ANY_TIME)) == []
    assert collections.purge_pending()
    collections.purge(ANY_TIME)
    collections.close()
