"""Keys of remembered answers: the bytes of a request, without the header lines that no answer depends on.

Such lines are trace ids, user agents, cookies where they are not credentials, and Accept except on routes to S2.  A
line is taken out only if it has the one form that cannot hide anything: a known name in one of its two usual spellings,
a colon, and printable characters up to the end of the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_REQUEST_BYTES: Final = 4_096
"""Longer requests are not remembered.  The bound is far below what the strict parser accepts in one line."""

MEANINGLESS: Final = (
    "accept",
    "accept-language",
    "baggage",
    "cookie",
    "dnt",
    "referer",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-fetch-user",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-correlation-id",
    "x-request-id",
)
"""Headers that no answer depends on, unless they are among the `meaningful_names` of its route."""

_MOST_LINES: Final = 64
"""The most lines taken out of one request; beyond that, the strict parser has to apply its own bound."""

_HEAD_END: Final = b"\r\n\r\n"


def lines_named(names: Sequence[str]) -> re.Pattern[bytes]:
    """A pattern for a header line with one of these names, along with the line break before it.

    Matches two spellings of each name, Any-Name and any-name (any-Name and Any-name as well): a pattern that ignores
    case is three times as slow.
    """
    if not names:
        return re.compile(rb"(?!)")
    spelled = [
        "-".join(f"[{part[0].upper()}{part[0]}]{re.escape(part[1:])}" for part in name.split("-")) for name in names
    ]
    return re.compile(rb"\r\n(?:" + "|".join(spelled).encode() + rb"):[\t\x20-\x7e]*(?=\r\n)")


def reduced(shape: re.Pattern[bytes], request: bytes) -> bytes | None:
    """The request without the lines that match `shape`; None unless it is exactly one head within the bounds."""
    size = len(request)
    if size > MAX_REQUEST_BYTES or request.find(_HEAD_END) != size - len(_HEAD_END):
        return None
    rest, lines = shape.subn(b"", request)
    return rest if lines <= _MOST_LINES else None
