"""What the answer to a write changes of the streams of its path: `Writes` with plain values, without an origin."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple, cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.path_events import AppendedElsewhere
from gateway.engine.pending_writes import PendingWrites
from gateway.engine.relayed_request import RelayedRequest, SentRequest
from gateway.engine.route import Route
from gateway.engine.writes import Writes
from gateway.errors import UpstreamBroken
from gateway.limits.accounts import Accounts, client_nets
from gateway.live.topics import LiveTopics
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.names import START
from gateway.protocol.target import parse_target
from gateway.tape.eviction import POLICIES
from gateway.tape.origin_statements import Sighting
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.reply import Reply

PARTIES = "writer", "other"


class Head(NamedTuple):
    """The head of a reply."""

    status: int
    headers: CIMultiDict[str]


class Live:
    """The live readers of all streams: which of them an event has ended, and which follower it has restarted."""

    def __init__(self, store: TapeStore) -> None:
        self._store = store
        self.ended: list[Stream] = []
        self.restarted: list[Stream] = []

    def drop_stream(self, stream: Stream, why: End, *, is_by_origin: bool = False) -> None:
        self._store.drop_stream(stream, why, is_by_origin=is_by_origin)
        self.ended.append(stream)

    def revalidate(self, stream: Stream) -> None:
        self.restarted.append(stream)

    restart = revalidate

    def expect(self, stream: Stream) -> None:
        pass


class World:
    """The writer and another party each hold the bytes up to "4", where the tail was a moment ago."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.route = Route(GatewayConfig.for_origin("http://origin.test").routes[0], "edge", self.clock)
        self.store = TapeStore(1 << 20, POLICIES["s3-fifo"](), map(str, count()).__next__, NoMetrics())
        self.live = Live(self.store)
        pending = PendingWrites()
        self.writes = Writes(
            self.store,
            cast(LiveTopics, self.live),
            pending,
            NegativeCache(self.clock.now, pending, Accounts(client_nets(32, 64), self.clock.now)),
            self.clock,
            lambda request, status, body: None,
        )
        self.target = parse_target("/s")
        self.streams = [self.held(party) for party in PARTIES]
        self.own, self.other = self.streams

    def held(self, party: str) -> Stream:
        now = self.clock.now()
        key = self.route.key(self.target, self.route.partition(CIMultiDict(Authorization=party)))
        stream = self.store.open(key, now)
        stream.learn_type("application/octet-stream")
        stream.expiry.know(Lifetime(None, None))
        self.store.store(stream, START, "4", [b"abcd"], now)
        stream.tape.reached("4")
        stream.saw_tail(Sighting("4", now, now + 100, now + 100))
        return stream

    def send(self, mode: Mode) -> SentRequest:
        """The writer's request, which is under way from now on."""
        key = self.own.key
        request = RelayedRequest(
            self.route, key.group, key, mode, mode.name, "/s", "", "", CIMultiDict(), "net", partition=key.partition
        )
        sent = SentRequest(request, self.store.find(key), self.clock.now())
        self.writes.write_started(sent)
        return sent

    def answer(self, sent: SentRequest, status: int, **headers: str) -> None:
        fields = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
        self.writes.write_answered(sent, cast(Reply, Head(status, fields)))

    def write(self, mode: Mode, status: int, **headers: str) -> None:
        self.answer(self.send(mode), status, **headers)

    @property
    def ends(self) -> list[End | None]:
        return [stream.ended for stream in self.streams]

    @property
    def doubted(self) -> list[bool]:
        return [stream.needs_revalidation for stream in self.streams]

    @property
    def tails_stated(self) -> list[bool]:
        return [stream.tail_until("4") > self.clock.now() for stream in self.streams]


@pytest.fixture
def world() -> World:
    return World()


def test_a_404_for_a_read_that_knew_no_stream_has_the_origin_asked_about_one_created_since(world: World) -> None:
    sent = world.send(Mode.CATCHUP)
    sent.stream = None
    world.writes.missing(sent, cast(Reply, Head(404, CIMultiDict())))
    assert (world.ends, world.doubted, world.live.restarted) == ([None, None], [True, False], [world.own])


def test_a_delete_ends_the_streams_of_all_parties_and_their_live_readers(world: World) -> None:
    world.write(Mode.DELETE, 204)
    # Under other credentials the path may name another stream.
    assert world.ends == [End.DELETED, End.PURGED]
    assert world.live.ended == world.streams


@pytest.mark.parametrize("status", [404, 410])
def test_a_delete_that_finds_nothing_has_the_streams_of_other_parties_doubted(world: World, status: int) -> None:
    world.write(Mode.DELETE, status)
    assert world.own.ended is (End.GONE if status == 410 else End.DELETED)
    assert world.other.ended is None
    assert (world.other.version.may_have_ended, world.other.expiry.is_lost) == (True, True)
    assert world.live.restarted == [world.other]


@pytest.mark.parametrize(("status", "ends"), [(201, [End.RECREATED, End.PURGED]), (200, [None, None])])
def test_only_a_put_that_made_a_stream_ends_the_earlier_one(world: World, status: int, ends: list[End | None]) -> None:
    world.write(Mode.CREATE, status, Stream_Next_Offset="4")
    assert world.ends == ends


def test_an_acknowledged_append_ends_what_every_party_is_told_of_the_tail(world: World) -> None:
    assert world.tails_stated == [True, True]
    world.write(Mode.APPEND, 204, Stream_Next_Offset="6")
    assert [stream.acked.tail for stream in world.streams] == ["6", "6"]
    assert world.tails_stated == [False, False]
    # Only the writer's own credentials name this stream for certain.
    assert [stream.tape.tail for stream in world.streams] == ["6", "4"]


def test_an_acknowledged_append_without_an_offset_ends_what_every_party_is_told_of_the_tail(world: World) -> None:
    world.write(Mode.APPEND, 204)
    assert world.tails_stated == [False, False]
    assert world.doubted == [False, False]


@pytest.mark.parametrize("are_acknowledged", [False, True])
def test_an_append_of_another_gateway_may_be_lacking_if_it_was_acknowledged(
    world: World, are_acknowledged: bool
) -> None:
    group = world.streams[0].key.group
    world.writes.apply_appends(group, 9.0 if are_acknowledged else None)
    world.writes.apply_appends(group, None)
    assert [stream.may_lack_acknowledged("4") for stream in world.streams] == [are_acknowledged] * 2
    assert [stream.version.may_have_ended for stream in world.streams] == [False, False]
    assert (world.doubted, world.tails_stated) == ([True, True], [False, False])


def test_of_appends_of_two_other_gateways_the_later_one_decides_what_may_be_lacking(world: World) -> None:
    group, stream, live = world.streams[0].key.group, world.streams[0], cast(LiveTopics, world.live)
    stream.origin_stated_tail("4", 9.0)
    earlier, later = AppendedElsewhere(live, 8.0, 10.0, 10.0), AppendedElsewhere(live, 9.0, 10.0, 10.0)
    for first, second in ((earlier, later), (later, earlier)):
        both = second.with_earlier(first)
        assert both is not None
        assert repr(both) == "<AppendedElsewhere by 9.0>"
    world.writes.apply_appends(group, 8.0)
    assert [one.may_lack_acknowledged("4") for one in world.streams] == [False, True]
    world.writes.apply_appends(group, 9.0)
    assert [one.may_lack_acknowledged("4") for one in world.streams] == [True, True]


@pytest.mark.parametrize("status", [400, 403, 409])
def test_a_refused_write_changes_nothing(world: World, status: int) -> None:
    for mode in (Mode.APPEND, Mode.CREATE, Mode.DELETE):
        world.write(mode, status)
    assert (world.ends, world.doubted, world.tails_stated) == ([None, None], [False, False], [True, True])


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.CREATE, Mode.DELETE])
@pytest.mark.parametrize("has_answer", [False, True])
def test_after_a_write_of_unknown_outcome_every_party_asks_the_origin(
    world: World, has_answer: bool, mode: Mode
) -> None:
    sent = world.send(mode)
    if has_answer:
        world.answer(sent, 502)
    else:
        world.writes.write_failed(sent, UpstreamBroken())
    assert (world.ends, world.doubted) == ([None, None], [True, True])
    # An append ends no stream.
    assert [stream.version.may_have_ended for stream in world.streams] == [mode is not Mode.APPEND] * 2


def test_an_append_that_a_delete_has_overtaken_names_no_tail(world: World) -> None:
    late = world.send(Mode.APPEND)
    world.write(Mode.DELETE, 204)
    successor = world.held("writer")
    world.answer(late, 204, Stream_Next_Offset="4")
    assert (successor.ended, successor.acked.tail, successor.sighting) == (None, None, None)
    assert world.live.restarted == [successor]


def test_an_append_that_is_answered_while_others_may_have_remade_the_stream_ends_what_is_held(world: World) -> None:
    for mode in (Mode.DELETE, Mode.CREATE):
        world.send(mode)
    world.write(Mode.APPEND, 204, Stream_Next_Offset="6")
    assert [stream.block_count for stream in world.streams] == [0, 0]
    assert (world.ends, world.doubted) == ([None, None], [True, True])


@pytest.mark.parametrize("mode", [Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE])
@pytest.mark.parametrize("status", [404, 410])
def test_a_relayed_read_that_finds_nothing_has_the_next_read_ask_the_origin(
    world: World, status: int, mode: Mode
) -> None:
    sent = world.send(mode)
    world.writes.missing(sent, cast(Reply, Head(status, CIMultiDict())))
    assert (world.ends, world.doubted) == ([None, None], [True, False])
