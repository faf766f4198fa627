"""One graph on one device: pooling, checks of what it gives, refusal of what cannot be run."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from semanticrecall_core.embedding.encoder_model import refuse_external_data
from semanticrecall_core.embedding.runtime_environment import onnxruntime
from semanticrecall_core.embedding.session import EncoderSession, choose_device
from semanticrecall_core.types.errors import EmbeddingFailedError, ModelUnavailableError
from support import tiny_model

ALL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def ids(words: str) -> NDArray[np.int64]:
    tokens = ["[CLS]", *words.split(), "[SEP]"]
    return np.array([tiny_model.vocabulary()[token] for token in tokens], dtype=np.int64)


def session(
    graph: bytes, pooling: Literal["mean", "cls"] = "mean", dimensions: int = tiny_model.DIMENSIONS
) -> EncoderSession:
    return EncoderSession(graph, device="cpu", pooling=pooling, dimensions=dimensions)


@pytest.mark.parametrize("inputs", [("input_ids",), ALL_INPUTS[:2], ALL_INPUTS])
@pytest.mark.parametrize("output", ["embedding", "sentence_embedding", "last_hidden_state"])
def test_mean_pooling(inputs: tuple[str, ...], output: tiny_model.Output) -> None:
    vector = session(tiny_model.graph(output=output, inputs=inputs)).run(ids("dark mode on"))
    assert vector.dtype == np.float32
    assert vector.shape == (tiny_model.DIMENSIONS,)
    np.testing.assert_allclose(vector, tiny_model.expected_vector("dark mode on"), atol=1e-6)


@pytest.mark.parametrize("inputs", [ALL_INPUTS[:2], ALL_INPUTS])
@pytest.mark.parametrize("words", [509, 510, 511, 2_000])
def test_a_text_of_any_length_has_its_mask(inputs: tuple[str, ...], words: int) -> None:
    text = " ".join(["dark", "mode", "on"][word % 3] for word in range(words))
    vector = session(tiny_model.graph(inputs=inputs)).run(ids(text))
    np.testing.assert_allclose(vector, tiny_model.expected_vector(text), atol=1e-5)


def test_first_token_pooling() -> None:
    vector = session(tiny_model.graph(output="last_hidden_state"), "cls").run(ids("dark mode"))
    np.testing.assert_allclose(vector, tiny_model.expected_vector("", cls=True), atol=1e-6)


def test_a_vector_is_of_unit_length_and_read_only() -> None:
    vector = session(tiny_model.graph()).run(ids("hello"))
    assert abs(float(np.linalg.norm(vector.astype(np.float64))) - 1) < 1e-6
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(EmbeddingFailedError, match="not finite"):
        session(tiny_model.graph()).run(ids("hello nanword"))


def test_an_infinite_value_is_refused() -> None:
    rows = tiny_model.table()
    rows[:, 3] = np.inf
    with pytest.raises(EmbeddingFailedError, match="not finite"):
        session(tiny_model.graph(rows)).run(ids("hello"))


def test_a_vector_of_zeros_is_refused() -> None:
    with pytest.raises(EmbeddingFailedError, match="zeros"):
        session(tiny_model.graph(np.zeros_like(tiny_model.table()))).run(ids("hello"))


def test_other_dimensions_are_refused() -> None:
    with pytest.raises(EmbeddingFailedError, match="shape"):
        session(tiny_model.graph(), dimensions=tiny_model.DIMENSIONS + 1).run(ids("hello"))


def test_a_token_outside_the_table_is_an_error_without_its_text() -> None:
    with pytest.raises(EmbeddingFailedError) as raised:
        session(tiny_model.graph()).run(np.array([10_000], dtype=np.int64))
    assert "10000" not in raised.value.message


def test_unknown_inputs_and_outputs_are_refused() -> None:
    with pytest.raises(ModelUnavailableError, match="inputs"):
        session(renamed(tiny_model.graph(), "input_ids", "pixels"))
    with pytest.raises(ModelUnavailableError, match="outputs"):
        session(renamed(tiny_model.graph(), "embedding", "logits"))


@pytest.mark.parametrize("damaged", [b"onnx", b"\xff" * 64, tiny_model.graph()[:-200]])
def test_an_unreadable_graph_is_refused(damaged: bytes) -> None:
    with pytest.raises(ModelUnavailableError):
        refuse_external_data(damaged)


@pytest.mark.parametrize("damaged", [b"", b"onnx", tiny_model.graph()[:-200]])
def test_a_graph_that_cannot_be_opened_is_refused(damaged: bytes) -> None:
    with pytest.raises(ModelUnavailableError):
        session(damaged)


def test_cuda_without_its_provider_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "CPUExecutionProvider")
    with pytest.raises(ModelUnavailableError, match="cuda") as raised:
        choose_device("cuda", "fp32")
    assert raised.value.reason == "DEVICE_UNAVAILABLE"
    assert choose_device("auto", "fp32") == "cpu"
    assert choose_device("cpu", "fp32") == "cpu"


def test_auto_takes_cuda_for_a_graph_that_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "CUDAExecutionProvider", "CPUExecutionProvider")
    assert choose_device("auto", "fp32") == "cuda"
    assert choose_device("auto", "int8") == "cpu"
    assert choose_device("cpu", "fp32") == "cpu"
    with pytest.raises(ModelUnavailableError, match="int8"):
        choose_device("cuda", "int8")


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(ModelUnavailableError, match="auto, cpu, cuda"):
        choose_device("tpu", "fp32")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_that_opened_elsewhere_is_refused() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the provider")
    with pytest.raises(ModelUnavailableError) as raised:
        EncoderSession(tiny_model.graph(), device="cuda", pooling="mean")
    assert raised.value.reason == "DEVICE_UNAVAILABLE"


def test_tensors_in_other_files_are_refused() -> None:
    model = onnx.load_model_from_string(tiny_model.graph())
    refuse_external_data(model.SerializeToString())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    with pytest.raises(ModelUnavailableError, match="other files"):
        refuse_external_data(model.SerializeToString())


def test_tensors_in_other_files_are_refused_inside_a_branch() -> None:
    value = numpy_helper.from_array(np.ones(2, dtype=np.float32), "value")
    value.data_location = TensorProto.EXTERNAL
    constant = helper.make_node("Constant", [], ["branch"], value=value)
    output = helper.make_tensor_value_info("branch", TensorProto.FLOAT, [2])
    branch = helper.make_graph([constant], "branch", [], [output])
    choice = helper.make_node("If", ["yes"], ["out"], then_branch=branch, else_branch=branch)
    model = helper.make_model(helper.make_graph([choice], "outer", [], []))
    with pytest.raises(ModelUnavailableError, match="other files"):
        refuse_external_data(model.SerializeToString())


def test_idle_sessions_hold_no_threads() -> None:
    before = threads_of_this_process()
    opened = [session(tiny_model.graph()) for _ in range(4)]
    for one in opened:
        one.run(ids("hello world"))
    # Not their number: a thread of another test may end meanwhile.
    assert threads_of_this_process() <= before


def offer(monkeypatch: pytest.MonkeyPatch, *providers: str) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(providers))


def renamed(graph: bytes, old: str, new: str) -> bytes:
    model = onnx.load_model_from_string(graph)
    for value in (*model.graph.input, *model.graph.output):
        value.name = new if value.name == old else value.name
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    return model.SerializeToString()


def threads_of_this_process() -> set[str]:
    """Their ids, those of native code too."""
    return set(os.listdir("/proc/self/task"))
