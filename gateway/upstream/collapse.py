"""Single-flight, for both protocols: one fetch from the origin for all readers that need the same bytes.

Reads stay linearisable by one rule about *which requests may take a fetch's statement of the tail*.  A request that
arrived before the fetch was sent may use it: the origin had seen everything that was acknowledged before that request.
A request that arrives later may use the fetch's bytes, which are immutable, but needs a fetch of its own for the tail.
Each key therefore has at most one fetch on its way and one waiting to be sent, which all later requests share.

The reader that began a fetch has no special role.  If it leaves, the fetch goes on for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from gateway.aio.signal import Signal
from gateway.errors import GatewayError, UpstreamUnreachable, bare
from gateway.limits.queues import Askers


class FetchEnd(StrEnum):
    """How a shared fetch ended."""

    LANDED = "landed"
    """The origin has answered, and the answer is whole."""
    REFUSED = "refused"
    """The origin has answered with an error."""
    FOREIGN = "foreign"
    """The origin's answer may not be shared, or does not follow the protocol."""
    FAILED = "failed"
    """The origin has not answered, or not to the end."""
    GIVEN_UP = "given up"
    """No reader was left, or the fetch's task was stopped."""


class SharedFetch:
    """One fetch: not sent yet, under way, or over."""

    __slots__ = ("askers", "changed", "end", "error", "is_sent")

    def __init__(self, client: str) -> None:
        self.askers = Askers(client)
        """The nets of the clients that wait for it."""
        self.is_sent = False
        """Whether the request may have reached the origin.  A later reader must not treat its answer as fresh."""
        self.end: FetchEnd | None = None
        self.error: GatewayError | None = None
        """Why it failed or was given up."""
        self.changed = Signal()
        """Fires when the fetch has advanced, and at its end."""

    @property
    def is_over(self) -> bool:
        return self.end is not None

    def land(self, end: FetchEnd = FetchEnd.LANDED) -> None:
        """The origin has answered."""
        self.end = end
        self.changed.fire()

    def fail(self, error: GatewayError, end: FetchEnd = FetchEnd.FAILED) -> None:
        """The fetch has ended without a whole answer."""
        self.error = bare(error)
        self.end = end
        self.changed.fire()

    def give_up(self) -> None:
        """The fetch ends without a result, because no reader is left or its task has stopped."""
        self.fail(UpstreamUnreachable("Fetch was given up"), FetchEnd.GIVEN_UP)

    async def until_over(self) -> None:
        """Wait for the end."""
        while not self.is_over:
            await self.changed.wait()


K = TypeVar("K", bound=Hashable)
F = TypeVar("F", bound=SharedFetch)


class Lead(NamedTuple, Generic[F]):
    """A new fetch, which the caller must run."""

    fetch: F


class Follow(NamedTuple, Generic[F]):
    """The fetch was begun for an earlier reader, and has not been sent yet."""

    fetch: F


class Collapse(Generic[K, F]):
    """The latest fetch of each key.  Decides which readers share a fetch; the owner sends it."""

    def __init__(self) -> None:
        self._fetches: dict[K, F] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    def __iter__(self) -> Iterator[tuple[K, F]]:
        return iter(self._fetches.items())

    def pending(self, key: K) -> F | None:
        """The latest fetch of this key unless it is over, sent or not."""
        fetch = self._fetches.get(key)
        return fetch if fetch is not None and not fetch.is_over else None

    def join_fetch(self, key: K, client: str, begin: Callable[[], F]) -> Lead[F] | Follow[F]:
        """The fetch of this key that has not been sent, for a reader of the net `client`.

        If there is none, `begin` makes one, even if an earlier one is under way; `work_ended` must follow.
        """
        if (fetch := self.unsent(key, client)) is not None:
            return Follow(fetch)
        fetch = self._fetches[key] = begin()
        return Lead(fetch)

    def unsent(self, key: K, client: str) -> F | None:
        """The fetch of this key that has not been sent, which a reader of the net `client` joins; None if there is
        none."""
        fetch = self._fetches.get(key)
        if fetch is None or fetch.is_sent or fetch.is_over:
            return None
        fetch.askers.add_client(client)
        return fetch

    def add_fetch(self, key: K, fetch: F) -> None:
        """Add a fetch that its reader has begun; `work_ended` must follow."""
        self._fetches[key] = fetch

    def work_ended(self, key: K, fetch: F) -> None:
        """The work of the fetch has ended, which gives it up if it is not over."""
        if not fetch.is_over:
            fetch.give_up()
        if self._fetches.get(key) is fetch:
            del self._fetches[key]
