"""Server-sent events as Durable Streams uses them (section 5.8): a parser for origins, an encoder for clients.

The parser is incremental: it takes pieces of any size and returns whole events.  An event is returned only after its
blank line has arrived.  Half an event at the end of a broken connection is therefore never delivered.  Lines end in CR,
LF or CRLF, even if a CRLF is split between two pieces.  Each byte is examined a constant number of times, however small
the pieces are.  An unfinished line waits in one growing buffer.  `bytes.splitlines` splits whole lines at exactly these
three line ends.

The encoder produces complete events.  SSE preserves JSON and base64.  It does not preserve other text exactly, because
a CR is received as an LF.  Text streams must therefore not be copied by way of SSE.  A payload is encoded as one piece.
A caller that divides a text stream into events must therefore divide it between characters, and not inside a CRLF.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from gateway.protocol import names
from gateway.protocol.names import EVENT_CONTROL, EVENT_DATA

HEARTBEAT: Final = b": heartbeat\n\n"
"""A comment that keeps an idle connection alive.  Clients do not report comments as events."""

DEFAULT_MAX_EVENT_BYTES: Final = 16 * 1024 * 1024

_BOM: Final = b"\xef\xbb\xbf"
_DATA_HEAD: Final = f"event: {EVENT_DATA}\ndata:".encode()
_CONTROL_HEAD: Final = f"event: {EVENT_CONTROL}\ndata:".encode()
_NAME_LINES: Final = {f"event: {name}".encode(): name.encode() for name in (EVENT_DATA, EVENT_CONTROL)}
_NAMES: Final = {EVENT_DATA.encode(): EVENT_DATA, EVENT_CONTROL.encode(): EVENT_CONTROL}


class SseTooLarge(ValueError):
    """An event exceeds the parser's limit."""


class SseEvent(NamedTuple):
    """A whole event: its name (by default `message`), its data lines joined by LF, and its id line."""

    name: str
    data: bytes
    id: str = ""


class SseParser:
    """Cuts a byte stream into whole events.  Each connection needs its own parser.

    `max_event_bytes` limits the total size of an event's lines, including field names but not line ends.  A longer
    event raises `SseTooLarge`, after which the parser must not be used.
    """

    __slots__ = ("_at_start", "_data", "_id", "_max_event_bytes", "_name", "_pending", "_size", "_skip_lf", "comments")

    def __init__(self, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self.comments = 0
        """The number of comment lines so far.  An idle origin sends them as heartbeats."""
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._at_start = True
        self._skip_lf = False
        self._name = b""
        self._id = ""
        self._data: list[bytes] = []
        self._size = 0

    @property
    def is_between_events(self) -> bool:
        """Whether no incomplete event has been received."""
        return not self._pending and not self._data

    def feed(self, data: bytes) -> list[SseEvent]:
        """Parse the next bytes.  Return the events that they complete, in order.  Raises `SseTooLarge`."""
        if self._at_start:
            data = self._without_bom(data)
            if self._at_start:
                return []
        if self._skip_lf and data:
            # The last piece ended in CR, which ended a line.  An LF directly after it belongs to the same line end.
            self._skip_lf = False
            if data[0] == 0x0A:
                data = data[1:]
        last_lf = data.rfind(b"\n")
        end = max(last_lf, data.rfind(b"\r", last_lf + 1)) + 1
        if end == 0:
            self._hold(data)
            return []
        whole = data[:end] if end < len(data) else data
        if self._pending:
            self._pending += whole
            whole = bytes(self._pending)
            self._pending.clear()
        # Only a CR that is the very last byte can be followed by an LF in the next piece.
        self._skip_lf = end == len(data) and whole[-1] == 0x0D
        events = self._take_lines(whole)
        if end < len(data):
            self._hold(data[end:])
        return events

    def _without_bom(self, data: bytes) -> bytes:
        """Return the bytes after an optional byte order mark.  Empty until enough bytes have arrived to decide."""
        head = bytes(self._pending) + data
        self._pending.clear()
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._pending += head
            return b""
        self._at_start = False
        return head.removeprefix(_BOM)

    def _hold(self, piece: bytes) -> None:
        """Keep the beginning of a line until the rest of the line arrives."""
        self._pending += piece
        if self._size + len(self._pending) > self._max_event_bytes:
            raise SseTooLarge(f"an event is larger than {self._max_event_bytes} bytes")

    def _take_lines(self, whole: bytes) -> list[SseEvent]:
        """Apply complete lines to the current event.  Return the events that have ended."""
        events: list[SseEvent] = []
        for line in whole.splitlines():
            if not line:
                if self._data:
                    name = _NAMES.get(self._name) or self._name.decode("utf-8", "replace") or "message"
                    joined = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(SseEvent(name, joined, self._id))
                    self._data = []
                # An event without a data line is not dispatched, and its name and id are dropped.
                self._name = b""
                self._id = ""
                self._size = 0
                continue
            if self._size + len(line) > self._max_event_bytes:
                raise SseTooLarge(f"an event is larger than {self._max_event_bytes} bytes")
            if line[0] == 0x3A:
                # Comments do not count towards an event's size, because an idle origin may send them for hours.
                self.comments += 1
                continue
            self._size += len(line)
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                continue
            if (known := _NAME_LINES.get(line)) is not None:
                self._name = known
                continue
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                # A data line without a colon.
                self._data.append(value)
            elif field == b"event":
                self._name = value
            elif field == b"id":
                self._id = value.decode("utf-8", "replace")
        return events


class Control(NamedTuple):
    """A control event: the position after the preceding data event (section 5.8).

    `cursor` is None only if the stream is closed.  A closed stream is always up to date.
    """

    next_offset: str
    cursor: str | None
    up_to_date: bool
    is_closed: bool


def parse_control(data: bytes) -> Control:
    """Parse a control event's JSON.

    Unknown fields are ignored, and `null` in an optional field counts as absent.  Raises `ValueError` with a one-line
    reason.
    """
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError("control event is not JSON") from error
    if not isinstance(fields, dict):
        raise ValueError("control event is not a JSON object")
    next_offset = fields.get("streamNextOffset")
    if not isinstance(next_offset, str):
        raise ValueError("control event has no streamNextOffset string")
    if not names.is_position(next_offset):
        raise ValueError("control event has a streamNextOffset that is not an offset")
    cursor = fields.get("streamCursor")
    if cursor is not None and not isinstance(cursor, str):
        raise ValueError("control event has a streamCursor that is not a string")
    is_closed = _flag(fields, "streamClosed")
    up_to_date = _flag(fields, "upToDate") or is_closed
    return Control(next_offset, cursor, up_to_date, is_closed)


def _flag(fields: dict[str, object], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ValueError(f"control event has a {name} that is not true or false")
    return value


def encode_control(control: Control) -> bytes:
    """Return a whole control event, including the final blank line.

    The event of a closed stream states `upToDate`.  It has no cursor, because the client does not reconnect.  Raises
    `ValueError` for an open stream without a cursor (section 8.1 requires one).
    """
    fields: dict[str, object] = {"streamNextOffset": control.next_offset}
    if not control.is_closed:
        if control.cursor is None:
            raise ValueError("the control event of an open stream needs a cursor")
        fields["streamCursor"] = control.cursor
    if control.up_to_date or control.is_closed:
        fields["upToDate"] = True
    if control.is_closed:
        fields["streamClosed"] = True
    return _CONTROL_HEAD + orjson.dumps(fields) + b"\n\n"


def encode_data(payload: bytes | Sequence[bytes], *, base64: bool) -> bytes:
    """Return a whole data event, including the final blank line.  The pieces of `payload` are joined.

    Base64 is one line of standard base64 with padding.  It is empty for an empty payload.  Text becomes one `data:`
    line for each line of the payload.  A trailing newline becomes a trailing empty line, and is restored when the
    client joins the lines.
    """
    body = payload if isinstance(payload, bytes) else b"".join(payload)
    if base64:
        return _DATA_HEAD + binascii.b2a_base64(body, newline=False) + b"\n\n"
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\n" in body:
        body = body.replace(b"\n", b"\ndata:")
        body = body.replace(b"\ndata: ", b"\ndata:  ")
    # Parsers drop one space after the colon, so a line that begins with a space gets a second space.
    return (_DATA_HEAD + b" " if body.startswith(b" ") else _DATA_HEAD) + body + b"\n\n"
