"""Header, query and event names of the Durable Streams protocol, spelled once.

The modules that read the values define their meaning.  Source: Durable Streams Protocol, sections 5 and 11.2; the fork
headers and the SSE encoding header are from the current protocol text.
"""

from functools import lru_cache
from typing import Final

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
"""An nginx header: `no` on an answer disables its buffering, which by default holds events until a buffer is full."""

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

DEFAULT_PORT: Final = 4437
"""Section 11.1."""


def is_true(value: str | None) -> bool:
    """Whether a presence header says `true`; any other value counts as absent (section 4.1)."""
    return value is not None and value.strip().lower() == "true"


def media_type(content_type: str | None) -> str:
    """The content type without parameters, in lower case; the protocol's default if absent."""
    if not content_type:
        return DEFAULT_TYPE
    return content_type.partition(";")[0].strip().lower() or DEFAULT_TYPE


@lru_cache(maxsize=256)
def is_json(content_type: str | None) -> bool:
    """Whether streams of this type hold JSON messages (section 7.1)."""
    return media_type(content_type) == JSON_TYPE


def is_sse_text(content_type: str | None) -> bool:
    """Whether SSE carries this type as text; every other type is base64 (section 5.8)."""
    media = media_type(content_type)
    return media.startswith("text/") or media == JSON_TYPE
