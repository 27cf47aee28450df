"""A topic: the live group of one stream.

It holds no queue for anybody.  The follower lays what it receives on the tape and moves `position`; every live reader
reads the tape from its own place and waits here when it has nothing more to read.  A slow one therefore costs the
others nothing and is, by construction, a reader of the tape.  Frames are encoded once for all who stand at the same
place.

`is_confirmed` means: the follower's live request is open and the origin has said on it that `position` is the tail.
Only then may anyone be told to be up to date.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from cachetools import LRUCache

from gateway.aio.clock import NOBODY
from gateway.aio.signal import Signal
from gateway.errors import GatewayError
from gateway.live.rounds import Rounds
from gateway.protocol.cursor import interval, next_cursor, parse_cursor, shared_cursor
from gateway.protocol.names import is_sse_text
from gateway.protocol.offsets import is_before
from gateway.protocol.sse import HEARTBEAT, Control, encode_control, encode_data
from gateway.tape.stream import End, Sighting, Stream
from gateway.tape.tape import Reading
from gateway.upstream.flight import Head, NotShareable
from gateway.upstream.source import Source

_log = logging.getLogger("gateway.live")

Look = Callable[[str | None], Awaitable[Head]]
"""A fresh catch-up look at an offset, or at the metadata alone; what it brings is on the tape when it returns."""

_FRAME_BYTES: Final = 1 << 20
"""Frames kept for the next who stand at the same place."""
_EVENT_BYTES: Final = 1 << 18
"""About as much of a replay goes into one data event, where the known offsets allow it."""
_FRAME_MOST_BYTES: Final = 2 * _EVENT_BYTES
"""A data event that is larger when encoded is sent in parts: base64 adds a third, and text of line ends alone grows to
six times its size."""
BEATS: Final = 16
"""One timer of a topic beats so often in the time of a heartbeat, so that none of its readers needs one."""
_CURSOR_REACH: Final = 1_000
"""A client's cursor that is further ahead than this many intervals does not lift everybody's."""
_HIGH_REACH: Final = 1 << 40
"""Nor does it lift those of others who are beyond that, if it is further ahead than this: more than events can bring it
in all the time there is, and far below what counts as a cursor."""


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body (RFC 9112 §7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


HEARTBEAT_CHUNK: Final = chunk(HEARTBEAT)
HEARTBEAT_BYTES: Final = len(HEARTBEAT)


class LiveReader(Protocol):
    """A live reader that stands on a connection and not in a task."""

    def pump(self) -> None:
        """The topic has changed: read on."""

    def gone(self) -> None:
        """Its client is no longer there."""

    def account(self, sent: object) -> None:
        """Do the books on what was sent while the topic's readers were pumped."""

    def beat(self) -> None:
        """Time for a sign of life."""

    def apart(self) -> Iterable[LiveReader]:
        """Itself, and those who stood on it with others, each alone from here on."""

    def leave(self, delay_s: float, within_s: float) -> None:
        """The gateway is leaving: end in order after about `delay_s`, and in no case later than `within_s`."""


Fill = Callable[["Topic", str], Awaitable[bool]]
"""Has what lies after an offset of the topic fetched, where it is not for the follower to bring; whether that changed
anything."""


@dataclass(frozen=True, slots=True)
class OriginAccess:
    """How a topic reaches its origin: as its first reader would."""

    source: Source
    look: Look
    fill: Fill


class Terms(NamedTuple):
    """A route's times for live reads, in seconds."""

    lifetime_s: float
    heartbeat_s: float
    linger_s: float
    heard_s: float = 0.0
    """How long after the live request was last heard from its word on the tail may be repeated to reads that are not
    live; 0 where these ask the origin."""


class Large:
    """One data event, encoded, that is too large to be written at once: sent in parts, and kept while anybody is being
    sent it.  Offsets inside it are not known, so it cannot be cut into events."""

    __slots__ = ("__weakref__", "data", "end")

    def __init__(self, data: bytes, end: str) -> None:
        self.data = data
        self.end = end


@dataclass(slots=True)
class Step:
    """What a reader at one place is to be sent next; without data there is nothing to send now."""

    data: bytes
    """Whole frames, as one chunk of a chunked body."""
    size: int
    """Bytes of the frames themselves."""
    end: str
    is_told: bool
    """Whether the reader has been told that it is up to date here."""
    cursor: int
    is_last: bool = False
    """Whether the response ends with it."""
    is_all: bool = False
    """Whether there is nothing behind it to be sent now."""
    needs_fill: bool = False
    large: Large | None = None
    """In place of data: to be sent in parts, and then its control event."""


def _let_go(reader: LiveReader) -> None:
    """One client's trouble is not the others'."""
    _log.exception("a live reader failed")
    try:
        reader.gone()
    except Exception:
        _log.exception("a live reader could not be let go")


class Topic:
    """Live state of one stream.  Owner: the `Live` registry; the follower moves it."""

    def __init__(
        self, stream: Stream, access: OriginAccess, terms: Terms, wall: Callable[[], float], rounds: Rounds
    ) -> None:
        self.stream = stream
        self._rounds = rounds
        self.access = access
        self.terms = terms
        self._wall = wall
        self.is_refused = False
        """Whether the origin has refused the source's headers."""
        self.foreign: NotShareable | None = None
        """Why the origin's live answers may not be shared, once that is known."""
        self.readers = 0
        self.revalidated_at = -math.inf
        """When the live request was last begun anew for a write of unknown outcome."""
        self.position: str | None = None
        self.is_confirmed = False
        self.is_hot = False
        """Whether it is followed for the reads that ask for its tail, be there live readers or not."""
        self.connects_until = -math.inf
        """Until when a read that asks for the tail may wait for the live request to be confirmed."""
        self.ended: End | None = None
        self.trouble: GatewayError | None = None
        """Why the follower is not connected, where it failed."""
        self.changed = Signal()
        self.beats = 0
        """How many beats have gone by: time enough for readers to know how long they have been silent."""
        self.readers_now: set[LiveReader] = set()
        """Readers that are pumped when the topic changes; all others wait for `changed`."""
        self.crowded = 0
        """How many clients these stand for beside one each."""
        self._is_flushing = False
        self.steps: dict[str, Step] = {}
        """While readers are pumped: what those at a place are sent, made once for all who stand there."""
        self.is_pumping = False
        self._answers: dict[object, object] = {}
        self._answers_of: tuple[object, ...] = ()
        self.answers_cursor = 0
        """The cursor of shared answers, but for those to clients that showed as high a one."""
        self.to_account: list[tuple[LiveReader, object]] = []
        """Those who were answered while readers were pumped: everybody is answered before any books are done."""
        self._cursor_floor = 0
        self._high_floor = 0
        """The same among clients whose cursors are far ahead: each answer takes those who read on a step further."""
        self._larges: WeakValueDictionary[tuple[str, str], Large] = WeakValueDictionary()
        self._frames: LRUCache[tuple[str, str, bool, bool, str | None], bytes] = LRUCache(_FRAME_BYTES, getsizeof=len)

    @property
    def frame_bytes(self) -> int:
        """Bytes of frames that are kept for the next reader at the same place."""
        return int(self._frames.currsize)

    # -- the follower's side

    def moved(self, position: str, now: float, *, is_confirmed: bool) -> None:
        """The follower stands at `position`; everyone who waits looks again."""
        if self.position is not None and position != self.position and self.readers_now:
            self._rounds.came()
        self.position = position
        self.is_confirmed = is_confirmed
        self.stream.followed()
        self.trouble = None
        self.heard(now)
        self._fire()

    def heard(self, now: float) -> None:
        """The live request was heard from: what it said of the tail still holds."""
        if self.is_confirmed and self.position is not None and self.terms.heard_s:
            self.stream.saw_tail(Sighting(self.position, now, now + self.terms.heard_s))

    def named(self, tail: str, asked_at: float) -> None:
        """The origin has named the tail to a request that was sent at `asked_at`, beside the live one."""
        if self.position is not None and self.stream.tape.resolve(self.position) == tail:
            self.heard(asked_at)

    def lost(self, now: float, trouble: GatewayError | None) -> None:
        """The live request is closed, as planned or by `trouble`: nothing is known of the tail from here on."""
        if self.is_confirmed:
            self.stream.lost_tail()
        self.is_confirmed = False
        self.stream.unfollowed(now)
        self.trouble = trouble
        if trouble is not None:
            self._fire()

    def end(self, why: End) -> None:
        """The stream is no more: every reader is sent off at once."""
        self.ended = why
        self.is_confirmed = False
        self.stream.unfollowed(self.stream.contacted_at)
        self.stream.lost_tail()
        self._fire()

    def _fire(self) -> None:
        self.changed.fire()
        if self.readers_now and not self._is_flushing:
            # Events that arrive in one turn of the loop go out as one write.
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush, context=NOBODY)

    def _flush(self) -> None:
        self._is_flushing = False
        # Nothing changes while this lasts: no reader is given a chance to.
        self.steps = {}
        self._begin_answers(())
        self.is_pumping = True
        readers = tuple(self.readers_now)
        clients = len(readers) + self.crowded
        try:
            for reader in readers:
                try:
                    reader.pump()
                except Exception:
                    _let_go(reader)
        finally:
            self.steps = {}
            self.is_pumping = False
            self._account_all()
            self._rounds.handed(clients)

    def _account_all(self) -> None:
        answered, self.to_account = self.to_account, []
        for reader, sent in answered:
            try:
                reader.account(sent)
            except Exception:
                _let_go(reader)

    def shared_answers(self) -> dict[object, object]:
        """Answers to long-polls, by what shapes them: good while readers are pumped, and at other times for as long as
        nothing changes of which they tell, their Date included."""
        if not self.is_pumping:
            stream = self.stream
            of = (stream.tail_turns, stream.forgotten, stream.stale_marks, int(self._wall()))
            if of != self._answers_of:
                self._begin_answers(of)
        return self._answers

    def _begin_answers(self, of: tuple[object, ...]) -> None:
        self._answers, self._answers_of = {}, of
        self.answers_cursor = self.shared_cursor()

    def beat(self) -> None:
        """A part of the time of a heartbeat has gone by."""
        self.beats += 1
        for reader in tuple(self.readers_now):
            try:
                reader.beat()
            except Exception:
                _let_go(reader)

    def wake(self) -> None:
        """Have every live reader look again."""
        self._fire()

    # -- the readers' side

    def is_current(self, at: str) -> bool:
        """Whether a reader that has everything before `at` may be told that it is up to date."""
        tape = self.stream.tape
        return (
            self.is_confirmed
            and self.position is not None
            and tape.resolve(self.position) == at
            # A look or a write may have named a tail that the follower has not come to.
            and (tape.tail is None or not is_before(at, tape.resolve(tape.tail)))
            and self.stream.holds_acknowledged(at)
        )

    def greet(self, cursor: str | None, wall: float) -> None:
        """Take note of a client's cursor, so that shared frames carry a greater one."""
        value = parse_cursor(cursor)
        if value is None:
            return
        ahead = value - interval(wall)
        if ahead <= _CURSOR_REACH:
            self._cursor_floor = max(self._cursor_floor, value)
        elif ahead <= _HIGH_REACH:
            self._high_floor = max(self._high_floor, value)

    def is_far(self, cursor: int) -> bool:
        """Whether a client that showed this cursor goes on with those who are far ahead."""
        return interval(self._wall()) + _CURSOR_REACH < cursor <= self._high_floor

    def cursor_for(self, client: str | None, wall: float, rng: random.Random) -> str:
        """The cursor of the next frame for a client that showed `client`: the shared one unless its own is higher."""
        shared = shared_cursor(wall, self._cursor_floor) if self._cursor_floor else interval(wall)
        own = parse_cursor(client)
        if own is None or own < shared:
            return str(shared)
        return str(self._high_floor + 1) if self.is_far(own) else next_cursor(wall, client, rng)

    def shared_cursor(self) -> int:
        """The cursor that shared frames carry now."""
        wall = self._wall()
        return shared_cursor(wall, self._cursor_floor) if self._cursor_floor else interval(wall)

    def step(self, at: str, is_told: bool, least_cursor: int) -> Step:
        """What a reader at `at` is to be sent next; `least_cursor` is the least that its frames may carry.

        Data that is sent to all is left in `steps`, while readers are pumped.
        """
        shared = self.shared_cursor()
        cursor = max(shared, least_cursor)
        tape = self.stream.tape
        reading = tape.read(at, _EVENT_BYTES)
        end = reading.end
        is_closed = tape.is_closed_at(end)
        is_current = self.is_current(end)
        if reading.size:
            frame = self._frame(at, reading, is_current=is_current, is_closed=is_closed, cursor=str(cursor))
            if isinstance(frame, Large):
                step = Step(b"", 0, end, is_told, cursor, large=frame)
            else:
                step = Step(chunk(frame), len(frame), end, is_current, cursor, is_closed, is_current and not is_closed)
            if self.is_pumping and cursor == shared:
                # A large event is not sent from here, only kept: those who take all of it at once hold on to nothing.
                self.steps[at] = step
            return step
        if is_closed or (is_current and not is_told):
            frame = self.control(end, is_current=True, is_closed=is_closed, cursor=str(cursor))
            return Step(chunk(frame), len(frame), end, is_current, cursor, is_closed, is_current and not is_closed)
        return Step(b"", 0, end, is_told, cursor, needs_fill=self.is_missing(end))

    def is_missing(self, at: str) -> bool:
        """Whether what lies after `at` is to be fetched: it is neither the tail nor for the follower to bring."""
        tape = self.stream.tape
        if self.position is not None and tape.resolve(self.position) == at:
            return False
        return not tape.has_seen(at) or (tape.tail is not None and is_before(at, tape.tail))

    def _frame(self, start: str, reading: Reading, *, is_current: bool, is_closed: bool, cursor: str) -> bytes | Large:
        """The data event of a reading with the control event that must follow it (section 5.8), or what is too large to
        be written at once."""
        key = (start, reading.end, is_current, is_closed, cursor)
        frame = self._frames.get(key)
        if frame is not None:
            return frame
        large = self._larges.get(key[:2])
        if large is not None:
            return large
        data = self._data_event(reading)
        if reading.size > _EVENT_BYTES or len(data) > _FRAME_MOST_BYTES:
            large = self._larges[key[:2]] = Large(data, reading.end)
            return large
        control = self.control(reading.end, is_current=is_current, is_closed=is_closed, cursor=cursor)
        frame = self._frames[key] = data + control
        return frame

    def _data_event(self, reading: Reading) -> bytes:
        stream = self.stream
        pieces = [b"[", *reading.pieces, b"]"] if stream.tape.is_json else reading.pieces
        return encode_data(pieces, base64=not is_sse_text(stream.content_type))

    def last_step(self, large: Large, least_cursor: int) -> Step:
        """The control event behind a large event that has been sent: what is true now, not when it was begun."""
        end, cursor = large.end, max(self.shared_cursor(), least_cursor)
        is_current, is_closed = self.is_current(end), self.stream.tape.is_closed_at(end)
        frame = self.control(end, is_current=is_current, is_closed=is_closed, cursor=str(cursor))
        return Step(chunk(frame), len(frame), end, is_current, cursor, is_closed)

    @staticmethod
    def control(at: str, *, is_current: bool, is_closed: bool, cursor: str) -> bytes:
        """A control event alone."""
        return encode_control(Control(at, None if is_closed else cursor, is_current or is_closed, is_closed))
