"""What happens at the origin between two requests of one answer."""

from __future__ import annotations

import asyncio

import pytest

from gateway.bridge.content import CLOSE_TOKEN
from gateway.origin.faults import When
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import MAX_BATCH_RECORDS, Fence, Trim
from tests.bridge.clients import STREAM, Bridged, Reader
from tests.s2.edge.clients import BASIN
from tests.waiting import time_passing

JSON = "application/json"
PLAIN = f"{BASIN}/{STREAM}"


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


async def test_a_record_that_comes_while_the_tail_of_a_trimmed_stream_is_asked_for_is_read(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    await bridged.writer.command(Trim(3))
    first = bridged.faults.hold(kind=Call.READ, times=1)
    read = asyncio.ensure_future(bridged.reader.read())
    await first.waiting(1)
    second = bridged.faults.hold(kind=Call.READ, times=1)
    first.release()
    await second.waiting(1)
    await bridged.writer.append(b"3")
    second.release()
    answer = await read
    assert (answer.json, answer.end) == ([3], at(4))


async def test_an_answer_is_of_one_stream(bridged: Bridged) -> None:
    """The stream is created again, shorter, between two pages of one answer."""
    await bridged.writer.create()
    await bridged.writer.append(*[b'"old"'] * MAX_BATCH_RECORDS, timestamp=1_000)
    await bridged.writer.append(b'"old"', timestamp=1_000)
    hold = bridged.faults.hold(kind=Call.READ, times=1)
    read = asyncio.ensure_future(bridged.reader.read())
    await hold.waiting(1)
    second = bridged.faults.hold(kind=Call.READ, times=1)
    hold.release()
    await second.waiting(1)
    await bridged.writer.delete()
    await bridged.writer.create()
    await bridged.writer.append(b'"new"', timestamp=2_000)
    second.release()
    async with time_passing(bridged.clock):
        answer = await read
    assert (answer.json, answer.end) == (["new"], at(1))


async def test_an_old_page_is_not_taken_for_the_new_stream(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b'"old"', timestamp=1_000)
    before = await plain.read(stream=PLAIN)
    hold = bridged.faults.hold(kind=Call.READ, times=1, when=When.REPLY)
    read = asyncio.ensure_future(plain.read(stream=PLAIN))
    await hold.waiting(1)
    await bridged.writer.delete()
    await bridged.writer.create()
    await bridged.writer.append(b'"new"', timestamp=2_000)
    hold.release()
    answer = await read
    if answer.json == ["old"]:
        assert answer.headers["ETag"] == before.headers["ETag"]
    else:
        assert answer.json == ["new"]
        assert answer.headers["ETag"] != before.headers["ETag"]


async def test_a_body_that_another_writer_came_before_is_not_taken_for_kept(bridged: Bridged) -> None:
    hold = bridged.faults.hold(kind=Call.APPEND, times=1)
    put = asyncio.ensure_future(bridged.reader.send("PUT", STREAM, b'["mine"]', Content_Type=JSON))
    await hold.waiting(1)
    await bridged.writer.append(b'"theirs"')
    hold.release()
    answer = await put
    assert await bridged.reader.all() == ["theirs"]
    assert answer.status == 409, answer


async def test_a_stream_that_an_s2_writer_has_opened_again_stays_closed(bridged: Bridged) -> None:
    await bridged.reader.send("PUT", STREAM, b"[0]", Content_Type=JSON)
    await bridged.reader.send("POST", STREAM, None, Stream_Closed="true")
    assert (await bridged.reader.read()).is_closed
    await bridged.writer.command(Fence(""))
    refused = await bridged.reader.send("POST", STREAM, b"1", Content_Type=JSON)
    assert (refused.status, refused.end, refused.is_closed) == (409, at(1), True)
    again = await bridged.reader.send("POST", STREAM, None, Stream_Closed="true")
    assert (again.status, again.end, again.is_closed) == (204, at(1), True)
    assert (await bridged.reader.read()).json == [0]


async def test_the_first_of_two_marks_ends_the_stream(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    assert (await plain.read(stream=PLAIN)).end == at(1)
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    for answer in (
        await plain.send("HEAD", PLAIN),
        await plain.read("now", PLAIN),
        await plain.read(at(1), PLAIN),
        await plain.read(at(2), PLAIN),
        await plain.read(at(3), PLAIN),
    ):
        assert (answer.end, answer.is_closed) == (at(1), True)


async def test_offsets_behind_the_mark_lead_back_to_it(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    assert (await plain.read(stream=PLAIN)).is_closed
    await bridged.writer.append(b"2")
    for offset in (at(2), at(3), at(9)):
        for live in ("", "long-poll"):
            answer = await plain.read(offset, PLAIN, live)
            assert answer.body in (b"", b"[]")
            assert (answer.end, answer.is_closed) == (at(1), True), (offset, live)
        events = await plain.events(offset, PLAIN)
        control = await events.control()
        assert (control["streamNextOffset"], control.get("streamClosed")) == (at(1), True), offset
        assert await events.next() is None


@pytest.mark.parametrize("live", ["", "long-poll"])
async def test_a_stream_that_could_not_be_recognised_is_not_read_on(bridged: Bridged, plain: Reader, live: str) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b'"old"', timestamp=1_000)
    assert (await plain.read(stream=PLAIN)).json == ["old"]
    await bridged.writer.delete()
    await bridged.writer.create()
    await bridged.writer.append(b'"new"', b'"newer"', timestamp=2_000)
    hold = bridged.faults.hold(kind=Call.READ, times=1)
    read = asyncio.ensure_future(plain.read(at(1), PLAIN, live))
    await hold.waiting(1)
    bridged.faults.error(S2ErrorCode.RATE_LIMITED, kind=Call.READ)
    hold.release()
    assert (await read).status == 429


@pytest.mark.parametrize("live", ["", "long-poll", "sse"])
async def test_a_mark_is_not_looked_for_in_another_stream(bridged: Bridged, plain: Reader, live: str) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", timestamp=1_000)
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    assert (await plain.read(stream=PLAIN)).is_closed
    await bridged.writer.delete()
    await bridged.writer.create()
    await bridged.writer.append(*[b'"new"'] * 4, timestamp=2_000)
    if live == "sse":
        events = await plain.events(at(3), PLAIN)
        assert await events.messages(1) == ["new"]
        events.close()
    else:
        answer = await plain.read(at(3), PLAIN, live)
        assert (answer.json, answer.end, answer.is_closed) == (["new"], at(4), False)
