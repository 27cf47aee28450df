"""Writes the lines of the access log: one JSON object for each finished request, with the fields of `fields`.

The lines of repeated hits are mostly equal, and so are the lines of SSE reads that join other reads.  The common piece
of such lines is made once.  For each line, the module adds the time, the id, and remembered pieces for duration, client
and user agent.  The library orjson makes all other lines.  A test checks that both ways give the same fields.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal

import orjson

from gateway.auth.verdict import Caller
from gateway.ops.access_log.schema import METHOD_CHARS, S2, STREAM_CHARS, VERSION
from gateway.ops.partition_ids import PartitionIds
from gateway.protocol.header_forwarding import TRACEPARENT
from gateway.telemetry.access_record import Client, Record, Repeated

Masking = Literal["full", "masked", "none"]
Query = Literal["full", "names", "none"]

_AGENT_CHARS: Final = 256
_REMEMBERED: Final = 4_096
_MASKS: Final = {4: 24, 6: 48}
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE
_AGENT_LINE: Final = re.compile(rb"\r\nuser-agent:[ \t]*([^\r\n]*)", re.IGNORECASE)
_TRACE_VALUE: Final = re.compile(rb"[ \t]*" + TRACEPARENT.encode() + rb"[ \t]*")
_TRACE_LINES: Final = re.compile(rb"\r\ntraceparent:([^\r\n]*)", re.IGNORECASE)
_TRACE_LINE: Final = b"\r\ntraceparent:"
_THOUSANDTHS: Final = tuple(b'%03d,"id":"' % number for number in range(1_000))
_PROCESS_BYTES: Final = 6
"""Random bytes in an id.  Among a hundred thousand starts of gateways, the chance of two equal draws is 1 in 50,000."""


Hit = tuple[Repeated, float, float, Client, bytes]
"""A repetition of a remembered answer.  Its members are the part shared with other repetitions, the times when the
request was read and answered (monotonic seconds), the client, and the end of the line (from `Lines.ending`).  The type
is a plain tuple, because the hottest path makes it.
"""

Joined = tuple[Repeated, float, float, Client, bytes, float, int]
"""An SSE read that has most of its line in common with other reads: the parts of a `Hit`, the seconds until its first
byte, and the number of the stream's live readers.
"""

Item = Record | Hit | Joined


def cut(record: Record) -> None:
    """Shorten the client's texts in a record to the sizes that a line allows, so that a queued record stays small."""
    if len(record.stream) > STREAM_CHARS:
        record.stream = record.stream[:STREAM_CHARS]
    if len(record.method) > METHOD_CHARS:
        record.method = record.method[:METHOD_CHARS]
    if record.user_agent is not None and len(record.user_agent) > _AGENT_CHARS:
        record.user_agent = record.user_agent[:_AGENT_CHARS]


class Lines:
    """Writes records and hits as lines.  It remembers pieces of lines, within bounds."""

    def __init__(self, node: str, masking: Masking, partitions: PartitionIds, query: Query = "full") -> None:
        self._node = node
        self._masking = masking
        self._query = query
        self._partitions = partitions
        self._masked: dict[str, str] = {}
        # Do not use the injected generator, because gateways with the same seed need different ids.
        self._process = secrets.token_hex(_PROCESS_BYTES)
        self._batches = 0
        self._indexes: list[bytes] = []
        """The last parts of ids, by position in a batch."""
        self._clients: dict[Client, bytes] = {}
        self._durations: dict[int, bytes] = {}
        """The pieces of hits' lines that state a duration, by the duration in microseconds, up to `_REMEMBERED`
        microseconds.
        """
        self.endings: dict[bytes, bytes] = {}
        """The results of `ending`, by the bytes of the request or of its header section.  Callers look here first, so
        that most lines need no call."""
        self._facts: dict[bytes, tuple[str | None, str | None]] = {}
        """User agents and trace ids of live reads, by header section."""

    def written(self, items: Sequence[Item], wall_lead_s: float) -> bytes:
        """Return the lines of `items`, in order.  `wall_lead_s` is the wall clock's time minus the monotonic clock's
        time.
        """
        pieces: list[bytes] = []
        add, clients, durations = pieces.extend, self._clients, self._durations
        self._forget()
        batch = self._batch()
        begin = batch.encode()
        indexes = self._indexes
        while len(indexes) < len(items):
            indexes.append(b'%x"' % len(indexes))
        stamp, stamped = b"", -1
        for index, item in zip(indexes, items, strict=False):
            if isinstance(item, Record):
                pieces.append(self._line(item, batch + index[:-1].decode()))
                continue
            if len(item) == 5:
                repeated, began, ended, client, ending = item
                took = int((ended - began) * 1e6 + 0.5)
                times = durations.get(took) or self._duration_piece(took)
            else:
                repeated, began, ended, client, ending, first_byte_s, subscribers = item
                times = _joined_piece(int((ended - began) * 1e6 + 0.5), int(first_byte_s * 1e6 + 0.5), subscribers)
            # Format the time once for each millisecond, because formatting the number costs as much as making the rest
            # of the line.
            micros = int((ended + wall_lead_s) * 1e6 + 0.5)
            if (millis := micros // 1_000) != stamped:
                stamped, stamp = millis, b'{"time":%d.%03d' % divmod(millis, 1_000)
            common, who = repeated.line or self._prepare(repeated), clients.get(client) or self._client_piece(client)
            add((stamp, _THOUSANDTHS[micros % 1_000], begin, index, times, common, who, ending))
        return b"".join(pieces)

    @property
    def remembered(self) -> int:
        """The number of entries in the largest cache of pieces."""
        return max(len(self._clients), len(self._masked), len(self._durations), len(self.endings), len(self._facts))

    def _forget(self) -> None:
        # The caches of pieces are plain dictionaries that are cleared when full.  LRU order would cost more than making
        # the pieces again.
        for remembered in (self._clients, self._masked, self._facts):
            if len(remembered) > _REMEMBERED:
                remembered.clear()

    def line(self, record: Record) -> bytes:
        """Return the line of one record."""
        return self._line(record, self._batch() + "0")

    def _batch(self) -> str:
        """Begin a batch.  Returns the prefix of its ids."""
        self._batches += 1
        return f"{self._process}.{self._batches:x}."

    def _line(self, record: Record, id_: str) -> bytes:
        fields: dict[str, Any] = {"time": _micros(record.ended_at), "id": id_}
        self._add_facts(record, fields)
        fields["duration_s"] = _micros(record.duration_s)
        if record.first_byte_s is not None:
            fields["first_byte_s"] = _micros(record.first_byte_s)
        self._add_client(record, fields)
        return _dumped(fields)

    def _add_facts(self, record: Record, fields: dict[str, Any]) -> None:
        """Add all fields except the id, the times, and the fields that identify the client."""
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
        named = (("principal", record.principal), ("tenant", record.tenant), ("issuer", record.issuer))
        fields.update((name, value) for name, value in named if value)
        if record.user_agent is not None:
            fields["user_agent"] = record.user_agent[:_AGENT_CHARS]
        if record.trace_id is not None:
            fields["trace_id"] = record.trace_id

    def _loggable_target(self, stream: str) -> str:
        """Return the target in the form that `log.query` selects, because values in a query may be credentials."""
        if self._query == "full" or "?" not in stream:
            return stream
        path, _, query = stream.partition("?")
        if self._query == "none":
            return path
        return f"{path}?{'&'.join(part.partition('=')[0] for part in query.split('&'))}"

    def _loggable_client(self, client: str | None) -> str | None:
        """Return the address in the form that `log.client_address` selects."""
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

    def _duration_piece(self, micros: int) -> bytes:
        seconds = b"%d.%06d" % divmod(micros, 1_000_000)
        # The answer goes to the connection in one piece, so both times are equal.
        piece = b',"duration_s":%b,"first_byte_s":%b' % (seconds, seconds)
        if micros < _REMEMBERED:
            # Remember only durations of hits, which take a few microseconds and repeat.  The durations of long-polls
            # almost never repeat.
            self._durations[micros] = piece
        return piece

    def _client_piece(self, client: Client) -> bytes:
        caller = client if isinstance(client, Caller) else Caller(client, "", "", "")
        named = (("client", self._loggable_client(caller.address)), *zip(Caller._fields[1:], caller[1:], strict=True))
        pieces = [b',"%b":%b' % (name.encode(), _dumped({"": value})[4:-2]) for name, value in named if value]
        # Use a space, which is valid in JSON, because an empty piece would count as not remembered.
        piece = b"".join(pieces) or b" "
        self._clients[client] = piece
        return piece

    def facts_of(self, section: bytes) -> tuple[str | None, str | None]:
        """Return the user agent and the trace id in a header section."""
        facts = self._facts.get(section)
        if facts is None:
            agent, traces = _AGENT_LINE.search(section), _TRACE_LINES.findall(section)
            trace = _TRACE_VALUE.fullmatch(traces[0]) if len(traces) == 1 else None
            facts = (
                agent[1].decode("utf-8", "surrogateescape").rstrip(" \t")[:_AGENT_CHARS] if agent is not None else None,
                trace[1].decode() if trace is not None else None,
            )
            if not traces:
                if len(self._facts) > _REMEMBERED:
                    # Keep the cache bounded here too, because many readers may come before a line is written.
                    self._facts.clear()
                self._facts[section] = facts
        return facts

    def ending(self, request: bytes) -> bytes:
        """Return the end of a line: the user agent and the trace id in the request's bytes, and the closing brace."""
        if len(self.endings) > _REMEMBERED:
            self.endings.clear()
        lower = request.lower()
        at = lower.find(_TRACE_LINE)
        if at < 0:
            piece = self.endings[request] = _agent_piece(request)
            return piece
        end = lower.find(b"\r\n", at + 2)
        if lower.find(_TRACE_LINE, end) >= 0:
            # A request with two traceparent headers has no trace.
            return _agent_piece(request)
        # Trace ids differ for each request, so remember the piece for the other bytes.
        rest = request[:at] + request[end:]
        piece = self.endings.get(rest) or self.ending(rest)
        match = _TRACE_VALUE.fullmatch(request, at + len(_TRACE_LINE), end)
        return piece if match is None else b',"trace_id":"%b"%b' % (match[1], piece)


def _joined_piece(took_us: int, first_us: int, subscribers: int) -> bytes:
    took, first = divmod(took_us, 1_000_000), divmod(first_us, 1_000_000)
    return b',"duration_s":%d.%06d,"first_byte_s":%d.%06d,"subscribers":%d' % (*took, *first, subscribers)


def _network_of(client: str) -> str:
    """Return the network part of an address.  Empty if the text is not an address."""
    try:
        # A link-local address may end with the name of an interface.
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
    """Round to the microsecond.  The function `round` takes five times as long."""
    return int(seconds * 1e6 + 0.5) / 1e6


def _dumped(found: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(found, option=_OPTIONS)
    except TypeError:
        # Header bytes that are not UTF-8 arrive as lone surrogates, which JSON does not allow.
        clean = {key: _readable(value) if isinstance(value, str) else value for key, value in found.items()}
        return orjson.dumps(clean, option=_OPTIONS)


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
