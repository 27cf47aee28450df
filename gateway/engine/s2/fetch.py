"""What the readers of one S2 stream ask its origin for together: records from one start on, and questions about the
stream as a whole.

`gateway.upstream.collapse` has the rule by which they share.  A reader that asks a question waits for the one under way
to be over, and then for the next one, which all who wait with it share.  A reader of records takes what a fetch under
way brings, and asks for what it still misses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple

from gateway.aio.tasks import Tasks
from gateway.errors import GatewayError
from gateway.limits.queues import Askers
from gateway.s2.read_query import FromSeqNum, Start
from gateway.tape.records import Limits
from gateway.upstream.collapse import Collapse, FetchEnd, Lead, SharedFetch
from gateway.upstream.s2_client import S2Outcome, S2Refused

_NO_LIMITS: Final = Limits()


class S2Question(Enum):
    """A question about the stream as a whole."""

    TAIL = "tail"
    CHECKED_TAIL = "check tail"
    CONFIRMATION = "confirm"


class S2Fetched(NamedTuple):
    """The result of a fetch for one reader."""

    outcome: S2Outcome
    is_fresh: bool
    """Whether it was sent after the reader's request had arrived."""
    is_all: bool
    """Whether the origin had nothing more within the reader's limits."""


class S2Fetch(SharedFetch):
    """One fetch of records, or one question."""

    __slots__ = ("is_overlapping", "later", "limits", "outcome", "start", "waiting")

    def __init__(self, client: str, limits: Limits = _NO_LIMITS, start: Start | None = None) -> None:
        super().__init__(client)
        self.start = start
        """From where on records are fetched; None for a question."""
        self.limits = limits
        self.outcome: S2Outcome | None = None
        """The origin's answer; None if a confirmation has confirmed the records held."""
        self.is_overlapping = False
        """Whether it began with a record that was held, which has taken a part of its limits."""
        self.waiting = 0
        """Readers that wait for it."""
        self.later = 0
        """Readers that wait until it is over, and then ask again."""

    def spans(self, seq_num: int) -> bool:
        """Whether it may bring the record at `seq_num`, after others."""
        if self.start is None or self.is_over:
            return False
        first = self.start.seq_num if isinstance(self.start, FromSeqNum) else seq_num
        return first < seq_num < first + (self.limits.count or 0)

    def widen(self, wanted: Limits) -> None:
        """Have it bring at least as much as another reader wants."""
        if not self.limits.covers(wanted):
            self.limits = Limits(
                max(self.limits.count or 0, wanted.count or 0), max(self.limits.bytes or 0, wanted.bytes or 0)
            )

    async def result(self) -> S2Outcome | None:
        """The outcome, once it is there.  Raises the GatewayError that the fetch failed with."""
        self.waiting += 1
        try:
            await self.until_over()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error.anew()
        return self.outcome


Send = Callable[[S2Fetch], Awaitable[S2Outcome | None]]
"""Asks the origin; raises GatewayErrors and is bounded in time."""


class S2Fetches:
    """The fetches and questions of one stream.  Owner: the `S2Stream`."""

    def __init__(self, tasks: Tasks, path: str) -> None:
        self._fetches: Collapse[Start | S2Question, S2Fetch] = Collapse()
        self._tasks = tasks
        self._path = path

    def __repr__(self) -> str:
        later = sum(fetch.later for _, fetch in self._fetches)
        waiting = sum(fetch.waiting for _, fetch in self._fetches)
        return f"<S2Fetches {waiting} wait for {len(self._fetches)}, {later} for the next>"

    def is_asking(self, question: S2Question) -> bool:
        """Whether this question is under way, or about to be sent."""
        return self._fetches.pending(question) is not None

    async def ask(
        self, question: S2Question, send: Callable[[Askers], Awaitable[S2Outcome | None]], client: str
    ) -> S2Outcome | None:
        """The answer to a question that is sent after this call, for a client of this net.

        Raises the GatewayError that the question failed with.
        """
        earlier = self._fetches.pending(question)
        if earlier is not None and earlier.is_sent:
            earlier.askers.join(client)
            earlier.later += 1
            try:
                await earlier.until_over()
            finally:
                earlier.later -= 1
            if earlier.end is FetchEnd.GIVEN_UP:
                # The gateway is about to stop, or the question has met an error of its own.
                return await earlier.result()
        joined = self._fetches.join(question, client, lambda: S2Fetch(client))
        if isinstance(joined, Lead):
            self._run(question, joined.fetch, lambda fetch: send(fetch.askers), question.value)
        return await joined.fetch.result()

    def bringing(self, start: Start) -> S2Fetch | None:
        """The fetch from `start` on, or one that may bring the record there after others."""
        fetch = self._fetches.pending(start)
        if fetch is None and isinstance(start, FromSeqNum):
            fetch = next((one for _, one in self._fetches if one.spans(start.seq_num)), None)
        return fetch

    def join(self, start: Start, wanted: Limits, send: Send, client: str) -> S2Fetch:
        """The fetch from `start` on that has not been sent yet, for a client of this net."""
        joined = self._fetches.join(start, client, lambda: S2Fetch(client, wanted, start))
        if isinstance(joined, Lead):
            self._run(start, joined.fetch, send, "fetch")
        else:
            joined.fetch.widen(wanted)
        return joined.fetch

    def _run(self, key: Start | S2Question, fetch: S2Fetch, send: Send, name: str) -> None:
        # The task begins in the next turn of the loop, so all readers of this one share the fetch.
        task = self._tasks.start(_sent(fetch, send), f"{name} {self._path}")
        # A callback, because a task that is cancelled before its first step never reaches its `finally`.
        task.add_done_callback(lambda _: self._fetches.leave(key, fetch))


async def _sent(fetch: S2Fetch, send: Send) -> None:
    fetch.is_sent = True
    try:
        outcome = fetch.outcome = await send(fetch)
    except GatewayError as error:
        fetch.fail(error)
    else:
        fetch.land(FetchEnd.REFUSED if isinstance(outcome, S2Refused) else FetchEnd.LANDED)
