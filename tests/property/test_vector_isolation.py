"""Collections of resources whose ids are mistaken for one another: each has its own, and no more.

Every resource has collections of the same names with vectors of the same ids. After each change
the whole state of a few of them is compared with a dictionary; canaries say whose a vector is.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import recall_pb2, vectors_pb2
from semanticrecall_server.assembly import default_parts
from support.fake_embedder import FakeEmbedder
from support.fault_report import FaultRun, seeded
from support.isolation_ids import COMMON_IDS, HOSTILE_IDS, canaries_in, canary
from support.running_server import InProcessServer, error_detail, running

STEPS = 400
NAMES = ("a", "a:b", "%", "b")
LOOKED_AT = 4
PLACES_MIN = 50

Place = tuple[str, str]


class World:
    """The server, and what it should hold: canary by vector id, by (resource, collection)."""

    def __init__(
        self,
        server: InProcessServer,
        rng: random.Random,
        held: dict[Place, dict[str, str]] | None = None,
    ) -> None:
        self._server = server
        self._random = rng
        self.held = held or {}
        self._canaries = 0

    def place(self) -> Place:
        """Mostly one that is there."""
        if self.held and self._random.random() < 0.6:
            return self._random.choice(list(self.held))
        return self._random.choice(HOSTILE_IDS), self._random.choice(NAMES)

    def step(self) -> None:
        """One change of one place."""
        place = self.place()
        usual = (self.create, self.upsert, self.upsert, self.upsert, self.delete, self.delete)
        rare = (self.drop, self.forget)
        change = self._random.choice(rare if self._random.random() < 0.06 else usual)
        if place in self.held or change not in (self.upsert, self.delete):
            change(place)
            return
        with pytest.raises(grpc.RpcError) as refused:
            change(place)
        assert error_detail(refused.value).reason == "COLLECTION_NOT_FOUND"
        assert canaries_in(str(refused.value).encode()) == set()

    def create(self, place: Place) -> None:
        request = vectors_pb2.CreateCollectionRequest(**_fields(place), dimensions=1)
        answer = self._server.vectors.CreateCollection(request, timeout=20)
        assert answer.created == (place not in self.held)
        held = self.held.setdefault(place, {})
        assert answer.collection.vectors == len(held)

    def upsert(self, place: Place) -> None:
        ids = self._random.sample(COMMON_IDS, 3)
        request = vectors_pb2.UpsertVectorsRequest(**_fields(place))
        new: dict[str, str] = {}
        for vector_id in ids:
            self._canaries += 1
            new[vector_id] = canary(self._canaries)
            entry = request.entries.add(id=vector_id, values=[1])
            entry.metadata.update({"mark": new[vector_id], "kind": "all"})
        counts = self._server.vectors.UpsertVectors(request, timeout=20)
        held = self.held[place]
        assert counts.replaced == len(held.keys() & new.keys())
        held.update(new)

    def delete(self, place: Place) -> None:
        request = vectors_pb2.DeleteVectorsRequest(**_fields(place))
        vector_id = self._random.choice(COMMON_IDS)
        request.selection.ids.ids.append(vector_id)
        counted = self._server.vectors.DeleteVectors(request, timeout=20).deleted
        assert counted == (self.held[place].pop(vector_id, None) is not None)

    def drop(self, place: Place) -> None:
        request = vectors_pb2.DeleteCollectionRequest(**_fields(place))
        answer = self._server.vectors.DeleteCollection(request, timeout=20)
        held = self.held.pop(place, None)
        assert (answer.deleted, answer.vectors) == (held is not None, len(held or ()))

    def forget(self, place: Place) -> None:
        resource_id = place[0]
        request = recall_pb2.ForgetRequest(resource_id=resource_id, everything=True)
        self._server.recall.Forget(request, timeout=20)
        self.held = {other: held for other, held in self.held.items() if other[0] != resource_id}

    def look(self) -> None:
        """A few places are what they should be."""
        for _ in range(LOOKED_AT):
            place = self.place()
            names = sorted(name for resource, name in self.held if resource == place[0])
            listing = vectors_pb2.ListCollectionsRequest(resource_id=place[0])
            listed = self._server.vectors.ListCollections(listing, timeout=20).collections
            assert [one.name for one in listed] == names, place
            if place in self.held:
                self._compare(place)

    def _compare(self, place: Place) -> None:
        held = self.held[place]
        for values, condition in (([1.0], None), ([], {"kind": "all"})):
            request = vectors_pb2.QueryVectorsRequest(**_fields(place), values=values, top_k=100)
            if condition is not None:
                request.filter.update(condition)
            answer = self._server.vectors.QueryVectors(request, timeout=20)
            assert {match.id: match.metadata["mark"] for match in answer.matches} == held, place
            assert canaries_in(answer.SerializeToString()) <= set(held.values())

    def everything(self) -> None:
        """All places are what they should be."""
        assert len(self.held) >= PLACES_MIN
        for place in self.held:
            self._compare(place)
        assert self._server.reading("collection_evictions_total") > 0
        assert self._server.reading("collections") == len(self.held)
        assert self._server.reading("collection_vectors") == sum(map(len, self.held.values()))


def _fields(place: Place) -> dict[str, Any]:
    return {"resource_id": place[0], "collection": place[1]}


def _serving(directory: Path) -> Any:
    # In so little memory only a few collections can be: all are read again and again.
    parts = default_parts(lambda settings: FakeEmbedder())
    return running(directory, parts, collections_bytes_max=20_000)


@pytest.mark.timeout(300)
def test_no_resource_reaches_the_collections_of_another(tmp_path: Path) -> None:
    with seeded("F23 collections", tmp_path / "data", steps=STEPS) as run:
        with _serving(tmp_path) as server:
            world = World(server, run.random)
            for resource_id in HOSTILE_IDS:
                place = resource_id, run.random.choice(NAMES)
                world.create(place)
                world.upsert(place)
            for number in run.cycles(STEPS):
                world.step()
                if number % 5 == 0:
                    world.look()
            world.everything()
            assert canaries_in(server.log_text.encode()) == set()
        _same_after_a_restart(tmp_path, world, run)


def _same_after_a_restart(directory: Path, world: World, run: FaultRun) -> None:
    with _serving(directory) as server:
        World(server, run.random, world.held).everything()
