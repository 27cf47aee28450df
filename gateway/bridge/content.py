"""Records as the content of a stream: the records of a page that readers see, and the three forms of content.

Commands are not part of the content.  They take sequence numbers, so an offset may lead over them without bytes.

The mark of the close is a `fence` command with the token `CLOSE_TOKEN`.  Its sequence number is the stream's final
offset, and nothing after it is part of the stream.  The same command keeps writers out: every append of the bridge
names the token of a stream without a fence, so the origin refuses it, in one step with its decision on the order of the
appends.

The forms are:

    json       The body of each record is one message.  A record whose body is not JSON appears as the message
               `{"s2_record": ...}` with the record in envelope form, so that it does not keep readers from the rest.
    bytes      The bodies follow each other.
    envelope   Each record is one message `{"seq_num", "timestamp", "headers", "body"}`.  A record with bytes that are
               not UTF-8 has them all in base64, and says so by `"format": "base64"`.

The first and the last are JSON streams.  An append's messages are records in the same form, and its bytes are one
record.

JSON bodies are cut into messages without a change to any of them (section 7.1).  An append's body is one message, or an
array of messages: exactly one level of array is removed.  The messages keep their bytes.  Parsed and written again they
would not: numbers would lose digits, and objects repeated names.

A parser makes an object of each value, and arrays and objects cost the most: 2 MiB of `[]` took 0.2 s of processor
time.  More than half of that was the garbage collector, which new containers start.  It can find no garbage among the
containers of a parser, so it is stopped meanwhile.  The other half is bounded by counting the containers first.
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
"""The fencing token of a stream without a fence."""

CLOSE_RECORD: Final[AppendRecord] = command_record(Fence(CLOSE_TOKEN))


@dataclass(frozen=True, slots=True)
class Page:
    """A run of a stream's content."""

    records: tuple[Record, ...]
    """The records of data."""
    end: int
    """The sequence number after the run; of a closed stream that is read to its end, that of the mark."""
    is_closed: bool
    trimmed: int = 0
    """The first sequence number that the trims among the records have left, at most `end`; 0 if there is none."""


def is_close(record: Record) -> bool:
    """Whether the record is the mark of the close."""
    return is_command(record) and record.headers == CLOSE_RECORD.headers and record.body == CLOSE_RECORD.body


def page_of(records: Sequence[Record]) -> Page:
    """The page that readers see of one or more consecutive records."""
    data: list[Record] = []
    closed_at: int | None = None
    for record in records:
        if not is_command(record):
            data.append(record)
        elif is_close(record):
            closed_at = record.seq_num
            break
    end = records[-1].seq_num + 1 if closed_at is None else closed_at
    # Records behind the mark may be trimmed, too.
    return Page(tuple(data), end, closed_at is not None, min(trimmed_by(records), end))


def trimmed_by(records: Iterable[Record]) -> int:
    """The first sequence number that the trims among the records have left; 0 if there is none."""
    trimmed = 0
    for record in records:
        match _command(record):
            case Trim(seq_num):
                # A trim removes no record that comes after it.
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
"""Arrays and objects in the body of an append: one for each 8 bytes of the 1 MiB that S2 takes."""

_SPACE: Final = " \t\r\n"


class BadMessages(ValueError):
    """The body is not JSON."""


class TooManyContainers(ValueError):
    """The body has more than `MOST_CONTAINERS` arrays and objects."""


def is_message(body: bytes) -> bool:
    """Whether the bytes are one JSON text in UTF-8."""
    with _collector_at_rest():
        return is_json(body)


def split_messages(body: bytes, most: int = MAX_BATCH_RECORDS) -> list[bytes]:
    """The messages of an append's body; none for an empty array.  Raises `BadMessages` or `TooManyContainers`.

    If there are more than `most`, only one more of them is returned: an array of a million takes a second to cut.
    """
    if _containers(body) > MOST_CONTAINERS:
        raise TooManyContainers
    # One parser decides what is JSON, so that what is appended is also what reads take for a message.
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
    """How many arrays and objects the body begins; at most so many, if all of it cannot be too many."""
    most = body.count(b"[") + body.count(b"{")
    if most <= MOST_CONTAINERS:
        return most
    # Leave out the strings, whose brackets begin no container.
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return outside.count(b"[") + outside.count(b"{")


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Stop the garbage collector, which would only look through the objects that a parser has just made."""
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
"""Only the ends of the values matter: numbers stay text, because a long one takes quadratic time to convert."""


class BadContent(ValueError):
    """An append's body is no content of the stream; the message is one line for the client."""


class TooMuchContent(BadContent):
    """An append's body would take too long to read."""


class Content(ABC):
    """How records are shown, and what an append's body becomes."""

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type
        self.is_base64 = not is_sse_text(content_type)
        """Whether SSE carries it in base64 (section 5.8)."""

    def accepts(self, content_type: str) -> bool:
        """Whether a stream of this type is such a stream; parameters do not count."""
        return media_type(content_type) == media_type(self.content_type)

    @abstractmethod
    def body(self, records: Sequence[Record]) -> bytes:
        """The bytes that a reader receives of these records."""

    @abstractmethod
    def records(self, body: bytes) -> tuple[AppendRecord, ...]:
        """The records to append for this body; none if it is empty in the stream's terms.  Raises `BadContent`."""


class BytesContent(Content):
    """The records' bodies in a row."""

    def body(self, records: Sequence[Record]) -> bytes:
        return b"".join(record.body for record in records)

    def records(self, body: bytes) -> tuple[AppendRecord, ...]:
        return (AppendRecord(body),) if body else ()


class JsonContent(Content):
    """The content in which each record is one JSON message."""

    def __init__(self) -> None:
        super().__init__(JSON_TYPE)

    def body(self, records: Sequence[Record]) -> bytes:
        return b"[" + b",".join(map(_message, records)) + b"]"

    def records(self, body: bytes) -> tuple[AppendRecord, ...]:
        return tuple(AppendRecord(message) for message in _messages(body))


class EnvelopeContent(Content):
    """The content in which each message is a record with its headers and its timestamp."""

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
        # JSON, but a record holds text, and this has half of a surrogate pair or a number that no field takes.
        raise BadContent(f"Not a record: {error}") from None
    form = fields.get(_FORMAT, Format.RAW.value) if isinstance(fields, dict) else None
    if form not in tuple(Format):
        raise BadContent("A message is an object with headers, body and timestamp; its format is raw or base64")
    try:
        (record,) = decode_append_input(b'{"records":[' + message + b"]}", Format(form)).records
    except BadJson as error:
        raise BadContent(f"Not a record: {error}") from None
    if any(not header.name for header in record.headers):
        # It would be a command, which trims or fences the stream.
        raise BadContent("A header needs a name")
    return record


_WRAPPED: Final = "s2_record"
_FORMAT: Final = "format"
