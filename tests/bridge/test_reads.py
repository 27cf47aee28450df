"""Reads of bridged streams: catch-up, long-poll and SSE, cached and collapsed."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import MAX_BATCH_METERED_BYTES, Header
from tests.bridge.clients import STREAM, Bridged, Reader
from tests.s2.edge.clients import BASIN
from tests.waiting import time_passing


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


async def test_records_are_read_as_messages(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b'{"n": 1}', b"2")
    answer = await bridged.reader.read()
    assert answer.json == [{"n": 1}, 2]
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.end == "00000000000000000002"
    assert answer.is_up_to_date


async def test_an_empty_stream(bridged: Bridged) -> None:
    await bridged.writer.create()
    for offset in ("-1", at(0), "now"):
        answer = await bridged.reader.read(offset)
        assert (answer.json, answer.end, answer.is_up_to_date) == ([], at(0), True)
    head = await bridged.reader.send("HEAD")
    assert (head.status, head.end, head.headers["Content-Type"]) == (200, at(0), "application/json")
    assert head.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("offset", ["0", "abc", "-2", "1" * 19, "1" * 21, "9" * 20, at(0) + "x"])
@pytest.mark.parametrize("live", ["", "long-poll", "sse"])
async def test_what_is_no_offset_is_refused(bridged: Bridged, offset: str, live: str) -> None:
    await bridged.writer.create()
    assert (await bridged.reader.read(offset, live=live)).status == 400


async def test_an_offset_beyond_the_tail_leads_back_to_it(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    answer = await bridged.reader.read(at(9))
    assert (answer.json, answer.end) == ([], at(1))


async def test_the_basin_may_be_in_the_path(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    assert (await plain.read(stream=f"{BASIN}/{STREAM}")).json == [0]
    created = await plain.send("PUT", f"{BASIN}/another")
    assert (created.status, created.headers["Location"]) == (201, f"{plain.url}/{BASIN}/another")
    for path in ("", BASIN, f"{BASIN}/", f"other-basin/{STREAM}", f"{BASIN}/a%2Fstream"):
        assert (await plain.read(stream=path)).status == 404


async def test_without_a_cache_the_bridge_itself_answers(bridged: Bridged, plain: Reader) -> None:
    stream = f"{BASIN}/{STREAM}"
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    answer = await plain.read(stream=stream)
    assert (answer.json, answer.end, answer.is_up_to_date) == ([0], at(1), True)
    events = await plain.events(stream=stream)
    assert await events.messages(1) == [0]
    latest = await plain.events("now", stream=stream)
    assert (await latest.control())["streamNextOffset"] == at(1)
    polls = [asyncio.ensure_future(plain.read(offset, stream, "long-poll")) for offset in (at(1), "now")]
    await bridged.counters.parked_is(4)
    await bridged.writer.append(b"1")
    assert await events.messages(1) == await latest.messages(1) == [1]
    control = await latest.control()
    assert (control["streamNextOffset"], control["upToDate"]) == (at(2), True)
    for poll in polls:
        polled = await poll
        assert (polled.json, polled.end, polled.is_up_to_date) == ([1], at(2), True)
        assert polled.headers["Stream-Cursor"].isdigit()
    idle = await plain.read(at(2), stream, "long-poll")
    assert (idle.status, idle.end, idle.is_up_to_date) == (204, at(2), True)
    assert "Stream-Cursor" in idle.headers
    cursor = int(idle.headers["Stream-Cursor"])
    again = await plain.send("GET", stream, query=f"offset={at(2)}&live=long-poll&cursor={cursor}")
    assert int(again.headers["Stream-Cursor"]) > cursor
    await plain.send("POST", stream, b"2", Content_Type="application/json", Stream_Closed="true")
    assert await events.messages(1) == await latest.messages(1) == [2]
    assert (await events.control()).get("streamClosed") is True
    assert await events.next() is None
    for offset, live in ((at(3), "long-poll"), ("now", "long-poll"), (at(4), "long-poll")):
        ended = await plain.read(offset, stream, live)
        assert (ended.status, ended.end, ended.is_closed) == (204, at(3), True)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_a_live_read_needs_an_offset(bridged: Bridged, plain: Reader, live: str) -> None:
    await bridged.writer.create()
    for reader, stream in ((bridged.reader, STREAM), (plain, f"{BASIN}/{STREAM}")):
        assert (await reader.send("GET", stream, query=f"live={live}")).status == 400


async def test_a_client_that_leaves_takes_its_read_at_the_origin_along(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    stream = f"{BASIN}/{STREAM}"
    poll = asyncio.ensure_future(plain.read(at(0), stream, "long-poll"))
    events = await plain.events(stream=stream)
    await bridged.counters.parked_is(2)
    poll.cancel()
    await bridged.counters.parked_is(1)
    events.close()
    await bridged.counters.parked_is(0)


async def test_tokens_do_not_share(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    other = replace(bridged.reader, token="another")
    for reader in (bridged.reader, other, bridged.reader, other):
        assert (await reader.read()).json == [0]
    assert bridged.counters.records_sent[Call.READ] == 2


class TestBytes:
    @pytest.fixture
    def bridge(self) -> dict[str, object]:
        return {"records": "bytes", "content_type": "image/x-icon"}

    async def test_bodies_follow_each_other(self, bridged: Bridged) -> None:
        await bridged.writer.create()
        await bridged.writer.append(b"ab", b"", b"\x00\xff")
        answer = await bridged.reader.read()
        assert (answer.body, answer.end) == (b"ab\x00\xff", at(3))
        assert answer.headers["Content-Type"] == "image/x-icon"
        assert (await bridged.reader.read(at(1))).body == b"\x00\xff"
        events = await bridged.reader.events()
        assert events.reply.headers["Stream-SSE-Data-Encoding"] == "base64"
        event = await events.next()
        assert event is not None
        assert base64.b64decode(event.data) == b"ab\x00\xff"
        events.close()

    async def test_an_append_is_one_record(self, bridged: Bridged) -> None:
        await bridged.reader.send("PUT")
        posted = await bridged.reader.send("POST", STREAM, b"\x00[1]", Content_Type="image/x-icon")
        assert (posted.status, posted.end) == (204, at(1))
        assert (await bridged.reader.read()).body == b"\x00[1]"


class TestText:
    @pytest.fixture
    def bridge(self) -> dict[str, object]:
        return {"records": "bytes", "content_type": "text/plain"}

    async def test_sse_cuts_no_character_that_records_cut(self, bridged: Bridged) -> None:
        await bridged.writer.create()
        text = "a\u00e9\u20ac\U0001f600\r\nz"
        await bridged.writer.append(*(bytes((one,)) for one in text.encode()))
        assert (await bridged.reader.read()).body == text.encode()
        async with time_passing(bridged.clock):
            events = await bridged.reader.events()
            assert await events.text("z") == "a\u00e9\u20ac\U0001f600\nz"
            for one in "\u00e9".encode():
                await bridged.writer.append(bytes((one,)))
            assert await events.text("\u00e9") == "\u00e9"
        events.close()


class TestEnvelopes:
    @pytest.fixture
    def bridge(self) -> dict[str, object]:
        return {"records": "envelope"}

    async def test_the_largest_record_reaches_every_reader(self, bridged: Bridged) -> None:
        """Each of its bytes takes six in JSON."""
        await bridged.writer.create()
        body = bytes(MAX_BATCH_METERED_BYTES - 8)
        text = body.decode()
        await bridged.writer.append(body)
        (caught_up,) = (await bridged.reader.read()).json
        events = await bridged.reader.events()
        (first,) = await events.messages(1)
        await bridged.counters.parked_is(1)
        await bridged.writer.append(body)
        (second,) = await events.messages(1)
        for number, message in enumerate((caught_up, first, second)):
            assert isinstance(message, dict)
            assert (message["seq_num"], message["body"] == text) == (max(0, number - 1), True)
        events.close()

    async def test_headers_and_timestamps_are_kept(self, bridged: Bridged) -> None:
        await bridged.writer.create()
        await bridged.writer.append(b"text", headers={b"n": b"v"}, timestamp=5)
        await bridged.writer.append(b"\xff", timestamp=6)
        assert (await bridged.reader.read()).json == [
            {"seq_num": 0, "timestamp": 5, "headers": [["n", "v"]], "body": "text"},
            {"seq_num": 1, "timestamp": 6, "headers": [], "body": "/w==", "format": "base64"},
        ]

    async def test_an_append_is_made_of_records(self, bridged: Bridged) -> None:
        await bridged.reader.send("PUT")
        body = b'[{"headers":[["n","v"]],"body":"text","timestamp":5},{"body":"/w==","format":"base64"},{}]'
        posted = await bridged.reader.send("POST", STREAM, body, Content_Type="application/json")
        assert (posted.status, posted.end) == (204, at(3))
        first, second, third = bridged.origin.origin.account.basins[BASIN].streams[STREAM].records_from(0)
        assert (first.body, first.headers, first.timestamp) == (b"text", (Header(b"n", b"v"),), 5)
        assert (second.body, third.body) == (b"\xff", b"")
        refused = await bridged.reader.send(
            "POST", STREAM, b'{"headers":[["","fence"]],"body":"mine"}', Content_Type="application/json"
        )
        assert refused.status == 400


async def test_without_a_cache_a_stream_that_took_the_place_of_another_is_not_followed_from_there(
    bridged: Bridged, plain: Reader
) -> None:
    stream = f"{BASIN}/{STREAM}"
    await bridged.writer.create()
    await bridged.writer.append(b'"old"', timestamp=1_000)
    assert (await plain.read(stream=stream)).json == ["old"]
    await bridged.writer.delete()
    await bridged.writer.create()
    await bridged.writer.append(b'"new"', b'"newer"', timestamp=2_000)
    refused = await plain.read(at(1), stream, "sse")
    assert refused.status == 410
    events = await plain.events(stream=stream)
    assert await events.messages(2) == ["new", "newer"]
    events.close()


@pytest.mark.parametrize(
    ("code", "status"),
    [(S2ErrorCode.PERMISSION_DENIED, 403), (S2ErrorCode.STREAM_NOT_FOUND, 404), (S2ErrorCode.UNAVAILABLE, 503)],
)
async def test_a_session_that_begins_with_an_error_is_one(
    bridged: Bridged, plain: Reader, code: S2ErrorCode, status: int
) -> None:
    await bridged.writer.create()
    bridged.faults.fail_session(code, kind=Call.READ_SESSION)
    assert (await plain.read(stream=f"{BASIN}/{STREAM}", live="sse")).status == status
