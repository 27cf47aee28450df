"""The idempotent producers of one stream: their progress and fencing (section 5.2.1).

A request is checked by `judge`, which changes nothing, and recorded by `commit`, which cannot fail.  A body that turns
out invalid in between therefore leaves no trace.  The caller must not await between the two calls, so that validation
and append are one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.origin.refusals import BadRequest, SequenceGap, StaleEpoch

FORGET_AFTER_S: Final = 7 * 24 * 3600.0
"""How long an idle producer is remembered, in seconds (recommended by section 5.2.1 for in-memory stores)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The three producer headers of one request."""

    producer_id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class _Progress:
    epoch: int
    last_seq: int
    used_at: float


class Producers:
    """The producers that a stream has accepted, by id."""

    __slots__ = ("_progress",)

    def __init__(self) -> None:
        self._progress: dict[str, _Progress] = {}

    def judge(self, claim: Claim, now: float) -> int | None:
        """Return None if the claim is new and in sequence, or the highest accepted sequence number for a duplicate.

        Raises StaleEpoch, SequenceGap, or BadRequest for a new epoch that does not begin at 0.
        """
        progress = self._progress.get(claim.producer_id)
        if progress is None or now - progress.used_at > FORGET_AFTER_S:
            if claim.seq != 0:
                raise SequenceGap(0, claim.seq)
            return None
        if claim.epoch < progress.epoch:
            raise StaleEpoch(progress.epoch)
        if claim.epoch > progress.epoch:
            if claim.seq != 0:
                raise BadRequest("New epoch must start with sequence 0")
            return None
        if claim.seq <= progress.last_seq:
            return progress.last_seq
        if claim.seq > progress.last_seq + 1:
            raise SequenceGap(progress.last_seq + 1, claim.seq)
        return None

    def commit(self, claim: Claim, now: float) -> None:
        """Record that the claim's append or close has been executed."""
        self._progress[claim.producer_id] = _Progress(claim.epoch, claim.seq, now)
