"""Settings from where they are given, and what is wrong with what is given there."""

from __future__ import annotations

import os
import re
from typing import Any

from pydantic import ValidationError

from .config import ENVIRONMENT_PREFIX, Settings, SettingsError
from .settings_faults import described, no_such

CLIENT_VARIABLES = frozenset(
    ("SEMANTICRECALL_ADDRESS", "SEMANTICRECALL_TOKEN", "SEMANTICRECALL_TOKEN_FILE")
)
"""Variables of the clients, which may share an environment with the server."""

TOKEN_VARIABLES = (f"{ENVIRONMENT_PREFIX}TOKENS", f"{ENVIRONMENT_PREFIX}TOKENS_FILE")
"""Never empty by intention: it is a secret that did not arrive."""

_SERVICE_VARIABLE = re.compile(
    rf"{ENVIRONMENT_PREFIX}(\w+_)?"
    "(SERVICE_HOST|SERVICE_PORT(_\\w+)?|PORT(_\\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes puts into every container for a Service whose name begins with ours."""


def load_settings(**flags: Any) -> Settings:
    """Settings from flags, environment and file.

    Raises:
        SettingsError: one line per fault; values are not shown.
    """
    faults = [
        f"{name}: {no_such(name, known_variables(), ENVIRONMENT_PREFIX)}"
        for name in unknown_variables()
    ]
    faults += [
        f"{name}: is set but empty; without tokens everybody may call. Give tokens, or unset it"
        for name, value in sorted(os.environ.items())
        if name.upper() in TOKEN_VARIABLES and not value.strip()
    ]
    if faults:
        raise SettingsError("\n".join(faults))
    try:
        return Settings(**flags)
    except ValidationError as error:
        raise SettingsError(described(error, Settings.model_fields)) from None


def known_variables() -> list[str]:
    """The environment variables of the settings."""
    return [f"{ENVIRONMENT_PREFIX}{name}".upper() for name in Settings.model_fields]


def unknown_variables() -> list[str]:
    """Environment variables with our prefix that set nothing, e.g. misspelt ones."""
    known = CLIENT_VARIABLES.union(known_variables())
    return sorted(
        name
        for name in os.environ
        if name.upper().startswith(ENVIRONMENT_PREFIX)
        and name.upper() not in known
        and not _SERVICE_VARIABLE.fullmatch(name)
    )
