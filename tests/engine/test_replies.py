"""What a reply of the origin changes in memory: `classify` and `ReplyRecorder.apply` with plain values, no server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Final, NamedTuple, cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.flight_bodies import FlightBodies
from gateway.engine.reply_classifier import Learned, Personal, SharedRefusal, TapeFacts, classify
from gateway.engine.reply_recorder import Applied, Effect, ReplyRecorder, SentFetch
from gateway.engine.route import Route
from gateway.errors import TailMovedBack
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.names import START
from gateway.protocol.sharing import Group, StreamKey
from gateway.protocol.target import parse_target
from gateway.protocol.worker_headers import HopSaid, Remembered
from gateway.tape.eviction import POLICIES
from gateway.tape.store import TapeStore
from gateway.tape.stream import SEVERAL, End, Stream
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.flight import METADATA, Beyond, Flight, NotShareable, OriginError, StreamHead
from gateway.upstream.reply import Reply

PART: Final = {
    "Content-Type": "application/octet-stream",
    "Stream-Next-Offset": "4",
    "Stream-Up-To-Date": "true",
}


SAID = HopSaid("0.1.9", 900.0, "life", "name")


class Head(NamedTuple):
    """The head of a reply."""

    status: int
    headers: CIMultiDict[str]
    is_delimited: bool = True
    shape: None = None
    own: tuple[()] = ()


class Sent:
    """A fetch whose request is sent now."""

    def __init__(self, world: World, start: str) -> None:
        self.stream, self.route, self.source = world.stream, world.route, world.source
        self.flight = Flight(start, 1 << 16)
        self.flight.version = self.stream.version
        self.asked_at = world.clock.now()
        self.facts = TapeFacts.of(self.stream, start, world.clock.wall())


class Others:
    """Stands in for the other workers."""

    def __init__(self) -> None:
        self.told: list[tuple[StreamKey, bool, bool]] = []

    def ended(self, key: StreamKey, *, was_known: bool, is_certain: bool) -> None:
        self.told.append((key, was_known, is_certain))

    def withdrawn(self, group: Group) -> None: ...


class World:
    """A stream of which the origin has shown the bytes up to "4", where its tail was."""

    def __init__(self, credentials: str = "partition") -> None:
        self.clock = ManualClock()
        config = GatewayConfig.for_origin("http://origin.test", credentials=credentials)
        self.route = Route(config.routes[0], "edge", self.clock)
        self.store = TapeStore(1 << 20, POLICIES["s3-fifo"](), map(str, count()).__next__, NoMetrics())
        self.recorder = ReplyRecorder(self.store, self.clock)
        target = parse_target("/s")
        headers: CIMultiDict[str] = CIMultiDict()
        self.source = self.route.source(target, self.route.source_headers(headers))
        self.key = self.route.key(target, self.route.partition(headers))
        self.stream = self.store.open(self.key, self.clock.now())
        self.hear(self.sent(START))
        self.store.store(self.stream, START, "4", [b"abcd"], self.clock.now())

    def sent(self, start: str) -> Sent:
        return Sent(self, start)

    def hear(self, fetch: Sent, status: int = 200, **more: str | None) -> Applied:
        """Apply a reply to the fetch; None leaves a field of `PART` out."""
        fields = {**PART, **{name.replace("_", "-"): value for name, value in more.items()}}
        headers = CIMultiDict({name: value for name, value in fields.items() if value is not None})
        head = Head(status, headers)
        meaning = classify(fetch.flight.start, head, self.route, fetch.facts, self.clock.wall())
        refusal = OriginError(status, headers, b"")
        return self.recorder.apply(fetch, refusal if isinstance(meaning, SharedRefusal) else meaning)


@pytest.fixture
def world() -> World:
    return World()


def acknowledged(stream: Stream) -> None:
    """A write is acknowledged."""
    stream.acknowledged("6", is_closed=False, query="")


def doubted(stream: Stream) -> None:
    """A write may have been done."""
    stream.mark_stale(may_have_ended=False)


def test_a_part_names_the_tail_and_settles_doubts(world: World) -> None:
    world.stream.mark_stale()
    found = world.hear(world.sent("4"))
    assert found == Applied(StreamHead("4", up_to_date=True, is_closed=False), None, "4")
    assert not world.stream.needs_revalidation


def test_a_reply_to_a_read_beyond_the_tail_says_nothing_of_the_bytes(world: World) -> None:
    caching = world.stream.caching
    found = world.hear(world.sent("7"), Stream_Up_To_Date=None, Cache_Control="no-cache")
    assert found.head == Beyond("4", up_to_date=False, is_closed=False)
    assert (world.stream.caching, world.stream.tape.is_short("4")) == (caching, False)


@pytest.mark.parametrize(("status", "end"), [(404, End.DELETED), (410, End.GONE)])
def test_a_stream_that_is_not_there_ends_with_its_readers(world: World, status: int, end: End) -> None:
    assert world.hear(world.sent(METADATA), status).effect is Effect.END_READERS
    assert world.stream.ended is end


@pytest.mark.parametrize("status", [200, 404, 410])
@pytest.mark.parametrize("start", [START, METADATA])
def test_a_fetch_that_a_purge_has_overtaken_teaches_nothing(world: World, start: str, status: int) -> None:
    late = world.sent(start)
    world.store.forget_bytes(world.stream)
    before = world.stream.version
    found = world.hear(late, status, Stream_Next_Offset="9", Stream_Closed="true")
    stream = world.stream
    assert (found.effect, found.tail, stream.ended, stream.tape.closed_at) == (None, None, None, None)
    assert (stream.version, stream.tape.tail) == (before, "4")


@pytest.mark.parametrize("event", [acknowledged, doubted])
@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("start", [START, METADATA])
def test_a_refusal_requested_before_a_write_ends_nothing(world: World, start: str, status: int, event: object) -> None:
    late = world.sent(start)
    assert callable(event)
    event(world.stream)
    assert world.hear(late, status).effect is Effect.REFOLLOW
    assert world.stream.ended is None
    assert world.stream.needs_revalidation


def test_a_request_names_no_tail_after_a_write_was_acknowledged(world: World) -> None:
    late = world.sent("4")
    acknowledged(world.stream)
    assert world.hear(late).tail is None
    assert not world.stream.holds_acknowledged("4")


def test_a_refused_offset_is_trimmed_and_the_stream_is_not_over(world: World) -> None:
    assert world.hear(world.sent(START), 410).effect is None
    assert world.stream.ended is None
    assert not world.stream.tape.knows_after(START)


def test_where_parties_share_the_404_of_one_is_doubted() -> None:
    world, others = World("shared"), Others()
    world.store.others = others
    world.stream.was_found_by(world.source.asker + 1)
    assert world.hear(world.sent(METADATA), 404).effect is Effect.REFOLLOW
    assert (world.stream.ended, world.stream.needs_revalidation) == (None, True)
    assert others.told == [(world.key, True, False)]


@pytest.mark.parametrize(
    "other",
    [
        {"Stream_Next_Offset": "2"},
        {"Content_Type": "application/json"},
        {"ETag": '"other:-1:4"'},
    ],
)
def test_a_reply_that_contradicts_what_is_known_is_of_another_stream(world: World, other: dict[str, str]) -> None:
    world.stream.identity = "one"
    late = world.sent(START if "ETag" in other else "4")
    with pytest.raises(TailMovedBack):
        world.hear(late, 200, **other)
    assert world.recorder.apply_another(late) is Effect.END_READERS
    assert world.stream.ended is End.RECREATED


@pytest.mark.parametrize(
    ("said", "is_doubted", "why"),
    [
        (SAID._replace(life="other"), False, End.PURGED),
        (SAID._replace(life="other"), True, End.RECREATED),
        (SAID._replace(life="other", identity="another"), False, End.RECREATED),
        (SAID, False, End.RECREATED),
    ],
)
def test_an_owner_that_has_dropped_its_record_has_not_shown_that_the_stream_was_re_created(
    world: World, said: HopSaid, is_doubted: bool, why: End
) -> None:
    """Live readers continue at their offsets, as after a purge, unless the stream may have ended."""
    world.store.others = Others()
    world.stream.identity = None if said.identity is None else "one"
    assert world.stream.learn_owner(SAID)
    if is_doubted:
        world.stream.may_be_another()
    late = world.sent(START)
    late.facts = late.facts._replace(said=said)
    assert world.recorder.apply_another(late) is Effect.END_READERS
    assert world.stream.ended is why


@pytest.mark.parametrize(("status", "found_by"), [(404, SEVERAL), (410, SEVERAL), (410, None)])
def test_a_refusal_does_not_suggest_that_the_owners_next_record_is_of_another_stream(
    world: World, status: int, found_by: int | None
) -> None:
    """The owner drops its record when the origin has trimmed all bytes.  Waiting readers were answered 404 then."""
    world.store.others = Others()
    world.stream.found_by = found_by
    assert world.stream.learn_owner(SAID)
    late = world.sent("4")
    late.facts = late.facts._replace(said=SAID)
    world.hear(late, status)
    assert world.stream.ended is None
    assert world.stream.version.may_have_ended
    late = world.sent("4")
    late.facts = late.facts._replace(said=SAID._replace(life="other"))
    assert world.recorder.apply_another(late) is Effect.END_READERS
    assert world.stream.ended is End.PURGED


@pytest.mark.parametrize("is_by_hop", [False, True])
@pytest.mark.parametrize("finds", ["nothing there", "another stream"])
def test_other_workers_are_told_of_an_end_that_the_origin_has_shown_to_this_one(
    world: World, finds: str, is_by_hop: bool
) -> None:
    others = Others()
    world.store.others = others
    late = world.sent(METADATA)
    if is_by_hop:
        late.facts = late.facts._replace(said=SAID)
    if finds == "nothing there":
        world.hear(late, 404)
    else:
        world.recorder.apply_another(late)
    assert world.stream.ended is not None
    assert others.told == ([] if is_by_hop else [(world.key, True, True)])


@pytest.mark.parametrize("is_alone", [False, True])
def test_an_owner_that_is_told_no_lifetime_does_not_lift_a_limit(world: World, is_alone: bool) -> None:
    """An unlimited lifetime in its statement may mean that the origin reports none."""
    limit = Lifetime(60, None)
    world.stream.expiry.know(limit)
    world.stream.expiry.lose()
    late = world.sent(METADATA if is_alone else "4")
    late.facts = late.facts._replace(said=SAID._replace(lifetime=Lifetime(None, None)))
    if is_alone:
        world.recorder.apply(cast(SentFetch, late), NotShareable("private"))
    else:
        world.hear(late)
    assert (world.stream.expiry.latest, world.stream.expiry.is_limited) == (limit, True)
    assert world.stream.expiry.stated == limit


def test_a_closed_stream_that_is_open_again_is_another_one(world: World) -> None:
    world.hear(world.sent("4"), Stream_Closed="true")
    assert world.stream.tape.closed_at == "4"
    with pytest.raises(TailMovedBack):
        world.hear(world.sent(METADATA))


def test_a_stream_that_learned_its_identity_meanwhile_may_be_the_later_one(world: World) -> None:
    late = world.sent(START)
    acknowledged(world.stream)
    world.stream.identity = "later"
    assert world.recorder.apply_another(late) is Effect.REFOLLOW
    assert world.stream.ended is None


def test_a_head_sent_before_the_stream_may_have_been_replaced_tells_no_lifetime(world: World) -> None:
    late = world.sent(METADATA)
    world.stream.may_be_another()
    world.hear(late, Stream_TTL="60")
    assert world.stream.expiry.lifetime is None
    world.hear(world.sent(METADATA), Stream_TTL="60")
    assert world.stream.expiry.lifetime == Lifetime(60, None)


def test_a_reply_for_one_reader_alone_raises_doubts_of_what_is_held(world: World) -> None:
    assert world.hear(world.sent("4"), Set_Cookie="a=b").effect is None
    assert world.stream.needs_revalidation


@pytest.mark.parametrize("told", [None, Lifetime(60, None)])
def test_a_worker_has_the_lifetime_of_a_reply_for_one_reader_alone_from_the_owner(
    world: World, told: Lifetime | None
) -> None:
    world.stream = world.store.open(world.key._replace(query="a=b"), world.clock.now())
    fetch = world.sent(METADATA)
    fetch.facts = fetch.facts._replace(said=SAID._replace(lifetime=told))
    world.recorder.apply(fetch, NotShareable("Vary", is_lasting=False))
    assert world.stream.expiry.lifetime == told


@pytest.mark.parametrize("more", [{}, {"Set_Cookie": "a=b"}, {"Vary": "X-User"}, {"Stream_Closed": "true"}])
def test_classifying_changes_nothing(world: World, more: dict[str, str]) -> None:
    fetch = world.sent("4")
    headers = CIMultiDict({**PART, **{name.replace("_", "-"): value for name, value in more.items()}})
    before = repr(world.stream), world.stream.version, dict(world.stream.headers)
    found = [classify("4", Head(200, headers), world.route, fetch.facts, 1.0) for _ in range(2)]
    assert found[0] == found[1]
    assert isinstance(found[0], Learned | Personal)
    assert before == (repr(world.stream), world.stream.version, dict(world.stream.headers))


REMEMBERED = Remembered("text/plain", "9", False, 900.0, False, False, (), (("X-Kept", "1"),))


def test_what_an_owner_remembers_is_as_old_as_the_origins_last_word(world: World) -> None:
    stream = world.store.open(world.key._replace(query="a=b"), now := world.clock.now())
    world.stream = stream
    remembered = REMEMBERED._replace(contacted_at=now - 50)
    world.recorder.apply_remembered(world.sent(METADATA), SAID, remembered)
    assert (stream.content_type, stream.tape.tail, stream.headers["X-Kept"]) == ("text/plain", "9", "1")
    assert (stream.sighting, stream.is_trusted(now, 60.0), stream.is_trusted(now + 11, 60.0)) == (None, True, False)


def test_what_an_owner_remembers_moves_no_tail_back_and_settles_only_what_the_owner_knows(world: World) -> None:
    world.stream.mark_stale()
    doubted = REMEMBERED._replace(tail="2", is_doubted=True, content_type=PART["Content-Type"])
    world.recorder.apply_remembered(world.sent(METADATA), SAID, doubted)
    assert (world.stream.tape.tail, world.stream.needs_revalidation) == ("4", True)
    world.recorder.apply_remembered(world.sent(METADATA), SAID, doubted._replace(is_doubted=False))
    assert not world.stream.needs_revalidation


def test_another_record_of_the_owner_is_another_stream_while_the_origin_fails(world: World) -> None:
    remembered = REMEMBERED._replace(content_type=PART["Content-Type"])
    world.recorder.apply_remembered(world.sent(METADATA), SAID, remembered)
    with pytest.raises(TailMovedBack):
        world.recorder.apply_remembered(world.sent(METADATA), SAID._replace(life="other"), remembered)
    late = world.sent(METADATA)
    world.store.forget_bytes(world.stream)
    world.recorder.apply_remembered(late, SAID._replace(life="other"), remembered)


class Body:
    """A reply with these bytes of a stream."""

    def __init__(self, body: bytes) -> None:
        self.head, self.headers, self.content_length, self._body = self, CIMultiDict[str](), len(body), body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_confirmation_without_bytes_in_memory_confirms_nothing(*, is_held: bool) -> None:
    world = World()
    if is_held:
        world.store.store(world.stream, "4", "8", [b"efgh"], world.clock.now())
    world.clock.advance(10)
    bodies = FlightBodies(world.store, world.clock, NoMetrics())
    sent = world.sent("4")
    sent.flight.as_of = sent.asked_at
    await bodies.compare(cast(SentFetch, sent), StreamHead("8", False, False), cast(Reply, Body(b"efgh")))
    assert (world.stream.confirmed_at("4") == sent.asked_at) is is_held
