"""The query of a read (S2's API reference, "Read records")."""

from __future__ import annotations

from dataclasses import dataclass


class BadQuery(ValueError):
    """A read's query is not valid; `is_syntax` tells 400 `bad_query` from 422 `invalid`."""

    def __init__(self, message: str, *, is_syntax: bool = False) -> None:
        super().__init__(message)
        self.is_syntax = is_syntax


@dataclass(frozen=True, slots=True)
class FromSeqNum:
    """Start at a sequence number."""

    seq_num: int


@dataclass(frozen=True, slots=True)
class FromTimestamp:
    """Start at the first record at or after a timestamp."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class FromTailOffset:
    """Start this many records before the tail."""

    tail_offset: int


Start = FromSeqNum | FromTimestamp | FromTailOffset


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """What a read asks for.  None leaves a limit out; `wait_s` is in seconds."""

    start: Start = FromTailOffset(0)
    count: int | None = None
    bytes: int | None = None
    until: int | None = None
    wait_s: int | None = None
    is_clamped: bool = False


def parse_read_query(query: str) -> ReadQuery:
    """Parse a query string, without its question mark.  Raises `BadQuery`."""
    raise NotImplementedError


def encode_read_query(query: ReadQuery) -> str:
    """The query string of a read."""
    raise NotImplementedError
