"""A model small enough to know by heart: every token has a row of numbers, a text is their mean.

The graph and the tokenizer are real (ONNX, WordPiece), the weights are drawn from a fixed seed.
`expected_vector` computes the same in plain numpy from words, without tokenizer or graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.manifest import sha256_hex
from semanticrecall_core.embedding.spec import ModelSpec

FloatRows = NDArray[np.float32]

DIMENSIONS = 16
WINDOW = 48
WORDS = (
    "turn on off dark mode hello world the fact is blue harbour meet at nine nanword zeroword "
    "query passage : cafe one two three four five six seven eight"
).split()
_SIGNS = "abcdefghijklmnopqrstuvwxyz0123456789+/=-_.,!?()[]'\"東京都今日会議ภษาไทยשלוםمرحبا"

Output = Literal["embedding", "sentence_embedding", "last_hidden_state"]


def vocabulary() -> dict[str, int]:
    """Token to id. Every sign is there as the start of a word and inside one."""
    signs = list(dict.fromkeys(_SIGNS))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *signs, *(f"##{s}" for s in signs)]
    tokens += [word for word in WORDS if word not in tokens]
    return {token: index for index, token in enumerate(tokens)}


def tokenizer(lower_case: bool = True) -> Tokenizer:
    """A WordPiece tokenizer of BERT's kind, with the padding that exported files often carry."""
    made = Tokenizer(models.WordPiece(vocabulary(), unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = [(t, vocabulary()[t]) for t in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=special
    )
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made.enable_padding(length=24)
    made.enable_truncation(24)
    return made


def tokenizer_json(lower_case: bool = True) -> bytes:
    """The tokenizer as a file."""
    return tokenizer(lower_case).to_str().encode()


def table() -> FloatRows:
    """Row of each token; "nanword" has one of NaN."""
    rows = np.random.Generator(np.random.PCG64(7)).standard_normal((len(vocabulary()), DIMENSIONS))
    rows[vocabulary()["nanword"]] = np.nan
    return rows.astype(np.float32)


def graph(
    rows: FloatRows | None = None,
    *,
    output: Output = "embedding",
    inputs: Sequence[str] = ("input_ids",),
) -> bytes:
    """ONNX bytes: rows of the tokens, and their mean unless token vectors are asked for."""
    constants: dict[str, NDArray[Any]] = {
        "table": table() if rows is None else rows,
        "last_axis": np.array([2], dtype=np.int64),
    }
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"], axis=0)]
    shape: list[str | int] = ["batch", "tokens", DIMENSIONS]
    last = "rows"
    for name in inputs:
        if name == "input_ids":
            continue
        # Adds the input's distance from what it must be: a wrong one is seen in the vector.
        expected = 1.0 if name == "attention_mask" else 0.0
        constants[f"{name}.expected"] = np.array(expected, dtype=np.float32)
        nodes += [
            helper.make_node("Cast", [name], [f"{name}.float"], to=TensorProto.FLOAT),
            helper.make_node("Sub", [f"{name}.float", f"{name}.expected"], [f"{name}.zero"]),
            helper.make_node("Unsqueeze", [f"{name}.zero", "last_axis"], [f"{name}.column"]),
            helper.make_node("Add", [last, f"{name}.column"], [f"{name}.rows"]),
        ]
        last = f"{name}.rows"
    if output == "last_hidden_state":
        nodes.append(helper.make_node("Identity", [last], [output]))
    else:
        nodes.append(helper.make_node("ReduceMean", [last], [output], axes=[1], keepdims=0))
        shape = ["batch", DIMENSIONS]
    used = {name for node in nodes for name in node.input}
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "tiny",
            [
                helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "tokens"])
                for n in inputs
            ],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(v, n) for n, v in constants.items() if n in used],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def model(
    *,
    graph_bytes: bytes | None = None,
    max_tokens: int = WINDOW,
    query_prompt: str = "",
    passage_prompt: str = "",
) -> EncoderModel:
    """The tiny model in memory."""
    data = graph() if graph_bytes is None else graph_bytes
    words = tokenizer_json()
    spec = ModelSpec(
        name="tiny",
        revision=sha256_hex(data)[:12],
        dimensions=DIMENSIONS,
        max_tokens=max_tokens,
        query_prompt=query_prompt,
        passage_prompt=passage_prompt,
        weights_sha256=sha256_hex(data),
        tokenizer_sha256=sha256_hex(words),
        quantisation="fp32",
    )
    return EncoderModel(spec=spec, graph=data, tokenizer_json=words)


def expected_vector(words: str, rows: FloatRows | None = None, *, cls: bool = False) -> FloatRows:
    """The unit vector of a text of WORDS, special tokens included, in plain numpy."""
    ids = [vocabulary()[word] for word in ("[CLS]", *words.split(), "[SEP]")]
    picked = (table() if rows is None else rows)[ids].astype(np.float64)
    mean = picked[0] if cls else picked.mean(axis=0)
    unit: FloatRows = (mean / np.linalg.norm(mean)).astype(np.float32)
    return unit
