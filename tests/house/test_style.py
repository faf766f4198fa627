"""The sizes and habits the project holds itself to, measured on its own files."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("core/semanticrecall_core", "server/semanticrecall_server", "clients/python")
PYTHON_ROOTS = (*SOURCE_ROOTS, "benchmarks", "proto", "tests")
TEXT_ROOTS = (*PYTHON_ROOTS, "clients/typescript", "docs", ".ci")
TEXT_SUFFIXES = {
    *(".py", ".pyi", ".ts", ".js", ".mjs", ".md", ".proto", ".sh", ".txt", ""),
    *(".toml", ".yaml", ".yml", ".json"),
}
# Conversations and other sample texts, which may say anything.
DATA_SUFFIXES = {".txt"}
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "dist", "build", "v1"}

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_P90_MAX = 40
PARAMETERS_MAX = 6

# Spelled in pieces, so that this file holds none of them.
LEFTOVERS = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")
LEFTOVER = re.compile(r"\b(" + "|".join(LEFTOVERS) + r")\b")
MACHINE_PATHS = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + r"me/\w", "/Us" + r"ers/\w")
MACHINE_PATH = re.compile("|".join(MACHINE_PATHS))
REGISTRY_HOSTS = (
    "py" + "pi.org",
    "python" + "hosted.org",
    "registry.npm" + "js",
    "npm" + "mirror",
    "proxy.go" + "lang",
    "repo1.mav" + "en",
    "static.crates" + ".io",
)


@dataclass(frozen=True)
class Function:
    """One function, where it stands and its size."""

    place: str
    lines: int
    parameters: int


def files_below(roots: tuple[str, ...], suffixes: set[str]) -> list[Path]:
    """Files written by hand below the roots."""
    found = [
        path
        for root in roots
        for path in sorted((ROOT / root).rglob("*"))
        if path.is_file()
        and path.suffix in suffixes
        and not SKIPPED_FOLDERS.intersection(path.relative_to(ROOT / root).parts[:-1])
    ]
    assert found, "nothing was found to look at"
    return found


def is_parameter_counted(name: str) -> bool:
    """Whether a parameter is one that a caller gives."""
    return name not in ("self", "cls")


def functions_of(path: Path) -> Iterator[Function]:
    """Every function and method of a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield Function(
                place=f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                lines=(node.end_lineno or node.lineno) - node.lineno + 1,
                parameters=sum(is_parameter_counted(argument.arg) for argument in arguments),
            )


def lines_matching(paths: list[Path], pattern: re.Pattern[str]) -> list[str]:
    """Places whose line matches."""
    return [
        f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def listed(places: list[str]) -> str:
    """One place a line, for a failure that is read at once."""
    return "\n".join(["", *places])


def text_files() -> list[Path]:
    """Everything a person may read, the files at the top included."""
    top = [path for path in sorted(ROOT.iterdir()) if path.is_file() and path.name != ".git"]
    hidden = {".gitignore"}
    readable = [
        path
        for path in top
        if path.name in hidden or (path.suffix in TEXT_SUFFIXES and not path.name.startswith("."))
    ]
    return readable + files_below(TEXT_ROOTS, TEXT_SUFFIXES)


def test_files_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path in files_below(PYTHON_ROOTS, {".py"})
        if (lines := len(path.read_text("utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert not long, listed(long)


def test_functions_are_short() -> None:
    long = [
        f"{function.place}: {function.lines} lines"
        for path in files_below(PYTHON_ROOTS, {".py"})
        for function in functions_of(path)
        if function.lines > FUNCTION_LINES_MAX
    ]
    assert not long, listed(long)


def test_nine_functions_of_ten_fit_a_screen(record_property: Callable[[str, object], None]) -> None:
    lines = [
        function.lines
        for path in files_below(SOURCE_ROOTS, {".py"})
        for function in functions_of(path)
    ]
    p90 = statistics.quantiles(lines, n=10)[-1]
    record_property("function_lines_p90", p90)
    assert p90 <= FUNCTION_LINES_P90_MAX


def test_functions_take_few_parameters() -> None:
    wide = [
        f"{function.place}: {function.parameters} parameters"
        for path in files_below((*SOURCE_ROOTS, "benchmarks", "proto"), {".py"})
        for function in functions_of(path)
        if function.parameters > PARAMETERS_MAX
    ]
    assert not wide, listed(wide)


def test_nothing_is_left_for_later() -> None:
    written = [path for path in text_files() if path.suffix not in DATA_SUFFIXES]
    places = lines_matching(written, LEFTOVER)
    assert not places, listed(places)


def test_no_file_names_a_place_on_one_machine() -> None:
    places = lines_matching(text_files(), MACHINE_PATH)
    assert not places, listed(places)


def test_no_file_names_a_package_registry() -> None:
    hosts = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS))
    places = lines_matching(text_files(), hosts)
    assert not places, listed(places)
