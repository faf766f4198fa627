"""LanceDB, embedded: one table, users told apart by an indexed column.

Its documentation advises a scalar index on a column that searches filter by, filters applied
before the search, and a vector index from some 100,000 rows on: IVF_RQ where searches filter. Up
to there it compares with all rows of the user, which is exact. Adding appends a fragment, and what
came since `optimize` is found by comparison too.
"""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from lancedb.expr import col, lit
from lancedb.index import Bitmap, BTree, IvfRq
from numpy.typing import NDArray

from benchmarks.competitors.port import Found, Rows, Setup, System

_TABLE = "messages"
# "Low-cardinality columns (< ~1,000 distinct values)" take a bitmap, others a B-tree.
_BITMAP_USERS_MAX = 1000
# "Works fine below ~100K vectors, but past that you should build a dedicated vector index."
_INDEX_ROWS_MIN = 100_000
_ROWS_PER_PARTITION = 4096
# Of the advised 5 to 50, the one of its example.
_REFINE_FACTOR = 25
# "Raise when recall is insufficient": by default 20 partitions are looked into, and of a small
# user one message in ten is then missed. So many are all partitions of 262,144 rows.
_PROBES = 64
# "A good rule of thumb is to run optimize if you have added 100,000 or more records or run more
# than 20 data modification operations."
_ADDS_PER_OPTIMIZE = 20
# All versions but the last: nobody else reads the table. 0 means the same and warns.
_KEPT_VERSIONS = timedelta(milliseconds=1)


class Lance:
    """One table. Not for several threads at a time."""

    def __init__(self, directory: Path, dimensions: int) -> None:
        self._schema = pa.schema(
            [
                pa.field("user", pa.string(), nullable=False),
                pa.field("id", pa.string(), nullable=False),
                pa.field("thread_id", pa.string(), nullable=False),
                pa.field("text", pa.string(), nullable=False),
                pa.field("vector", pa.list_(pa.float32(), dimensions), nullable=False),
            ]
        )
        # Searches are built from methods that the declared class lacks.
        self._table: Any = lancedb.connect(directory).create_table(
            _TABLE, schema=self._schema, exist_ok=True
        )
        self._indexed = {column for one in self._table.list_indices() for column in one.columns}
        self._adds_since_optimize = 0

    @property
    def setup(self) -> Setup:
        """How it was set up; `index` depends on how many rows were there when it was loaded."""
        if "vector" in self._indexed:
            index = (
                f"approximate: IVF_RQ, dot product, a partition per {_ROWS_PER_PARTITION} rows, "
                f"all of them probed, refine_factor {_REFINE_FACTOR}"
            )
        else:
            index = "exact: scan of the user's rows, dot product (no vector index below 100,000)"
        return Setup(
            name="LanceDB",
            versions={"lancedb": version("lancedb"), "pyarrow": version("pyarrow")},
            tenants=(
                "one table, scalar index on `user` (BITMAP below 1,000 users, else BTREE), filter "
                "before the search"
            ),
            index=f"{index}, float32, threads as many as cores",
            durability=(
                "files written and the new version named, not synced to disk; optimize after "
                "20 adds, in the add"
            ),
            advice=(
                "https://docs.lancedb.com/performance, "
                "https://docs.lancedb.com/indexing/vector-index"
            ),
        )

    def add(self, rows: Rows) -> None:
        """Append a fragment; once the table is indexed, optimize after some of them."""
        vectors = np.ascontiguousarray(rows.vectors, dtype=np.float32)
        count, dimensions = vectors.shape
        self._table.add(
            pa.table(
                [
                    pa.array([rows.resource_id] * count, pa.string()),
                    pa.array(rows.ids, pa.string()),
                    pa.array(rows.thread_ids, pa.string()),
                    pa.array(rows.texts, pa.string()),
                    pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dimensions),
                ],
                schema=self._schema,
            )
        )
        self._adds_since_optimize += 1
        if self._indexed and self._adds_since_optimize > _ADDS_PER_OPTIMIZE:
            self._optimize()

    def loaded(self) -> None:
        """Build the advised indexes where they are missing, compact, and prune old versions."""
        self.build_indexes()
        self._optimize()

    def build_indexes(
        self, *, vector_rows_min: int = _INDEX_ROWS_MIN, bitmap_users_max: int = _BITMAP_USERS_MAX
    ) -> None:
        """The index of users, and that of vectors where there are `vector_rows_min` rows."""
        rows: int = self._table.count_rows()
        if rows and "user" not in self._indexed:
            few = self._users() < bitmap_users_max
            self._table.create_index("user", config=Bitmap() if few else BTree())
            self._indexed.add("user")
        if rows >= vector_rows_min and "vector" not in self._indexed:
            partitions = max(1, rows // _ROWS_PER_PARTITION)
            config = IvfRq(distance_type="dot", num_partitions=partitions)
            self._table.create_index("vector", config=config)
            self._indexed.add("vector")

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """The nearest, best first."""
        answer = (
            self._table.search(vector, vector_column_name="vector")
            .distance_type("dot")
            .where(col("user") == lit(resource_id), prefilter=True)
            .nprobes(_PROBES)
            .refine_factor(_REFINE_FACTOR)
            .select(["id", "text", "_distance"])
            .limit(top_k)
            .to_arrow()
        )
        ids: list[str] = answer["id"].to_pylist()
        texts: list[str] = answer["text"].to_pylist()
        return [Found(id=id_, text=text) for id_, text in zip(ids, texts, strict=True)]

    def close(self) -> None:
        """Let go of the table; all of it is in files, and there is nothing to call."""
        del self._table

    def _optimize(self) -> None:
        self._table.optimize(cleanup_older_than=_KEPT_VERSIONS)
        self._adds_since_optimize = 0

    def _users(self) -> int:
        users = self._table.search().select(["user"]).to_arrow()["user"]
        return len(users.unique())


def open_system(directory: Path, dimensions: int) -> System:
    """Open the table in `directory`, or create it."""
    return Lance(directory, dimensions)
