"""Records in protobuf, for unary bodies and for messages of sessions (S2's data-plane page, "Protobuf messages").

`s2.proto` defines the messages, and `s2_pb2.py` is generated from it.  Only this module uses the generated classes.
Its functions convert to and from the types of `records.py`.  As usual in protobuf, unknown fields are ignored.  A field
that was not sent reads as zero or empty, unless it is marked `optional`: only such a field can be absent.

The caller limits the size of the input.  But an empty record or header takes 2 bytes and becomes a much larger object.
A message with more records or headers than S2 allows is therefore refused before the objects are created.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.s2 import s2_pb2
from gateway.s2.records import (
    MAX_BATCH_HEADERS,
    MAX_BATCH_METERED_BYTES,
    MAX_BATCH_RECORDS,
    AppendAck,
    AppendInput,
    AppendRecord,
    Header,
    ReadBatch,
    Record,
    StreamPosition,
    metered_bytes,
)

CONTENT_TYPE: Final = "application/protobuf"
"""The content type of answers."""

CONTENT_TYPES: Final = frozenset({CONTENT_TYPE, "application/x-protobuf"})
"""The content types accepted in requests."""

_LARGE_BODY: Final = 1 << 12
_RECORDS: Final = b"\x0a"
"""The tag of the field `records` of `ReadBatch`."""
_BODY: Final = b"\x22"
"""The tag of the field `body` of `SequencedRecord`, the record's last field."""

M = TypeVar("M", bound=Message)


class BadProtobuf(ValueError):
    """The bytes are not the expected protobuf message (400 `bad_proto`)."""


class InvalidProtobuf(BadProtobuf):
    """The message has more records or headers, or a larger record, than S2 allows (422 `invalid`)."""


def decode_append_input(data: bytes) -> AppendInput:
    """Decode the body of an append.  Raises `BadProtobuf`."""
    message = _parsed(s2_pb2.AppendInput, data)
    _check(message.records)
    records = tuple(
        AppendRecord(
            record.body,
            tuple(Header(header.name, header.value) for header in record.headers),
            record.timestamp if record.HasField("timestamp") else None,
        )
        for record in message.records
    )
    return AppendInput(
        records,
        message.match_seq_num if message.HasField("match_seq_num") else None,
        message.fencing_token if message.HasField("fencing_token") else None,
    )


def encode_append_input(append: AppendInput) -> bytes:
    """Encode the body of an append, or a message of an append session."""
    return s2_pb2.AppendInput(
        records=[
            s2_pb2.AppendRecord(timestamp=record.timestamp, headers=_headers(record.headers), body=record.body)
            for record in append.records
        ],
        match_seq_num=append.match_seq_num,
        fencing_token=append.fencing_token,
    ).SerializeToString()


def decode_append_ack(data: bytes) -> AppendAck:
    """Decode the answer to an append.  Raises `BadProtobuf`."""
    message = _parsed(s2_pb2.AppendAck, data)
    return AppendAck(_position(message.start), _position(message.end), _position(message.tail))


def encode_append_ack(ack: AppendAck) -> bytes:
    """Encode the answer to an append, or a message of an append session."""
    return s2_pb2.AppendAck(
        start=_position_message(ack.start), end=_position_message(ack.end), tail=_position_message(ack.tail)
    ).SerializeToString()


def decode_read_batch(data: bytes) -> ReadBatch:
    """Decode the answer to a unary read, or a message of a read session.  Raises `BadProtobuf`."""
    message = _parsed(s2_pb2.ReadBatch, data)
    _check(message.records)
    records = tuple(
        Record(
            record.seq_num,
            record.timestamp,
            tuple(Header(header.name, header.value) for header in record.headers),
            record.body,
        )
        for record in message.records
    )
    # A record's metered size exceeds its size in protobuf by at most 6 bytes: an empty record takes 2 bytes and counts
    # as 8.
    if len(data) > MAX_BATCH_METERED_BYTES - 6 and any(
        metered_bytes(record) > MAX_BATCH_METERED_BYTES for record in records
    ):
        raise InvalidProtobuf(f"a record has at most {MAX_BATCH_METERED_BYTES} metered bytes")
    return ReadBatch(records, _position(message.tail) if message.HasField("tail") else None)


def encode_read_batch(batch: ReadBatch) -> bytes:
    """Encode the answer to a unary read, or a message of a read session.

    A message of protobuf is the concatenation of its fields.  The generated classes would copy large bodies twice,
    so this function joins these bodies with the other fields itself.  1 MiB in bodies of 64 KiB takes a tenth of the
    time that the generated classes take.
    """
    parts: list[bytes] = []
    small: list[s2_pb2.SequencedRecord] = []
    for record in batch.records:
        body = record.body
        is_small = len(body) < _LARGE_BODY
        message = s2_pb2.SequencedRecord(
            seq_num=record.seq_num,
            timestamp=record.timestamp,
            headers=_headers(record.headers),
            body=body if is_small else b"",
        )
        if is_small:
            small.append(message)
            continue
        if small:
            parts.append(s2_pb2.ReadBatch(records=small).SerializeToString())
            small = []
        head = message.SerializeToString() + _BODY + _varint(len(body))
        parts += (_RECORDS + _varint(len(head) + len(body)) + head, body)
    tail = None if batch.tail is None else _position_message(batch.tail)
    parts.append(s2_pb2.ReadBatch(records=small, tail=tail).SerializeToString())
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _parsed(kind: type[M], data: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadProtobuf("the body is not the protobuf message that belongs here") from error
    return message


def _check(records: Sequence[s2_pb2.AppendRecord] | Sequence[s2_pb2.SequencedRecord]) -> None:
    """Check the number of records and headers before creating objects.  Raises `InvalidProtobuf`."""
    if len(records) > MAX_BATCH_RECORDS:
        raise InvalidProtobuf(f"a batch has at most {MAX_BATCH_RECORDS} records")
    if sum(len(record.headers) for record in records) > MAX_BATCH_HEADERS:
        raise InvalidProtobuf(f"a batch has at most {MAX_BATCH_HEADERS} headers")


def _position(message: s2_pb2.StreamPosition) -> StreamPosition:
    return StreamPosition(message.seq_num, message.timestamp)


def _position_message(position: StreamPosition) -> s2_pb2.StreamPosition:
    return s2_pb2.StreamPosition(seq_num=position.seq_num, timestamp=position.timestamp)


def _headers(headers: tuple[Header, ...]) -> list[s2_pb2.Header]:
    return [s2_pb2.Header(name=header.name, value=header.value) for header in headers]
