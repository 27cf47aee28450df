"""Many writers and readers of one stream at once, with PyPI's `s2-sdk`: every kind of append and every kind of read.

Each writer's records come whole, in order and once; sequence numbers have no gap; all readers see the same stream.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack

import pytest
from s2_sdk import (
    S2,
    AppendInput,
    BasinConfig,
    Batching,
    Compression,
    Endpoints,
    ReadLimit,
    ReadUnwrittenError,
    Record,
    S2Stream,
    SeqNum,
    SequencedRecord,
)

from tests.s2.sdk.conftest import BASIN, BOTH_WAYS, BOUND_S

EACH = 240
"""Records of one writer."""


def of(writer: int, numbers: range) -> list[Record]:
    return [Record(body=f"{writer}:{number}".encode()) for number in numbers]


def batches(writer: int, size: int) -> list[AppendInput]:
    return [AppendInput(records=of(writer, range(start, start + size))) for start in range(0, EACH, size)]


async def produce(stream: S2Stream, writer: int) -> None:
    async with stream.producer(batching=Batching(max_records=16)) as producer:
        tickets = [await producer.submit(record) for record in of(writer, range(EACH))]
    numbers = [(await ticket).seq_num for ticket in tickets]
    assert numbers == sorted(set(numbers))


async def append_in_a_session(stream: S2Stream, writer: int) -> None:
    async with stream.append_session() as session:
        tickets = [await session.submit(batch) for batch in batches(writer, 8)]
        acks = [await ticket for ticket in tickets]
    assert all(ack.end.seq_num - ack.start.seq_num == 8 for ack in acks)


async def append(stream: S2Stream, writer: int) -> None:
    """What has been acknowledged is read, and the tail is not before it."""
    for batch in batches(writer, 24):
        ack = await stream.append(batch)
        assert (await stream.check_tail()).seq_num >= ack.tail.seq_num
        read = await stream.read(start=SeqNum(ack.start.seq_num), limit=ReadLimit(count=24))
        assert [record.body for record in read.records] == [record.body for record in batch.records]


async def follow(stream: S2Stream, count: int) -> list[SequencedRecord]:
    found: list[SequencedRecord] = []
    async with stream.read_session(start=SeqNum(0)) as session:
        async for batch in session:
            found += batch.records
            if len(found) >= count:
                break
    return found


async def follow_in_pieces(stream: S2Stream, count: int) -> list[SequencedRecord]:
    found: list[SequencedRecord] = []
    while len(found) < count:
        limit = ReadLimit(count=min(37, count - len(found)))
        async with stream.read_session(start=SeqNum(len(found)), limit=limit, wait=60) as session:
            async for batch in session:
                found += batch.records
    return found


async def poll(stream: S2Stream, count: int) -> list[SequencedRecord]:
    found: list[SequencedRecord] = []
    while len(found) < count:
        try:
            found += (await stream.read(start=SeqNum(len(found)), wait=2)).records
        except ReadUnwrittenError as error:
            assert error.tail.seq_num <= len(found)
    return found


WRITERS: list[Callable[[S2Stream, int], Coroutine[None, None, None]]] = [produce, append_in_a_session, append]
READERS = [follow, follow_in_pieces, poll]


@pytest.fixture
async def streams(url: str) -> AsyncIterator[list[S2Stream]]:
    """One stream as clients of each compression have it."""
    async with AsyncExitStack() as stack:
        endpoints = Endpoints(account=url, basin=url)
        clients = [
            await stack.enter_async_context(S2("token", endpoints=endpoints, compression=compression))
            for compression in Compression
        ]
        config = BasinConfig(create_stream_on_append=True, create_stream_on_read=True)
        await clients[0].create_basin(BASIN, config=config)
        yield [client.basin(BASIN).stream("shared") for client in clients]


@BOTH_WAYS
async def test_writers_and_readers_of_all_kinds_agree(streams: list[S2Stream]) -> None:
    count = EACH * len(WRITERS)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(read(stream, count)) for read in READERS for stream in streams]
        for writer, (write, stream) in enumerate(zip(WRITERS, streams, strict=True)):
            tasks.create_task(write(stream, writer))
    found = [task.result() for task in reading]
    assert [record.seq_num for record in found[0]] == list(range(count))
    timestamps = [record.timestamp for record in found[0]]
    assert timestamps == sorted(timestamps)
    due: Counter[str] = Counter()
    for record in found[0]:
        name, _, number = record.body.decode().partition(":")
        assert int(number) == due[name]
        due[name] += 1
    assert all(one == found[0] for one in found)
