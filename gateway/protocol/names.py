"""Names of the Durable Streams protocol (headers, query parameters, events), and its offset tokens.

The names are from the protocol text, sections 5 and 11.2.  The names of the fork headers and the SSE encoding header
are from its current version.  The meaning of a value is documented in the modules that use it.

Offset tokens are opaque: they are compared for equality and lexicographic order, never parsed or made up (section 6).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multidict import MultiMapping


STREAM_NEXT_OFFSET: Final = "Stream-Next-Offset"
STREAM_UP_TO_DATE: Final = "Stream-Up-To-Date"
STREAM_CLOSED: Final = "Stream-Closed"
STREAM_CURSOR: Final = "Stream-Cursor"
STREAM_TTL: Final = "Stream-TTL"
STREAM_EXPIRES_AT: Final = "Stream-Expires-At"
STREAM_SEQ: Final = "Stream-Seq"
STREAM_FORKED_FROM: Final = "Stream-Forked-From"
STREAM_FORK_OFFSET: Final = "Stream-Fork-Offset"
STREAM_FORK_SUB_OFFSET: Final = "Stream-Fork-Sub-Offset"
SSE_DATA_ENCODING: Final = "Stream-SSE-Data-Encoding"

PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQ: Final = "Producer-Seq"
PRODUCER_EXPECTED_SEQ: Final = "Producer-Expected-Seq"
PRODUCER_RECEIVED_SEQ: Final = "Producer-Received-Seq"

ACCEL_BUFFERING: Final = "X-Accel-Buffering"
"""An nginx header: `no` in a response disables nginx's response buffering, which would delay events."""

QUERY_OFFSET: Final = "offset"
QUERY_LIVE: Final = "live"
QUERY_CURSOR: Final = "cursor"
LIVE_LONG_POLL: Final = "long-poll"
LIVE_SSE: Final = "sse"

EVENT_DATA: Final = "data"
EVENT_CONTROL: Final = "control"

JSON_TYPE: Final = "application/json"
SSE_TYPE: Final = "text/event-stream"
DEFAULT_TYPE: Final = "application/octet-stream"


def is_true(value: str | None) -> bool:
    """Return whether a presence header has the value `true`; any other value counts as absent (section 4.1)."""
    return value is not None and value.strip().lower() == "true"


def media_type(content_type: str | None) -> str:
    """Return the content type without parameters, in lower case.  If it is absent, return the protocol's default
    type."""
    if not content_type:
        return DEFAULT_TYPE
    return content_type.partition(";")[0].strip().lower() or DEFAULT_TYPE


@lru_cache(maxsize=256)
def is_json(content_type: str | None) -> bool:
    """Return whether streams of this type hold JSON messages (section 7.1)."""
    return media_type(content_type) == JSON_TYPE


def is_sse_text(content_type: str | None) -> bool:
    """Return whether SSE carries this type as text.  Every other type is sent as base64 (section 5.8)."""
    media = media_type(content_type)
    return media.startswith("text/") or media == JSON_TYPE


START: Final = "-1"
"""The beginning of the stream.  A catch-up read without an offset has the same meaning."""

NOW: Final = "now"
"""The current tail.  The origin resolves this sentinel.  It is never stored."""

SENTINELS: Final = frozenset({START, NOW})

MAX_OFFSET_CHARS: Final = 256
_WELL_FORMED: Final = re.compile(rf"[!-%'-+\-.0-<>@-~]{{1,{MAX_OFFSET_CHARS}}}")


def is_well_formed(offset: str) -> bool:
    """Return whether a token may be an offset: 1-256 printable ASCII characters, except those that section 6
    forbids."""
    return _WELL_FORMED.fullmatch(offset) is not None


def stated_offset(headers: MultiMapping[str]) -> str | None:
    """Return the value of a reply's Stream-Next-Offset; None if it has none.

    Repeated lines are joined into one list (RFC 9110 section 5.3), which is not a well-formed offset.  Choosing one
    line would be unsafe, because two parties that use different lines would disagree on the position.
    """
    lines = headers.getall(STREAM_NEXT_OFFSET, ())
    return ", ".join(lines) if lines else None


def stated_position(headers: MultiMapping[str]) -> str | None:
    """Return the value of a reply's Stream-Next-Offset.  None if the reply has none, or if the value is no position."""
    offset = stated_offset(headers)
    return offset if offset is not None and is_position(offset) else None


def is_sentinel(offset: str) -> bool:
    """Return whether the token is a sentinel, which an origin must not return as a position."""
    return offset in SENTINELS


def is_position(offset: str) -> bool:
    """Return whether an origin may return the token as a position: it is well formed and no sentinel."""
    return offset not in SENTINELS and is_well_formed(offset)


def is_before(left: str, right: str) -> bool:
    """Return whether `left` is before `right` in the same stream.  The sentinel START is before all other offsets."""
    if left == right or right == START:
        return False
    return left == START or left < right
