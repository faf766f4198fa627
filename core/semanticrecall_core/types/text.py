"""What counts as text worth embedding."""

from __future__ import annotations

import unicodedata

# White space, controls, zero-width and unassigned characters, and marks that stand on no letter:
# what a reader does not see, and what the default model's tokenizer drops.
_INVISIBLE_CATEGORIES = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Zl", "Zp", "Zs"))
# The two characters of other categories that the default model's tokenizer drops as well (all of
# Unicode was tried).
_DROPPED_BY_THE_MODEL = frozenset(("\ufffd", "\u1734"))


def has_visible_text(text: str) -> bool:
    """True where at least one character can be seen and read by a model."""
    # Each character once: a megabyte of white space is one.
    return text[:1].isalnum() or any(
        character.isalnum()
        or (
            character not in _DROPPED_BY_THE_MODEL
            and unicodedata.category(character) not in _INVISIBLE_CATEGORIES
        )
        for character in set(text)
    )
