"""One HTTP/2 connection: many concurrent requests with separate ends, and the bounds that they share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hyperframe.frame import GoAwayFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from gateway.aio import batches
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.http.http2.flow_control import MOST_UNREAD_BYTES
from gateway.origin.requests import Kind
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server import turns
from tests.scenarios.http2_wire import PREFACE, Call, Http2Wire
from tests.scenarios.wire import Dropped, Wire
from tests.server.conftest import Pair, ask, create_closed, get, hits, start_pair, stop_pair, write
from tests.waiting import eventually, pass_turns, time_passing

TEXT = {"Content-Type": "text/plain"}


@asynccontextmanager
async def wire_to(gateway: RunningGateway, receive_bytes: int | None = None) -> AsyncIterator[Http2Wire]:
    wire = await Http2Wire.open(gateway.gateway_url, receive_bytes)
    try:
        yield wire
    finally:
        await wire.closed()


async def several(wire: Http2Wire, *targets: str) -> list[Call]:
    """Send several requests before reading any answer."""
    calls = []
    for target in targets:
        await wire.ask(target)
        calls.append(wire.call)
    return calls


@asynccontextmanager
async def gateway_before(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]], **settings: object
) -> AsyncIterator[RunningGateway]:
    """A gateway whose origin passes each connection to `serve`."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    gateway = await start_gateway(GatewayConfig.for_origin(url, listen="127.0.0.1:0", admin="127.0.0.1:0", **settings))
    try:
        yield gateway
    finally:
        await gateway.stop()
        server.close()
        await server.wait_closed()


def waiting(gateway: RunningGateway, count: int) -> Callable[[], bool]:
    """A predicate: `count` live readers wait at the tails of followed streams."""
    topics = gateway.engine.live.topics
    return lambda: (
        sum(len(topic.readers_now) + topic.extra_clients for topic in topics() if topic.is_confirmed) == count
    )


async def test_requests_on_one_connection_are_answered_concurrently(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s?offset=-1")
        tail = (await wire.answer()).next_offset
        live, read, head = await several(wire, f"/s?offset={tail}&live=long-poll", "/s?offset=-1", "/nowhere?offset=-1")
        assert (await wire.answer_of(read)).body == b"abc"
        assert (await wire.answer_of(head)).status == 404
        await eventually(waiting(pair.fast, 1))
        await wire.ask("/s", TEXT, "POST", b"def")
        assert (await wire.answer()).status == 204
        assert (await wire.answer_of(live)).body == b"def"


async def test_the_preface_may_arrive_in_pieces(pair: Pair) -> None:
    await create_closed(pair)
    async with wire_to(pair.fast) as wire:
        frame = SettingsFrame(0).serialize()
        for byte in PREFACE + frame:
            await wire.send(bytes((byte,)))
            await pass_turns(1)
        wire.is_greeted = True
        await wire.ask("/s?offset=-1")
        assert (await wire.answer()).status == 200


async def test_input_that_only_begins_like_a_preface_is_http_1(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    wire = await Wire.open(pair.fast.gateway_url)
    await wire.send(b"P")
    await wire.send(b"OST /s HTTP/1.1\r\nHost: edge\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\ndef")
    assert (await wire.answer()).status == 204
    # A preface behind a request has no effect either.
    await wire.send(PREFACE)
    assert (await wire.answer()).status == 400
    await wire.closed()


async def test_both_versions_share_remembered_answers(pair: Pair) -> None:
    await create_closed(pair)
    await ask(pair.fast, get("/s?offset=-1"), get("/s?offset=-1"))
    before = hits(pair.fast)
    async with wire_to(pair.fast) as wire:
        for number in range(3):
            await wire.ask("/s?offset=-1", {"Host": "edge", "User-Agent": "x", "Accept": "*/*"})
            answer = await wire.answer()
            assert (answer.status, answer.body) == (200, b"x" * 1_000)
            assert answer.headers["Cache-Status"] == "durable-gateway; hit"
            assert hits(pair.fast) == before + number + 1
    assert pair.origin.origin.counters.requests[Kind.CATCHUP] == 1


async def test_an_answer_remembered_over_http_2_is_sent_over_http_1(pair: Pair) -> None:
    await create_closed(pair)
    async with wire_to(pair.fast) as wire:
        for _ in range(2):
            await wire.ask("/s?offset=-1", {"Host": "edge", "If-None-Match": '"other"'})
            await wire.answer()
    before = hits(pair.fast)
    (answer,) = await ask(pair.fast, get("/s?offset=-1", 'If-None-Match: "other"'))
    assert answer.body == b"x" * 1_000
    assert hits(pair.fast) == before + 1


async def test_long_polls_on_one_connection_form_one_group(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s?offset=-1")
        tail = (await wire.answer()).next_offset
        calls = await several(wire, *[f"/s?offset={tail}&live=long-poll"] * 100)
        await eventually(waiting(pair.fast, 100))
        await write(pair.fast, "POST", "/s", b"def", Content_Type="text/plain")
        for call in calls:
            assert (await wire.answer_of(call)).body == b"def"
    assert pair.origin.origin.counters.requests[Kind.LONGPOLL] <= 2


async def test_a_hundred_live_reads_share_one_connection(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        calls = await several(wire, *["/s?offset=-1&live=sse"] * 100)
        await eventually(waiting(pair.fast, 100))
        for number in range(5):
            await write(pair.fast, "POST", "/s", b"event %d " % number, Content_Type="text/plain")
        await write(pair.fast, "POST", "/s", b"last", Content_Type="text/plain", Stream_Closed="true")
        bodies = [(await wire.answer_of(call)).body for call in calls]
        for body in bodies:
            assert b"data:last" in body
            assert body.count(b"event: data") == body.count(b"event: control") - 1 == 6


async def test_resetting_a_live_read_leaves_the_others_open(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        first, second = await several(wire, *["/s?offset=-1&live=sse"] * 2)
        await eventually(waiting(pair.fast, 2))
        await wire.reset_stream(first)
        await eventually(waiting(pair.fast, 1))
        await write(pair.fast, "POST", "/s", b"def", Content_Type="text/plain", Stream_Closed="true")
        assert b"def" in (await wire.answer_of(second)).body
        assert len(pair.fast.clients) == 1
    await eventually(lambda: not len(pair.fast.clients))


async def test_first_reads_that_arrive_together_share_a_fetch_unless_they_are_reset(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One turn of the loop begins all of them, even on a slow machine.
    for module, name in ((turns, "REQUESTS_S"), (turns, "PARTS_S"), (batches, "MOST_S")):
        monkeypatch.setattr(module, name, 60.0)
    for path in ("/gone", "/shared"):
        await write(pair.strict, "PUT", path, b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        # The gateway reads all of it in one turn of the loop.
        [gone, *calls] = await several(wire, "/gone?offset=-1", "/shared?offset=-1", "/shared?offset=-1")
        await wire.reset_stream(gone)
        assert [(await wire.answer_of(call)).body for call in calls] == [b"abc", b"abc"]
    assert pair.origin.origin.counters.requests[Kind.CATCHUP] == 1


async def test_a_stream_without_window_is_reset_alone() -> None:
    pair = await start_pair(max_chunk_bytes=1_000_000, client_write_timeout_s=0.3)
    try:
        await create_closed(pair, body=b"x" * 300_000)
        async with wire_to(pair.fast) as wire:
            await wire.greet(INITIAL_WINDOW_SIZE=0)
            stuck, other = await several(wire, "/s?offset=-1", "/s?offset=-1")
            await wire.head_of(stuck)
            await wire.frame(WindowUpdateFrame(other.id, 1 << 20))
            assert (await wire.answer_of(other)).body == b"x" * 300_000
            with pytest.raises(Dropped):
                await wire.answer_of(stuck)
            assert stuck.reset == 8
            # The connection stays open.
            await wire.ask("/nowhere")
            assert (await wire.head()).status == 404
    finally:
        await stop_pair(pair)


async def test_a_quiet_stream_whose_reader_takes_everything_is_not_slow() -> None:
    """It reads less than the least rate only because there is no more to be read."""
    timeout_s = 0.3
    pair = await start_pair(client_write_timeout_s=timeout_s, client_min_rate=1 << 30)
    loop, cut = asyncio.get_running_loop(), pair.fast.metrics.slow_consumers[True]
    try:
        await write(pair.fast, "PUT", "/s", b"", Content_Type="text/plain")
        async with wire_to(pair.fast) as wire:
            await wire.greet(INITIAL_WINDOW_SIZE=0)
            await wire.ask("/s?offset=-1&live=sse")
            reader, taken = wire.call, 0
            await wire.head_of(reader)
            ends_at = loop.time() + 4 * timeout_s
            while loop.time() < ends_at:
                # The next event waits behind the one that is taken now, so that something waits at all times.
                await write(pair.fast, "POST", "/s", b"event", Content_Type="text/plain")
                await eventually(lambda: pair.fast.clients.unsent()[0] > 0 or cut.value > 0)
                assert not cut.value
                waiting_bytes = pair.fast.clients.unsent()[0]
                await wire.frame(WindowUpdateFrame(reader.id, waiting_bytes))
                taken += waiting_bytes
                while len(reader.body) < taken:
                    assert not cut.value
                    await wire.read()
    finally:
        await stop_pair(pair)


async def test_a_client_that_reads_nothing_is_closed() -> None:
    pair = await start_pair(max_chunk_bytes=4_000_000, client_write_timeout_s=0.3, send_buffer_bytes="32KiB")
    try:
        await create_closed(pair, body=b"x" * 1_000_000)
        async with wire_to(pair.fast, receive_bytes=4_096) as wire:
            await wire.greet(INITIAL_WINDOW_SIZE=1 << 24)
            await several(wire, *["/s?offset=-1"] * 20)
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await eventually(lambda: pair.fast.clients.unsent()[0] > 0)
            assert (await ask(pair.fast, get("/s?offset=-1")))[0].status == 200
            await eventually(lambda: not len(pair.fast.clients))
            assert not len(pair.fast.engine.tasks)
            assert pair.fast.metrics.slow_consumers[True].value == 1
    finally:
        await stop_pair(pair)


async def test_a_half_closed_client_that_reads_nothing_is_closed() -> None:
    """Also if so little is left that none of it has been held back."""
    pair = await start_pair(client_write_timeout_s=0.3, keepalive_timeout_s=1.0, send_buffer_bytes="1MiB")
    try:
        await create_closed(pair, body=b"x" * 60_000)
        async with wire_to(pair.fast, receive_bytes=4_096) as wire:
            await wire.greet(INITIAL_WINDOW_SIZE=1 << 24)
            await wire.frame(WindowUpdateFrame(0, 1 << 24))
            for _ in range(3):
                await wire.ask("/s?offset=-1")
                assert (await wire.answer()).status == 200
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not pair.fast.clients.unsent()[0]:
                done = hits(pair.fast)
                await wire.ask("/s?offset=-1")
                await eventually(lambda done=done: hits(pair.fast) > done)
            wire.writer.write_eof()
            await eventually(lambda: not len(pair.fast.clients))
    finally:
        await stop_pair(pair)


async def test_a_stalled_live_read_goes_back_to_the_tape(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.greet(INITIAL_WINDOW_SIZE=1_000)
        slow, fast = await several(wire, *["/s?offset=-1&live=sse"] * 2)
        await eventually(waiting(pair.fast, 2))
        await wire.frame(WindowUpdateFrame(fast.id, 1 << 24))
        for _ in range(200):
            await write(pair.fast, "POST", "/s", b"z" * 500, Content_Type="text/plain")
        await write(pair.fast, "POST", "/s", b"last", Content_Type="text/plain", Stream_Closed="true")
        while b"data:last" not in bytes(fast.body):
            await wire.acknowledge(fast)
            await wire.read()
        # An event or two is queued for the slow reader, not all of them.
        assert pair.fast.clients.unsent()[0] < 5_000
        await wire.frame(WindowUpdateFrame(slow.id, 1 << 24))
        body = (await wire.answer_of(slow)).body
        assert body.count(b"z") == 200 * 500
        assert body.endswith(b"\n\n")


async def test_an_upload_advances_as_the_origin_reads_it(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s", TEXT, "POST", b"", ends=False)
        for _ in range(3):
            await wire.part(b"a" * 20_000)
        # The first three fit the window; more is sent as it opens.
        await wire.frame(PingFrame(0, b"12345678"))
        while not wire.pongs:
            await wire.read()
        await wire.part(b"b" * 5_000, ends=True)
        assert (await wire.answer()).status == 204
        await wire.ask("/s?offset=-1")
        read = await wire.answer()
        assert read.status == 200


async def test_a_hundred_writes_may_arrive_interleaved(pair: Pair) -> None:
    async with wire_to(pair.fast) as wire:
        calls = []
        for number in range(100):
            await wire.ask(f"/{number}", {**TEXT, "Content-Length": "40000"}, "PUT", b"", ends=False)
            calls.append(wire.call)
        for size, ends in ((16_000, False), (16_000, False), (8_000, True)):
            for call in calls:
                await wire.part(b"a" * size, ends=ends, call=call)
        for call in calls:
            assert (await wire.answer_of(call)).status == 201


async def test_stalled_uploads_share_a_bound_and_others_go_on() -> None:
    """Their origin accepts no connection, so their bodies stay unread."""
    count = 60
    pair = await start_pair()
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    ahead = [socket.socket() for _ in range(4)]
    for one in ahead:
        one.setblocking(False)
        one.connect_ex(full.getsockname())
    routes = [
        {"name": name, "prefix": f"/{name}", "origin": url, "connect_timeout_s": 60}
        for name, url in (("stuck", f"http://127.0.0.1:{full.getsockname()[1]}"), ("flows", pair.origin.url))
    ]
    server = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 0.1}
    gateway = await start_gateway(GatewayConfig.model_validate({"server": server, "routes": routes}))
    try:
        async with wire_to(gateway) as wire:
            stuck = await several_begun(wire, [f"/stuck/{number}" for number in range(count)])
            sent = 0
            while room := [(call, min(call.window, 1 << 14)) for call in stuck if call.window]:
                for call, size in room:
                    await wire.part(bytes(size), call=call)
                    sent += size
                await heard(wire)
            assert sent <= MOST_UNREAD_BYTES + (count + 1) * 65_535
            flows = (await several_begun(wire, ["/flows"]))[0]
            for _ in range(64):
                await wire.part(bytes(1 << 14), call=flows)
            await wire.part(b"", call=flows, ends=True)
            assert (await wire.answer_of(flows)).status == 201
            assert all(call.window == 0 for call in stuck)
    finally:
        await gateway.stop()
        await stop_pair(pair)
        for one in (full, *ahead):
            one.close()


async def several_begun(wire: Http2Wire, targets: list[str]) -> list[Call]:
    """Begin several uploads without sending their bodies."""
    calls = []
    for target in targets:
        await wire.ask(target, TEXT, "PUT", b"", ends=False)
        calls.append(wire.call)
    return calls


async def heard(wire: Http2Wire) -> None:
    """Wait until the gateway has read all that was sent, and read its frames."""
    known = len(wire.pongs)
    await wire.frame(PingFrame(0, b"12345678"))
    while len(wire.pongs) == known:
        await wire.read()


async def test_a_write_that_its_client_resets_happens_whole_or_not_at_all(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s", TEXT, "POST", b"half", ends=False)
        await wire.reset_stream()
        await wire.ask("/s", TEXT, "POST", b"whole")
        assert (await wire.answer()).status == 204
        await wire.ask("/s?offset=-1")
        assert (await wire.answer()).body == b"abcwhole"


async def test_a_write_is_recorded_even_if_its_stalled_client_has_left() -> None:
    held, arrived = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
            arrived.set()
            await held.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 0005\r\nContent-Length: 5\r\n\r\nhello")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n" + bytes(20_000_000))
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with gateway_before(serve) as gateway:
        async with wire_to(gateway, receive_bytes=4_096) as wire:
            await wire.greet(INITIAL_WINDOW_SIZE=1 << 24)
            await wire.ask("/s", TEXT, "POST", b"abc")
            await arrived.wait()
            await wire.ask("/big", method="PATCH")
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await eventually(lambda: gateway.clients.unsent()[1] > 100_000)
        await eventually(lambda: gateway.metrics.requests(Mode.OTHER, Outcome.ABORTED).value == 1)
        held.set()
        await eventually(lambda: not len(gateway.clients))
        assert gateway.metrics.requests(Mode.APPEND, Outcome.PASS).value == 1


@pytest.mark.parametrize("sink", ["none", "file"])
async def test_large_relayed_answers_that_share_a_connection_are_whole(sink: str, tmp_path: Path) -> None:
    body = bytes(range(256)) * 2_048

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with gateway_before(serve, sink=sink, path=str(tmp_path / "log")) as gateway, wire_to(gateway) as wire:
        await wire.greet(INITIAL_WINDOW_SIZE=1 << 24)
        for number in range(4):
            await wire.ask(f"/{number}", method="PATCH")
        # The bodies are not shown if they differ: that takes minutes.
        are_whole = [(await wire.answer_of(call)).body == body for call in wire.calls.values()]
    assert are_whole == [True] * 4


async def test_each_large_event_is_followed_by_one_control_event() -> None:
    pair = await start_pair(max_chunk_bytes=1_000_000)
    try:
        await write(pair.fast, "PUT", "/s", b"a" * 700_000, Content_Type="text/plain")
        await write(pair.fast, "POST", "/s", b"b" * 700_000, Content_Type="text/plain", Stream_Closed="true")
        async with wire_to(pair.fast) as wire:
            await wire.greet(INITIAL_WINDOW_SIZE=1 << 24)
            await wire.ask("/s?offset=-1&live=sse")
            events = (await wire.answer()).body
        assert events.count(b"event: data") == events.count(b"event: control")
    finally:
        await stop_pair(pair)


async def test_a_relay_that_breaks_off_is_recorded_once() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with gateway_before(serve) as gateway:
        async with wire_to(gateway) as wire:
            await wire.ask("/s", method="PATCH")
            with pytest.raises(Dropped):
                await wire.answer()
        await eventually(lambda: not len(gateway.clients))
        assert gateway.metrics.requests(Mode.OTHER, Outcome.ABORTED).value == 1


async def test_expect_gets_100_continue_before_the_body(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s", {**TEXT, "Expect": "100-continue", "Content-Length": "3"}, "POST", b"", ends=False)
        while not wire.call.heads:
            await wire.read()
        assert wire.call.heads[0].status == 100
        await wire.part(b"def", ends=True)
        assert (await wire.answer()).status == 204


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204)])
async def test_answers_without_a_body_end_with_their_head(pair: Pair, method: str, status: int) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s", TEXT, method, b"x" if method == "POST" else None)
        head = await wire.head()
        assert head.status == status
        assert wire.call.is_ended
        assert not {"connection", "transfer-encoding", "keep-alive"} & {name.lower() for name in head.headers}


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [
        pytest.param({"X": "y" * 9_000}, "GET", 431, id="an overlong field"),
        pytest.param({f"x-{n}": "y" for n in range(200)}, "GET", 431, id="too many fields"),
        pytest.param({}, "CONNECT", None, id="CONNECT with a path"),
    ],
)
async def test_a_request_beyond_the_bounds_is_refused_alone(
    pair: Pair, headers: dict[str, str], method: str, status: int | None
) -> None:
    await create_closed(pair)
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s?offset=-1", headers, method)
        assert (await wire.answer()).status == (status or 400)
        await wire.ask("/s?offset=-1")
        assert (await wire.answer()).status == 200


async def test_a_refusal_that_the_client_does_not_read_is_bounded() -> None:
    pair = await start_pair(client_write_timeout_s=0.1, keepalive_timeout_s=0.4)
    try:
        async with wire_to(pair.fast) as wire:
            await wire.greet(INITIAL_WINDOW_SIZE=0)
            await wire.ask("/s", {"X": "y" * 9_000})
            assert (await wire.head()).status == 431
            with pytest.raises(Dropped):
                await wire.answer()
            assert wire.call.reset == 8
            assert await wire.is_ended()
        await eventually(lambda: not len(pair.fast.clients))
    finally:
        await stop_pair(pair)


async def test_the_origin_sees_the_version_in_via() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nKeep-Alive: 5\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    gateway = await start_gateway(GatewayConfig.for_origin(url, listen="127.0.0.1:0", admin="127.0.0.1:0"))
    async with wire_to(gateway) as wire:
        await wire.ask("/s", {"Cookie": "a=b", "X-Mine": "1"}, "PATCH")
        answer = await wire.answer()
    assert answer.body == b"ok"
    assert "Keep-Alive" not in answer.headers
    assert answer.headers["Via"].startswith("1.1 ")
    assert b"Via: 2.0 " in seen[0]
    assert b"Host: " in seen[0]
    await gateway.stop()
    server.close()
    await server.wait_closed()


# -- ends and deadlines


async def test_a_drain_ends_live_reads_and_answers_requests_in_flight() -> None:
    pair = await start_pair(shutdown_timeout_s=3)
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s?offset=-1")
        tail = (await wire.answer()).next_offset
        poll, sse = await several(wire, f"/s?offset={tail}&live=long-poll", "/s?offset=-1&live=sse")
        await eventually(waiting(pair.fast, 2))
        stopping = asyncio.create_task(pair.fast.stop())
        while not wire.goaways:
            await wire.read()
        assert wire.goaways == [((1 << 31) - 1, 0)]
        await wire.ask("/s?offset=-1")
        assert (await wire.answer()).body == b"abc"
        async with time_passing(pair.clock, 0.1, 0.005):
            while not (poll.is_ended and sse.is_ended):
                await wire.read()
            assert poll.heads[-1].status == 204
            assert poll.reset is None
            assert sse.reset is None
            assert await wire.is_ended()
            assert wire.goaways[-1][1] == 0
            await stopping
    await pair.strict.stop()
    await pair.origin.stop(grace_s=0)


async def test_an_idle_connection_gets_goaway() -> None:
    pair = await start_pair(keepalive_timeout_s=0.1)
    try:
        await create_closed(pair)
        async with wire_to(pair.fast) as wire:
            await wire.ask("/s?offset=-1")
            assert (await wire.answer()).status == 200
            assert await wire.is_ended()
            assert wire.goaways == [(1, 0)]
    finally:
        await stop_pair(pair)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(PREFACE[:10], id="half a preface"),
        pytest.param(PREFACE, id="no settings"),
        pytest.param(PREFACE + SettingsFrame(0).serialize() + b"\0\0\5\1\5\0\0\0\1ab", id="half a head"),
        pytest.param(PREFACE + SettingsFrame(0).serialize() + b"\0\0\1\1\1\0\0\0\1\x82", id="no continuation"),
    ],
)
async def test_incomplete_input_times_out(raw: bytes) -> None:
    pair = await start_pair(client_header_timeout_s=0.1)
    try:
        async with wire_to(pair.fast) as wire:
            await wire.send(raw)
            await eventually(lambda: len(pair.fast.clients) == 1)
            assert await wire.is_ended()
        await eventually(lambda: not len(pair.fast.clients))
    finally:
        await stop_pair(pair)


@pytest.mark.parametrize("name", ["rapid reset", "ping", "settings"])
async def test_a_flood_is_cut_off_and_other_connections_are_served(pair: Pair, name: str) -> None:
    await create_closed(pair)
    async with wire_to(pair.fast) as flood, wire_to(pair.fast) as other:
        await flood.greet()
        await other.ask("/s?offset=-1")
        assert (await other.answer()).status == 200
        try:
            for number in range(1_000):
                if name == "rapid reset":
                    await flood.ask("/s?offset=-1&live=sse")
                    await flood.frame(RstStreamFrame(flood.call.id, 8))
                else:
                    await flood.frame(PingFrame(0, b"12345678") if name == "ping" else SettingsFrame(0))
                if number % 100 == 50:
                    await other.ask("/s?offset=-1")
                    assert (await other.answer()).status == 200
        except ConnectionError:
            pass
        assert await flood.is_ended()
        assert flood.goaways[-1][1] == 0xB
        await other.ask("/s?offset=-1")
        assert (await other.answer()).status == 200
    await eventually(lambda: not len(pair.fast.clients))
    assert not len(pair.fast.engine.tasks)


def figure(pair: Pair, name: str, **labels: str) -> float | None:
    return pair.fast.metrics.registry.get_sample_value(f"durable_gateway_http2_{name}", labels)


async def test_connections_streams_and_their_ends_are_counted(pair: Pair) -> None:
    await create_closed(pair)
    await write(pair.fast, "PUT", "/open", b"abc", Content_Type="text/plain")
    assert (figure(pair, "connections"), figure(pair, "streams")) == (0, 0)
    async with wire_to(pair.fast) as wire, wire_to(pair.fast) as other:
        await wire.ask("/s?offset=-1")
        assert (await wire.answer()).status == 200
        await several(other, "/open?offset=-1&live=sse", "/open?offset=-1&live=sse")
        await eventually(waiting(pair.fast, 2))
        assert (figure(pair, "connections"), figure(pair, "streams")) == (2, 2)
        # A connection of HTTP/1.1 counts as a client, but not here.
        (read,) = await ask(pair.fast, b"GET /s?offset=-1 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert read.status == 200
        assert figure(pair, "connections") == 2
        assert figure(pair, "floods_total", kind="ping") == 0
        with suppress(ConnectionError):
            for _ in range(100):
                await wire.frame(PingFrame(0, b"12345678"))
        assert await wire.is_ended()
        assert figure(pair, "floods_total", kind="ping") == 1
        assert figure(pair, "goaways_total", code="enhance_your_calm") == 1
    await eventually(lambda: figure(pair, "connections") == 0)
    assert figure(pair, "streams") == 0
    assert figure(pair, "goaways_total", code="no_error") == 0
    assert figure(pair, "resets_total", code="refused_stream") == 0


async def test_a_client_that_sends_goaway_is_answered_first(pair: Pair) -> None:
    await create_closed(pair)
    async with wire_to(pair.fast) as wire:
        (call,) = await several(wire, "/s?offset=-1")
        await wire.frame(GoAwayFrame(0))
        assert (await wire.answer_of(call)).status == 200
        assert await wire.is_ended()


async def test_readers_that_join_together_are_each_sent_a_head_and_the_same_events(pair: Pair) -> None:
    """From the third on, the first piece of the answer is that of the one before."""
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s?offset=-1")
        target = f"/s?offset={(await wire.answer()).next_offset}&live=sse"
        calls = []
        for number in range(6):
            calls += await several(wire, target)
            await eventually(waiting(pair.fast, number + 1))
        heads = [await wire.head_of(call) for call in calls]
        assert {head.headers["Content-Type"] for head in heads} == {"text/event-stream"}
        await write(pair.fast, "POST", "/s", b"last", Content_Type="text/plain", Stream_Closed="true")
        bodies = {bytes((await wire.answer_of(call)).body) for call in calls}
        assert len(bodies) == 1
        assert b"data:last" in bodies.pop()
