"""Recalled text inside a context block: quoted so that it stays what it is, data.

Promises of `quoted` and `quoted_name`:
- `<`, `>`, `&` and whatever a compatibility normalisation turns into them never appear unescaped.
  Other characters that look like angle brackets are escaped before a slash and before the name of
  the block, in any case and form and with anything not seen between: that is what a tag begins
  with. Elsewhere they are ordinary quotation marks of many languages and stay.
- Nothing that is not seen is passed on: control characters, bidirectional marks, overrides and
  isolates, tag characters and other characters that are ignored by default. Joiners (U+200C,
  U+200D) and variation selectors up to U+FE0F stay: scripts and emoji need them.
- Every line but the first is indented, whatever separates lines in Unicode.
"""

from __future__ import annotations

import re
import unicodedata

INDENT = "    "

_UNSEEN = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200B),
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
"""Inclusive ranges: what is left out. Line ends are taken care of before."""

_ESCAPES: dict[int, str | None] = {
    **dict.fromkeys(c for first, last in _UNSEEN for c in range(first, last + 1)),
    ord("\t"): "\t",
    ord("\n"): "\n",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord("&"): "&amp;",
    # Characters that a compatibility normalisation turns into "<", ">" or "&".
    0xFF1C: "&lt;",
    0xFE64: "&lt;",
    0xFF1E: "&gt;",
    0xFE65: "&gt;",
    0xFF06: "&amp;",
    0xFE60: "&amp;",
    # "<" and ">" with a stroke come apart when they are normalised.
    0x226E: "&#8814;",
    0x226F: "&#8815;",
}


_ANGLES = (
    "\u00ab\u00bb\u02c2\u02c3\u1433\u1438\u16b2\u2039\u203a\u227a\u227b\u2329\u232a\u276c-\u2771"
    "\u27e8-\u27eb\u2991-\u2998\u29fc\u29fd\u2a79\u2a7a\u3008-\u300b\ufe3d-\ufe40"
    "\U0001d236\U0001d237"
)
_ANGLE = re.compile(f"[{_ANGLES}]")
_SLASHES = frozenset("/\\\u2044\u2215\u2571\u2572\u27cb\u27cd\u29f5\u29f8\u29f9\u2afb\u2afd\u3033")
_PASSED_OVER = frozenset(("Cc", "Cf", "Mn", "Zl", "Zp", "Zs"))
_NAME = "recalled"
_NAME_CHARS = 4
_CHANGED = "".join(chr(c) for c, to in _ESCAPES.items() if to and c >= ord(" "))
_UNSEEN_CLASS = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in _UNSEEN)
# Whatever may have to be changed in quoted text; most messages have nothing of it.
_UNSAFE = re.compile(f"[{_UNSEEN_CLASS}{_CHANGED}{_ANGLES}]")
_LATE_COLON = re.compile(r":(?=\s|$)")


def quoted(text: str) -> str:
    """Text that can neither end the block nor look like a line of it."""
    if _is_plain(text) or not _UNSAFE.search(text):
        return text
    # Separators at the end make no line.
    lines = text.splitlines()
    return _without_false_tags(f"\n{INDENT}".join(line.translate(_ESCAPES) for line in lines))


def quoted_name(text: str) -> str:
    """The same for a name or an id: one line."""
    if text.isalnum() or (" " not in text and _is_plain(text)):
        return text
    return _without_false_tags(" ".join(text.split()).translate(_ESCAPES))


def quoted_author(author: str) -> str:
    """A name that ends before the first colon with white space after it: that is ours."""
    return _LATE_COLON.sub("&#58;", quoted_name(author))


def quoted_thread(thread_id: str) -> str:
    """A name that stands between double quotation marks."""
    return quoted_name(thread_id).replace('"', "&quot;")


def _without_false_tags(text: str) -> str:
    if text.isascii():
        return text
    return _ANGLE.sub(
        lambda found: f"&#{ord(found[0])};" if _begins_tag(text, found.end()) else found[0], text
    )


def _begins_tag(text: str, position: int) -> bool:
    """Whether a slash, or the beginning of the block's name, is the next that is seen."""
    name = ""
    for index in range(position, len(text)):
        character = text[index]
        if unicodedata.category(character) in _PASSED_OVER:
            continue
        seen = unicodedata.normalize("NFKC", character).casefold()
        if seen in _SLASHES:
            return not name
        name += seen
        if not _NAME.startswith(name[:_NAME_CHARS]) or len(name) >= _NAME_CHARS:
            break
    return len(name) >= _NAME_CHARS and name.startswith(_NAME[:_NAME_CHARS])


def _is_plain(text: str) -> bool:
    """Whether it is one line of ASCII without anything to escape: most are, and this is quick."""
    return (
        text.isascii()
        and text.isprintable()
        and "<" not in text
        and ">" not in text
        and "&" not in text
    )
