"""What PyPI's `s2-sdk` can do, one row for each call and each way to make it.

The name of a row begins with the call, as in `S2Stream.read`; `CALLS` is taken from the SDK itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Final

import pytest
import s2_sdk
from s2_sdk import (
    S2,
    AccessTokenScope,
    AccountMetricSet,
    AppendInput,
    BasinConfig,
    BasinMetricSet,
    Batching,
    CommandRecord,
    EnsureStatus,
    FencingTokenMismatchError,
    Operation,
    ReadLimit,
    ReadUnwrittenError,
    Record,
    S2ServerError,
    S2Stream,
    SeqNum,
    SeqNumMismatchError,
    StreamConfig,
    StreamMetricSet,
    StreamPosition,
    TailOffset,
    Timestamp,
    Timestamping,
    TimestampingMode,
    append_inputs,
)

from tests.s2.sdk.conftest import BASIN

Row = Callable[[S2, S2Stream], Awaitable[None]]

_CLASSES: Final = (
    "S2",
    "S2Basin",
    "S2Stream",
    "AppendSession",
    "Producer",
    "ReadSession",
)
_LOCAL: Final = {"S2.basin", "S2.close", "S2Basin.name", "S2Basin.stream", "S2Stream.name"}
"""What sends no request of its own; every row uses it."""

CALLS: Final = {
    f"{kind}.{name}" for kind in _CLASSES for name in vars(getattr(s2_sdk, kind)) if not name.startswith("_")
} - _LOCAL
"""Every public call of the SDK."""

ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        assert name not in ROWS
        ROWS[name] = function
        return function

    return add


async def filled(stream: S2Stream, *bodies: str) -> None:
    await stream.append(AppendInput([Record(body.encode()) for body in bodies]))


def bodies(batch: s2_sdk.ReadBatch) -> list[str]:
    return [record.body.decode() for record in batch.records]


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


# -- the control plane


@row("S2.create_basin")
@row("S2.get_basin_config")
@row("S2.delete_basin")
async def basins(s2: S2, stream: S2Stream) -> None:
    config = BasinConfig(default_stream_config=StreamConfig(retention_policy=60), create_stream_on_read=True)
    assert (await s2.create_basin("another-basin", config=config)).name == "another-basin"
    held = await s2.get_basin_config("another-basin")
    assert held.default_stream_config is not None
    assert (held.default_stream_config.retention_policy, held.create_stream_on_read) == (60, True)
    await s2.delete_basin("another-basin")
    await s2.delete_basin("another-basin", ignore_not_found=True)
    with pytest.raises(S2ServerError):
        await s2.get_basin_config("another-basin")


@row("S2.ensure_basin")
@row("S2.reconfigure_basin")
async def ensured_basins(s2: S2, stream: S2Stream) -> None:
    assert (await s2.ensure_basin("another-basin")).status is EnsureStatus.CREATED
    assert (await s2.ensure_basin("another-basin")).status is EnsureStatus.CONFIG_UNCHANGED
    changed = BasinConfig(create_stream_on_append=True)
    assert (await s2.ensure_basin("another-basin", config=changed)).status is EnsureStatus.CONFIG_UPDATED
    held = await s2.reconfigure_basin("another-basin", config=BasinConfig(create_stream_on_read=True))
    assert (held.create_stream_on_append, held.create_stream_on_read) == (True, True)


@row("S2.list_basins")
@row("S2.list_all_basins")
async def listed_basins(s2: S2, stream: S2Stream) -> None:
    for name in ("many-basins-1", "many-basins-2"):
        await s2.create_basin(name)
    page = await s2.list_basins(prefix="many", limit=1)
    assert ([info.name for info in page.items], page.has_more) == (["many-basins-1"], True)
    assert len([info async for info in s2.list_all_basins()]) == 3


@row("S2.list_locations")
@row("S2.get_default_location")
@row("S2.set_default_location")
async def locations(s2: S2, stream: S2Stream) -> None:
    (location,) = await s2.list_locations()
    assert await s2.get_default_location() == location
    assert await s2.set_default_location(location.name) == location


@row("S2.issue_access_token")
@row("S2.list_access_tokens")
@row("S2.list_all_access_tokens")
@row("S2.revoke_access_token")
async def access_tokens(s2: S2, stream: S2Stream) -> None:
    assert await s2.issue_access_token("t", scope=AccessTokenScope(ops=[Operation.READ]))
    assert [info.id for info in (await s2.list_access_tokens()).items] == ["t"]
    assert [info.id async for info in s2.list_all_access_tokens()] == ["t"]
    await s2.revoke_access_token("t")
    assert (await s2.list_access_tokens()).items == []


@row("S2.account_metrics")
@row("S2.basin_metrics")
@row("S2.stream_metrics")
async def metrics(s2: S2, stream: S2Stream) -> None:
    assert await s2.account_metrics(set=AccountMetricSet.ACTIVE_BASINS) == []
    assert await s2.basin_metrics(BASIN, set=BasinMetricSet.STORAGE) == []
    assert await s2.stream_metrics(BASIN, stream.name, set=StreamMetricSet.STORAGE) == []


@row("S2Basin.create_stream")
@row("S2Basin.get_stream_config")
@row("S2Basin.reconfigure_stream")
@row("S2Basin.delete_stream")
async def streams(s2: S2, stream: S2Stream) -> None:
    basin = s2.basin(BASIN)
    assert (await basin.create_stream(stream.name)).name == stream.name
    config = await basin.get_stream_config(stream.name)
    assert (config.storage_class, config.retention_policy) == ("express", 7 * 86_400)
    config = await basin.reconfigure_stream(stream.name, config=StreamConfig(retention_policy="infinite"))
    assert config.retention_policy == "infinite"
    await filled(stream, "a")
    await basin.delete_stream(stream.name)
    assert (await basin.create_stream(stream.name)).deleted_at is None
    assert await stream.check_tail() == StreamPosition(0, 0)


@row("S2Basin.ensure_stream")
@row("S2Basin.list_streams")
@row("S2Basin.list_all_streams")
async def listed_streams(s2: S2, stream: S2Stream) -> None:
    basin = s2.basin(BASIN)
    for name in ("a/1", "a/2", "b"):
        assert (await basin.ensure_stream(name)).status is EnsureStatus.CREATED
    assert [info.name for info in (await basin.list_streams(prefix="a/")).items] == ["a/1", "a/2"]
    assert [info.name async for info in basin.list_all_streams()] == ["a/1", "a/2", "b"]
