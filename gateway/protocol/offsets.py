"""Offset tokens: opaque, compared for equality and lexicographic order, never parsed or invented (section 6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gateway.protocol.names import STREAM_NEXT_OFFSET

if TYPE_CHECKING:
    # Workers of a Spark cluster import this module, and do not have it.
    from multidict import MultiMapping

START: Final = "-1"
"""The beginning of the stream; for catch-up an omitted offset means the same."""

NOW: Final = "now"
"""The current tail; resolved by the origin, never stored."""

SENTINELS: Final = frozenset({START, NOW})

MAX_OFFSET_CHARS: Final = 256
_WELL_FORMED: Final = re.compile(rf"[!-%'-+\-.0-<>@-~]{{1,{MAX_OFFSET_CHARS}}}")


def is_well_formed(offset: str) -> bool:
    """Whether a token may be an offset: 1-256 printable ASCII characters, none that section 6 forbids."""
    return _WELL_FORMED.fullmatch(offset) is not None


def stated_offset(headers: MultiMapping[str]) -> str | None:
    """The value of a reply's Stream-Next-Offset; None if it has none.

    Several lines count as one list (RFC 9110 section 5.3), which is not well formed: two parties that each took another
    line would disagree on the position.
    """
    lines = headers.getall(STREAM_NEXT_OFFSET, ())
    return ", ".join(lines) if lines else None


def is_sentinel(offset: str) -> bool:
    """Whether the token is one of the two sentinels, which an origin must not return as a position."""
    return offset in SENTINELS


def is_before(left: str, right: str) -> bool:
    """Whether `left` lies before `right` in the same stream; the sentinel START lies before all other offsets."""
    if left == right or right == START:
        return False
    return left == START or left < right
