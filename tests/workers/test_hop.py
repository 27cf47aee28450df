"""How a worker asks the owner of a stream, and what the two tell each other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.engine.answer import BodyRun
from gateway.engine.confirming import MOST_WAIT_S, PATIENCE_S
from gateway.engine.long_poll_waiter import WaitingPoll
from gateway.engine.others_writes import OthersWrites
from gateway.engine.owner_upstream import LEAST_FOLLOWED, WATCH_S, Following, HopUpstream
from gateway.engine.response_heads import Said, origin_error_answer, stream_headers
from gateway.engine.sse import Subscription
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.outgoing import RenderedHeaders
from gateway.http.reply_parser import MOST_HEAD_BYTES, MOST_LINE_BYTES
from gateway.http.request_parser import LONGEST_LINE, MOST_FIELDS, Mark, RequestHead, RequestParser
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import PLAIN, AcceptedCodings, Coding
from gateway.protocol.fleet_headers import moved
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.header_forwarding import request_headers_for_origin, response_headers_for_client, storable_headers
from gateway.protocol.mode import Mode
from gateway.protocol.names import MAX_OFFSET_CHARS
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.target import parse_target
from gateway.protocol.worker_headers import HOP, HOP_OUTCOME, HOP_RECORD, HOP_SAVED, Alone, HopAsk, HopSaid, Remembered
from gateway.server.header_meanings import NO_SECTION
from gateway.server.hop import HEAD_TIMES, HopInterpreter, HopLiveAnswers, HopSection
from gateway.server.hop_statements import HopStatements
from gateway.server.live import LiveRequest
from gateway.server.poll_group import PollGroup, Rendering
from gateway.server.request import Request
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.telemetry.access_record import NO_ACCESS_LOG
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.client import HopClient
from gateway.upstream.flight import METADATA, OriginError
from gateway.upstream.origin_call import Bounds, Handed, OriginCall, Shared
from gateway.upstream.reply import Requester, Upstream
from gateway.workers.shared_memory import SharedMemory, SlotState
from gateway.workers.worker_owners import Owners
from tests.engine.bench import TEXT, BinaryOrigin, EngineBench, bring, confirm, part_of_stream
from tests.waiting import BOUND_S, eventually, pass_turns

WORDS = st.text(max_size=12)
KEY = StreamKey(Group("http://origin", "/s"), "", Partition("default"))


ASKED = st.builds(
    HopAsk,
    WORDS,
    WORDS,
    WORDS,
    WORDS,
    st.booleans(),
    st.none()
    | st.builds(
        AcceptedCodings, st.none() | st.sampled_from(Coding), st.frozensets(st.sampled_from(Coding)), st.booleans()
    ),
)


@given(ASKED)
@example(HopAsk("-", "-", "-", "-", True, PLAIN))
@example(HopAsk("a-b", "%2D", "x=\udcff", " ", False, AcceptedCodings(Coding.BR, frozenset(Coding), False)))
def test_what_is_asked_survives(asked: HopAsk) -> None:
    assert HopAsk.parse(asked.rendered()) == asked


SAID = st.builds(
    HopSaid,
    st.just("1.2.3"),
    st.floats(0, 1e9).map(lambda at: round(at, 6)),
    st.sampled_from(["", "7"]),
    st.sampled_from(["", "a1b2"]),
    st.none() | WORDS.filter(bool),
    st.booleans(),
    st.none() | st.builds(Lifetime, st.none() | st.integers(0, 9), st.none() | st.floats(0, 1e9)),
    st.none() | st.builds(Alone, WORDS, st.booleans(), st.booleans()),
    st.sampled_from(["", "UpstreamTimeout"]),
    st.none()
    | st.builds(
        Remembered,
        WORDS,
        st.none() | WORDS,
        st.booleans(),
        st.floats(0, 1e9),
        st.booleans(),
        st.booleans(),
        st.lists(WORDS, max_size=2).map(tuple),
        st.lists(st.tuples(WORDS, WORDS), max_size=2).map(tuple),
    ),
    st.booleans(),
)


@given(SAID)
@example(HopSaid("1.2.3", 1.0, "-", "-", "-", alone=Alone("-", True, False), failure="-"))
@example(HopSaid("1.2.3", 1.0, identity="\udcff"))
def test_what_is_said_survives(said: HopSaid) -> None:
    assert HopSaid.of({HOP_RECORD: said.rendered()}) == said


def test_an_owner_takes_the_longest_request_that_clients_may_send() -> None:
    query = "-" * (LONGEST_LINE - 3)
    asked = HopAsk("default", "", query, "").rendered()
    # The offset is the origin's, and all characters may be quoted.
    target = f"/s?{'%2D' * len(query)}&offset={'%2D' * MAX_OFFSET_CHARS}"
    fields = "X: y\r\n" * MOST_FIELDS
    head = f"GET {target} HTTP/1.1\r\nHost: w\r\n{HOP}: {asked}\r\n{fields}\r\n".encode()
    parser = RequestParser(HEAD_TIMES)
    try:
        assert [type(event) for event in parser.feed(head)] == [RequestHead, Mark]
    finally:
        parser.close()


def test_clients_and_origins_never_see_the_fields() -> None:
    own = {HOP: "x", HOP_RECORD: "y", HOP_OUTCOME: "hit", HOP_SAVED: "1"}
    fields = CIMultiDict({**own, "X-Other": "z"})
    to_origin = request_headers_for_origin(
        fields, node="edge", client=None, host="h", scheme="http", http_version="1.1"
    )
    for passed in (to_origin, response_headers_for_client(fields, node="edge", http_version="1.1")):
        assert own.keys().isdisjoint(passed)
        assert passed["X-Other"] == "z"
    assert list(storable_headers(fields)) == ["X-Other"]


@pytest.mark.parametrize(("stated", "passed"), [("max-age=5", "max-age=5"), (None, None)])
async def test_an_error_keeps_the_origins_cache_control(stated: str | None, passed: str | None) -> None:
    bench = EngineBench(part_of_stream(b"ab", "2"))
    try:
        read = bench.read("/s?offset=-1")
        fields = CIMultiDict({"Cache-Control": stated} if stated is not None else {})
        answer = origin_error_answer(read.route, OriginError(404, fields, b""), Outcome.MISS)
        HopStatements(bench.engine, "1.1.1").restate(read, answer)
        assert answer.headers.get("Cache-Control") == passed
    finally:
        await bench.close()


@pytest.mark.parametrize("is_short", [False, True])
async def test_an_answer_from_memory_that_ends_before_the_tail_is_told_from_one_of_the_origin(is_short: bool) -> None:
    """The origin may end its answer where it likes.  If the owner's bytes end there, more may have come since."""
    fields = {"Stream_Up_To_Date": "false"} if is_short else {}
    bench = EngineBench(part_of_stream(b"ab", "2", **fields), retry_attempts=0)
    try:
        (await bench.engine.catch_up(bench.read("/s?offset=-1"))).close()
        bench.upstream.script = lambda asked: asked.fail(UpstreamUnreachable())
        answer = await bench.engine.catch_up(bench.read("/s?offset=-1"))
        HopStatements(bench.engine, "1.1.1").restate(bench.read("/s?offset=-1"), answer)
        said = HopSaid.of(answer.headers)
        assert said is not None
        assert said.is_tail_unknown is not is_short
        answer.close()
    finally:
        await bench.close()


SAME = HopSaid("0.1.9", 1.0, "life", "name")


@pytest.mark.parametrize(
    ("said", "identity", "is_same"),
    [
        (SAME, None, True),
        (SAME._replace(name="other"), None, True),
        (SAME._replace(life="other"), None, False),
        (SAME._replace(life="other", identity="id"), "id", True),
        (SAME._replace(life="other", identity="id"), "another", False),
        (SAME._replace(owner="1.1.8", life="other"), None, True),
        (SAME._replace(owner="1.1.8", life="other", identity="id"), "another", False),
    ],
)
def test_another_record_of_the_same_owner_is_another_stream(said: HopSaid, identity: str | None, is_same: bool) -> None:
    stream = Stream(KEY, Tape(), identity=identity)
    assert stream.learn_owner(SAME)
    assert stream.learn_owner(said) is is_same


def test_all_workers_name_the_owners_incarnation_in_entity_tags() -> None:
    stream = Stream(KEY, Tape())
    stream.begin_incarnation("own")
    assert stream.tag_name("own") == "own"
    stream.learn_owner(SAME)
    assert stream.tag_name("own") == "name"
    stream.begin_incarnation("next")
    assert (stream.tag_name("next"), stream.own_record().has_dropped_bytes(SAME)) == ("next", False)
    assert stream.own_record().has_dropped_bytes(SAME._replace(name="later"))


async def test_workers_that_read_from_the_start_before_and_after_a_trim_give_different_tags() -> None:
    """No reply states that the origin has trimmed the stream, and the end stays the same."""
    tags = []
    for body in (b"abcd", b"cd"):
        bench = EngineBench(part_of_stream(body, "4"))
        try:
            (await bench.engine.catch_up(bench.read("/s?offset=-1"))).close()
            bench.stream.learn_owner(SAME)
            answer = await bench.engine.catch_up(bench.read("/s?offset=-1"))
            tags.append(answer.headers["ETag"])
            answer.close()
        finally:
            await bench.close()
    assert all(tag.startswith('"name:') for tag in tags)
    assert len(set(tags)) == 2


async def test_a_read_that_joins_a_fetch_states_when_the_bytes_at_its_start_were_confirmed() -> None:
    """Another worker may send these bytes for `trust_s` from then on."""
    bench = EngineBench(part_of_stream(b"ab", "2"))
    try:
        (await bench.engine.catch_up(bench.read("/s?offset=-1"))).close()
        confirmed_at = bench.clock.now()
        bench.clock.advance(20)
        asked: list[Any] = []
        bench.upstream.script = asked.append
        first = asyncio.ensure_future(bench.engine.catch_up(bench.read("/s?offset=2")))
        await eventually(lambda: len(asked) == 1)
        second = asyncio.ensure_future(bench.engine.catch_up(bench.read("/s?offset=-1")))
        await pass_turns()
        bench.upstream.script = part_of_stream(b"", "4", Stream_Closed="true")
        part_of_stream(b"cd", "4", Stream_Closed="true")(asked[0])
        (await first).close()
        answer = await asyncio.wait_for(second, BOUND_S)
        assert answer.outcome is Outcome.COLLAPSED
        HopStatements(bench.engine, "1.1.1").restate(bench.read("/s?offset=-1"), answer)
        said = HopSaid.of(answer.headers)
        assert said is not None
        assert said.as_of == confirmed_at
        answer.close()
    finally:
        await bench.close()


async def test_a_read_that_joins_a_fetch_of_its_start_states_when_the_origin_was_asked() -> None:
    bench = EngineBench(part_of_stream(b"", "2"))
    try:
        asked: list[Any] = []
        bench.upstream.script = asked.append
        first = asyncio.ensure_future(bench.engine.catch_up(bench.read("/s?offset=-1")))
        await eventually(lambda: len(asked) == 1)
        asked_at = bench.clock.now()
        bench.clock.advance(3)
        second = asyncio.ensure_future(bench.engine.catch_up(bench.read("/s?offset=-1")))
        await pass_turns()
        bench.upstream.script = part_of_stream(b"", "2")
        part_of_stream(b"ab", "2", Age="4")(asked[0])
        for answer in await asyncio.wait_for(asyncio.gather(first, second), BOUND_S):
            HopStatements(bench.engine, "1.1.1").restate(bench.read("/s?offset=-1"), answer)
            said = HopSaid.of(answer.headers)
            assert said is not None
            assert said.as_of == asked_at - 4
            answer.close()
    finally:
        await bench.close()


def test_a_tag_of_a_body_whose_size_is_unknown_is_this_workers_own() -> None:
    bench = EngineBench()
    tags = set()
    for incarnation in ("one", "two"):
        stream = Stream(KEY, Tape())
        stream.begin_incarnation(incarnation)
        stream.learn_owner(SAME)
        run = BodyRun(stream, "-1", "4", stream.version.edition)
        tags.add(stream_headers(bench.read("/s"), run, "~1", Said(Outcome.MISS, False, False))["ETag"])
    assert len(tags) == 2


async def test_an_owner_states_the_age_of_what_a_live_answer_begins_with() -> None:
    origin = BinaryOrigin(b"abcd")
    bench = EngineBench(origin)
    try:
        subscribing = asyncio.ensure_future(bench.subscribe("/s?offset=-1"))
        confirm(await bench.live_request(), "0004")
        await subscribing
        stream = bench.stream
        await eventually(lambda: stream.is_followed)
        read_at = bench.clock.now()
        bench.clock.advance(20)
        topic = bench.engine.live.join(stream)
        assert topic is not None
        said = HopStatements(bench.engine, "1.1.1").live
        assert said(topic, "-1").as_of == read_at
        assert said(topic, "0004").as_of == read_at
        bring(bench.live[0], b"ef", "0006")
        await eventually(lambda: topic.position == "0006")
        assert said(topic, "0006").as_of == bench.clock.now()
        assert said(topic, "-1").as_of == read_at
        assert [said(topic, "-1", is_unconfirmed=one).is_stale for one in (False, True)] == [False, True]
    finally:
        await bench.close()


async def test_an_owner_that_asks_another_owner_states_its_age_of_the_tail() -> None:
    """The events of the answer have no ages, so the head has to wait for the live request."""
    bench = EngineBench(BinaryOrigin(b"ab"))
    try:
        await bench.body()
        # Live answers of the route have proved to be shareable, and the stream needs a revalidation.
        bench.route.judge_live(bench.stream.key, None)
        bench.stream.mark_stale()
        read = bench.read("/s?offset=0002&live=sse", is_live=True, is_handed=True)
        opening = asyncio.create_task(bench.engine.open_sse(read))
        live, tail_at = await bench.live_request(), bench.clock.now() - 30
        await pass_turns()
        live.said = HopSaid("1.1.1", tail_at, "life")
        confirm(live, "0002")
        found = await opening
        assert isinstance(found, Subscription)
        assert HopStatements(bench.engine, "1.1.2").live(found.topic, "0002").as_of == tail_at
        found.close()
    finally:
        await bench.close()


async def test_an_owner_names_no_tail_whose_age_it_does_not_state() -> None:
    """Another owner has named the tail from its memory, and does not answer the live request in time."""
    bench = EngineBench(BinaryOrigin(b"ab"))
    try:
        await bench.body()
        bench.route.judge_live(bench.stream.key, None)
        bench.stream.mark_stale()

        def owner(asked: Any) -> None:
            if not asked.is_live:
                asked.said = HopSaid("1.1.1", bench.clock.now() - 30, "life", lifetime=Lifetime(None, None))
                BinaryOrigin(b"ab")(asked)

        bench.upstream.script = owner
        opening = asyncio.create_task(bench.subscribe("/s?offset=0002&live=sse", is_handed=True))
        await bench.live_request()
        await pass_turns()
        bench.clock.advance(1.1)
        wire, _ = await opening
        assert wire.events() == []
    finally:
        await bench.close()


@pytest.mark.parametrize("offset", ["now", "0002"])
async def test_an_owner_that_asks_another_owner_states_the_age_of_the_tail_that_it_fetches(offset: str) -> None:
    """The other owner may have the tail in memory."""
    bench = EngineBench(BinaryOrigin(b"ab"))
    try:
        await bench.body()

        def owner(asked: Any) -> None:
            asked.said = HopSaid("1.1.1", bench.clock.now() - 30, "life", lifetime=Lifetime(None, None))
            BinaryOrigin(b"ab")(asked)

        bench.upstream.script = owner
        bench.clock.advance(60)
        read = bench.read(f"/s?offset={offset}", is_handed=True)
        answer = await bench.engine.catch_up(read)
        HopStatements(bench.engine, "1.1.2").restate(read, answer)
        answer.close()
        said = HopSaid.of(answer.headers)
        assert said is not None
        assert said.as_of == pytest.approx(bench.clock.now() - 30)
    finally:
        await bench.close()


async def test_an_owner_states_that_a_waiting_poll_is_answered_with_unconfirmed_bytes_of_another_owner() -> None:
    """A worker asks the stream's owner among the workers of its member, and that worker asks another member."""
    bench = EngineBench(BinaryOrigin(b"ab"))
    try:
        await bench.body()
        waiting = await bench.engine.long_poll(bench.read("/s?offset=0002&live=long-poll", is_live=True))
        assert isinstance(waiting, WaitingPoll)
        stream, clock = bench.stream, bench.clock
        rendering = HopLiveAnswers("edge", bench.engine, HopStatements(bench.engine, "1.1.1"))._rendering_of(
            "edge", waiting
        )

        def is_stale() -> bool:
            headers = CIMultiDict[str]()
            rendering.dress(waiting.read.route, None, headers)
            said = HopSaid.of(headers)
            assert said is not None
            return said.is_stale

        assert not is_stale()
        # The bytes arrive, as the follower or a fetch of this worker stores them.
        clock.advance(bench.route.trust_s + 1)
        bench.engine.store.store(stream, "0002", "0004", [b"cd"], clock.now())
        assert not is_stale()
        stream.own_record().stale_stored_at = clock.now()
        assert is_stale()
        stream.confirm("0002", clock.now())
        assert not is_stale()
        waiting.close()
    finally:
        await bench.close()


@pytest.mark.parametrize(("status", "offset"), [(404, "-1"), (410, "0002")])
async def test_an_owner_states_when_the_origin_was_asked_for_an_error(status: int, offset: str) -> None:
    """Other workers repeat it for `absent_s` from then on, even if the stream of a trimmed offset is in memory."""
    bench = EngineBench(lambda asked: asked.answer(status, TEXT, b""), absent_s=5)
    try:
        if status == 410:
            bench.upstream.script = part_of_stream(b"abcd", "0004")
            assert await bench.body() == (200, b"abcd")
            bench.upstream.script = lambda asked: asked.answer(410, TEXT, b"")
        read = bench.read(f"/s?offset={offset}")
        statements = HopStatements(bench.engine, "1.1.1")
        asked_at = bench.clock.now()
        for _ in range(2):
            answer = await bench.engine.catch_up(read)
            statements.restate(read, answer)
            said = HopSaid.of(answer.headers)
            assert said is not None
            assert (answer.status, said.as_of) == (status, asked_at)
            bench.clock.advance(4)
            if status == 410:
                # The origin still has the stream, which shows nothing about the trimmed offset.
                bench.upstream.script = part_of_stream(b"", "0004")
                assert await bench.body("/s?offset=0004") == (200, b"")
    finally:
        await bench.close()


@pytest.mark.parametrize("offset", ["now", "-1"])
async def test_an_answer_of_a_slow_origin_through_another_member_is_a_sign_of_the_origin(offset: str) -> None:
    """The other member's clock is another, so its statement is dated by the request.  The time that the origin takes
    must not count twice."""
    bench = EngineBench(BinaryOrigin(b"ab"))
    try:
        asked_at = bench.clock.now()

        def slow(asked: Any) -> None:
            bench.clock.advance(3)
            BinaryOrigin(b"ab")(asked)

        bench.upstream.script = slow
        read = bench.read(f"/s?offset={offset}", is_handed=True)
        answer = await bench.engine.catch_up(read)
        HopStatements(bench.engine, "b", is_relative=True).restate(read, answer, asked_at)
        answer.close()
        said = HopSaid.of(answer.headers)
        assert said is not None
        said = moved(said, asked_at, bench.clock.wall())
        assert asked_at <= said.as_of <= bench.clock.now()
        assert not said.is_from_memory(asked_at)
    finally:
        await bench.close()


async def test_an_owner_states_when_the_origin_was_asked_for_the_404_of_a_head() -> None:
    bench = EngineBench(lambda asked: asked.answer(404, TEXT, b""), absent_s=5)
    try:
        read = bench.read("/s")
        asked_at = bench.clock.now()
        stream = bench.engine.store.open(read.key, asked_at)
        head = await bench.engine.fetches.fresh_head(stream, METADATA, read.route, read.source)
        assert isinstance(head, OriginError)
        bench.clock.advance(4)
        answer = origin_error_answer(read.route, head, Outcome.HIT)
        HopStatements(bench.engine, "1.1.1").restate(read, answer)
        said = HopSaid.of(answer.headers)
        assert said is not None
        assert said.as_of == asked_at
    finally:
        await bench.close()


class Asked:
    """A request at an upstream, which the test answers."""

    def __init__(self, requester: Requester, call: OriginCall) -> None:
        self.requester = requester
        self.call = call
        self.is_given_up = False

    def give_up(self) -> None:
        self.is_given_up = True


class Side:
    """An upstream: the origin, or the other workers."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def ask(self, requester: Requester, call: OriginCall) -> Asked:
        self.asked.append(Asked(requester, call))
        return self.asked[-1]

    @property
    def hosts(self) -> list[str]:
        return [one.call.url.split("/")[2] for one in self.asked]


class Reader:
    """The requester."""

    def __init__(self) -> None:
        self.sent_times = 0
        self.failures: list[GatewayError] = []
        self.said: list[HopSaid] = []
        self.replies: list[Any] = []

    def sent(self) -> None:
        self.sent_times += 1

    def told(self, said: HopSaid) -> None:
        self.said.append(said)

    def head_arrived(self, reply: Any) -> None:
        self.replies.append(reply)

    def failed(self, error: GatewayError) -> None:
        self.failures.append(error)


class Reply:
    """The head of an answer."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers
        self.said: HopSaid | None = None
        self.is_closed = False

    @classmethod
    def of(cls, record: str) -> Reply:
        return cls({HOP_RECORD: record})

    def close(self) -> None:
        self.is_closed = True


async def _taken(path: str, *heads: bytes) -> list[Any]:
    """The replies with these heads, as the client of other workers takes them."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for head in heads:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n%b\r\n" % head)
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        client = HopClient([path])
        call = OriginCall("GET", "http://worker-0:1/s", CIMultiDict(), Bounds())
        replies = [await client.send(call) for _ in heads]
        for reply in replies:
            reply.close()
        await client.close()
    return replies


async def test_replies_of_another_worker_have_one_shape(tmp_path: Path) -> None:
    said = SAME, SAME._replace(as_of=2.0)
    heads = (f"Vary: hop\r\n{HOP_RECORD}: {one.rendered()}\r\n".encode() for one in said)
    first, second = await _taken(f"{tmp_path}/hop", *heads)
    assert [HopSaid.of(reply.headers) for reply in (first, second)] == list(said)
    assert first.head.shape is not None
    assert first.head.shape is second.head.shape


async def test_a_reply_of_another_worker_repeats_the_largest_head_of_an_origin(tmp_path: Path) -> None:
    value = '\xff\udcff\\"' * (MOST_HEAD_BYTES // 128 // 5)
    headers = tuple((f"X-{number}", value) for number in range(128))
    # The keys of several replies are collected.
    keys = tuple(f"{number}-" * (MOST_LINE_BYTES // 16) for number in range(16))
    facts = Remembered("a/b", "9" * MOST_LINE_BYTES, False, 1.0, False, False, keys, headers)
    said = SAME._replace(remembered=facts)
    fields = {HOP_RECORD: said.rendered(), "Surrogate-Key": " ".join(keys), **dict(headers)}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode(errors="surrogateescape")
    (reply,) = await _taken(f"{tmp_path}/hop", head)
    assert HopSaid.of(reply.headers) == said
    assert dict(reply.headers) == fields


class Looks:
    """Stands in for the writes of other workers."""

    def __init__(self, shared: SharedMemory) -> None:
        self.shared = shared
        self.groups: list[Group] = []
        self.look: Callable[[Group], None] = self.groups.append

    def index_of(self, group: Group) -> int:
        return Owners(self.shared, 0).cell_of(*group)


class Followed:
    """The streams that this worker follows."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.restarted: list[Stream] = []
        self.restart: Callable[[Stream], None] = self.restarted.append

    def topics(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(stream=stream) for stream in self.streams]


class Hops:
    """Slot 0 of three, where another slot owns the stream."""

    def __init__(self) -> None:
        self.clock, self.shared = ManualClock(), SharedMemory.create(3)
        for slot in range(3):
            self.shared.set_slot(slot, SlotState.SERVING, 1, 100 + slot)
        owners = Owners(self.shared, 0)
        paths = (f"/s/{number}" for number in range(100))
        path = next(path for path in paths if owners.other_owner(owners.cell_of("http://origin", path)) is not None)
        self.key = KEY._replace(group=Group("http://origin", path))
        self.owner = owners.other_owner(owners.cell_of("http://origin", path))
        self.origin, self.others, self.looks, self.reader = Side(), Side(), Looks(self.shared), Reader()
        self.hop = HopUpstream(
            cast(Upstream, self.origin),
            cast(HopClient, self.others),
            cast(OthersWrites, self.looks),
            owners,
            self.clock,
        )
        self.followed, self.other = Followed(), Followed()
        self.hop.watch(cast(Following, self.followed), cast(Following, self.other))

    def ask(self, *, is_handed: bool = False, is_live: bool = False) -> Any:
        shared = Shared(self.key, Handed.BY_WORKER if is_handed else Handed.NO)
        headers = RenderedHeaders.of(CIMultiDict({"Via": "1.1 edge"}))
        call = OriginCall("GET", f"route://default{self.key.group.path}", headers, Bounds(), shared=shared)._replace(
            is_live=is_live
        )
        return self.hop.ask(cast(Requester, self.reader), call)

    def lose_owner(self) -> None:
        """Lose the connections to the owner, which is asked twice."""
        for _ in range(2):
            self.others.asked[-1].requester.failed(UpstreamUnreachable())

    def kill_owner(self) -> None:
        assert self.owner is not None
        self.shared.set_slot(self.owner, SlotState.DEAD, 1, 0)


def test_the_owner_is_asked_and_counts_as_no_request_to_the_origin() -> None:
    hops = Hops()
    hops.ask()
    assert (hops.others.hosts, hops.origin.asked) == ([f"worker-{hops.owner}:1"], [])
    (asked,) = hops.others.asked
    assert HopAsk.parse(asked.call.headers[HOP]) == HopAsk("default", "", "", "")
    asked.requester.sent()
    assert (hops.reader.sent_times, len(hops.looks.groups)) == (0, 1)

    reply = Reply.of(SAME.rendered())
    asked.requester.head_arrived(cast(Any, reply))
    assert reply.said == SAME
    # Before a reply is recorded, other workers' writes are applied.
    assert (hops.reader.said, len(hops.reader.replies), len(hops.looks.groups)) == ([SAME], 1, 2)


def test_a_failure_of_the_owner_is_a_failure_and_no_answer_of_the_origin() -> None:
    hops = Hops()
    hops.ask()

    reply = Reply.of(SAME._replace(failure="UpstreamTimeout").rendered())
    hops.others.asked[0].requester.head_arrived(cast(Any, reply))
    assert (hops.reader.replies, [type(error) for error in hops.reader.failures]) == ([], [UpstreamTimeout])


@pytest.mark.parametrize(
    "field",
    [
        "",
        "x",
        "0.1.9 never - - - - - - - -",
        "0.1.9 1 - - - - x,y - - -",
        "0.1.9 1 - - - - - - - 7",
        SAME.rendered() + " more",
    ],
)
def test_a_malformed_field_makes_a_broken_answer(field: str) -> None:
    hops = Hops()
    hops.ask()
    reply = Reply.of(field)
    hops.others.asked[0].requester.head_arrived(cast(Any, reply))
    assert (hops.reader.said, hops.reader.replies, reply.is_closed) == ([], [], True)
    assert [type(error) for error in hops.reader.failures] == [UpstreamBroken]


def test_an_origins_field_says_nothing() -> None:
    hops = Hops()
    hops.ask(is_handed=True)
    reply = Reply.of(SAME.rendered())
    hops.origin.asked[0].requester.head_arrived(cast(Any, reply))
    assert (hops.reader.said, hops.reader.replies, reply.said) == ([], [reply], None)


def test_a_request_that_came_from_a_worker_is_not_handed_on_while_views_may_differ() -> None:
    hops = Hops()
    hops.ask(is_handed=True)
    assert (len(hops.origin.asked), hops.others.asked) == (1, [])
    hops.origin.asked[0].requester.sent()
    assert hops.reader.sent_times == 1


def test_a_request_for_one_client_alone_goes_to_the_origin() -> None:
    hops = Hops()
    hops.hop.ask(cast(Requester, hops.reader), OriginCall("GET", "route://default/s", CIMultiDict(), Bounds()))
    assert len(hops.origin.asked) == 1


def test_when_the_owner_dies_the_next_owner_is_asked() -> None:
    hops = Hops()
    hops.ask()
    hops.lose_owner()
    assert hops.reader.failures == []
    hops.clock.advance(0.05)
    # The supervisor has not noticed yet.
    assert len(hops.others.asked) + len(hops.origin.asked) == 2
    hops.kill_owner()
    hops.clock.advance(0.02)
    assert len(hops.others.asked) + len(hops.origin.asked) == 3
    assert hops.others.hosts.count(f"worker-{hops.owner}:1") == 2


def test_a_request_that_waits_in_the_queue_of_a_dead_owner_is_sent_to_the_next_one() -> None:
    hops = Hops()
    hops.ask()
    hops.kill_owner()
    hops.clock.advance(2 * WATCH_S)
    assert hops.others.asked[0].is_given_up
    assert len(hops.others.asked) + len(hops.origin.asked) == 2


def test_a_stream_of_either_protocol_is_followed_anew_when_it_has_another_owner() -> None:
    for name in ("followed", "other"):
        hops = Hops()
        following: Followed = getattr(hops, name)
        following.streams.append(stream := Stream(hops.key, Tape()))
        hops.ask(is_live=True)
        hops.others.asked[0].requester.head_arrived(cast(Any, Reply.of(SAME.rendered())))
        hops.clock.advance(2 * WATCH_S)
        assert following.restarted == []
        hops.kill_owner()
        hops.clock.advance(2 * WATCH_S)
        assert set(following.restarted) == {stream}


def test_a_live_request_for_another_process_moves_as_soon_as_such_requests_are_handed_on() -> None:
    for unsettled_s in (0.5, inf):
        hops = Hops()
        hops.hop.unsettled_s = unsettled_s
        hops.followed.streams.append(stream := Stream(hops.key, Tape()))
        hops.ask(is_handed=True, is_live=True)
        hops.clock.advance(2 * WATCH_S)
        assert (hops.followed.restarted, hops.hop.is_misplaced(hops.key)) == ([], True)
        [bystander] = {1, 2} - {hops.owner}
        hops.shared.set_slot(bystander, SlotState.DEAD, 1, 0)
        hops.clock.advance(1.0)
        assert hops.followed.restarted == [stream] * (unsettled_s < inf)


def test_live_requests_of_topics_that_have_ended_are_forgotten() -> None:
    hops = Hops()
    stays = hops.key
    hops.followed.streams.append(stream := Stream(stays, Tape()))
    hops.ask(is_live=True)
    hops.others.asked[0].requester.head_arrived(cast(Any, Reply.of(SAME.rendered())))
    for number in range(2 * LEAST_FOLLOWED):
        hops.key = stays._replace(query=str(number))
        hops.ask(is_live=True).give_up()
    found = re.search(r"(\d+) followed", repr(hops.hop))
    assert found is not None
    assert 0 < int(found[1]) <= LEAST_FOLLOWED
    hops.kill_owner()
    hops.clock.advance(2 * WATCH_S)
    assert set(hops.followed.restarted) == {stream}


def test_an_owner_that_answers_no_more_does_not_hold_readers_up() -> None:
    hops = Hops()
    hops.ask()
    hops.lose_owner()
    hops.clock.advance(1.0)
    assert len(hops.origin.asked) == 1


def test_a_timeout_and_a_reader_that_leaves_end_the_request() -> None:
    hops = Hops()
    hops.ask()
    hops.others.asked[0].requester.failed(UpstreamTimeout())
    assert len(hops.reader.failures) == 1
    asking = hops.ask()
    hops.lose_owner()
    asking.give_up()
    hops.clock.advance(1.0)
    assert (len(hops.reader.failures), len(hops.others.asked), hops.origin.asked) == (1, 3, [])


def test_an_owner_with_an_invalid_answer_is_alive() -> None:
    hops = Hops()
    hops.ask()
    hops.others.asked[0].requester.failed(UpstreamBroken())
    assert [type(error) for error in hops.reader.failures] == [UpstreamBroken]
    hops.clock.advance(1.0)
    assert (len(hops.others.asked), hops.origin.asked) == (1, [])


def test_a_connection_that_the_owner_has_cut_costs_no_wait_and_no_request_to_the_origin() -> None:
    hops = Hops()
    hops.ask()
    hops.others.asked[0].requester.failed(UpstreamUnreachable())
    hops.others.asked[1].requester.head_arrived(cast(Any, Reply.of(SAME.rendered())))
    assert (hops.others.hosts, len(hops.reader.replies)) == ([f"worker-{hops.owner}:1"] * 2, 1)
    hops.clock.advance(1.0)
    assert hops.origin.asked == []


async def test_a_waiting_client_and_another_worker_share_no_answer() -> None:
    """The client's answer has no statement of the owner, and the other worker's answer has no other field."""
    bench = EngineBench(BinaryOrigin(b"ab"))
    try:
        await bench.body()
        engine, sent = bench.engine, dict[bool, Mock]()
        for_worker = HopLiveAnswers("edge", engine, HopStatements(engine, "1.1.1"))
        for_client = Rendering(
            "edge",
            lambda route, origin, headers: headers.update({"X-Client": "1"}),
            bench.clock,
            engine.drain,
            NoMetrics(),
            NO_ACCESS_LOG,
        )
        for is_handed in (False, True):
            read = bench.read("/s?offset=0002&live=long-poll", is_live=True, is_handed=is_handed)
            opening = asyncio.create_task(engine.long_poll(read))
            live = await bench.live_request()
            if not is_handed:
                confirm(live, "0002")
            waiting = await opening
            assert isinstance(waiting, WaitingPoll)
            channel = sent[is_handed] = Mock()
            rendering = for_worker._rendering_of("edge", waiting) if is_handed else for_client
            group = PollGroup(rendering, bench.route, None, waiting.topic, None, keeps=True)
            group.add_first(waiter := waiting.start(group), channel, (0.0, None, NO_SECTION, None), None)
            waiter.start()
        bring(bench.live[0], b"cd", "0004")
        await eventually(lambda: all(one.write_response.called for one in sent.values()))
        heads = {one: channel.write_response.call_args.args[0] for one, channel in sent.items()}
        found = {one: [name in head for name in (b"X-Client", HOP_RECORD.encode())] for one, head in heads.items()}
        assert found == {False: [True, False], True: [False, True]}
    finally:
        await bench.close()


async def test_a_live_request_of_another_worker_is_refused_while_the_stream_is_not_followed() -> None:
    bench = EngineBench(part_of_stream(b"ab", "2"))
    try:
        live = HopLiveAnswers("edge", bench.engine, HopStatements(bench.engine, "1.1.1"))
        closed: list[str] = []
        for begin in (live.subscribe, live.wait):
            topic = SimpleNamespace(failure=UpstreamTimeout())
            begun = SimpleNamespace(topic=topic, close=lambda: closed.append("closed"))
            with pytest.raises(UpstreamTimeout):
                begin(cast(LiveRequest, None), cast(Any, begun))
        assert closed == ["closed"] * 2
    finally:
        await bench.close()


async def test_a_read_that_an_owner_makes_is_one_of_another_worker() -> None:
    bench = EngineBench()
    target = parse_target("/s?offset=0002&live=sse")
    request = cast(Request, SimpleNamespace(method="GET", headers=CIMultiDict[str]()))
    section = HopSection(HopAsk("default", "", "", "net"), bench.route, RenderedHeaders.of(CIMultiDict()), None)
    mode, read = HopInterpreter(lambda _: bench.route, Handed.BY_WORKER).read(request, section, target)
    assert (mode, read.is_handed, read.source.is_handed) == (Mode.SSE, True, True)
    await bench.close()


@pytest.mark.parametrize("is_silent", [False, True], ids=["silent from now on", "known to be silent"])
async def test_another_worker_that_compares_bytes_of_its_own_waits_for_the_origin(is_silent: bool) -> None:
    """It may lack bytes that this worker has, or know of a write that these bytes lack.  So it cannot use them."""
    bench = EngineBench(part_of_stream(b"ab", "2"))
    try:
        await bench.body()
        asked: list[Any] = []
        bench.upstream.script = asked.append
        if is_silent:
            bench.route.fell_silent()
        read = bench.read("/s?offset=-1", is_handed=True)._replace(max_age_s=0.0)
        bench.clock.advance(10)
        reading = asyncio.ensure_future(bench.engine.catch_up(read))
        await eventually(lambda: len(asked) == 1)
        bench.clock.advance(2 * MOST_WAIT_S)
        await pass_turns()
        assert not reading.done()
        part_of_stream(b"ab", "2")(asked[0])
        answer = await asyncio.wait_for(reading, BOUND_S)
        assert answer.outcome is Outcome.REVALIDATED
        answer.close()
    finally:
        await bench.close()


@pytest.mark.parametrize("age_s", [0, 30])
async def test_an_owners_answer_from_memory_does_not_show_that_the_origin_answers(age_s: int) -> None:
    """Otherwise each reader would wait longer for a silent origin, as long as owners answer for other streams."""
    bench = EngineBench(part_of_stream(b"ab", "2"))
    try:
        await bench.body()

        def owner(asked: Any) -> None:
            if asked.path != "/s":
                asked.said = HopSaid("1.1.1", bench.clock.now() - age_s, "life", lifetime=Lifetime(None, None))
                part_of_stream(b"cd", "2")(asked)

        bench.upstream.script = owner
        bench.clock.advance(bench.route.trust_s + 1)
        reading = asyncio.ensure_future(bench.engine.catch_up(bench.read("/s?offset=-1")))
        await pass_turns()
        assert await bench.body("/other") == (200, b"cd")
        bench.clock.advance(PATIENCE_S + 0.1)
        await pass_turns()
        assert reading.done() == (age_s > 0)
        bench.clock.advance(MOST_WAIT_S)
        answer = await asyncio.wait_for(reading, BOUND_S)
        assert answer.outcome is Outcome.STALE_IF_ERROR
        answer.close()
    finally:
        await bench.close()


@pytest.mark.parametrize(("is_stale", "silent_s"), [(False, 31), (False, 29), (True, 31)])
async def test_an_owner_that_has_heard_of_the_origin_since_it_fell_silent_ends_the_silence(
    is_stale: bool, silent_s: float
) -> None:
    """Otherwise this worker would not wait for the origin for a long time.  An answer that the owner has in memory from
    before the silence shows nothing of it."""

    def owner(asked: Any) -> None:
        asked.said = HopSaid("1.1.1", bench.clock.now() - 30, "life", is_stale=is_stale)
        part_of_stream(b"ab", "2")(asked)

    bench = EngineBench(owner)
    try:
        bench.clock.advance(60)
        bench.route.silent_at, answers = bench.clock.now() - silent_s, bench.route.answers
        await bench.body()
        assert (bench.route.is_silent, bench.route.answers) == (is_stale or silent_s < 30, answers)
    finally:
        await bench.close()


async def test_an_owner_states_the_facts_that_its_own_readers_would_use() -> None:
    bench = EngineBench(part_of_stream(b"ab", "2"))
    try:
        statements, read = HopStatements(bench.engine, "1.1.1"), bench.read("/s")
        await bench.body()
        assert statements.facts(read) is None, "the lifetime is not known"
        await bench.engine.fetches.fresh_facts(bench.stream, bench.route, read.source)
        said = statements.facts(read)
        assert said is not None
        assert said.remembered is not None
        assert (said.is_stale, said.life, said.remembered.tail) == (True, bench.stream.own_record().life, "2")
        bench.clock.advance(bench.route.trust_s + 1)
        assert statements.facts(read) is None
        await bench.body()
        assert statements.facts(read) is not None
        bench.stream.may_be_another()
        assert statements.facts(read) is None
    finally:
        await bench.close()
