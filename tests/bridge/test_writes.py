"""Writes to bridged streams: what S2 keeps, what is refused, and how a close keeps writers out."""

from __future__ import annotations

import asyncio

import pytest

from gateway.aio.clock import ManualClock
from gateway.bridge.content import CLOSE_TOKEN, MOST_CONTAINERS
from gateway.bridge.writes import MOST_BODY_BYTES
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_BATCH_RECORDS, Fence
from tests.bridge.clients import STREAM, Answer, Bridged
from tests.waiting import eventually

JSON = "application/json"


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


async def put(bridged: Bridged, body: bytes | None = None, **headers: str) -> Answer:
    return await bridged.reader.send("PUT", STREAM, body, **{"Content_Type": JSON, **headers})


async def post(bridged: Bridged, body: bytes | None = None, **headers: str) -> Answer:
    return await bridged.reader.send("POST", STREAM, body, **{"Content_Type": JSON, **headers})


async def test_a_stream_is_created_appended_to_closed_and_deleted(bridged: Bridged) -> None:
    created = await put(bridged)
    assert (created.status, created.end) == (201, at(0))
    assert created.headers["Location"].endswith("/" + STREAM)
    assert created.headers["Location"].startswith(bridged.reader.url)
    assert (await put(bridged)).status == 200
    appended = await post(bridged, b'[{"a":1}, 2.50]')
    assert (appended.status, appended.end) == (204, at(2))
    read = await bridged.reader.read()
    assert read.body == b'[{"a":1},2.50]'
    closed = await post(bridged, b"3", Stream_Closed="true")
    assert (closed.status, closed.end, closed.is_closed) == (204, at(3), True)
    assert (await bridged.reader.read()).is_closed
    assert (await bridged.reader.send("DELETE")).status == 204
    assert (await bridged.reader.read()).status == 404
    assert (await bridged.reader.send("DELETE")).status == 404


async def test_a_closed_stream_takes_no_more(bridged: Bridged) -> None:
    await put(bridged, b"[1]")
    assert (await post(bridged, None, Stream_Closed="true")).status == 204
    again = await post(bridged, None, Stream_Closed="true")
    assert (again.status, again.end, again.is_closed) == (204, at(1), True)
    for refused in (
        await post(bridged, b"2"),
        await post(bridged, b"2", Stream_Closed="true"),
        await post(bridged, b"2", Content_Type="text/plain"),
    ):
        assert (refused.status, refused.end, refused.is_closed) == (409, at(1), True)
    assert (await put(bridged)).status == 409
    assert (await put(bridged, Stream_Closed="true")).status == 200
    assert bridged.counters.records_appended == 2


async def test_appends_that_race_with_a_close_are_before_it_or_refused(bridged: Bridged) -> None:
    await put(bridged)
    hold = bridged.faults.hold(kind=Call.APPEND)
    writes = [asyncio.ensure_future(post(bridged, str(number).encode())) for number in range(8)]
    writes.append(asyncio.ensure_future(post(bridged, b'"last"', Stream_Closed="true")))
    await bridged.counters.reached(Call.APPEND, 9)
    hold.release()
    answers = [await write for write in writes]
    kept = sorted(answer.end for answer in answers if answer.status == 204)
    messages = await bridged.reader.all()
    assert len(messages) == len(kept)
    assert messages[-1] == "last"
    assert {answer.status for answer in answers} <= {204, 409}


async def test_created_closed(bridged: Bridged) -> None:
    created = await put(bridged, b'["all"]', Stream_Closed="true")
    assert (created.status, created.end, created.is_closed) == (201, at(1), True)
    assert (await bridged.reader.read()).json == ["all"]
    empty = await bridged.reader.send("PUT", "b", None, Content_Type=JSON, Stream_Closed="true")
    assert (empty.status, empty.end, empty.is_closed) == (201, at(0), True)
    read = await bridged.reader.read(stream="b")
    assert (read.json, read.end, read.is_closed) == ([], at(0), True)


async def test_a_creation_that_failed_half_way_can_be_repeated(bridged: Bridged) -> None:
    bridged.faults.error(S2ErrorCode.UNAVAILABLE, kind=Call.APPEND)
    assert (await put(bridged, b"[1]")).status == 503
    assert (await put(bridged, b"[1]")).status == 201
    assert (await put(bridged, b"[1]")).status == 200
    assert await bridged.reader.all() == [1]


async def test_a_stream_that_an_s2_writer_has_fenced_is_read_only(bridged: Bridged) -> None:
    await put(bridged, b"[1]")
    await bridged.writer.command(Fence("mine"))
    refused = await post(bridged, b"2")
    assert (refused.status, refused.is_closed) == (409, False)
    assert b"fenced" in refused.body
    assert await bridged.reader.all() == [1]
    assert not (await bridged.reader.send("HEAD")).is_closed


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Stream_Seq": "1"}, b"Stream-Seq"),
        ({"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": "0"}, b"Idempotent producers"),
        ({"Stream_TTL": "60"}, b"Lifetimes"),
        ({"Stream_Expires_At": "2100-01-01T00:00:00Z"}, b"Lifetimes"),
        ({"Stream_Forked_From": "/x"}, b"Forks"),
    ],
)
async def test_what_s2_cannot_keep_is_refused_in_one_line(
    bridged: Bridged, headers: dict[str, str], why: bytes
) -> None:
    refused = await put(bridged, None, **headers)
    assert refused.status == 501
    assert why in refused.body
    assert b"\n" not in refused.body
    assert (await bridged.reader.read()).status == 404
    await put(bridged)
    assert (await post(bridged, b"1", **headers)).status == 501
    assert bridged.counters.records_appended == 0


async def test_an_append_is_held_to_what_s2_takes_in_one_step(bridged: Bridged) -> None:
    await put(bridged)
    most = b"[" + b",".join([b"1"] * MAX_BATCH_RECORDS) + b"]"
    assert (await post(bridged, most)).status == 204
    assert (await post(bridged, b"[1," + most[1:])).status == 413
    # A record of S2 meters 8 bytes beside its body.
    largest = b'"' + b"x" * (MAX_BATCH_METERED_BYTES - 10) + b'"'
    assert (await post(bridged, largest)).status == 204
    assert (await post(bridged, b'"' + largest[1:-1] + b'x"')).status == 413
    assert (await post(bridged, b" " * MOST_BODY_BYTES + b"1")).status == 413
    assert (await post(bridged, b" " * (MOST_BODY_BYTES - 1) + b"1")).status == 204
    assert bridged.counters.records_appended == MAX_BATCH_RECORDS + 2


async def test_an_append_has_a_bound_on_what_a_parser_makes_of_it(bridged: Bridged) -> None:
    await put(bridged)
    inner = b",".join([b"[]"] * (MOST_CONTAINERS - 2))
    assert (await post(bridged, b"[[%b,[]]]" % inner)).status == 413
    assert (await post(bridged, b"[[%b]]" % inner)).status == 204
    in_text = b'"' + b"[" * (MOST_CONTAINERS + 1) + b'"'
    assert (await post(bridged, in_text)).status == 204
    assert bridged.counters.records_appended == 2


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"NaN", {}, 400),
        (None, {}, 400),
        (b"1", {"Content_Type": "text/plain"}, 409),
        (b"1", {"Content_Type": "application/json; charset=utf-8"}, 204),
        (b"[[]]", {}, 204),
    ],
)
async def test_bodies_are_checked(bridged: Bridged, body: bytes | None, headers: dict[str, str], status: int) -> None:
    await put(bridged)
    assert (await post(bridged, body, **headers)).status == status


async def test_a_refused_type_creates_nothing(bridged: Bridged) -> None:
    assert (await put(bridged, Content_Type="text/plain")).status == 409
    assert (await bridged.reader.read()).status == 404
    assert (await post(bridged, b"1")).status == 404


async def test_errors_of_the_origin_are_those_of_a_durable_streams_server(bridged: Bridged) -> None:
    await put(bridged)
    for code, status in (
        (S2ErrorCode.PERMISSION_DENIED, 403),
        (S2ErrorCode.RATE_LIMITED, 429),
        (S2ErrorCode.TRANSACTION_CONFLICT, 503),
        (S2ErrorCode.TIMEOUT, 503),
        (S2ErrorCode.INVALID, 400),
        (S2ErrorCode.OTHER, 500),
    ):
        bridged.faults.error(code, kind=Call.APPEND)
        refused = await post(bridged, b"1")
        assert (refused.status, refused.headers["Content-Type"]) == (status, "text/plain; charset=utf-8")
    assert bridged.counters.records_appended == 0


async def test_an_append_is_sent_once_even_if_its_answer_is_lost(bridged: Bridged) -> None:
    await put(bridged)
    bridged.faults.drop(kind=Call.APPEND, times=1, after_bytes=1)
    assert (await post(bridged, b"1")).status == 502
    await eventually(lambda: bridged.counters.finished[Call.APPEND] == 1)
    assert bridged.counters.requests[Call.APPEND] == 1
    assert await bridged.reader.all() == [1]


async def test_a_write_is_in_every_read_that_starts_after_its_acknowledgement(bridged: Bridged) -> None:
    await put(bridged)
    events = await bridged.reader.events()
    for number in range(20):
        await post(bridged, str(number).encode())
        assert await bridged.reader.all() == list(range(number + 1))
        assert (await bridged.reader.send("HEAD")).end == at(number + 1)
    assert await events.messages(20) == list(range(20))
    events.close()


async def test_the_close_is_a_fence_in_s2s_terms(bridged: Bridged) -> None:
    await put(bridged)
    await post(bridged, None, Stream_Closed="true")
    fence = bridged.origin.origin.account.basins["basin-of-tests"].streams[STREAM]
    assert fence.fencing_token == CLOSE_TOKEN
    assert fence.tail.seq_num == 1


async def test_a_body_that_breaks_off_is_not_appended(bridged: Bridged) -> None:
    await put(bridged)
    host, port = bridged.reader.url.removeprefix("http://").split(":")
    _, connection = await asyncio.open_connection(host, int(port))
    head = f"POST /{STREAM} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {JSON}\r\nContent-Length: 9\r\n"
    connection.write(f"{head}Authorization: Bearer token\r\n\r\n[1,".encode())
    await connection.drain()
    connection.close()
    await eventually(lambda: bridged.gateway.connections <= 1)
    # The next append is answered after whatever came of the first.
    assert (await post(bridged, b"2")).end == at(1)
    assert await bridged.reader.all() == [2]
    assert bridged.counters.requests[Call.APPEND] == 1


async def test_a_stream_that_is_being_deleted_is_gone(bridged: Bridged) -> None:
    await put(bridged, b"[1]")
    assert (await bridged.reader.read()).json == [1]
    bridged.faults.error(S2ErrorCode.STREAM_DELETION_PENDING, times=None)
    assert (await bridged.reader.read(at(1))).status == 404
    assert (await bridged.reader.read()).status == 404
    assert (await bridged.reader.send("HEAD")).status == 404
    assert (await post(bridged, b"2")).status == 404
    assert (await bridged.reader.send("DELETE")).status == 404
    created = await put(bridged)
    assert (created.status, created.headers["Retry-After"]) == (503, "1")


async def test_appends_two_seconds_apart_leave_what_is_held(bridged: Bridged, clock: ManualClock) -> None:
    """An append may create an S2 stream; while nothing deletes it, none is made anew."""
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    assert (await bridged.reader.read()).json == [0, 1]
    (stream,) = bridged.gateway.engine.store
    edition = stream.version.edition
    for number in range(2, 5):
        clock.advance(2)
        await bridged.reader.send("POST", STREAM, str(number).encode(), Content_Type="application/json")
        assert (await bridged.reader.read()).json == list(range(number + 1))
    assert stream.version.edition == edition
