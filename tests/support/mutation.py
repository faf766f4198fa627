"""One deliberate fault in the program, and the test that must see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one place that makes the program wrong.

    Attributes:
        name: says what was broken, in a few words; unique.
        file: path from the root of the project.
        old: text of the file, there exactly once.
        new: what takes its place.
        test: pytest's name of the test function that must fail: `tests/...py::test_...`.
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def test_file(self) -> str:
        """Path of the test's file."""
        return self.test.partition("::")[0]

    @property
    def test_name(self) -> str:
        """The test's function."""
        return self.test.rpartition("::")[2]
