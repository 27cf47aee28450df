"""Decides the next step of a read: answer from memory, ask the origin, or wait.

`decide` is pure.  Each kind of read of a Durable Stream is a loop: take the bytes in memory, call the function, carry
out the step, record the result in the read's progress.  `gateway.tape.decide_records` is the same for S2 streams.

This module sees only the effects of writes.  An acknowledged write sets the known tail.  A write that may have been
executed makes a revalidation necessary.  `gateway.engine.pending_writes` describes the effect of a pending write.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from gateway.protocol.names import NOW, START, is_before
from gateway.protocol.stream_version import Version
from gateway.tape.origin_statements import LEAST_AGE_S
from gateway.tape.stream import Stream


class Question(StrEnum):
    """A question to the origin."""

    LIFETIME = "lifetime"
    """When does the stream expire?"""
    FACTS = "facts"
    """Does the stream exist, and with which content type?"""
    EXISTENCE = "existence"
    """Is the known stream still at the path?"""
    CONFIRMATION = "confirmation"
    """Does the origin still have the bytes in memory?"""
    TAIL = "tail"
    """Where does the stream end now?"""
    BYTES = "bytes"
    """Which bytes follow the offset?  None of them are in memory."""


class Awaited(StrEnum):
    """The event that a read waits for.  The follower is the gateway's own live request for the stream."""

    CONNECTION = "connection"
    """The connecting follower states the tail."""
    FOLLOWER = "follower"
    """The follower receives the missing bytes."""
    CHANGE = "change"
    """The stream changes: a live read waits at the tail."""


class Send(NamedTuple):
    """Answer with the bytes taken so far, which end at `end`."""

    end: str
    up_to_date: bool = False
    is_closed: bool = False
    stale_s: float | None = None
    """For a stale answer, the seconds since its tail was last fresh (RFC 5861 §3); otherwise None."""


class Ask(NamedTuple):
    """Ask the origin."""

    question: Question
    at: str
    """The offset that the question is about."""


class Wait(NamedTuple):
    """Wait for an event.  A live read joins the stream's topic, its group of live readers."""

    awaited: Awaited
    at: str


class Gone(NamedTuple):
    """End the read without bytes from memory."""


Decision = Send | Ask | Wait | Gone
GONE: Final = Gone()


class FollowedTopic(Protocol):
    """The view of a stream's topic that `decide` needs."""

    position: str | None
    """The follower's offset; None if it is not known."""

    def is_current(self, at: str) -> bool:
        """Return whether an answer that ends at `at` may be marked up to date."""

    def is_missing(self, at: str) -> bool:
        """Return whether the bytes after `at` must be fetched."""


@dataclass(slots=True, eq=False)
class Progress:
    """The state of one read.  Owner: the loop of the read."""

    start: str
    """The offset in the client's request, or a sentinel (`-1` or `now`)."""
    at: str
    """The offset that the read has reached."""
    version: Version
    """The stream's version when the read began."""
    trust_s: float
    """The seconds for which the stream is trusted (`Stream.is_trusted`) after a contact with the origin."""
    max_age_s: float | None = None
    """The client's limit for the age of bytes from memory; None if the client sets no limit."""
    is_live: bool = False
    has_bytes: bool = False
    """Whether the read has taken any bytes."""
    has_held: bool = False
    """Whether some of these bytes were in memory before the read began."""
    follower: FollowedTopic | None = None
    """The stream's topic, if the read is live and there is one."""
    has_joined: bool = False
    """Whether the read is live and has joined the topic."""
    is_lifetime_asked: bool = False
    """Whether this read has asked the origin for the lifetime, or need not ask."""
    is_there: bool | None = None
    """The origin's answer to this read's EXISTENCE question; None if the read has not asked it."""
    is_confirmed: bool = False
    """Whether this read has asked the origin to confirm the bytes in memory."""
    may_connect: bool = False
    """Whether the read may wait until a follower has stated the tail.  On routes whose live replies can be shared, the
    read may wait once, and once more each time its offset has moved."""
    has_waited: bool = False
    """Whether the read has waited for the follower since it last advanced."""
    failed_at: float | None = None
    """The time at which the origin failed to answer the read (Unix seconds); None if the origin has not failed."""


def decide(stream: Stream, read: Progress, now: float) -> Decision:
    """Return the next step of a read at `now` (monotonic seconds).  Changes nothing and never raises.

    The first row that applies decides.

    | state                                                        | catch-up, HEAD       | live                     |
    |--------------------------------------------------------------|----------------------|--------------------------|
    | The stream has ended.                                        | Gone                 | Gone                     |
    | The stream's bytes were dropped after the read took some.    | Gone                 |                          |
    | The origin has failed, and held bytes may be sent.           | Send, not up to date | Send, not up to date     |
    | The origin has failed.                                       | Gone                 | Gone                     |
    | The lifetime is lost (`Expiry.is_lost`).                     | Ask LIFETIME         |                          |
    | The content type is unknown.                                 | (see below)          | Ask FACTS                |
    | The stream is not trusted.                                   | (see below)          | Ask EXISTENCE            |
    | The read has `offset=now`, and the tail is known.            | Send the tail        | Wait there               |
    | The read has `offset=now`.                                   | Ask TAIL             | Ask TAIL                 |
    | The read begins with bytes that need a confirmation.         | Ask CONFIRMATION     | Ask CONFIRMATION         |
    | The origin has not named the offset where the read starts.   |                      | Ask BYTES                |
    | The read begins with bytes, and the lifetime is unknown.     | (see below)          | Ask LIFETIME             |
    | The read has not joined the topic.                           |                      | Wait for a CHANGE        |
    | The read has reached the end of a closed stream.             | Send                 | Send                     |
    | The read has reached the tail, and the tail is known.        | Send, up to date     | with bytes: Send         |
    | The read has bytes, and more are known to follow.            | Send                 | Send                     |
    | A connecting follower may soon state the tail.               | Wait for CONNECTION  |                          |
    | A follower will receive the missing bytes.                   | Wait for FOLLOWER    | Wait for a CHANGE        |
    | A stale tail may be sent while the origin is asked for it.   | Send, stale          |                          |
    | The read has reached the furthest known offset.              | Ask TAIL             | with bytes: Ask TAIL     |
    | Bytes are missing.                                           | Ask BYTES            | Ask BYTES                |

    A catch-up read gets bytes from memory only if the lifetime is known and the stream is trusted
    (`Stream.is_trusted`).  If one of these conditions is not met, a row with Send first asks LIFETIME or EXISTENCE.  If
    the conditions are not met even after these questions, or if the content type is unknown, this row is skipped.
    """
    if stream.ended is not None or (is_another(stream, read) and not read.is_live):
        return GONE
    if read.failed_at is not None:
        return _after_failure(stream, read, now, read.failed_at)
    if read.is_live:
        return _poll(stream, read, now) if read.has_joined else _begin_live(stream, read, now)
    expiry = stream.expiry
    if expiry.is_lost and not read.is_lifetime_asked and expiry.is_wanted(now):
        # The lifetime was lost because a write may have replaced the stream.
        return Ask(Question.LIFETIME, read.at)
    return _catch_up(stream, read, now)


def _after_failure(stream: Stream, read: Progress, now: float, failed_at: float) -> Decision:
    """If held bytes may be sent, send them without the mark Stream-Up-To-Date.  Otherwise end the read."""
    may_show = read.has_bytes and outlasts_failure(stream, read, now, failed_at)
    # If more bytes follow in memory, the client gets them with its next request.  If no more bytes follow in memory,
    # the answer must include all acknowledged writes.
    is_whole = stream.tape.knows_after(read.at) or not stream.may_lack_acknowledged(read.at)
    return Send(read.at) if may_show and is_whole else GONE


def _catch_up(stream: Stream, read: Progress, now: float) -> Decision:
    tape, at = stream.tape, read.at
    if read.start == NOW:
        if (tail := known_tail(stream, read.max_age_s, now)) is not None:
            if (step := _alone(stream, read, now, Send(tail, True, tape.is_closed_at(tail)))) is not None:
                return step
        elif read.may_connect and tape.tail is not None:
            return Wait(Awaited.CONNECTION, at)
        return Ask(Question.TAIL, NOW)
    if (
        read.has_held
        and not read.is_confirmed
        and stream.is_confirmation_due(read.start, now, read.trust_s, read.max_age_s)
    ):
        return Ask(Question.CONFIRMATION, read.start)
    if may_end(stream, read):
        is_closed = tape.is_closed_at(at)
        if (step := _alone(stream, read, now, Send(at, is_closed, is_closed))) is not None:
            return step
    is_at_tail = is_furthest(stream, at)
    if is_at_tail:
        tail = known_tail(stream, read.max_age_s, now)
        if tail == at:
            if (step := _alone(stream, read, now, Send(at, True, tape.is_closed_at(at)))) is not None:
                return step
        elif tail is None and read.may_connect:
            return Wait(Awaited.CONNECTION, at)
    if stream.has_topic and not read.has_waited and not stream.needs_revalidation:
        return Wait(Awaited.FOLLOWER, at)
    if (stale_s := _stale_s(stream, read, now)) is not None:
        return Send(at, stale_s=stale_s)
    return Ask(Question.TAIL if is_at_tail else Question.BYTES, at)


def _alone(stream: Stream, read: Progress, now: float, send: Send) -> Decision | None:
    """Return `send`, or the question that must be asked first; None if an answer from memory is not allowed."""
    if stream.content_type is None:
        # Only replies to writes have stated the tail so far.  These replies do not state the content type, and an
        # answer needs a content type.
        return None
    expiry = stream.expiry
    if stream.may_answer_alone(now, read.trust_s) or (read.is_there and expiry.lifetime is not None):
        return send
    if not read.is_lifetime_asked and expiry.is_wanted(now):
        return Ask(Question.LIFETIME, read.at)
    # A read at the tail is cheap for the origin, renews a sliding TTL, and shows whether the stream was replaced.
    return Ask(Question.EXISTENCE, stream.tape.tail or read.at) if read.is_there is None else None


def _begin_live(stream: Stream, read: Progress, now: float) -> Decision:
    tape, start = stream.tape, read.start
    if stream.content_type is None and read.is_there is None:
        return Ask(Question.FACTS, start)
    if read.is_there is None and not stream.is_trusted(now, read.trust_s):
        return Ask(Question.EXISTENCE, tape.tail or start)
    if (
        not read.is_confirmed
        and tape.knows_after(start)
        and stream.is_confirmation_due(start, now, read.trust_s, read.max_age_s)
    ):
        return Ask(Question.CONFIRMATION, start)
    if start == NOW:
        if (follower := read.follower) is not None and follower.position is not None:
            at = tape.resolve(follower.position)
            if follower.is_current(at):
                return Wait(Awaited.CHANGE, at)
        return Ask(Question.TAIL, NOW)
    if start != START and not tape.has_seen(start):
        # The offset may be before the tail, beyond it, or invalid.
        return Ask(Question.BYTES, start)
    if not read.is_lifetime_asked and tape.knows_after(start) and stream.expiry.is_wanted(now):
        return Ask(Question.LIFETIME, start)
    return Wait(Awaited.CHANGE, start)


def _poll(stream: Stream, read: Progress, now: float) -> Decision:
    tape, at, follower = stream.tape, read.at, read.follower
    is_closed = tape.is_closed_at(at)
    if not read.has_bytes:
        if is_closed:
            return Send(at, True, True)
        is_missing = follower is None or follower.is_missing(at)
        return Ask(Question.BYTES, at) if is_missing else Wait(Awaited.CHANGE, at)
    if is_closed or (follower is not None and follower.is_current(at)) or stream.tail_until(at) > now:
        return Send(at, True, is_closed)
    return Send(at) if tape.knows_after(at) or tape.is_short(at) else Ask(Question.TAIL, at)


# -- conditions in the table


def is_another(stream: Stream, read: Progress) -> bool:
    """Return whether the stream may have been replaced since the read began.  The bytes that the read has taken, and
    later bytes, may then belong to different streams.  A purge alone does not affect a read without bytes."""
    seen = read.version
    if seen.same_incarnation_as(stream.version):
        return False
    return read.at != read.start or seen.may_have_ended_by(stream.version)


def outlasts_failure(stream: Stream, read: Progress, now: float, wall: float) -> bool:
    """Return whether a read may get held bytes although the origin fails.

    `now` (monotonic seconds) and `wall` (Unix seconds) are the time of the failure.
    """
    if not stream.outlasts_failure(now, wall):
        return False
    if not stream.caching.must_revalidate:
        return True
    return not stream.is_confirmation_due(read.start, now, read.trust_s, read.max_age_s)


def known_tail(stream: Stream, max_age_s: float | None, now: float) -> str | None:
    """Return the tail if an answer may state the tail without a request to the origin, else None.  Does not check the
    lifetime."""
    tape, seen = stream.tape, stream.sighting
    if tape.closed_at is not None:
        return tape.closed_at
    if seen is None or tape.tail is None:
        return None
    tail = tape.resolve(tape.tail)
    if stream.tail_until(tail) <= now:
        return None
    # The client may require a more recent statement of the tail.
    oldest = -math.inf if max_age_s is None else now - max(LEAST_AGE_S, max_age_s)
    return tail if seen.seen_at >= oldest else None


def is_furthest(stream: Stream, at: str) -> bool:
    """Return whether `at` is the furthest known offset, and no more bytes are known to follow."""
    tape = stream.tape
    return tape.tail is not None and tape.resolve(tape.tail) == at and not tape.is_short(at)


def is_named_tail(stream: Stream, at: str, tail: str, *, is_asked: bool) -> bool:
    """Return whether the follower's offset `at` is the tail, after the origin has stated `tail`.

    `is_asked` is true if the origin has stated `tail` to this read, and false if an acknowledgement of a write has
    stated it.  An acknowledgement may arrive late and state a tail before the known tail.  If `is_asked` is false, `at`
    must therefore also be the furthest known offset.
    """
    return at == tail and (is_asked or is_furthest(stream, at))


def awaited_tail(stream: Stream, at: str, now: float) -> str | None:
    """Return the tail that an acknowledged write has named, if it is after `at` and the follower will soon receive the
    bytes up to this tail.  None if there is no such tail, or if the follower is not trusted."""
    seen = stream.sighting
    if seen is None or not stream.is_followed or seen.fresh_until <= now or stream.needs_revalidation:
        return None
    acked = stream.acked
    is_own = acked.tail is not None and acked.query == stream.key.query
    return acked.tail if is_own and is_before(at, acked.tail or START) else None


def may_end(stream: Stream, read: Progress) -> bool:
    """Return whether an answer may end at the read's offset, even if the tail is unknown."""
    tape, at = stream.tape, read.at
    if tape.is_closed_at(at):
        return True
    # The next bytes did not fit into the answer, or the origin itself ends a reply here.
    return read.has_bytes and (tape.knows_after(at) or tape.is_short(at))


def _stale_s(stream: Stream, read: Progress, now: float) -> float | None:
    seen, at = stream.sighting, read.at
    if seen is None or not read.has_bytes or seen.stale_until <= now or read.max_age_s is not None:
        return None
    may_repeat = stream.tape.resolve(seen.at) == at and stream.holds_acknowledged(at)
    return now - seen.fresh_until if may_repeat and stream.may_answer_alone(now, read.trust_s) else None
