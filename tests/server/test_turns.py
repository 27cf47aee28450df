"""Requests wait in a late turn of the loop, and are begun in later ones, fairly; whoever waits loses nothing by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hyperframe.frame import GoAwayFrame, WindowUpdateFrame

from gateway.aio.batches import Batch
from gateway.aio.clock import ManualClock
from gateway.aio.timers import Wheel
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Event
from gateway.limits.accounts import Account
from gateway.origin.app import start_origin
from gateway.server.http2.connection import Http2Connection
from gateway.server.turns import CRUMBS_REST, FLOOD_S, PARTS_S, REQUESTS_S, InputWaits, Turns, TurnTaker
from tests.scenarios.http2_wire import Call, Http2Wire
from tests.scenarios.wire import Dropped
from tests.server.conftest import BOUND_S, Held, Pair, always_late, ask, connect, get, port_of, read_response, write
from tests.transports import HTTP_1, HTTP_2, TLS, listening, made
from tests.waiting import eventually

LAST = b"GET /end HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


class Loop:
    """Turns of a loop, one after the other, by a clock that only requests move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.turns = Turns(self.calls.append, self.later, lambda: self.now)
        self.begun: list[str] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + delay_s, call))

    def fire(self) -> float:
        """Move the clock to the only timer, and fire it; return the seconds that passed before."""
        [(at, call)] = self.timers
        self.timers.clear()
        passed, self.now = at - self.now, at
        call()
        return passed

    def next(self) -> None:
        calls, self.calls[:] = self.calls[:], []
        for call in calls:
            call()


class Client:
    """A connection that begins a request of `cost_s` in each of its turns, as long as it has any."""

    is_request = True

    def __init__(self, loop: Loop, name: str, use: Account | None, cost_s: float = REQUESTS_S / 4.1) -> None:
        self.loop, self.name, self.use, self.cost_s = loop, name, use, cost_s
        self.left = 0
        self.waits = InputWaits()

    def ask(self, requests: int = 1) -> None:
        self.left = requests
        if not self.loop.turns.must_wait(self, is_request=self.is_request):
            self.take_turn()

    def take_turn(self) -> None:
        self.left -= 1
        self.loop.begun.append(self.name)
        self.loop.now += self.cost_s
        if self.left and not self.loop.turns.must_wait(self, is_request=self.is_request):
            self.take_turn()


class Upload(Client):
    """A connection that reads a part of a body, or another frame, in each of its turns."""

    is_request = False


class Crumbs(Client):
    """A connection that reads a run of crumbs in each of its turns."""

    def take_turn(self) -> None:
        self.left -= 1
        self.loop.begun.append(self.name)
        self.loop.now += self.cost_s
        if self.left:
            self.loop.turns.defer_crumbs(self)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_no_request_begins_while_many_steps_of_misses_wait(loop: Loop) -> None:
    loop.turns.backlog.items = 17
    flood, other = Client(loop, "flood", Account("net"), 0.0), Client(loop, "other", Account("other net"), 0.0)
    flood.ask(3)
    other.ask()
    for _ in range(2):
        loop.next()
        assert loop.begun == []
    loop.turns.backlog.items = 16
    loop.next()
    assert sorted(loop.begun) == ["flood", "flood", "flood", "other"]


def test_a_turn_that_is_not_late_begins_requests_at_once(loop: Loop) -> None:
    client = Client(loop, "a", Account("net"), REQUESTS_S / 10)
    client.ask(10)
    assert loop.begun == ["a"] * 10
    assert not loop.turns
    loop.next()
    client.ask(10)
    assert loop.begun == ["a"] * 20


def test_a_late_turn_begins_no_more(loop: Loop) -> None:
    for name in "abc":
        Client(loop, name, Account(name), REQUESTS_S * 0.7).ask()
    assert loop.begun == ["a", "b"]
    loop.next()
    assert loop.begun == ["a", "b", "c"]
    assert repr(loop.turns) == "<Turns 0 waiting, 1 so far>"


def test_each_turn_begins_what_its_share_allows(loop: Loop) -> None:
    use = Account("net")
    loop.turns.must_wait(Client(loop, "", use))
    loop.now += 2 * REQUESTS_S
    Client(loop, "a", use).ask(100)
    assert loop.begun == []
    # The first one is late for the first of them.
    loop.next()
    del loop.begun[:]
    for turn in range(1, 11):
        loop.next()
        # The one that passes the share is begun, and no further one.
        assert 4 * turn <= len(loop.begun) <= 5 * turn


def test_turns_are_short_while_a_flood_waits(loop: Loop) -> None:
    use = Account("net")
    loop.turns.must_wait(Client(loop, "", use))
    loop.now += 2 * REQUESTS_S
    for _ in range(70):
        Client(loop, "a", use, FLOOD_S / 4.1).ask()
    loop.next()
    del loop.begun[:]
    loop.next()
    assert len(loop.begun) == 5
    while len(loop.turns) > 60:
        loop.next()
    del loop.begun[:]
    loop.next()
    assert len(loop.begun) >= 12, "what is left is no flood"


def test_what_the_loop_does_besides_is_taken_from_the_share(loop: Loop) -> None:
    use = Account("net")
    loop.turns.must_wait(Client(loop, "", use))
    loop.now += 2 * REQUESTS_S
    Client(loop, "a", use).ask(100)
    loop.next()
    del loop.begun[:]
    begun = []
    for besides_s in (0.0, REQUESTS_S / 2, REQUESTS_S, 2 * REQUESTS_S, 20 * REQUESTS_S, 0.0):
        loop.now += besides_s
        before = len(loop.begun)
        loop.next()
        begun.append(len(loop.begun) - before)
    # A quarter of what it does besides is left at least, and never more than the share.
    assert begun == [5, 3, 2, 3, 5, 5]


def test_input_that_is_no_request_takes_little_of_each_turn(loop: Loop) -> None:
    upload = Upload(loop, "part", Account("upload"), PARTS_S / 4)
    began = loop.now
    upload.ask(100)
    assert loop.now - began <= PARTS_S * 1.5
    while upload.left:
        began = loop.now
        loop.next()
        assert 0 < loop.now - began <= PARTS_S * 1.5


def test_crumbs_take_a_small_share_of_a_loop_that_is_idle(loop: Loop) -> None:
    for name in ("a", "b"):
        Crumbs(loop, name, Account(name), PARTS_S * 1.1).ask(50)
    assert loop.begun == ["a", "b"], "the first part of an input is read when it arrives"
    rests = []
    while loop.timers:
        loop.next()
        rests.append(loop.fire())
    assert min(rests[1:]) >= CRUMBS_REST * PARTS_S
    assert len(loop.begun) == 100, "and nothing is lost"
    assert 8 <= loop.begun[:20].count("a") <= 12, "the clients take turns"
    assert not loop.turns


def test_crumbs_delay_neither_requests_nor_other_parts(loop: Loop) -> None:
    Crumbs(loop, "crumbs", Account("crumbs"), PARTS_S / 2).ask(50)
    Upload(loop, "part", Account("upload"), PARTS_S / 10).ask(3)
    Client(loop, "request", Account("reader"), REQUESTS_S / 10).ask(3)
    assert loop.begun == ["crumbs", *["part"] * 3, *["request"] * 3]
    assert len(loop.turns) == 1


def test_a_wait_in_two_layers_counts_once(loop: Loop) -> None:
    waits = InputWaits()
    below, above = Crumbs(loop, "below", None, 0.0), Upload(loop, "above", None, 0.0)
    below.waits = above.waits = waits
    below.left = above.left = 1
    loop.turns.count_begun()
    loop.now += 1
    loop.turns.defer_crumbs(below)
    loop.now += 1
    assert loop.turns.must_wait(above, is_request=False)
    loop.now += 1
    assert loop.turns.waited_s(waits) == 2
    loop.next()
    assert loop.begun == ["above"]
    loop.now += 1
    assert loop.turns.waited_s(waits) == 3, "the input below waits on"
    [(_, read)] = loop.timers
    read()
    loop.now += 1
    assert loop.turns.waited_s(waits) == 3


def test_input_that_is_no_request_delays_no_request(loop: Loop) -> None:
    Upload(loop, "part", Account("upload"), PARTS_S / 4).ask(100)
    # They would wait in a turn that is as late as this for parts.
    Client(loop, "request", Account("reader"), REQUESTS_S / 10).ask(5)
    assert loop.begun[-5:] == ["request"] * 5
    loop.turns.must_wait(Client(loop, "", Account("net")))
    loop.now += 2 * REQUESTS_S
    Client(loop, "waited", Account("other"), REQUESTS_S / 10).ask(5)
    loop.next()
    assert loop.begun[-10:].count("waited") == 5
    assert loop.begun[-1] == "part", "and the upload goes on in each turn"


def test_a_client_that_asks_for_little_does_not_wait_behind_a_flood(loop: Loop) -> None:
    loop.turns.must_wait(Client(loop, "", Account("net")))
    loop.now += 2 * REQUESTS_S
    nets = [Account(f"flood {n}") for n in range(4)]
    for n in range(100):
        Client(loop, "flood", nets[n % 4]).ask(3)
    # The nets of the flood are new as well until each has had its turn.
    loop.next()
    loop.next()
    assert set(loop.begun) == {"flood"}
    del loop.begun[:]
    reader = Client(loop, "reader", Account("reader"))
    reader.ask()
    reader.ask()
    assert loop.begun == ["reader", "reader"], "the turn is not late, and nothing of this client waits"
    loop.now += 2 * REQUESTS_S
    reader.ask()
    loop.next()
    assert loop.begun[2] == "reader"


def test_the_input_of_a_flood_waits_in_turns_that_are_not_late(loop: Loop) -> None:
    flood = Account("flood")
    loop.turns.must_wait(Client(loop, "", flood))
    loop.now += 2 * REQUESTS_S
    Client(loop, "first", flood).ask(100)
    loop.next()
    count = len(loop.begun)
    Client(loop, "second", flood).ask()
    assert len(loop.begun) == count


def test_connections_of_no_net_are_clients_of_their_own(loop: Loop) -> None:
    loop.turns.must_wait(Client(loop, "", None))
    loop.now += 2 * REQUESTS_S
    Client(loop, "busy", None).ask(100)
    loop.next()
    Client(loop, "other", None).ask()
    assert loop.begun[-1] == "other"


def test_a_failing_connection_ends_no_turn(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Client):
        def take_turn(self) -> None:
            raise RuntimeError

    loop.turns.must_wait(Client(loop, "", Account("net")))
    loop.now += 2 * REQUESTS_S
    Failing(loop, "failing", Account("failing")).ask()
    Client(loop, "other", Account("other")).ask()
    loop.next()
    loop.next()
    assert loop.begun == ["other"]
    assert "unhandled error" in caplog.text


# -- connections


async def test_pipelined_requests_wait_one_by_one(pair: Pair) -> None:
    gateway = pair.strict
    turns = gateway.clients.turns = always_late(asyncio.get_running_loop())
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    reader, writer = await connect(gateway)
    before = turns.waited
    writer.write(get("/none?x=1") * 2 + get("/s?offset=-1") * 3 + LAST)
    async with asyncio.timeout(BOUND_S):
        said = await reader.read()
    assert said.count(b"HTTP/1.1 404") == 3
    assert said.count(b"abc") == 3
    assert turns.waited - before >= 1
    samples = [sample for family in gateway.metrics.collect() for sample in family.samples]
    assert [one.value for one in samples if one.name == "durable_gateway_requests_waited_total"] == [turns.waited]
    writer.close()


async def test_much_that_waits_pauses_reading_and_is_answered(pair: Pair) -> None:
    gateway = pair.strict
    gateway.clients.turns = always_late(asyncio.get_running_loop())
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    reader, writer = await connect(gateway)
    writer.write(get("/s?offset=-1") * 2_000 + LAST)
    async with asyncio.timeout(2 * BOUND_S):
        said = await reader.read()
    assert said.count(b"HTTP/1.1 200") == 2_000
    writer.close()


async def _wire(gateway: RunningGateway) -> Http2Wire:
    wire = Http2Wire(*await connect(gateway))
    await wire.greet()
    return wire


async def test_a_client_that_leaves_while_it_waits_is_forgotten(pair: Pair) -> None:
    gateway = pair.strict
    turns = gateway.clients.turns = always_late(asyncio.get_running_loop())
    async with asyncio.timeout(BOUND_S):
        for _ in range(20):
            _, writer = await connect(gateway)
            writer.write(get("/s?offset=-1"))
            writer.transport.abort()
            wire = await _wire(gateway)
            for _ in range(5):
                await wire.ask("/s?offset=-1")
            wire.writer.transport.abort()
        await eventually(lambda: not len(gateway.clients) and not turns)


async def test_a_client_that_leaves_many_requests_is_forgotten_in_steps(pair: Pair) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    steps: list[Callable[[], object]] = []

    class Noting(Batch[Callable[[], object]]):
        def add(self, item: Callable[[], object]) -> None:
            steps.append(item)
            super().add(item)

    gateway.clients.steps = Noting(lambda step: step())
    wire = await _wire(gateway)
    for n in range(20):
        await wire.ask(f"/s?offset=now&live=long-poll&x={n}")
    async with asyncio.timeout(BOUND_S):
        await eventually(lambda: [repr(one)[:28] for one in gateway.clients] == ["<Http2Connection 20 channels"])
        wire.writer.transport.abort()
        await eventually(lambda: not len(gateway.clients))
    assert len(steps) == 16, "four go at once"


async def test_requests_of_one_http_2_connection_wait_and_are_all_answered(pair: Pair) -> None:
    gateway = pair.strict
    turns = gateway.clients.turns = always_late(asyncio.get_running_loop())
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    wire, before = await _wire(gateway), turns.waited
    async with asyncio.timeout(BOUND_S):
        calls: list[Call] = []
        for _ in range(20):
            await wire.ask("/s?offset=-1")
            calls.append(wire.call)
        await wire.reset_stream(calls[7])
        for call in calls[:7] + calls[8:]:
            assert (await wire.answer_of(call)).body == b"abc"
    assert turns.waited - before >= 19
    wire.writer.close()


class Gathering(Http2Wire):
    """A connection that can gather what it sends."""

    gathered: bytes | None = None

    async def send(self, data: bytes) -> None:
        if self.gathered is None:
            await super().send(data)
        else:
            self.gathered += data


async def test_a_flood_over_http_2_is_read_a_part_at_a_time(pair: Pair) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    wire = Gathering(*await connect(gateway))
    await wire.greet()
    wire.gathered = b""
    for n in range(60):
        await wire.ask("/s?offset=-1")
        if n < 59:
            await wire.reset_stream()
    flood, wire.gathered = wire.gathered, None
    turns = gateway.clients.turns
    waiting = gateway.clients.turns = Held()
    wire.writer.write(flood)
    await eventually(lambda: bool(waiting.takers))
    (client,) = gateway.clients
    assert client.held_bytes > 0.9 * len(flood), "most of it is not read yet"
    for taker in waiting.takers:
        # Each is asked for again, at the end of the list, as long as there is more.
        taker.take_turn()
    assert 28 <= len(waiting.takers) <= 34, "requests that were taken back before their turn are not begun"
    gateway.clients.turns = turns
    async with asyncio.timeout(BOUND_S):
        assert (await wire.answer_of(wire.call)).body == b"abc"
    wire.writer.close()


@pytest.mark.parametrize(("size", "are_crumbs"), [(1, True), (100, False)])
async def test_a_run_of_tiny_frames_rests_after_each_part(pair: Pair, size: int, are_crumbs: bool) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    deferred: list[TurnTaker] = []

    class Noting(Turns):
        def must_wait(self, taker: TurnTaker, *, is_request: bool = True) -> bool:
            """On a busy machine the request itself could wait, and its frames would be read before it begins."""
            return False

        def defer_crumbs(self, taker: TurnTaker) -> None:
            deferred.append(taker)
            super().defer_crumbs(taker)

    loop = asyncio.get_running_loop()
    gateway.clients.turns = Noting(loop.call_soon, loop.call_later)
    wire = Gathering(*await connect(gateway))
    await wire.greet()
    wire.gathered = b""
    await wire.ask("/s", {"Content-Type": "text/plain"}, "POST", ends=False)
    for _ in range(300):
        await wire.part(b"x" * size)
    await wire.part(b"", ends=True)
    wire.writer.write(wire.gathered)
    wire.gathered = None
    async with asyncio.timeout(BOUND_S):
        assert (await wire.answer_of(wire.call)).status == 204
    assert bool(deferred) is are_crumbs
    wire.writer.close()


async def test_input_that_arrives_while_an_http_2_connection_waits_is_only_kept(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    wire = Gathering(*await connect(gateway))
    await wire.greet()
    wire.gathered, calls = b"", []
    for _ in range(20):
        await wire.ask("/s?offset=-1")
        calls.append(wire.call)
    flood, wire.gathered = wire.gathered, None
    turns = gateway.clients.turns
    waiting = gateway.clients.turns = Held()
    wire.writer.write(flood[:-200])
    await eventually(lambda: bool(waiting.takers))
    (client,) = gateway.clients
    readings: list[bytes] = []
    receive = Session.receive

    def noting(session: Session, data: bytes, *bounds: Any) -> list[Event]:
        readings.append(data)
        return receive(session, data, *bounds)

    monkeypatch.setattr(Session, "receive", noting)
    for at in range(-200, 0, 50):
        held = client.held_bytes
        wire.writer.write(flood[at : at + 50 or None])
        await eventually(lambda held=held: client.held_bytes == held + 50)
    assert not readings
    assert len(waiting.takers) == 1, "the connection waits for its turn already"
    gateway.clients.turns = turns
    waiting.takers[0].take_turn()
    async with asyncio.timeout(BOUND_S):
        for call in calls:
            assert (await wire.answer_of(call)).body == b"abc"
    wire.writer.close()


async def test_a_tiny_frame_that_arrives_alone_is_read_at_once(pair: Pair) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    wire = await _wire(gateway)
    fields = {"Content-Type": "text/plain", "Content-Length": "100"}
    await wire.ask("/s", fields, "POST", ends=False)
    await wire.part(b"x")
    await eventually(lambda: [one.held_bytes for one in gateway.clients] == [1])
    (client,) = gateway.clients
    waiting = gateway.clients.turns = Held()
    for n in range(2, 100):
        await wire.part(b"x")
        await eventually(lambda n=n: client.held_bytes == n)
    await wire.part(b"x", ends=True)
    async with asyncio.timeout(BOUND_S):
        assert (await wire.answer_of(wire.call)).status == 204
    assert not waiting.takers
    wire.writer.close()


@pytest.mark.parametrize("transport", [HTTP_2, TLS])
async def test_a_body_is_not_late_while_its_crumbs_wait(transport: str, tmp_path: Path) -> None:
    origin, trust = await start_origin(), made(tmp_path)
    settings = {"admin": "127.0.0.1:0", "client_idle_timeout_s": 0.3, "client_min_rate": 0}
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, **settings, **listening(transport, trust)))
    loop = asyncio.get_running_loop()
    held: list[Callable[[], None]] = []
    held_at, has_passed = 0.0, False

    def later(delay_s: float, call: Callable[[], None]) -> None:
        nonlocal held_at
        if has_passed:
            loop.call_later(delay_s, call)
        else:
            held_at = loop.time()
            held.append(call)

    class Checked(Turns):
        def waited_s(self, waits: InputWaits) -> float:
            nonlocal has_passed
            if held and not has_passed and loop.time() - held_at > 0.25:
                # The idle time of the body has passed.
                has_passed = True
                for call in held:
                    loop.call_soon(call)
            return super().waited_s(waits)

    try:
        gateway.clients.turns = Checked(loop.call_soon, later)
        async with asyncio.timeout(BOUND_S):
            if transport == TLS:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway), ssl=trust.client)
                writer.write(b"PUT /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 300\r\n\r\n")
                for _ in range(300):
                    writer.write(b"x")
                status = (await read_response(reader)).status
            else:
                wire = Gathering(*await connect(gateway))
                writer = wire.writer
                await wire.greet()
                wire.gathered = b""
                await wire.ask("/s", {"Content-Type": "text/plain", "Content-Length": "300"}, "PUT", ends=False)
                for n in range(300):
                    await wire.part(b"x", ends=n == 299)
                writer.write(wire.gathered)
                wire.gathered = None
                status = (await wire.answer_of(wire.call)).status
        writer.close()
        assert status == 201
    finally:
        await gateway.stop()
        await origin.stop(grace_s=0)
    assert has_passed


async def test_requests_over_http_2_that_are_taken_back_at_once_begin_a_turn(pair: Pair) -> None:
    gateway = pair.strict
    wire = Gathering(*await connect(gateway))
    await wire.greet()
    turns = gateway.clients.turns = Turns(lambda _: None, lambda *_: None, lambda: 0.0)
    wire.gathered = b""
    for _ in range(3):
        await wire.ask("/s?offset=-1")
        await wire.reset_stream()
    flood, wire.gathered = wire.gathered, None
    assert not turns.has_begun
    wire.writer.write(flood)
    await eventually(lambda: turns.has_begun)
    assert turns.waited == 0
    wire.writer.close()


async def test_much_input_over_http_2_that_waits_pauses_reading_and_is_answered(pair: Pair) -> None:
    gateway = pair.strict
    gateway.clients.turns = always_late(asyncio.get_running_loop())
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    wire, calls = Gathering(*await connect(gateway)), []
    await wire.greet()
    long = {"X-Long": "x" * 8_000}
    async with asyncio.timeout(2 * BOUND_S):
        for _ in range(2):
            wire.gathered = b""
            for _ in range(50):
                await wire.ask("/s?offset=-1", long)
                calls.append(wire.call)
                long = {"X-Long": f"{len(calls):x}" * 4_000}
            flood, wire.gathered = wire.gathered, None
            wire.writer.write(flood)
            for call in calls:
                assert (await wire.answer_of(call)).body == b"abc"
            calls.clear()
    wire.writer.close()


async def test_a_known_request_that_arrives_in_parts_while_it_waits_is_not_the_last(pair: Pair) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    request = b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 8192\r\n\r\n" + b"x" * 8_192
    reader, writer = await connect(gateway)
    writer.write(request)
    assert (await read_response(reader)).status in (200, 204)
    (client,) = gateway.clients
    turns = gateway.clients.turns
    waiting = gateway.clients.turns = Held()
    writer.write(request[:1_000])
    await eventually(lambda: bool(waiting.takers))
    writer.write(request[1_000:])
    await eventually(lambda: client.held_bytes >= len(request))
    gateway.clients.turns = turns
    waiting.takers[0].take_turn()
    assert (await read_response(reader)).status in (200, 204)
    writer.write(LAST)
    async with asyncio.timeout(BOUND_S):
        assert b"HTTP/1.1 404" in await reader.read()
    writer.close()


async def test_a_request_that_waits_when_a_drain_begins_is_answered(pair: Pair) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    reader, writer = await connect(gateway)
    waiting = gateway.clients.turns = Held()
    writer.write(get("/s?offset=-1"))
    await eventually(lambda: bool(waiting.takers))
    (client,) = gateway.clients
    assert not client.is_idle
    gateway.clients.begin_drain()
    waiting.takers[0].take_turn()
    async with asyncio.timeout(BOUND_S):
        said = await reader.read()
    assert said.startswith(b"HTTP/1.1 200")
    assert b"Connection: close" in said
    assert said.endswith(b"abc")
    writer.close()


@pytest.mark.parametrize("before", ["nothing", "a part of the head", "a request"])
@pytest.mark.parametrize("transport", [HTTP_1, TLS])
async def test_the_deadlines_of_a_client_do_not_pass_while_its_input_waits(
    transport: str, before: str, tmp_path: Path
) -> None:
    origin, trust, clock = await start_origin(), made(tmp_path), ManualClock()
    gateway = await start_gateway(
        GatewayConfig.for_origin(origin.url, admin="127.0.0.1:0", **listening(transport, trust))
    )
    calls: list[Callable[[], None]] = []
    ask_one = b"GET /none HTTP/1.1\r\nHost: h\r\n\r\n"
    try:
        gateway.clients.wheel = Wheel(clock)
        async with asyncio.timeout(BOUND_S):
            context = trust.client if transport == TLS else None
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway), ssl=context)
            if before == "a request":
                writer.write(ask_one)
                assert (await read_response(reader)).status == 404
            elif before == "a part of the head":
                writer.write(ask_one[:20])
                await eventually(lambda: any(getattr(one, "has_partial_head", False) for one in gateway.clients))
            turns = gateway.clients.turns = always_late(asyncio.get_running_loop(), calls.append)
            writer.write(ask_one[20:] if before == "a part of the head" else ask_one)
            await eventually(lambda: bool(turns))
            for _ in range(1_000):
                clock.advance(1)
            while turns:
                calls.pop(0)()
            assert (await read_response(reader)).status == 404
            # The deadlines hold again once nothing waits.
            for _ in range(1_000):
                clock.advance(1)
            assert await reader.read() == b""
        writer.close()
    finally:
        await gateway.stop()
        await origin.stop(grace_s=0)


async def test_an_idle_connection_over_http_2_is_not_closed_while_its_input_waits(pair: Pair) -> None:
    gateway, clock = pair.strict, ManualClock()
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    gateway.clients.wheel = Wheel(clock)
    async with asyncio.timeout(BOUND_S):
        wire = await _wire(gateway)
        await wire.ask("/s?offset=-1")
        assert (await wire.answer_of(wire.call)).body == b"abc"
        (connection,) = [one for one in gateway.clients if isinstance(one, Http2Connection)]
        # As behind a run of crumbs.
        connection.waits.begin(0)
        for _ in range(1_000):
            clock.advance(1)
        await wire.ask("/s?offset=-1")
        assert (await wire.answer_of(wire.call)).body == b"abc"
        connection.waits.end(0)
        for _ in range(1_000):
            clock.advance(1)
        assert await wire.is_ended()
    wire.writer.close()


async def test_a_reader_over_http_2_is_not_slow_while_its_input_waits(pair: Pair) -> None:
    """The frames that make room for the answer may be in this input."""
    gateway, clock, body = pair.strict, ManualClock(), b"abcde" * 100
    await write(gateway, "PUT", "/s", body, Content_Type="text/plain")
    gateway.clients.wheel = Wheel(clock)
    async with asyncio.timeout(BOUND_S):
        wire = Http2Wire(*await connect(gateway))
        await wire.greet(INITIAL_WINDOW_SIZE=0)
        calls = []
        for _ in range(2):
            await wire.ask("/s?offset=-1")
            calls.append(wire.call)
            await wire.head_of(wire.call)
        (connection,) = [one for one in gateway.clients if isinstance(one, Http2Connection)]
        timeout_s = round(gateway.clients.limits.client_write_timeout_s)
        connection.waits.begin(0)
        for _ in range(timeout_s + timeout_s // 2):
            clock.advance(1)
        assert gateway.metrics.slow_consumers[True].value == 0
        await wire.frame(WindowUpdateFrame(calls[0].id, 1 << 20))
        assert (await wire.answer_of(calls[0])).body == body
        # A client that keeps its input waiting doubles the time at most.
        for _ in range(timeout_s):
            clock.advance(1)
        with pytest.raises(Dropped):
            await wire.answer_of(calls[1])
        assert gateway.metrics.slow_consumers[True].value == 1
        assert calls[1].reset == 8
    wire.writer.close()


@pytest.mark.parametrize("protocol", [HTTP_1, HTTP_2])
async def test_a_connection_is_not_idle_while_its_input_waits_in_any_layer(pair: Pair, protocol: str) -> None:
    """A full gateway closes idle connections of the largest network, and a drain closes all of them."""
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with asyncio.timeout(BOUND_S):
        if protocol == HTTP_2:
            wire = await _wire(gateway)
            await wire.ask("/s?offset=-1")
            assert (await wire.answer_of(wire.call)).body == b"abc"
            writer = wire.writer
        else:
            reader, writer = await connect(gateway)
            writer.write(get("/s?offset=-1"))
            assert (await read_response(reader)).body == b"abc"
        (client,) = [one for one in gateway.clients if isinstance(one, Http2Connection) == (protocol == HTTP_2)]
        are_idle = [client.is_idle]
        # As in the layer of TLS.
        waits = cast(Http2Connection, client).waits
        waits.begin(0)
        are_idle.append(client.is_idle)
        client.close_if_idle()
        waits.end(0)
        assert [*are_idle, client.is_idle] == [True, False, True]
    writer.close()


async def test_a_request_over_http_2_behind_a_goaway_is_answered_although_it_waits_to_be_read(pair: Pair) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    wire = Gathering(*await connect(gateway))
    await wire.greet()
    turns = gateway.clients.turns
    waiting = gateway.clients.turns = Held()
    # Another request has begun in this turn of the loop.
    waiting.has_begun = True
    wire.gathered = b""
    await wire.frame(GoAwayFrame(0))
    await wire.ask("/s?offset=-1")
    said, wire.gathered = wire.gathered, None
    wire.writer.write(said)
    await eventually(lambda: bool(waiting.takers))
    gateway.clients.turns = turns
    waiting.takers[0].take_turn()
    async with asyncio.timeout(BOUND_S):
        assert (await wire.answer_of(wire.call)).body == b"abc"
        assert await wire.is_ended()
    wire.writer.close()


# -- input that is no request


async def _content(gateway: RunningGateway) -> bytes:
    """The whole stream, which the origin gives out in parts."""
    offset, content = "-1", b""
    while True:
        (read,) = await ask(gateway, get(f"/s?offset={offset}"))
        content += read.body
        if "stream-up-to-date" in read.headers:
            return content
        (offset,) = read.headers["stream-next-offset"]


@pytest.mark.parametrize(("size", "count"), [(1, 1_000), (100, 400)])
async def test_a_flood_of_small_data_frames_is_read_a_part_at_a_time(pair: Pair, size: int, count: int) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    wire = Gathering(*await connect(gateway))
    await wire.greet()
    wire.gathered = b""
    await wire.ask("/s", {"Content-Type": "text/plain"}, "POST", ends=False)
    for n in range(count):
        await wire.part(b"x" * size, ends=n == count - 1)
    flood, wire.gathered = wire.gathered, None
    turns, waiting = gateway.clients.turns, Held()
    gateway.clients.turns = waiting
    wire.writer.write(flood)
    await eventually(lambda: bool(waiting.takers))
    taken = 0
    while taken < len(waiting.takers):
        waiting.takers[taken].take_turn()
        taken += 1
    assert taken >= 4
    # Its head comes with the first frames, and it is answered behind the last ones; all else waits as parts.
    assert waiting.are_requests.count(True) <= 2
    assert waiting.are_requests.count(False) >= count // 64 - 1
    gateway.clients.turns = turns
    async with asyncio.timeout(BOUND_S):
        assert (await wire.answer_of(wire.call)).status in (200, 204)
    assert await _content(gateway) == b"x" * count * size
    wire.writer.close()


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"1;a=b\r\nx\r\n"])
async def test_a_flood_of_small_chunks_is_parsed_a_part_at_a_time(pair: Pair, piece: bytes) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    reader, writer = await connect(gateway)
    writer.write(
        b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n" + piece
    )
    await eventually(lambda: any(not client.is_idle for client in gateway.clients))
    turns, waiting = gateway.clients.turns, Held()
    gateway.clients.turns = waiting
    flood = piece * 10_000 + b"0\r\n\r\n"
    writer.write(flood)
    await eventually(lambda: bool(waiting.takers))
    (client,) = gateway.clients
    most, taken = len(flood) // 10, 0
    async with asyncio.timeout(BOUND_S):
        while taken < len(waiting.takers) or client.held_bytes > most:
            if taken < len(waiting.takers):
                waiting.takers[taken].take_turn()
                taken += 1
            await asyncio.sleep(0)
    assert taken >= len(flood) >> 13, "a turn reads a few kilobytes"
    gateway.clients.turns = turns
    assert (await read_response(reader)).status in (200, 204)
    assert await _content(gateway) == b"x" * 10_001
    writer.close()


async def test_a_request_behind_a_body_that_waits_for_its_turn_is_answered(pair: Pair) -> None:
    gateway = pair.strict
    turns = gateway.clients.turns = always_late(asyncio.get_running_loop())
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    reader, writer = await connect(gateway)
    before = turns.waited
    post = b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write((post + b"1\r\nx\r\n" * 3_000 + b"0\r\n\r\n") * 2 + LAST)
    async with asyncio.timeout(2 * BOUND_S):
        said = await reader.read()
    assert await _content(gateway) == b"x" * 6_000
    assert said.count(b"HTTP/1.1 404") == 1
    assert turns.waited - before >= 4
    writer.close()
