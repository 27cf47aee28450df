"""One stream: its records, its lifetime, and its watchers.

All functions are synchronous, and `now` (Unix seconds) is an argument.  A stream is independent of HTTP.  The store
owns it; a live reader changes it only by `enter`, `leave` and `watchers`.

Invariants: records are contiguous (the `end` of one is the `start` of the next, and the `end` of the last is `tail`).
A closed stream stays closed.  An ended stream stays ended; a new one at its path has another `instance`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from gateway.origin.messages import InvalidJson, split_messages
from gateway.origin.positions import ZERO, Position
from gateway.origin.producers import Claim, Producers
from gateway.origin.records import Piece, Record
from gateway.origin.refusals import BadOffset, InvalidBody, Trimmed
from gateway.protocol import names


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a stream lives: a sliding window, until an instant, or forever."""

    ttl_s: int | None = None
    expires_at: float | None = None
    expires_at_text: str | None = None
    """The instant as its creator wrote it, which HEAD returns unchanged."""

    @property
    def is_given(self) -> bool:
        return self.ttl_s is not None or self.expires_at is not None

    def agrees_with(self, other: Lifetime) -> bool:
        """Return whether two lifetimes are equal, however their instants are written."""
        return self.ttl_s == other.ttl_s and self.expires_at == other.expires_at


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of a read: pieces in order, the position after them, and whether that is the tail."""

    pieces: tuple[Piece, ...]
    end: Position
    up_to_date: bool
    is_json: bool

    def body(self) -> bytes:
        """Return the reply's body: the bytes joined, or one JSON array of all messages (section 7.1)."""
        if self.is_json:
            return b"[" + b",".join(piece.payload for piece in self.pieces) + b"]"
        return b"".join(piece.payload for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Fork:
    """The source of a forked stream, as specified by its creator."""

    source: Stream
    offset: str
    sub_offset: int


class Stream:
    """An append-only sequence of records at one path."""

    def __init__(
        self,
        path: str,
        instance: str,
        content_type: str,
        lifetime: Lifetime,
        now: float,
        *,
        fork: Fork | None = None,
    ) -> None:
        self.path = path
        self.instance = instance
        self.content_type = content_type
        self.is_json = names.is_json(content_type)
        self.is_text = names.is_sse_text(content_type)
        self.lifetime = lifetime
        self.fork = fork
        self.last_used = now
        self.tail = ZERO
        self.retained_from = ZERO
        self.hides_start = False
        """Whether reads from the start sentinel are refused after a trim."""
        self.is_closed = False
        self.closed_by: Claim | None = None
        self.last_seq: str | None = None
        self.producers = Producers()
        self.forks = 0
        self.is_soft_deleted = False
        self.has_ended = False
        self.live_readers = 0
        self.watchers: set[Callable[[], object]] = set()
        self.records: list[Record] = []
        """The retained records in order.  Only this class changes the list."""

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"<Stream {self.path}: {len(self.records)} records, {self.live_readers} live readers{state}>"

    # -- lifetime

    def is_expired(self, now: float) -> bool:
        """Return whether the lifetime is over.  Live readers keep a sliding window open."""
        if self.lifetime.expires_at is not None and now >= self.lifetime.expires_at:
            return True
        ttl_s = self.lifetime.ttl_s
        return ttl_s is not None and not self.live_readers and now >= self.last_used + ttl_s

    def renew(self, now: float) -> None:
        """Restart the sliding window after a read or a write."""
        self.last_used = now

    def enter(self, now: float) -> None:
        """Count a live reader that begins."""
        self.live_readers += 1
        self.renew(now)

    def leave(self, now: float) -> None:
        """Count a live reader that ends.  The sliding window restarts when the last one has left."""
        self.live_readers -= 1
        self.renew(now)

    def wake(self) -> None:
        """Notify every watcher that the stream has changed."""
        for watcher in tuple(self.watchers):
            watcher()

    # -- content

    def record_of(self, body: bytes) -> Record | None:
        """Return the record for `body` at the tail; None for an empty JSON array.

        Raises InvalidBody.  Changes nothing.
        """
        if not self.is_json:
            return Record.of_bytes(self.tail, body)
        try:
            messages = split_messages(body)
        except InvalidJson as error:
            raise InvalidBody("Invalid JSON") from error
        return Record.of_messages(self.tail, messages) if messages else None

    def add(self, record: Record) -> None:
        """Append a record that was made for the tail."""
        if record.start != self.tail:
            raise ValueError("a record begins at the tail")
        self.records.append(record)
        self.tail = record.end

    def inherit(self, source: Stream, upto: Position) -> None:
        """Copy the records of `source` before `upto`, which must be a position of `source`."""
        self.retained_from = source.retained_from
        for record in source.records:
            if record.end <= upto:
                self.records.append(record)
            elif record.start < upto:
                self.records.append(record.before(upto))
        self.tail = upto

    def locate(self, position: Position) -> tuple[int, int]:
        """Return a position as (record index, payload bytes to skip).

        At or after the tail, the index is one past the last record.  Raises Trimmed before the retained part, BadOffset
        if the stream has no such position.
        """
        index = self._index(position)
        if index >= len(self.records):
            return index, 0
        skip = self.records[index].skip_to(position)
        if skip is None:
            raise BadOffset
        return index, skip

    def nearest(self, position: Position) -> Position:
        """Return the last position up to `position`, from which a read at `position` begins.

        Raises Trimmed before the retained part.
        """
        index = self._index(position)
        return self.records[index].nearest(position) if index < len(self.records) else self.tail

    def _index(self, position: Position) -> int:
        """Return the index of the first record that ends after `position`; one past the last record if there is
        none."""
        if position < self.retained_from:
            raise Trimmed
        return bisect_right(self.records, position, key=lambda record: record.end)

    def read(self, start: Position | None, limit: int) -> Slice:
        """Read at most `limit` payload bytes from `start`, but at least one message.

        `start` None means the earliest retained position.  Between two positions, the read begins at the earlier one.
        Beyond the tail, it returns no pieces and the tail, like the reference server.  Raises Trimmed.
        """
        if start is None and self.hides_start:
            raise Trimmed
        index, skip = (0, 0) if start is None else self.locate(self.nearest(start))
        pieces: list[Piece] = []
        end = self.tail if index >= len(self.records) else self.retained_from
        room = limit
        while index < len(self.records):
            record = self.records[index]
            if pieces and len(record.payload) > room:
                break
            piece = record.cut(skip, room, is_text=self.is_text)
            pieces.append(piece)
            end = piece.end
            room -= len(piece.payload)
            if end != record.end:
                break
            index, skip = index + 1, 0
        return Slice(tuple(pieces), end, end == self.tail, self.is_json)

    def prefix_record(self, start: Position, sub_offset: int) -> Record | None:
        """Return the first `sub_offset` bytes or messages of the record at `start`, as a new record.

        Returns None if there are fewer.  A sub-offset must be within one append.
        """
        index, skip = self.locate(start)
        if index >= len(self.records):
            return None
        record = self.records[index]
        if self.is_json:
            messages = record.messages(skip)
            return Record.of_messages(start, messages[:sub_offset]) if sub_offset <= len(messages) else None
        payload = record.payload[skip:]
        return Record.of_bytes(start, payload[:sub_offset]) if sub_offset <= len(payload) else None

    def trim(self, upto: Position, *, hides_start: bool = False) -> None:
        """Drop everything before `upto`, which must be a position of this stream.

        With `hides_start`, reads from the start sentinel fail afterwards, instead of beginning at the earliest retained
        position.
        """
        self.hides_start |= hides_start
        index, skip = self.locate(upto)
        kept = self.records[index:]
        if skip:
            kept[0] = kept[0].after(upto)
        self.records = kept
        self.retained_from = upto
