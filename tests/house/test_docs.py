"""Documents that cannot lie about the files beside them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]*`")
DECISION_NAME = re.compile(r"^\d{4}-[a-z0-9-]+\.md$")

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")),
    ROOT / "clients/typescript/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def anchors(document: Path) -> set[str]:
    """What a link into the document may point at, as code hosts derive it from headings."""
    text = FENCE.sub("", document.read_text("utf-8"))
    slugs: set[str] = set()
    for heading in HEADING.findall(text):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (candidate := f"{slug}-{number}" if number else slug) in slugs:
            number += 1
        slugs.add(candidate)
    return slugs


def broken_links(document: Path) -> list[str]:
    """Relative links of the document that lead nowhere."""
    text = CODE_SPAN.sub("", FENCE.sub("", document.read_text("utf-8")))
    broken: list[str] = []
    for pair in LINK.findall(text):
        link = pair[0] or pair[1]
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / unquote(path)).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# Two words\n[good](#two-words) [bad](#three) [gone](b.md) `[code](c.md)`\n", "utf-8"
    )
    assert broken_links(document) == ["#three", "b.md"]


def test_every_decision_is_numbered_once_and_listed() -> None:
    names = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    assert [name for name in names if not DECISION_NAME.match(name)] == []
    assert len({name[:4] for name in names}) == len(names)
    index = (ROOT / "docs/README.md").read_text("utf-8")
    assert [name for name in names if f"(decisions/{name})" not in index] == []


def test_the_changelog_has_this_version() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    version = re.escape(pyproject["project"]["version"])
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## \[{version}\]", changelog, re.MULTILINE)
