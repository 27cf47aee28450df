"""The data plane of PyPI's `s2-sdk`, one row for each call and each way to make it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import s2_sdk
from s2_sdk import (
    S2,
    AppendInput,
    Batching,
    CommandRecord,
    FencingTokenMismatchError,
    ReadLimit,
    ReadUnwrittenError,
    Record,
    S2ServerError,
    S2Stream,
    SeqNum,
    SeqNumMismatchError,
    StreamConfig,
    StreamPosition,
    TailOffset,
    Timestamp,
    Timestamping,
    TimestampingMode,
    append_inputs,
)

from tests.s2.sdk.conftest import BASIN
from tests.s2.sdk.python_matrix import bodies, filled, row

ONCE_FOUND = StreamConfig(retention_policy=3_600, delete_on_empty_min_age=300)
"""A configuration for a stream that a call creates."""


async def config_of(s2: S2, stream: S2Stream) -> tuple[object, object]:
    found = await s2.basin(BASIN).get_stream_config(stream.name)
    return found.retention_policy, found.delete_on_empty_min_age


async def records_of(session: s2_sdk.ReadSession, count: int) -> list[s2_sdk.SequencedRecord]:
    """The next records of a session, as many as that."""
    found: list[s2_sdk.SequencedRecord] = []
    while len(found) < count:
        found += (await anext(session)).records
    return found


# -- S2Stream: unary


@row("S2Stream.check_tail")
async def check_tail(s2: S2, stream: S2Stream) -> None:
    assert await stream.check_tail() == StreamPosition(0, 0)
    ack = await stream.append(AppendInput([Record(b"a")]))
    assert await stream.check_tail() == ack.tail


@row("S2Stream.append")
async def append(s2: S2, stream: S2Stream) -> None:
    large = Record(bytes(range(256)) * 100, headers=[(b"\xff", b"\x00"), (b"n", b"")])
    ack = await stream.append(AppendInput([large, Record(b"")]))
    assert (ack.start.seq_num, ack.end.seq_num, ack.tail.seq_num) == (0, 2, 2)

    first, second = (await stream.read(start=SeqNum(0))).records
    assert (first.body, first.headers, first.timestamp) == (large.body, large.headers, ack.start.timestamp)
    assert (second.body, second.headers) == (b"", [])


@row("S2Stream.append: match_seq_num")
async def append_matched(s2: S2, stream: S2Stream) -> None:
    await stream.append(AppendInput([Record(b"a")], match_seq_num=0))
    with pytest.raises(SeqNumMismatchError) as refused:
        await stream.append(AppendInput([Record(b"b")], match_seq_num=0))
    assert refused.value.expected_seq_num == 1


@row("S2Stream.append: fencing_token")
async def append_fenced(s2: S2, stream: S2Stream) -> None:
    await stream.append(AppendInput([CommandRecord.fence("mine")]))
    await stream.append(AppendInput([Record(b"a")], fencing_token="mine"))
    with pytest.raises(FencingTokenMismatchError) as refused:
        await stream.append(AppendInput([Record(b"b")], fencing_token="theirs"))
    assert refused.value.expected_fencing_token == "mine"


@row("S2Stream.append: trim")
async def append_trim(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a", "b", "c")
    await stream.append(AppendInput([CommandRecord.trim(2)]))
    batch = await stream.read(start=SeqNum(0), ignore_command_records=True)
    assert [record.seq_num for record in batch.records] == [2]


@row("S2Stream.append: timestamps")
async def append_stamped(s2: S2, stream: S2Stream) -> None:
    config = StreamConfig(timestamping=Timestamping(mode=TimestampingMode.CLIENT_REQUIRE, uncapped=True))
    far = 4_000_000_000_000
    ack = await stream.append(
        AppendInput([Record(b"a", timestamp=far), Record(b"b", timestamp=5)], stream_config=config)
    )
    assert (ack.start.timestamp, ack.end.timestamp) == (far, far)
    with pytest.raises(S2ServerError) as refused:
        await stream.append(AppendInput([Record(b"c")]))
    assert (refused.value.status_code, refused.value.code) == (422, "invalid")


@row("S2Stream.append: no stream")
async def append_to_nothing(s2: S2, stream: S2Stream) -> None:
    await s2.create_basin("basin-that-creates-nothing")
    with pytest.raises(S2ServerError) as refused:
        await s2.basin("basin-that-creates-nothing").stream("s").append(AppendInput([Record(b"")]))
    assert (refused.value.status_code, refused.value.code) == (404, "stream_not_found")


@row("S2Stream.append: encryption key")
async def append_encrypted(s2: S2, stream: S2Stream) -> None:
    keyed = s2.basin(BASIN).stream(stream.name, encryption_key=bytes(range(32)))
    await filled(keyed, "a", "b")
    assert bodies(await keyed.read(start=SeqNum(0))) == ["a", "b"]
    async with keyed.append_session() as session:
        assert (await (await session.submit(AppendInput([Record(b"c")])))).end.seq_num == 3
    async with keyed.read_session(start=SeqNum(0)) as read:
        assert [record.body for record in await records_of(read, 3)] == [b"a", b"b", b"c"]


@row("S2Stream.read: seq_num")
async def read_seq_num(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a", "b", "c")
    assert bodies(await stream.read(start=SeqNum(1))) == ["b", "c"]
    assert bodies(await stream.read(start=SeqNum(0), limit=ReadLimit(count=2))) == ["a", "b"]
    assert bodies(await stream.read(start=SeqNum(0), limit=ReadLimit(bytes=9))) == ["a"]


@row("S2Stream.read: timestamp")
async def read_timestamp(s2: S2, stream: S2Stream) -> None:
    config = StreamConfig(timestamping=Timestamping(uncapped=True))
    records = [Record(b"%d" % at, timestamp=at) for at in (10, 20, 30)]
    await stream.append(AppendInput(records, stream_config=config))
    assert bodies(await stream.read(start=Timestamp(11))) == ["20", "30"]
    assert bodies(await stream.read(start=Timestamp(10), until_timestamp=30)) == ["10", "20"]


@row("S2Stream.read: tail_offset")
async def read_tail_offset(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a", "b", "c")
    assert bodies(await stream.read(start=TailOffset(2))) == ["b", "c"]


@row("S2Stream.read: beyond the tail")
async def read_beyond(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a")
    for start in (SeqNum(9), SeqNum(1), TailOffset(0)):
        with pytest.raises(ReadUnwrittenError) as refused:
            await stream.read(start=start)
        assert refused.value.tail.seq_num == 1
    assert (await stream.read(start=SeqNum(9), clamp_to_tail=True, wait=1)).records == []


@row("S2Stream.read: wait")
async def read_wait(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a")
    waiting = asyncio.create_task(stream.read(start=SeqNum(1), wait=4))
    await filled(stream, "b")
    assert bodies(await waiting) == ["b"]


# -- S2Stream: sessions


@row("S2Stream.append_session")
@row("AppendSession.submit")
async def append_session(s2: S2, stream: S2Stream) -> None:
    async with stream.append_session() as session:
        tickets = [await session.submit(AppendInput([Record(b"%d" % n)] * 3)) for n in range(200)]
        acks = [await ticket for ticket in tickets]
    assert [ack.start.seq_num for ack in acks] == list(range(0, 600, 3))
    assert (await stream.check_tail()).seq_num == 600


@row("S2Stream.append_session: large batches")
async def append_session_large(s2: S2, stream: S2Stream) -> None:
    async with stream.append_session(max_unacked_batches=4) as session:
        tickets = [await session.submit(AppendInput([Record(b"x" * 500_000)])) for _ in range(16)]
        assert [(await ticket).end.seq_num for ticket in tickets] == list(range(1, 17))


@row("S2Stream.append_session: the first failure ends it")
async def append_session_poisoned(s2: S2, stream: S2Stream) -> None:
    session = stream.append_session()
    good = await session.submit(AppendInput([Record(b"a")], match_seq_num=0))
    bad = await session.submit(AppendInput([Record(b"b")], match_seq_num=7))
    after = await session.submit(AppendInput([Record(b"c")]))
    assert (await good).end.seq_num == 1
    for ticket in (bad, after):
        with pytest.raises(SeqNumMismatchError):
            await ticket
    with pytest.raises(SeqNumMismatchError):
        await session.close()
    assert bodies(await stream.read(start=SeqNum(0))) == ["a"]


@row("S2Stream.append_session: few unacknowledged bytes, and a configuration")
async def append_session_tight(s2: S2, stream: S2Stream) -> None:
    async with stream.append_session(max_unacked_bytes=1 << 20, stream_config=ONCE_FOUND) as session:
        tickets = [await session.submit(AppendInput([Record(b"x" * 600_000)])) for _ in range(8)]
        assert [(await ticket).end.seq_num for ticket in tickets] == list(range(1, 9))
    assert await config_of(s2, stream) == (3_600, 300)


@row("AppendSession.close")
async def append_session_close(s2: S2, stream: S2Stream) -> None:
    session = stream.append_session()
    ticket = await session.submit(AppendInput([Record(b"a")]))
    await session.close()
    assert (await ticket).end.seq_num == 1


@row("S2Stream.producer")
@row("Producer.submit")
async def producer(s2: S2, stream: S2Stream) -> None:
    async with stream.producer(batching=Batching(max_records=7, linger=timedelta(milliseconds=1))) as producing:
        tickets = [await producing.submit(Record(b"%d" % n)) for n in range(100)]
        assert [(await ticket).seq_num for ticket in tickets] == list(range(100))
    assert bodies(await stream.read(start=SeqNum(0))) == [str(n) for n in range(100)]


@row("S2Stream.producer: match_seq_num and fencing_token")
async def producer_conditions(s2: S2, stream: S2Stream) -> None:
    await stream.append(AppendInput([CommandRecord.fence("mine")]))
    async with stream.producer(match_seq_num=1, fencing_token="mine", batching=Batching(max_records=2)) as producing:
        tickets = [await producing.submit(Record(b"x")) for _ in range(10)]
        assert [(await ticket).seq_num for ticket in tickets] == list(range(1, 11))


@row("S2Stream.producer: bounds in bytes, and a configuration")
async def producer_bounded(s2: S2, stream: S2Stream) -> None:
    batching = Batching(max_bytes=100, linger=timedelta(milliseconds=1))
    async with stream.producer(batching=batching, max_unacked_bytes=1 << 20, stream_config=ONCE_FOUND) as producing:
        tickets = [await producing.submit(Record(b"x" * 40)) for _ in range(20)]
        acks = [await ticket for ticket in tickets]
    assert [ack.seq_num for ack in acks] == list(range(20))
    # Two records of 48 metered bytes fit.
    assert [ack.batch.end.seq_num for ack in acks] == [at for end in range(2, 21, 2) for at in (end, end)]
    assert await config_of(s2, stream) == (3_600, 300)


@row("Producer.flush")
async def producer_flush(s2: S2, stream: S2Stream) -> None:
    async with stream.producer(batching=Batching(linger=timedelta(0))) as producing:
        ticket = await producing.submit(Record(b"x"))
        await producing.flush()
        assert (await ticket).seq_num == 0


@row("Producer.close")
async def producer_close(s2: S2, stream: S2Stream) -> None:
    producing = stream.producer()
    ticket = await producing.submit(Record(b"x"))
    await producing.close()
    assert (await ticket).batch.end.seq_num == 1


@row("S2Stream.append: many in one")
async def append_inputs_of_many(s2: S2, stream: S2Stream) -> None:
    async def many() -> AsyncIterator[Record]:
        for number in range(2_500):
            yield Record(b"%d" % number)

    async with stream.append_session() as session:
        tickets = [await session.submit(batch) async for batch in append_inputs(many())]
        ends = [(await ticket).end.seq_num for ticket in tickets]
    assert ends[-1] == 2_500


@row("S2Stream.read_session")
async def read_session(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a", "b")
    async with stream.read_session(start=SeqNum(0)) as session:
        assert [record.body for record in await records_of(session, 2)] == [b"a", b"b"]
        for body in ("c", "d"):
            await filled(stream, body)
            assert [record.body.decode() for record in await records_of(session, 1)] == [body]


@row("S2Stream.read_session: limits")
async def read_session_limited(s2: S2, stream: S2Stream) -> None:
    for start in range(0, 3_000, 1_000):
        await stream.append(AppendInput([Record(b"%d" % n) for n in range(start, start + 1_000)]))
    batches = [batch async for batch in stream.read_session(start=SeqNum(5), limit=ReadLimit(count=2_100))]
    assert [record.seq_num for batch in batches for record in batch.records] == list(range(5, 2_105))
    assert [batch async for batch in stream.read_session(start=TailOffset(3), limit=ReadLimit(bytes=12))] != []


@row("S2Stream.read_session: timestamp and until")
async def read_session_until(s2: S2, stream: S2Stream) -> None:
    config = StreamConfig(timestamping=Timestamping(uncapped=True))
    await stream.append(AppendInput([Record(b"%d" % at, timestamp=at) for at in (1, 2, 3)], stream_config=config))
    batches = [batch async for batch in stream.read_session(start=Timestamp(2), until_timestamp=3)]
    assert [bodies(batch) for batch in batches] == [["2"]]


@row("S2Stream.read_session: wait")
async def read_session_wait(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a")
    waiting = stream.read_session(start=SeqNum(0), limit=ReadLimit(count=2), wait=20)
    assert bodies(await anext(waiting)) == ["a"]
    await filled(stream, "b")
    assert bodies(await anext(waiting)) == ["b"]
    with pytest.raises(StopAsyncIteration):
        await anext(waiting)
    await waiting.close()


@row("S2Stream.read_session: beyond the tail")
async def read_session_beyond(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a")
    with pytest.raises(ReadUnwrittenError):
        await anext(stream.read_session(start=SeqNum(9)))
    async with stream.read_session(start=SeqNum(9), clamp_to_tail=True) as session:
        assert (await session.caught_up()).seq_num == 1
        await filled(stream, "b")
        assert bodies(await anext(session)) == ["b"]


@row("S2Stream.read_session: a configuration")
async def read_session_configured(s2: S2, stream: S2Stream) -> None:
    async with stream.read_session(start=SeqNum(0), stream_config=ONCE_FOUND) as session:
        assert (await session.caught_up()).seq_num == 0
        assert await config_of(s2, stream) == (3_600, 300)
        await filled(stream, "a")
        assert bodies(await anext(session)) == ["a"]


@row("S2Stream.read: a configuration")
async def read_configured(s2: S2, stream: S2Stream) -> None:
    with pytest.raises(ReadUnwrittenError):
        await stream.read(start=SeqNum(0), stream_config=ONCE_FOUND)
    assert await config_of(s2, stream) == (3_600, 300)
    await filled(stream, "a")
    assert bodies(await stream.read(start=SeqNum(0), stream_config=ONCE_FOUND)) == ["a"]


@row("S2Stream.read_session: command records")
async def read_session_commands(s2: S2, stream: S2Stream) -> None:
    await stream.append(AppendInput([CommandRecord.fence("t"), Record(b"a"), CommandRecord.trim(0)]))
    async with stream.read_session(start=SeqNum(0)) as session:
        records = await records_of(session, 3)
    assert [record.is_command_record() for record in records] == [True, False, True]
    async with stream.read_session(start=SeqNum(0), ignore_command_records=True) as session:
        assert [record.seq_num for record in await records_of(session, 1)] == [1]


@row("ReadSession.caught_up")
@row("ReadSession.is_caught_up")
async def caught_up(s2: S2, stream: S2Stream) -> None:
    await filled(stream, "a", "b")
    async with stream.read_session(start=SeqNum(0)) as session:
        assert not session.is_caught_up()
        await records_of(session, 2)
        assert (await session.caught_up()).seq_num == 2
        assert session.is_caught_up()


@row("ReadSession.is_caught_up: with the record before the tail")
async def caught_up_by_a_record(s2: S2, stream: S2Stream) -> None:
    """There is no other record to wait for, so no heartbeat would come in time."""
    await filled(stream, "a", "b", "c")
    async with stream.read_session(start=s2_sdk.TailOffset(2)) as session:
        found = []
        while not session.is_caught_up():
            found += (await anext(session)).records
        assert [record.seq_num for record in found] == [1, 2]


@row("ReadSession.close")
async def read_session_close(s2: S2, stream: S2Stream) -> None:
    session = stream.read_session(start=TailOffset(0))
    await session.caught_up()
    await session.close()
