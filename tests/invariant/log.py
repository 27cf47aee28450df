"""The ground truth at the origin: every incarnation of one stream, and when it lived.

The origin's own stream objects are the log; here they outlive their deletion.  `tick` orders events.  The gateway knows
of a death once a DELETE or a creation through it was answered (`known_dead_at`); before that, a read may still get old
bytes, but they must never be called up to date.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from gateway.origin.positions import ZERO, Position, parse_token
from gateway.origin.records import Record
from gateway.origin.refusals import RequestError
from gateway.origin.store import Store
from gateway.origin.streams import Stream

_ALL = 1 << 40


@dataclass(eq=False)
class Incarnation:
    """One life of the stream, from creation to deletion."""

    stream: Stream
    born_at: int
    died_at: int | None = None
    known_dead_at: int | None = None
    acked: Position = ZERO
    """The furthest tail whose write was acknowledged through the gateway."""
    is_close_acked: bool = False
    trimmed: list[Record] = field(default_factory=list)
    """The messages that the origin has removed from the front."""
    trims: list[tuple[float, Position]] = field(default_factory=list)
    """When the origin trimmed the stream (seconds), and to where."""

    def trim(self, upto: Position, now: float, *, hides_start: bool = False) -> None:
        """Remove from the origin everything before `upto`, which is the end of a record."""
        self.trimmed += [record for record in self.stream.records if record.end <= upto]
        self.trims.append((now, upto))
        self.stream.trim(upto, hides_start=hides_start)

    @property
    def whole(self) -> Stream:
        """The stream as if it had never been trimmed."""
        if not self.trimmed:
            return self.stream
        whole = copy(self.stream)
        whole.records, whole.retained_from, whole.hides_start = [*self.trimmed, *self.stream.records], ZERO, False
        return whole

    def retained_at(self, at: float) -> Position:
        """The first position that the origin had at that time."""
        return max((upto for when, upto in self.trims if when <= at), default=ZERO)

    def starts(self, token: str | None, since: float) -> list[Position]:
        """Where a read from the token may have begun at any time since then; empty if the origin had trimmed it."""
        if token is None or token == "-1":
            later = [upto for when, upto in self.trims if when > since]
            return [self.retained_at(since), *later]
        start = self.begin(token)
        return [start] if start is not None and start >= self.retained_at(since) else []

    def refuses(self, token: str | None) -> bool:
        """Whether the origin has trimmed what a read from the token names."""
        if token is None or token == "-1":
            return self.stream.hides_start
        named = parse_token(token)
        return named is not None and named < self.stream.retained_from

    @property
    def tail(self) -> Position:
        return self.stream.tail

    @property
    def is_closed(self) -> bool:
        return self.stream.is_closed

    def position_of(self, token: str | None) -> Position | None:
        """The position of the token in this incarnation in its present state; None if it has none."""
        if token is None or token == "-1":
            return ZERO
        position = parse_token(token)
        if position is None or position > self.tail:
            return None
        if position == self.tail:
            return position
        try:
            self.whole.locate(position)
        except RequestError:
            return None
        return position

    def begin(self, token: str | None) -> Position | None:
        """The position at which a read from the token begins in this incarnation now; None if it has none.

        A token of an earlier life need not be a position here: the origin begins at the last one before it.
        """
        position = self.position_of(token)
        if position is not None or token is None:
            return position
        named = parse_token(token)
        if named is None or named > self.tail:
            return None
        try:
            return self.whole.nearest(named)
        except RequestError:
            return None

    def between(self, start: Position, end: Position) -> bytes:
        """The bytes from `start` to `end`; for JSON the messages joined by commas."""
        after_start, after_end = self._after(start), self._after(end)
        assert after_start.endswith(after_end)
        text = after_start[: len(after_start) - len(after_end)]
        return text.removesuffix(b",") if after_end and self.stream.is_json else text

    def _after(self, position: Position) -> bytes:
        body = self.whole.read(None if position == ZERO else position, _ALL).body()
        return body[1:-1] if self.stream.is_json else body


@dataclass(frozen=True)
class Moment:
    """The state of the stream when a request was sent."""

    tick: int
    at: float
    tails: dict[Incarnation, Position]
    closed: frozenset[Incarnation]
    acked: dict[Incarnation, Position]
    close_acked: frozenset[Incarnation]
    alive: Incarnation | None


@dataclass
class Log:
    """All incarnations of the stream at `path`, oldest first."""

    store: Store
    path: str
    now: Callable[[], float]
    incarnations: list[Incarnation] = field(default_factory=list)
    tick: int = 0

    def __post_init__(self) -> None:
        self._watch("create", self._created)
        self._watch("delete", self._deleted)

    def _watch(self, name: str, then: Callable[[Any], None]) -> None:
        original = getattr(self.store, name)

        def watched(path: str, *arguments: Any) -> Any:
            result = original(path, *arguments)
            if path == self.path:
                then(result)
            return result

        setattr(self.store, name, watched)

    def _created(self, result: tuple[Stream, bool]) -> None:
        stream, is_new = result
        self.tick += 1
        if is_new:
            self.incarnations.append(Incarnation(stream, self.tick))

    def _deleted(self, _: None) -> None:
        self.tick += 1
        self.incarnations[-1].died_at = self.tick

    @property
    def alive(self) -> Incarnation | None:
        last = self.incarnations[-1] if self.incarnations else None
        return last if last is not None and last.died_at is None else None

    def moment(self) -> Moment:
        self.tick += 1
        return Moment(
            self.tick,
            self.now(),
            {one: one.tail for one in self.incarnations},
            frozenset(one for one in self.incarnations if one.is_closed),
            {one: one.acked for one in self.incarnations},
            frozenset(one for one in self.incarnations if one.is_close_acked),
            self.alive,
        )

    def bury(self) -> None:
        """Note that the gateway has answered a DELETE or a creation: it now knows of every death so far."""
        self.tick += 1
        for one in self.incarnations:
            if one.died_at is not None and one.known_dead_at is None:
                one.known_dead_at = self.tick

    def was_alive_throughout(self, since: Moment) -> bool:
        """Whether one incarnation was alive from the moment until now."""
        return since.alive is not None and since.alive.died_at is None

    def had_throughout(self, since: Moment, token: str | None) -> bool:
        """Whether one incarnation was alive, and a read from the token began in it, from the moment until now."""
        alive = since.alive
        if alive is None or not self.was_alive_throughout(since):
            return False
        begin = alive.begin(token)
        return begin is not None and begin <= since.tails[alive]

    def believable(self, since: Moment) -> list[Incarnation]:
        """The incarnations that may answer a request sent at that moment."""
        return [one for one in self.incarnations if one.known_dead_at is None or one.known_dead_at >= since.tick]
