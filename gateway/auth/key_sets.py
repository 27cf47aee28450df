"""Key sets that issuers publish by URL (RFC 7517 section 5), and when they are fetched: the decisions, without I/O.

A key set is fetched at start, and again ahead of the end of its lifetime.  It is also fetched for a token that names a
key which the set does not hold.  Clients choose these names, so this happens at most once in `LEAST_S` seconds.  A
fetch that fails changes no key: the next one comes after a pause that grows with each failure.

So a token's key is found, unknown, or undecided.  A key that is not in the set is unknown if the set was fetched in the
last `LEAST_S` seconds.  It is undecided until a fetch that could have brought it has succeeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from gateway.auth.questions import KeySource, Undecided

if TYPE_CHECKING:
    from gateway.auth.keys import KeyRing, VerifyingKey

LEAST_S: Final = 10.0
"""Least time between two fetches that tokens with unknown keys cause."""
DEFAULT_LIFETIME_S: Final = 600.0
"""Lifetime of a key set whose reply states none."""
_LEAST_LIFETIME_S: Final = 60.0
_MOST_LIFETIME_S: Final = 86_400.0
_AHEAD: Final = (0.75, 0.9)
"""The part of its lifetime after which a key set is fetched again, jittered."""
_FIRST_PAUSE_S: Final = 1.0
_MOST_PAUSE_S: Final = 30.0
"""The longest pause after a failure, in seconds.  Each pause is twice as long as the one before it."""


class KeySet:
    """The keys of one source, as they were fetched last.  `now` is the time in monotonic seconds."""

    def __init__(self, source: KeySource, now: Callable[[], float]) -> None:
        self.source = source
        self.ring: KeyRing | None = None
        """None if the keys were never fetched."""
        self.version = 0
        """The version of the keys, which grows whenever a key is withdrawn or replaced."""
        self.fetched_at = -math.inf
        self.due_at = now()
        """When the next fetch is due, whether or not a token needs it."""
        self.is_fetching = False
        self.fetches = 0
        self.failures = 0
        self.failed_in_a_row = 0
        self.problem = ""
        """Why the latest fetch failed; empty if it succeeded."""
        self._now = now

    def __repr__(self) -> str:
        keys = len(self.ring.keys) if self.ring is not None else 0
        return f"<KeySet {self.source.issuer}: {keys} keys, {self.fetches} fetches, {self.failures} failures>"

    def keys_for(self, kid: str | None, alg: str, kind: str) -> tuple[VerifyingKey, ...]:
        """Like `KeyRing.keys_for`.  Raises Undecided if a fetch may bring the key."""
        if self.ring is not None and (found := self.ring.keys_for(kid, alg, kind)):
            return found
        wait_s = self._earliest - self._now()
        if self.is_fetching or wait_s <= 0:
            raise Undecided(self.source)
        if self.failed_in_a_row or self.ring is None:
            raise Undecided(None, wait_s)
        return ()

    @property
    def age_s(self) -> float:
        """Seconds since the keys were fetched; infinite if they never were."""
        return self._now() - self.fetched_at

    @property
    def _earliest(self) -> float:
        """When a token may cause the next fetch."""
        return self.due_at if self.failed_in_a_row or self.ring is None else self.fetched_at + LEAST_S

    def begin_fetch(self) -> bool:
        """Begin a fetch that a token needs; False if a fetch is in progress, or if it is too early."""
        return self._begin(self._earliest)

    def begin_due_fetch(self) -> bool:
        """Begin a fetch if one is due and none is in progress; returns whether it has begun."""
        return self._begin(self.due_at)

    def _begin(self, earliest: float) -> bool:
        if self.is_fetching or self._now() < earliest:
            return False
        self.is_fetching = True
        return True

    def fetched(self, ring: KeyRing, lifetime_s: float, share: float) -> frozenset[str | None]:
        """Use the fetched keys, which are fresh for `lifetime_s`; `share`, from 0 to 1, jitters the next fetch.
        Returns the ids of the keys that were withdrawn."""
        withdrawn = self.ring.names() - ring.names() if self.ring is not None else frozenset()
        self.version += bool(withdrawn)
        self.ring, self.fetched_at, self.is_fetching = ring, self._now(), False
        self.fetches += 1
        self.failed_in_a_row, self.problem = 0, ""
        lifetime_s = min(max(lifetime_s, _LEAST_LIFETIME_S), _MOST_LIFETIME_S)
        self.due_at = self.fetched_at + lifetime_s * (_AHEAD[0] + (_AHEAD[1] - _AHEAD[0]) * share)
        return frozenset(kid for kid, _, _ in withdrawn)

    def fetch_failed(self, problem: str, share: float) -> None:
        """Record that the fetch has failed; the keys stay as they are."""
        self.is_fetching = False
        self.failures += 1
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self.failed_in_a_row, 10), _MOST_PAUSE_S)
        self.failed_in_a_row += 1
        self.problem = problem
        self.due_at = self._now() + pause_s * (0.75 + 0.25 * share)


class KeySets:
    """Owner of the key sets of a process."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sets: dict[KeySource, KeySet] = {}

    def __repr__(self) -> str:
        return f"<KeySets {list(self._sets.values())}>"

    def keep_sources(self, sources: Iterable[KeySource]) -> None:
        """From now on keep the key sets of these sources, with their known keys, and forget the others."""
        self._sets = {one: self._sets.get(one) or KeySet(one, self._now) for one in sources}

    def look(self) -> tuple[KeySet, ...]:
        """All key sets."""
        return tuple(self._sets.values())

    def find_set(self, source: KeySource) -> KeySet | None:
        """The key set of a source; None if no rule names the source any more."""
        return self._sets.get(source)
