"""What became of one stream: its lives at the origin, and how much of that the writers have been told.

The origin's own objects hold the bytes of every life, also of those that are over.  What happened is settled there;
what a gateway may be held to is what it has acknowledged.  A write whose answer was lost is therefore allowed to show
and not to show, until a later answer settles it:

    a life is *known* from the first write to it that was acknowledged: from then on a 404 is wrong
    a life is *buried* by an acknowledged DELETE, a DELETE that found nothing, or the acknowledged PUT of another life:
        no request that begins after that may be shown anything of it
    a party's *floor* is the latest life that it has been shown: it is not to be led back behind that

`tick` orders what happened; `Moment` is a snapshot that a client takes before its request is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.origin.positions import ZERO, Position, parse_token
from gateway.origin.store import Accepted, AppendParams, CreateParams, Store
from gateway.origin.streams import Stream
from tests.invariant.log import Incarnation

_EVENTS: Final = 24
_KEPT_LIVES: Final = 8
_SLACK_S: Final = 10.0
"""How long (system seconds) an absolute end may be past before it counts: half a real one, for a loop that is late."""


@dataclass(eq=False)
class Life(Incarnation):
    """One life of a stream."""

    number: int = 0
    known_at: int | None = None
    """When a write to it was acknowledged first."""
    buried_at: float | None = None
    """The loop's time (seconds) when it became known to be dead."""
    has_only_expired: bool = False
    """Whether nothing but the time says that it is over."""

    def __repr__(self) -> str:
        state = "alive" if self.died_at is None else "dead" if self.known_dead_at is None else "known to be dead"
        closed = ", closed" if self.is_closed else ""
        return f"life {self.number} ({state}, tail {self.tail.token}, acknowledged {self.acked.token}{closed})"


@dataclass(frozen=True)
class Moment:
    """The state of things when a request was sent."""

    tick: int
    at: float
    """The loop's time, in seconds."""
    tails: dict[Life, Position]
    acked: dict[Life, tuple[Position, bool]]
    """How far each life was acknowledged, and whether its closure was."""
    alive: Life | None
    """The life that a reader may insist on: known, not ended and not expired."""
    floors: dict[str, int]
    """The least life that each party may be shown."""

    def is_beyond(self, life: Life, offset: str | None) -> bool:
        """Whether the offset lay behind the life's tail, or may have: then the origin answers with the tail."""
        place = parse_token(offset) if offset is not None else None
        return place is not None and place > self.tails.get(life, ZERO)


@dataclass(eq=False)
class History:
    """All lives of the stream that the origin keeps at `path`, oldest first; `now` gives the loop's time, `wall` the
    origin's (Unix seconds)."""

    path: str
    now: Callable[[], float]
    wall: Callable[[], float]
    lives: list[Life] = field(default_factory=list)
    tick: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    """The latest life of which each party's gateway was told the lifetime, and has not been made to forget it."""
    sent: set[bytes] = field(default_factory=set)
    """Every body that a writer has begun to send."""
    stored: dict[bytes, Life] = field(default_factory=dict)
    """Each body that the origin has stored, and the latest life that it went to."""
    wrong: list[str] = field(default_factory=list)
    """What the origin was made to store that no writer has asked for."""
    creating: int = 0
    """PUTs that are under way: what is there meanwhile may be taken for what was there before."""
    events: deque[str] = field(default_factory=lambda: deque(maxlen=_EVENTS))

    def note(self, what: str) -> None:
        """Remember an event for the report."""
        self.tick += 1
        self.events.append(f"{self.tick:>7} {self.now():9.3f}s  {what}")

    # -- the origin's side

    def born(self, stream: Stream, body: bytes) -> None:
        number = self.lives[-1].number + 1 if self.lives else 1
        life = stream.lifetime
        self.note(f"life {number} begins at the origin with {len(body)} bytes, {life.ttl_s=} {life.expires_at=}")
        self.lives.append(Life(stream, self.tick, number=number))
        # The path of a dead life is only needed by requests that are under way still.
        while len(self.lives) > _KEPT_LIVES and self.lives[0].known_dead_at is not None:
            del self.lives[0]
        if body:
            self._store(self.lives[-1], body)

    def trim(self, upto: Position, *, hides_start: bool) -> None:
        """Have the origin remove what lies before the end of a record of the latest life."""
        life = self.lives[-1]
        self.note(f"life {life.number} is trimmed to {upto.token}{', start hidden' * hides_start} at the origin")
        life.trim(upto, self.now(), hides_start=hides_start)

    def died(self, stream: Stream) -> None:
        life = self.life_of(stream)
        if life is not None and life.died_at is None:
            self.note(f"life {life.number} ends at the origin")
            life.died_at = self.tick

    def grew(self, stream: Stream, order: AppendParams, accepted: Accepted) -> None:
        life = self.life_of(stream)
        if life is not None and not accepted.is_duplicate:
            closed = ", closed" if accepted.is_closed else ""
            self.note(f"life {life.number} ends at {accepted.tail.token}{closed} at the origin")
            if order.body:
                self._store(life, order.body)

    def _store(self, life: Life, body: bytes) -> None:
        if body not in self.sent:
            self.wrong.append(f"the origin was given a body that no writer has sent: {body[:80]!r}")
        elif self.stored.get(body) is life:
            self.wrong.append(f"the origin was given a body twice that was sent once: {body[:80]!r}")
        self.stored[body] = life

    def life_of(self, stream: Stream) -> Life | None:
        return next((life for life in reversed(self.lives) if life.stream is stream), None)

    # -- the writers' side

    def bury(self, dead: Life, why: str) -> None:
        """This life, and all before it, are known to be over."""
        for life in self.lives:
            life.has_only_expired &= life.number > dead.number
            if life.number <= dead.number and life.known_dead_at is None and life.died_at is not None:
                self.note(f"life {life.number} is known to be over: {why}")
                life.known_dead_at, life.buried_at = self.tick, self.now()

    def created(self, since: Moment) -> None:
        """A PUT sent at that moment was answered with 201."""
        new = next((life for life in self.lives if life.born_at > since.tick), None)
        if new is None:
            self.wrong.append("a PUT was acknowledged as having created a stream, and the origin has created none")
            return
        before = [life for life in self.lives if life.number < new.number]
        if before:
            self.bury(before[-1], "PUT 201")
        self.acknowledged(new, None, is_closed=False)

    def deleted(self, since: Moment, status: int) -> None:
        """A DELETE sent at that moment was answered: it ended a life, or found none."""
        dead = [life for life in self.lives if life.died_at is not None]
        if status < 300:
            ended = next((life for life in dead if (life.died_at or 0) > since.tick), None)
            if ended is None:
                self.wrong.append("a DELETE was acknowledged, and the origin has ended nothing")
                return
            self.bury(ended, f"DELETE {status}")
        else:
            gone = [life for life in dead if (life.died_at or 0) <= since.tick]
            if gone:
                self.bury(gone[-1], f"DELETE {status}")

    def acknowledged(self, life: Life, tail: Position | None, *, is_closed: bool) -> None:
        """A write to this life was acknowledged, up to `tail`."""
        self.note(f"life {life.number} is acknowledged to {tail.token if tail else '-'}{', closed' * is_closed}")
        life.known_at = life.known_at or self.tick
        life.acked = max(life.acked, tail or ZERO)
        life.is_close_acked |= is_closed

    # -- the readers' side

    @property
    def last(self) -> Life | None:
        return self.lives[-1] if self.lives else None

    def is_over(self, life: Life) -> bool:
        """Whether a life has ended, be it that its time is up and the origin has not noticed."""
        return life.died_at is not None or life.stream.is_expired(self.wall())

    def moment(self) -> Moment:
        self.tick += 1
        self._expire()
        last = self.last
        is_known = last is not None and last.known_at is not None and not self.is_over(last) and not self.creating
        return Moment(
            self.tick,
            self.now(),
            {life: life.tail for life in self.lives},
            {life: (life.acked, life.is_close_acked) for life in self.lives},
            last if is_known else None,
            dict(self.floors),
        )

    def _expire(self) -> None:
        """An absolute end that has passed is known to everybody."""
        for life in self.lives:
            ends_at = life.stream.lifetime.expires_at
            if ends_at is not None and life.known_dead_at is None and self.wall() > ends_at + _SLACK_S:
                self.note(f"life {life.number} is known to be over: Stream-Expires-At")
                life.known_dead_at, life.buried_at = self.tick, self.now()
                life.died_at = life.died_at or self.tick
                life.has_only_expired = True

    def showable(self, since: Moment, party: str, *, is_stale: bool = False) -> list[Life]:
        """The lives that an answer to a request sent at that moment may show, the latest first.

        If `is_stale`, the answer says that the origin has failed.  It may show a life that has only expired, unless a
        HEAD has told its lifetime: reads do not.
        """
        floor, told = since.floors.get(party, 0), self.told.get(party, 0)

        def is_shown(life: Life) -> bool:
            is_alive = life.known_dead_at is None or life.known_dead_at > since.tick
            return is_alive or (is_stale and life.has_only_expired and life.number > told)

        return [life for life in reversed(self.lives) if life.number >= floor and is_shown(life)]

    def was_told_lifetime(self, party: str, lives: list[Life]) -> None:
        """A HEAD of the party was answered with one of these lives."""
        self.told[party] = max(self.told.get(party, 0), min(life.number for life in lives))

    def was_shown(self, party: str, lives: list[Life]) -> None:
        """The party has been shown one of these lives."""
        self.floors[party] = max(self.floors.get(party, 0), min(life.number for life in lives))

    def was_told_gone(self, party: str, since: Moment) -> None:
        """The party has been told that nothing is here, on a request sent at that moment."""
        over = [life.number + 1 for life in self.lives if life.died_at is not None and life.died_at <= since.tick]
        floor = max(self.floors.get(party, 0), *over, 0)
        if floor > self.floors.get(party, 0):
            self.note(f"{party}, who asked at {since.at:.3f}s, is shown that nothing before life {floor} is here")
        self.floors[party] = floor


def watch(store: Store, histories: dict[str, History]) -> None:
    """Have the histories note what happens at the store: creations, appends and ends, of whatever cause."""
    create, append, remove = store.create, store.append, store._remove

    def created(path: str, order: CreateParams, now: float) -> tuple[Stream, bool]:
        stream, is_new = create(path, order, now)
        if is_new and path in histories:
            histories[path].born(stream, order.body)
        return stream, is_new

    def appended(path: str, order: AppendParams, now: float) -> Accepted:
        accepted = append(path, order, now)
        if path in histories:
            histories[path].grew(store._streams[path], order, accepted)
        return accepted

    def removed(stream: Stream) -> None:
        remove(stream)
        if stream.path in histories:
            histories[stream.path].died(stream)

    # The methods of this one store: a test may look where a program may not.
    vars(store).update(create=created, append=appended, _remove=removed)
