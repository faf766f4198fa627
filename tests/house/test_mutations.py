"""The seeded faults can still be seeded: their places and their tests are where they were."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

from support.mutation import Mutation
from support.mutations import DOCUMENT, MUTATIONS, document, mutated

ROOT = Path(__file__).resolve().parents[2]
MUTATIONS_MIN = 30


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTATIONS) >= MUTATIONS_MIN
    assert [name for name, count in Counter(m.name for m in MUTATIONS).items() if count > 1] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_still_has_its_place_and_its_test(mutation: Mutation) -> None:
    original = (ROOT / mutation.file).read_text("utf-8")
    broken = mutated(original, mutation)  # raises where the place is not there exactly once
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(original))
    assert mutation.test_name in functions_of(ROOT / mutation.test_file)


@functools.cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the functions of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_the_list_for_people_is_that_of_the_program() -> None:
    assert DOCUMENT.read_text("utf-8") == document(MUTATIONS)
