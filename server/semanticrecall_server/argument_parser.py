"""An argument parser that says which word may have been meant."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

_UNKNOWN_FLAG = re.compile(r"unrecognized arguments: .*?(--[\w-]+)")
_UNKNOWN_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class ArgumentParser(argparse.ArgumentParser):
    """As argparse's; its subparsers are of the same class."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2; what is misspelt is answered with the nearest known word."""
        super().error(message + self._suggestion(message))

    def _suggestion(self, message: str) -> str:
        if found := _UNKNOWN_FLAG.search(message):
            # Its own help names every flag, those of its actions in the examples.
            known = re.findall(r"--[\w-]+", self.format_help())
        elif found := _UNKNOWN_CHOICE.search(message):
            known = re.findall(r"[\w-]+", found[2])
        else:
            return ""
        near = difflib.get_close_matches(found[1], known, n=1)
        return f". Did you mean {near[0]}?" if near else ""
