"""The schema of the access log: the fields of a line.  `gateway.ops.access_log.lines` writes them.

Readers of the log, such as the pipeline, dashboards and people with jq, may rely on `FIELDS` and on these rules:

- A line is one JSON object in UTF-8 without newlines inside, ended by a newline.  In a durable stream, each object is
  one message.
- `v` is the version of the schema.  The version is raised when a field is removed or changes its meaning, but not when
  a field is added.
- A field without a value is left out, unless it is marked as always present.
- Seconds are decimal numbers.  Bytes count bodies only, without heads and chunk sizes.
- A sink may write a line twice if it cannot tell whether the line arrived.  Both copies have the same `id`.  Any two
  other lines have different ids.
- The sum of bytes over all lines counts each byte once.  A long live read writes interim lines (`is_final` is false),
  each with the bytes since the previous line.  Its `duration_s` is its age so far.  To count requests, count the lines
  with `is_final` true.
- While no line is dropped, the sums of `origin_requests` and `fetched_bytes` over all lines equal
  `durable_gateway_upstream_requests_total` and `durable_gateway_upstream_bytes_total`.  A stream's one live upstream
  request is counted in the next line of a live reader of that stream.  Upstream work that belongs to no request has a
  line of its own.  Examples are a live request to the origin whose readers have left, and a stream that was fetched
  ahead of its first read (warming).  Such a line does not count as a request: `is_final` is false, and there is neither
  `status` nor `client`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

VERSION: Final = 1
S2: Final = "s2"
"""The value of `protocol` for requests to S2 streams."""
STREAM_CHARS: Final = 2_048
"""The longest `stream` in a line."""
METHOD_CHARS: Final = 32
"""The longest `method` in a line.  Over HTTP/2 a client may invent a method of any length."""

Kind = Literal["integer", "number", "string", "boolean"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line: its JSON type, its unit or its values, and its meaning."""

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
    Field("route", "string", "", "Name of the configured route; absent if no route matched."),
    Field("protocol", "string", "`s2`", "The client's protocol; absent for Durable Streams."),
    Field(
        "stream",
        "string",
        "",
        "Path, and the query as `log.query` allows, in canonical spelling; 2,048 characters at most. For an S2 stream, "
        "the path of the stream itself, with its basin as the query.",
        True,
    ),
    Field(
        "partition",
        "string",
        "16 hexadecimal digits",
        "Id of the readers that share a tape, without their credentials. Absent if all readers of the route share a "
        "tape.",
    ),
    Field("method", "string", "", "HTTP method, its first 32 characters.", True),
    Field("mode", "string", "`gateway.protocol.mode.Mode`", "Kind of request.", True),
    Field("status", "integer", "HTTP status", "Absent if the connection closed before a status was sent."),
    Field("outcome", "string", "`gateway.protocol.cache_status.Outcome`", "How the request was answered.", True),
    Field("duration_s", "number", "seconds", "From reading the request to the end of its answer.", True),
    Field(
        "first_byte_s",
        "number",
        "seconds",
        "From reading the request to the first byte of its answer; absent without an answer.",
    ),
    Field(
        "start",
        "string",
        "offset",
        "Requested offset, as sent; absent if the request names none. For S2 a sequence number in 20 digits, or "
        "`now` for the tail.",
    ),
    Field(
        "next_offset",
        "string",
        "offset",
        "`Stream-Next-Offset` of the answer, or of the last control event; for S2 the number after the last record.",
    ),
    Field("sent_bytes", "integer", "bytes", "Body bytes handed to the client's connection.", True),
    Field(
        "saved_bytes",
        "integer",
        "bytes",
        "Bytes that compression saved; absent if the body was not compressed or not sent completely.",
    ),
    Field(
        "fetched_bytes",
        "integer",
        "bytes",
        "Body bytes from the origin for this request. The bytes of a shared or live fetch are in one line only.",
        True,
    ),
    Field(
        "origin_requests",
        "integer",
        "requests",
        "Requests to the origin for this client request, including retries. Each request is in one line only; absent "
        "for 0.",
    ),
    Field(
        "collapsed",
        "integer",
        "requests",
        "Requests that shared the fetch for this request, including this request; absent without a shared fetch.",
    ),
    Field("subscribers", "integer", "readers", "Live readers of the stream at that time; live reads only."),
    Field("coding", "string", "`gateway.protocol.coding.Coding`", "Content coding; absent if the answer has none."),
    Field(
        "client",
        "string",
        "IP address",
        "Client's address, in full or cut to /24 (IPv4) and /48 (IPv6), as in `log.client_address`.",
    ),
    Field(
        "principal",
        "string",
        "",
        "Principal of a request on a route with `[[route.auth]]`: the token's `sub`, or a key of signed URLs.",
    ),
    Field("tenant", "string", "", "Tenant of the principal (`route.auth.tenant_claim`)."),
    Field("issuer", "string", "", "Issuer of the principal and the tenant: the token's `iss`; absent for signed URLs."),
    Field("user_agent", "string", "", "`User-Agent`, its first 256 characters."),
    Field("trace_id", "string", "32 hexadecimal digits", "Trace of the request (`traceparent`)."),
    Field(
        "close_reason",
        "string",
        "`gateway.telemetry.access_record.CloseReason`",
        "Why a live read ended; live reads only.",
    ),
    Field("is_final", "boolean", "", "False for an open live read, and for upstream work without a request.", True),
)
