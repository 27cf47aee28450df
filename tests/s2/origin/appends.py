"""Short ways to write appends and reads."""

from __future__ import annotations

from gateway.origin.s2.config import StreamConfig
from gateway.origin.s2.reading import Pause, Reading
from gateway.origin.s2.stream import Stream
from gateway.s2.read_query import FromSeqNum, ReadQuery
from gateway.s2.records import AppendInput, AppendRecord, Fence, Header, Record, Trim, command_record

BASIN = "basin-of-tests"
NOW = 1_790_000_000.0
NOW_MS = 1_790_000_000_000


def a_stream(config: StreamConfig | None = None) -> Stream:
    return Stream("s", config or StreamConfig(), NOW)


def bodies(*texts: str, **conditions: object) -> AppendInput:
    """An append of records with these bodies."""
    return AppendInput(tuple(AppendRecord(text.encode()) for text in texts), **conditions)  # type: ignore[arg-type]


def stamped(*timestamps: int | None) -> AppendInput:
    """An append of records with these timestamps."""
    return AppendInput(tuple(AppendRecord(b"x", timestamp=timestamp) for timestamp in timestamps))


def fence(token: str) -> AppendInput:
    return AppendInput((command_record(Fence(token)),))


def trim(seq_num: int) -> AppendInput:
    return AppendInput((command_record(Trim(seq_num)),))


def header(name: str, value: str) -> Header:
    return Header(name.encode(), value.encode())


def read(stream: Stream, query: ReadQuery | None = None) -> list[Record]:
    """What a read gives before it waits or is over."""
    reading = Reading(stream, query or ReadQuery(FromSeqNum(0), wait_s=1, is_clamped=True))
    records: list[Record] = []
    while not isinstance(batch := reading.advance(), Pause):
        records += batch.records
    return records


def texts(records: list[Record]) -> list[str]:
    return [record.body.decode() for record in records]
