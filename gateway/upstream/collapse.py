"""Request collapsing for both protocols: one fetch from the origin for all readers that need the same bytes.

One rule makes reads linearisable.  A reader may use the tail that a fetch reports only if the reader's request arrived
before the fetch was sent.  In that case, the reply to the fetch includes every write that was acknowledged before the
reader's request.  A later reader may use the bytes of the fetch, because they are immutable.  But a later reader needs
another fetch for the tail.  Each key therefore has at most one fetch in progress and one fetch that has not been sent
yet.  All later readers share the unsent fetch.

A fetch does not depend on the reader that started it.  If this reader leaves, the fetch continues for the other
readers.
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
    """The complete reply has arrived."""
    REFUSED = "refused"
    """The origin has answered with an error."""
    FOREIGN = "foreign"
    """The reply may not be shared, or does not follow the protocol."""
    FAILED = "failed"
    """No reply, or only a part of it, has arrived."""
    GIVEN_UP = "given up"
    """All readers have left, or the fetch's task was cancelled."""


class SharedFetch:
    """One fetch: not sent yet, in progress, or over."""

    __slots__ = ("askers", "changed", "end", "error", "is_sent")

    def __init__(self, client: str) -> None:
        self.askers = Askers(client)
        """The networks of the clients that wait for the fetch."""
        self.is_sent = False
        """Whether the request may have been sent.  If true, a reader that arrives now must not use the fetch's tail."""
        self.end: FetchEnd | None = None
        """The way in which the fetch has ended; None until it has ended."""
        self.error: GatewayError | None = None
        """The reason why the fetch failed or was given up; None if it did not."""
        self.changed = Signal()
        """Fires when the fetch advances, and when it ends."""

    @property
    def is_over(self) -> bool:
        return self.end is not None

    def land(self, end: FetchEnd = FetchEnd.LANDED) -> None:
        """End the fetch with an answer of the origin."""
        self.end = end
        self.changed.fire()

    def fail(self, error: GatewayError, end: FetchEnd = FetchEnd.FAILED) -> None:
        """End the fetch without a complete answer."""
        self.error = bare(error)
        self.end = end
        self.changed.fire()

    def give_up(self) -> None:
        """End the fetch without a result, because all readers have left or its task was cancelled."""
        self.fail(UpstreamUnreachable("Fetch was given up"), FetchEnd.GIVEN_UP)

    async def until_over(self) -> None:
        """Wait for the end."""
        while not self.is_over:
            await self.changed.wait()


K = TypeVar("K", bound=Hashable)
F = TypeVar("F", bound=SharedFetch)


class Lead(NamedTuple, Generic[F]):
    """A new fetch.  The caller must run it."""

    fetch: F


class Follow(NamedTuple, Generic[F]):
    """A fetch that an earlier reader has started, and that has not been sent yet."""

    fetch: F


class Collapse(Generic[K, F]):
    """The latest fetch of each key.  Decides which readers share a fetch.  The owner of this object sends the
    fetches."""

    def __init__(self) -> None:
        self._fetches: dict[K, F] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    def __iter__(self) -> Iterator[tuple[K, F]]:
        return iter(self._fetches.items())

    def pending(self, key: K) -> F | None:
        """Return the latest fetch of this key, sent or unsent.  Return None if the latest fetch is over, or none has
        begun.
        """
        fetch = self._fetches.get(key)
        return fetch if fetch is not None and not fetch.is_over else None

    def join_fetch(self, key: K, client: str, begin: Callable[[], F]) -> Lead[F] | Follow[F]:
        """Join the unsent fetch of this key, or start a new fetch by `begin` if no unsent fetch exists.

        `client` is the network of the reader.  When a new fetch ends, the caller must call `work_ended`.
        """
        if (fetch := self.unsent(key, client)) is not None:
            return Follow(fetch)
        fetch = self._fetches[key] = begin()
        return Lead(fetch)

    def unsent(self, key: K, client: str) -> F | None:
        """Join the unsent fetch of this key, for a reader of the network `client`.  Return None if no unsent fetch
        exists.
        """
        fetch = self._fetches.get(key)
        if fetch is None or fetch.is_sent or fetch.is_over:
            return None
        fetch.askers.add_client(client)
        return fetch

    def add_fetch(self, key: K, fetch: F) -> None:
        """Add a fetch that the caller has started.  When the fetch ends, the caller must call `work_ended`."""
        self._fetches[key] = fetch

    def work_ended(self, key: K, fetch: F) -> None:
        """Remove a fetch whose task has ended.  If the fetch has no outcome yet, give it up."""
        if not fetch.is_over:
            fetch.give_up()
        if self._fetches.get(key) is fetch:
            del self._fetches[key]
