"""`tail`, `append` and `bench` on S2 streams, through a gateway and at the origin itself."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp
import httpx
import pytest

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway
from gateway.commands.failure import CommandFailed
from gateway.commands.s2_producer import RecordProducer
from gateway.origin.faults import Switch
from gateway.origin.s2.app import RunningS2Origin, S2OriginSettings, start_s2_origin
from gateway.origin.s2.calls import Call
from gateway.origin.s2.faults import S2Faults
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import Fence, Trim, command_record
from tests.commands.runs import finished, running, wrote, wrote_lines

BASIN = "basin-of-tests"
QUICK = ("--seconds", "0.2", "--connections", "2", "--subscribers", "3")


@dataclass(frozen=True)
class Streams:
    """Writes to the origin and reads from it."""

    http: httpx.AsyncClient
    url: str

    async def send(self, method: str, path: str, body: object = None) -> Any:
        got = await self.http.request(method, f"{self.url}/v1{path}", json=body, headers={"s2-basin": BASIN})
        assert got.status_code < 300, got.text
        return got.json() if got.content else None

    async def append(self, *bodies: str, stream: str = "s") -> None:
        await self.send("POST", f"/streams/{stream}/records", {"records": [{"body": one} for one in bodies]})

    async def bodies(self, stream: str = "s") -> list[str]:
        got = await self.send("GET", f"/streams/{stream}/records?seq_num=0")
        return [record.get("body", "") for record in got["records"]]


@pytest.fixture
def s2_gateway_settings() -> dict[str, Any]:
    return {"shutdown_timeout_s": 0.3, "live_linger_s": 0}


@pytest.fixture
async def streams(http: httpx.AsyncClient, s2_origin: RunningS2Origin) -> Streams:
    found = Streams(http, s2_origin.url)
    await found.send("POST", "/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
    return found


def named(url: str, stream: str = "/s") -> str:
    """The S2 name of a stream at this server."""
    return f"{url.replace('http', 's2', 1)}/{BASIN}{stream}"


@pytest.fixture(params=["gateway", "origin"])
def place(request: pytest.FixtureRequest, s2_origin: RunningS2Origin, s2_gateway: RunningGateway) -> str:
    """The URL of either server."""
    return s2_gateway.gateway_url if request.param == "gateway" else s2_origin.url


# -- tail --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [["--sse"], ["--long-poll"]])
async def test_bodies_are_lines_and_the_stream_is_followed(streams: Streams, place: str, how: list[str]) -> None:
    await streams.append("one", "zwölf")
    async with running("tail", named(place), *how) as tail:
        await tail.until(wrote("one\nzwölf\n".encode()))
        await streams.append("three")
        await tail.until(wrote("one\nzwölf\nthree\n".encode()))
        assert tail.err == b""


async def test_bodies_are_bytes(streams: Streams, s2_gateway: RunningGateway) -> None:
    data = bytes(range(256)).replace(b"\n", b"").replace(b"\r", b"")
    status, _, err = await finished("append", named(s2_gateway.gateway_url), "--binary", data=data)
    assert (status, err) == (0, "")
    for how in ("--sse", "--long-poll"):
        async with running("tail", named(s2_gateway.gateway_url), how) as tail:
            await tail.until(wrote(data + b"\n"))


async def test_records_are_printed_whole_as_json(streams: Streams, place: str) -> None:
    records = [
        {"body": "a", "timestamp": 1000, "headers": [["name", "value"]]},
        {"body": "token", "timestamp": 2000, "headers": [["", "fence"]]},
        {"timestamp": 3000},
    ]
    await streams.send("POST", "/streams/s/records", {"records": records})
    async with running("tail", named(place), "--json") as tail:
        await tail.until(wrote_lines(3))
        assert [json.loads(line) for line in tail.out.splitlines()] == [
            {"seq_num": 0, "timestamp": 1000, "headers": [["name", "value"]], "body": "a"},
            {"seq_num": 1, "timestamp": 2000, "headers": [["", "fence"]], "body": "token"},
            {"seq_num": 2, "timestamp": 3000},
        ]


async def test_commands_are_no_lines(streams: Streams, s2_origin: RunningS2Origin) -> None:
    await streams.append("a", "b")
    for command in (Fence("token"), Trim(1)):
        record = command_record(command)
        headers = [[header.name.decode(), header.value.decode()] for header in record.headers]
        body = {"headers": headers, "body": record.body.decode()}
        await streams.send("POST", "/streams/s/records", {"records": [body]})
    await streams.append("c")
    async with running("tail", named(s2_origin.url)) as tail:
        await tail.until(wrote(b"b\nc\n"))


async def test_it_begins_at_a_number_or_now(streams: Streams, place: str) -> None:
    await streams.append("0", "1", "2")
    async with running("tail", named(place), "--from", "2", "--offsets") as tail:
        await tail.until(lambda run: (run.out, run.err) == (b"2\n", b"offset 3\n"))
    async with running("tail", named(place), "--from", "now", "--offsets") as tail:
        await tail.until(lambda run: run.err == b"offset 3\n")
        await streams.append("3")
        await tail.until(wrote(b"3\n"))


Break = Callable[[S2Faults], Switch]


@pytest.mark.parametrize(
    ("how", "break_it"),
    [
        ("--sse", lambda faults: faults.drop(40, kind=Call.READ_EVENTS, times=3)),
        ("--sse", lambda faults: faults.finish_session(after_messages=1, kind=Call.READ_EVENTS, times=3)),
        ("--sse", lambda faults: faults.error(S2ErrorCode.UNAVAILABLE, kind=Call.READ_EVENTS, times=3)),
        ("--long-poll", lambda faults: faults.drop(3, kind=Call.READ, times=3)),
        ("--long-poll", lambda faults: faults.error(S2ErrorCode.RATE_LIMITED, kind=Call.READ, times=3)),
    ],
)
async def test_nothing_is_lost_or_repeated_over_broken_connections(
    streams: Streams, s2_origin: RunningS2Origin, how: str, break_it: Break
) -> None:
    await streams.append("0")
    origin = s2_origin.origin
    async with running("tail", named(s2_origin.url), how) as tail:
        await tail.until(wrote(b"0\n"))
        await s2_origin.stop(grace_s=0)
        await streams.http.aclose()
        fault = break_it(origin.faults)
        again = await start_s2_origin(S2OriginSettings(port=s2_origin.port), origin=origin)
        try:
            async with httpx.AsyncClient() as http:
                writer = Streams(http, again.url)
                for number in range(1, 9):
                    await writer.append(f"{number}", f"{number}.5")
                    if number % 3 == 0:
                        await tail.until(wrote_lines(1 + 2 * number))
                await tail.until(wrote_lines(17))
            assert fault.hits
            assert b"trying again from offset 1\n" in tail.err
            await tail.until(lambda run: run.err.endswith(b"connected again\n"))
            assert tail.out.decode().split() == ["0", *(f"{n}{half}" for n in range(1, 9) for half in ("", ".5"))]
        finally:
            origin.faults.clear()
            await again.stop(grace_s=0)


async def test_a_session_that_fails_is_resumed(streams: Streams, s2_origin: RunningS2Origin) -> None:
    await streams.append("0")
    s2_origin.origin.faults.fail_session(S2ErrorCode.UNAVAILABLE, after_messages=1, kind=Call.READ_EVENTS, times=1)
    async with running("tail", named(s2_origin.url)) as tail:
        await tail.until(wrote(b"0\n"))
        await streams.append("1")
        await tail.until(wrote(b"0\n1\n"))
        said = b"unavailable: injected by a fault switch; trying again from offset 1\nconnected again\n"
        await tail.until(lambda run: run.err == said)


@pytest.mark.parametrize("how", ["--sse", "--long-poll"])
async def test_a_stream_that_is_deleted_ends_it(streams: Streams, s2_origin: RunningS2Origin, how: str) -> None:
    await streams.append("0")
    async with running("tail", named(s2_origin.url), how) as tail:
        await tail.until(wrote(b"0\n"))
        await streams.send("DELETE", "/streams/s")
        status, out, err = await tail.finished()
    assert (status, out) == (1, "0\n")
    assert err.splitlines()[-1].startswith(f"durable-gateway: {s2_origin.url}/v1/streams/s")


async def test_it_ends_with_the_reader_of_its_output(streams: Streams, s2_gateway: RunningGateway) -> None:
    await streams.append("0", "1")
    reading, writing = os.pipe()
    async with running("tail", named(s2_gateway.gateway_url), stdout=writing) as tail:
        os.close(writing)
        with os.fdopen(reading) as lines:
            assert await asyncio.to_thread(lines.readline) == "0\n"
        assert await tail.process.wait() == 0


# -- append ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def raced(streams: Streams, times: int | None, clock: ManualClock) -> AsyncIterator[RecordProducer]:
    """A producer that is overtaken by another writer just before each of its first appends; each takes a second."""
    appends = 0

    async def overtake(_: object, context: object, request: aiohttp.TraceRequestStartParams) -> None:
        nonlocal appends
        if request.method == "POST":
            appends += 1
            if times is None or appends <= times:
                clock.advance(1.0)
                await streams.append(f"other {appends}")

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(overtake)
    headers = {"s2-basin": BASIN}
    async with aiohttp.ClientSession(headers=headers, trace_configs=[trace]) as session, asyncio.timeout(20):
        producer = RecordProducer(
            session, f"{streams.url}/v1/streams/s", clock=clock, rng=Random(0), retry_for_s=60, notice=lambda line: None
        )
        await producer.open()
        yield producer


async def test_an_append_uses_the_number_that_it_has_just_learned(streams: Streams) -> None:
    """However often another writer is faster.  A pause in between would be the other writer's next chance."""
    await streams.append("first")
    clock = ManualClock()
    async with raced(streams, 50, clock) as producer:
        await producer.append([b"mine", b"too"])
        assert producer.tail == "53"
    assert (await streams.bodies())[-2:] == ["mine", "too"]
    # Nothing waits for the clock.
    assert "0 pending" in repr(clock)


async def test_an_append_gives_up_when_others_were_faster_for_too_long(streams: Streams) -> None:
    await streams.append("first")
    async with raced(streams, None, ManualClock()) as producer:
        with pytest.raises(CommandFailed, match="other writers were faster for 60 s"):
            await producer.append([b"mine"])
    assert "mine" not in await streams.bodies()


async def test_lines_are_records(streams: Streams, place: str) -> None:
    status, out, err = await finished("append", named(place), data=b"one\r\n\n{}\nlast")
    assert (status, out, err) == (0, "appended 4 records; the tail is 4\n", "")
    assert await streams.bodies() == ["one", "", "{}", "last"]


async def test_json_values_are_records(streams: Streams, place: str) -> None:
    status, out, err = await finished("append", named(place), "--json", data=b' {"a":\n 1}[2]\n"x"')
    assert (status, out, err) == (0, "appended 3 records; the tail is 3\n", "")
    assert await streams.bodies() == ['{"a":\n 1}', "[2]", '"x"']


async def test_many_lines_are_few_appends(streams: Streams, s2_origin: RunningS2Origin) -> None:
    data = b"".join(b"%d\n" % number for number in range(2500))
    status, out, _ = await finished("append", named(s2_origin.url), data=data)
    assert (status, out) == (0, "appended 2500 records; the tail is 2500\n")
    assert s2_origin.origin.counters.requests[Call.APPEND] <= 5
    assert await streams.bodies() == [str(number) for number in range(1000)]


async def test_a_record_may_be_as_large_as_a_batch_and_no_larger(streams: Streams, s2_origin: RunningS2Origin) -> None:
    line = b"x" * (1024 * 1024 - 8)
    assert (await finished("append", named(s2_origin.url), data=b"a\n" + line + b"\nb\n"))[0] == 0
    status, out, err = await finished("append", named(s2_origin.url), data=b"c\nd\n" + line + b"y\ne\n")
    assert (status, out) == (1, "")
    assert err == (
        "durable-gateway: stdin, line 3: longer than the 1048568 bytes that an S2 record takes (appended 2 records "
        "before)\n"
    )


@pytest.mark.parametrize("is_there", [True, False])
async def test_an_append_whose_answer_was_lost_is_there_once(
    streams: Streams, s2_origin: RunningS2Origin, place: str, is_there: bool
) -> None:
    await streams.append("before")
    faults = s2_origin.origin.faults
    # Only the answer of an append that was taken is cut off.
    lost = (
        faults.drop(1, kind=Call.APPEND, times=3)
        if is_there
        else faults.error(S2ErrorCode.OTHER, kind=Call.APPEND, times=3)
    )
    async with running("append", named(place)) as append:
        await append.write(b"1\n2\n")
        await append.until(lambda run: b"trying again" in run.err)
        await append.write(b"3\n")
        append.end_input()
        status, out, _ = await append.finished()
    assert lost.hits == 3
    assert (status, out) == (0, "appended 3 records; the tail is 4\n")
    assert await streams.bodies() == ["before", "1", "2", "3"]


async def test_other_writers_do_not_hold_it_up(streams: Streams, s2_origin: RunningS2Origin) -> None:
    async with running("append", named(s2_origin.url)) as append:
        await append.write(b"1\n")
        await s2_origin.origin.counters.until(lambda counters: counters.records_appended == 1)
        await streams.append("from another")
        await append.write(b"2\n")
        append.end_input()
        status, out, err = await append.finished()
        assert (status, out, err) == (0, "appended 2 records; the tail is 3\n", "")
    assert await streams.bodies() == ["1", "from another", "2"]


async def test_it_gives_up_in_time_and_prints_what_was_appended(streams: Streams, s2_origin: RunningS2Origin) -> None:
    async with running("append", named(s2_origin.url), "--retry-for", "0") as append:
        await append.write(b"1\n2\n")
        await s2_origin.origin.counters.until(lambda counters: counters.records_appended == 2)
        s2_origin.origin.faults.error(S2ErrorCode.UNAVAILABLE, kind=Call.APPEND, times=None)
        await append.write(b"3\n")
        status, out, err = await append.finished()
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == (
        "durable-gateway: 503 unavailable: injected by a fault switch; gave up after 0 s (appended 2 records before)"
    )


# -- names, tokens, errors ---------------------------------------------------------------------------------------------


async def test_the_variables_of_s2s_sdks_name_server_and_token(
    streams: Streams, s2_origin: RunningS2Origin, s2_gateway: RunningGateway
) -> None:
    environ = {"S2_BASIN_ENDPOINT": s2_gateway.gateway_url, "S2_ACCESS_TOKEN": "a-token"}
    status, out, _ = await finished("append", f"s2://{BASIN}/a/b", data=b"x\n", environ=environ)
    assert (status, out) == (0, "appended 1 record; the tail is 1\n")
    assert await streams.bodies("a%2Fb") == ["x"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["tail", "{s2}/nothing"], 1, "{http}/v1/streams/nothing/records: 404 stream_not_found: "),
        (
            ["tail", "{s2}/s", "--from", "9"],
            1,
            "{http}/v1/streams/s: its tail, 1, is before 9: the stream was created again",
        ),
        (["tail", "{s2}/s", "--from", "x"], 2, "Invalid value for '--from': expected a sequence number, now or start"),
        (["tail", "{http}/s", "--json"], 2, "Invalid value for '--json': is for S2 streams"),
        (["tail", "s2://127.0.0.1:1/b/s"], 1, "cannot connect to 127.0.0.1:1: Connection refused"),
        (["tail", "s2://127.0.0.1:1/b"], 2, "Invalid value for 'URL': expected s2://host:port/basin/stream, got"),
        (["tail", "s2://basin/s"], 2, "Invalid value for 'URL': expected s2://host:port/basin/stream, or the server"),
        (["append", "{s2}/s", "--close"], 2, "Invalid value for '--close': is not for S2 streams"),
        (["append", "{s2}/s", "--create", "a/b"], 2, "Invalid value for '--create': is not for S2 streams"),
        (["append", "{other}/s"], 1, "{http}/v1/streams/s/records: 404 basin_not_found: "),
        (["bench", "{s2}/s"], 2, "Invalid value for 'URL': expected a basin, s2://host:port/basin, got"),
        (["bench", "{other}"], 1, "{http}/v1/streams/durable-gateway-bench-"),
    ],
)
async def test_errors_are_one_line(
    streams: Streams, s2_origin: RunningS2Origin, arguments: list[str], status: int, said: str
) -> None:
    await streams.append("0")
    s2 = named(s2_origin.url, "")
    words = {"s2": s2, "other": s2.replace(BASIN, "another-basin"), "http": s2_origin.url}
    got = await finished(*[text.format(**words) for text in arguments], data=b"x\n")
    assert got[:2] == (status, "")
    assert got[2].startswith(f"durable-gateway: {said.format(**words)}")
    assert got[2].count("\n") == 1


# -- bench -------------------------------------------------------------------------------------------------------------


async def test_a_gateway_is_measured_and_left_as_it_was(
    streams: Streams, s2_origin: RunningS2Origin, s2_gateway: RunningGateway
) -> None:
    status, out, err = await finished("bench", named(s2_gateway.gateway_url, ""), *QUICK, "--json")
    assert (status, err) == (0, "")
    figures = json.loads(out)
    reads, delays = figures["reads"], figures["delays"]
    assert (reads["errors"], reads["hit_ratio"]) == (0, 1.0)
    assert (delays["appends"], delays["delivered"], delays["expected"]) == (4, 12, 12)
    # What is held is confirmed now and then, however often it is read, and the tail of the stream that is followed too.
    assert s2_origin.origin.counters.requests[Call.READ] <= 20
    assert s2_origin.origin.counters.requests[Call.READ_SESSION] == 1
    assert (await streams.send("GET", "/streams"))["streams"] == []


async def test_an_origin_is_measured_too(streams: Streams, s2_origin: RunningS2Origin) -> None:
    status, out, _ = await finished("bench", named(s2_origin.url, ""), *QUICK)
    assert status == 0
    assert "a record of 1 KiB, closed range, 2 connections, 0.2 s; no Cache-Status; errors 0" in out
    assert "12 of 12 delivered" in out
