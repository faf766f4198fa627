"""Models by path: folders as the Hugging Face hub and sentence-transformers lay them out.

Read from a folder, all but the first two optional:

    tokenizer.json                      file of the `tokenizers` library
    model.onnx | onnx/model.onnx        encoder, plain ONNX in one file; used where there is one
    model.safetensors + config.json     else: the BERT family; we write the graph
    config.json                         model_type, max_position_embeddings
    modules.json                        the pipeline: Transformer, Pooling, Normalize
    1_Pooling/config.json               mean or CLS; mean where nothing is said
    sentence_bert_config.json           max_seq_length
    config_sentence_transformers.json   prompts: query, and document or passage or corpus

A pipeline that we would run otherwise than its authors do is refused. The revision is a digest of
what was read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..types.errors import EmbeddingFailedError, ModelUnavailableError
from .encoder_model import EncoderModel, refuse_external_data
from .manifest import CONFIG, MANIFEST, MAX_FILE_BYTES, TOKENIZER, WEIGHTS, sha256_hex
from .provision import find_model, prepare_folder
from .session import EncoderSession
from .spec import DEFAULT_MODEL, ModelSpec, Pooling
from .tokenizer import TextTokenizer

WINDOW_TOKENS_MAX = 512
"""A longer window than this is not used: longer passages are chunked, and nothing is lost."""
JSON_BYTES_MAX = 4 * 2**20
PROMPT_CHARS_MAX = 512
ONNX_PLACES = ("model.onnx", "onnx/model.onnx")

_PASSAGE_NAMES = ("document", "passage", "corpus")
_POOLED_MODULES = frozenset(("Transformer", "Pooling", "Normalize"))
_POSITIONS_FROM_2 = frozenset(("roberta", "xlm-roberta", "camembert", "mpnet"))
"""Model types whose first two positions are kept for padding."""

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the configuration files say.

    Attributes:
        files: folder that holds the encoder's files.
        max_tokens: window, special tokens included.
        digest: of the configuration files read.
    """

    files: Path
    pooling: Pooling
    max_tokens: int
    query_prompt: str
    passage_prompt: str
    lower_case: bool
    digest: str


def read_model_folder(folder: Path, cache_dir: Path | None = None) -> EncoderModel:
    """Read and verify a model.

    Args:
        folder: as above, or the folder of an installed model.
        cache_dir: where a graph written from safetensors is kept; None is the user's cache.

    Raises ModelUnavailableError: something is missing, unreadable, or unlike what we can run.
    """
    if not folder.is_dir():
        raise ModelUnavailableError(f"{folder} is not a folder")
    if (folder / MANIFEST).is_file():
        installed = EncoderModel.of_files(find_model(folder=folder))
        refuse_external_data(installed.graph)  # the digest is the folder's own word
        return installed
    pipeline = read_pipeline(folder)
    onnx_path = next((p for n in ONNX_PLACES if (p := pipeline.files / n).is_file()), None)
    model = (
        _from_onnx(folder, pipeline, onnx_path)
        if onnx_path is not None
        else _from_safetensors(folder, pipeline, cache_dir)
    )
    if pipeline.lower_case and not _lowers_case(model):
        raise _refuse("sentence_bert_config.json wants lower case and tokenizer.json does not")
    return model


def read_pipeline(folder: Path) -> Pipeline:
    """Read the configuration files. Raises ModelUnavailableError for what we cannot run."""
    reader = _JsonReader(folder)
    files, pooling_folder = _modules(reader)
    pooling = _pooling(reader.fields(f"{pooling_folder}/config.json"))
    config = reader.fields(str(files / CONFIG))
    window = reader.fields(str(files / "sentence_bert_config.json"))
    query_prompt, passage_prompt = _prompts(reader.fields("config_sentence_transformers.json"))
    return Pipeline(
        files=folder / files,
        pooling=pooling,
        max_tokens=_window(config, window),
        query_prompt=query_prompt,
        passage_prompt=passage_prompt,
        lower_case=window.get("do_lower_case") is True,
        digest=reader.digest(),
    )


class _JsonReader:
    """Reads small JSON files inside one folder and remembers their digests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[str, str] = {}

    def value(self, name: str) -> Any:
        """The file's content; None where there is no such file."""
        path = self._folder / name
        if not path.is_file():
            return None
        data = _read(path, JSON_BYTES_MAX)
        self._digests[name] = sha256_hex(data)
        try:
            return json.loads(data)
        except ValueError as error:
            raise _refuse(f"{name} is not JSON") from error

    def fields(self, name: str) -> Fields:
        """The file's object; empty where there is no such file."""
        value = self.value(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _refuse(f"{name} is not a JSON object")
        return cast("Fields", value)

    def digest(self) -> str:
        return _digest_of(self._digests)


def _from_onnx(folder: Path, pipeline: Pipeline, onnx_path: Path) -> EncoderModel:
    graph = _read(onnx_path, MAX_FILE_BYTES)
    refuse_external_data(graph)
    tokenizer_json = _read(pipeline.files / TOKENIZER, MAX_FILE_BYTES)
    digests = {
        "graph": sha256_hex(graph),
        TOKENIZER: sha256_hex(tokenizer_json),
        "configuration": pipeline.digest,
    }
    session = EncoderSession(graph, device="cpu", pooling=pipeline.pooling)
    ids = TextTokenizer(tokenizer_json, pipeline.max_tokens).encode("", "a").ids
    try:
        dimensions = session.run(ids).shape[0]
    except EmbeddingFailedError as error:
        raise _refuse(f"the ONNX graph fails on one letter: {error.message}") from error
    spec = replace(
        _spec(folder, pipeline),
        revision=_digest_of(digests)[:12],
        dimensions=dimensions,
        weights_sha256=digests["graph"],
        tokenizer_sha256=digests[TOKENIZER],
    )
    return EncoderModel(spec=spec, graph=graph, tokenizer_json=tokenizer_json)


def _from_safetensors(folder: Path, pipeline: Pipeline, cache_dir: Path | None) -> EncoderModel:
    weights = pipeline.files / WEIGHTS
    if not weights.is_file():
        raise _refuse(f"it has none of {', '.join((*ONNX_PLACES, WEIGHTS))}")
    spec = _spec(folder, pipeline)
    if sha256_hex(_read(weights, MAX_FILE_BYTES)) == DEFAULT_MODEL.weights_sha256:
        spec = replace(spec, name=DEFAULT_MODEL.name, quantisation="int8")
    return EncoderModel.of_files(prepare_folder(pipeline.files, spec, cache_dir))


def _spec(folder: Path, pipeline: Pipeline) -> ModelSpec:
    return ModelSpec(
        name=folder.resolve().name,
        revision="",
        dimensions=0,
        max_tokens=pipeline.max_tokens,
        pooling=pipeline.pooling,
        query_prompt=pipeline.query_prompt,
        passage_prompt=pipeline.passage_prompt,
        quantisation="fp32",
    )


def _modules(reader: _JsonReader) -> tuple[Path, Path]:
    """Folders of the encoder and of the pooling, inside the model's folder."""
    modules = reader.value("modules.json")
    if modules is None:
        return Path(), Path("1_Pooling")
    if not isinstance(modules, list):
        raise _refuse("modules.json is not a list")
    places: dict[str, Path] = {}
    for module in modules:
        fields = cast("Fields", module) if isinstance(module, dict) else {}
        kind = str(fields.get("type", "")).rpartition(".")[2]
        if kind not in _POOLED_MODULES:
            raise _refuse("modules.json names a module other than Transformer, Pooling, Normalize")
        place = Path(str(fields.get("path", "")))
        if place.is_absolute() or ".." in place.parts:
            raise _refuse("modules.json names a path outside the folder")
        places[kind] = place
    return places.get("Transformer", Path()), places.get("Pooling", Path("1_Pooling"))


def _pooling(fields: Fields) -> Pooling:
    if not fields:
        return "mean"
    if fields.get("include_prompt", True) is not True:
        raise _refuse("the pooling leaves prompts out (include_prompt)")
    if isinstance(fields.get("pooling_mode"), str):
        chosen = {str(fields["pooling_mode"])}
    else:
        prefix = "pooling_mode_"
        chosen = {k[len(prefix) :] for k, v in fields.items() if k.startswith(prefix) and v is True}
    if chosen in ({"mean_tokens"}, {"mean"}):
        return "mean"
    if chosen in ({"cls_token"}, {"cls"}):
        return "cls"
    raise _refuse("the pooling is neither the mean nor the first token alone")


def _window(config: Fields, sentence: Fields) -> int:
    limits = [WINDOW_TOKENS_MAX]
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int):
        limits.append(positions - 2 * (config.get("model_type") in _POSITIONS_FROM_2))
    stated = sentence.get("max_seq_length")
    if isinstance(stated, int):
        limits.append(stated)
    return min(limits)


def _prompts(fields: Fields) -> tuple[str, str]:
    """Prompts of queries and of passages."""
    prompts = fields.get("prompts")
    known = cast("Fields", prompts) if isinstance(prompts, dict) else {}
    default = known.get(str(fields.get("default_prompt_name")), "")
    query = known.get("query", default)
    passage = next((known[name] for name in _PASSAGE_NAMES if name in known), default)
    for prompt in (query, passage):
        if not isinstance(prompt, str) or len(prompt) > PROMPT_CHARS_MAX:
            raise _refuse(f"a prompt is not text of at most {PROMPT_CHARS_MAX} characters")
    return query, passage


def _lowers_case(model: EncoderModel) -> bool:
    tokenizer = TextTokenizer(model.tokenizer_json, model.spec.max_tokens)
    upper, lower = (tokenizer.encode("", text).ids for text in ("ABC", "abc"))
    return np.array_equal(upper, lower)


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        if path.stat().st_size > bytes_max:
            raise _refuse(f"{path.name} is larger than {bytes_max} bytes")
        return path.read_bytes()
    except OSError as error:
        raise _refuse(f"{path.name} cannot be read ({error.strerror})") from error


def _digest_of(digests: Mapping[str, str]) -> str:
    return sha256_hex(json.dumps(digests, sort_keys=True).encode())


def _refuse(what: str) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"the model folder cannot be used: {what}", reason="MODEL_UNSUPPORTED"
    )
