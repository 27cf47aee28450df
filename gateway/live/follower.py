"""The follower: the gateway's one live request per stream at the origin.

The follower starts at the tail that the gateway knows, stores the bytes that it receives, and wakes the stream's live
readers.  It reads JSON and binary streams by SSE.  It reads text streams by long-poll, because SSE does not preserve
the difference between CR, LF and CRLF.  It also uses long-poll for origins without SSE, and for binary streams while
their events are large.  SSE adds a third to the size of a binary event (base64), but a long-poll adds only two heads.

A data event is used only after its control event has arrived.  If a connection is lost before the control event
arrives, the follower drops the data event and requests its bytes again.

An origin may keep an SSE connection open for ever, even for a deleted stream, so each connection has a lifetime.  After
a failure, the follower reconnects after a growing, jittered pause, or as soon as the circuit breaker's probe succeeds.
Live readers stay connected during this pause.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from gateway.aio.clock import pause
from gateway.errors import (
    CircuitOpen,
    GatewayError,
    TailMovedBack,
    UpstreamBroken,
    UpstreamCongested,
    UpstreamTimeout,
    UpstreamUnavailable,
    bare,
)
from gateway.live.followed_streams import pause_before_reconnect
from gateway.live.replies import FollowingEnded, ReplyEvents, has_failed, is_sse, poll_control, refusal, unwrapped
from gateway.live.topic import Topic
from gateway.protocol.cursor import next_cursor
from gateway.protocol.etag import stream_identity
from gateway.protocol.mode import Mode
from gateway.protocol.names import LIVE_LONG_POLL, LIVE_SSE, SSE_DATA_ENCODING, SSE_TYPE, START, is_json, is_sse_text
from gateway.protocol.sse import Control, SseTooLarge
from gateway.tape.arriving_charge import ArrivingCharge
from gateway.tape.origin_statements import LEAST_AGE_S
from gateway.tape.store import TapeStore
from gateway.tape.stream import End
from gateway.telemetry.access_record import RecordedStream
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.flight import NotShareable, OriginError, StreamHead
from gateway.upstream.origin_call import Bounds, OriginCall, Shared
from gateway.upstream.repeats_and_retries import WalkPace
from gateway.upstream.reply import Reply, Upstream

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_SHORT_LIFE_S = 1.0
_LIFETIME_JITTER = (0.8, 1.0)
_LEAST_HELD = 1 << 20
"""One reply may take this many bytes of memory even if the cache is smaller."""


class Follower:
    """Follows the stream of one topic (the group of the stream's live readers) until the stream is closed or has ended,
    or the task is cancelled."""

    def __init__(
        self, topic: Topic, upstream: Upstream, store: TapeStore, surroundings: Surroundings, max_bytes: int
    ) -> None:
        self._max_bytes = max_bytes
        self._topic = topic
        self._stream = topic.stream
        self._route = topic.stream.key.route
        self._upstream = upstream
        self._store = store
        self._clock = surroundings.clock
        self._metrics = surroundings.metrics
        self._rng = surroundings.rng
        self._access_log = surroundings.access_log
        self._recorded = RecordedStream.of(self._route, topic.access.source.target, topic.stream.key.partition)
        self._pace = WalkPace()
        """Limits the rate of long-polls while their replies have almost no bytes."""
        self._mode = Mode.SSE
        """The mode of the latest live request."""
        self._asked_version = topic.stream.version
        """The stream's version when the follower last sent a request.  If a write was acknowledged later, a refusal may
        be outdated."""
        self._live_version = self._asked_version
        """The stream's version when the latest live request was sent."""
        self._counted_failure: GatewayError | None = None
        """The latest failure that another metric has already counted: a failed fetch, or an error status.  It is not
        counted again."""
        self._cursor: str | None = None
        self._is_new = topic.position is None and not topic.stream.tape.block_count
        """Whether the gateway had no bytes of the stream and no position before this follower's first connection."""
        content_type = topic.stream.content_type
        self._speaks_sse = content_type is None or _suits_sse(content_type)
        self._is_bulk = False
        self._tries_sse_again = False
        """Whether SSE has failed and will be tried again after one connection lifetime."""
        self.is_by_hop = False
        """Whether the stream's owner, another worker, answers the latest live request."""
        self._stated_at = math.inf
        """The time at which the bytes and the tail were current that the owner is sending from its memory (monotonic
        seconds).  inf if the bytes and the tail come from the origin now."""
        self._asked_at = 0.0
        """The time at which the latest live request was sent (monotonic seconds)."""
        self._is_stale = False
        """Whether the owner is sending bytes from its memory because the origin has failed to confirm them."""
        self._is_of_known_record = False
        """Whether the owner has answered from the record from which this worker's bytes came."""
        self._may_poll = True
        """Whether large events may be read by long-poll.  False after the origin's long-polls have proved broken."""

    async def run(self) -> End | None:
        """Follow the stream.  Return the reason why the stream has ended.  Return None if the stream was closed, or if
        its live replies may not be shared."""
        failures = 0
        while True:
            failure: GatewayError | None = None
            began, started_at, was_bulk = self._clock.now(), self._topic.position, self._is_bulk
            try:
                await (self._by_sse() if self._speaks_sse and not was_bulk else self._by_long_poll())
            except FollowingEnded as ended:
                return ended.why
            except TailMovedBack:
                return End.RECREATED
            except GatewayError as error:
                # Remove the traceback, because the topic keeps the error.
                failure = bare(error)
                is_unsent = isinstance(error, UpstreamUnavailable | UpstreamCongested)
                if error is not self._counted_failure and not is_unsent:
                    self._metrics.upstream_failure(self._mode, type(error).__name__, self._route)
                self._counted_failure = None
                self._is_bulk = False
                self._may_poll = self._may_poll and not (was_bulk and isinstance(error, UpstreamBroken))
            finally:
                self._topic.lost(self._clock.now(), failure)
            if self._is_closed_here() or self._topic.not_shareable is not None:
                return None
            self._metrics.reconnect(self._route, is_planned=failure is None)
            if failure is None and self._is_bulk is not was_bulk:
                continue  # only a switch between SSE and long-poll
            # If a connection has moved the position or lasted for a while, it counts as a success, even if it has ended
            # with an error.
            if self._topic.position != started_at or self._clock.now() - began >= _SHORT_LIFE_S:
                failures = 0
            if failure is not None or self._clock.now() - began < _SHORT_LIFE_S:
                failures += 1
                if not isinstance(failure, CircuitOpen):
                    self._metrics.retry(self._route)
                if failures == 1 and self.is_by_hop:
                    # Do not pause here, because the owner pauses before its next request to the origin, and readers
                    # wait for the next answer.
                    continue
                longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failures, 10))
                pause_s = self._rng.uniform(longest / 2, longest)
                if await pause_before_reconnect(self._clock, self._rng, failure, pause_s):
                    failures = 0
            if isinstance(failure, UpstreamBroken) and failures > 1 and self._speaks_sse:
                # A proxy may be cutting SSE connections.  Use long-polls for a while.
                self._speaks_sse, self._tries_sse_again = False, True

    @property
    def _most_held(self) -> int:
        """The most bytes of one long-poll reply, or of data events that wait for their control event."""
        return min(self._max_bytes, max(_LEAST_HELD, self._store.budget_bytes))

    @property
    def _next_offset(self) -> str:
        """The offset for the next live request: the furthest known tail."""
        return self._stream.tape.tail or START

    # -- long-poll

    async def _by_long_poll(self) -> None:
        """Begin with a catch-up fetch, which stores the bytes up to the tail.  Then send one long-poll after another.

        If large events are the only reason not to use SSE, stop at an empty reply, so that SSE is used again.
        """
        ends_at = self._clock.now() + self._topic.times.lifetime_s
        self._asked_version = self._stream.version
        begun_at = self._next_offset
        head = await self._fetch(begun_at)
        tail = head.next_offset
        self._topic.moved(tail, self._topic.named_at(tail), is_confirmed=head.up_to_date)
        if self._stream.expiry.is_wanted(self._clock.now()):
            self._stream.expiry.asked(self._clock.now())
            await self._learn_lifetime()
        while not self._is_closed_here():
            at = self._topic.position
            assert at is not None
            asked_at = self._clock.now()
            async with await self._ask(at, LIVE_LONG_POLL, self._topic.access.source.live_bounds) as reply:
                is_empty = await self._take_poll(at, reply)
            if self._is_bulk and (is_empty or self._clock.now() >= ends_at):
                self._is_bulk = False
                return
            if self._tries_sse_again and self._clock.now() >= ends_at:
                self._speaks_sse, self._tries_sse_again = True, False
                return
            if is_empty and self._clock.now() - asked_at < _FIRST_PAUSE_S and not self._is_closed_here():
                # The origin answers long-polls at once instead of waiting for data.  Avoid a tight loop.
                await pause(self._clock, _FIRST_PAUSE_S)
            elif (pause_s := self._pace.pause_s(self._stream, self._clock.now())) > 0:
                await pause(self._clock, pause_s)

    async def _take_poll(self, at: str, reply: Reply) -> bool:
        """Process one reply to a long-poll; return whether it had no bytes."""
        self._judge_sharing(reply)
        if reply.status not in (200, 204):
            await self._check_offset(at, reply.status)
            self._raise_for_status(reply.status, at)
        control = poll_control(reply.status, reply.headers)
        self._cursor = control.cursor
        body = b""
        if reply.status == 200:
            chunks: list[bytes] = []
            size = 0
            arriving = ArrivingCharge(self._store, self._stream)
            try:
                async for chunk in reply.chunks():
                    self._received(len(chunk), Mode.LONGPOLL)
                    size += len(chunk)
                    if size > self._most_held:
                        raise UpstreamBroken
                    arriving.grow(len(chunk))
                    chunks.append(chunk)
            finally:
                arriving.release()
            body = b"".join(chunks)
            if self._stream.tape.is_json:
                body = unwrapped(body)
        identity = None if self.is_by_hop else stream_identity(reply.headers, at, control.next_offset)
        if not self._stream.learn_identity(identity):
            raise TailMovedBack
        self._take(at, control, [body] if body else [])
        self._pace.ended(self._stream, len(body), self._clock.now(), is_up_to_date=control.up_to_date)
        return not body

    # -- SSE

    async def _by_sse(self) -> None:
        """Read one SSE connection from the tail to the end of its lifetime."""
        lifetime_s = self._topic.times.lifetime_s * self._rng.uniform(*_LIFETIME_JITTER)
        bounds = replace(self._topic.access.source.live_bounds, idle_s=lifetime_s, total_s=lifetime_s)
        at = self._next_offset
        async with await self._ask(at, LIVE_SSE, bounds) as reply:
            self._judge_sharing(reply)
            if not is_sse(reply.status, reply.headers):
                await self._check_offset(at, reply.status)
                self._speaks_sse = False
                return
            if reply.status != 200:
                await self._check_offset(at, reply.status)
                self._raise_for_status(reply.status, at)
            is_base64 = reply.headers.get(SSE_DATA_ENCODING, "").lower() == "base64"
            await self._verify_incarnation()
            if self._stream.content_type is None:
                # The answer to a HEAD need not state the type.
                await self._fetch(at)
            if not _suits_sse(self._stream.content_type):
                self._speaks_sse = False
                return
            try:
                await self._take_events(at, reply, is_base64)
            except UpstreamTimeout:
                # This is the planned end of the connection.  The next connection requests incomplete events again.
                return

    async def _verify_incarnation(self) -> None:
        """Check by a HEAD that the new SSE connection is for the stream in memory.

        The events do not show to which stream they belong, because a re-created stream may have the same offsets.  The
        HEAD is skipped under two conditions: the gateway had no bytes of the stream when the follower began, and it
        knows the stream's identity, content type and lifetime.  The creation of a stream does not show its identity.
        Appends show neither its identity nor its content type.

        If another worker answers, its live reply states its record of the stream, and it sends the HEAD itself.
        """
        is_new, self._is_new = self._is_new, False
        is_known = (is_new and self._stream.identity is not None) or self._is_of_known_record
        if is_known and self._stream.content_type is not None and self._stream.expiry.lifetime is not None:
            return
        await self._learn_lifetime()

    async def _learn_lifetime(self) -> None:
        """Get the stream's lifetime and identity, by a HEAD or from its owner's memory."""
        self._asked_version = self._stream.version
        head = await self._topic.access.learn_facts()
        if isinstance(head, OriginError):
            self._raise_for_status(head.status)
        if isinstance(head, GatewayError):
            self._counted_failure = head.anew()
            raise self._counted_failure

    async def _take_events(self, at: str, reply: Reply, is_base64: bool) -> None:
        events = ReplyEvents(self._stream.tape, self._most_held, is_base64=is_base64)

        def take(chunk: bytes) -> bool:
            """Process received bytes; return whether to stop reading."""
            nonlocal at
            self._received(len(chunk), Mode.SSE)
            try:
                for control, pieces in events.read_chunk(chunk):
                    self._cursor = control.cursor
                    at = self._take(at, control, pieces)
                    if control.is_closed:
                        return True
            except SseTooLarge as error:
                self._stop_sse()
                raise UpstreamBroken from error
            if events.is_silent and not self.is_by_hop:
                # Like an event, a comment shows that the origin is alive and has sent all events so far.  But a comment
                # of another worker shows only that this worker is alive.
                self._topic.heard(self._clock.now())
            self._is_bulk |= self._may_poll and events.is_bulk
            return self._is_bulk and not events.is_waiting

        await reply.each(take)

    def _stop_sse(self) -> None:
        """Use long-polls for a while.  They begin with a fetch.  The fetch reads up to the tail, and does not keep a
        large body in memory."""
        self._speaks_sse, self._tries_sse_again = False, True

    # -- both

    async def _fetch(self, at: str) -> StreamHead:
        """Fetch and store the bytes after `at`.  The stream's content type is then known.  For any other reply, raises
        FollowingEnded or the corresponding GatewayError."""
        head = await self._topic.access.fetch(at)
        if isinstance(head, OriginError):
            if head.status == 410:
                await self._check_trimmed()
            self._raise_for_status(head.status, at)
        if isinstance(head, GatewayError):
            self._counted_failure = head.anew()
            raise self._counted_failure
        if isinstance(head, NotShareable) and head.is_lasting:
            # If catch-up replies may not be shared, live replies may not be shared either.
            self._stop_sharing(head)
        if not isinstance(head, StreamHead):
            raise UpstreamBroken
        return head

    async def _ask(self, at: str, live: str, bounds: Bounds) -> Reply:
        source = self._topic.access.source
        self._mode = Mode.SSE if live == LIVE_SSE else Mode.LONGPOLL
        self._asked_version = self._live_version = self._stream.version
        self._topic.asked_from = at
        cursor = next_cursor(self._clock.wall(), self._cursor, self._rng) if self._cursor else None
        headers = source.headers
        if live == LIVE_SSE:
            headers = headers.copy()
            headers["Accept"] = SSE_TYPE
        asked_at = self._asked_at = self._clock.now()
        call = OriginCall(
            "GET",
            source.url(at, live, cursor),
            headers,
            bounds,
            is_live=True,
            client=source.client,
            shared=Shared(self._stream.key, source.handed),
        )
        reply = await self._upstream.send(call, self._sent)
        if reply.said is None or not reply.said.is_from_memory(asked_at):
            self._topic.access.heard()
        self.is_by_hop = self._is_of_known_record = False
        self._stated_at, self._is_stale = math.inf, False
        if (said := reply.said) is not None:
            self._stated_at, self._is_stale = said.as_of, said.is_stale
            if said.alone is not None:
                reply.close()
                if not said.alone.is_lasting:
                    raise UpstreamUnavailable
                self._stop_sharing(NotShareable(*said.alone))
            self.is_by_hop = True
            record = self._stream.own_record()
            self._is_of_known_record = record.is_known(said)
            if record.has_dropped_bytes(said):
                # The owner's bytes may have belonged to another stream.  This worker's bytes come from the owner, so
                # drop them.
                self._store.forget_bytes(self._stream)
                self._stream.lose_metadata()
            if not self._stream.learn_owner(said):
                reply.close()
                if self._store.others is not None and self._stream.is_of_dropped_record(said):
                    raise FollowingEnded(End.PURGED)
                raise TailMovedBack
        if not self.is_by_hop:
            self._metrics.upstream_head(self._mode, reply.status, self._clock.now() - asked_at, self._route)
        return reply

    def _sent(self) -> None:
        """Record that a live request is being sent.  Not called for a request refused by an open circuit breaker."""
        self._stream.contacted(self._clock.now())
        self._metrics.upstream_request(self._mode, self._route)
        self._access_log.unclaimed(self._recorded, self._mode, requests=1)

    def _received(self, size: int, mode: Mode) -> None:
        """Count received body bytes.  The bytes are for all live readers.  They are listed in the next access record of
        any of these readers."""
        if self.is_by_hop:
            return
        self._metrics.upstream_bytes(size, mode, self._route)
        self._access_log.unclaimed(self._recorded, mode, fetched_bytes=size)

    def _take(self, at: str, control: Control, pieces: Sequence[bytes]) -> str:
        """Store the bytes after `at`, and notify the topic.  Return the new position."""
        tape, end = self._stream.tape, control.next_offset
        if self._stream.ended is not None:
            raise FollowingEnded(self._stream.ended)
        tape.check(at, end, has_bytes=bool(pieces))
        if tape.is_json and len(pieces) > 1:
            pieces = [b",".join(pieces)]
        self._store.store(self._stream, at, end, pieces, now := self._clock.now())
        stated_at = min(now, self._stated_at)
        if pieces:
            self._stream.confirm(at, stated_at)
            if self._is_stale:
                self._stream.own_record().stale_stored_at = now
        tape.reached(end, is_closed=control.is_closed)
        is_confirmed = control.up_to_date or control.is_closed
        if is_confirmed and self._stream.acked.is_unplaced:
            self._stream.read_up_to_tail(self._live_version, end)
        is_told = self._topic.position == end and not pieces and not self._topic.handed_untold
        self._topic.moved(end, stated_at, is_confirmed=is_confirmed)
        if self._asked_at - stated_at > LEAST_AGE_S and not is_told:
            # Other workers read from this worker.  If their answers have begun, they would treat the time of arrival as
            # the time of these bytes and this tail.  Data that the owner has received since the request is new.
            # Another member of the fleet has another clock, so it uses the time of the request instead.
            self._topic.cut_handed()
        if is_confirmed:
            # The owner has sent all data from its memory.  The following data comes from the origin.
            self._stated_at, self._is_stale = math.inf, False
        if self.is_by_hop and not is_confirmed:
            # The owner does not follow the stream yet.  The stream therefore does not count as followed here either.
            self._stream.unfollowed(self._stream.contacted_at)
        return end

    def _judge_sharing(self, reply: Reply) -> None:
        """Stop following if the origin's live replies may not be shared.  Live requests are then relayed one by one."""
        why = self._topic.access.why_alone(reply.status, reply.headers)
        if why is not None:
            self._stop_sharing(why)
        if reply.status in (200, 204):
            self._topic.access.record_verdict(None)

    def _stop_sharing(self, why: NotShareable) -> NoReturn:
        self._topic.not_shareable = why
        self._topic.access.record_verdict(why)
        self._counted_failure = UpstreamBroken()
        raise self._counted_failure

    def _is_closed_here(self) -> bool:
        position = self._topic.position
        return position is not None and self._stream.tape.is_closed_at(position)

    async def _check_offset(self, at: str, status: int) -> None:
        """Find out whether the stream was re-created or trimmed, because the origin has refused an offset that it had
        stated earlier.

        Raises FollowingEnded if the stream has ended.
        """
        if status == 400 and at == self._stream.tape.tail:
            await self._topic.access.fetch(at)
            if self._stream.ended is not None:
                raise FollowingEnded(self._stream.ended)
        if status == 410:
            await self._check_trimmed()

    async def _check_trimmed(self) -> None:
        """Handle a 410 for an offset.

        The method sends a HEAD.  Only the status 404 or 410 shows that the stream is gone.  If the HEAD fails (5xx, 429
        or no reply), UpstreamUnavailable is raised.  After any other reply, such as a refusal with 401, the stream may
        exist, and the origin may have trimmed it beyond the offset.  FollowingEnded is then raised, so that readers at
        later offsets continue with a new `Stream`.
        """
        if not self._asked_version.same_acks_as(self._stream.version):
            return
        head = await self._topic.access.fetch(None)
        if has_failed(head):
            raise UpstreamUnavailable
        if not isinstance(head, OriginError) or head.status not in (404, 410):
            raise FollowingEnded(End.PURGED)

    def _raise_for_status(self, status: int, at: str | None = None) -> NoReturn:
        """Raise the error for an unsuccessful status.  `at` is the requested offset; None for a HEAD."""
        error = refusal(status, at, self._stream, self._asked_version)
        if isinstance(error, UpstreamBroken):
            self._topic.is_refused = 400 <= status < 500
            self._counted_failure = error
        raise error


def _suits_sse(content_type: str | None) -> bool:
    """Return whether SSE preserves the stream's bytes.  It does not preserve the difference between CR and LF in text.

    False if the type is unknown, because the events could not be decoded.
    """
    return content_type is not None and (is_json(content_type) or not is_sse_text(content_type))
