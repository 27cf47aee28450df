"""Records as the content of a stream: the records that readers see, and the three forms of content.

Commands are not part of the content.  Commands have sequence numbers, so an offset may advance without bytes.

A stream is closed by a `fence` command with the token `CLOSE_TOKEN`, the *close marker*.  The marker's sequence number
is the stream's final offset, and records after the marker are ignored.  The marker also stops further appends: each
append of the bridge carries `OPEN_TOKEN`, and S2 refuses it if the stream has another fencing token.

The forms are:

    json       The body of each record is one message.  A record whose body is not JSON becomes the message
               `{"s2_record": ...}` with the record in envelope form, so that the rest of the stream stays readable.
    bytes      The bodies are concatenated.
    envelope   Each record is one message `{"seq_num", "timestamp", "headers", "body"}`.  If the record has bytes that
               are not UTF-8, all its bytes are in base64, and the message has `"format": "base64"`.

`json` and `envelope` are JSON streams.  An append turns each message into a record in the same form.  In a `bytes`
stream, the body of an append becomes one record.

JSON bodies are cut into messages, and no message is changed (section 7.1).  The body of an append is one message or an
array of messages: exactly one level of array is removed.  Messages are not parsed and serialised again, because numbers
could lose digits, and objects could lose repeated names.

Parsing creates an object for each value, and arrays and objects (containers) cost the most: 2 MiB of `[]` took 0.2 s of
processor time.  More than half of this time was garbage collection, triggered by new containers.  The collector finds
nothing during parsing, so it is paused.  Bodies with too many containers are refused before parsing.
"""

from __future__ import annotations

import binascii
import gc
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Never

import orjson

from gateway.protocol.json_body import is_json
from gateway.protocol.names import JSON_TYPE, is_sse_text, media_type
from gateway.s2.json_format import BadJson, Format, decode_append_input
from gateway.s2.records import (
    MAX_BATCH_RECORDS,
    AppendRecord,
    Command,
    Fence,
    InvalidAppend,
    Record,
    Trim,
    command_of,
    command_record,
    is_command,
)

CLOSE_TOKEN: Final = "durable-streams-closed"
"""The fencing token of a closed stream."""

OPEN_TOKEN: Final = ""
"""The empty fencing token, which a stream has until it is fenced."""

CLOSE_RECORD: Final[AppendRecord] = command_record(Fence(CLOSE_TOKEN))


@dataclass(frozen=True, slots=True)
class Page:
    """The content of consecutive records."""

    records: tuple[Record, ...]
    """The records other than commands."""
    end: int
    """The sequence number after the page.  On the last page of a closed stream, it is the sequence number of the close
    marker."""
    is_closed: bool
    trimmed: int = 0
    """The sequence number of the first record left by the trims in the page (`trimmed_by`), but at most `end`."""


def is_close(record: Record) -> bool:
    """Return whether the record is the close marker."""
    return is_command(record) and record.headers == CLOSE_RECORD.headers and record.body == CLOSE_RECORD.body


def page_of(records: Sequence[Record]) -> Page:
    """Return the content of one or more consecutive records."""
    data: list[Record] = []
    closed_at: int | None = None
    for record in records:
        if not is_command(record):
            data.append(record)
        elif is_close(record):
            closed_at = record.seq_num
            break
    end = records[-1].seq_num + 1 if closed_at is None else closed_at
    # A trim after the close marker may name a sequence number beyond the end.
    return Page(tuple(data), end, closed_at is not None, min(trimmed_by(records), end))


def trimmed_by(records: Iterable[Record]) -> int:
    """Return the sequence number of the first record left by the trim commands in `records`; 0 without trims."""
    trimmed = 0
    for record in records:
        match _command(record):
            case Trim(seq_num):
                # A trim command cannot remove records that come after the command.
                trimmed = max(trimmed, min(seq_num, record.seq_num + 1))
            case _:
                pass
    return trimmed


def _command(record: Record) -> Command | None:
    try:
        return command_of(record)
    except InvalidAppend:
        # A command of a later version of S2.
        return None


MOST_CONTAINERS: Final = 1 << 17
"""The most arrays and objects in the body of an append: one for each 8 bytes of the 1 MiB that S2 accepts."""

_SPACE: Final = " \t\r\n"


class BadMessages(ValueError):
    """The body is not JSON."""


class TooManyContainers(ValueError):
    """The body has more than `MOST_CONTAINERS` arrays and objects."""


def is_message(body: bytes) -> bool:
    """Return whether the bytes are one JSON text in UTF-8."""
    with _collector_at_rest():
        return is_json(body)


def split_messages(body: bytes, most: int = MAX_BATCH_RECORDS) -> list[bytes]:
    """Split the body of an append into messages; none for an empty array.  Raises BadMessages or TooManyContainers.

    If the body has more than `most` messages, only `most + 1` are returned: cutting an array of a million messages
    takes a second.
    """
    if _containers(body) > MOST_CONTAINERS:
        raise TooManyContainers
    # Validate with the parser that reads use, so that appended messages are readable.
    if not is_message(body):
        raise BadMessages
    text = body.decode()
    at = _skip(text, 0)
    if text[at] != "[":
        return [text.strip(_SPACE).encode()]
    found: list[bytes] = []
    at = _skip(text, at + 1)
    with _collector_at_rest():
        while text[at] != "]" and len(found) <= most:
            try:
                _, end = _decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                raise BadMessages from error
            found.append(text[at:end].encode())
            at = _skip(text, end)
            if text[at] == ",":
                at = _skip(text, at + 1)
    return found


def _containers(body: bytes) -> int:
    """Return the number of arrays and objects in the body.  The result may be higher than the true number, but is above
    `MOST_CONTAINERS` only if the true number is."""
    most = body.count(b"[") + body.count(b"{")
    if most <= MOST_CONTAINERS:
        return most
    # Do not count brackets in strings, because these do not begin containers.
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return outside.count(b"[") + outside.count(b"{")


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Pause the garbage collector, which would only scan the objects that a parser creates."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _refuse(name: str) -> Never:
    raise ValueError(name)


_decoder: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
"""Finds only the ends of values.  Numbers stay text, because converting a long number takes quadratic time."""


class BadContent(ValueError):
    """The body of an append is not valid content of the stream.  The message is one line for the client."""


class TooMuchContent(BadContent):
    """The body of an append would take too long to parse."""


class Content(ABC):
    """A form of content: converts records to bytes, and converts the bodies of appends to records."""

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type
        self.is_base64 = not is_sse_text(content_type)
        """Whether SSE carries the content in base64 (section 5.8)."""

    def accepts(self, content_type: str) -> bool:
        """Return whether this content type is the content type of the stream; parameters are ignored."""
        return media_type(content_type) == media_type(self.content_type)

    @abstractmethod
    def body(self, records: Sequence[Record]) -> bytes:
        """Return the bytes that a reader receives for these records."""

    @abstractmethod
    def records(self, body: bytes) -> tuple[AppendRecord, ...]:
        """Return the records to append for this body; no records if the body is empty or an empty array.  Raises
        `BadContent`."""


class BytesContent(Content):
    """The concatenated bodies of records."""

    def body(self, records: Sequence[Record]) -> bytes:
        return b"".join(record.body for record in records)

    def records(self, body: bytes) -> tuple[AppendRecord, ...]:
        return (AppendRecord(body),) if body else ()


class JsonContent(Content):
    """Content in which each record is one JSON message."""

    def __init__(self) -> None:
        super().__init__(JSON_TYPE)

    def body(self, records: Sequence[Record]) -> bytes:
        return b"[" + b",".join(map(_message, records)) + b"]"

    def records(self, body: bytes) -> tuple[AppendRecord, ...]:
        return tuple(AppendRecord(message) for message in _messages(body))


class EnvelopeContent(Content):
    """Content in which each message is a record with its headers and timestamp."""

    def __init__(self) -> None:
        super().__init__(JSON_TYPE)

    def body(self, records: Sequence[Record]) -> bytes:
        return orjson.dumps(list(map(_envelope, records)))

    def records(self, body: bytes) -> tuple[AppendRecord, ...]:
        return tuple(map(_from_envelope, _messages(body)))


def _messages(body: bytes) -> list[bytes]:
    try:
        return split_messages(body)
    except BadMessages:
        raise BadContent("Invalid JSON") from None
    except TooManyContainers:
        raise TooMuchContent(f"An append has at most {MOST_CONTAINERS} arrays and objects on this stream") from None


def _message(record: Record) -> bytes:
    return record.body if is_message(record.body) else orjson.dumps({_WRAPPED: _envelope(record)})


def _envelope(record: Record) -> dict[str, object]:
    try:
        headers = [[header.name.decode(), header.value.decode()] for header in record.headers]
        body = record.body.decode()
        form = {}
    except UnicodeDecodeError:
        headers = [[_base64(header.name), _base64(header.value)] for header in record.headers]
        body = _base64(record.body)
        form = {_FORMAT: Format.BASE64.value}
    return {"seq_num": record.seq_num, "timestamp": record.timestamp, "headers": headers, "body": body, **form}


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _from_envelope(message: bytes) -> AppendRecord:
    try:
        fields = orjson.loads(message)
    except orjson.JSONDecodeError as error:
        # The text is JSON, but has half a surrogate pair, or a number that no field can hold.
        raise BadContent(f"Not a record: {error}") from None
    form = fields.get(_FORMAT, Format.RAW.value) if isinstance(fields, dict) else None
    if form not in tuple(Format):
        raise BadContent("A message is an object with headers, body and timestamp; its format is raw or base64")
    try:
        (record,) = decode_append_input(b'{"records":[' + message + b"]}", Format(form)).records
    except BadJson as error:
        raise BadContent(f"Not a record: {error}") from None
    if any(not header.name for header in record.headers):
        # Such a record would be a command, which could trim or fence the stream.
        raise BadContent("A header needs a name")
    return record


_WRAPPED: Final = "s2_record"
_FORMAT: Final = "format"
