"""The schema of the access log, and the lines written by it: one JSON object for each finished request.

`FIELDS` is the schema.  Readers of the log (the pipeline, dashboards, people with jq) may rely on it:

- A line is one JSON object in UTF-8, ended by a newline, with no newline inside.  In a durable stream each object is
  one message.
- `v` is the version of the schema.  It is raised when a field changes its meaning or is removed, not when one is added.
- A field without a value is left out, unless it is marked as always present.
- Seconds are decimal numbers.  Bytes count bodies only: no heads, no chunk sizes.
- A sink that cannot tell whether a line arrived may write it again.  Both copies have the same `id`; no two other lines
  do.
- Summing bytes over all lines counts each byte once.  A long live read writes lines while it goes on (`is_final` is
  false), each with the bytes since the one before; `duration_s` is its age so far.  To count requests, count the lines
  with `is_final` true.
- As long as no line was dropped, the sums of `origin_requests` and `fetched_bytes` over all lines equal
  `durable_gateway_upstream_requests_total` and `durable_gateway_upstream_bytes_total`.  The cost of a stream's one live
  upstream request is in the next line written for a live reader of that stream.  Upstream work that belongs to no
  request (a follower whose readers have left, a stream fetched by warming) has a line of its own; it does not count as
  a request: `is_final` is false and there is neither `status` nor `client`.

`Lines` writes them.  A repeated hit is written from a piece made once, plus its time and id and the looked-up pieces
for its client and user agent; every other line goes through orjson.  Both ways give the same fields, which a test
checks.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from gateway.ops.partition_ids import PartitionIds
from gateway.protocol.trace_context import TRACEPARENT
from gateway.telemetry.access_record import Record, Repeated

VERSION: Final = 1
S2: Final = "s2"
"""The field `protocol` of a request to an S2 stream."""

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
    Field("method", "string", "", "HTTP method.", True),
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

Masking = Literal["full", "masked", "none"]
Query = Literal["full", "names", "none"]

_AGENT_CHARS: Final = 256
STREAM_CHARS: Final = 2_048
_REMEMBERED: Final = 4_096
_MASKS: Final = {4: 24, 6: 48}
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE
_AGENT_LINE: Final = re.compile(rb"\r\nuser-agent:[ \t]*([^\r\n]*)", re.IGNORECASE)
_TRACE_VALUE: Final = re.compile(rb"[ \t]*" + TRACEPARENT.encode() + rb"[ \t]*")
_TRACE_LINE: Final = b"\r\ntraceparent:"
_PROCESS_BYTES: Final = 6
"""Random bytes in an id: the chance that any two of a hundred thousand gateway starts draw the same is 1 in 50,000."""


Hit = tuple[Repeated, float, str | None, bytes]
"""One more repetition of a remembered answer: the part it shares with others, its time (monotonic seconds), the client,
and the end of its line (from `Lines.ending`).  A plain tuple, because it is made on the hottest path."""


def cut(record: Record) -> None:
    """Cut a record's client-supplied texts to what a line may hold, so that a queued record stays small."""
    if len(record.stream) > STREAM_CHARS:
        record.stream = record.stream[:STREAM_CHARS]
    if record.user_agent is not None and len(record.user_agent) > _AGENT_CHARS:
        record.user_agent = record.user_agent[:_AGENT_CHARS]


class Lines:
    """Writes records and hits as lines.

    Owns the memory of client and user-agent pieces, which is bounded.
    """

    def __init__(self, node: str, masking: Masking, partitions: PartitionIds, query: Query = "full") -> None:
        self._node = node
        self._masking = masking
        self._query = query
        self._partitions = partitions
        self._masked: dict[str, str] = {}
        # Not from the injected generator: gateways with the same seed must differ here.
        self._process = secrets.token_hex(_PROCESS_BYTES)
        self._batches = 0
        self._indexes: list[bytes] = []
        """The last parts of ids, by position in a batch."""
        self._clients: dict[str | None, bytes] = {}
        self.endings: dict[bytes, bytes] = {}
        """What `ending` has made, by the bytes of the request.  Callers look here first to save the call."""

    def written(self, items: Sequence[Record | Hit], wall_lead_s: float) -> bytes:
        """The lines of `items`, in order.  `wall_lead_s` is how far the wall clock is ahead of the monotonic one."""
        # One growing buffer: keeping orjson's lines and joining them takes eight times as long.
        text = bytearray()
        clients = self._clients
        self._forget()
        batch = self._batch()
        begin = batch.encode()
        indexes = self._indexes
        while len(indexes) < len(items):
            indexes.append(b'%x"' % len(indexes))
        stamp, stamped = b"", -1
        for index, item in zip(indexes, items, strict=False):
            if isinstance(item, Record):
                text += self._line(item, batch + index[:-1].decode())
                continue
            repeated, now, client, ending = item
            # Hits within one millisecond share its text: formatting a number costs as much as the rest of the line.
            if (millis := int((now + wall_lead_s) * 1_000)) != stamped:
                stamped, stamp = millis, b'{"time":%d.%03d,"id":"%b' % (*divmod(millis, 1_000), begin)
            text += stamp
            text += index
            text += repeated.line or self._prepare(repeated)
            text += clients.get(client) or self._client_piece(client)
            text += ending
        return bytes(text)

    @property
    def remembered(self) -> int:
        """The size of the largest of the memories."""
        return max(len(self._clients), len(self._masked), len(self.endings))

    def _forget(self) -> None:
        # Plain dictionaries, cleared when full: keeping them in LRU order costs more than making the pieces again.
        for remembered in (self._clients, self._masked):
            if len(remembered) > _REMEMBERED:
                remembered.clear()

    def line(self, record: Record) -> bytes:
        """One record's line."""
        return self._line(record, self._batch() + "0")

    def _batch(self) -> str:
        """The prefix of the ids of the next batch."""
        self._batches += 1
        return f"{self._process}.{self._batches:x}."

    def _line(self, record: Record, id_: str) -> bytes:
        fields: dict[str, Any] = {"time": _micros(record.ended_at), "id": id_}
        self._add_facts(record, fields)
        self._add_client(record, fields)
        return _dumped(fields)

    def _add_facts(self, record: Record, fields: dict[str, Any]) -> None:
        """Add every field except the time, the id and those that identify the client."""
        fields["v"] = VERSION
        fields["node"] = self._node
        if record.route is not None:
            fields["route"] = record.route
        if record.is_s2:
            fields["protocol"] = S2
        fields["stream"] = self._loggable_target(record.stream)[:STREAM_CHARS]
        if record.partition is not None:
            fields["partition"] = self._partitions.of(record.partition)
        fields["method"] = record.method
        fields["mode"] = record.mode
        if record.status:
            fields["status"] = record.status
        fields["outcome"] = record.outcome
        fields["duration_s"] = _micros(record.duration_s)
        if record.first_byte_s is not None:
            fields["first_byte_s"] = _micros(record.first_byte_s)
        if record.start is not None:
            fields["start"] = record.start
        if record.next_offset is not None:
            fields["next_offset"] = record.next_offset
        fields["sent_bytes"] = record.sent_bytes
        if record.saved_bytes:
            fields["saved_bytes"] = record.saved_bytes
        fields["fetched_bytes"] = record.fetched_bytes
        if record.origin_requests:
            fields["origin_requests"] = record.origin_requests
        if record.collapsed:
            fields["collapsed"] = record.collapsed
        if record.subscribers is not None:
            fields["subscribers"] = record.subscribers
        if record.coding is not None:
            fields["coding"] = record.coding
        if record.close_reason is not None:
            fields["close_reason"] = record.close_reason
        fields["is_final"] = record.is_final

    def _add_client(self, record: Record, fields: dict[str, Any]) -> None:
        if (client := self._loggable_client(record.client)) is not None:
            fields["client"] = client
        if record.user_agent is not None:
            fields["user_agent"] = record.user_agent[:_AGENT_CHARS]
        if record.trace_id is not None:
            fields["trace_id"] = record.trace_id

    def _loggable_target(self, stream: str) -> str:
        """The target as `log.query` allows it: values in a query may be credentials."""
        if self._query == "full" or "?" not in stream:
            return stream
        path, _, query = stream.partition("?")
        if self._query == "none":
            return path
        return f"{path}?{'&'.join(part.partition('=')[0] for part in query.split('&'))}"

    def _loggable_client(self, client: str | None) -> str | None:
        """The address as `log.client_address` allows it."""
        if client is None or self._masking == "none":
            return None
        if self._masking == "full":
            return client
        found = self._masked.get(client)
        if found is None:
            found = self._masked[client] = _network_of(client)
        return found or None

    # -- the remembered pieces of a hit's line

    def _prepare(self, repeated: Repeated) -> bytes:
        fields: dict[str, Any] = {}
        self._add_facts(repeated.record, fields)
        repeated.line = line = b"," + _dumped(fields)[1:-2]
        return line

    def _client_piece(self, client: str | None) -> bytes:
        address = self._loggable_client(client)
        # JSON ignores a space, and a piece that is not empty is truthy, so the first lookup finds it.
        piece = b" " if address is None else b',"client":' + orjson.dumps(address)
        self._clients[client] = piece
        return piece

    def ending(self, request: bytes) -> bytes:
        """The rest of a line: the user agent and trace id found in the bytes of the request, and the closing brace."""
        if len(self.endings) > _REMEMBERED:
            self.endings.clear()
        lower = request.lower()
        at = lower.find(_TRACE_LINE)
        if at < 0:
            piece = self.endings[request] = _agent_piece(request)
            return piece
        end = lower.find(b"\r\n", at + 2)
        if lower.find(_TRACE_LINE, end) >= 0:
            # Two traceparent headers name no trace.
            return _agent_piece(request)
        # Each request has its own trace id: remember the piece for the rest of its bytes.
        rest = request[:at] + request[end:]
        piece = self.endings.get(rest) or self.ending(rest)
        match = _TRACE_VALUE.fullmatch(request, at + len(_TRACE_LINE), end)
        return piece if match is None else b',"trace_id":"%b"%b' % (match[1], piece)


def _network_of(client: str) -> str:
    """The network part of an address; empty for a text that is not an address."""
    try:
        # A link-local address may carry the name of an interface.
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(ipaddress.ip_network((address, _MASKS[address.version]), strict=False).network_address)


def _agent_piece(request: bytes) -> bytes:
    match = _AGENT_LINE.search(request)
    if match is None:
        return b"}\n"
    text = match[1].decode("utf-8", "replace").rstrip(" \t")
    return b',"user_agent":' + orjson.dumps(text[:_AGENT_CHARS]) + b"}\n"


def _micros(seconds: float) -> float:
    """Round to the microsecond; `round` takes five times as long."""
    return int(seconds * 1e6 + 0.5) / 1e6


def _dumped(found: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(found, option=_OPTIONS)
    except TypeError:
        # Header bytes that are not UTF-8 arrive as lone surrogates, which JSON cannot hold.
        clean = {key: _readable(value) if isinstance(value, str) else value for key, value in found.items()}
        return orjson.dumps(clean, option=_OPTIONS)


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
