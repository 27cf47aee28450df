"""The deadlines of an HTTP/1.1 client connection: for request heads, idle time, stalled writes and lingering.

Each connection has one entry in the timer wheel (`gateway.aio.timers`), for the deadline of its current phase.  The
request handler bounds its own waits.  This module bounds the waits in which no handler runs: for the rest of a head,
between two requests, and for the last bytes before a connection closes.  It also drops clients that read too slowly.
The limits of a request's body are in `gateway.server.request_body`.

`WheelTimer` is a one-shot timer on the wheel, for owners with several deadlines.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from gateway.aio.timers import NEVER, Wheel
from gateway.limits.accounts import Account
from gateway.limits.memory import SharedBytes
from gateway.limits.slow_clients import ReadingWindow
from gateway.server.client_connections import Clients
from gateway.server.handling import Handling
from gateway.server.phase import Phase
from gateway.server.turns import LOOK_AGAIN_S, InputWaits
from gateway.telemetry.access_record import CloseReason


class WheelTimer:
    """Calls `callback` when the delay has passed, unless the timer is cleared or set again earlier."""

    __slots__ = ("_callback", "_tick", "_wheel", "put_off_s")

    def __init__(self, wheel: Wheel, callback: Callable[[], None]) -> None:
        self._wheel = wheel
        self._callback = callback
        self._tick = NEVER
        self.put_off_s = 0.0
        """The seconds by which `put_off` has put off the deadline, in all."""

    @property
    def is_set(self) -> bool:
        return self._tick != NEVER

    def set(self, delay_s: float) -> None:
        self.clear()
        self.put_off_s = 0.0
        self._tick = self._wheel.add(self, delay_s)

    def put_off(self, delay_s: float) -> None:
        """Put off the deadline, which has passed."""
        self.put_off_s += delay_s
        self._tick = self._wheel.add(self, delay_s)

    def clear(self) -> None:
        if self._tick != NEVER:
            self._wheel.unlink(self, self._tick)
            self._tick = NEVER

    def dispose(self) -> None:
        """Clear the timer for good.  Drops the callback, because the callback keeps the timer's owner alive."""
        self.clear()
        self._callback = _no_op

    def due(self) -> None:
        """Called by the wheel."""
        self._tick = NEVER
        self._callback()


def _no_op() -> None:
    """The callback of a disposed timer."""


# Module names are faster to look up than enum members, and every request needs these members.
_IDLE, _LINGERING = Phase.IDLE, Phase.LINGERING

PROBE_S: Final = 0.5
"""Seconds until the first probe of a client that has half-closed and waits for an answer."""
LOOK_S: Final = 0.25
"""Seconds from a probe to the check of its result.  By then, the host of a vanished client has answered with a reset.
"""
PROBE_AGAIN_S: Final = 5.0
"""Seconds from the check of a probe's result to the next probe."""
_IDLE_CHECKS: Final = 4
"""The number of checks of an idle connection per keep-alive timeout.  The connection closes after this many checks in a
row without activity."""


CLOSE_NOTIFY: Final = "close_notify"
"""The key under which a transport's extra information shows whether the peer has ended TLS.

Most clients end TLS when they close a connection, and then wait only for the server's end of TLS.  A live reader that
ends TLS is therefore leaving.
"""


def is_refused(transport: asyncio.Transport) -> bool:
    """Return whether the client's host has refused the latest bytes, which shows that the client is gone.

    If the client has half-closed, only such a refusal shows that the client is gone, because the loop no longer reads
    from the connection.
    """
    sock: socket.socket | None = transport.get_extra_info("socket")
    try:
        return sock is not None and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except OSError:
        return True


class TimedConnection(Handling, asyncio.Protocol):
    """The part of a client's connection that owns its deadline."""

    __slots__ = (
        "_has_ended",
        "_has_probed",
        "_is_active",
        "_quiet_checks",
        "_shared",
        "_shared_bytes",
        "_tick",
        "_waits",
        "_window",
        "cut_reason",
        "has_partial_head",
        "is_full",
        "transport",
        "use",
    )

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.transport: asyncio.Transport | None = None
        self.use: Account | None = None
        """The account of the client's network; None if the connection belongs to no network."""
        self.has_partial_head = False
        """Whether a part of the next head has arrived.  The deadline is then for the rest of this head."""
        self.is_full = False
        """Whether the client has so many unread bytes that no more may be written."""
        self._is_active = False
        """Whether the client has sent anything since the last check."""
        self._has_ended = False
        """Whether the client has half-closed: it sends no more, and may still read answers (RFC 9112 section 9.6)."""
        self._has_probed = False
        """Whether a probe (`_probe`) has been sent, and its result has yet to be checked."""
        self._quiet_checks = NEVER
        """Checks without activity in a row.  Negative until the client has sent its first bytes."""
        self._window: ReadingWindow | None = None
        """Measures the rate at which the client reads while bytes wait for the client.  None until bytes have waited.
        """
        self.cut_reason: CloseReason | None = None
        """The reason why the gateway cuts the connection; None while the connection is not cut."""
        self._shared_bytes = 0
        """Bytes of the latest large answer, which other clients may share."""
        self._shared: SharedBytes | None = None
        """Divides the cost of the latest large answer's bytes among its clients."""
        self._tick = NEVER
        self._waits: InputWaits | None = None
        """The value of `waits`; None until it is needed."""

    @property
    def waits(self) -> InputWaits:
        """Measures for how long the connection's input waits for its turn."""
        if self._waits is None:
            self._waits = InputWaits.of(self.transport)
        return self._waits

    @abstractmethod
    def _probe(self) -> None:
        """Send bytes that do not change the answer, to find out whether the client is still there."""

    def _look_after(self, transport: asyncio.Transport) -> None:
        """Probe a client that has half-closed, or check the latest probe.  Drop the client if it is gone."""
        if is_refused(transport):
            self.abort()
            return
        self._has_probed = not self._has_probed
        if self._has_probed:
            self._probe()
        self._set_deadline(LOOK_S if self._has_probed else PROBE_AGAIN_S)

    def _clear_deadline(self) -> None:
        if self._tick != NEVER:
            self._clients.wheel.unlink(self, self._tick)
            self._tick = NEVER

    def _set_deadline(self, delay_s: float) -> None:
        self._clear_deadline()
        self._tick = self._clients.wheel.add(self, delay_s)

    def _set_idle_deadline(self) -> None:
        """Set the next check for activity, after a fraction of the keep-alive timeout."""
        self._set_deadline(self._clients.limits.keepalive_timeout_s / _IDLE_CHECKS)

    def _set_head_deadline(self) -> None:
        """Set the deadline for the whole head, counted from its first byte."""
        if not self.has_partial_head:
            self.has_partial_head = True
            self._set_deadline(self._clients.limits.client_header_timeout_s)

    def due(self) -> None:
        """Called by the wheel at the deadline: act according to the phase."""
        self._tick = NEVER
        transport, phase = self.transport, self.phase
        if transport is None:
            return
        if transport.is_closing() or self.is_full:
            self._check_window(transport)
        elif phase is _LINGERING:
            self._close()
        elif phase is not _IDLE and self._has_ended:
            self._look_after(transport)
        elif phase is not _IDLE:
            # The handler or the live answer has deadlines of its own, so this check counts no idle time.
            self._is_active = True
            limits = self._clients.limits
            self._set_deadline(max(1.0, min(limits.keepalive_timeout_s, limits.client_write_timeout_s)))
        elif self.has_partial_head:
            if not self._is_kept_waiting():
                self._clients.metrics.client_limited("client_header_timeout_s")
                transport.abort()
        elif self._is_active:
            self._is_active = False
            self._quiet_checks = 0
            self._set_idle_deadline()
        elif self._quiet_checks < 0:
            if not self._is_kept_waiting():
                transport.abort()
        else:
            # Count idle time in checks, because a remembered answer only sets `_is_active` and does not read the clock.
            self._quiet_checks += 1
            if self._quiet_checks < _IDLE_CHECKS:
                self._set_idle_deadline()
            elif not self._is_kept_waiting():
                self._close()

    def _is_kept_waiting(self) -> bool:
        """Return whether the client's input waits for its turn.  If it waits, set the next check.  The client has sent
        its input in time, so the passed deadline must not end the connection.
        """
        if self.waits.is_waiting:
            self._set_deadline(LOOK_AGAIN_S)
        return self.waits.is_waiting

    def _begin_window(self) -> None:
        """Set the deadline by which the client must have read enough of the waiting bytes."""
        if self.transport is None:
            return
        if self._window is None:
            self._window = ReadingWindow()
        clients = self._clients
        unsent, window_s = self.transport.get_write_buffer_size(), clients.limits.client_write_timeout_s
        self._set_deadline(max(0.0, self._window.start_waiting(unsent, clients.loop.time(), window_s)))

    def _end_window(self) -> None:
        """Count the bytes that the client has read in this window."""
        if self._window is not None and self.transport is not None:
            self._window.stop_waiting(self.transport.get_write_buffer_size(), self._clients.loop.time())

    def _check_window(self, transport: asyncio.Transport) -> None:
        """At the end of a window, abort if the client has read too little.  Otherwise begin the next window."""
        self._end_window()
        if self._window is None or self._clients.keeps_up(self._window.take_window()):
            self._begin_window()
        else:
            self._give_up(transport)

    def _give_up(self, transport: asyncio.Transport) -> None:
        """Drop the client because it reads too slowly."""
        self.cut_reason = CloseReason.SLOW
        transport.abort()

    def _close(self) -> None:
        """Close once the client has read all written bytes, within the write timeout."""
        if self.transport is not None:
            self.transport.close()
            self._window = None
            self._begin_window()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered and no bytes are left to send."""
        transport = self.transport
        return self.phase is _IDLE and transport is not None and not transport.get_write_buffer_size()

    def begin_leaving(self) -> None:
        """Do nothing: over HTTP/1.1 only an answer can announce that the connection closes (RFC 9112 section 9.6)."""

    def close_if_idle(self) -> None:
        """Called at the deadline of a drain (the orderly end of all connections): close, unless an answer is in
        progress."""
        if self.phase is _IDLE:
            self._close()

    def drop(self) -> None:
        """Cut the connection at the end of a drain."""
        self.cut_reason = CloseReason.DRAINED
        self.abort()

    def shed(self) -> None:
        """Cut the connection because the process is short of memory."""
        self.cut_reason = CloseReason.SLOW
        self.abort()

    def abort(self) -> None:
        """Cut the connection at once.  An orderly close would make a truncated body look complete."""
        if self.transport is not None:
            self.transport.abort()
