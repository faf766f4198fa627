"""Lists of numbers on a benchmark's command line, and its account of how far it has come."""

from __future__ import annotations

import argparse
import sys

NUMBERS_MAX = 20


class Numbers(tuple[int, ...]):
    """Numbers that are measured one after the other; written as on the command line: `1,4,16`."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(map(str, self))


def numbers(text: str) -> Numbers:
    """Numbers separated by commas: whole, at least 0, each once, 1 to 20 of them.

    Raises:
        argparse.ArgumentTypeError: they are not.
    """
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("whole numbers, separated by commas")
    found = Numbers(map(int, parts))
    if len(set(found)) < len(found) or len(found) > NUMBERS_MAX:
        raise argparse.ArgumentTypeError(f"at most {NUMBERS_MAX} numbers, each once")
    return found


def say(progress: str) -> None:
    """One line about how far a benchmark has come, beside what it prints as its result."""
    print(progress, file=sys.stderr, flush=True)
