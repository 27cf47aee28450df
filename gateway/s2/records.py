"""S2's records, independent of their encoding (S2's data-plane page, "Operations").

A stream is a sequence of records numbered from 0; a trim removes records at its beginning.  A record has a body and
headers, and header names and values are bytes like the body.  JSON, protobuf, SSE and sessions encode the same records
differently; the other modules of this package convert between these encodings and the types here.  Decoders limit the
number of records and headers.  `check_append_input` checks the other limits of an append.

S2 counts sizes in *metered bytes*: 8 for each record, 2 for each header, and the bytes of names, values and body.  A
metered size does not depend on the encoding.

A *command record* has exactly one header, with an empty name, which no other record may have.  The header's value names
the command, and the body is its argument: `fence` sets the stream's fencing token, and `trim` sets the first sequence
number that remains.  Commands take up a sequence number and are delivered to readers like other records ("Command
records").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_U64: Final = 2**64 - 1
"""The largest sequence number, timestamp or count on the wire."""

MAX_BATCH_RECORDS: Final = 1_000
"""The most records in an append, a unary read, or a batch of a session."""

MAX_BATCH_METERED_BYTES: Final = 1024 * 1024
"""The most metered bytes of an append, a unary read, or a batch of a session."""

MAX_BATCH_HEADERS: Final = MAX_BATCH_METERED_BYTES // 3
"""The most headers in a batch of `MAX_BATCH_METERED_BYTES`.  A header counts at least 3 metered bytes: 2, and a name of
one byte.  Only the header of a command has an empty name.  Such a header counts 2 bytes, but its record counts another
8."""

MAX_FENCING_TOKEN_BYTES: Final = 36
"""The longest fencing token in UTF-8 bytes: the length of a UUID as text."""

FENCE: Final = b"fence"
TRIM: Final = b"trim"


class InvalidAppend(ValueError):
    """A well-formed append violates one of S2's rules.  The answer is 422 `invalid` with this message."""


class Header(NamedTuple):
    """One header of a record.  Names may repeat, and their order matters.

    A header is a tuple, because a batch may have hundreds of thousands of headers, and a frozen dataclass takes three
    times as long to create.
    """

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """A record to append.  `timestamp` is in Unix milliseconds; None lets the stream's mode decide."""

    body: bytes
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A record as stored in a stream."""

    seq_num: int
    timestamp: int
    headers: tuple[Header, ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place in a stream.  For the tail: the next record's sequence number and the last record's timestamp."""

    seq_num: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class AppendInput:
    """One atomic append.

    `match_seq_num` is the sequence number that the first record must get.  `fencing_token` must equal the stream's
    fencing token.
    """

    records: tuple[AppendRecord, ...]
    match_seq_num: int | None = None
    fencing_token: str | None = None


@dataclass(frozen=True, slots=True)
class AppendAck:
    """The positions of appended records: `start` is the first, `end` is exclusive, and `tail` may be later than
    `end`."""

    start: StreamPosition
    end: StreamPosition
    tail: StreamPosition


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Consecutive records of a read, and the tail if the read has reached it.  Without records it is a heartbeat."""

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
    """Return the size of a record in metered bytes."""
    size = 8 + 2 * len(record.headers) + len(record.body)
    for header in record.headers:
        size += len(header.name) + len(header.value)
    return size


def total_metered_bytes(records: Iterable[AppendRecord | Record]) -> int:
    """Return the size of several records in metered bytes."""
    return sum(map(metered_bytes, records))


def is_command(record: AppendRecord | Record) -> bool:
    """Return whether a record is a command rather than data."""
    return len(record.headers) == 1 and not record.headers[0].name


def command_of(record: AppendRecord | Record) -> Command | None:
    """Return the command in a record; None for data.  Raises `InvalidAppend` for an unknown or malformed command."""
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
    """Return the record for a command."""
    match command:
        case Fence(token):
            return AppendRecord(token.encode(), (Header(b"", FENCE),), timestamp)
        case Trim(seq_num):
            return AppendRecord(seq_num.to_bytes(8), (Header(b"", TRIM),), timestamp)


def check_append_input(append: AppendInput) -> None:
    """Check an append against S2's limits.  Raises `InvalidAppend`."""
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
"""The number of digits of `MAX_U64`.  Longer text is not converted, because that takes quadratic time."""


def fixed_width(number: int) -> str:
    """Return a number as text of fixed width, which sorts like the number."""
    return f"{number:0{_MAX_DIGITS}d}"


def parse_u64(text: str) -> int | None:
    """Parse decimal digits as an unsigned 64-bit integer; return None for any other text."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= MAX_U64 else None
