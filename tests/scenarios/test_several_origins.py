"""Several origins behind one route: selection, failover, and never a mix of two origins in one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.limits import LimitsConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.origin.app import Origin, OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_pool import OriginState, route_url
from tests.ports import kept_port
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import Answer, Dropped
from tests.waiting import eventually

NO_CHECKS = {"interval_s": 0}
BINARY = "application/octet-stream"


class Counted(Origin):
    """One of several servers of one store, with its own counters and faults."""

    def __init__(self, settings: OriginSettings, other: Origin, clock: ManualClock) -> None:
        super().__init__(settings, clock=clock)
        self.store = other.store


@pytest.fixture
async def pair(clock: ManualClock) -> AsyncIterator[tuple[RunningOrigin, RunningOrigin]]:
    """Two servers of one store."""
    with kept_port() as one_port, kept_port() as other_port:
        first = await start_origin(OriginSettings(port=one_port), clock=clock)
        counted = Counted(OriginSettings(), first.origin, clock)
        second = await start_origin(OriginSettings(port=other_port), origin=counted)
        yield first, second
        for one in (first, second):
            one.origin.faults.clear()
            await one.stop(grace_s=0)


@pytest.fixture
async def strangers(clock: ManualClock) -> AsyncIterator[tuple[RunningOrigin, RunningOrigin]]:
    """Two servers with separate stores."""
    with kept_port() as one_port, kept_port() as other_port:
        both = [await start_origin(OriginSettings(port=port), clock=clock) for port in (one_port, other_port)]
        yield both[0], both[1]
        for one in both:
            one.origin.faults.clear()
            await one.stop(grace_s=0)


def look(edge: Edge) -> dict[str, OriginState]:
    return {state.origin: state for state in edge.gateway.engine.origins.snapshot()}


def home(edge: Edge, path: str, both: tuple[RunningOrigin, RunningOrigin]) -> tuple[RunningOrigin, RunningOrigin]:
    """The server that a stream belongs to, and the other."""
    (first, *_) = edge.gateway.engine.origins.pool(route_url("default")).order("GET", path)
    return both if both[0].url == first.authority else (both[1], both[0])


async def test_streams_are_spread_and_each_sticks_to_one(
    start: Start, pair: tuple[RunningOrigin, RunningOrigin]
) -> None:
    edge = await start([one.url for one in pair], health_check=NO_CHECKS)
    paths = [f"/s{number}" for number in range(30)]
    for path in paths:
        await edge.put(path, b"hello")
        for _ in range(3):
            assert (await edge.get(path)).body == b"hello"
    for one in pair:
        assert one.origin.counters.requests[Kind.CREATE] > 3
    for path in paths:
        own, other = home(edge, path, pair)
        seen = own.origin.counters.total_requests, other.origin.counters.total_requests
        await edge.get(f"{path}?offset=now")
        assert (own.origin.counters.total_requests > seen[0], other.origin.counters.total_requests) == (True, seen[1])


async def test_a_write_that_cannot_connect_goes_to_the_next_origin_and_is_done_once(
    start: Start, pair: tuple[RunningOrigin, RunningOrigin]
) -> None:
    edge = await start([one.url for one in pair], health_check=NO_CHECKS)
    await edge.put("/s", b"")
    own, other = home(edge, "/s", pair)
    await own.stop(grace_s=0)
    assert (await edge.post("/s", b"once")).status == 204
    assert other.origin.counters.requests[Kind.APPEND] == 1
    assert (await edge.get("/s")).body == b"once"


async def test_a_write_that_was_sent_is_not_sent_again(start: Start, hostile: Hostile) -> None:
    """The connection fails after the request was sent: the origin may have executed it."""

    async def hang_up(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    there = [await hostile(hang_up, takes_head=True) for _ in range(2)]
    edge = await start([one.url for one in there], health_check=NO_CHECKS)
    assert (await edge.post("/s", b"once")).status == 502
    assert sum(len(one.asked) for one in there) == 1


class Load:
    """Readers that follow streams and idempotent writers that append to them while origins fail."""

    def __init__(self, edge: Edge, paths: list[str]) -> None:
        self.edge = edge
        self.paths = paths
        self.written: dict[str, list[bytes]] = {path: [] for path in paths}
        self.read: dict[str, list[bytes]] = {path: [] for path in paths}
        self.is_over = False
        self.retries = 0

    async def create(self) -> None:
        for path in self.paths:
            assert (await self.edge.put(path, b"", BINARY)).status == 201

    async def write(self, path: str, count: int) -> None:
        """Send numbered messages as an idempotent producer, each until it is acknowledged."""
        for number in range(count):
            data = b"%s %04d;" % (path.encode(), number)
            headers = {
                "Content-Type": BINARY, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(number)
            }  # fmt: skip
            while True:
                try:
                    done = await self.edge.send("POST", path, headers, data)
                except (Dropped, OSError):
                    done = None
                if done is not None and done.status in (200, 204):
                    break
                assert done is None or done.status >= 500, done
                self.retries += 1
            self.written[path].append(data)

    async def follow(self, path: str, mode: str) -> None:
        """Read from the beginning until everything has arrived, always continuing at the last offset."""
        at = "-1"
        while not self.is_over or b"".join(self.read[path]) != b"".join(self.written[path]):
            target = f"{path}?offset={at}" + (f"&live={mode}" if mode else "")
            try:
                found = await self.edge.get(target)
            except (Dropped, OSError):
                continue
            if found.status not in (200, 204):
                assert found.status >= 500, found
                continue
            if found.body:
                self.read[path].append(found.body)
            at = found.next_offset


async def test_with_one_of_two_killed_under_load_every_client_is_served_and_nothing_comes_twice(
    start: Start, pair: tuple[RunningOrigin, RunningOrigin]
) -> None:
    edge = await start(
        [one.url for one in pair], health_check=NO_CHECKS, long_poll_timeout_s=0.5, breaker_longest_open_s=1
    )
    load = Load(edge, [f"/s{number}" for number in range(6)])
    await load.create()
    readers = [
        asyncio.create_task(load.follow(path, mode))
        for path, mode in zip(load.paths, ["long-poll", "", "long-poll"] * 2, strict=True)
    ]
    async with edge.time_passing():
        port = pair[0].port
        writers = [asyncio.create_task(load.write(path, 40)) for path in load.paths]
        await eventually(lambda: all(len(done) >= 5 for done in load.written.values()))
        await pair[0].stop(grace_s=0)
        seen = {path: len(done) for path, done in load.written.items()}
        await eventually(lambda: all(len(load.written[path]) >= seen[path] + 5 for path in load.paths))
        again = await start_origin(OriginSettings(port=port), origin=pair[0].origin)
        try:
            await bounded(asyncio.gather(*writers))
            load.is_over = True
            await bounded(asyncio.gather(*readers))
            # Streams that belong there return to it.
            await eventually(lambda: look(edge)[again.url].state is BreakerState.CLOSED)
        finally:
            await edge.leave()
            await again.stop(grace_s=0)
    for path in load.paths:
        whole = b"".join(b"%s %04d;" % (path.encode(), number) for number in range(40))
        assert b"".join(load.read[path]) == b"".join(load.written[path]) == whole


async def test_live_readers_move_to_the_other_origin_and_back_without_loss(
    start: Start, pair: tuple[RunningOrigin, RunningOrigin]
) -> None:
    edge = await start([one.url for one in pair], health_check=NO_CHECKS, breaker_failures=2)
    await edge.put("/s", b"", "application/json")
    own, other = home(edge, "/s", pair)
    events = await edge.begin("/s?offset=-1&live=sse")
    await events.head()
    await bounded(own.origin.counters.parked_is(1))
    port = own.port
    await own.stop(grace_s=0)
    async with edge.time_passing():
        await bounded(other.origin.counters.parked_is(1))
        assert (await edge.post("/s", b'{"n":1}', "application/json")).status == 204
        while (event := await events.event()) is not None and event.name != "data":
            pass
        assert event is not None
        assert event.data == '[{"n":1}]'
        again = await start_origin(OriginSettings(port=port), origin=own.origin)
        try:
            await eventually(lambda: look(edge)[again.url].state is BreakerState.CLOSED)
            # While the live request is open at the other origin, other reads go there too.
            seen = again.origin.counters.total_requests
            assert (await edge.get("/s?offset=now")).status == 200
            assert again.origin.counters.total_requests == seen
            await edge.leave()
            await eventually(lambda: other.origin.counters.parked == 0)
            assert (await edge.get("/s?offset=now")).status == 200
            assert again.origin.counters.total_requests > seen
        finally:
            await edge.leave()
            await again.stop(grace_s=0)


async def test_a_stream_of_the_same_name_at_another_origin_is_another_stream(
    start: Start, strangers: tuple[RunningOrigin, RunningOrigin]
) -> None:
    """The two differ, contrary to the requirements: the first one's bytes are dropped, and no answer mixes both."""
    edge = await start([one.url for one in strangers], health_check=NO_CHECKS, retry_attempts=1)
    for one, text in zip(strangers, (b"AAAAA", b"BBBBBBBBBB"), strict=True):
        await edge.send_to(one.url, "PUT", "/s", {"Content-Type": "text/plain"}, text)
    own, _ = home(edge, "/s", strangers)
    first = await edge.get("/s")
    assert first.body in (b"AAAAA", b"BBBBBBBBBB")
    theirs = b"AAAAABBBBBBBBBB".replace(first.body, b"", 1)
    await own.stop(grace_s=0)
    async with edge.time_passing():
        for target in ("/s", "/s", f"/s?offset={first.next_offset}", "/s?offset=-1&live=long-poll"):
            answer = await edge.get(target)
            assert answer.status in (200, 204, 400, 404, 502)
            assert set(answer.body) <= set(theirs) or answer.status >= 400, (target, answer.body)
            assert answer.body == theirs or target != "/s"


async def test_a_live_reader_of_one_is_not_fed_from_the_other(
    start: Start, strangers: tuple[RunningOrigin, RunningOrigin]
) -> None:
    edge = await start([one.url for one in strangers], health_check=NO_CHECKS, breaker_failures=2)
    for one, text in zip(strangers, (b'"A"', b'"B"'), strict=True):
        await edge.send_to(one.url, "PUT", "/s", {"Content-Type": "application/json"}, text)
    own, _ = home(edge, "/s", strangers)
    events = await edge.begin("/s?offset=-1&live=sse")
    await events.head()
    event = await events.event()
    assert event is not None
    mine = event.data
    assert mine in ('["A"]', '["B"]')
    await bounded(own.origin.counters.parked_is(1))
    await own.stop(grace_s=0)
    async with edge.time_passing():
        # Its stream seems to be gone: the reader's answer ends, and all its bytes are from one origin.
        with suppress(Dropped, asyncio.IncompleteReadError):
            while (event := await events.event()) is not None:
                assert event.name != "data", event
        theirs = '["B"]' if mine == '["A"]' else '["A"]'
        assert (await edge.get("/s")).body == theirs.encode()


async def test_checks_eject_an_origin_that_hangs_and_take_it_back(
    start: Start, pair: tuple[RunningOrigin, RunningOrigin], caplog: pytest.LogCaptureFixture
) -> None:
    """Its port is open but silent: without checks its readers would have to wait for their timeouts."""
    check = {"path": "/healthz", "interval_s": 1, "timeout_s": 0.1, "eject_after": 2, "return_after": 2}
    edge = await start([one.url for one in pair], health_check=check, first_byte_timeout_s=60)
    await edge.put("/s", b"", "application/json")
    own, other = home(edge, "/s", pair)
    events = await edge.begin("/s?offset=-1&live=sse")
    await events.head()
    await bounded(own.origin.counters.parked_is(1))
    gate = own.origin.faults.hold()
    async with edge.time_passing():
        await eventually(lambda: look(edge)[own.url].is_ejected)
        # The live request that hung there is restarted at the other origin.
        await bounded(other.origin.counters.parked_is(1))
        assert (await edge.post("/s", b'"moved"', "application/json")).status == 204
        assert look(edge)[own.url].state is BreakerState.CLOSED
        gate.release()
        await eventually(lambda: not look(edge)[own.url].is_ejected)
    said = [record.message for record in caplog.records]
    assert said[0] == f"origin {own.url} is ejected by its health checks: timed out"
    assert said[-1].startswith(f"origin {own.url} is taken back by its health checks after ")
    await edge.leave()


async def test_if_all_are_ejected_they_are_used_all_the_same(
    start: Start, pair: tuple[RunningOrigin, RunningOrigin]
) -> None:
    check = {"interval_s": 1, "timeout_s": 1, "eject_after": 1}
    edge = await start([one.url for one in pair], health_check={**check, "path": "/check"})
    for one in pair:
        one.origin.faults.status(500, path="/check", times=None)
    async with edge.time_passing():
        await eventually(lambda: all(state.is_ejected for state in look(edge).values()))
    assert (await edge.put("/s", b"hello")).status == 201
    assert (await edge.get("/s")).body == b"hello"


@pytest.mark.parametrize(("clients", "least"), [(8, 4), (1, 3)])
async def test_an_origin_that_hangs_leaves_connections_to_the_others(
    strangers: tuple[RunningOrigin, RunningOrigin], clock: ManualClock, clients: int, least: int
) -> None:
    """Also to the same client, which may be many that are seen as one."""
    routes = tuple(
        RouteConfig(name=name, prefix=f"/{name}", origin=one.url) for name, one in zip("ab", strangers, strict=True)
    )
    config = GatewayConfig(
        server=ServerConfig(
            listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1, trusted_proxies=("127.0.0.1",)
        ),
        limits=LimitsConfig(upstream_connections=8),
        routes=routes,
    )
    edge = Edge(await start_gateway(config, clock=clock, rng=Random(7)), clock)
    try:
        gate = strangers[0].origin.faults.hold()
        hung = [
            asyncio.create_task(edge.put(f"/a/{number}", X_Forwarded_For=f"192.0.2.{number % clients}"))
            for number in range(16)
        ]
        await bounded(gate.waiting(least))
        same = {"X-Forwarded-For": "192.0.2.0", "Content-Type": "text/plain"}
        assert (await edge.send("PUT", "/b/s", same, b"hello")).status == 201
        assert (await edge.get("/b/s", same)).body == b"hello"
        gate.release()
        assert {answer.status for answer in await bounded(asyncio.gather(*hung))} == {201}
    finally:
        strangers[0].origin.faults.clear()
        await edge.leave()
        await edge.until_idle()
        await edge.gateway.stop()


# -- leaders -----------------------------------------------------------------------------------------------------------


def redirecting(location: Callable[[Asked], str], status: str = "307 Temporary Redirect") -> Any:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(status, {"Location": location(asked)}))

    return script


async def leader_and_follower(
    start: Start, hostile: Hostile, origin: RunningOrigin, **more: Any
) -> tuple[Edge, list[Asked]]:
    """A gateway in front of a server that redirects to the in-memory origin."""
    follower = await hostile(redirecting(lambda asked: origin.url + asked.target), takes_head=True)
    edge = await start(follower.url, **{"leaders": [origin.url], **more})
    return edge, follower.asked


async def test_a_redirect_to_a_leader_is_followed_inside_with_method_and_body_and_remembered(
    start: Start, hostile: Hostile, origin: RunningOrigin
) -> None:
    edge, asked = await leader_and_follower(start, hostile, origin)
    assert (await edge.put("/s", b"hello")).status == 201
    for number in range(3):
        assert (await edge.post("/s", b" again %d" % number)).status == 204
    assert [one.method for one in asked] == ["PUT"]
    assert (await edge.get("/s")).body == b"hello again 0 again 1 again 2"
    seen = len(asked)
    assert (await edge.get("/s?offset=now")).status == 200
    assert len(asked) == seen
    # But not for ever.
    edge.clock.advance(61)
    assert (await edge.post("/s", b"!")).status == 204
    assert len(asked) == seen + 1
    assert look(edge)[origin.url].redirects >= 3


async def test_a_body_too_large_to_be_held_gets_the_redirect_and_goes_to_the_leader_then(
    start: Start, hostile: Hostile, origin: RunningOrigin
) -> None:
    edge, asked = await leader_and_follower(start, hostile, origin)
    body = bytes(70_000)
    passed_on = await edge.put("/s", body, BINARY)
    assert (passed_on.status, passed_on.headers["Location"]) == (307, f"{edge.scheme}://edge.test/s")
    assert (await edge.put("/s", body, BINARY)).status == 201
    assert len(asked) == 1
    assert (await edge.get("/s")).body == body


async def test_followed_redirects_are_bounded(start: Start, hostile: Hostile) -> None:
    names: list[str] = []

    def next_after(at: int) -> Callable[[Asked], str]:
        return lambda asked: names[(at + 1) % 4] + asked.target

    there = [await hostile(redirecting(next_after(at))) for at in range(4)]
    names += [one.url for one in there]
    edge = await start(names[0], leaders=names[1:])
    passed_on = await edge.post("/s", b"x")
    assert passed_on.status == 307
    assert passed_on.headers["Location"] == f"{edge.scheme}://edge.test/s"
    assert sum(len(one.asked) for one in there) == 3


async def test_a_redirect_to_elsewhere_is_passed_on_and_no_credential_goes_there(
    start: Start, hostile: Hostile, origin: RunningOrigin
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"secret", "0001"))

    elsewhere = await hostile(script)
    follower = await hostile(redirecting(lambda asked: elsewhere.url + asked.target), takes_head=True)
    edge = await start(follower.url, leaders=[origin.url])
    for method in ("GET", "POST", "PUT", "DELETE"):
        passed_on = await edge.send(method, "/s", {"Authorization": "mine", "Content-Type": "text/plain"}, b"")
        assert (passed_on.status, passed_on.headers["Location"]) == (307, f"{elsewhere.url}/s")
    assert elsewhere.asked == []


async def test_without_a_second_host_redirects_are_relayed(
    start: Start, hostile: Hostile, origin: RunningOrigin
) -> None:
    edge, asked = await leader_and_follower(start, hostile, origin, leaders=[])
    passed_on = await edge.post("/s", b"x")
    assert (passed_on.status, passed_on.headers["Location"]) == (307, f"{origin.url}/s")
    assert origin.origin.counters.total_requests == 0
    assert len(asked) == 1


# -- credentials -------------------------------------------------------------------------------------------------------


async def test_origins_are_shown_the_route_s_credentials_in_place_of_the_client_s(
    hostile: Hostile, clock: ManualClock, tmp_path: Any
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"hello", "0001"))

    origin = await hostile(script, takes_head=True)
    secret = tmp_path / "secret"
    secret.write_text("Bearer first\n")

    def load() -> GatewayConfig:
        return GatewayConfig.for_origin(
            origin.url,
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            live_linger_s=0,
            origin_credentials={"file": str(secret)},
        )

    edge = Edge(await start_gateway(load(), clock=clock, rng=Random(7), load=load), clock)
    try:
        mine: Mapping[str, str] = {"Authorization": "Bearer client", "Content-Type": "text/plain"}
        found: list[Answer] = [await edge.get("/s", mine), await edge.send("POST", "/s", mine, b"x")]
        assert [one.status for one in found] == [200, 200]
        assert {one.headers["Authorization"] for one in origin.asked} == {"Bearer first"}
        origin.asked.clear()
        secret.write_text("Bearer second\n")
        change = await edge.gateway.reload()
        assert change.changed == ("route.default.origin_credentials",)
        await edge.send("POST", "/s", mine, b"x")
        assert [one.headers.getall("Authorization") for one in origin.asked] == [["Bearer second"]]
    finally:
        await edge.leave()
        await edge.until_idle()
        await edge.gateway.stop()
