"""Flags of the settings, their help text, and `docs/settings.md`; all made from the class."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from .config import ENVIRONMENT_PREFIX, Group, Settings, flag_of

PROGRAM = "semanticrecall serve"

_EPILOG = """\
examples:
  semanticrecall serve
      serve on 127.0.0.1:7650 and keep the record in ~/.local/share/semanticrecall
  semanticrecall serve --listen unix:/run/recall.sock --data-dir /var/lib/recall
      serve one Unix socket, for the processes of one user
  semanticrecall serve --listen 0.0.0.0:7650 --tls-cert-file cert.pem --tls-key-file key.pem \\
      --tokens-file tokens --health-listen 0.0.0.0:9090
      serve other machines, with TLS, tokens, probes and metrics

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
said, with the reason, and nothing starts.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as the help and the docs show it."""

    name: str
    field: FieldInfo

    @property
    def group(self) -> str:
        """Its topic."""
        extra = self.field.json_schema_extra
        assert isinstance(extra, dict)
        return str(extra["group"])

    @property
    def help(self) -> str:
        """One or two sentences."""
        return self.field.description or ""

    @property
    def kind(self) -> Any:
        """The type without `None`."""
        kind = self.field.annotation
        if isinstance(kind, types.UnionType):
            return next(arm for arm in typing.get_args(kind) if arm is not type(None))
        return kind

    @property
    def is_list(self) -> bool:
        """It may be given several times."""
        return typing.get_origin(self.kind) is tuple

    @property
    def values(self) -> str:
        """What it takes, in words."""
        kind = self.kind
        if self.is_list:
            return "list of strings"
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return ", ".join(member.value for member in kind)
        words = {bool: "true, false", int: "integer", str: "string", Path: "path"}
        return words.get(kind, "secret string")

    @property
    def bounds(self) -> str:
        """Least and most, where there are such."""
        least = next((m.ge for m in self.field.metadata if hasattr(m, "ge")), None)
        most = next((m.le for m in self.field.metadata if hasattr(m, "le")), None)
        if least is None or self.is_list:
            return ""
        return f"{least:,} to {most:,}" if most is not None else f"{least:,} or more"

    @property
    def default(self) -> str:
        """The default as text; empty for none."""
        value = self.field.default
        if value is None or value == () or isinstance(value, SecretStr):
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ", ".join(value)
        return str(value)


def options() -> list[Option]:
    """All settings, in the order of the class."""
    return [Option(name, field) for name, field in Settings.model_fields.items()]


def parser() -> argparse.ArgumentParser:
    """A parser with one flag for each setting, grouped by topic."""
    made = argparse.ArgumentParser(
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
