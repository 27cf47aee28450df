"""PyPI's `s2-sdk` when connections break, sessions fail, and the origin leaves."""

from __future__ import annotations

import asyncio

import pytest
from s2_sdk import (
    S2,
    AppendInput,
    AppendRetryPolicy,
    Compression,
    Endpoints,
    Record,
    Retry,
    S2Error,
    S2ServerError,
    S2Stream,
    SeqNum,
    TailOffset,
)

from gateway.origin.s2.app import RunningS2Origin, S2Origin, S2OriginSettings, start_s2_origin
from gateway.origin.s2.calls import Call
from gateway.origin.s2.faults import S2Faults
from gateway.s2.errors import S2ErrorCode
from tests.s2.sdk.conftest import BASIN, BOUND_S
from tests.s2.sdk.python_rows import records_of


@pytest.fixture
def compression() -> Compression:
    return Compression.NONE


@pytest.fixture
def faults(origin: RunningS2Origin) -> S2Faults:
    return origin.origin.faults


async def fill(stream: S2Stream, count: int) -> None:
    async with stream.append_session() as session:
        tickets = [await session.submit(AppendInput([Record(b"%d" % number)])) for number in range(count)]
        for ticket in tickets:
            await ticket


async def test_a_read_session_that_breaks_is_resumed_with_nothing_lost_or_repeated(
    faults: S2Faults, stream: S2Stream
) -> None:
    await fill(stream, 300)
    broken = [
        faults.drop(1_500, kind=Call.READ_SESSION),
        faults.fail_session(S2ErrorCode.UNAVAILABLE, after_messages=1, kind=Call.READ_SESSION),
        faults.refuse(kind=Call.READ_SESSION),
    ]
    async with asyncio.timeout(BOUND_S), stream.read_session(start=SeqNum(0)) as session:
        records = await records_of(session, 300)

    assert [record.body for record in records] == [b"%d" % number for number in range(300)]
    assert [switch.hits for switch in broken] == [1, 1, 1]


async def test_a_live_read_session_follows_the_advice_to_reconnect(origin: RunningS2Origin, stream: S2Stream) -> None:
    await fill(stream, 3)
    origin.origin.faults.advise_reconnect(kind=Call.READ_SESSION)
    async with asyncio.timeout(BOUND_S), stream.read_session(start=SeqNum(0)) as session:
        assert len(await records_of(session, 3)) == 3
        await origin.origin.counters.reached(Call.READ_SESSION, 2)
        await fill(stream, 1)
        assert [record.seq_num for record in await records_of(session, 1)] == [3]


async def test_a_session_ends_at_the_origin_when_its_client_closes_it(
    origin: RunningS2Origin, stream: S2Stream
) -> None:
    await fill(stream, 1)
    counters = origin.origin.counters
    async with asyncio.timeout(BOUND_S):
        async with stream.read_session(start=TailOffset(0)) as session:
            await session.caught_up()
            await counters.sessions_are(Call.READ_SESSION, 1)
        await counters.sessions_are(Call.READ_SESSION, 0)
        await counters.parked_is(0)


async def test_a_session_that_ends_in_order_is_complete_to_the_sdk(faults: S2Faults, stream: S2Stream) -> None:
    await fill(stream, 3)
    faults.finish_session(after_messages=1, kind=Call.READ_SESSION)
    async with asyncio.timeout(BOUND_S):
        batches = [batch async for batch in stream.read_session(start=SeqNum(0))]
    assert [len(batch.records) for batch in batches] == [3]


async def test_an_append_session_that_breaks_loses_nothing(origin: RunningS2Origin, stream: S2Stream) -> None:
    # The session breaks when all is submitted: the SDK loses a batch that it takes from its queue at that moment.
    gate = origin.origin.faults.hold(kind=Call.APPEND_SESSION, when="reply", times=1)
    broken = origin.origin.faults.drop(300, kind=Call.APPEND_SESSION)
    async with asyncio.timeout(BOUND_S), stream.append_session() as session:
        tickets = [await session.submit(AppendInput([Record(b"%d" % number)])) for number in range(80)]
        await gate.waiting(1)
        gate.release()
        for ticket in tickets:
            await ticket
    records = [record async for batch in stream.read_session(start=SeqNum(0), wait=0) for record in batch.records]

    assert list(dict.fromkeys(int(record.body) for record in records)) == list(range(80))
    assert broken.hits == 1
    assert origin.origin.counters.records_appended == len(records)


async def test_an_append_that_may_have_happened_is_not_sent_again_by_that_policy(
    origin: RunningS2Origin, s2: S2
) -> None:
    origin.origin.faults.drop(0, kind=Call.APPEND)
    retry = Retry(append_retry_policy=AppendRetryPolicy.NO_SIDE_EFFECTS)
    endpoints = Endpoints(account=origin.url, basin=origin.url)
    async with S2("token", endpoints=endpoints, retry=retry) as careful:
        stream = careful.basin(BASIN).stream("s")
        with pytest.raises(S2Error):
            await stream.append(AppendInput([Record(b"a")]))
        assert (await stream.check_tail()).seq_num == 1


@pytest.mark.parametrize("code", [S2ErrorCode.UNAVAILABLE, S2ErrorCode.TRANSACTION_CONFLICT, S2ErrorCode.TIMEOUT])
async def test_what_may_be_tried_again_is(faults: S2Faults, stream: S2Stream, code: S2ErrorCode) -> None:
    refused = faults.error(code, times=2)
    assert (await stream.append(AppendInput([Record(b"a")]))).end.seq_num == 1
    assert refused.hits == 2


async def test_what_may_not_be_tried_again_is_raised(faults: S2Faults, stream: S2Stream) -> None:
    faults.error(S2ErrorCode.PERMISSION_DENIED, kind=Call.APPEND)
    with pytest.raises(S2ServerError) as refused:
        await stream.append(AppendInput([Record(b"a")]))
    assert (refused.value.status_code, refused.value.code) == (403, "permission_denied")


async def test_readers_of_a_deleted_stream_find_the_new_one(s2: S2, stream: S2Stream) -> None:
    await fill(stream, 1)
    async with asyncio.timeout(BOUND_S), stream.read_session(start=TailOffset(1)) as session:
        assert len(await records_of(session, 1)) == 1
        await session.caught_up()
        await s2.basin(BASIN).delete_stream(stream.name)
        # It starts at 0 again, where this reader does not look: its position is beyond the new tail.
        with pytest.raises(S2ServerError) as refused:
            await records_of(session, 1)
        assert refused.value.status_code == 416


async def test_sessions_go_on_at_an_origin_that_was_restarted(
    s2: S2, origin: RunningS2Origin, stream: S2Stream
) -> None:
    await fill(stream, 2)
    async with asyncio.timeout(BOUND_S), stream.read_session(start=SeqNum(0)) as session:
        await records_of(session, 2)
        for grace_s in (1.0, 0.0):
            await origin.stop(grace_s)
            origin = await start_s2_origin(S2OriginSettings(port=origin.port), origin=origin.origin)
            try:
                before = (await stream.check_tail()).seq_num
                await fill(stream, 1)
                assert [record.seq_num for record in await records_of(session, 1)] == [before]
            finally:
                if grace_s == 0.0:
                    await session.close()
                    await origin.stop(1.0)


async def test_each_token_may_have_its_own_streams() -> None:
    origin = S2Origin(S2OriginSettings(has_account_per_token=True))
    running = await start_s2_origin(origin=origin)
    try:
        endpoints = Endpoints(account=running.url, basin=running.url)
        tails = []
        for token, count in (("one", 1), ("two", 2)):
            async with S2(token, endpoints=endpoints) as client:
                await client.create_basin(BASIN)
                await client.basin(BASIN).create_stream("s")
                await fill(client.basin(BASIN).stream("s"), count)
                tails.append((await client.basin(BASIN).stream("s").check_tail()).seq_num)
        assert tails == [1, 2]
    finally:
        await running.stop(1.0)
