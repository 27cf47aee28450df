"""The tape: the bytes of one stream that the gateway holds in memory, and their offsets.

A tape has blocks, which are runs of bytes, and an index of tokens.  A token is an offset as the origin spells it:
opaque, but ordered.  The index maps each token to its position in a block.  Two tokens without bytes between them are
*synonyms*.

A read starts at a token, takes bytes up to the end of a block, and continues at the token of that end.  The read stops
at a token that is not in the index.  Such a token is either the tail or the start of a gap.  The bytes of a gap must be
fetched from the origin.

Blocks are never merged.  If two fetches overlap by an unknown number of bytes, the tape keeps a block for each.  A read
can continue from one block to the next only at a token that both blocks have.

A tape records only data that stays true during one incarnation of the stream (its life from creation to deletion): the
bytes between two tokens, the tokens that the stream has reached, and the token at which the stream was closed.  A
reader that is up to date may be behind at any later time, so the tape does not record this state.

All changes are synchronous.  The module has no HTTP, no sockets and no clock.
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
    """Return the bytes that the cache budget is charged for one token."""
    return TOKEN_COST + len(token)


class TapeReading(NamedTuple):
    """The result of a read: the bytes from the requested token to `end`.  JSON messages are joined by commas."""

    pieces: tuple[bytes, ...] = ()
    size: int = 0
    end: str = ""
    stored_at: float = 0.0
    copied: int = 0
    """The number of bytes of `pieces` that count as memory of the reader, in addition to the memory of the tape.
    Copied bytes count.  A small last piece of a block counts too.  A growing block replaces a small last piece, and
    then only this reading refers to the old piece."""


class Extent(NamedTuple):
    """A number of bytes, and the token at which they end.  For JSON, `size` includes the commas between messages."""

    size: int
    end: str


_NO_SYNONYMS: Final[dict[str, str]] = {}
"""`Tape._synonyms` of all tapes without synonyms.  It must stay empty."""


class Tape:
    """The bytes of one incarnation of a stream that are held in memory.

    Only the owner, the `TapeStore`, calls the methods that change `cost`, because the store charges the cost to a
    budget.
    """

    __slots__ = (
        "_blocks",
        "_ending",
        "_index",
        "_synonyms",
        "closed_at",
        "cost",
        "is_json",
        "short_of_tail",
        "tail",
    )

    def __init__(self, is_json: bool = False) -> None:
        self.is_json = is_json
        self.tail: str | None = None
        """The furthest token that the stream is known to reach.  It is never beyond the true tail."""
        self.short_of_tail: str | None = None
        """The furthest token at which the origin ended a reply although more bytes followed."""
        self.closed_at: str | None = None
        self.cost = TAPE_COST
        self._blocks: dict[str, Block] = {}
        """Blocks by their first token, in the order they were stored."""
        self._index: dict[str, tuple[Block, int]] = {}
        self._ending: dict[str, Block] = {}
        """For each token at which blocks end, one of these blocks."""
        self._synonyms = _NO_SYNONYMS
        """Pairs of tokens without bytes between them.  In an empty stream, for example, the start sentinel and the
        first token are such a pair."""

    def __repr__(self) -> str:
        return f"<Tape {self.block_count} blocks, {self.token_count} tokens, tail {self.tail}>"

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    @property
    def token_count(self) -> int:
        return len(self._index) + len(self._synonyms)

    def tokens(self) -> Iterator[str]:
        """Return the tokens from which a read can take bytes or follow a synonym."""
        yield from self._index
        yield from self._synonyms

    @property
    def size(self) -> int:
        """The number of stream bytes held."""
        return sum(block.size for block in self._blocks.values())

    def blocks(self) -> Iterator[Block]:
        """Return the blocks, in the order in which they were stored."""
        return iter(self._blocks.values())

    def resolve(self, token: str) -> str:
        """Return the last synonym of `token`, or `token` if it has no synonym.  Both have the same position."""
        synonyms = self._synonyms
        while synonyms and (target := synonyms.get(token)) is not None:
            token = target
        return token

    def read(self, start: str, limit: int) -> TapeReading:
        """Return the bytes after `start`, up to about `limit`.

        The result ends only at a token.  If no token lies within the limit, the result ends at the first token beyond
        the limit.  If no bytes after `start` are held, the result is empty and ends at `start`.
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
        """Measure the bytes held after `start`.  Stop at `end` if that token lies among these bytes."""
        at, goal, size = self.resolve(start), self.resolve(end), 0
        while at != goal and (entry := self._index.get(at)) is not None:
            block, position = entry
            found = self._index.get(goal)
            stop = found[1] if found is not None and found[0] is block and found[1] > position else 0
            if self.is_json:
                # Count one comma before these bytes, unless they are the first bytes.  If `position` is inside a block,
                # this comma is the byte at `position`, and is already included in `size - position`.
                size += (size > 0) - (position > 0)
            size += (stop or block.size) - position
            at = goal if stop else self.resolve(block.end)
        return Extent(size, at)

    def beginning(self, start: str, size: int) -> bytes:
        """Return the first `size` bytes held after `start`, or fewer if fewer are held."""
        held = bytearray()
        at = self.resolve(start)
        while len(held) < size and (entry := self._index.get(at)) is not None:
            block, position = entry
            if held and self.is_json:
                held += b","
            # Ask for one more byte, because `cut` omits a comma at `position`.
            for piece in block.cut(position, min(block.size, position + size + 1 - len(held))).pieces:
                held += piece
            at = self.resolve(block.end)
        return bytes(held[:size])

    def first(self) -> str | None:
        """Return the first indexed token other than the start sentinel; None if there is none."""
        return min((token for token in self._index if token != START), default=None)

    def midway(self, token: str) -> str | None:
        """Return the middle one of all indexed tokens up to `token`, without the start sentinel; None if there are no
        such tokens."""
        known = sorted(one for one in self._index if one != START and not is_before(token, one))
        return known[(len(known) - 1) // 2] if known else None

    def after(self, token: str) -> str | None:
        """Return the first token after the position of `token`; None if no bytes after `token` are held."""
        entry = self._index.get(self.resolve(token))
        return entry[0].stop_after(entry[1])[1] if entry is not None else None

    def has_seen(self, token: str) -> bool:
        """Return whether the origin has used `token` as a position of the stream."""
        return (
            token in self._index
            or token in self._ending
            or token in self._synonyms
            or token in (self.tail, self.short_of_tail, self.closed_at)
        )

    def is_furthest(self, token: str) -> bool:
        """Return whether `token` is the furthest position that the origin has stated."""
        return self.has_seen(token) and (self.tail is None or not is_before(token, self.tail))

    def knows_after(self, token: str) -> bool:
        """Return whether bytes after `token` are held."""
        index = self._index
        return bool(index) and self.resolve(token) in index

    def is_short(self, token: str) -> bool:
        """Return whether a reply of the origin has stopped short of the tail at `token` or after `token`."""
        return self.short_of_tail is not None and not is_before(self.short_of_tail, token)

    def is_closed_at(self, token: str) -> bool:
        """Return whether `token` is the final offset of a closed stream."""
        return self.closed_at is not None and self.closed_at == token

    def check(self, start: str, end: str, has_bytes: bool) -> None:
        """Check a reply of the origin that leads from `start` to `end` against the protocol and this tape.

        Raises TailMovedBack if `end` lies before `start`, or beyond the final offset of a closed stream.  In both cases
        the stream was re-created.  Raises UpstreamBroken if the reply has bytes but ends where it starts.
        """
        if end != start and is_before(end, start):
            raise TailMovedBack
        if has_bytes and end == start:
            raise UpstreamBroken("Origin sent bytes without a new offset")
        if self.closed_at is not None and is_before(self.closed_at, end):
            raise TailMovedBack

    def reached(self, token: str, *, is_short: bool = False, is_closed: bool = False) -> None:
        """Record that the stream reaches at least to `token`, because a reply of the origin has ended at `token`.

        `is_short`: more bytes follow the reply.  `is_closed`: `token` is the final offset of a closed stream.
        """
        if self.tail is None or is_before(self.tail, token):
            self.tail = token
        if is_short and (self.short_of_tail is None or is_before(self.short_of_tail, token)):
            self.short_of_tail = token
        if is_closed:
            self.closed_at = token

    def store(self, start: str, end: str, pieces: Sequence[bytes], now: float) -> None:
        """Store the bytes from `start` to `end`, which have passed `check`.  Bytes that the tape already holds are not
        replaced."""
        size = sum(map(len, pieces))
        start = self.resolve(start)
        if not size:
            if start != end and start not in self._index and start != self.resolve(end):
                if self._synonyms is _NO_SYNONYMS:
                    self._synonyms = {}
                self._synonyms[start] = end
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
            # Use the block's own copy of the token, so that the caller's copy can be freed.
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

    def restore(self, block: Block) -> None:
        """Add a block of bytes that this tape, or the tape of an earlier record of the same stream, has held.

        No token of the block may be indexed, except its end.
        """
        self._blocks[block.start] = block
        for position, token in block.marks:
            self._index[token] = (block, position)
            self.cost += token_cost(token)
        self._ending.setdefault(block.end, block)
        self.cost += BLOCK_COST + block.size + token_cost(block.end)

    def is_indexed(self, token: str) -> bool:
        """Return whether a read can take bytes at exactly this token."""
        return token in self._index

    def _align_end(self, start: str, end: str, pieces: Sequence[bytes], size: int) -> None:
        """Index `end` in the block that holds the bytes after `start`.  `start` must be indexed."""
        block, position = self._index[start]
        lead = 1 if self.is_json and position > 0 else 0
        stop = position + lead + size
        if end in self._index or end in self._ending or stop >= block.size:
            return
        if block.holds_at(position, stop, pieces) and (not self.is_json or block.byte_at(stop) == b","):
            block.mark(stop, end)
            self._learn(end, block, stop)

    def _align_start(self, start: str, end: str, pieces: Sequence[bytes], size: int) -> bool:
        """Index `start` in the block that leads to `end`.  Return False if there is no such block, or if the block's
        bytes differ."""
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
        # A client may have invented `start`.  The origin then answers from the last position before this offset.  Reads
        # may start at `start`, but no answer to another client may end at `start`.
        block.leads = (*block.leads, start)
        self._learn(start, block, position)
        return True

    def _learn(self, token: str, block: Block, position: int) -> None:
        self._index[token] = (block, position)
        self.cost += token_cost(token)

    def drop_oldest(self) -> int:
        """Drop the oldest block, or the synonyms if there is no block; return the cost freed."""
        first = next(iter(self._blocks.values()), None)
        if first is None:
            return self.drop_all()
        before = self.cost
        self._drop(first)
        return before - self.cost

    def drop_before(self, token: str) -> int:
        """Drop all tokens before `token` and their bytes, because the origin has trimmed them; return the cost freed.

        If `token` is not indexed, the bytes up to the next token are dropped too.
        """
        return self._drop_known(lambda known: is_before(known, token))

    def drop_through(self, token: str) -> int:
        """Drop `token`, all earlier tokens and their bytes, because the origin has trimmed them; return the cost freed.

        Unless the tail lies after `token`, the tail, the final offset of a closed stream, and the offset at which a
        reply stopped short of the tail are forgotten too.
        """
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
            # If `_ending` had a dropped block for this token, a remaining block replaces the dropped block.
            self._ending.setdefault(block.end, block)
        for held in (self._index, self._synonyms):
            for known in [known for known in held if is_dropped(known)]:
                del held[known]
                self.cost -= token_cost(known)
        return before - self.cost

    def _drop(self, block: Block) -> None:
        del self._blocks[block.start]
        known = (*(token for _, token in block.marks), *block.leads)
        tokens = {token for token in known if self._index.get(token, (None, 0))[0] is block}
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
        # Keep the block's place, because `drop_oldest` drops the blocks in this order.
        self._blocks = {one.start: one for one in (rest if one is block else one for one in self._blocks.values())}
        if self._ending.get(block.end) is block:
            self._ending[block.end] = rest
        shift = block.size - rest.size
        for known, is_lead in chain(((token, False) for _, token in block.marks), zip(block.leads, repeat(True))):
            holder, at = self._index.get(known, (None, 0))
            if holder is not block:
                continue
            if at < position:
                del self._index[known]
                self.cost -= token_cost(known)
            else:
                self._index[known] = (rest, max(0, at - shift))
                if is_lead:
                    rest.leads = (*rest.leads, known)
        self.cost -= shift

    def drop_all(self) -> int:
        """Drop all bytes and tokens, but keep the tail and the final offset of a closed stream; return the cost
        freed."""
        before = self.cost
        self._clear()
        return before - self.cost

    def forget_facts(self) -> None:
        """Forget where the stream was closed, and where a reply stopped short of the tail."""
        self.closed_at = None
        self.short_of_tail = None

    def _clear(self) -> None:
        self._blocks.clear()
        self._index.clear()
        self._ending.clear()
        self._synonyms = _NO_SYNONYMS
        self.cost = TAPE_COST
