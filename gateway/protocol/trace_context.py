"""Which trace a request belongs to (W3C Trace Context)."""

from __future__ import annotations

import re
from typing import Final

TRACEPARENT: Final = r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
"""A valid `traceparent`; its first group is the trace id."""

_WHOLE: Final = re.compile(TRACEPARENT)


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace that a `traceparent` names (section 3.2), None where it is not valid."""
    match = _WHOLE.fullmatch(traceparent) if traceparent is not None else None
    return match[1] if match is not None else None
