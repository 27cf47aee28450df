"""The records of S2 and what every encoding of them has in common (S2's data-plane page, "Operations").

A stream is a sequence of records numbered from 0, and a trim removes records at its beginning.  A record is bytes: a
body and headers whose names and values are bytes too.  JSON, protobuf, SSE and sessions carry the same records in
different encodings, so the other modules of this package decode to these types and encode from them.  Decoders bound
how many records and headers they make; the other limits of an append are those of `check_append_input`.

Sizes are *metered bytes* wherever S2 counts bytes: 8 for the record, 2 for each header, and the bytes of names, values
and body.  A metered size does not depend on the encoding.

A *command record* has one header and its name is empty, which no other record may have.  The header's value names the
command and the body is its payload: `fence` sets the stream's fencing token, `trim` its first remaining sequence
number.  Commands take a sequence number and are delivered to readers like other records ("Command records").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_U64: Final = 2**64 - 1
"""The largest sequence number, timestamp or count on the wire."""

MAX_BATCH_RECORDS: Final = 1_000
"""Records in one append, and in one unary read or batch of a session."""

MAX_BATCH_METERED_BYTES: Final = 1024 * 1024
"""Metered bytes of one append, and of one unary read or batch of a session; one record alone may fill it."""

MAX_BATCH_HEADERS: Final = MAX_BATCH_METERED_BYTES // 3
"""Headers of all records of such a batch: each meters 2 bytes, and one at least of its name.  Only the header of a
command has no name, and the 8 bytes of its record make up for that."""

MAX_FENCING_TOKEN_BYTES: Final = 36
"""UTF-8 bytes of a fencing token, which has the room of a UUID's text."""

FENCE: Final = b"fence"
TRIM: Final = b"trim"


class InvalidAppend(ValueError):
    """A well-formed append breaks one of S2's rules; it is answered with 422 `invalid` and this message."""


class Header(NamedTuple):
    """One header of a record.  Names may repeat, and their order is kept.

    A tuple, because a batch may have hundreds of thousands, and a frozen dataclass takes three times as long to make.
    """

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """A record to append.  `timestamp` is in milliseconds since the Unix epoch; None leaves it to the stream's mode."""

    body: bytes
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A record as the stream holds it."""

    seq_num: int
    timestamp: int
    headers: tuple[Header, ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place in a stream.  At the tail: the next record's sequence number and the last record's timestamp."""

    seq_num: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class AppendInput:
    """One atomic append.

    `match_seq_num` is the number its first record must get; `fencing_token` is what the stream's token must be.
    """

    records: tuple[AppendRecord, ...]
    match_seq_num: int | None = None
    fencing_token: str | None = None


@dataclass(frozen=True, slots=True)
class AppendAck:
    """Where an append's records are: `start` is the first, `end` is exclusive, `tail` may be later than `end`."""

    start: StreamPosition
    end: StreamPosition
    tail: StreamPosition


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Consecutive records of a read, and the tail if the read reached it.  Without records it is a heartbeat."""

    records: tuple[Record, ...]
    tail: StreamPosition | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """The command that sets the stream's fencing token; an empty token clears it."""

    token: str


@dataclass(frozen=True, slots=True)
class Trim:
    """The command that removes the records before `seq_num`."""

    seq_num: int


Command = Fence | Trim


def metered_bytes(record: AppendRecord | Record) -> int:
    """The size of a record as S2 counts it."""
    size = 8 + 2 * len(record.headers) + len(record.body)
    for header in record.headers:
        size += len(header.name) + len(header.value)
    return size


def total_metered_bytes(records: Iterable[AppendRecord | Record]) -> int:
    """The size of several records as S2 counts it."""
    return sum(map(metered_bytes, records))


def is_command(record: AppendRecord | Record) -> bool:
    """Whether a record is a command rather than data."""
    return len(record.headers) == 1 and not record.headers[0].name


def command_of(record: AppendRecord | Record) -> Command | None:
    """The command in a record; None for a record of data.  Raises `InvalidAppend` if it is no command that S2 knows."""
    if not is_command(record):
        return None
    match record.headers[0].value:
        case b"fence":
            return Fence(_fencing_token(record.body))
        case b"trim":
            if len(record.body) != 8:
                raise InvalidAppend("a trim command's body is 8 bytes")
            return Trim(int.from_bytes(record.body))
        case _:
            raise InvalidAppend("unknown command: it is fence or trim")


def command_record(command: Command, timestamp: int | None = None) -> AppendRecord:
    """The record that carries a command."""
    match command:
        case Fence(token):
            return AppendRecord(token.encode(), (Header(b"", FENCE),), timestamp)
        case Trim(seq_num):
            return AppendRecord(seq_num.to_bytes(8), (Header(b"", TRIM),), timestamp)


def check_append_input(append: AppendInput) -> None:
    """Hold an append to S2's limits.  Raises `InvalidAppend`."""
    if not 1 <= len(append.records) <= MAX_BATCH_RECORDS:
        raise InvalidAppend(f"an append has 1 to {MAX_BATCH_RECORDS} records")
    if append.fencing_token is not None and len(append.fencing_token.encode()) > MAX_FENCING_TOKEN_BYTES:
        raise InvalidAppend(f"a fencing token is at most {MAX_FENCING_TOKEN_BYTES} bytes")
    if total_metered_bytes(append.records) > MAX_BATCH_METERED_BYTES:
        raise InvalidAppend(f"an append is at most {MAX_BATCH_METERED_BYTES} metered bytes")
    for record in append.records:
        if command_of(record) is None and any(not header.name for header in record.headers):
            raise InvalidAppend("only a command record has a header with an empty name, and no other header")


def _fencing_token(body: bytes) -> str:
    if len(body) > MAX_FENCING_TOKEN_BYTES:
        raise InvalidAppend(f"a fencing token is at most {MAX_FENCING_TOKEN_BYTES} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidAppend("a fencing token is UTF-8") from error


_MAX_DIGITS: Final = 20
"""Digits of the largest number; longer text is not converted, which takes time that grows with its square."""


def fixed_width(number: int) -> str:
    """A number as text whose order is that of the numbers."""
    return f"{number:0{_MAX_DIGITS}d}"


def parse_u64(text: str) -> int | None:
    """The number that decimal digits stand for; None for any other text."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= MAX_U64 else None
