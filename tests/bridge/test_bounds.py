"""What an origin may do to the bridge, and the bounds of both."""

from __future__ import annotations

import asyncio

import pytest

from gateway.bridge.reads import MOST_ANSWER_BYTES
from gateway.bridge.replies import HIGH_WATER_BYTES, MadeBody
from gateway.bridge.streams import MOST_NAME_BYTES
from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf, session
from gateway.s2.errors import S2ErrorCode, error_body
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.upstream import s2_client
from gateway.upstream.failures import ConnectionLost
from gateway.upstream.s2_client import MOST_BODY_BYTES
from tests.bridge.clients import Bridged
from tests.s2.edge.clients import BOUND_S
from tests.waiting import pass_turns, time_passing

PROTOBUF = {"content-type": protobuf.CONTENT_TYPE}


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


def batch(*seq_nums: int, tail: int | None = None) -> bytes:
    position = StreamPosition(tail, 1) if tail is not None else None
    return protobuf.encode_read_batch(ReadBatch(tuple(Record(one, 1, (), b"1") for one in seq_nums), position))


@pytest.fixture
def settings() -> dict[str, object]:
    return {"retry_attempts": 0}


async def test_an_answer_of_the_origin_that_is_too_large_is_refused(bridged: Bridged) -> None:
    await bridged.writer.create()
    bridged.faults.replace(200, PROTOBUF, bytes(MOST_BODY_BYTES + 1), kind=Call.READ, times=None)
    assert (await bridged.reader.read()).status == 502


@pytest.mark.parametrize(
    "body",
    [b"\xff\xff", batch(), batch(1, 3), batch(2, 1), batch(5, 5), batch(0)],
    ids=["broken", "empty", "gap", "backwards", "twice", "before the start"],
)
async def test_records_that_do_not_follow_each_other_are_refused(bridged: Bridged, body: bytes) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    bridged.faults.replace(200, PROTOBUF, body, kind=Call.READ, times=None)
    assert (await bridged.reader.read(at(1))).status == 502
    bridged.faults.clear()
    assert (await bridged.reader.read(at(1))).json == [1]


@pytest.mark.parametrize(
    "frames",
    [
        b"\x00\x00\x00",
        session.encode_message(b"\xff\xff"),
        session.encode_message(batch(1, 3)),
        session.encode_message(batch(1, 0)),
        session.encode_terminal(503, error_body(S2ErrorCode.UNAVAILABLE, "gone")),
        b"",
    ],
    ids=["no frame", "broken", "gap", "backwards", "terminal", "nothing"],
)
async def test_a_session_that_makes_no_sense_is_opened_again(bridged: Bridged, frames: bytes) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    bridged.faults.replace(200, {"content-type": session.CONTENT_TYPE}, frames, kind=Call.READ_SESSION, times=2)
    async with time_passing(bridged.clock):
        events = await bridged.reader.events()
        assert await events.messages(1) == [0]
        await bridged.writer.append(b"1")
        assert await events.messages(1) == [1]
    events.close()


async def test_a_session_that_falls_silent_is_opened_again(bridged: Bridged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s2_client, "SILENCE_S", 0.2)
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    bridged.faults.stall(after_bytes=0, kind=Call.READ_SESSION, times=1)
    async with time_passing(bridged.clock):
        events = await bridged.reader.events()
        async with asyncio.timeout(BOUND_S):
            await bridged.counters.reached(Call.READ_SESSION, 2)
        await bridged.writer.append(b"1")
        assert await events.messages(2) == [0, 1]
    events.close()


async def test_a_longer_catch_up_comes_in_several_answers(bridged: Bridged) -> None:
    await bridged.writer.create()
    body = b'"' + b"x" * (MOST_ANSWER_BYTES // 2) + b'"'
    for _ in range(3):
        await bridged.writer.append(body)
    counters = bridged.counters
    answer = await bridged.reader.read()
    assert len(answer.body) >= MOST_ANSWER_BYTES
    assert (answer.end, answer.is_up_to_date) == (at(2), False)
    assert len(await bridged.reader.all()) == 3
    # Each page but the first has the record before it confirmed.
    assert counters.records_sent[Call.READ] == 5


async def test_a_name_that_is_too_long_is_no_stream(bridged: Bridged) -> None:
    longest = "x" * MOST_NAME_BYTES
    await bridged.writer.create(longest)
    assert (await bridged.reader.read(stream=longest)).status == 200
    before = bridged.counters.total_requests
    assert (await bridged.reader.read(stream=longest + "x")).status == 404
    assert bridged.counters.total_requests == before


async def test_the_writer_of_a_body_waits_for_its_reader() -> None:
    body = MadeBody()
    body.write(bytes(HIGH_WATER_BYTES))
    await body.room()
    body.write(b"x")
    waiting = asyncio.ensure_future(body.room())
    await pass_turns()
    assert not waiting.done()
    assert body.take() == bytes(HIGH_WATER_BYTES) + b"x"
    async with asyncio.timeout(BOUND_S):
        await waiting
    assert body.take() is None
    body.finish()
    assert body.take() == b""


async def test_a_body_that_its_reader_has_left_takes_no_more() -> None:
    left: list[bool] = []
    body = MadeBody(lambda: left.append(True))
    body.break_off("left")
    body.write(bytes(HIGH_WATER_BYTES + 1))
    await body.room()
    body.finish()
    assert left == [True]
    with pytest.raises(ConnectionLost):
        body.take()
