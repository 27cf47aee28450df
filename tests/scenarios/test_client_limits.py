"""One client network uses no more than its share: of connections, live reads, followed streams and cold reads, and it
sends and reads at a least rate."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.app import RunningGateway
from gateway.config.rate_limits import RateLimitConfig
from gateway.origin.app import RunningOrigin
from tests.scenarios.conftest import Edge, Start
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import BOUND_S, Dropped, Wire
from tests.transports import EDGE
from tests.waiting import eventually, pause

MINE = {"X-Forwarded-For": "192.0.2.1"}
OTHERS = {"X-Forwarded-For": "192.0.2.2"}
BEHIND_PROXY = {"trusted_proxies": ("127.0.0.1/32",), "forwarded_by": "x-forwarded-for"}
OFF = {"client_new_streams_per_s": 0}


def counted(gateway: RunningGateway, family: str) -> dict[tuple[str, ...], float]:
    """The samples of a counter, by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in gateway.metrics.collect()
        for sample in metric.samples
        if sample.name == family
    }


class Line:
    """A connection from a chosen loopback address."""

    def __init__(self, reader: asyncio.StreamReader | None, writer: asyncio.StreamWriter | None) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, target: str) -> None:
        """Send a request.  Raises ConnectionError."""
        if self.writer is None:
            raise ConnectionResetError
        self.writer.write(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())

    async def until(self, text: bytes) -> bytes:
        """What comes up to this text.  Raises ConnectionError, and IncompleteReadError at the end."""
        if self.reader is None:
            raise ConnectionResetError
        async with asyncio.timeout(BOUND_S):
            return await self.reader.readuntil(text)

    @classmethod
    async def open(cls, edge: Edge, source: str) -> Line:
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", int(edge.url.rpartition(":")[2])))
        name = EDGE if edge.tls is not None else None
        try:
            return cls(*await asyncio.open_connection(sock=sock, ssl=edge.tls, server_hostname=name))
        except ConnectionError:
            # Refused before the end of the handshake.
            sock.close()
            return cls(None, None)

    async def is_served(self, target: str = "/none") -> bool:
        """Whether a request gets an answer; False if the connection is closed without one."""
        try:
            await self.ask(target)
            await self.until(b"\r\n\r\n")
            if target == "/none":
                await self.until(b"\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            return False
        return True

    def leave(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Lines:
    """Connections that are closed at the end of the test."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._lines: list[Line] = []

    async def __aenter__(self) -> Lines:
        return self

    async def __aexit__(self, *_: object) -> None:
        for line in self._lines:
            line.leave()

    async def open(self, source: str = "127.0.0.1") -> Line:
        self._lines.append(await Line.open(self._edge, source))
        return self._lines[-1]


def refused(edge: Edge) -> dict[str, float]:
    return {name: n for (name,), n in counted(edge.gateway, "durable_gateway_connections_refused_total").items() if n}


@pytest.mark.http_1
async def test_a_net_has_no_more_connections_than_its_share(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, max_connections=10, client_connections=2)
    async with Lines(edge) as lines:
        first, second = await lines.open(), await lines.open()
        assert await first.is_served()
        assert await second.is_served()
        assert not await (await lines.open()).is_served()
        assert await (await lines.open("127.0.0.2")).is_served()
        assert refused(edge) == {"client": 1}
        first.leave()
        await eventually(lambda: edge.gateway.connections == 2)
        assert await (await lines.open()).is_served()


@pytest.mark.http_1
async def test_half_of_all_connections_is_the_share_of_one_net(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, max_connections=4)
    async with Lines(edge) as lines:
        assert await (await lines.open()).is_served()
        assert await (await lines.open()).is_served()
        assert not await (await lines.open()).is_served()
        assert await (await lines.open("127.0.0.2")).is_served()


@pytest.mark.http_1
async def test_a_trusted_proxy_is_not_bounded_by_connections(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, max_connections=10, client_connections=1, **BEHIND_PROXY)
    async with Lines(edge) as lines:
        for _ in range(3):
            assert await (await lines.open()).is_served()
        assert await (await lines.open("127.0.0.2")).is_served()
        assert not await (await lines.open("127.0.0.2")).is_served()


@pytest.mark.http_1
async def test_a_full_gateway_gives_idle_connections_of_the_largest_net_to_smaller_ones(
    origin: RunningOrigin, start: Start
) -> None:
    edge = await start(origin.url, max_connections=4, client_connections=4)
    async with Lines(edge) as lines:
        crowd = [await lines.open() for _ in range(4)]
        for line in crowd:
            assert await line.is_served()
        # The largest net gets no more, and two nets that are equally large do not displace each other.
        assert not await (await lines.open()).is_served()
        others = [await lines.open("127.0.0.2") for _ in range(3)]
        assert [await line.is_served() for line in others] == [True, True, False]
        assert [await line.is_served() for line in crowd] == [False, False, True, True]
        assert refused(edge) == {"limit": 2, "displaced": 2}
        assert edge.gateway.connections == 4


@pytest.mark.http_1
async def test_a_connection_in_use_is_not_displaced(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, max_connections=2, client_connections=2, client_live_reads=2)
    async with Lines(edge) as lines:
        await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": "text/plain"}, b"x")
        crowd = [await lines.open() for _ in range(2)]
        for line in crowd:
            await line.ask("/s?live=sse&offset=-1")
            await line.until(b"control")
        assert not await (await lines.open("127.0.0.2")).is_served()
        assert refused(edge) == {"limit": 1}


# -- live reads


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_a_net_has_no_more_live_reads_than_its_share(origin: RunningOrigin, start: Start, mode: str) -> None:
    edge = await start(origin.url, client_live_reads=2, **BEHIND_PROXY)
    assert (await edge.put("/s", b"x")).status == 201
    at = (await edge.get("/s?offset=-1")).next_offset
    target = f"/s?offset={at}&live={mode}"
    readers = [await edge.begin(target, MINE) for _ in range(2)]
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.1") == 2)
    refusal = await edge.get(target, MINE)
    assert refusal.status == 429
    assert int(refusal.headers["Retry-After"]) >= 1
    assert refusal.is_one_line_of_text
    # Another net is served, and the first one again once a reader has left.
    readers.append(await edge.begin(target, OTHERS))
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.2") == 1)
    readers[0].leave()
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.1") == 1)
    await edge.begin(target, MINE)
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.1") == 2)
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_live_reads",] == 1
    # Answered long-polls count no more, and neither do those answered at once.
    await edge.post("/s", b"y")
    await edge.send("DELETE", "/s")
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.1") == 0)


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_the_share_of_live_reads_holds_for_joins_by_bytes(origin: RunningOrigin, start: Start, mode: str) -> None:
    edge = await start(origin.url, client_live_reads=3)
    assert (await edge.put("/s", b"x")).status == 201
    at = (await edge.get("/s?offset=-1")).next_offset
    target, usage = f"/s?offset={at}&live={mode}", edge.gateway.clients.accounts
    for round_ in range(2):
        wires = []
        for count in (1, 2, 3):
            wires.append(await edge.begin(target))
            await eventually(lambda count=count: usage.live_reads("127.0.0.1") == count)
        assert [(await edge.get(target)).status for _ in range(2)] == [429, 429], round_
        for wire in wires:
            if round_:
                wire.reset()
            else:
                wire.leave()
        await eventually(lambda: not usage.live_reads("127.0.0.1"))


async def test_a_live_read_of_a_missing_stream_leaves_nothing_counted(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_live_reads=1, **OFF)
    for _ in range(3):
        assert (await edge.get("/none?offset=-1&live=long-poll")).status == 404
        assert (await edge.get("/none?offset=-1&live=sse")).status == 404
    assert edge.gateway.clients.accounts.live_reads("127.0.0.1") == 0


# -- streams


async def test_a_net_opens_no_more_followed_streams_than_its_share(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, followed_streams=4, **BEHIND_PROXY)
    assert (await edge.put("/s", b"x")).status == 201
    for number in range(2):
        wire = await edge.begin(f"/s?offset=-1&live=sse&invented={number}", MINE)
        assert (await wire.head()).status == 200
    refusal = await edge.get("/s?offset=-1&live=sse&invented=9", MINE)
    assert refusal.status == 429
    assert int(refusal.headers["Retry-After"]) >= 1
    # A stream that is followed already costs the origin nothing more.
    wire = await edge.begin("/s?offset=-1&live=sse&invented=1", MINE)
    assert (await wire.head()).status == 200
    for number in range(2):
        wire = await edge.begin(f"/s?offset=-1&live=sse&others={number}", OTHERS)
        assert (await wire.head()).status == 200
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_followed_streams",] == 1


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_relayed_live_reads_take_the_places_of_followed_streams(
    origin: RunningOrigin, start: Start, mode: str
) -> None:
    edge = await start(origin.url, credentials="bypass", followed_streams=4, **BEHIND_PROXY)
    assert (await edge.put("/s", b"x")).status == 201
    at = (await edge.get("/s?offset=-1")).next_offset
    target, shared = f"/s?offset={at}&live={mode}", f"/s?offset={at}&live=sse"
    live = edge.gateway.engine.client
    # Over HTTP/2 one connection carries many of them, so the number of connections is no bound.
    readers = []
    for count in (1, 2):
        readers.append(await edge.begin(target, {**MINE, "Authorization": f"Bearer {count}"}))
        await eventually(lambda count=count: live.open_connections == count)
    refusal = await edge.get(target, {**MINE, "Authorization": "Bearer 3"})
    assert refusal.status == 429
    assert int(refusal.headers["Retry-After"]) >= 1
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_followed_streams",] == 1
    # A followed stream takes a place as well, and once all are taken other networks are refused too.
    readers.append(await edge.begin(shared, OTHERS))
    assert (await readers[-1].head()).status == 200
    readers.append(await edge.begin(target, {**OTHERS, "Authorization": "Bearer 4"}))
    await eventually(lambda: live.open_connections == 4)
    third = {"X-Forwarded-For": "192.0.2.3"}
    refusal = await edge.get(target, {**third, "Authorization": "Bearer 5"})
    assert (refusal.status, refusal.headers["Retry-After"]) == (503, "1")
    assert (await edge.get(f"{shared}&another", third)).status == 503
    # A reader that leaves gives its place back.
    readers[0].leave()
    await eventually(lambda: live.open_connections == 3)
    await edge.begin(target, {**MINE, "Authorization": "Bearer 6"})
    await eventually(lambda: live.open_connections == 4)


async def heat(edge: Edge, target: str, headers: dict[str, str]) -> None:
    """Read a stream's tail until it is followed for that."""
    live = edge.gateway.engine.live
    before = len(live.hot)
    for _ in range(10):
        assert (await edge.get(target, headers)).status == 200
        if len(live.hot) > before:
            return


async def test_streams_followed_for_catch_up_reads_are_of_the_share_too(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, followed_streams=4, **BEHIND_PROXY)
    assert (await edge.put("/s", b"x")).status == 201
    for number in range(2):
        await heat(edge, f"/s?offset=now&hot={number}", MINE)
        wire = await edge.begin(f"/s?offset=-1&live=sse&hot={number}", MINE)
        assert (await wire.head()).status == 200
    assert len(edge.gateway.engine.live.hot) == 2
    assert (await edge.get("/s?offset=-1&live=sse&more", MINE)).status == 429
    for number in range(2):
        wire = await edge.begin(f"/s?offset=-1&live=sse&others={number}", OTHERS)
        assert (await wire.head()).status == 200


async def test_a_net_without_a_share_left_has_no_more_streams_followed_for_catch_up_reads(
    origin: RunningOrigin, start: Start
) -> None:
    edge = await start(origin.url, followed_streams=4, **BEHIND_PROXY)
    assert (await edge.put("/s", b"x")).status == 201
    for number in range(2):
        wire = await edge.begin(f"/s?offset=-1&live=sse&mine={number}", MINE)
        assert (await wire.head()).status == 200
    await heat(edge, "/s?offset=now&hot", MINE)
    assert len(edge.gateway.engine.live.hot) == 0
    await heat(edge, "/s?offset=now&hot", OTHERS)
    assert len(edge.gateway.engine.live.hot) == 1


async def test_streams_followed_for_catch_up_reads_give_way_to_live_readers(
    origin: RunningOrigin, start: Start
) -> None:
    edge = await start(origin.url, followed_streams=4, **BEHIND_PROXY)
    live = edge.gateway.engine.live
    assert (await edge.put("/s", b"x")).status == 201
    for number in range(2):
        await heat(edge, f"/s?offset=now&hot={number}", MINE)
    assert len(live.hot) == 2
    # Of the net's own share, and of all places.
    wire = await edge.begin("/s?offset=-1&live=sse&mine", MINE)
    assert (await wire.head()).status == 200
    assert len(live.hot) == 1
    for number in range(2):
        wire = await edge.begin(f"/s?offset=-1&live=sse&others={number}", OTHERS)
        assert (await wire.head()).status == 200
    assert len(live.hot) == 1
    third = {"X-Forwarded-For": "192.0.2.3"}
    wire = await edge.begin("/s?offset=-1&live=sse&third", third)
    assert (await wire.head()).status == 200
    assert len(live.hot) == 0
    assert (await edge.get("/s?offset=-1&live=sse&fourth", third)).status == 503


async def test_a_followed_stream_that_has_ended_counts_no_more(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_followed_streams=1)
    for number in range(3):
        assert (await edge.put(f"/s{number}", b"x")).status == 201
        wire = await edge.begin(f"/s{number}?offset=-1&live=sse")
        assert (await wire.head()).status == 200
        await wire.closed()
        await edge.until_idle()


async def test_a_net_reads_new_streams_at_a_bounded_rate(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_new_streams_per_s=1, **BEHIND_PROXY)
    assert (await edge.put("/s", b"x")).status == 201
    assert [(await edge.get(f"/s?offset=-1&n={n}", MINE)).status for n in range(3)] == [200, 200, 429]
    assert (await edge.send("HEAD", "/s?n=h", MINE)).status == 429
    # What is in memory may be read, and other nets are not affected.
    assert (await edge.get("/s?offset=-1&n=0", MINE)).status == 200
    assert (await edge.get("/s?offset=-1&n=8", OTHERS)).status == 200
    edge.clock.advance(1.0)
    assert (await edge.get("/s?offset=-1&n=9", MINE)).status == 200
    assert (await edge.get("/s?offset=-1&n=10", MINE)).status == 429
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_new_streams_per_s",] == 3


async def test_a_wait_of_ages_is_stated_as_a_day(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_new_streams_per_s=1e-320)
    assert (await edge.put("/s", b"x")).status == 201
    assert (await edge.get("/s?offset=-1&n=0")).status == 200
    refusal = await edge.get("/s?offset=-1&n=1")
    assert refusal.status == 429
    assert 86_400 <= int(refusal.headers["Retry-After"]) <= 2 * 86_400


async def test_floods_of_invented_names_leave_half_of_absent_per_s_to_others(
    origin: RunningOrigin, start: Start
) -> None:
    # The bucket holds five seconds' worth: 200.  Few are 4 at once, and 0.8 a second.
    edge = await start(origin.url, absent_per_s=40, absent_s=0, client_new_streams_per_s=0, **BEHIND_PROXY)
    assert (await edge.put("/s", b"x")).status == 201
    crowd = [{"X-Forwarded-For": f"192.0.2.{number}"} for number in range(10, 15)]
    flood = [(await edge.get(f"/none{n}?offset=-1", crowd[n % 5])).status for n in range(300)]
    assert set(flood[:100]) == {404}
    assert set(flood[150:]) == {503}
    # Reads of what is there cost no allowance, and a few of what is not are allowed.
    for n in range(20):
        assert (await edge.get(f"/s?offset=-1&n={n}", OTHERS)).status == 200
    assert [(await edge.get(f"/other{n}?offset=-1", OTHERS)).status for n in range(6)] == [404] * 4 + [503] * 2
    # The flood goes on, and another client is still served.
    another = {"X-Forwarded-For": "192.0.2.99"}
    for n in range(100):
        edge.clock.advance(0.1)
        for member in crowd:
            await edge.get(f"/more{n}?offset=-1", member)
        assert (await edge.get(f"/s?offset=-1&m={n}", another)).status == 200


# -- bans


async def _refused_often(edge: Edge, lines: Lines, source: str = "127.0.0.1") -> Line:
    """A connection that has got ten refusals: ten seconds' worth of `client_refusals_per_s = 1`."""
    line = await lines.open(source)
    for _ in range(10):
        await line.ask("/%zz")
        assert (await line.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        await line.until(b"\n")
    return line


@pytest.mark.http_1
@pytest.mark.parametrize("is_live", [False, True])
async def test_remembered_answers_are_not_given_to_a_banned_net(
    origin: RunningOrigin, start: Start, is_live: bool
) -> None:
    edge = await start(origin.url, client_refusals_per_s=1)
    created = await edge.put("/s", b"x", **({} if is_live else {"Stream_Closed": "true"}))
    target = f"/s?offset={created.next_offset}&live=sse" if is_live else "/s?offset=-1"
    async with Lines(edge) as lines:
        for _ in range(3):
            other = await lines.open("127.0.0.2")
            await other.ask(target)
            assert (await other.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await eventually(
                lambda: not is_live or any(topic.is_confirmed for topic in edge.gateway.engine.live.topics())
            )
        kept, line = await lines.open(), await _refused_often(edge, lines)
        assert await kept.is_served()
        await line.ask("/%zz")
        await line.until(b"\r\n\r\n")
        await line.until(b"\n")
        assert not await kept.is_served(target)
        assert refused(edge) == {"banned": 1}
        assert await (await lines.open("127.0.0.2")).is_served(target)
        edge.clock.advance(10.1)
        assert await (await lines.open()).is_served(target)


@pytest.mark.http_1
async def test_a_net_that_goes_on_being_refused_is_banned_for_a_while(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_refusals_per_s=1)
    async with Lines(edge) as lines:
        kept, line, live = await lines.open(), await _refused_often(edge, lines), await lines.open()
        assert await kept.is_served()
        assert (await edge.put("/s", b"x")).status == 201
        await live.ask("/s?offset=now&live=sse")
        assert (await live.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert refused(edge) == {}
        await line.ask("/%zz")
        assert b"\r\nConnection: close\r\n" in await line.until(b"\r\n\r\n")
        await line.until(b"\n")
        # This connection is closed, and no other of the net is accepted; those of other nets are.
        assert not await line.is_served()
        assert not await (await lines.open()).is_served()
        assert await (await lines.open("127.0.0.2")).is_served()
        assert refused(edge) == {"banned": 1}
        # One that was open before is closed at its next request.
        assert not await kept.is_served()
        assert refused(edge) == {"banned": 2}
        assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_refusals_per_s",] == 1
        # A live read that is open goes on.
        append = b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
        other = await lines.open("127.0.0.2")
        assert other.writer is not None
        other.writer.write(append)
        await live.until(b"hello")
        edge.clock.advance(10.1)
        assert await (await lines.open()).is_served()


@pytest.mark.http_1
async def test_a_net_whose_ban_has_ended_has_no_allowance_left_over(origin: RunningOrigin, start: Start) -> None:
    each = RateLimitConfig(name="each", requests_per_s=2, burst=100)
    edge = await start(origin.url, client_refusals_per_s=1, client_new_streams_per_s=1, rate_limits=(each,))
    async with Lines(edge) as lines:
        line = await _refused_often(edge, lines)
        await line.ask("/%zz")
        assert b"\r\nConnection: close\r\n" in await line.until(b"\r\n\r\n")
        edge.clock.advance(11.0)
        # A second after the end of the ban: two requests, one of them of a stream that is not known.
        line = await lines.open()
        said = []
        for name in ("one", "another", "one"):
            await line.ask(f"/{name}?offset=-1")
            said.append(int((await line.until(b"\r\n\r\n")).split()[1]))
            await line.until(b"\n")
        assert said == [404, 429, 429]


@pytest.mark.http_1
async def test_a_ban_ends_a_connection_over_http_2_in_order(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_refusals_per_s=1)
    assert (await edge.put("/s", b"x")).status == 201
    async with asyncio.timeout(BOUND_S):
        wire = await Http2Wire.open(edge.url)
        await wire.ask("/s?offset=now&live=sse")
        live = wire.call
        assert (await wire.head()).status == 200
        kept = await Http2Wire.open(edge.url)
        await kept.ask("/s?offset=-1")
        assert (await kept.answer()).status == 200
        for _ in range(11):
            assert not wire.goaways
            await wire.ask("/%zz")
            assert (await wire.answer()).status == 400
        # The answer that begins the ban is followed by a GOAWAY that names it; the live read goes on.
        while not wire.goaways:
            await wire.read()
        assert wire.goaways == [(wire.call.id, 0)]
        assert live.reset is None
        # One that was open before gets no further answer.
        await kept.ask("/s?offset=-1")
        while not kept.goaways or kept.call.reset is None:
            await kept.read()
        await kept.closed()
        async with Lines(edge) as lines:
            assert not await (await lines.open()).is_served()
            other = await lines.open("127.0.0.2")
            await other.ask("/s?offset=-1")
            assert (await other.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await wire.closed()


@pytest.mark.http_1
async def test_a_trusted_proxy_is_not_banned(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_refusals_per_s=1, **BEHIND_PROXY)
    async with Lines(edge) as lines:
        await _refused_often(edge, lines)
        line = await _refused_often(edge, lines)
        assert await line.is_served()
        assert refused(edge) == {}


# -- rates


async def upload(edge: Edge, size: int, pause_s: float, piece: bytes = b"x") -> int:
    """The status of an upload that sends one piece after the other; 0 if none came."""
    wire = await edge.wire()
    await wire.send(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % size)
    answer = asyncio.create_task(wire.answer())
    async with asyncio.timeout(BOUND_S):
        for _ in range(0, size, len(piece)):
            if answer.done():
                break
            try:
                await wire.send(piece)
            except ConnectionError:
                break
            await asyncio.wait([answer], timeout=pause_s)
        return (await answer).status


@pytest.mark.http_1
@pytest.mark.parametrize("size", [10_000, 200_000])
async def test_an_upload_slower_than_the_least_rate_is_answered_408(
    origin: RunningOrigin, start: Start, size: int
) -> None:
    edge = await start(origin.url, client_idle_timeout_s=2.0, client_min_rate=1_000_000)
    assert (await edge.put("/s")).status == 201
    assert await upload(edge, size, 0.02) == 408
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_min_rate",] == 1


@pytest.mark.http_1
async def test_an_upload_has_a_total_time(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_body_timeout_s=0.5, client_min_rate=0)
    assert (await edge.put("/s")).status == 201
    assert await upload(edge, 100_000, 0.02) == 408
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_body_timeout_s",] == 1


@pytest.mark.http_1
async def test_an_upload_at_the_least_rate_is_taken(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, client_min_rate=100)
    assert (await edge.put("/s")).status == 201
    assert await upload(edge, 1_000, 0.01, b"x" * 100) in (200, 204)
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_min_rate",] == 0


async def read_slowly(wire: Wire, size: int, pause_s: float) -> bool:
    """Whether the whole answer of `size` bytes came, read a little at a time."""
    await wire.head()
    got = 0
    try:
        async with asyncio.timeout(BOUND_S):
            while got < size:
                piece = await wire.reader.read(4_096)
                if not piece:
                    return False
                got += len(piece)
                await pause(pause_s)
    except (ConnectionError, Dropped):
        return False
    return True


@pytest.mark.http_1
@pytest.mark.parametrize(("least", "timeout_s"), [(0, 10), (10_000_000, 0.5)])
async def test_an_answer_is_read_at_a_least_rate(
    origin: RunningOrigin, start: Start, least: int, timeout_s: float
) -> None:
    edge = await start(
        origin.url,
        client_write_timeout_s=timeout_s,
        client_min_rate=least,
        send_buffer_bytes=16_384,
        follow_above_per_s=0,
    )
    body = b"x" * 1_000_000
    assert (await edge.put("/s", body)).status == 201
    wire = await edge.begin("/s?offset=-1", receive_bytes=8_192)
    assert await read_slowly(wire, len(body), 0.005) == (least == 0)


@pytest.mark.http_2
async def test_a_live_reader_without_anything_to_read_is_not_slow(origin: RunningOrigin, start: Start) -> None:
    edge = await start(
        origin.url,
        client_write_timeout_s=0.1,
        client_min_rate=1_000_000,
        client_idle_timeout_s=1.0,
        send_buffer_bytes=16_384,
    )
    assert (await edge.put("/s", b"x")).status == 201
    # At the origin itself: an upload, too, has to be as fast as that.
    large = {"Content-Type": "text/plain"}
    assert (await edge.send_to(origin.url, "PUT", "/large", large, b"x" * 4_000_000)).status == 201
    wire = await edge.begin("/s?offset=-1&live=sse")
    assert (await wire.head()).status == 200
    for times in range(1, 4):
        assert (await wire.event()) is not None
        # Meanwhile another reader leaves unread what it asked for, and is given up.
        await edge.begin("/large?offset=-1", receive_bytes=8_192)
        await until_given_up(edge, times)
        await edge.post("/s", b"more")


async def until_given_up(edge: Edge, readers: int) -> None:
    """Wait until so many readers were dropped because they took too little."""
    await eventually(lambda: counted(edge.gateway, "durable_gateway_slow_consumers_total")["closed",] == readers)
