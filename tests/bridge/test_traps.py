"""What a bridge must not get wrong: trims, streams that are created again, ranges that are fetched twice."""

from __future__ import annotations

import asyncio
import json

import pytest
from yarl import URL

from gateway.bridge.content import CLOSE_TOKEN
from gateway.origin.s2.calls import Call
from gateway.s2.records import Fence, Trim
from tests.bridge.clients import Bridged
from tests.waiting import eventually, time_passing


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


async def test_a_range_is_fetched_once_for_any_number_of_readers(bridged: Bridged) -> None:
    await bridged.writer.create()
    for number in range(5):
        await bridged.writer.append(*(str(100 * number + one).encode() for one in range(100)))
    hold = bridged.faults.hold(kind=Call.READ, times=1)
    reads = [asyncio.ensure_future(bridged.reader.read()) for _ in range(50)]
    await eventually(lambda: bridged.gateway.engine.fetches.readers == 50)
    hold.release()
    for read in reads:
        assert (await read).json == list(range(500))
    assert bridged.counters.records_sent[Call.READ] == 500
    await bridged.writer.append(b"500")
    assert await bridged.reader.all() == list(range(501))
    assert (await bridged.reader.read(at(500))).json == [500]
    # The new record, and the preceding one, to which it is joined.
    assert bridged.counters.records_sent[Call.READ] == 502


async def test_what_lies_before_a_trim_is_gone(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1", b"2", b"3")
    assert (await bridged.reader.read()).json == [0, 1, 2, 3]
    await bridged.writer.command(Trim(2))
    # The tape still has it, and a read of the tail learns of the trim.
    assert (await bridged.reader.read(at(4))).end == at(5)
    assert (await bridged.reader.read(at(0))).status == 410
    assert (await bridged.reader.read(at(1), live="long-poll")).status == 410
    from_start = await bridged.reader.read()
    assert (from_start.json, from_start.end) == ([2, 3], at(5))
    assert (await bridged.reader.read(at(2))).json == [2, 3]


async def test_a_stream_that_was_trimmed_to_its_tail_starts_there(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    await bridged.writer.command(Trim(3))
    for offset in ("-1", at(3), "now"):
        answer = await bridged.reader.read(offset)
        assert (answer.json, answer.end, answer.is_up_to_date) == ([], at(3), True)
    assert (await bridged.reader.read(at(1))).status == 410


async def test_a_live_reader_whose_next_records_were_trimmed_is_not_led_past_them(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    bridged.faults.finish_session(after_messages=2, times=1, kind=Call.READ_SESSION)
    events = await bridged.reader.events()
    assert await events.messages(1) == [0]
    hold = bridged.faults.hold(kind=Call.READ_SESSION)
    async with time_passing(bridged.clock):
        # The session ends in place of the next message, and the next session waits at the gate.
        await bridged.writer.append(b"1", b"2", b"3")
        await bridged.counters.reached(Call.READ_SESSION, 2)
        await bridged.writer.command(Trim(3))
        hold.release()
        while (event := await events.next()) is not None:
            assert event.name == "control", event
    assert (await bridged.reader.read(at(1), live="long-poll")).status == 410
    resumed = await bridged.reader.send("GET", query=f"offset={at(1)}&live=sse")
    assert resumed.status == 410


async def test_a_deleted_stream_ends_for_its_live_readers(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    events = await bridged.reader.events()
    assert await events.messages(1) == [0]
    async with time_passing(bridged.clock):
        await bridged.writer.delete()
        while await events.next() is not None:
            pass
        assert (await bridged.reader.read()).status == 404
        assert (await bridged.reader.read(at(1), live="long-poll")).status == 404


@pytest.mark.parametrize("timestamp", [1_000, 2_000])
@pytest.mark.parametrize("between", [None, "HEAD", "now"])
async def test_a_re_created_stream_is_not_joined_to_the_earlier_one(
    bridged: Bridged, between: str | None, timestamp: int
) -> None:
    """The gateway did not see the deletion, and the new stream is longer than what it holds of the old one."""
    await bridged.writer.create()
    await bridged.writer.append(b'"old 0"', b'"old 1"', timestamp=1_000)
    first = await bridged.reader.read()
    assert first.json == ["old 0", "old 1"]
    await bridged.writer.delete()
    await bridged.writer.create()
    await bridged.writer.append(b'"new 0"', b'"new 1"', b'"new 2"', timestamp=timestamp)
    # Questions about the tail bring no record, and so show nothing.
    if between == "HEAD":
        assert (await bridged.reader.send("HEAD", "a/stream")).end == at(3)
    elif between == "now":
        assert (await bridged.reader.read("now")).end == at(3)
    again = await bridged.reader.read()
    assert again.json == ["new 0", "new 1", "new 2"]
    assert again.headers["ETag"] != first.headers["ETag"]


async def test_a_stream_that_was_created_again_while_its_session_was_lost_ends_for_live_readers(
    bridged: Bridged,
) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b'"old 0"', timestamp=1_000)
    events = await bridged.reader.events()
    assert await events.messages(1) == ["old 0"]
    await bridged.counters.parked_is(1)
    hold = bridged.faults.hold(kind=Call.READ_SESSION)
    async with time_passing(bridged.clock):
        await bridged.writer.delete()
        await bridged.counters.reached(Call.READ_SESSION, 2)
        await bridged.writer.create()
        await bridged.writer.append(b'"new 0"', b'"new 1"', timestamp=2_000)
        hold.release()
        while (event := await events.next()) is not None:
            assert event.name == "control", event
    assert await bridged.reader.all() == ["new 0", "new 1"]


async def test_commands_move_the_offset_and_show_nothing(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    events = await bridged.reader.events()
    assert await events.messages(1) == [0]
    poll = asyncio.ensure_future(bridged.reader.read(at(1), live="long-poll"))
    await bridged.writer.command(Trim(0))
    await bridged.writer.append(b"1")
    assert await events.messages(1) == [1]
    events.close()
    assert (await poll).status in (200, 204)
    assert await bridged.reader.all() == [0, 1]
    assert (await bridged.reader.send("HEAD")).end == at(3)


async def test_a_closed_stream_that_was_created_again_is_open(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", timestamp=1_000)
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    assert (await bridged.reader.send("HEAD")).is_closed
    await bridged.writer.delete()
    await bridged.writer.create()
    await bridged.writer.append(b"1", b"2", b"3", timestamp=2_000)
    bridged.clock.advance(120)
    head = await bridged.reader.send("HEAD")
    assert (head.end, head.is_closed) == (at(3), False)
    assert await bridged.reader.all() == [1, 2, 3]


async def test_records_behind_the_mark_are_not_of_the_stream(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    assert (await bridged.reader.read()).is_closed
    # An S2 writer that names no token is not held off.
    await bridged.writer.append(b"1")
    bridged.clock.advance(120)
    for answer in (
        await bridged.reader.read(),
        await bridged.reader.read(at(1)),
        await bridged.reader.read("now"),
        await bridged.reader.send("HEAD"),
    ):
        assert (answer.end, answer.is_closed) == (at(1), True)


async def test_a_trim_behind_the_mark_hides_no_close(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    await bridged.writer.command(Trim(1))
    head = await bridged.reader.send("HEAD")
    assert (head.end, head.is_closed) == (at(1), True)
    assert (await bridged.reader.read("now")).is_closed
    assert (await bridged.reader.read()).is_closed


async def test_what_is_known_of_a_stream_does_not_depend_on_who_passed_the_request_on(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    for number in range(3):
        trace = f"00-{number:032x}-{number:016x}-01"
        await bridged.reader.read(traceparent=trace, Via=f"1.1 proxy-{number}")
        await bridged.reader.send("HEAD", traceparent=trace, X_Forwarded_For=f"10.0.0.{number}")
    assert repr(bridged.gateway.engine.bridge.sightings) == "<S2Sightings of 1 streams>"


async def test_a_name_escaped_in_another_way_is_the_same_stream(bridged: Bridged) -> None:
    """Clients escape names in paths each in its own way, and S2 has one name for all of them."""
    paths = "a%21%28b%29", "a!(b)"

    async def send(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Authorization": "Bearer token", "Content-Type": "application/json"}
        url = URL(f"{bridged.gateway.gateway_url}/{path}", encoded=True)
        async with bridged.reader.http.request(method, url, data=body, headers=headers) as reply:
            return reply.status, await reply.read()

    assert (await send("PUT", paths[0]))[0] == 201
    assert (await send("POST", paths[0], b'"old"'))[0] == 204
    for path in paths:
        assert await send("GET", path) == (200, b'["old"]')
    assert bridged.counters.records_sent[Call.READ] == 1
    assert (await send("DELETE", paths[0]))[0] == 204
    assert (await send("GET", paths[1]))[0] == 404


async def _begin_another(bridged: Bridged) -> None:
    """Put another stream in the place of this one, past the gateway."""
    path = "/v1/streams/a%2Fstream"
    assert (await bridged.writer.client.send("DELETE", path)).status == 202
    assert (await bridged.writer.client.send("PUT", path, {})).status == 201


@pytest.mark.parametrize(("held", "appended"), [(1, 1), (1, 2), (1, 5), (3, 1), (3, 3), (3, 5)])
async def test_an_append_shows_that_the_stream_is_another(bridged: Bridged, held: int, appended: int) -> None:
    await bridged.writer.create()
    await bridged.writer.append(*(b"%d" % number for number in range(held)))
    assert (await bridged.reader.read()).json == list(range(held))
    await _begin_another(bridged)
    new = list(range(100, 100 + appended))
    appending = await bridged.reader.send("POST", body=json.dumps(new).encode(), Content_Type="application/json")
    assert (appending.status, appending.end) == (204, at(appended))
    assert (await bridged.reader.read()).json == new


async def test_an_append_beside_live_readers_shows_that_the_stream_is_another(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    events = await bridged.reader.events()
    assert await events.messages(1) == [0]
    hold = bridged.faults.hold(kind=Call.READ_SESSION)
    await _begin_another(bridged)
    assert (await bridged.reader.send("POST", body=b"[1, 2, 3]", Content_Type="application/json")).status == 204
    assert (await bridged.reader.read()).json == [1, 2, 3]
    hold.release()
