"""Records in JSON (S2's data-plane page, "Data in JSON")."""

from __future__ import annotations

from enum import StrEnum

from gateway.s2.records import AppendAck, AppendInput, ReadBatch, StreamPosition


class Format(StrEnum):
    """The values of the `s2-format` header."""

    RAW = "raw"
    BASE64 = "base64"


class BadJson(ValueError):
    """Bytes are not the JSON that the function reads.

    `is_syntax` is True if they are no JSON at all (400 `bad_json`), and False if it has another shape (422).
    """

    def __init__(self, message: str, *, is_syntax: bool = False) -> None:
        super().__init__(message)
        self.is_syntax = is_syntax


def parse_format(value: str | None) -> Format:
    """The format that an `s2-format` header names; raw without one.  Raises `ValueError`."""
    raise NotImplementedError


def decode_append_input(data: bytes, format_: Format) -> AppendInput:
    """Raises `BadJson`."""
    raise NotImplementedError


def encode_append_input(append: AppendInput, format_: Format) -> bytes:
    """The body of an append."""
    raise NotImplementedError


def decode_append_ack(data: bytes) -> AppendAck:
    """Raises `BadJson`."""
    raise NotImplementedError


def encode_append_ack(ack: AppendAck) -> bytes:
    """The answer to an append."""
    raise NotImplementedError


def decode_read_batch(data: bytes, format_: Format) -> ReadBatch:
    """Raises `BadJson`."""
    raise NotImplementedError


def encode_read_batch(batch: ReadBatch, format_: Format) -> bytes:
    """The answer to a unary read, and the data of an SSE batch."""
    raise NotImplementedError


def decode_tail(data: bytes) -> StreamPosition:
    """Raises `BadJson`."""
    raise NotImplementedError


def encode_tail(tail: StreamPosition) -> bytes:
    """The answer to a check of the tail, and the body of a 416."""
    raise NotImplementedError
