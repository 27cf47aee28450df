"""Offset tokens: opaque, compared for equality and lexicographic order, never parsed, never made up (section 6)."""

from typing import Final

START: Final = "-1"
"""The stream's beginning; an omitted offset means the same for catch-up."""

NOW: Final = "now"
"""The current tail; resolved at the origin, never stored."""

MAX_OFFSET_CHARS: Final = 256
_FORBIDDEN: Final = frozenset(",&=?/")


def is_well_formed(offset: str) -> bool:
    """Whether a token may be an offset: printable ASCII, 1-256 characters, none that section 6 forbids."""
    return (
        0 < len(offset) <= MAX_OFFSET_CHARS
        and offset.isascii()
        and offset.isprintable()
        and " " not in offset
        and _FORBIDDEN.isdisjoint(offset)
    )


def is_sentinel(offset: str) -> bool:
    """Whether the token is one of the two names that no origin may hand out as a position."""
    return offset in (START, NOW)


def is_before(left: str, right: str) -> bool:
    """Whether `left` lies before `right` in the same stream; the sentinel START lies before all."""
    if left == right or right == START:
        return False
    return left == START or left < right
