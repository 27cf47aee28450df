"""Processes the reply to a fetch: classifies the reply, applies it to the stream, stores the body, and lands the
flight.

A flight is a reply that several readers may share.  The flight *lands* when the whole reply is available to them.

A reply that has arrived as a whole is processed in one call, without a task.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, assert_never

from gateway.aio.clock import Clock
from gateway.engine.flight_bodies import FlightBodies
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.reply_classifier import (
    BEYOND_TAIL,
    NO_HEAD,
    Learned,
    Personal,
    SharedRefusal,
    classify,
    is_empty,
    read_error,
)
from gateway.engine.reply_recorder import Effect, ReplyRecorder, SentFetch, is_outdated, is_overtaken
from gateway.engine.route import Route
from gateway.engine.writes import Writes
from gateway.errors import TailMovedBack
from gateway.live.topics import LiveTopics
from gateway.protocol.freshness_headers import age_from_headers
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START
from gateway.protocol.sharing import Ground
from gateway.protocol.worker_headers import HopSaid, Remembered
from gateway.tape.origin_statements import LEAST_GAP_S
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.flight import CONFIRMATION, METADATA, NotShareable, OriginError, StreamHead
from gateway.upstream.origin_call import OriginCall, Shared
from gateway.upstream.repeats_and_retries import WalkPace
from gateway.upstream.reply import Reply, Upstream


class AnsweredFetch(SentFetch, Protocol):
    """A fetch whose reply has arrived."""

    mode: Mode

    def count_sent(self, mode: Mode) -> None:
        """Count a request that is being sent for the fetch."""


@dataclass(slots=True)
class ReplyTaker:
    """Processes the replies to fetches."""

    upstream: Upstream
    store: TapeStore
    clock: Clock
    metrics: MetricsRecorder
    live: LiveTopics
    writes: Writes
    negative_cache: NegativeCache
    bodies: FlightBodies
    recorder: ReplyRecorder
    pace: WalkPace

    def take_another(self, fetch: SentFetch) -> None:
        """Handle a reply that belongs to another stream than the one in memory."""
        self._carry_out(fetch.stream, self.recorder.apply_another(fetch))

    def take_remembered(self, fetch: SentFetch, said: HopSaid) -> None:
        """Apply the metadata from the memory of the stream's owner, another worker, if the reply has such metadata."""
        if said.remembered is None:
            return
        try:
            self.recorder.apply_remembered(fetch, said, said.remembered)
        except TailMovedBack:
            self.take_another(fetch)

    def take_reply(self, fetch: AnsweredFetch, reply: Reply) -> Coroutine[Any, Any, None] | None:
        """Process a reply until the first wait.  Return the remaining work; None if there is none.

        Raises TailMovedBack if the reply belongs to another stream, or another GatewayError.
        """
        said = fetch.facts.said
        if said is not None and said.alone is not None:
            return self._take_other(fetch, NotShareable(*said.alone), reply)
        if said is not None and said.is_stale and said.remembered is not None and fetch.flight.start == METADATA:
            return self._take_facts(fetch, reply, said.remembered)
        learned = classify(fetch.flight.start, reply.head, fetch.route, fetch.facts, self.clock.wall())
        if type(learned) is Learned and not learned.is_beyond:
            return self._take_meaning(fetch, learned, reply)
        return self._take_other(fetch, learned, reply)

    async def _take_other(
        self, fetch: AnsweredFetch, learned: Learned | Personal | NotShareable | SharedRefusal, reply: Reply
    ) -> None:
        """Process a reply whose meaning depends on its body, or that is not part of the stream."""
        meaning = await self._meaning(fetch, learned, reply)
        if isinstance(meaning, OriginError):
            await self._refused(fetch, meaning)
        rest = self._take_meaning(fetch, meaning, reply)
        if rest is not None:
            await rest

    def _take_meaning(
        self, fetch: AnsweredFetch, meaning: Learned | Personal | NotShareable | OriginError, reply: Reply
    ) -> Coroutine[Any, Any, None] | None:
        stream, flight = fetch.stream, fetch.flight
        if isinstance(meaning, Learned):
            is_first_word = meaning.up_to_date and fetch.facts.version.same_acks_as(stream.version)
            if is_first_word and not stream.holds_acknowledged(meaning.offset, meaning.is_closed):
                # This call may drop the bytes in memory.  The flight is then overtaken.
                self.writes.tail_is_short(stream)
        head, effect, tail = self.recorder.apply(fetch, meaning)
        if effect is not None:
            self._carry_out(stream, effect)
        if tail is not None:
            self.live.tail_named(stream, tail, fetch.asked_at)
        if not isinstance(head, StreamHead):
            flight.announce(head)
            return None
        flight.as_of = fetch.asked_at - _counted_age(reply, stream, fetch.route)
        if (said := fetch.facts.said) is not None and said.is_stale:
            head = head._replace(is_stale=True)
        if flight.start == METADATA:
            return self._take_metadata(fetch, reply, head)
        if flight.key == CONFIRMATION:
            return self._compare(fetch, reply, head)
        if not reply.has_arrived:
            return self._store_arriving(fetch, reply, head)
        body = self.bodies.take_body(fetch, head, reply)
        if body and not self.bodies.inflow.count_bytes(sum(map(len, body))):
            return self._store_in_turn(fetch, head, body)
        self.bodies.store_body(fetch, head, body)
        self._stored(fetch, head)
        return None

    async def _take_facts(self, fetch: AnsweredFetch, reply: Reply, remembered: Remembered) -> None:
        """Answer with the metadata from the owner's memory.  `take_remembered` has already applied it."""
        if fetch.stream.ended is not None or remembered.tail is None:
            raise TailMovedBack
        await self._take_metadata(fetch, reply, StreamHead(remembered.tail, False, remembered.is_closed))

    async def _take_metadata(self, fetch: AnsweredFetch, reply: Reply, head: StreamHead) -> None:
        self.live.watch_expiry(fetch.stream)
        await reply.read(0)
        fetch.flight.announce(head, 0)
        fetch.flight.land()

    async def _compare(self, fetch: AnsweredFetch, reply: Reply, head: StreamHead) -> None:
        """Compare the body with the bytes in memory."""
        self._carry_out(fetch.stream, await self.bodies.compare(fetch, head, reply))

    async def _store_arriving(self, fetch: AnsweredFetch, reply: Reply, head: StreamHead) -> None:
        """Store a body as it arrives."""
        await self.bodies.store(fetch, head, reply)
        self._stored(fetch, head)

    async def _store_in_turn(self, fetch: AnsweredFetch, head: StreamHead, body: list[bytes]) -> None:
        """Wait until more bytes may be added to memory, then store a body that has arrived."""
        fetch.flight.announce(head, fetch.flight.expected, is_verbatim=not fetch.stream.tape.is_json)
        await self.bodies.inflow.renewed()
        self.bodies.store_body(fetch, head, body)
        self._stored(fetch, head)

    def _stored(self, fetch: AnsweredFetch, head: StreamHead) -> None:
        """Report a stored body to the stream's `WalkPace`, which limits the rate of its fetches."""
        flight = fetch.flight
        if flight.key != NOW:
            is_up_to_date = head.up_to_date or head.is_closed
            self.pace.ended(fetch.stream, flight.size, self.clock.now(), is_up_to_date=is_up_to_date)

    async def _meaning(
        self, fetch: AnsweredFetch, learned: Learned | Personal | NotShareable | SharedRefusal, reply: Reply
    ) -> Learned | Personal | NotShareable | OriginError:
        """Read the body of a classified reply if its meaning depends on the body."""
        flight, route = fetch.flight, fetch.route
        match learned:
            case SharedRefusal():
                if route.varies_by_origin(reply.headers):
                    self.store.vary_by_origin(fetch.stream)
                error = await read_error(reply, route, fetch.source)
                if fetch.facts.said is None:
                    self.metrics.upstream_bytes(len(error.body), fetch.mode, route.name)
                flight.fetched += len(error.body)
                return error
            case Learned(is_beyond=True) if not await is_empty(reply):
                # The reply has bytes, but no later offset, so it cannot be stored.  Relay the request.
                return BEYOND_TAIL
            case Personal(why) | (NotShareable(is_personal=True) as why):
                route.notice(Ground(why.reason), reply.headers)
        return learned

    async def _refused(self, fetch: AnsweredFetch, error: OriginError) -> None:
        """Remember the origin's refusal for later reads.  Raises TailMovedBack if the refusal shows that the stream was
        replaced."""
        stream, flight, source = fetch.stream, fetch.flight, fetch.source
        is_current = not is_overtaken(stream, flight)
        if error.status == 400 and fetch.facts.is_origin_token and is_current and await self._accepts_requests(fetch):
            # The origin refuses an offset that it has stated itself, so the stream was replaced.
            raise TailMovedBack
        if is_current and stream.ended is None and not is_outdated(stream, flight):
            # The error reply to a HEAD has no body that could be repeated for a GET.  It is therefore used only for
            # reads that begin with a HEAD.
            offset = None if error.status == 404 and flight.start != METADATA else flight.start
            key, client = stream.key, source.client
            self.negative_cache.remember(key, offset, error, source.headers, fetch.route, fetch.asked_at, client)

    def _carry_out(self, stream: Stream, effect: Effect | None) -> None:
        """Carry out the effect of a reply on the stream's live readers."""
        match effect:
            case Effect.REFOLLOW:
                self.live.revalidate(stream)
            case Effect.END_READERS:
                assert stream.ended is not None
                self.live.end_readers(stream, stream.ended)
            case None:
                pass
            case _:
                assert_never(effect)

    async def _accepts_requests(self, fetch: AnsweredFetch) -> bool:
        """Return whether the origin accepts any request of this source.  If true, the refusal concerns the offset."""
        source, route = fetch.source, fetch.route.name
        for method, mode, offset in (("HEAD", Mode.HEAD, None), ("GET", Mode.CATCHUP, START)):
            asked_at = self.clock.now()
            call = OriginCall(
                method,
                source.url(offset),
                source.headers,
                source.bounds,
                client=fetch.flight.askers,
                shared=Shared(fetch.stream.key, source.handed),
            )
            # Only the head is needed.  If the reply has a body, the connection is closed.
            async with await self.upstream.send(call, partial(fetch.count_sent, mode)) as reply:
                self.metrics.upstream_head(mode, reply.status, self.clock.now() - asked_at, route)
                if method == "GET" or reply.status not in NO_HEAD:
                    return reply.status in (200, 404, 410)
        return False


def _counted_age(reply: Reply, stream: Stream, route: Route) -> float:
    """Return a reply's age in seconds, up to a limit.

    The limit is below `Stream.reusable_s`.  A reply that was in other caches for a long time can therefore still be
    reused for a moment.
    """
    age_s = age_from_headers(reply.headers)
    return max(0.0, min(age_s, stream.reusable_s(route.trust_s) - LEAST_GAP_S)) if age_s else 0.0
