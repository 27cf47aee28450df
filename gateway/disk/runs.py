"""The index in memory of a stream's runs on disk: where each run is, and which bytes are still to be written.

A run is a range of the stream's bytes.  The runs of a stream do not overlap, and are in the order of their tokens.
There may be gaps between them.

Runs are *bound* to an incarnation of a stream in memory if their bytes are known to belong to that incarnation.  This
is known if that stream wrote them, or if the origin has confirmed them.  After a restart, or after the stream was
removed from memory, the runs are not bound to any stream.  The origin must confirm them first: a read from a token near
their end (the *check*) must return the bytes that are on disk (`gateway.engine.from_disk`).

The check of a run is its last token after which the run has at least `CHECK_BYTES`.  The check of a stream is the check
of its latest run.  If the latest runs have fewer than `CHECK_BYTES`, and no gap is before them, the check is in an
earlier run.
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
"""The usual size of a run in bytes.  A run is longer if the origin has given no token within this size."""
MOST_MARKS: Final = 1_024
"""The maximum number of tokens in a run."""
CHECK_BYTES: Final = 1 << 12
"""The least number of bytes that confirm the runs, if the runs have this many.  One message is too little evidence,
because many streams may end with the same message."""


class Proof(NamedTuple):
    """A confirmation: the origin's bytes after a token were equal to the bytes on disk."""

    at: float
    """The time just before the first request to the origin (monotonic seconds)."""
    is_exact: bool
    """Whether no reply went beyond the end of the run with which it was compared."""


class Run:
    """A run.  Its bytes can be read once it has a place in a segment file."""

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
        """Return the run for the bytes of a block.  The run has no place yet."""
        return cls(block.start, block.end, check_of(block), block.size)


def check_of(block: Block) -> str:
    """Return the last token after which the block has at least `CHECK_BYTES`; the block's first token if there is no
    such token."""
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
        """The time of the latest request whose reply confirmed the last bytes of the runs (monotonic seconds)."""
        self.asking = 0
        """The number of reads that wait until the origin confirms the runs."""
        self.proving: dict[str, Signal] = {}
        """The tokens whose following bytes are being confirmed.  Each signal fires at the end of the confirmation."""
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
        """The origin and the path of the stream."""
        return Group(self.key.origin, self.key.path)

    def is_bound_to(self, stream: Stream) -> bool:
        """Return whether the runs may be used for this stream in memory."""
        return self.incarnation == stream.version.incarnation and not self.is_withdrawn and stream.ended is None

    def bind(self, stream: Stream, at: float) -> None:
        """Bind the runs to this stream.  A request at the time `at` has confirmed their last bytes."""
        if self.incarnation != stream.version.incarnation:
            self.incarnation = stream.version.incarnation
            self._proofs.clear()
        self.bound_at = at

    def proven(self, token: str, proof: Proof) -> None:
        """Record a confirmation of the bytes after `token`."""
        self._proofs[token] = proof

    def proof_for(self, token: str, since: float, stretch: int) -> Proof | None:
        """Return the nearest confirmation at `token` or before it; None if there is none.

        Only confirmations later than `since` count.  The confirmation belongs to the run of `token`, or to a run before
        it with no gap between them.  The runs before the run of `token`, back to the run of the confirmation, have at
        most `stretch` bytes in all.
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
        """Remove the runs in a segment; return their number."""
        # A stream may have many runs, so remove all of them in one pass.
        is_kept = [run.place is None or run.place.segment != segment for run in self._runs]
        removed = [run for run, kept in zip(self._runs, is_kept, strict=True) if not kept]
        self._runs, self._starts = list(compress(self._runs, is_kept)), list(compress(self._starts, is_kept))
        for run in removed:
            run.place = None
            self.body -= run.body
        return len(removed)

    def at(self, token: str) -> Run | None:
        """Return the run whose range contains `token`; None if there is none.  The end of a run is not in its range."""
        at = bisect_right(self._starts, _order(token)) - 1
        return self._runs[at] if at >= 0 and is_before(token, self._runs[at].end) else None

    @property
    def latest(self) -> Run | None:
        """The last run that can be read; None if there is none."""
        return next((run for run in reversed(self._runs) if run.place is not None), None)

    @property
    def check(self) -> str | None:
        """The token from which the origin must confirm the last bytes of the runs; None if no run can be read.

        If possible, at least `CHECK_BYTES` contiguous bytes follow this token.
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
        """Return whether the run that contains `token` and the later runs have at least `least` bytes in all."""
        at = bisect_right(self._starts, _order(token)) - 1
        if at < 0 or not is_before(token, self._runs[at].end):
            return False
        # A stream may have many runs, so stop as soon as the sum reaches `least`.
        return any(total >= least for total in accumulate(self._runs[one].body for one in range(at, len(self._runs))))

    def missing(self, block: Block, least: int, most: int) -> Iterator[Block]:
        """Return the bytes of a block that must still be written, as blocks of the size of a run.

        These are the bytes after the last run on disk that contains a token of the block.  The last block is left out
        if it has fewer than `least` bytes.  Each block with more than `most` bytes is left out too.
        """
        marks = block.marks
        at = len(marks)
        while at and self.at(marks[at - 1][1]) is None:
            at -= 1
        if at:
            run = self.at(marks[at - 1][1])
            assert run is not None
            # The next token of the block must be the end of the run.  If it is another token, the run and the block do
            # not match.  If there is no next token, all bytes of the block are on disk.
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
