"""The tape: what the gateway knows of one stream's bytes and offsets.

Bytes lie in blocks; the index maps each known offset token to the position where the bytes after it are held.  A read
takes the bytes after a token and continues at the token where they end, until a token is not in the index: either the
tail, or a gap that the origin has to fill.  Blocks are never merged or renumbered.  Two fetches that overlap at unknown
positions lie side by side, and form one chain as soon as they share a token.

Everything a tape states stays true for the life of one incarnation: bytes between two tokens, a token that the stream
has reached, a token known to be short of the tail, closure at a token.  Whether a reader is up to date is not such a
fact, so the tape does not record it.

The tape changes only by plain functions.  It knows no HTTP, no sockets and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final, NamedTuple

from gateway.errors import TailMovedBack, UpstreamBroken
from gateway.protocol.names import START, is_before
from gateway.tape.block import Block
from gateway.tape.costs import BLOCK_COST, TAPE_COST, TOKEN_COST


def token_cost(token: str) -> int:
    """Bytes charged for one token."""
    return TOKEN_COST + len(token)


class TapeReading(NamedTuple):
    """A run of the tape: the bytes from the requested token to `end` (for JSON: messages joined by commas)."""

    pieces: tuple[bytes, ...] = ()
    size: int = 0
    end: str = ""
    stored_at: float = 0.0
    copied: int = 0
    """How many of the bytes the tape does not share, now or as soon as it grows."""


class Extent(NamedTuple):
    """How far the tape holds bytes: their number up to `end` (for JSON: with the commas between messages)."""

    size: int
    end: str


_NO_HOPS: Final[dict[str, str]] = {}
"""The empty steps of a tape that has none, as most have.  Never changed."""


class Tape:
    """One incarnation of one stream.  Owner: the `TapeStore`, which makes all changes of size."""

    __slots__ = (
        "_blocks",
        "_ending",
        "_hops",
        "_index",
        "closed_at",
        "cost",
        "has_lost_start",
        "is_json",
        "short_of_tail",
        "tail",
    )

    def __init__(self, is_json: bool = False) -> None:
        self.is_json = is_json
        self.tail: str | None = None
        """The furthest token that the origin has named as reached; never beyond the true tail."""
        self.short_of_tail: str | None = None
        """The furthest token at which the origin stopped although more bytes followed."""
        self.closed_at: str | None = None
        self.has_lost_start = False
        """Whether the bytes after the start sentinel were dropped, so that the sentinel may name another position
        now."""
        self.cost = TAPE_COST
        self._blocks: dict[str, Block] = {}
        """Blocks by their first token, in the order they were stored."""
        self._index: dict[str, tuple[Block, int]] = {}
        self._ending: dict[str, Block] = {}
        self._hops = _NO_HOPS
        """Tokens without bytes between them, such as the start sentinel and the first token of an empty stream."""

    def __repr__(self) -> str:
        return f"<Tape {self.block_count} blocks, {self.token_count} tokens, tail {self.tail}>"

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    @property
    def token_count(self) -> int:
        return len(self._index) + len(self._hops)

    def tokens(self) -> Iterator[str]:
        """The tokens from which bytes, or an empty step, are known."""
        yield from self._index
        yield from self._hops

    @property
    def size(self) -> int:
        """Stream bytes held."""
        return sum(block.size for block in self._blocks.values())

    def blocks(self) -> Iterator[Block]:
        """The runs of bytes held, in the order they were stored."""
        return iter(self._blocks.values())

    def resolve(self, token: str) -> str:
        """The last token with the same position: follows the chain of empty steps from `token`."""
        hops = self._hops
        while hops and (target := hops.get(token)) is not None:
            token = target
        return token

    def read(self, start: str, limit: int) -> TapeReading:
        """The bytes after `start`, up to about `limit`, cut only at known tokens.

        Takes at least one step if there is one, however large.  `end` is the token at which the reading stops: the
        requested position if no bytes after it are held.
        """
        pieces: list[bytes] = []
        size = copied = 0
        stored_at = 0.0
        at = self.resolve(start)
        while (entry := self._index.get(at)) is not None:
            block, position = entry
            stop = block.stop_before(position, limit - size)
            if stop is None:
                if size:
                    break
                stop = block.stop_after(position)
            cut = block.cut(position, stop[0])
            if size and self.is_json:
                pieces.append(b",")
            pieces.extend(cut.pieces)
            copied += cut.copied
            size += stop[0] - position
            stored_at = min(stored_at, block.stored_at) if stored_at else block.stored_at
            at = self.resolve(stop[1])
            if size >= limit or stop[0] < block.size:
                break
        return TapeReading(tuple(pieces), size, at, stored_at, copied)

    def extent(self, start: str, end: str) -> Extent:
        """The extent of the bytes held after `start`, up to `end` if that is known among them."""
        at, goal, size = self.resolve(start), self.resolve(end), 0
        while at != goal and (entry := self._index.get(at)) is not None:
            block, position = entry
            found = self._index.get(goal)
            stop = found[1] if found is not None and found[0] is block and found[1] > position else 0
            if self.is_json:
                # A comma joins these bytes to the earlier ones, or they begin with the comma at `position`.
                size += (size > 0) - (position > 0)
            size += (stop or block.size) - position
            at = goal if stop else self.resolve(block.end)
        return Extent(size, at)

    def beginning(self, start: str, size: int) -> bytes:
        """The first `size` bytes held after `start`."""
        held = bytearray()
        at = self.resolve(start)
        while len(held) < size and (entry := self._index.get(at)) is not None:
            block, position = entry
            if held and self.is_json:
                held += b","
            # One more byte, for a comma at `position`.
            for piece in block.cut(position, min(block.size, position + size + 1 - len(held))).pieces:
                held += piece
            at = self.resolve(block.end)
        return bytes(held[:size])

    def first(self) -> str | None:
        """The first token, except the start sentinel, from which bytes are held, or None."""
        return min((token for token in self._index if token != START), default=None)

    def midway(self, token: str) -> str | None:
        """The middle one of the tokens up to `token` from which bytes are held, except the start sentinel."""
        known = sorted(one for one in self._index if one != START and not is_before(token, one))
        return known[(len(known) - 1) // 2] if known else None

    def after(self, token: str) -> str | None:
        """The first known token after the position of `token`; None if no bytes after it are held."""
        entry = self._index.get(self.resolve(token))
        return entry[0].stop_after(entry[1])[1] if entry is not None else None

    def has_seen(self, token: str) -> bool:
        """Whether the origin has named `token` as a position of the stream."""
        return (
            token in self._index
            or token in self._ending
            or token in self._hops
            or token in (self.tail, self.short_of_tail, self.closed_at)
        )

    def knows_after(self, token: str) -> bool:
        """Whether bytes after `token` are held."""
        index = self._index
        return bool(index) and self.resolve(token) in index

    def is_short(self, token: str) -> bool:
        """Whether the origin itself stopped at or after `token` although more bytes followed."""
        return self.short_of_tail is not None and not is_before(self.short_of_tail, token)

    def is_closed_at(self, token: str) -> bool:
        """Whether `token` is the final offset of a closed stream."""
        return self.closed_at is not None and self.closed_at == token

    def check(self, start: str, end: str, has_bytes: bool) -> None:
        """Raise if an answer that leads from `start` to `end` contradicts the protocol or this tape.

        TailMovedBack: the end lies before the start, or beyond the final offset of a closed stream, so the stream was
        re-created.  UpstreamBroken: the answer has bytes but its end is its start.
        """
        if end != start and is_before(end, start):
            raise TailMovedBack
        if has_bytes and end == start:
            raise UpstreamBroken("Origin sent bytes without a new offset")
        if self.closed_at is not None and is_before(self.closed_at, end):
            raise TailMovedBack

    def reached(self, token: str, *, is_short: bool = False, is_closed: bool = False) -> None:
        """Record that the origin named `token` as reached: at the tail, short of it, or at the closed end."""
        if self.tail is None or is_before(self.tail, token):
            self.tail = token
        if is_short and (self.short_of_tail is None or is_before(self.short_of_tail, token)):
            self.short_of_tail = token
        if is_closed:
            self.closed_at = token

    def store(self, start: str, end: str, pieces: Sequence[bytes], now: float) -> None:
        """Store `pieces`, which lead from `start` to `end` (`check` has passed).  Bytes already held are kept."""
        size = sum(map(len, pieces))
        start = self.resolve(start)
        if not size:
            if start != end and start not in self._index and start != self.resolve(end):
                if self._hops is _NO_HOPS:
                    self._hops = {}
                self._hops[start] = end
                self.cost += token_cost(start)
            return
        if start in self._index:
            self._align_end(start, end, pieces, size)
        elif not self._align_start(start, end, pieces, size):
            self._append(start, end, pieces, now)

    def _append(self, start: str, end: str, pieces: Sequence[bytes], now: float) -> None:
        block = self._ending.get(start)
        if block is not None and not block.is_sealed:
            grown_from = block.size
            # Use the block's own copy of the token, so that the caller's copy is not kept as well.
            start = block.end
            del self._ending[start]
            self._index[start] = (block, block.extend(end, pieces))
            self._ending[end] = block
            self.cost += block.size - grown_from + token_cost(end)
            return
        block = Block(start, end, pieces, self.is_json, now)
        self._blocks[start] = block
        self._index[start] = (block, 0)
        self._ending[end] = block
        self.cost += BLOCK_COST + block.size + token_cost(start) + token_cost(end)

    def _align_end(self, start: str, end: str, pieces: Sequence[bytes], size: int) -> None:
        """`start` is indexed: find the position of `end` inside the block that holds the bytes after it."""
        block, position = self._index[start]
        lead = 1 if self.is_json and position > 0 else 0
        stop = position + lead + size
        if end in self._index or end in self._ending or stop >= block.size:
            return
        if block.holds_at(position, stop, pieces) and (not self.is_json or block.byte_at(stop) == b","):
            block.mark(stop, end)
            self._learn(end, block, stop)

    def _align_start(self, start: str, end: str, pieces: Sequence[bytes], size: int) -> bool:
        """`end` is known: find the position of `start` in the block that leads to it; return False if that fails."""
        block = self._ending.get(end)
        if block is not None:
            stop = block.size
        else:
            entry = self._index.get(end)
            if entry is None or entry[1] == 0:
                return False
            block, stop = entry
        position = stop - size
        if self.is_json and position > 0:
            position -= 1
            if block.byte_at(position) != b",":
                return False
        if position < 0 or not block.holds_at(position, stop, pieces):
            return False
        # `start` may be an offset that a client has made up, and that the origin treats as the last position before it.
        # It may be read from, because a client has asked for it, but it is not named to other clients.
        block.leads = (*block.leads, start)
        self._learn(start, block, position)
        return True

    def _learn(self, token: str, block: Block, position: int) -> None:
        self._index[token] = (block, position)
        self.cost += token_cost(token)

    def drop_oldest(self) -> int:
        """Drop the oldest block, or the empty steps if there is no block; return the cost freed."""
        first = next(iter(self._blocks.values()), None)
        if first is None:
            return self.drop_all()
        before = self.cost
        self._drop(first)
        return before - self.cost

    def drop_before(self, token: str) -> int:
        """Drop the bytes before this token, or before the first known token after it, and all earlier tokens, because
        the origin no longer has the bytes after them; return the cost freed."""
        return self._drop_known(lambda known: is_before(known, token))

    def drop_through(self, token: str) -> int:
        """Drop everything before the first known token after this one, because the origin does not have the bytes after
        this token either; return the cost freed.  If no later token is known, the tail is not known either."""
        if self.tail is not None and not is_before(token, self.tail):
            self.tail = None
            self.forget_facts()
        return self._drop_known(lambda known: not is_before(token, known))

    def _drop_known(self, is_dropped: Callable[[str], bool]) -> int:
        before = self.cost
        for block in tuple(self._blocks.values()):
            if is_dropped(block.start):
                kept = next((mark for mark in block.marks if not is_dropped(mark[1])), None)
                if kept is None:
                    self._drop(block)
                else:
                    self._shorten(block, *kept)
        for block in self._blocks.values():
            block.unmark(is_dropped)
            # A block that was dropped may have ended where this one does.
            self._ending.setdefault(block.end, block)
        for held in (self._index, self._hops):
            for known in [known for known in held if is_dropped(known)]:
                self.has_lost_start |= known == START
                del held[known]
                self.cost -= token_cost(known)
        return before - self.cost

    def _drop(self, block: Block) -> None:
        del self._blocks[block.start]
        known = (*(token for _, token in block.marks), *block.leads)
        tokens = {token for token in known if self._index.get(token, (None, 0))[0] is block}
        self.has_lost_start |= START in tokens
        for token in tokens:
            del self._index[token]
        if self._ending.get(block.end) is block:
            del self._ending[block.end]
        if self._blocks:
            self.cost -= BLOCK_COST + block.size + token_cost(block.end) + sum(map(token_cost, tokens))
        else:
            self._clear()

    def _shorten(self, block: Block, position: int, token: str) -> None:
        """Drop the bytes of a block before `token`, which lies at `position`."""
        rest = block.rest(position, token)
        # Put the rest in the same place, because blocks are dropped in this order.
        self._blocks = {one.start: one for one in (rest if one is block else one for one in self._blocks.values())}
        if self._ending.get(block.end) is block:
            self._ending[block.end] = rest
        shift = block.size - rest.size
        for known, is_lead in chain(((token, False) for _, token in block.marks), zip(block.leads, repeat(True))):
            holder, at = self._index.get(known, (None, 0))
            if holder is not block:
                continue
            if at < position:
                self.has_lost_start |= known == START
                del self._index[known]
                self.cost -= token_cost(known)
            else:
                self._index[known] = (rest, max(0, at - shift))
                if is_lead:
                    rest.leads = (*rest.leads, known)
        self.cost -= shift

    def drop_all(self) -> int:
        """Drop every byte and keep the facts about tail and closure; return the cost freed."""
        before = self.cost
        self._clear()
        return before - self.cost

    def forget_facts(self) -> None:
        """Drop the facts that would let this tape answer without the origin."""
        self.closed_at = None
        self.short_of_tail = None

    def _clear(self) -> None:
        self.has_lost_start |= START in self._index or START in self._hops
        self._blocks.clear()
        self._index.clear()
        self._ending.clear()
        self._hops = _NO_HOPS
        self.cost = TAPE_COST
