"""The version of a stream's state: an immutable value.  A caller keeps it, to check later whether the state has
changed.

A fetch, a write, a read or a rendered answer keeps the version that the stream had when it began.  Later, it compares
that version with the present version.  The comparison is a method for the relevant aspect, such as `same_tail_as`.
Each change makes a new object, so `seen is stream.version` means that nothing has changed.  Hot paths check for this
identity first.

Only `gateway.tape.stream.Stream` replaces its version, and no other module compares the fields.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.tuples import make


class Edition(NamedTuple):
    """Identifies the bytes of a stream in memory.  Data derived from the bytes is valid while the stream has the same
    edition.  Dropping bytes starts a new edition.
    """

    incarnation: str
    """The incarnation's name in entity tags.  It changes when all bytes are dropped."""
    withdrawals: int = 0
    """The number of times that bytes were dropped, or that data derived from them was invalidated."""


class Version(NamedTuple):
    """Counts of the events that change a stream's state.

    A *doubt* is an event after which the origin must be asked before bytes in memory are sent, such as a write without
    an answer.  A reply that finds the stream settles the doubts that were raised before its request.
    """

    edition: Edition
    tail: int = 0
    """The number of changes of the tail that answers may state."""
    acks: int = 0
    """The number of acknowledged writes through this gateway."""
    doubts: int = 0
    """The number of doubts so far."""
    end_doubts: int = 0
    """The number, counted from 1, of the latest doubt about whether the stream still exists.  Other doubts concern only
    its tail.
    """
    another_doubts: int = 0
    """The number of the latest doubt about whether another stream has taken the stream's place.  Such a doubt also
    concerns whether the stream exists.
    """
    settled: int = 0
    """The number of settled doubts."""

    @property
    def incarnation(self) -> str:
        """The incarnation's name in entity tags."""
        return self.edition.incarnation

    # -- properties of one version

    @property
    def needs_revalidation(self) -> bool:
        """Whether the origin must be asked before bytes in memory are sent."""
        return self.doubts > self.settled

    @property
    def may_have_ended(self) -> bool:
        """Whether the stream may have ended, so that the origin must confirm that it exists."""
        return self.end_doubts > self.settled

    @property
    def may_be_another(self) -> bool:
        """Whether another stream may have taken the stream's place."""
        return self.another_doubts > self.settled

    # -- comparisons of an earlier version, `self`, with the present one, `now`

    def same_incarnation_as(self, now: Version) -> bool:
        """Return whether the stream has kept its bytes.

        If the stream has not kept its bytes, a fetch that was sent earlier may still bring the old bytes.
        """
        return self is now or self.edition.incarnation == now.edition.incarnation

    def same_bytes_as(self, now: Version) -> bool:
        """Return whether no bytes were dropped, and no data derived from them was invalidated."""
        return self.edition == now.edition

    def same_tail_as(self, now: Version) -> bool:
        """Return whether an earlier statement of the tail is still valid."""
        return self.tail == now.tail

    def same_doubts_as(self, now: Version) -> bool:
        """Return whether no doubt was raised."""
        return self.doubts == now.doubts

    def same_waiting_as(self, now: Version) -> bool:
        """Return whether a reader that starts to wait at the tail now may share the answer of a reader that started
        earlier.
        """
        return self is now or (self.tail == now.tail and self.doubts == now.doubts)

    def same_answers_as(self, now: Version) -> bool:
        """Return whether an earlier answer with bytes and a tail is still valid."""
        return self is now or (self.tail == now.tail and self.doubts == now.doubts and self.edition == now.edition)

    def same_acks_as(self, now: Version) -> bool:
        """Return whether no write was acknowledged."""
        return self.acks == now.acks

    def same_writes_as(self, now: Version) -> bool:
        """Return whether no write was acknowledged and no doubt was raised.

        If this is false, the error answer to an earlier request may not be valid for the present stream.
        """
        return self.acks == now.acks and self.doubts == now.doubts

    def may_have_ended_by(self, now: Version) -> bool:
        """Return whether the stream may have ended since `self`, so that another stream may have taken its place."""
        return now.end_doubts > self.doubts

    # -- changes; each returns the new version

    def withdrawn(self) -> Version:
        """Return the version after bytes were dropped, or data derived from them was invalidated."""
        incarnation, withdrawals = self.edition
        return make(Version, (make(Edition, (incarnation, withdrawals + 1)), *self[1:]))

    def incarnated(self, incarnation: str) -> Version:
        """Return the version after all bytes were dropped: the origin may send different bytes from now on."""
        return Version(Edition(incarnation, self.edition.withdrawals), *self[1:])

    def tail_changed(self) -> Version:
        """Return the version after a change of the tail that answers may state."""
        return make(Version, (self.edition, self.tail + 1, *self[2:]))

    def acknowledged(self) -> Version:
        """Return the version after an acknowledged write, which may have moved the tail."""
        return make(Version, (self.edition, self.tail + 1, self.acks + 1, *self[3:]))

    def doubted(self, *, may_have_ended: bool, may_be_another: bool) -> Version:
        """Return the version after an event that raises a doubt.  `may_be_another` implies `may_have_ended`."""
        edition, tail, acks, doubts, end_doubts, another_doubts, settled = self
        doubts += 1
        end_doubts = doubts if may_have_ended or may_be_another else end_doubts
        return Version(edition, tail, acks, doubts, end_doubts, doubts if may_be_another else another_doubts, settled)

    def settled_by(self, seen: Version) -> Version:
        """Return the version after a request, sent at the version `seen`, has found the stream."""
        return self if seen.doubts <= self.settled else make(Version, (*self[:6], seen.doubts))


FIRST = Version(Edition(""))
"""The version of a stream about which nothing is known yet, not even the name of its incarnation."""
