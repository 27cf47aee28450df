"""The runs of one stream on disk, in memory: where each range of its bytes is, and what is still to be written.

The runs of a stream do not overlap, and are in the order of their tokens.  There may be gaps between them.

Runs are *bound* to the incarnation of a stream in memory when it is known that their bytes belong to it: it wrote them,
or the origin has confirmed them.  After a restart, or when the stream has left memory, the runs are not bound to any
stream in memory.  The origin then has to confirm them before they are used (`gateway.engine.from_disk`): a read from
the *check* must bring the same bytes.  The check of a run is its last token that has `CHECK_BYTES` after it in the run.
The check of the stream is that of the latest run, or of an earlier run if the latest ones are smaller than that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, compress
from typing import Final, NamedTuple

from gateway.aio.signal import Signal
from gateway.disk.index import Facts, StoredKey
from gateway.disk.writer_thread import Place
from gateway.protocol.names import START, is_before
from gateway.protocol.sharing import Group
from gateway.tape.block import Block
from gateway.tape.stream import Stream

RUN_BYTES: Final = 1 << 18
"""The usual size of a run.  A run is longer if the origin has named no token within this size."""
MOST_MARKS: Final = 1_024
"""The most tokens of a run."""
CHECK_BYTES: Final = 1 << 12
"""The least bytes that confirm a run.  The last message alone would show little, if all streams end with an equal
message."""


class Proof(NamedTuple):
    """The origin has sent the bytes after a token again, and they were those on disk."""

    at: float
    """When the origin was asked (monotonic seconds)."""
    is_exact: bool
    """Whether the bytes on disk reach as far as each of the replies."""


class Run:
    """A run.  Its bytes can be read once it has a place."""

    __slots__ = ("body", "check", "end", "place", "start")

    def __init__(self, start: str, end: str, check: str, body: int, place: Place | None = None) -> None:
        self.start = start
        self.end = end
        self.check = check
        self.body = body
        """The number of the stream's bytes."""
        self.place = place

    def __repr__(self) -> str:
        return f"<Run {self.start} to {self.end}, {self.body} bytes>"

    @classmethod
    def of(cls, block: Block) -> Run:
        """Return the run that a block is written as."""
        return cls(block.start, block.end, check_of(block), block.size)


def check_of(block: Block) -> str:
    """Return the last token of the block with at least `CHECK_BYTES` after it; its first token if there is none."""
    return next((token for at, token in reversed(block.marks) if block.size - at >= CHECK_BYTES), block.start)


def _order(token: str) -> tuple[bool, str]:
    return token != START, token


class StoredStream:
    """A stream on disk.  Owner: the `DiskStore`."""

    def __init__(self, number: int, key: StoredKey, facts: Facts) -> None:
        self.number = number
        self.key = key
        self.facts = facts
        self.incarnation: str | None = None
        """The incarnation of the stream in memory that the runs are bound to; None if they are not bound."""
        self.bound_at = -math.inf
        """When the origin was last asked for the end of the runs and has proved it (monotonic seconds)."""
        self.asking = 0
        """How many reads are having the origin confirm the runs."""
        self.proving: dict[str, Signal] = {}
        """The tokens at which reads are having bytes proved.  Each signal fires at the end of the proof."""
        self.is_withdrawn = False
        self.body = 0
        """The number of the stream's bytes in all runs."""
        self._runs: list[Run] = []
        self._starts: list[tuple[bool, str]] = []
        self._proofs: dict[str, Proof] = {}

    def __repr__(self) -> str:
        return f"<StoredStream {self.key.path}, {len(self._runs)} runs, {self.body} bytes>"

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def group(self) -> Group:
        """The path of the stream."""
        return Group(self.key.origin, self.key.path)

    def is_bound_to(self, stream: Stream) -> bool:
        """Return whether the runs may be used for this stream in memory."""
        return self.incarnation == stream.version.incarnation and not self.is_withdrawn and stream.ended is None

    def bind(self, stream: Stream, at: float) -> None:
        """Let the runs be used for this stream in memory, because the origin was asked at this time and has proved
        their end."""
        if self.incarnation != stream.version.incarnation:
            self.incarnation = stream.version.incarnation
            self._proofs.clear()
        self.bound_at = at

    def proven(self, token: str, proof: Proof) -> None:
        """Record a proof of the bytes after `token`."""
        self._proofs[token] = proof

    def proof_for(self, token: str, since: float, stretch: int) -> Proof | None:
        """Return the nearest proof, later than `since`, at `token` or before it; None if there is none.

        The proof is in the run of `token` or in the runs before it without a gap, which have at most `stretch` bytes.
        """
        self._proofs = {known: proof for known, proof in self._proofs.items() if proof.at > since}
        nearest = max((_order(known) for known in self._proofs if not is_before(token, known)), default=None)
        at = bisect_right(self._starts, _order(token)) - 1
        while nearest is not None and at >= 0:
            if self._starts[at] <= nearest:
                return self._proofs[nearest[1]] if is_before(nearest[1], self._runs[at].end) else None
            at -= 1
            if at < 0 or self._runs[at].end != self._runs[at + 1].start:
                return None
            stretch -= self._runs[at].body
            if stretch < 0:
                return None
        return None

    def add(self, run: Run) -> bool:
        """Add a run; return False, and add nothing, if it overlaps another run."""
        at = bisect_right(self._starts, _order(run.start))
        if at and is_before(run.start, self._runs[at - 1].end):
            return False
        if at < len(self._runs) and is_before(self._runs[at].start, run.end):
            return False
        self._runs.insert(at, run)
        self._starts.insert(at, _order(run.start))
        self.body += run.body
        return True

    def remove(self, run: Run) -> bool:
        """Remove a run; return False if it is not there."""
        at = bisect_right(self._starts, _order(run.start)) - 1
        if at < 0 or self._runs[at] is not run:
            return False
        del self._runs[at], self._starts[at]
        self.body -= run.body
        return True

    def remove_segment(self, segment: int) -> int:
        """Remove the runs that a segment has; return their number."""
        # A stream may have many runs, so this is one pass.
        is_kept = [run.place is None or run.place.segment != segment for run in self._runs]
        removed = [run for run, kept in zip(self._runs, is_kept, strict=True) if not kept]
        self._runs, self._starts = list(compress(self._runs, is_kept)), list(compress(self._starts, is_kept))
        for run in removed:
            run.place = None
            self.body -= run.body
        return len(removed)

    def at(self, token: str) -> Run | None:
        """Return the run that has the bytes after `token`, if `token` is one of its tokens; None if there is none."""
        at = bisect_right(self._starts, _order(token)) - 1
        return self._runs[at] if at >= 0 and is_before(token, self._runs[at].end) else None

    @property
    def latest(self) -> Run | None:
        """The last run that can be read."""
        return next((run for run in reversed(self._runs) if run.place is not None), None)

    @property
    def check(self) -> str | None:
        """The token at which the end of the runs is proved; None if no run can be read.

        At least `CHECK_BYTES` follow it without a gap, if the runs have as many there.
        """
        check: str | None = None
        start, size = "", 0
        for run in reversed(self._runs):
            if check is not None and (run.place is None or run.end != start):
                break
            if run.place is None:
                continue
            start, size = run.start, size + run.body
            check = run.check if run.body >= CHECK_BYTES else start
            if size >= CHECK_BYTES:
                break
        return check

    def has_from(self, token: str, least: int) -> bool:
        """Return whether the run at `token` and the later runs have at least `least` bytes."""
        at = bisect_right(self._starts, _order(token)) - 1
        if at < 0 or not is_before(token, self._runs[at].end):
            return False
        # A stream may have many runs.
        return any(total >= least for total in accumulate(self._runs[one].body for one in range(at, len(self._runs))))

    def missing(self, block: Block, least: int, most: int) -> Iterator[Block]:
        """Return the bytes of a block that are to be written, as blocks of the size of a run.

        These are the bytes after the last token that is on disk.  The last block is left out if it is smaller than
        `least`, and each block that is larger than `most`.
        """
        marks = block.marks
        at = len(marks)
        while at and self.at(marks[at - 1][1]) is None:
            at -= 1
        if at:
            run = self.at(marks[at - 1][1])
            assert run is not None
            # The run has to end at a token of the block.  If not, the two do not fit together.
            if at == len(marks) or marks[at][1] != run.end:
                return
        while at < len(marks):
            position, token = marks[at]
            if block.size - position < least:
                return
            stop, end = block.stop_before(position, RUN_BYTES) or block.stop_after(position)
            if at + MOST_MARKS < len(marks) and marks[at + MOST_MARKS][0] < stop:
                stop, end = marks[at + MOST_MARKS]
            if stop - position <= most:
                yield block.part(position, token, stop, end)
            at = bisect_right(marks, stop, key=lambda mark: mark[0]) - 1
            if stop >= block.size:
                return
