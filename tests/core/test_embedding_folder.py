"""Models by path: what the configuration files say is what the vectors show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from semanticrecall_core.embedding.embedder import OnnxEmbedder, load_embedder
from semanticrecall_core.embedding.folder import WINDOW_TOKENS_MAX, read_model_folder, read_pipeline
from semanticrecall_core.embedding.provision import model_folder
from semanticrecall_core.types.errors import ModelUnavailableError
from semanticrecall_core.types.values import CallBudget
from support import bert_reference, tiny_model

MEAN = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
ONNX_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def onnx_folder(folder: Path, **files: Any) -> Path:
    graph = tiny_model.graph(output="last_hidden_state", inputs=ONNX_INPUTS)
    return write(
        folder,
        {"onnx/model.onnx": graph, "tokenizer.json": tiny_model.tokenizer_json(), **files},
    )


def modules(*kinds: str) -> list[dict[str, str]]:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    prefix = "sentence_transformers.models."
    return [{"type": prefix + kind, "path": paths.get(kind, "x")} for kind in kinds]


def budget() -> CallBudget:
    return CallBudget.of_seconds(60)


def vector(embedder: OnnxEmbedder, text: str) -> NDArray[np.float32]:
    row: NDArray[np.float32] = embedder.embed_query(text, budget()).vectors[0]
    return row


def test_a_plain_export_is_pooled_by_the_mean(tmp_path: Path) -> None:
    embedder = load_embedder(onnx_folder(tmp_path / "my-model"), None, "cpu")
    assert embedder.dimensions == tiny_model.DIMENSIONS
    assert embedder.index_identity.startswith("my-model@")
    expected = tiny_model.expected_vector("dark mode on")
    np.testing.assert_allclose(vector(embedder, "dark mode on"), expected, atol=1e-6)


def test_cls_pooling_is_read(tmp_path: Path) -> None:
    folder = onnx_folder(
        tmp_path,
        **{
            "modules.json": modules("Transformer", "Pooling", "Normalize"),
            "1_Pooling/config.json": CLS,
        },
    )
    embedder = load_embedder(folder, None, "cpu")
    expected = tiny_model.expected_vector("", cls=True)
    np.testing.assert_allclose(vector(embedder, "dark mode"), expected, atol=1e-6)


def test_prompts_of_queries_and_passages_are_read(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query : ", "document": "passage : "}}
    embedder = load_embedder(
        onnx_folder(tmp_path, **{"config_sentence_transformers.json": prompts}), None, "cpu"
    )
    query = embedder.embed_query("dark mode", budget()).vectors[0]
    passage = embedder.embed_passage("dark mode", budget()).vectors[0]
    expected_query = tiny_model.expected_vector("query : dark mode")
    expected_passage = tiny_model.expected_vector("passage : dark mode")
    np.testing.assert_allclose(query, expected_query, atol=1e-6)
    np.testing.assert_allclose(passage, expected_passage, atol=1e-6)


def test_each_prompt_is_part_of_the_vectors_identity(tmp_path: Path) -> None:
    generations: set[str] = set()
    for place, prompts in enumerate(
        (
            {},
            {"query": "query : "},
            {"passage": "passage : "},
            {"query": "query : ", "passage": "passage : "},
            {"query": "query : ", "passage": "query : "},
        )
    ):
        (folder := tmp_path / str(place)).mkdir()
        files = {"config_sentence_transformers.json": {"prompts": prompts}}
        generations.add(load_embedder(onnx_folder(folder, **files), None, "cpu").generation)
    assert len(generations) == 5


def test_queries_together_have_the_querys_prompt(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query : ", "passage": "passage : "}}
    files = {"config_sentence_transformers.json": prompts}
    embedder = load_embedder(onnx_folder(tmp_path, **files), None, "cpu")
    texts = ["dark mode", "turn on"]
    for words, found in zip(texts, embedder.embed_queries(texts, budget()), strict=True):
        expected = tiny_model.expected_vector(f"query : {words}")
        np.testing.assert_allclose(found.vectors[0], expected, atol=1e-6)
    assert embedder.count_tokens(texts) == [2, 2]


def test_the_default_prompt_is_for_both_roles(tmp_path: Path) -> None:
    prompts = {"prompts": {"p": "query : "}, "default_prompt_name": "p"}
    pipeline = read_pipeline(write(tmp_path, {"config_sentence_transformers.json": prompts}))
    assert (pipeline.query_prompt, pipeline.passage_prompt) == ("query : ", "query : ")


@pytest.mark.parametrize(
    ("config", "sentence", "window"),
    [
        ({}, {}, WINDOW_TOKENS_MAX),
        ({"max_position_embeddings": 128}, {}, 128),
        ({"max_position_embeddings": 512}, {"max_seq_length": 256}, 256),
        ({"max_position_embeddings": 130, "model_type": "roberta"}, {}, 128),
        ({"max_position_embeddings": 32_768}, {"max_seq_length": 32_768}, WINDOW_TOKENS_MAX),
        ({"max_position_embeddings": 512}, {"max_seq_length": None}, 512),
    ],
)
def test_the_window(tmp_path: Path, config: Any, sentence: Any, window: int) -> None:
    write(tmp_path, {"config.json": config, "sentence_bert_config.json": sentence})
    assert read_pipeline(tmp_path).max_tokens == window


def test_a_window_that_was_read_is_kept_to(tmp_path: Path) -> None:
    folder = onnx_folder(tmp_path, **{"sentence_bert_config.json": {"max_seq_length": 10}})
    embedded = load_embedder(folder, None, "cpu").embed_query("blue " * 20, budget())
    assert (embedded.tokens, embedded.truncated) == (10, True)


@pytest.mark.parametrize(
    "files",
    [
        {"modules.json": modules("Transformer", "Pooling", "Dense")},
        {"modules.json": {"no": "list"}},
        {"modules.json": [{"type": "a.Transformer", "path": "../../secret"}]},
        {"modules.json": [{"type": "a.Transformer", "path": "/etc"}]},
        {"modules.json": b"not json"},
        {"1_Pooling/config.json": {"pooling_mode_max_tokens": True}},
        {"1_Pooling/config.json": MEAN | {"pooling_mode_cls_token": True}},
        {"1_Pooling/config.json": MEAN | {"include_prompt": False}},
        {"config_sentence_transformers.json": {"prompts": {"query": 7}}},
        {"config_sentence_transformers.json": {"prompts": {"query": "x" * 10_000}}},
        {"sentence_bert_config.json": {"max_seq_length": -5}},
        {"config.json": b"[]"},
        {"onnx/model.onnx": b"not a graph"},
        {"tokenizer.json": b"not a tokenizer"},
    ],
    ids=lambda files: next(iter(files)),
)
def test_what_cannot_be_run_as_its_authors_do_is_refused(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    with pytest.raises(ModelUnavailableError):
        read_model_folder(onnx_folder(tmp_path, **files))


def test_lower_case_that_the_tokenizer_does_not_do_is_refused(tmp_path: Path) -> None:
    wants = {"sentence_bert_config.json": {"do_lower_case": True}}
    read_model_folder(onnx_folder(tmp_path / "done", **wants))
    cased = {"tokenizer.json": tiny_model.tokenizer_json(lower_case=False)}
    with pytest.raises(ModelUnavailableError, match="lower case"):
        read_model_folder(onnx_folder(tmp_path / "not", **wants, **cased))


@pytest.mark.parametrize("missing", ["tokenizer.json", "onnx/model.onnx"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    (onnx_folder(tmp_path) / missing).unlink()
    with pytest.raises(ModelUnavailableError, match=Path(missing).name):
        read_model_folder(tmp_path)


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="not a folder"):
        read_model_folder(tmp_path / "missing")


def test_the_revision_follows_the_files_and_not_the_name(tmp_path: Path) -> None:
    first = read_model_folder(onnx_folder(tmp_path / "one"))
    renamed = read_model_folder(onnx_folder(tmp_path / "two"))
    assert first.generation == renamed.generation
    changed: list[dict[str, Any]] = [
        {"1_Pooling/config.json": CLS},
        {"config_sentence_transformers.json": {"prompts": {"query": "query : "}}},
        {"sentence_bert_config.json": {"max_seq_length": 16}},
        {"tokenizer.json": tiny_model.tokenizer_json(lower_case=False)},
        {"onnx/model.onnx": tiny_model.graph()},
    ]
    generations = {
        read_model_folder(onnx_folder(tmp_path / f"changed-{n}", **files)).generation
        for n, files in enumerate(changed)
    }
    assert len(generations | {first.generation}) == len(changed) + 1


def bert_folder(folder: Path, **files: Any) -> Path:
    """A BERT encoder of two small layers with weights from a fixed seed."""
    hidden, wide, vocabulary = 32, 64, len(tiny_model.vocabulary())
    rng = np.random.Generator(np.random.PCG64(11))
    shapes = {
        "embeddings.word_embeddings.weight": (vocabulary, hidden),
        "embeddings.position_embeddings.weight": (64, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(2):
        at = f"encoder.layer.{layer}"
        linear = {
            f"{at}.attention.self.query": (hidden, hidden),
            f"{at}.attention.self.key": (hidden, hidden),
            f"{at}.attention.self.value": (hidden, hidden),
            f"{at}.attention.output.dense": (hidden, hidden),
            f"{at}.intermediate.dense": (wide, hidden),
            f"{at}.output.dense": (hidden, wide),
        }
        for name, (outputs, inputs) in linear.items():
            shapes[f"{name}.weight"] = (outputs, inputs)
            shapes[f"{name}.bias"] = (outputs,)
        for name in (f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"):
            shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)
    tensors = {
        name: (rng.standard_normal(shape) * 0.3 + name.endswith("Norm.weight")).astype(np.float32)
        for name, shape in shapes.items()
    }
    config = {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": wide,
        "vocab_size": vocabulary,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    content = {
        "model.safetensors": save(tensors),
        "config.json": config,
        "tokenizer.json": tiny_model.tokenizer_json(),
    }
    return write(folder, {**content, **files})


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_weights_of_the_bert_family(tmp_path: Path, pooling: str) -> None:
    folder = bert_folder(
        tmp_path / "bert", **{"1_Pooling/config.json": CLS if pooling == "cls" else MEAN}
    )
    embedder = load_embedder(folder, tmp_path / "cache", "cpu")
    reference = bert_reference.BertReference(folder, max_tokens=64, pooling=pooling)
    for text in ("hello", "turn on dark mode", "the fact is blue harbour " * 4):
        np.testing.assert_allclose(vector(embedder, text), reference.embed(text), atol=2e-5)


def test_weights_in_a_folder_of_their_own_module(tmp_path: Path) -> None:
    whole = bert_folder(tmp_path / "whole")
    split = write(
        tmp_path / "split",
        {"modules.json": [{"type": "a.Transformer", "path": "0_Transformer"}]},
    )
    bert_folder(split / "0_Transformer")
    first = vector(load_embedder(whole, tmp_path / "cache", "cpu"), "hello")
    second = vector(load_embedder(split, tmp_path / "cache", "cpu"), "hello")
    assert np.array_equal(first, second)


@pytest.mark.model
def test_the_installed_models_folder_by_path() -> None:
    by_default = load_embedder(None, None, "cpu")
    by_path = load_embedder(model_folder(None), None, "cpu")
    assert by_path.generation == by_default.generation


@pytest.mark.model
def test_an_installed_models_folder_does_not_vouch_for_tensors_in_other_files(
    tmp_path: Path,
) -> None:
    installed = model_folder(None)
    manifest = json.loads((installed / "manifest.json").read_bytes())
    model = onnx.load_model_from_string(tiny_model.graph())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "elsewhere"
    graph = model.SerializeToString()
    name = manifest["graphs"]["int8"]["file"]
    manifest["files"][name]["sha256"] = hashlib.sha256(graph).hexdigest()
    tokenizer = (installed / "tokenizer.json").read_bytes()
    write(tmp_path, {name: graph, "manifest.json": manifest, "tokenizer.json": tokenizer})
    with pytest.raises(ModelUnavailableError, match="other files"):
        read_model_folder(tmp_path)
