"""What is imported is declared, what is declared is imported, and each says what it is for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENT = "clients/python/semanticrecall"
LOAD = f"{CLIENT}/load"
OWN = {"benchmarks", "semanticrecall", "semanticrecall_core", "semanticrecall_server"}
# Two distributions share the `google` namespace.
GOOGLE = {"google.protobuf": "protobuf", "google.rpc": "googleapis-common-protos"}
# Needed without an import: zones are read from it as data by `zoneinfo`.
DATA_ONLY = {"tzdata"}


def requirement_name(requirement: str) -> str:
    """`grpcio>=1.66` is a requirement of `grpcio`."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return found.group(0)


def project() -> dict[str, Any]:
    """The project table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def declared(*extras: str) -> set[str]:
    """Distributions of the base and of these extras, and of the extras they name."""
    name: str = project()["name"]
    groups: dict[str, list[str]] = project()["optional-dependencies"]
    requirements: list[str] = [*project()["dependencies"]]
    waiting, seen = list(extras), set[str]()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        requirements += groups[extra]
        for requirement in groups[extra]:
            if named := re.fullmatch(rf"{re.escape(name)}\[([\w,-]+)\]", requirement):
                waiting += named.group(1).split(",")
    return {requirement_name(requirement) for requirement in requirements} - {name}


def late_import(node: ast.Call) -> str | None:
    """The module that `importlib.import_module("module")` imports."""
    named = isinstance(node.func, ast.Attribute | ast.Name) and (
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    )
    if named == "import_module" and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return None


def imported_modules(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports by absolute name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and (name := late_import(node)):
            names.add(name)
    return names


INSTALLED = {"node_modules", "build"}
"""Folders in which others' files are, where they are there at all."""


def distributions_used(*folders: str, without: str | None = None) -> set[str]:
    """Distributions, other than our own, that the files below the folders import."""
    known = packages_distributions()
    used: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            if without is not None and path.is_relative_to(ROOT / without):
                continue
            if INSTALLED.intersection(path.relative_to(ROOT / folder).parts):
                continue
            for name in imported_modules(path):
                top = name.split(".")[0]
                if top in OWN or top in sys.stdlib_module_names:
                    continue
                if top == "google":
                    used.update(GOOGLE[key] for key in GOOGLE if f"{name}.".startswith(f"{key}."))
                    continue
                used.update(known.get(top, [top]))
    return {name.lower().replace("_", "-") for name in used}


def test_the_client_imports_what_its_base_and_its_cli_declare() -> None:
    assert distributions_used(CLIENT, without=LOAD) - declared("cli") == set()


def test_the_load_tool_imports_what_its_extra_declares() -> None:
    used = distributions_used(LOAD)
    assert used - declared("load") == set()
    assert declared("load") - declared("cli") - used == set()


def test_all_packages_import_what_is_declared_and_nothing_else() -> None:
    used = distributions_used("core", "server", CLIENT, without=LOAD)
    wanted = declared("cli", "server")
    assert used - wanted == set()
    assert wanted - used == DATA_ONLY


@pytest.mark.parametrize(
    ("distribution", "homes"),
    [
        ("faiss-cpu", {"vectors"}),
        ("apsw-sqlite3mc", {"messages", "embedding", "encryption", "collections"}),
        ("google-re2", {"collections"}),
        ("cryptography", {"encryption"}),
        ("onnxruntime", {"embedding"}),
    ],
)
def test_an_engine_of_others_is_known_to_its_parts(distribution: str, homes: set[str]) -> None:
    parts = [path for path in (ROOT / "core/semanticrecall_core").iterdir() if path.is_dir()]
    others = [f"{path.relative_to(ROOT)}" for path in parts if path.name not in homes]
    for home in homes:
        assert distribution in distributions_used(f"core/semanticrecall_core/{home}")
    assert distribution not in distributions_used("server", CLIENT, *others)


def test_benchmarks_import_what_is_declared() -> None:
    used = distributions_used("benchmarks")
    assert used - declared("bench", "compare") == set()
    assert declared("compare") - declared() - used == set()


def test_nothing_that_is_installed_for_users_imports_what_it_is_compared_with() -> None:
    assert distributions_used("core", "server", CLIENT) & declared("compare") <= declared()


def test_every_dependency_says_what_it_is_for() -> None:
    reasons = (ROOT / "docs/decisions/0002-dependencies.md").read_text("utf-8")
    explained = set(re.findall(r"^\| `([^`]+)` \|", reasons, re.MULTILINE))
    assert declared(*project()["optional-dependencies"]) == explained


def test_every_dependency_has_one_tested_version() -> None:
    constraints = (ROOT / ".ci/constraints.txt").read_text("utf-8")
    pinned = set(re.findall(r"^([a-z0-9-]+)==", constraints, re.MULTILINE))
    assert declared(*project()["optional-dependencies"]) - pinned == set()
