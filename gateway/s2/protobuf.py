"""Records in protobuf, as bodies of unary requests and as the messages of sessions (S2's data-plane page, "Protobuf
messages").

`s2.proto` has the messages and `s2_pb2.py` is generated from it.  Nothing outside this module sees a message: functions
here decode to the types of `records.py` and encode from them.  As usual in protobuf, unknown fields are ignored and an
absent number, string or message is zero or empty; only the fields marked `optional` can be absent.

What a decoder makes of bytes is bounded by the caller's bound on their number.  An empty record or header takes 2 bytes
and an object of many more, so a message with more of them than S2 allows is refused before the objects are made.
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
"""What answers are sent with."""

CONTENT_TYPES: Final = frozenset({CONTENT_TYPE, "application/x-protobuf"})
"""What requests may say."""

M = TypeVar("M", bound=Message)


class BadProtobuf(ValueError):
    """Bytes are not the protobuf message that the function reads (400 `bad_proto`)."""


class InvalidProtobuf(BadProtobuf):
    """A message has more records or headers, or a larger record, than S2 allows (422 `invalid`)."""


def decode_append_input(data: bytes) -> AppendInput:
    """The body of an append.  Raises `BadProtobuf`."""
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
    """The body of an append, and a message of an append session."""
    return s2_pb2.AppendInput(
        records=[
            s2_pb2.AppendRecord(timestamp=record.timestamp, headers=_headers(record.headers), body=record.body)
            for record in append.records
        ],
        match_seq_num=append.match_seq_num,
        fencing_token=append.fencing_token,
    ).SerializeToString()


def decode_append_ack(data: bytes) -> AppendAck:
    """The answer to an append.  Raises `BadProtobuf`."""
    message = _parsed(s2_pb2.AppendAck, data)
    return AppendAck(_position(message.start), _position(message.end), _position(message.tail))


def encode_append_ack(ack: AppendAck) -> bytes:
    """The answer to an append, and a message of an append session."""
    return s2_pb2.AppendAck(
        start=_position_message(ack.start), end=_position_message(ack.end), tail=_position_message(ack.tail)
    ).SerializeToString()


def decode_read_batch(data: bytes) -> ReadBatch:
    """The answer to a unary read, and a message of a read session.  Raises `BadProtobuf`."""
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
    # A record takes at most 6 metered bytes more than bytes here: without a body it takes 2 and counts as 8.
    if len(data) > MAX_BATCH_METERED_BYTES - 6 and any(
        metered_bytes(record) > MAX_BATCH_METERED_BYTES for record in records
    ):
        raise InvalidProtobuf(f"a record has at most {MAX_BATCH_METERED_BYTES} metered bytes")
    return ReadBatch(records, _position(message.tail) if message.HasField("tail") else None)


def encode_read_batch(batch: ReadBatch) -> bytes:
    """The answer to a unary read, and a message of a read session."""
    return s2_pb2.ReadBatch(
        records=[
            s2_pb2.SequencedRecord(
                seq_num=record.seq_num,
                timestamp=record.timestamp,
                headers=_headers(record.headers),
                body=record.body,
            )
            for record in batch.records
        ],
        tail=None if batch.tail is None else _position_message(batch.tail),
    ).SerializeToString()


def _parsed(kind: type[M], data: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadProtobuf("the body is not the protobuf message that belongs here") from error
    return message


def _check(records: Sequence[s2_pb2.AppendRecord] | Sequence[s2_pb2.SequencedRecord]) -> None:
    """Bound the objects that are to be made.  Raises `InvalidProtobuf`."""
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
