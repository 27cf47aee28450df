"""What readers see of a run of records.

Commands are not part of the content.  They take sequence numbers, so an offset may lead over them without bytes.

The mark of the close is a `fence` command with the token `CLOSE_TOKEN`.  Its sequence number is the stream's final
offset, and nothing after it is part of the stream.  The same command keeps writers out: every append of the bridge
names the token of a stream without a fence, so the origin refuses it, in one step with its decision on the order of the
appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.s2.records import (
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
    """What readers see of these consecutive records, of which there is at least one."""
    data: list[Record] = []
    closed_at: int | None = None
    for record in records:
        if not is_command(record):
            data.append(record)
        elif is_close(record):
            closed_at = record.seq_num
            break
    end = records[-1].seq_num + 1 if closed_at is None else closed_at
    # What is trimmed behind the mark was trimmed all the same.
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
