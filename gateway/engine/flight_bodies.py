"""The bodies of flights: stored on the tape as they arrive, or compared with the bytes that it holds.

A *confirmation* asks the origin once more for bytes that are held.  It shows that the origin has not trimmed them, and
that they are the stream's.  One confirmation is enough for all readers, and for all later offsets.
"""

from __future__ import annotations

from gateway.aio.clock import Clock
from gateway.engine.arrival import receive, take_whole
from gateway.engine.classifier import Effect, SentFetch, is_overtaken
from gateway.engine.comparison import MOST_COMPARED, Comparison
from gateway.errors import UpstreamBroken
from gateway.limits.inflow import Inflow
from gateway.protocol.freshness import age_from_headers
from gateway.protocol.json_array import NotAnArray
from gateway.protocol.mode import Mode
from gateway.protocol.offsets import NOW, START
from gateway.tape.confirmed import LEAST_GAP_S
from gateway.tape.store import TapeStore
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.flight import StreamHead
from gateway.upstream.reply import Reply


class FlightBodies:
    """Takes the bodies of flights."""

    def __init__(self, store: TapeStore, clock: Clock, metrics: MetricsRecorder) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self.inflow = Inflow()
        """How many bytes the bodies may add to memory now."""

    async def compare(self, fetch: SentFetch, head: StreamHead, reply: Reply) -> Effect | None:
        """Announce the head of the reply to a confirmation, compare its bytes with those held, and land the flight.
        Bytes that differ are forgotten.

        Returns the effect on the stream's live readers.  Raises UpstreamBroken, TailMovedBack or another GatewayError.
        """
        stream, flight, route = fetch.stream, fetch.flight, fetch.route
        reusable_s, name = stream.reusable_s(route.config.trust_s), route.config.name
        confirmed_at = fetch.asked_at - _counted_age(reply, reusable_s)
        comparison = Comparison(stream.tape, flight.start, head.next_offset, reply.content_length)
        flight.announce(head)
        is_short = (reply.content_length or 0) <= 2 * MOST_COMPARED
        try:
            async for chunk in reply.chunks():
                self._metrics.upstream_bytes(len(chunk), Mode.CATCHUP, name)
                flight.fetched += len(chunk)
                comparison.feed(chunk)
                if comparison.is_over and (not is_short or flight.fetched > 2 * MOST_COMPARED):
                    break
            else:
                comparison.finish()
        except NotAnArray as error:
            raise UpstreamBroken from error
        effect = None
        if not is_overtaken(stream, flight):
            if comparison.agrees:
                if comparison.is_past and flight.start == START:
                    # The sentinel may name another position.  By the next request the tape reaches as far as the reply.
                    confirmed_at = min(confirmed_at, self._clock.now() - reusable_s + LEAST_GAP_S)
                stream.confirm(flight.start, confirmed_at)
            else:
                # The origin has trimmed them, or has another stream at the path, or they never were this stream's.
                self._store.forget_bytes(stream)
                stream.mark_stale()
                effect = Effect.REFOLLOW
        flight.land()
        return effect

    async def store(self, fetch: SentFetch, head: StreamHead, reply: Reply) -> None:
        """Announce the head of the reply, store its body, and land the flight.  Raises like `compare`."""
        stream, flight, route = fetch.stream, fetch.flight, fetch.route
        name = route.config.name
        if reply.has_arrived:
            size = take_whole(stream, flight, head, reply)
            self._metrics.upstream_bytes(size, Mode.CATCHUP, name)
            flight.fetched += size
            if size and not self.inflow.take(size):
                await self.inflow.renewed()
        else:

            def received(size: int) -> None:
                self._metrics.upstream_bytes(size, Mode.CATCHUP, name)
                flight.fetched += size

            await receive(stream, flight, head, reply, self._store, self.inflow, received)
            if flight.is_over:
                return
        start, end = flight.start, head.next_offset
        if start == NOW:
            if flight.size:
                raise UpstreamBroken
        elif flight.is_kept and not is_overtaken(stream, flight):
            if flight.is_passing and not stream.has_topic:
                # The bytes are for the flight's readers alone.
                self._store.count_unstored(flight.size)
            else:
                tape = stream.tape
                if start == START and tape.knows_after(START):
                    # Another fetch has brought the beginning, which the origin may have trimmed in between.
                    tape.has_lost_start = True
                self._store.store(stream, start, end, flight.kept, self._clock.now())
                age_s = _counted_age(reply, stream.reusable_s(route.config.trust_s))
                stream.confirm(start, fetch.asked_at - age_s)
                if tape.knows_after(start):
                    flight.shared = stream.shared_bytes()
        flight.land()


def _counted_age(reply: Reply, reusable_s: float) -> float:
    """By how many seconds earlier a reply counts for the time it has spent in caches, so that it may still be reused
    for a moment."""
    return max(0.0, min(age_from_headers(reply.headers), reusable_s - LEAST_GAP_S))
