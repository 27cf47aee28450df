"""The one session by which a stream is read live at its origin.

It moves the stream's topic.  It goes on through short failures from where it was, with growing pauses; when the origin
stays lost, or refuses, the topic's readers are given an error.  A session is never ended in order: to S2's clients that
means that the read is finished, and they do not come back.

Before a session begins the stream may have been deleted and created again.  So each session is asked for one record
more, the last one before the topic's position, which shows whether it is the same stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.engine.classifier import PERSONAL
from gateway.engine.s2.fetch import S2Origin
from gateway.engine.s2.stream import S2Stream
from gateway.engine.s2.topic import S2Topic
from gateway.errors import (
    GatewayError,
    TailMovedBack,
    UpstreamBroken,
    UpstreamCongested,
    UpstreamUnavailable,
    UpstreamUnreachable,
    bare,
)
from gateway.limits.queues import Askers
from gateway.live.table import pause_before_reconnect
from gateway.protocol.mode import Mode
from gateway.s2 import protobuf
from gateway.s2.errors import S2ErrorCode, error_body
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.s2.session import BadFrame, FrameReader, Message, Terminal
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.reply import Reply
from gateway.upstream.s2_client import AtTail, S2Refused, ended_with

PAUSES_S: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Pauses before the attempts to go on after a failure, without their jitter; after the last the stream is lost.  All of
them together are shorter than the 20 s after which S2's clients give a silent session up."""

LEAST_S: Final = 1.0
"""A session that has not lasted for so long is short, and only the first of several in a row is followed by the next at
once: an origin may end each as soon as it has answered, or advise to go on in another."""


LEAVING_S: Final = 15.0
"""How long an origin may do nothing but advise to go on in another session, or be about to leave, before that is a
failure."""


def refusal(code: S2ErrorCode, message: str) -> S2Refused:
    """An error of the gateway's own in S2's form."""
    return ended_with(code.status, error_body(code, message))


LOST: Final = refusal(S2ErrorCode.UNAVAILABLE, "the origin cannot be reached")
REFUSED: Final = refusal(S2ErrorCode.UNAVAILABLE, "the origin has refused to go on")
REPLACED: Final = refusal(S2ErrorCode.UNAVAILABLE, "the stream has been deleted or created again")


class S2Follower:
    """Follows one stream, for a client of the net `client`, until it is cancelled, or until the topic is lost.  The
    stream judges what the origin sends."""

    def __init__(
        self,
        topic: S2Topic,
        stream: S2Stream,
        client: str,
        origin: S2Origin,
        surroundings: Surroundings,
    ) -> None:
        clock = surroundings.clock
        self._topic = topic
        self._stream = stream
        self._source = stream.source
        self._client = client
        self._origin = origin
        self._clock = clock
        self._metrics = surroundings.metrics
        self._rng = surroundings.rng
        self._failures = 0
        """Attempts in a row that have brought nothing."""
        self._short = 0
        """Attempts in a row that were short."""
        self._heard_at = clock.now()
        """When the origin last sent something."""
        self._goes_on = False
        """Whether a session was asked for before this attempt."""
        self._overlap: int | None = None
        """The number of the record that is asked for again, until it has come."""

    async def run(self) -> None:
        """Follow the stream.  Returns once the topic is lost."""
        topic = self._topic
        while topic.error is None:
            is_planned, failure, began_at = False, None, self._clock.now()
            try:
                is_planned = await self._session()
            except TailMovedBack:
                topic.lost(REPLACED)
                return
            except GatewayError as error:
                failure = bare(error)
                if not isinstance(error, UpstreamUnavailable | UpstreamCongested):
                    self._metrics.upstream_failure(Mode.SSE, type(error).__name__, self._source.route)
            # A server that leaves is soon gone, or was replaced.
            is_planned = is_planned and self._clock.now() - self._heard_at < LEAVING_S
            topic.disconnected()
            if self._failures == len(PAUSES_S):
                topic.lost(LOST)
                return
            delay_s = PAUSES_S[self._failures] * self._rng.uniform(0.8, 1.2)
            left_s = began_at + LEAST_S - self._clock.now()
            self._short = self._short + 1 if left_s > 0 else 0
            if self._short > 1:
                delay_s = max(delay_s, left_s)
            self._failures += not is_planned
            self._metrics.reconnect(self._source.route, is_planned=is_planned)
            if delay_s > 0 and await pause_before_reconnect(self._clock, self._rng, failure, delay_s):
                self._failures = 0

    async def _session(self) -> bool:
        """Read one session to its end.  Returns whether the origin has advised to go on in another, or is about to
        leave: the next one is then on another connection.

        Raises a GatewayError if it is lost.
        """
        topic = self._topic
        self._overlap = topic.position - 1 if topic.position else None
        start = topic.position if self._overlap is None else self._overlap
        if not self._goes_on:
            # Is it still the stream of which records are held?
            refused = await self._stream.verify(topic.position, Askers(self._client))
            if refused is not None:
                self._refuse(refused)
                return False
        self._goes_on = True
        opened = await self._origin.session(self._source, start, self._client)
        if isinstance(opened, AtTail):
            self._stream.sees(opened.tail, topic.position)
            raise UpstreamBroken("Origin refused to follow a stream at its tail")
        if isinstance(opened, S2Refused):
            if opened.is_draining:
                return True
            self._refuse(opened)
            return False
        async with opened as reply:
            return await self._read(reply)

    async def _read(self, reply: Reply) -> bool:
        frames = FrameReader()
        async for chunk in reply.chunks():
            self._origin.received(self._source, Mode.SSE, len(chunk))
            try:
                for frame in frames.feed(chunk):
                    if isinstance(frame, Terminal):
                        error = ended_with(frame.status, frame.body)
                        if error.is_draining:
                            reply.retire()
                            return True
                        self._refuse(error)
                        return False
                    self._take(frame)
                    if frame.is_reconnect_advised:
                        reply.retire()
                        return True
            except (BadFrame, protobuf.BadProtobuf) as error:
                raise UpstreamBroken from error
        # A session that waits for ever has no end in order.
        raise UpstreamUnreachable

    def _take(self, frame: Message) -> None:
        batch = protobuf.decode_read_batch(frame.body)
        if batch.records and self._overlap is not None:
            batch = self._without_overlap(batch, self._overlap)
            self._overlap = None
        if batch.records:
            self._stream.store_batch(batch)
            self._topic.publish(batch.records, batch.tail, self._clock.now())
        elif batch.tail is not None:
            self._stream.sees(batch.tail, self._topic.position)
            self._topic.heard(batch.tail, self._clock.now())
        self._failures = 0
        self._heard_at = self._clock.now()

    def _without_overlap(self, batch: ReadBatch, overlap: int) -> ReadBatch:
        """The batch without the record that came before.  Raises TailMovedBack if it is of another stream."""
        first = batch.records[0]
        if first.seq_num > overlap:
            # It has been trimmed.
            return batch
        self._stream.compare(first, StreamPosition(overlap + 1, self._topic.last_timestamp))
        return replace(batch, records=batch.records[1:])

    def _refuse(self, error: S2Refused) -> None:
        """The origin has ended the session with an error.  An error of its own may pass."""
        if error.status >= 500 or error.status in (408, 429):
            raise UpstreamUnreachable
        if error.status < 400:
            raise UpstreamBroken("Origin ended a session with a status that is no error")
        self._stream.refused(error)
        # The credentials may be those of another reader: each client comes again with its own.
        self._topic.lost(error if error.status not in PERSONAL else REFUSED)
