"""The access log's schema, and its lines: one JSON object for each request that has ended.

`FIELDS` is the schema.  Whoever reads the log (the pipeline, dashboards, people with jq) may rely on it:

- A line is one JSON object in UTF-8, ended by a newline; there is no newline in it.  In a durable stream each object is
  one message.
- `v` is the schema's version.  It is raised when a field changes its meaning or goes; new fields come without it.
- A field that has nothing to say is left out, unless it is marked as always there.
- Seconds are decimal numbers, and bytes are those of bodies: no heads, no chunk sizes.
- A line that comes twice, because a sink was not sure that it had come, has the same `id`; no two others have.
- Whoever adds up bytes over all lines counts each byte once.  A long live read writes lines while it goes on
  (`is_final` is false), each with the bytes since the one before; `duration_s` is its age.  Requests are the lines with
  `is_final` true.
- The sums of `origin_requests` and `fetched_bytes` over all lines, as long as none was dropped, are those of
  `durable_gateway_upstream_requests_total` and `durable_gateway_upstream_bytes_total`.  What a stream's one live
  request costs is told by the first line on a live reader of it that is written afterwards.  What belongs to no request
  (a follower whose readers have left, a stream fetched before anybody asks) has a line of its own, which is no request
  either: `is_final` is false and it has neither `status` nor `client`.

`Lines` writes them.  What the remembered answers answers over and over is written from a piece made once, and a time,
an id, a client and a user agent that are looked up; everything else by orjson.  Both give the same fields; a test holds
them together.
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

Kind = Literal["integer", "number", "string", "boolean"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line: its JSON type, its unit or its set of words, and what it says."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    is_always_there: bool = False


FIELDS: Final = (
    Field(
        "time", "number", "Unix seconds, to the microsecond", "When the request ended, or the line was written.", True
    ),
    Field("id", "string", "", "The line's own: no other has it, of no gateway and after no restart.", True),
    Field("v", "integer", "", f"Version of this schema: {VERSION}.", True),
    Field("node", "string", "", "`server.node_name` of the gateway that wrote the line.", True),
    Field("route", "string", "", "Name of the configured route; absent where none matched."),
    Field(
        "stream",
        "string",
        "",
        "Path, and other query by `log.query`, in canonical spelling; 2,048 characters at most.",
        True,
    ),
    Field(
        "partition",
        "string",
        "16 hexadecimal digits",
        "Who shares a tape, under a key that hides the credentials; absent where all of the route share.",
    ),
    Field("method", "string", "", "HTTP method.", True),
    Field("mode", "string", "`gateway.protocol.mode.Mode`", "What was asked for.", True),
    Field("status", "integer", "HTTP status", "Absent where the connection went before one was sent."),
    Field("outcome", "string", "`gateway.protocol.cache_status.Outcome`", "How it was answered.", True),
    Field("duration_s", "number", "seconds", "From reading the request to the end of its answer.", True),
    Field(
        "first_byte_s",
        "number",
        "seconds",
        "From reading the request to the first byte of its answer; absent where there was none.",
    ),
    Field("start", "string", "offset", "Offset asked for, as sent; absent where the request names none."),
    Field("next_offset", "string", "offset", "`Stream-Next-Offset` of the answer, or of the last control event."),
    Field("sent_bytes", "integer", "bytes", "Body bytes handed to the client's connection.", True),
    Field(
        "saved_bytes",
        "integer",
        "bytes",
        "How many more the body had before it was coded; absent where it was not, or was not sent whole.",
    ),
    Field(
        "fetched_bytes",
        "integer",
        "bytes",
        "Body bytes that the origin sent because of it: of a shared fetch, or a live one, they are in one line.",
        True,
    ),
    Field(
        "origin_requests",
        "integer",
        "requests",
        "How many requests the origin was asked because of it, tries included, each in one line; absent for none.",
    ),
    Field(
        "collapsed",
        "integer",
        "requests",
        "How many shared the upstream fetch that answered this one, itself included; absent where there was none.",
    ),
    Field("subscribers", "integer", "readers", "Live readers of the stream at that time; live reads only."),
    Field("coding", "string", "`gateway.protocol.coding.Coding`", "Content coding; absent where there was none."),
    Field(
        "client",
        "string",
        "IP address",
        "Other end of the connection; by `log.client_address` in full, or cut to /24 (IPv4) and /48 (IPv6).",
    ),
    Field("user_agent", "string", "", "`User-Agent`, its first 256 characters."),
    Field("trace_id", "string", "32 hexadecimal digits", "Trace that the request belongs to (`traceparent`)."),
    Field(
        "close_reason",
        "string",
        "`gateway.telemetry.access_record.CloseReason`",
        "Why a live read ended; live reads only.",
    ),
    Field("is_final", "boolean", "", "False for a live read that goes on, and for what is no request.", True),
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
"""Of an id: among a hundred thousand starts of gateways, two that draw the same are one in fifty thousand."""


Hit = tuple[Repeated, float, str | None, bytes]
"""One more answer by the remembered answers: what it has in common with others, when (monotonic seconds), to whom, and
the end of its line, which `Lines.ending` makes of the request.  A plain tuple: it is made on the hottest path there
is."""


def cut(record: Record) -> None:
    """Let go of what a client sent and no line will say, so that a record that waits stays small."""
    if len(record.stream) > STREAM_CHARS:
        record.stream = record.stream[:STREAM_CHARS]
    if record.user_agent is not None and len(record.user_agent) > _AGENT_CHARS:
        record.user_agent = record.user_agent[:_AGENT_CHARS]


class Lines:
    """Writes records and hits as lines.  Its memory of clients and user agents is bounded and holds nothing else."""

    def __init__(self, node: str, masking: Masking, partitions: PartitionIds, query: Query = "full") -> None:
        self._node = node
        self._masking = masking
        self._query = query
        self._partitions = partitions
        self._masked: dict[str, str] = {}
        # Not from the generator that is handed around: gateways that are seeded alike must differ here.
        self._process = secrets.token_hex(_PROCESS_BYTES)
        self._batches = 0
        self._indexes: list[bytes] = []
        """The ends of ids, by their place in a batch."""
        self._clients: dict[str | None, bytes] = {}
        self.endings: dict[bytes, bytes] = {}
        """What `ending` has made, by the request's bytes: a look here saves the call."""

    def written(self, items: Sequence[Record | Hit], wall_lead_s: float) -> bytes:
        """The lines of these, in order.  `wall_lead_s` is how far the wall clock is ahead of the monotonic one."""
        # Grown in place: to keep each line that orjson gives until all are joined takes eight times as long.
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
            # Hits of one millisecond share its text: to write a number costs as much as the rest of the line.
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
        """Texts that are kept for lines to come, of each kind at most."""
        return max(len(self._clients), len(self._masked), len(self.endings))

    def _forget(self) -> None:
        # Plain dictionaries, begun anew when they are full: to keep an order in them costs more than to look again.
        for remembered in (self._clients, self._masked):
            if len(remembered) > _REMEMBERED:
                remembered.clear()

    def line(self, record: Record) -> bytes:
        """One record's line."""
        return self._line(record, self._batch() + "0")

    def _batch(self) -> str:
        """What the ids of the next lines begin with."""
        self._batches += 1
        return f"{self._process}.{self._batches:x}."

    def _line(self, record: Record, id_: str) -> bytes:
        told: dict[str, Any] = {"time": _micros(record.ended_at), "id": id_}
        self._tell_facts(record, told)
        self._tell_client(record, told)
        return _dumped(told)

    def _tell_facts(self, record: Record, told: dict[str, Any]) -> None:
        """All but the time and what tells clients apart."""
        told["v"] = VERSION
        told["node"] = self._node
        if record.route is not None:
            told["route"] = record.route
        told["stream"] = self._asked(record.stream)[:STREAM_CHARS]
        if record.partition is not None:
            told["partition"] = self._partitions.of(record.partition)
        told["method"] = record.method
        told["mode"] = record.mode
        if record.status:
            told["status"] = record.status
        told["outcome"] = record.outcome
        told["duration_s"] = _micros(record.duration_s)
        if record.first_byte_s is not None:
            told["first_byte_s"] = _micros(record.first_byte_s)
        if record.start is not None:
            told["start"] = record.start
        if record.next_offset is not None:
            told["next_offset"] = record.next_offset
        told["sent_bytes"] = record.sent_bytes
        if record.saved_bytes:
            told["saved_bytes"] = record.saved_bytes
        told["fetched_bytes"] = record.fetched_bytes
        if record.origin_requests:
            told["origin_requests"] = record.origin_requests
        if record.collapsed:
            told["collapsed"] = record.collapsed
        if record.subscribers is not None:
            told["subscribers"] = record.subscribers
        if record.coding is not None:
            told["coding"] = record.coding
        if record.close_reason is not None:
            told["close_reason"] = record.close_reason
        told["is_final"] = record.is_final

    def _tell_client(self, record: Record, told: dict[str, Any]) -> None:
        if (client := self._shown(record.client)) is not None:
            told["client"] = client
        if record.user_agent is not None:
            told["user_agent"] = record.user_agent[:_AGENT_CHARS]
        if record.trace_id is not None:
            told["trace_id"] = record.trace_id

    def _asked(self, stream: str) -> str:
        """What of a stream's spelling may be written: values in a query may be credentials."""
        if self._query == "full" or "?" not in stream:
            return stream
        path, _, query = stream.partition("?")
        if self._query == "none":
            return path
        return f"{path}?{'&'.join(part.partition('=')[0] for part in query.split('&'))}"

    def _shown(self, client: str | None) -> str | None:
        """What of an address may be written."""
        if client is None or self._masking == "none":
            return None
        if self._masking == "full":
            return client
        found = self._masked.get(client)
        if found is None:
            found = self._masked[client] = _network_of(client)
        return found or None

    # -- the pieces of a hit's line, each remembered

    def _prepare(self, repeated: Repeated) -> bytes:
        told: dict[str, Any] = {}
        self._tell_facts(repeated.record, told)
        repeated.line = line = b"," + _dumped(told)[1:-2]
        return line

    def _client_piece(self, client: str | None) -> bytes:
        shown = self._shown(client)
        # A space is white space to JSON, and a piece that is not empty is found at the first look.
        piece = b" " if shown is None else b',"client":' + orjson.dumps(shown)
        self._clients[client] = piece
        return piece

    def ending(self, request: bytes) -> bytes:
        """User agent and trace as the request's bytes have them, and the end of the line."""
        if len(self.endings) > _REMEMBERED:
            self.endings.clear()
        lower = request.lower()
        at = lower.find(_TRACE_LINE)
        if at < 0:
            piece = self.endings[request] = _agent_piece(request)
            return piece
        end = lower.find(b"\r\n", at + 2)
        if lower.find(_TRACE_LINE, end) >= 0:
            # Two of them name no trace.
            return _agent_piece(request)
        # Every request has a trace of its own: the rest of it is what can be remembered.
        rest = request[:at] + request[end:]
        piece = self.endings.get(rest) or self.ending(rest)
        match = _TRACE_VALUE.fullmatch(request, at + len(_TRACE_LINE), end)
        return piece if match is None else b',"trace_id":"%b"%b' % (match[1], piece)


def _network_of(client: str) -> str:
    """The address without what tells one client from its neighbours; empty for what is no address."""
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
    """To the microsecond; `round` takes five times as long."""
    return int(seconds * 1e6 + 0.5) / 1e6


def _dumped(found: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(found, option=_OPTIONS)
    except TypeError:
        # Bytes in a header that are no UTF-8 come as lone surrogates, which JSON cannot say.
        clean = {key: _readable(value) if isinstance(value, str) else value for key, value in found.items()}
        return orjson.dumps(clean, option=_OPTIONS)


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
