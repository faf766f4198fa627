"""The schema of a load's JSON says what is written, and what is written is in the schema."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from semanticrecall.load import result as results
from semanticrecall.load.result import LoadResult
from support import load_results

ROOT = Path(__file__).resolve().parents[2]
SCHEMA_FILE = ROOT / "docs/load-result.schema.json"
SCHEMA: dict[str, Any] = json.loads(SCHEMA_FILE.read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
# JSON types of a field by its Python type.
PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number"}


def document(result: LoadResult | None = None) -> dict[str, Any]:
    """As it is read from a file."""
    found = dataclasses.asdict(result or load_results.load_result())
    written: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return written


def errors(found: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(found)]


def classes() -> dict[str, type]:
    """The dataclasses of the result, by name."""
    return {
        name: found
        for name, found in vars(results).items()
        if isinstance(found, type) and dataclasses.is_dataclass(found)
    }


def described(name: str) -> dict[str, Any]:
    """What the schema says of a class."""
    found: dict[str, Any] = SCHEMA if name == "LoadResult" else SCHEMA["$defs"][name]
    return found


def expected(hint: Any) -> dict[str, Any]:
    """The schema's words for a type, without descriptions and limits."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{typing.cast(type, hint).__name__}"}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"type": "string"}
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if origin is types.UnionType:
        assert arguments[1] is types.NoneType
        return {"anyOf": [expected(arguments[0]), {"type": "null"}]}
    if origin is collections.abc.Mapping:
        value: Any = True if arguments[1] is Any else expected(arguments[1])
        return {"type": "object", "additionalProperties": value}
    if origin is collections.abc.Sequence:
        return {"type": "array", "items": expected(arguments[0])}
    assert origin is tuple, hint
    return {"type": "array", "prefixItems": [expected(one) for one in arguments]}


def without_limits(found: Any) -> Any:
    """A schema's types alone."""
    kept = {"$ref", "type", "anyOf", "additionalProperties", "items", "prefixItems"}
    if isinstance(found, list):
        return [without_limits(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {name: without_limits(value) for name, value in found.items() if name in kept}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    "result",
    [
        load_results.load_result(),
        load_results.load_result([load_results.stage(8, closed=True)]),
        load_results.load_result([load_results.stage(errors={"UNAVAILABLE": 3})]),
        load_results.load_result([], []),
    ],
    ids=["open", "closed", "errors", "nothing"],
)
def test_a_result_is_valid(result: LoadResult) -> None:
    assert errors(document(result)) == []


@pytest.mark.parametrize("name", sorted(classes()))
def test_schema_and_result_have_the_same_attributes(name: str) -> None:
    names = [field.name for field in dataclasses.fields(classes()[name])]
    assert list(described(name)["properties"]) == names
    assert described(name)["required"] == names
    assert described(name)["additionalProperties"] is True


@pytest.mark.parametrize("name", sorted(classes()))
def test_schema_and_result_have_the_same_types(name: str) -> None:
    hints = typing.get_type_hints(classes()[name])
    for attribute, found in described(name)["properties"].items():
        if attribute == "schema":
            assert found["const"] == results.SCHEMA
        else:
            assert without_limits(found) == expected(hints[attribute]), attribute


def test_the_schema_describes_nothing_else() -> None:
    assert set(SCHEMA["$defs"]) | {"LoadResult"} == set(classes())


def test_everything_is_described() -> None:
    for name in classes():
        assert len(described(name)["description"].split()) > 3
        for attribute, found in described(name)["properties"].items():
            assert len(found["description"].split()) > 1, f"{name}.{attribute}"


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set an attribute; REMOVE takes it out."""

    def apply(found: dict[str, Any]) -> None:
        inner: Any = found
        *outer, last = path.split(".")
        for part in outer:
            inner = inner[int(part)] if part.isdecimal() else inner[part]
        if value is REMOVE:
            del inner[last]
        else:
            inner[last] = value

    return apply


REMOVE = object()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "semanticrecall.load/2"),
        ("schema", REMOVE),
        ("stages", REMOVE),
        ("findings", REMOVE),
        ("stages.0.client", REMOVE),
        ("stages.0.operations.recall.latency_ms", REMOVE),
        ("stages.0.operations.recall.latency_ms.p99_99", REMOVE),
        ("stages.0.operations.recall.latency_ms.p99", "8.1"),
        ("stages.0.operations.recall.latency_ms.curve", [[50, 1.0, 2.0]]),
        ("stages.0.operations.recall.latency_ms.curve", [[100.5, 1.0]]),
        ("stages.0.operations.recall.shares", {"empty": 1.5}),
        ("stages.0.operations.recall.errors", {"UNAVAILABLE": 0}),
        ("stages.0.schedule", {}),
        ("stages.0.loop", "half-open"),
        ("stages.0.answers_digest", "none"),
        ("stages.0.timeline.0.p50_ms", [1.0]),
        ("stages.0.client.saturated", 1),
        ("target.token", "a token"),
        ("preparation.messages", -1),
        ("findings.0.text", None),
    ],
)
def test_a_document_that_is_none_fails(path: str, value: Any) -> None:
    found = document()
    assert errors(found) == []
    change(path, value)(found)
    assert errors(found) != []


def test_what_is_added_later_is_no_error() -> None:
    found = document()
    for path in ("new", "stages.0.new", "target.new", "stages.0.operations.recall.latency_ms.new"):
        change(path, {"any": "thing"})(found)
    change("findings.0.code", "A_CODE_OF_TOMORROW")(found)
    assert errors(found) == []


def test_a_closed_loop_has_null_for_its_schedule() -> None:
    found = document(load_results.load_result([load_results.stage(closed=True)]))
    assert found["stages"][0]["schedule"] is None
    assert errors(found) == []
