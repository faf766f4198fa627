"""The README's figures: measures them, keeps the results, writes picture, table and caption.

Usage: python -m benchmarks.readme [--data-dir DIR]     (make bench-readme)
       python -m benchmarks.readme --from docs/figures
       python -m benchmarks.readme --smoke [--results DIR] [--write]

Runs the scripts of `readme_table.SCRIPTS` one after the other, each in a process of its own, at
their full size: about 20 minutes on two cores once the stores of DIR are built, some more without
them. Nothing else should run on the machine. Their results are kept in --results (docs/figures),
without the name of DIR; the picture comes from the first of them; the README's text between its
markers is written anew. If one of them fails nothing is written but the results, and the exit
status is 1.

`--from` writes README and picture from stored results without measuring; a test holds that the
README says what the stored results say. `--smoke` takes a minute or two and proves nothing: it
writes results only where --results says so, and the README only with --write.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import run_benchmark
from benchmarks.processes import ROOT, end_in_order_when_told
from benchmarks.readme_table import SCRIPTS, Results, ResultsDoNotMatchError, block_of

README = ROOT / "README.md"
RESULTS = ROOT / "docs/figures"
PICTURE = "docs/pictures/latency-by-history.svg"
CHART = "latency_by_history"
KEEP_STORES = frozenset(("side_by_side", "growth", "start", "resident_memory"))
BEGIN, END = "<!-- figures: begin", "<!-- figures: end -->"
BEGIN_LINE = f"{BEGIN} (written by `make bench-readme`; not by hand) -->"
PLOT_SECONDS_MAX = 300


def measure(data_dir: Path | None, *, smoke: bool) -> dict[str, dict[str, Any]]:
    """The result of every script; {"script", "error"} of one that failed."""
    measured: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as temporary:
        stores = (data_dir or Path(temporary)).resolve()
        for name in SCRIPTS:
            flags = ["--smoke"] if smoke else []
            if name in KEEP_STORES:
                flags += ["--data-dir", str(stores)]
            measured[name] = without_places(run_benchmark(name, flags))
    return measured


def without_places(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result that names no directory of the machine it was measured on."""
    written = json.loads(json.dumps(result))
    place = written.get("config", {}).get("data_dir")
    if place:
        written["config"]["data_dir"] = "DIR"
        written["command"] = written["command"].replace(place, "DIR")
    return dict(written)


def keep(results: Results, directory: Path) -> None:
    """A file for each script."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        (directory / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def stored(directory: Path) -> dict[str, dict[str, Any]]:
    """Results as `keep` wrote them."""
    files = {name: directory / f"{name}.json" for name in SCRIPTS}
    return {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}


def with_block(text: str, block: str) -> str:
    """A README with this between its markers.

    Raises:
        ValueError: it has not the two markers, in order, once.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"{BEGIN} ... --> and {END} must be there, once")
    return f"{before}{BEGIN_LINE}\n{block}{END}{after}"


def draw(result: Path, picture: Path) -> None:
    """The picture of recalls by the length of a history.

    Raises:
        subprocess.CalledProcessError: it could not be drawn.
    """
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name:
        command = [sys.executable, "-m", "benchmarks.plot", str(result.resolve()), "--out", name]
        subprocess.run(
            command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, timeout=PLOT_SECONDS_MAX
        )
        picture.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(name, f"{CHART}.svg"), picture)


def write(results: Results, directory: Path, readme: Path) -> None:
    """README and picture, from results that are kept in `directory`.

    Raises:
        ResultsDoNotMatchError, ValueError, subprocess.CalledProcessError: nothing is written.
    """
    text = with_block(readme.read_text("utf-8"), block_of(results, PICTURE))
    draw(directory / f"{SCRIPTS[0]}.json", readme.parent / PICTURE)
    readme.write_text(text, "utf-8")
    print(f"Written: {readme.name}, {PICTURE}")


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="where stores are built and found again")
    parser.add_argument("--smoke", action="store_true", help="small, for tests")
    parser.add_argument("--write", action="store_true", help="write the README from a smoke run")
    parser.add_argument("--results", type=Path, help="where results are kept (docs/figures)")
    parser.add_argument("--from", dest="source", type=Path, help="write from these results")
    parser.add_argument("--readme", type=Path, default=README, help="which file is written")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = _arguments(given)
    end_in_order_when_told()
    if arguments.source is not None:
        write(stored(arguments.source), arguments.source, arguments.readme)
        return 0
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as temporary:
        # Without a word a smoke run leaves nothing behind.
        directory = arguments.results or (Path(temporary) if arguments.smoke else RESULTS)
        results = measure(arguments.data_dir, smoke=arguments.smoke)
        failed = {name: result for name, result in results.items() if "error" in result}
        keep({name: result for name, result in results.items() if name not in failed}, directory)
        for name, result in failed.items():
            print(f"{name} failed: {result['error']}; the README is as it was")
        if failed:
            return 1
        try:
            print("\n" + block_of(results, PICTURE))
            if arguments.write or not arguments.smoke:
                write(results, directory, arguments.readme)
        except ResultsDoNotMatchError as error:
            print(f"{error}; the README is as it was")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
