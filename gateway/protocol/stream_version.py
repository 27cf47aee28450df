"""The version of a stream's state: one immutable value, which a caller keeps to see later what has changed.

A fetch, a write, a walk or a rendered answer keeps the version that the stream had when it began.  Later it asks that
version a named question: whether the stream is still the same in one respect.  Each change makes another version, so
`seen is stream.version` means that nothing has changed.  Hot paths check this first.

Owner: `gateway.tape.stream.Stream`, which alone replaces its version.  No other module compares the parts.
"""

from __future__ import annotations

from typing import NamedTuple


class Edition(NamedTuple):
    """Identifies the bytes read from a stream, as a key of data derived from them.  When bytes are dropped, a new
    edition begins."""

    incarnation: str
    """The name of the incarnation in entity tags; changes when all bytes are forgotten."""
    withdrawals: int = 0
    """How often bytes were dropped or data derived from them was withdrawn."""


class Version(NamedTuple):
    """Counts of the events that change the state of one stream."""

    edition: Edition
    tail: int = 0
    """Changes of the statement of the tail that answers may make."""
    acks: int = 0
    """Writes acknowledged through this gateway."""
    doubts: int = 0
    """Events after which the origin must be asked before held bytes are sent."""
    end_doubts: int = 0
    """The number of the latest doubt, counted from 1, that may have ended the stream rather than only moved its
    tail."""
    settled: int = 0
    """The number of doubts that came before the latest request that found the stream."""

    @property
    def incarnation(self) -> str:
        """The name of the incarnation in entity tags."""
        return self.edition.incarnation

    # -- questions about the version alone

    @property
    def needs_revalidation(self) -> bool:
        """Whether the origin must be asked before held bytes are used."""
        return self.doubts > self.settled

    @property
    def may_have_ended(self) -> bool:
        """Whether the stream may have ended, so that the origin must confirm it before any held bytes are sent."""
        return self.end_doubts > self.settled

    # -- questions to a version that was seen earlier, about the version `now`

    def same_incarnation_as(self, now: Version) -> bool:
        """Whether the stream's bytes were not forgotten in between.  If they were, a fetch that was sent earlier may
        still bring the forgotten bytes."""
        return self is now or self.edition.incarnation == now.edition.incarnation

    def same_bytes_as(self, now: Version) -> bool:
        """Whether no bytes were dropped in between and nothing derived from them was withdrawn."""
        return self.edition == now.edition

    def same_tail_as(self, now: Version) -> bool:
        """Whether a statement of the tail that was true earlier is still true."""
        return self.tail == now.tail

    def same_doubts_as(self, now: Version) -> bool:
        """Whether no event in between requires that the origin is asked."""
        return self.doubts == now.doubts

    def same_waiting_as(self, now: Version) -> bool:
        """Whether a reader that begins to wait at the tail now would wait for the same answer as earlier: the tail and
        the doubts have not changed."""
        return self is now or (self.tail == now.tail and self.doubts == now.doubts)

    def same_answers_as(self, now: Version) -> bool:
        """Whether an answer that shows bytes and names the tail is still true."""
        return self is now or (self.tail == now.tail and self.doubts == now.doubts and self.edition == now.edition)

    def same_acks_as(self, now: Version) -> bool:
        """Whether no write was acknowledged in between."""
        return self.acks == now.acks

    def same_writes_as(self, now: Version) -> bool:
        """Whether no write was acknowledged or may have been done in between.  After such a write, a refusal that was
        requested earlier says nothing about the present stream."""
        return self.acks == now.acks and self.doubts == now.doubts

    def may_have_ended_by(self, now: Version) -> bool:
        """Whether the stream may have ended in between, so that another may have taken its place."""
        return now.end_doubts > self.doubts

    # -- changes

    def withdrawn(self) -> Version:
        """Bytes were dropped, or data derived from them must not be used any more."""
        (incarnation, withdrawals), tail, acks, doubts, end_doubts, settled = self
        return Version(Edition(incarnation, withdrawals + 1), tail, acks, doubts, end_doubts, settled)

    def incarnated(self, incarnation: str) -> Version:
        """All bytes were forgotten: the origin may send other bytes from now on."""
        return Version(Edition(incarnation, self.edition.withdrawals), *self[1:])

    def tail_changed(self) -> Version:
        """Another statement of the tail is valid now."""
        edition, tail, acks, doubts, end_doubts, settled = self
        return Version(edition, tail + 1, acks, doubts, end_doubts, settled)

    def acknowledged(self) -> Version:
        """A write was acknowledged, which may have moved the tail."""
        edition, tail, acks, doubts, end_doubts, settled = self
        return Version(edition, tail + 1, acks + 1, doubts, end_doubts, settled)

    def doubted(self, *, may_have_ended: bool) -> Version:
        """Something may have ended the stream, or may have moved its tail."""
        edition, tail, acks, doubts, end_doubts, settled = self
        doubts += 1
        return Version(edition, tail, acks, doubts, doubts if may_have_ended else end_doubts, settled)

    def settled_by(self, seen: Version) -> Version:
        """A request sent at the version `seen` has found the stream."""
        return self if seen.doubts <= self.settled else Version(*self[:5], seen.doubts)


FIRST = Version(Edition(""))
"""The version of a stream of which nothing is known yet, not even a name of its incarnation."""
