"""A model's folder in the cache, and the manifest that vouches for every file in it.

    <cache>/<name>-<revision>/
        manifest.json        written last; a folder without it is not a model
        model.safetensors    official files (default model only)
        tokenizer.json
        config.json
        int8.onnx            built here; fp32.onnx where asked for

manifest.json, UTF-8, one object:
    format       1
    name, revision
    files        file name -> {"sha256": lower-case hex, "bytes": length}
    graphs       "int8" | "fp32" -> {"file", "builder": GRAPH_BUILDER_VERSION,
                 "cpu": fingerprint of the processor it was tried on,
                 "texts": [...], "reference": [...], "recorded": [...]}
                 the last two hold a vector per text, base64 of little-endian float32: from plain
                 fp32 arithmetic, and from this graph on that processor.

Invariants: no file is used whose bytes do not have the digest given here; every file, this one
too, is replaced whole (temporary file beside it, fsync, rename, fsync of the folder).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..types.errors import ModelUnavailableError
from .runtime_environment import onnxruntime
from .spec import GRAPH_BUILDER_VERSION, QUANTISATIONS, ModelSpec, Quantisation
from .weights import Floats

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
INSTALL_COMMAND = "semanticrecall model install"
MAX_MANIFEST_BYTES = 4 * 2**20
MAX_FILE_BYTES = 4 * 2**30

REFERENCE_MIN_COSINE = 0.98
"""A built graph against plain fp32 arithmetic, on any processor."""
RECORDED_MIN_COSINE = 0.9999
"""A built graph against itself, on the processor it was tried on."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One text whose vector is known.

    Attributes:
        vector: [dimensions], unit length.
        min_cosine: a loaded graph must come at least this near.
        origin: "reference" is fp32 arithmetic; "recorded" is the same graph on the same kind of
            processor, and says nothing about another device.
    """

    text: str
    vector: Floats
    min_cosine: float
    origin: Literal["reference", "recorded"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that can be loaded.

    Attributes:
        spec: the model, with the quantisation of this graph.
        folder: where graph and manifest lie.
        onnx_path, onnx_sha256: the graph.
        tokenizer_path, tokenizer_sha256: tokenizer.json.
        masked: the graph takes `attention_mask` and rows of different lengths. An int8 graph
            does not, and must be given one text a run.
        probes: texts to try at load.
    """

    spec: ModelSpec
    folder: Path
    onnx_path: Path
    onnx_sha256: str
    tokenizer_path: Path
    tokenizer_sha256: str
    masked: bool
    probes: tuple[Probe, ...]

    def read_graph(self) -> bytes:
        """The graph's bytes, verified.

        Raises:
            ModelUnavailableError: missing or damaged.
        """
        return read_verified(self.onnx_path, self.onnx_sha256)

    def read_tokenizer(self) -> bytes:
        """tokenizer.json's bytes, verified.

        Raises:
            ModelUnavailableError: missing or damaged.
        """
        return read_verified(self.tokenizer_path, self.tokenizer_sha256)


def damaged(path: Path, what: str) -> ModelUnavailableError:
    """The error for a file that must not be used."""
    return ModelUnavailableError(
        f"{path} {what}; run `{INSTALL_COMMAND}` to mend it", reason="MODEL_DAMAGED"
    )


def sha256_hex(data: bytes) -> str:
    """Lower-case hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def read_verified(path: Path, sha256: str) -> bytes:
    """Read a file once, and return its bytes only if they have this digest.

    Raises:
        ModelUnavailableError: missing, unreadable, too large, or of another digest.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise damaged(path, f"is larger than {MAX_FILE_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from error
    if sha256_hex(data) != sha256:
        raise damaged(path, "does not have the digest it must have")
    return data


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file whole: after a crash it is the old one or the new one.

    Raises:
        ModelUnavailableError: the folder cannot be written.
    """
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            if sha256_hex(Path(temporary).read_bytes()) != sha256_hex(data):
                raise damaged(path, "did not read back as written")
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ModelUnavailableError(
            f"{path} cannot be written ({error.strerror}); free space or name another cache folder",
            reason="MODEL_CACHE_UNWRITABLE",
        ) from error


def cpu_fingerprint() -> str:
    """Processors with the same value give the same int8 vectors: 16 hex digits."""
    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    described = "\n".join((platform.machine(), flags, onnxruntime.__version__))
    return sha256_hex(described.encode())[:16]


def pack_vectors(vectors: Floats) -> list[str]:
    """Vectors [n, dimensions] as the manifest holds them."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]


def unpack_vectors(packed: list[str]) -> Floats:
    """Inverse of `pack_vectors`."""
    rows = [np.frombuffer(base64.b64decode(row, validate=True), dtype="<f4") for row in packed]
    return np.stack(rows).astype(np.float32)


@dataclass(frozen=True, slots=True)
class GraphEntry:
    """The manifest's account of one graph; see the module's text."""

    file: str
    builder: int
    cpu: str
    texts: tuple[str, ...]
    reference: Floats
    recorded: Floats

    def probes(self) -> tuple[Probe, ...]:
        """Texts to try: always the reference, the recorded vectors only on the same processor."""
        known = [
            Probe(text, vector, REFERENCE_MIN_COSINE, "reference")
            for text, vector in zip(self.texts, self.reference, strict=True)
        ]
        if self.cpu == cpu_fingerprint():
            known += [
                Probe(text, vector, RECORDED_MIN_COSINE, "recorded")
                for text, vector in zip(self.texts, self.recorded, strict=True)
            ]
        return tuple(known)

    def as_json(self) -> dict[str, Any]:
        """The object the manifest holds."""
        return {
            "file": self.file,
            "builder": self.builder,
            "cpu": self.cpu,
            "texts": list(self.texts),
            "reference": pack_vectors(self.reference),
            "recorded": pack_vectors(self.recorded),
        }

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> GraphEntry:
        """Read the object back; KeyError, TypeError or ValueError if it is not one."""
        return cls(
            file=str(entry["file"]),
            builder=int(entry["builder"]),
            cpu=str(entry["cpu"]),
            texts=tuple(str(text) for text in entry["texts"]),
            reference=unpack_vectors(entry["reference"]),
            recorded=unpack_vectors(entry["recorded"]),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of manifest.json.

    Attributes:
        digests: file name to SHA-256.
        sizes: file name to length in bytes.
    """

    name: str
    revision: str
    digests: dict[str, str]
    sizes: dict[str, int]
    graphs: dict[Quantisation, GraphEntry]

    def usable_graph(self, quantisation: Quantisation) -> GraphEntry | None:
        """The graph of that arithmetic, if the current builder wrote it."""
        entry = self.graphs.get(quantisation)
        if entry is None or entry.builder != GRAPH_BUILDER_VERSION:
            return None
        return entry

    def write(self, folder: Path) -> None:
        """Put it in place; the last step of an installation."""
        document = {
            "format": MANIFEST_FORMAT,
            "name": self.name,
            "revision": self.revision,
            "files": {
                name: {"sha256": digest, "bytes": self.sizes[name]}
                for name, digest in sorted(self.digests.items())
            },
            "graphs": {name: entry.as_json() for name, entry in sorted(self.graphs.items())},
        }
        write_atomic(folder / MANIFEST, json.dumps(document, indent=1).encode())


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None where there is none.

    Raises:
        ModelUnavailableError: not readable, or of a format this version does not know.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise damaged(path, f"is larger than {MAX_MANIFEST_BYTES} bytes")
        document = json.loads(path.read_bytes())
        if document["format"] != MANIFEST_FORMAT:
            raise damaged(path, "has a format that this version does not read")
        files = document["files"]
        graphs: dict[Quantisation, GraphEntry] = {
            name: GraphEntry.of_json(document["graphs"][name])
            for name in QUANTISATIONS
            if name in document["graphs"]
        }
        manifest = Manifest(
            name=str(document["name"]),
            revision=str(document["revision"]),
            digests={str(name): str(entry["sha256"]) for name, entry in files.items()},
            sizes={str(name): int(entry["bytes"]) for name, entry in files.items()},
            graphs=graphs,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, "is not a readable manifest") from error
    names = [*manifest.digests, *(entry.file for entry in graphs.values())]
    if any(not name or Path(name).name != name for name in names):
        raise damaged(path, "names a file outside its folder")
    return manifest
