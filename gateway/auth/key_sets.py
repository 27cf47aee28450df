"""The key sets that issuers publish by URL (RFC 7517 section 5), and the decision when to fetch a key set.  No I/O.

A key set is fetched at start, and again before its lifetime ends.  It is also fetched if a token names a key that the
set does not have.  Clients can invent such tokens, so they cause at most one fetch in `LEAST_S` seconds.  A failed
fetch does not change the keys, and is repeated after a growing pause.

A token whose key is not in the set is invalid only if the set was fetched because of this token, or if the set had the
key before.  Otherwise the token is undecided: the issuer may have added the key since the latest fetch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from gateway.auth.questions import KeySource, Undecided, UnknownKey

if TYPE_CHECKING:
    from gateway.auth.keys import KeyRing, VerifyingKey

LEAST_S: Final = 10.0
"""The least seconds between two fetches that are caused by tokens with unknown keys."""
DEFAULT_LIFETIME_S: Final = 600.0
"""The lifetime of a key set whose reply states none."""
_LEAST_LIFETIME_S: Final = 60.0
_MOST_LIFETIME_S: Final = 86_400.0
_AHEAD: Final = (0.75, 0.9)
"""A key set is fetched again after a share of its lifetime.  The share is a random value between these two."""
_FIRST_PAUSE_S: Final = 1.0
_MOST_PAUSE_S: Final = 30.0
"""The longest pause after a failure, in seconds.  Up to this bound, each pause is twice as long as the previous one."""


class KeySet:
    """The latest keys of one source.  `now` returns monotonic seconds."""

    def __init__(self, source: KeySource, now: Callable[[], float]) -> None:
        self.source = source
        self.ring: KeyRing | None = None
        """The keys; None before the first successful fetch."""
        self.version = 0
        """The number of times that a key was withdrawn or replaced.  A token that was verified at an earlier version is
        verified again."""
        self._withdrawn: frozenset[str | None] = frozenset()
        """The ids of the keys that were withdrawn last."""
        self.fetched_at = -math.inf
        self.due_at = now()
        """The time at which the next scheduled fetch is due."""
        self.is_fetching = False
        self.fetches = 0
        self.failures = 0
        self.failed_in_a_row = 0
        self.problem = ""
        """The reason why the latest fetch failed; empty if it succeeded."""
        self._now = now

    def __repr__(self) -> str:
        keys = len(self.ring.keys) if self.ring is not None else 0
        return f"<KeySet {self.source.issuer}: {keys} keys, {self.fetches} fetches, {self.failures} failures>"

    def keys_for(self, kid: str | None, alg: str, kind: str) -> tuple[VerifyingKey, ...]:
        """Find the keys for a token like `KeyRing.keys_for`.  If there is none, raises like `check_complete`."""
        if self.ring is not None and (found := self.ring.keys_for(kid, alg, kind)):
            return found
        self.check_complete(kid)
        return ()

    def check_complete(self, kid: str | None) -> None:
        """Raise Undecided if a fetch may find the key with this id, and UnknownKey if that fetch may not begin yet."""
        wait_s = self._earliest - self._now()
        if self.is_fetching or wait_s <= 0:
            raise Undecided(self.source)
        if self.failed_in_a_row or self.ring is None:
            raise Undecided(None, wait_s)
        if kid is not None and kid not in self._withdrawn and all(one.kid != kid for one in self.ring.keys):
            raise UnknownKey(None, wait_s)

    @property
    def age_s(self) -> float:
        """The seconds since the latest successful fetch; infinite if there was none."""
        return self._now() - self.fetched_at

    @property
    def _earliest(self) -> float:
        """Return the time from which a token may cause the next fetch."""
        return self.due_at if self.failed_in_a_row or self.ring is None else self.fetched_at + LEAST_S

    def begin_fetch(self) -> bool:
        """Record the start of a fetch that a token needs.  Return False if a fetch is in progress, or the latest fetch
        was too recent.
        """
        return self._begin(self._earliest)

    def begin_due_fetch(self) -> bool:
        """Record the start of a scheduled fetch.  Return False if a fetch is in progress or not yet due."""
        return self._begin(self.due_at)

    def _begin(self, earliest: float) -> bool:
        if self.is_fetching or self._now() < earliest:
            return False
        self.is_fetching = True
        return True

    def fetched(self, ring: KeyRing, lifetime_s: float, share: float) -> frozenset[str | None]:
        """Replace the keys by fetched keys, and return the ids of the withdrawn keys.

        The keys are fresh for `lifetime_s` seconds, within bounds.  `share` is a random number from 0 to 1, which
        decides the time of the next fetch.
        """
        withdrawn = self.ring.names() - ring.names() if self.ring is not None else frozenset()
        self.version += bool(withdrawn)
        ids = frozenset(kid for kid, _, _ in withdrawn)
        self._withdrawn = ids or self._withdrawn
        self.ring, self.fetched_at, self.is_fetching = ring, self._now(), False
        self.fetches += 1
        self.failed_in_a_row, self.problem = 0, ""
        lifetime_s = min(max(lifetime_s, _LEAST_LIFETIME_S), _MOST_LIFETIME_S)
        self.due_at = self.fetched_at + lifetime_s * (_AHEAD[0] + (_AHEAD[1] - _AHEAD[0]) * share)
        return ids

    def fetch_failed(self, problem: str, share: float) -> None:
        """Record a failed fetch.  The keys do not change."""
        self.is_fetching = False
        self.failures += 1
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self.failed_in_a_row, 10), _MOST_PAUSE_S)
        self.failed_in_a_row += 1
        self.problem = problem
        self.due_at = self._now() + pause_s * (0.75 + 0.25 * share)


class KeySets:
    """The key sets of a process."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sets: dict[KeySource, KeySet] = {}

    def __repr__(self) -> str:
        return f"<KeySets {list(self._sets.values())}>"

    def keep_sources(self, sources: Iterable[KeySource]) -> None:
        """Keep the key sets of these sources, create the missing ones, and drop the key sets of all other sources."""
        self._sets = {one: self._sets.get(one) or KeySet(one, self._now) for one in sources}

    def look(self) -> tuple[KeySet, ...]:
        """Return all key sets."""
        return tuple(self._sets.values())

    def find_set(self, source: KeySource) -> KeySet | None:
        """Return the key set of a source; None if no rule uses the source."""
        return self._sets.get(source)
