"""F17: files of a model that are missing, cut off, damaged, or another model's.

A start with them is refused with an error that has a name, or gives the vectors it always gave, or
is told apart by its identity, and then a store with vectors refuses it. Never other vectors under
the same identity.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from semanticrecall_core.embedding.embedder import OnnxEmbedder, load_embedder
from semanticrecall_core.types.errors import FailedPreconditionError, ModelUnavailableError
from semanticrecall_core.types.values import CallBudget, VectorRecord
from support.fault_report import seeded
from support.fault_sizes import COLUMNS, size
from support.message_stores import append, draft
from support.stored_messages import open_store
from support.tiny_bert import tiny_tensors, write_tiny_model
from support.word_models import WordModel

TEXTS = ("we met at the harbour", "a b c d e f", "on day", "the harbour we met")
WORDS = tuple("we met at the harbour a b c d e f on day".split())
CONFIGURATION: dict[str, object] = {
    "config.json": {"max_position_embeddings": 64, "model_type": "bert"},
    "modules.json": [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "a b", "document": "c"}},
}


@dataclass(frozen=True)
class Kind:
    """A kind of model folder: how one is written, of another model with another seed."""

    name: str
    write: Callable[[Path, int], Path]


def _onnx(folder: Path, seed: int) -> Path:
    WordModel(WORDS if seed == 1 else WORDS[::-1], 16, seed).write(folder)
    return _configured(folder)


def _safetensors(folder: Path, seed: int) -> Path:
    write_tiny_model(folder, tiny_tensors(seed))
    configuration = json.loads((folder / "config.json").read_text())
    return _configured(folder, {"config.json": configuration})


def _configured(folder: Path, other: dict[str, object] | None = None) -> Path:
    for name, value in {**CONFIGURATION, **(other or {})}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


KINDS = [Kind("onnx", _onnx), Kind("safetensors", _safetensors)]


def loaded(folder: Path, cache: Path) -> OnnxEmbedder:
    return load_embedder(folder, cache, "cpu", 0)


def vectors(embedder: OnnxEmbedder) -> np.ndarray:
    budget = CallBudget.of_seconds(60)
    both = [
        (embedder.embed_query(text, budget), embedder.embed_passage(text, budget)) for text in TEXTS
    ]
    return np.concatenate([one.vectors for pair in both for one in pair])


class World:
    """A sound model, another one of the same dimension, and a store with vectors of the first."""

    def __init__(self, home: Path, kind: Kind) -> None:
        self.home = home
        self.sound = kind.write(home / "sound" / "model", 1)
        self.other = kind.write(home / "other" / "model", 2)
        self.cache = home / "cache"
        embedder = loaded(self.sound, self.cache)
        self.generation, self.expected = embedder.generation, vectors(embedder)
        assert loaded(self.other, self.cache).generation != self.generation
        store = open_store(home / "data", generation=self.generation)
        (row,) = append(store, draft("m"))
        store.put_vectors([VectorRecord("u", row.seq, row.revision, self.expected[:1])])
        store.close()

    def files(self, folder: Path) -> list[str]:
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())

    def outcome(self, folder: Path, cache: Path) -> str:
        """What a start with this folder comes to. Fails if it is what must never be."""
        try:
            embedder = loaded(folder, cache)
        except ModelUnavailableError:
            return "refused"
        if embedder.generation == self.generation:
            np.testing.assert_allclose(vectors(embedder), self.expected, atol=1e-5)
            return "the same vectors"
        with pytest.raises(FailedPreconditionError) as refused:
            open_store(self.home / "data", generation=embedder.generation)
        assert refused.value.reason == "MODEL_CHANGED"
        return "another identity"


def damaged(path: Path, other: Path, chance: random.Random) -> str:
    """Damage a file in one of the ways; returns which."""
    content = bytearray(path.read_bytes())
    way = chance.choice(["flip"] * 5 + ["zeros", "cut", "empty", "missing", "another's"])
    place = chance.randrange(len(content))
    if way == "flip":
        content[place] ^= 1 << chance.randrange(8)
    elif way == "zeros":
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    elif way == "cut":
        del content[place:]
    elif way == "empty":
        content.clear()
    elif way == "missing":
        path.unlink()
        return way
    elif other.is_file():
        content[:] = other.read_bytes()
    path.write_bytes(content)
    return way


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_damaged_model_files_never_give_other_vectors(
    kind: Kind, column: str, tmp_path: Path
) -> None:
    world = World(tmp_path / "world", kind)
    files = world.files(world.sound)
    number = size("F17_DAMAGED_MODELS", column) // len(KINDS)
    with seeded(f"F17 {kind.name}", tmp_path / "world", damages=number) as run:
        for cycle in run.cycles(number):
            name = files[cycle % len(files)]
            folder = tmp_path / "damaged" / "model"
            shutil.copytree(world.sound, folder)
            way = damaged(folder / name, world.other / name, run.random)
            outcome = world.outcome(folder, world.cache)
            run.count(f"{way}: {outcome}")
            shutil.rmtree(folder.parent)


@pytest.mark.parametrize("column", COLUMNS)
def test_damaged_graphs_of_the_cache_are_made_anew_or_refused(column: str, tmp_path: Path) -> None:
    """A graph that was written from safetensors lies in the cache, with its manifest."""
    world = World(tmp_path / "world", KINDS[1])
    files = world.files(world.cache)
    number = size("F17_DAMAGED_MODELS", column) // 4
    with seeded("F17 cache", tmp_path / "world", damages=number) as run:
        for cycle in run.cycles(number):
            name = files[cycle % len(files)]
            cache = tmp_path / "damaged"
            shutil.copytree(world.cache, cache)
            way = damaged(cache / name, cache / files[cycle % 2], run.random)
            outcome = world.outcome(world.sound, cache)
            assert outcome != "another identity"
            run.count(f"{way}: {outcome}")
            shutil.rmtree(cache)


def test_each_part_of_the_identity_tells_models_apart(tmp_path: Path) -> None:
    """Files, pooling, prompts, window: each alone makes another generation; the name does not."""
    cache = tmp_path / "cache"
    changes: dict[str, Callable[[Path], object]] = {
        "weights": lambda f: _swap(f, "model.onnx"),
        "tokenizer": lambda f: _swap(f, "tokenizer.json"),
        "pooling": lambda f: _json(f, "1_Pooling/config.json", {"pooling_mode_cls_token": True}),
        "query prompt": lambda f: _prompts(f, query="a b c", document="c"),
        "passage prompt": lambda f: _prompts(f, query="a b", document="c d"),
        "window": lambda f: _json(f, "sentence_bert_config.json", {"max_seq_length": 16}),
    }

    def _swap(folder: Path, name: str) -> None:
        other = _onnx(tmp_path / "swap", 2)
        shutil.copy(other / name, folder / name)

    def _json(folder: Path, name: str, value: object) -> None:
        (folder / name).write_text(json.dumps(value))

    def _prompts(folder: Path, **prompts: str) -> None:
        _json(folder, "config_sentence_transformers.json", {"prompts": prompts})

    original = loaded(_onnx(tmp_path / "original", 1), cache)
    found = {"original": original.generation}
    identities = {original.index_identity.split("@", 1)[1]}
    for part, change in changes.items():
        folder = _onnx(tmp_path / part.replace(" ", "-"), 1)
        change(folder)
        embedder = loaded(folder, cache)
        found[part] = embedder.generation
        identities.add(embedder.index_identity.split("@", 1)[1])
    assert len(set(found.values())) == len(found), found
    assert len(identities) == len(found)
    assert loaded(_onnx(tmp_path / "renamed", 1), cache).generation == found["original"]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_tokenizer_that_fails_on_a_text_is_refused_at_the_start(
    kind: Kind, tmp_path: Path
) -> None:
    """One flipped bit in the name of the unknown token; the library raises a bare Exception."""
    folder = kind.write(tmp_path / "model", 1)
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["model"]["vocab"]["[UNJ]"] = fields["model"]["vocab"].pop("[UNK]")
    path.write_text(json.dumps(fields))
    with pytest.raises(ModelUnavailableError, match="tokenizer"):
        loaded(folder, tmp_path / "cache")
