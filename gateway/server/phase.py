"""The phase of a channel: which party answers its request now.  The same for each version of HTTP.

`PhasedChannel` owns the phase and the `LiveAnswer` in progress, and changes both in one method, whose docstring has the
states and their transitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Final, cast

from gateway.protocol.mode import Mode
from gateway.server.client_connections import Clients
from gateway.server.request import Channel, LiveAnswer, LiveUse, Note, Request


class Phase(Enum):
    """Which party answers the channel's request."""

    IDLE = "idle"
    """None: no request is being answered.  A part of the next head may have arrived."""
    ANSWERING = "answering"
    """A handler, at once or in a task."""
    RELAYED = "relayed"
    """A `LiveAnswer`, which has taken over the answer.  It is called when there is room, and when the client leaves."""
    LIVE = "live"
    """A `LiveAnswer` of a live read."""
    LEFT = "left"
    """The `LiveAnswer`, whose client has left, while it goes on without a client."""
    LINGERING = "lingering"
    """None: the last answer is written.  Further input is read and dropped, so that the client can read the answer."""


# Enum members are slow to reach in Python 3.11, and every request passes here.
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
"""The phases that may follow each phase, as in the docstring of `PhasedChannel.enter_phase`."""


class PhasedChannel:
    """The part of a `gateway.server.request.Channel` that knows which party answers its request."""

    __slots__ = (
        "_clients",
        "_live",
        "_request",
        "_room",
        "_task",
        "live_bytes",
        "live_first_byte_s",
        "live_use",
        "phase",
        "sse_began",
        "sse_note",
        "sse_route",
    )

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.phase = _IDLE
        self._live: LiveAnswer | None = None
        """The answer in progress, if it is given without a task."""
        self._request: Request | None = None
        """The request that is being answered."""
        self._task: asyncio.Task[None] | None = None
        """The handler's remaining work, if it has to wait for anything."""
        self._room: asyncio.Future[None] | None = None
        """The handler's wait for room while the client has too much unread."""
        self.sse_route: str | None = None
        self.sse_note: Note | None = None
        self.sse_began = 0.0
        self.live_bytes = 0
        """Body bytes of the live answer."""
        self.live_first_byte_s = 0.0
        """Seconds from the reading of the request to the writing of the live answer's head."""
        self.live_use: LiveUse | None = None
        """The account of the live read in progress."""

    def enter_phase(self, phase: Phase, live: LiveAnswer | None = None) -> None:
        """Enter this phase.  `live` gives the answer in the phases RELAYED and LIVE.

        | from      | to        | when                                                                            |
        |-----------|-----------|---------------------------------------------------------------------------------|
        | IDLE      | ANSWERING | A request is handled.                                                           |
        |           | LIVE      | A request that is known by its bytes joins the readers of its stream.           |
        |           | LINGERING | A request is refused, or the last answer was written before its body was read.  |
        | ANSWERING | IDLE      | The handler's answer is written.                                                |
        |           | RELAYED   | The handler hands the answer over.                                              |
        |           | LIVE      | The handler begins a live answer.                                               |
        | RELAYED   | IDLE      | The answer is written.                                                          |
        |           | ANSWERING | The party that was waited for has answered, or the request's turn has come.     |
        |           | LEFT      | The client has left.                                                            |
        | LIVE      | IDLE      | The live answer has ended.                                                      |
        |           | LIVE      | Clients that waited together wait alone.                                        |
        |           | RELAYED   | Nothing is written, and the request waits for its turn to be handled again.     |
        |           | LEFT      | The client has left.                                                            |
        | LEFT      | IDLE      | The `LiveAnswer` has ended.                                                     |

        LINGERING is the last phase.  Over HTTP/2 the channel of a stream has one request and never lingers.
        """
        self.phase = phase
        self._live = live

    def hand_over(self, answering: LiveAnswer) -> None:
        """Have `answering` give the answer without a task, until `response_written`.  It is called when there is room,
        and when the client leaves."""
        self.enter_phase(_RELAYED, answering)

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """Have `live` give the answer, until `release`."""
        self.enter_phase(_LIVE, live)
        self.live_bytes = 0

    def follow(
        self, live: LiveAnswer, route: str, began: float, note: Note | None, *, keeps: bool, is_chunked: bool
    ) -> None:
        """Have `live` give an SSE answer, until `over`."""
        self.park(live, keeps=keeps, is_chunked=is_chunked)
        self.sse_route, self.sse_began, self.sse_note = route, began, note
        self._clients.metrics.subscribers(_SSE, 1, route)

    def end_live_use(self) -> None:
        """Stop counting the live read, if there is one."""
        use, self.live_use = self.live_use, None
        if use is not None:
            use.end_live(self.live_bytes)

    def _leave_live(self) -> bool:
        """End the answer that is given without a task, and its count; returns whether there was one."""
        live = self._live
        if live is not None:
            self.enter_phase(_LEFT)
            live.client_left(cast(Channel, self))
        if self.live_use is not None:
            self.end_live_use()
        return live is not None

    def _has_room(self, error: ConnectionError | None = None) -> None:
        """Wake the handler that waits for room; with `error` if there will be none."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            if error is None:
                room.set_result(None)
            else:
                room.set_exception(error)


_SSE: Final = Mode.SSE
