"""Bounds the time that one turn of the event loop spends on beginning requests, and shares that time among clients.

While a turn works for one client, all others wait.  A turn that has lasted for `REQUESTS_S` therefore begins no further
request.  Later requests wait in a queue.  Each later turn begins waiting requests for up to `REQUESTS_S`.  This time is
shared fairly among clients, by the cost of their requests (`gateway.limits.queues`).  A flood then delays mostly the
requests of its own client.  It delays the requests of other clients by a millisecond or two.  The loop is never idle
while a request waits.

Beginning a request means all work before its first wait.  It takes 50 to 150 µs.  Afterwards, a read from memory is
finished, and a read that needs the origin (a miss) has begun its fetch.  A turn begins about a dozen requests.  With
fewer requests in a turn, each request would cost more, because the loop polls the kernel once in each turn, and because
a series of equal work is faster.  During a flood, a turn's time for requests is shorter, because other clients have
requests in progress that need several turns.  The requests of the flood itself are late in any case.

The later work for a request, such as its fetch and the parts of its answer, is not queued.  The loop's time for such
work is subtracted from the time for waiting requests.  The time for waiting requests is at least a quarter of the
loop's time for other work, up to `REQUESTS_S`.  A flood of requests with remembered answers can therefore not starve
the waiting requests.

A miss takes several steps, such as sending the request and storing the reply.  The steps of all misses are taken in the
order of their arrival, for all clients alike (`gateway.aio.batches`).  While many steps wait, no further request
begins, so that a flood of misses waits in the fair queue instead.

Input other than new requests, such as bodies and frames, is read in small parts.  A turn that has lasted for `PARTS_S`
reads no further part.  Otherwise tiny chunks, frames or TLS records from one read of a socket could keep the loop busy
for a second.  A fetch from the origin takes five turns, and each long turn would delay the fetch.  Parts get less time
than requests, because an upload loses little by waiting.

Some parts consist of crumbs: frames or TLS records of a few bytes, with no request among them.  Reading a crumb costs
as much as reading a kilobyte, and no ordinary client sends long runs of crumbs.  Runs of crumbs therefore wait in a
queue of their own.  After each reading of crumbs, no crumbs are read for `CRUMBS_REST` times as long as that reading
took.  Reading the waiting crumbs of all clients then takes about 3 % of the processor at most, even if the loop has
nothing else to do.  The first part of each arriving input is read at once, and does not count towards these 3 %.
Before this limit, a few clients that sent crumbs took over a third of the processor.

`InputWaits` measures how long input waits, because no limit on a client's time may count the gateway's own delay.  The
deadlines of bodies are in `gateway.server.request_body`.  The deadlines of heads and idle time are in
`gateway.server.timeouts` and `gateway.server.http2.timeouts`.  The deadlines of reading an answer over HTTP/2 are in
`gateway.server.http2.channel`.

A waiting request stays with its connection, and the connection reads further input up to its usual bound.  Requests
with remembered answers, and live reads that join other readers, never wait, because they cost less than queueing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from gateway.aio.batches import Backlog
from gateway.aio.clock import SystemClock
from gateway.limits.accounts import Account
from gateway.limits.queues import Flows

_log = logging.getLogger("gateway.server")

REQUESTS_S: Final = 0.0015
"""Seconds for which a turn begins requests.  The loop's other work counts against the time for waiting requests."""
_FLOOD: Final = 64
"""The number of waiting requests above which they count as a flood."""
FLOOD_S: Final = 0.0005
"""Replaces `REQUESTS_S` during a flood."""
PARTS_S: Final = 0.0001
"""Seconds for which a turn reads parts of other input, after the first part."""
CRUMBS_REST: Final = 32
"""The pause after a reading of crumbs, as a multiple of the time that the reading took."""
_MOST_STEPS: Final = 16
"""While more steps of misses than this wait for the loop, no request begins.  A longer queue of steps would delay all
clients equally."""
_LEAST: Final = 0.25
"""The least time for waiting requests, as a fraction of the time for the loop's other work."""
_QUANTUM_S: Final = 0.0002
"""Seconds that a client may use before the next client: about two requests."""
LOOK_AGAIN_S: Final = 1.0
"""If a client's deadline passes while its input waits for its turn, the deadline is checked again after this many
seconds.
"""
INPUT_WAITS: Final = "input_waits"
"""The key under which a transport's extra information has the `InputWaits` of the input that waits in the transport."""


class InputWaits:
    """Measures for how long a client's input has waited for its turn.  The layers of one connection share it, because
    input may wait in several layers at the same time."""

    __slots__ = ("_began", "_layers", "_waited_s")

    def __init__(self) -> None:
        self._layers = 0
        """The number of layers in which input waits now."""
        self._began = 0.0
        """The time at which the first of these layers began to wait."""
        self._waited_s = 0.0

    def __repr__(self) -> str:
        return f"<InputWaits in {self._layers} layers, {self._waited_s:g} s before>"

    @classmethod
    def of(cls, transport: asyncio.BaseTransport | None) -> InputWaits:
        """Return the object that measures the waits of this transport's input.  A transport without such an object gets
        a new one."""
        waits = transport.get_extra_info(INPUT_WAITS) if transport is not None else None
        return waits if isinstance(waits, cls) else cls()

    @property
    def is_waiting(self) -> bool:
        """Whether input waits now."""
        return self._layers > 0

    def begin(self, now: float) -> None:
        if not self._layers:
            self._began = now
        self._layers += 1

    def end(self, now: float) -> None:
        self._layers -= 1
        if not self._layers:
            self._waited_s += now - self._began

    def seconds(self, now: float) -> float:
        """Return the time for which input has waited, in all."""
        return self._waited_s + (now - self._began if self._layers else 0.0)


class TurnTaker(Protocol):
    """A connection with requests or other input that may have to wait."""

    use: Account | None
    """The account of the client's network; None if the connection belongs to no network."""

    def __hash__(self) -> int:
        """By identity."""

    @property
    def waits(self) -> InputWaits | None:
        """Measures how long the connection's input waits; None if no input waits for its turn."""

    def take_turn(self) -> None:
        """Begin the next request or read the next part, if any is left.  Call `must_wait` before each further request
        or part.
        """


class Turns:
    """The queues of connections whose requests or other input wait."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        now: Callable[[], float] = SystemClock.now,
    ) -> None:
        """`call_soon` calls a function in the loop's next turn, and `call_later` after some seconds."""
        self._call_soon = call_soon
        self._call_later = call_later
        self._now = now
        self._requests: Flows[Hashable, TurnTaker] = Flows(_QUANTUM_S)
        self._parts: Flows[Hashable, TurnTaker] = Flows(_QUANTUM_S)
        self._crumbs: Flows[Hashable, TurnTaker] = Flows(_QUANTUM_S)
        self._crumbs_at = 0.0
        """The earliest time of the next reading of crumbs."""
        self._is_reading_crumbs = False
        """Whether crumbs are being read, or a timer for their next reading is set."""
        self.has_begun = False
        """Whether work has begun in this turn, or waits for a later turn.  `_next` is then scheduled for the next turn.
        """
        self._began = 0.0
        """The time at which this turn's first work began, or at which `_next` last ended."""
        self._is_running = False
        """Whether `_next` is beginning requests that have waited."""
        self.backlog = Backlog()
        """Counts the steps of misses that wait for the loop."""
        self.waited = 0
        """Requests and parts that have had to wait, since the start."""

    def __repr__(self) -> str:
        return f"<Turns {len(self)} waiting, {self.waited} so far>"

    def __len__(self) -> int:
        return self._requests.waiting + self._parts.waiting + self._crumbs.waiting

    def must_wait(self, taker: TurnTaker, *, is_request: bool = True) -> bool:
        """Return whether the next request, or the next part of other input, has to wait.  `taker.take_turn` is then
        called when its turn comes."""
        flows = self._requests if is_request else self._parts
        if not self._is_running:
            is_late = self._is_late(self._requests_s() if is_request else PARTS_S)
            is_late = is_late or (is_request and self.backlog.items > _MOST_STEPS)
            if not is_late and not (flows.waiting and flows.has(taker.use or taker)):
                return False
        self._push(flows, taker)
        return True

    def defer_crumbs(self, taker: TurnTaker) -> None:
        """Put off the rest of an input whose latest part was crumbs.  `taker.take_turn` is called when its turn
        comes."""
        self._push(self._crumbs, taker)
        self._schedule_crumbs()

    def _push(self, flows: Flows[Hashable, TurnTaker], taker: TurnTaker) -> None:
        flows.push(taker.use or taker, taker)
        if (waits := taker.waits) is not None:
            waits.begin(self._now())
        self.waited += 1

    def waited_s(self, waits: InputWaits) -> float:
        """Return the seconds for which this input has waited, in all."""
        return waits.seconds(self._now())

    def _schedule_crumbs(self) -> None:
        if self._crumbs.waiting and not self._is_reading_crumbs:
            self._is_reading_crumbs = True
            self._call_later(max(0.0, self._crumbs_at - self._now()), self._read_crumbs)

    def _read_crumbs(self) -> None:
        """Read waiting crumbs within the turn's time for parts."""
        self.count_begun()
        began = self._now()
        at = self._take(self._crumbs, began, PARTS_S)
        self._crumbs_at = at + CRUMBS_REST * (at - began)
        self._is_reading_crumbs = False
        self._schedule_crumbs()

    def count_begun(self) -> None:
        """Count work that begins in this turn without a call of `must_wait`."""
        if not self.has_begun:
            self.has_begun, self._began = True, self._now()
            # The call of `_next` marks the end of the turn.  The loop has no other mark of a turn's end: it does not
            # number its turns, and it updates its time within a turn.
            self._call_soon(self._next)

    def _is_late(self, late_s: float) -> bool:
        """Return whether this turn has spent `late_s` on beginning requests and reading parts."""
        if self.has_begun:
            return self._now() - self._began > late_s
        self.count_begun()
        return False

    def _requests_s(self) -> float:
        return REQUESTS_S if self._requests.waiting <= _FLOOD else FLOOD_S

    def _next(self) -> None:
        """Begin waiting requests and read waiting parts, within this turn's time."""
        self.has_begun = False
        if not (self._requests.waiting or self._parts.waiting):
            return
        at = self._now()
        besides = at - self._began
        self._is_running = True
        share_s = self._requests_s()
        if self.backlog.items <= _MOST_STEPS:
            at = self._take(self._requests, at, min(share_s, max(share_s - besides, besides * _LEAST)))
        at = self._take(self._parts, at, PARTS_S)
        self._is_running = False
        if (self._requests.waiting or self._parts.waiting) and not self.has_begun:
            self.has_begun, self._began = True, at
            self._call_soon(self._next)

    def _take(self, flows: Flows[Hashable, TurnTaker], at: float, share_s: float) -> float:
        """Serve this queue until `share_s` seconds after `at`.  Returns the time at the end."""
        until = at + share_s
        while flows.waiting and at <= until:
            client, taker = flows.pop()
            if (waits := taker.waits) is not None:
                waits.end(at)
            try:
                taker.take_turn()
            except Exception:
                _log.exception("unhandled error")
            before, at = at, self._now()
            flows.charge(client, at - before)
        return at
