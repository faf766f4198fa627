"""The settings of named vector collections."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from .setting_kinds import Group, setting


class CollectionSettings(BaseSettings):
    """Part of `Settings`; see there."""

    collections_max: int = setting(
        Group.COLLECTIONS,
        "Collections of one resource. One more is RESOURCE_EXHAUSTED.",
        default=100,
        ge=1,
        le=1_000,
    )
    collection_vectors_max: int = setting(
        Group.COLLECTIONS,
        "Vectors of one collection. More are RESOURCE_EXHAUSTED.",
        default=1_000_000,
        ge=1,
        le=100_000_000,
    )
    collection_dimensions_max: int = setting(
        Group.COLLECTIONS,
        "Numbers in a vector of a new collection.",
        default=8_192,
        ge=1,
        le=65_536,
    )
    collection_upsert_max: int = setting(
        Group.COLLECTIONS,
        "Vectors in one UpsertVectors request.",
        default=1_000,
        ge=1,
        le=10_000,
    )
    collection_reads_in_flight_max: int = setting(
        Group.COLLECTIONS,
        "QueryVectors, ListCollections and DescribeCollection calls waiting or worked on; two are "
        "worked on at once, on threads of their own, so that no recall waits for a collection to "
        "be read. More are RESOURCE_EXHAUSTED at once.",
        default=64,
        ge=1,
        le=10_000,
    )
    collections_bytes_max: int = setting(
        Group.COLLECTIONS,
        "Bytes of collections kept in memory; the least recently used are read again when they "
        "are asked. A change that would make one collection larger than that is "
        "RESOURCE_EXHAUSTED (COLLECTION_FULL); one that is larger already is read alone. 0: an "
        "eighth of the memory there is, at most 1 GiB. With --memory low a quarter of either.",
        default=0,
        ge=0,
    )
