"""Records in protobuf (S2's data-plane page, "Protobuf messages")."""

from __future__ import annotations

from gateway.s2.records import AppendAck, AppendInput, ReadBatch


class BadProtobuf(ValueError):
    """Bytes are not the protobuf message that the function reads (400 `bad_proto`)."""


def decode_append_input(data: bytes) -> AppendInput:
    """Raises `BadProtobuf`."""
    raise NotImplementedError


def encode_append_input(append: AppendInput) -> bytes:
    """The body of an append, and a message of an append session."""
    raise NotImplementedError


def decode_append_ack(data: bytes) -> AppendAck:
    """Raises `BadProtobuf`."""
    raise NotImplementedError


def encode_append_ack(ack: AppendAck) -> bytes:
    """The answer to an append."""
    raise NotImplementedError


def decode_read_batch(data: bytes) -> ReadBatch:
    """Raises `BadProtobuf`."""
    raise NotImplementedError


def encode_read_batch(batch: ReadBatch) -> bytes:
    """The answer to a unary read, and a message of a read session."""
    raise NotImplementedError
