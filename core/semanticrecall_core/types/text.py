"""What counts as text worth embedding."""

from __future__ import annotations

import unicodedata

_INVISIBLE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zs", "Zl", "Zp"))


def has_visible_text(text: str) -> bool:
    """True where at least one character can be seen (not only white space or zero-width)."""
    return any(
        character.isalnum() or unicodedata.category(character) not in _INVISIBLE_CATEGORIES
        for character in text
    )
