"""The phase of a channel (an HTTP/1.1 connection or an HTTP/2 stream): which part of the gateway answers its request
now.

`PhasedChannel` owns the phase and the `LiveAnswer` in progress, and changes both in `enter_phase`.  The docstring of
`enter_phase` lists the states and their transitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Final, cast

from gateway.auth.remembered_verdicts import Allowed, LiveRenewal
from gateway.protocol.mode import Mode
from gateway.server.client_connections import Clients
from gateway.server.request import Channel, LiveAnswer, LiveUse, Note, Request


class Phase(Enum):
    """The part of the gateway that answers the channel's request."""

    IDLE = "idle"
    """No request is being answered.  A part of the next head may have arrived."""
    ANSWERING = "answering"
    """The request handler answers, at once or in a task."""
    RELAYED = "relayed"
    """A `LiveAnswer` gives the answer, and no task runs for it.  The channel calls the `LiveAnswer` when there is room
    to write, and when the client leaves.
    """
    LIVE = "live"
    """A `LiveAnswer` answers a live read."""
    LEFT = "left"
    """The client has left, and the `LiveAnswer` still has work to finish."""
    LINGERING = "lingering"
    """The last answer is written.  Further input is read and dropped, so that the client can read the answer."""


# Module names are faster to look up than enum members, and every request needs these members.
_IDLE, _ANSWERING, _RELAYED, _LIVE = Phase.IDLE, Phase.ANSWERING, Phase.RELAYED, Phase.LIVE
_LEFT, _LINGERING = Phase.LEFT, Phase.LINGERING

TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    _IDLE: frozenset({_ANSWERING, _LIVE, _LINGERING}),
    _ANSWERING: frozenset({_IDLE, _RELAYED, _LIVE}),
    _RELAYED: frozenset({_IDLE, _ANSWERING, _LEFT}),
    _LIVE: frozenset({_IDLE, _LIVE, _RELAYED, _LEFT}),
    _LEFT: frozenset({_IDLE}),
    _LINGERING: frozenset(),
}
"""The phases that may follow each phase.  `PhasedChannel.enter_phase` documents them."""


class PhasedChannel:
    """The part of a `gateway.server.request.Channel` that owns its phase."""

    __slots__ = (
        "_clients",
        "_live",
        "_request",
        "_room",
        "_task",
        "live_began",
        "live_bytes",
        "live_first_byte_s",
        "live_use",
        "phase",
        "renewing",
        "sse_note",
        "sse_route",
        "verdict",
    )

    outlasts_reads = False
    """Whether further reads may follow on the channel."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.phase = _IDLE
        self._live: LiveAnswer | None = None
        """The answer in progress, if it has no task."""
        self._request: Request | None = None
        """The request that is being answered."""
        self._task: asyncio.Task[None] | None = None
        """The task that does the handler's work, if this work has to wait."""
        self._room: asyncio.Future[None] | None = None
        """A future that ends the handler's wait once the client has read enough."""
        self.sse_route: str | None = None
        self.sse_note: Note | None = None
        self.live_began = 0.0
        """The time at which the request of the SSE answer, or of the live read with a verdict, was read (monotonic
        seconds)."""
        self.live_bytes = 0
        """Body bytes of the live answer."""
        self.live_first_byte_s = 0.0
        """Seconds from reading the request to writing the head of the live answer."""
        self.live_use: LiveUse | None = None
        """Counts the live read in progress: in the account of its client network, and in rate limits."""
        self.verdict: Allowed | None = None
        """The verdict of the live read in progress; None on a route without rules."""
        self.renewing: LiveRenewal | None = None
        """The verdict renewal that an HTTP/1.1 connection keeps between its reads
        (`gateway.server.verdict_renewal`)."""

    @property
    def carrier(self) -> int:
        return 0

    def enter_phase(self, phase: Phase, live: LiveAnswer | None = None) -> None:
        """Enter this phase.  `live` is the answer in the phases RELAYED and LIVE.

        | from      | to        | when                                                                            |
        |-----------|-----------|---------------------------------------------------------------------------------|
        | IDLE      | ANSWERING | The request handler begins.                                                     |
        |           | LIVE      | A request joins its stream's readers without being parsed.                      |
        |           | LINGERING | A request is refused, or the last answer was written before its body was read.  |
        | ANSWERING | IDLE      | The handler's answer is written.                                                |
        |           | RELAYED   | The handler hands the answer over to a `LiveAnswer`.                            |
        |           | LIVE      | The handler begins a live answer.                                               |
        | RELAYED   | IDLE      | The answer is written.                                                          |
        |           | ANSWERING | The handler resumes: its reply has arrived, or its turn has come.               |
        |           | LEFT      | The client has left.                                                            |
        | LIVE      | IDLE      | The live answer has ended.                                                      |
        |           | LIVE      | Long-polls that shared one answer get answers of their own.                     |
        |           | RELAYED   | Nothing is written, and the request waits to be handled again.                  |
        |           | LEFT      | The client has left.                                                            |
        | LEFT      | IDLE      | The `LiveAnswer` has ended.                                                     |

        LINGERING is the last phase.  An HTTP/2 stream's channel has only one request and never lingers.
        """
        self.phase = phase
        self._live = live

    def hand_over(self, answering: LiveAnswer) -> None:
        """Let `answering` give the answer without a task, until `response_written` is called."""
        self.enter_phase(_RELAYED, answering)

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """Let `live` give the answer to a live read, until `release` is called."""
        self.enter_phase(_LIVE, live)
        self.live_bytes = 0

    def follow(
        self, live: LiveAnswer, route: str, began: float, note: Note | None, *, keeps: bool, is_chunked: bool
    ) -> None:
        """Let `live` give an SSE answer, until `over` is called."""
        self.park(live, keeps=keeps, is_chunked=is_chunked)
        self.sse_route, self.live_began, self.sse_note = route, began, note
        self._clients.metrics.subscribers(_SSE, 1, route)

    def end_live_use(self, *, has_begun: bool = True) -> None:
        """Stop counting the live read, if there is one, and forget its verdict.  A read that has not begun does not
        count in its tenant's usage.
        """
        use, self.live_use = self.live_use, None
        if (verdict := self.verdict) is not None:
            self.verdict = None
            if verdict.usage is not None and has_begun:
                verdict.usage.add(self.live_bytes, self._clients.now() - self.live_began)
            if (renewing := verdict.renewing) is not None and renewing is not self.renewing:
                renewing.end_read(self)
        if use is not None:
            use.end_live(self.live_bytes)

    def _leave_live(self) -> bool:
        """End the answer in progress that has no task.  Stop counting the live read, if there is one.  Returns whether
        an answer without a task was in progress.
        """
        live = self._live
        if live is not None:
            self.enter_phase(_LEFT)
            live.client_left(cast(Channel, self))
        if self.live_use is not None:
            self.end_live_use()
        return live is not None

    def _has_room(self, error: ConnectionError | None = None) -> None:
        """Wake the handler that waits for room.  With `error`, the wait fails."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            if error is None:
                room.set_result(None)
            else:
                room.set_exception(error)


_SSE: Final = Mode.SSE
