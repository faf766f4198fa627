"""Model folders of a chosen dimension: a text is the mean of its tokens' rows, of unit length.

Graph and tokenizer are real (ONNX, WordLevel), the rows are drawn from a seed; `vector_of` computes
the same in numpy, without either. `work` makes each run as slow as two products with zero matrices
of 3072 columns, so many times over, which change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

FloatRows = NDArray[np.float32]

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_WIDE = 3072


@dataclass(frozen=True)
class WordModel:
    """A model folder.

    Attributes:
        words: its vocabulary; all others are one unknown word.
        seed: of its rows.
        work: see the module.
    """

    words: tuple[str, ...]
    dimensions: int
    seed: int
    work: int = 0

    def write(self, folder: Path) -> Path:
        """Write model.onnx and tokenizer.json; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(self._graph())
        self._tokenizer().save(str(folder / "tokenizer.json"))
        return folder

    def vector_of(self, text: str) -> FloatRows:
        """The unit vector of a text that fits the window, in plain numpy."""
        return _vector(self, text)

    def _ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate((*_SPECIAL, *self.words))}

    def _rows(self) -> FloatRows:
        return _rows(len(self._ids()), self.dimensions, self.seed)

    def _tokenizer(self) -> Tokenizer:
        made = Tokenizer(models.WordLevel(self._ids(), unk_token="[UNK]"))
        made.normalizer = normalizers.Lowercase()
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return made

    def _graph(self) -> bytes:
        constants: dict[str, NDArray[Any]] = {"table": self._rows()}
        nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"], axis=0)]
        last = "rows"
        if self.work:
            constants["wide"] = np.zeros((self.dimensions, _WIDE), np.float32)
            constants["narrow"] = np.zeros((_WIDE, self.dimensions), np.float32)
        for turn in range(self.work):
            nodes += [
                helper.make_node("MatMul", [last, "wide"], [f"wide{turn}"]),
                helper.make_node("MatMul", [f"wide{turn}", "narrow"], [f"narrow{turn}"]),
                helper.make_node("Add", [last, f"narrow{turn}"], [f"rows{turn}"]),
            ]
            last = f"rows{turn}"
        nodes.append(helper.make_node("ReduceMean", [last], ["embedding"], axes=[1], keepdims=0))
        model = helper.make_model(
            helper.make_graph(
                nodes,
                "words",
                [
                    helper.make_tensor_value_info(
                        "input_ids", TensorProto.INT64, ["batch", "tokens"]
                    )
                ],
                [
                    helper.make_tensor_value_info(
                        "embedding", TensorProto.FLOAT, ["batch", self.dimensions]
                    )
                ],
                [numpy_helper.from_array(value, name) for name, value in constants.items()],
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


@lru_cache(maxsize=16)
def _rows(tokens: int, dimensions: int, seed: int) -> FloatRows:
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.standard_normal((tokens, dimensions)).astype(np.float32)


@lru_cache(maxsize=10_000)
def _vector(model: WordModel, text: str) -> FloatRows:
    ids = model._ids()
    tokens = ["[CLS]", *text.lower().split(), "[SEP]"]
    picked = model._rows()[[ids.get(token, 1) for token in tokens]].astype(np.float64)
    mean = picked.mean(axis=0)
    unit: FloatRows = (mean / np.linalg.norm(mean)).astype(np.float32)
    return unit
