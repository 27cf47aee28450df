"""The fields of an access-log line: the schema of the log.

`FIELDS` is the schema.  Readers of the log (the pipeline, dashboards, people with jq) may rely on it:

- A line is one JSON object in UTF-8, ended by a newline, with no newline inside.  In a durable stream each object is
  one message.
- `v` is the version of the schema.  It is raised when a field changes its meaning or is removed, not when one is added.
- A field without a value is left out, unless it is marked as always present.
- Seconds are decimal numbers.  Bytes count bodies only: no heads, no chunk sizes.
- A sink that cannot tell whether a line arrived may write it again.  Both copies have the same `id`; no two other lines
  do.
- Summing bytes over all lines counts each byte once.  A long live read writes lines while it goes on (`is_final` is
  false), each with the bytes since the previous line; `duration_s` is its age so far.  To count requests, count the
  lines with `is_final` true.
- As long as no line was dropped, the sums of `origin_requests` and `fetched_bytes` over all lines equal
  `durable_gateway_upstream_requests_total` and `durable_gateway_upstream_bytes_total`.  The cost of a stream's one live
  upstream request is in the next line written for a live reader of that stream.  Upstream work that belongs to no
  request (a follower whose readers have left, a stream fetched by warming) has a line of its own; it does not count as
  a request: `is_final` is false and there is neither `status` nor `client`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

VERSION: Final = 1
S2: Final = "s2"
"""The field `protocol` of a request to an S2 stream."""
STREAM_CHARS: Final = 2_048
"""Longest `stream` in a line."""
METHOD_CHARS: Final = 32
"""Longest `method` in a line: over HTTP/2 a client may invent one of any length."""

Kind = Literal["integer", "number", "string", "boolean"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line: its JSON type, its unit or set of values, and its meaning."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    is_always_there: bool = False


FIELDS: Final = (
    Field(
        "time", "number", "Unix seconds, to the microsecond", "When the request ended, or the line was written.", True
    ),
    Field("id", "string", "", "Id of the line, unique across gateways and restarts.", True),
    Field("v", "integer", "", f"Version of this schema: {VERSION}.", True),
    Field("node", "string", "", "`server.node_name` of the gateway that wrote the line.", True),
    Field("route", "string", "", "Name of the configured route; absent where none matched."),
    Field("protocol", "string", "`s2`", "What the client speaks; absent for Durable Streams."),
    Field(
        "stream",
        "string",
        "",
        "Path, and the query as `log.query` allows, in canonical spelling; 2,048 characters at most. Of an S2 stream, "
        "the path of the stream itself, and its basin as the query.",
        True,
    ),
    Field(
        "partition",
        "string",
        "16 hexadecimal digits",
        "Id of the readers who share a tape; hides their credentials. Absent where the whole route shares one.",
    ),
    Field("method", "string", "", "HTTP method, its first 32 characters.", True),
    Field("mode", "string", "`gateway.protocol.mode.Mode`", "Kind of request.", True),
    Field("status", "integer", "HTTP status", "Absent where the connection closed before one was sent."),
    Field("outcome", "string", "`gateway.protocol.cache_status.Outcome`", "How the request was answered.", True),
    Field("duration_s", "number", "seconds", "From reading the request to the end of its answer.", True),
    Field(
        "first_byte_s",
        "number",
        "seconds",
        "From reading the request to the first byte of its answer; absent where there was none.",
    ),
    Field(
        "start",
        "string",
        "offset",
        "Offset asked for, as sent; absent where the request names none. Of S2 a sequence number in 20 digits, or "
        "`now` for the tail.",
    ),
    Field(
        "next_offset",
        "string",
        "offset",
        "`Stream-Next-Offset` of the answer, or of the last control event; of S2 the number after the last record.",
    ),
    Field("sent_bytes", "integer", "bytes", "Body bytes handed to the client's connection.", True),
    Field(
        "saved_bytes",
        "integer",
        "bytes",
        "Bytes that compression saved; absent where the body was not compressed, or was not sent whole.",
    ),
    Field(
        "fetched_bytes",
        "integer",
        "bytes",
        "Body bytes that the origin sent for this request; those of a shared or live fetch are in one line only.",
        True,
    ),
    Field(
        "origin_requests",
        "integer",
        "requests",
        "Requests sent to the origin for this one, retries included, each in one line only; absent for none.",
    ),
    Field(
        "collapsed",
        "integer",
        "requests",
        "Requests that shared the upstream fetch for this one, itself included; absent where there was none.",
    ),
    Field("subscribers", "integer", "readers", "Live readers of the stream at that time; live reads only."),
    Field("coding", "string", "`gateway.protocol.coding.Coding`", "Content coding; absent where there was none."),
    Field(
        "client",
        "string",
        "IP address",
        "Peer address; as `log.client_address` says in full, or cut to /24 (IPv4) and /48 (IPv6).",
    ),
    Field(
        "principal",
        "string",
        "",
        "The party for whom the request was allowed on a route with `[[route.auth]]`: `sub`, or a key of signed URLs.",
    ),
    Field("tenant", "string", "", "Tenant of the principal (`route.auth.tenant_claim`)."),
    Field("issuer", "string", "", "Who has named principal and tenant: `iss`; absent for keys of signed URLs."),
    Field("user_agent", "string", "", "`User-Agent`, its first 256 characters."),
    Field("trace_id", "string", "32 hexadecimal digits", "Trace of the request (`traceparent`)."),
    Field(
        "close_reason",
        "string",
        "`gateway.telemetry.access_record.CloseReason`",
        "Why a live read ended; live reads only.",
    ),
    Field("is_final", "boolean", "", "False for a live read that goes on, and for upstream work of no request.", True),
)
