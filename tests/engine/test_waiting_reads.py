"""Reads that wait for the origin, or for other readers, by plain values: how long, and what ends the wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.confirming import MOST_WAIT_S, PATIENCE_S, Patience
from gateway.engine.fetch_table import FetchTable
from gateway.engine.live_start import LiveReads
from gateway.engine.long_poll_waiter import PollClient, Polls, Waiter, WaitingPoll
from gateway.engine.read import Read, StreamEnded
from gateway.engine.relay import Relay, RelayedCall
from gateway.engine.relayed_request import RelayedRequest
from gateway.engine.route import Route
from gateway.errors import GatewayError, TailMovedBack, UpstreamBroken
from gateway.live.topic import Topic
from gateway.protocol.mode import Mode
from gateway.protocol.target import parse_target
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.flight import Flight, NotShareable, OriginError, StreamHead
from gateway.upstream.origin_call import Source
from gateway.upstream.reply import Reply
from tests.live.test_topic import topic_of
from tests.tape.test_stream import new_stream
from tests.waiting import pass_turns

CLIENT = "192.0.2.1"
T = TypeVar("T")


class World:
    """A route, a stream, and a read of it, without an origin."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.route = Route(GatewayConfig.for_origin("http://origin.test").routes[0], "edge", self.clock)
        self.target = parse_target("/s")
        self.stream = new_stream()
        self.detached: list[str] = []

    def read(self, start: str = "-1", **more: Any) -> Read:
        key = self.route.key(self.target, self.route.partition(CIMultiDict()))
        source = Source(self.route.url, self.target, CIMultiDict(), self.route.bounds, self.route.live_bounds, CLIENT)
        return Read(self.route, key, source, start, **more)

    def detach(self, stream: Stream, start: str) -> None:
        """Let the fetch that the read waits for go on for others."""
        self.detached.append(start)


@pytest.fixture
def world() -> World:
    return World()


async def result_of(task: asyncio.Task[T]) -> T:
    """The result of the task.  Fails if the task still waits."""
    await pass_turns()
    assert task.done()
    return task.result()


# -- held bytes do not wait for a silent origin


class Held:
    """An answer of held bytes."""

    def close(self) -> None:
        pass


class AskingRead:
    """A read of held bytes that asks an origin, whose answer is `origin`."""

    def __init__(self, world: World, held: Held | None) -> None:
        self.origin: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        patience = Patience(cast(FetchTable, world), world.clock)
        asking = patience.answer_or_held(world.read("2"), world.stream, self._ask, lambda: held)
        self.task = asyncio.create_task(asking)

    async def _ask(self) -> str:
        return await self.origin


async def test_a_silent_origin_is_waited_for_only_so_long_if_there_are_held_bytes(world: World) -> None:
    read = AskingRead(world, held := Held())
    await pass_turns()
    world.clock.advance(PATIENCE_S - 0.1)
    await pass_turns()
    assert not read.task.done()
    world.clock.advance(0.2)
    assert await result_of(read.task) is held
    assert (world.detached, world.route.is_silent) == (["2"], True)


async def test_while_the_origin_is_silent_the_next_read_is_given_held_bytes_at_once(world: World) -> None:
    world.route.fell_silent()
    silent_at = world.clock.now()
    world.clock.advance(1)
    read = AskingRead(world, held := Held())
    assert await result_of(read.task) is held
    # Otherwise an answer that the origin has given another process meanwhile would be older than the silence.
    assert world.route.silent_at == silent_at


async def test_an_origin_that_answers_others_is_waited_for_longer_and_not_for_ever(world: World) -> None:
    read = AskingRead(world, held := Held())
    await pass_turns()
    for _ in range(int(MOST_WAIT_S / PATIENCE_S) - 1):
        world.route.heard()
        world.clock.advance(PATIENCE_S)
        await pass_turns()
        assert not read.task.done()
    world.route.heard()
    world.clock.advance(PATIENCE_S)
    assert await result_of(read.task) is held


async def test_a_read_without_held_bytes_waits_for_the_origin(world: World) -> None:
    read = AskingRead(world, None)
    await pass_turns()
    world.clock.advance(10 * MOST_WAIT_S)
    await pass_turns()
    read.origin.set_result("answer")
    assert await result_of(read.task) == "answer"


# -- a hung fetch is replaced


async def test_a_fetch_is_waited_for_until_so_long_after_it_was_sent(world: World) -> None:
    table = cast(FetchTable, SimpleNamespace(_clock=world.clock))
    flight = Flight("2", 1 << 20)
    flight.sent_at = world.clock.now()
    world.clock.advance(3.0)
    waiting = asyncio.create_task(FetchTable.head_within(table, flight, 5.0, CLIENT))
    await pass_turns()
    world.clock.advance(1.9)
    await pass_turns()
    assert not waiting.done()
    world.clock.advance(0.2)
    assert await result_of(waiting) is None


async def test_a_fetch_that_is_answered_in_time_is_not_replaced(world: World) -> None:
    table = cast(FetchTable, SimpleNamespace(_clock=world.clock))
    flight = Flight("2", 1 << 20)
    flight.sent_at = world.clock.now()
    waiting = asyncio.create_task(FetchTable.head_within(table, flight, 5.0, CLIENT))
    await pass_turns()
    flight.announce(head := StreamHead("4", True, False))
    assert await result_of(waiting) is head


# -- a refusal of an offset that the gateway chose


class Filling:
    """Live reads whose fetches end with `status`."""

    def __init__(self, status: int) -> None:
        self._status = status

    async def fill(self, route: Route, source: Source, topic: Topic, at: str) -> bool:
        raise StreamEnded(OriginError(self._status, CIMultiDict(), b""))


@pytest.mark.parametrize(
    ("status", "at", "raised"),
    [(410, "4", TailMovedBack), (410, "2", StreamEnded), (404, "4", StreamEnded)],
    ids=["chosen", "client's", "not-found"],
)
async def test_only_a_410_for_an_offset_that_the_gateway_chose_is_asked_again(
    world: World, status: int, at: str, raised: type[Exception]
) -> None:
    with pytest.raises(raised):
        await LiveReads.fill_for(cast(LiveReads, Filling(status)), world.read("2"), topic_of(world.stream), at)


# -- a write happens at most once


class Asked:
    """An origin that counts the requests it is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.begun = 0

    def ask(self, requester: object, call: Any) -> Any:
        self.calls.append(call.method)
        return SimpleNamespace(client_gone=lambda: None)

    def find(self, key: object) -> None:
        return None

    def write_started(self, write: object) -> None:
        self.begun += 1

    def write_failed(self, write: object, error: object) -> None:
        pass


class Relayed(RelayedCall):
    """A write of a client that keeps what becomes of it."""

    failure: GatewayError | None = None

    def take_answer(self, reply: Reply) -> None:
        reply.close()

    def take_failure(self, error: GatewayError) -> None:
        self.failure = error


@pytest.mark.parametrize(("mode", "method"), [(Mode.APPEND, "POST"), (Mode.CREATE, "PUT"), (Mode.DELETE, "DELETE")])
async def test_a_write_is_sent_once_even_if_it_fails_or_its_client_leaves(
    world: World, mode: Mode, method: str
) -> None:
    asked = Asked()
    relay = Relay(cast(Any, asked), cast(Any, asked), cast(Any, asked), world.clock, NoMetrics())
    key = world.route.key(world.target, world.route.partition(CIMultiDict()))
    request = RelayedRequest(world.route, key.group, key, mode, method, "/s", "", "", CIMultiDict(), CLIENT)
    write = Relayed(relay, request, b"x")
    write.send()
    write.client_gone()
    write.failed(UpstreamBroken())
    assert (asked.calls, asked.begun) == ([method], 1)


# -- a long-poll that waits where live answers may not be shared


class Poller:
    """A long-poll client that lists the calls it got."""

    shape = "any"

    def __init__(self) -> None:
        self.done: list[str] = []

    def relay(self, at: str) -> None:
        self.done.append(f"relayed at {at}")

    def render(self, answer: object) -> object:
        self.done.append("answered")
        raise AssertionError("it is answered by the origin")


class PollsOf:
    """Long-polls that find nothing to be answered with."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.wheel = SimpleNamespace(add=lambda *_: 0, unlink=lambda *_: None)
        self.reader_left = lambda topic: None

    @property
    def coder(self) -> PollsOf:
        return self

    def code_now(self, read: Read, answer: object) -> object:
        return answer


@pytest.mark.parametrize("is_personal", [True, False], ids=["personal", "by-origin"])
async def test_a_waiting_long_poll_goes_to_the_origin_where_live_answers_may_not_be_shared(
    world: World, is_personal: bool
) -> None:
    topic, client = topic_of(world.stream), Poller()
    read = world.read("4", web_origin=None if is_personal else "https://app.test")
    waiting = WaitingPoll(cast(Polls, PollsOf(world.clock)), read, world.stream, topic)
    waiter = Waiter(waiting, cast(PollClient, client), 30.0)
    topic.readers_now.add(waiter)
    if is_personal:
        topic.not_shareable = NotShareable("private")
    else:
        world.stream.varies_by_origin = True
    waiter.pump()
    assert client.done == ["relayed at 4"]
    assert waiter not in topic.readers_now
