"""The trace that a request belongs to (W3C Trace Context)."""

from __future__ import annotations

import re
from typing import Final

TRACEPARENT: Final = r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
"""Matches a valid `traceparent`; the first group is the trace id."""

_WHOLE: Final = re.compile(TRACEPARENT)


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id in a `traceparent` (section 3.2); None if it is absent or invalid."""
    match = _WHOLE.fullmatch(traceparent) if traceparent is not None else None
    return match[1] if match is not None else None
