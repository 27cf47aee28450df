"""The deadlines of a client's HTTP/2 connection, and its end.

The preface and each head must be complete in time.  A quiet connection is closed after the keep-alive timeout.  A
client must keep reading its answers.  A drain (the orderly end of all connections) sends two GOAWAY frames.  A failed
session sends one GOAWAY frame.  The connection closes once the requests in progress are answered and the client has
read the last bytes.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Final, cast

from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Stream
from gateway.limits.accounts import Account
from gateway.limits.memory import Holding
from gateway.protocol.client_address import Proxies
from gateway.server.client_connections import Clients
from gateway.server.http2.channel import StreamChannel
from gateway.server.request import Channel
from gateway.server.sockets import peer_of
from gateway.server.timeouts import CLOSE_NOTIFY, LOOK_S, PROBE_AGAIN_S, WheelTimer, is_refused
from gateway.server.turns import LOOK_AGAIN_S, InputWaits
from gateway.telemetry.access_record import CloseReason

_LINGER_S: Final = 1.0
_LEAVE_S: Final = 1.0
"""Seconds after the first GOAWAY in which a client may still begin requests, because it may not have read the frame
yet."""
_DROPPED_AT_ONCE: Final = 4
"""The number of channels that are dropped in the turn in which their connection ends."""
_IDLE_CHECKS: Final = 4
"""The number of checks of an idle connection per keep-alive timeout.  The connection closes after this many checks in a
row without activity."""


class TimedHttp2Connection(asyncio.Protocol):
    """One client's HTTP/2 connection and its deadlines.  It owns its transport, its session and its channels."""

    __slots__ = (
        "_channels",
        "_client",
        "_has_ended",
        "_has_probed",
        "_head_timer",
        "_idle_timer",
        "_is_active",
        "_is_ended",
        "_is_local",
        "_is_shed",
        "_leave_timer",
        "_quiet_checks",
        "_unsent",
        "_waits",
        "_write_timer",
        "clients",
        "session",
        "transport",
        "use",
    )

    def __init__(self, clients: Clients, client: str | None, *, is_local: bool) -> None:
        """`client` and `is_local` mean the same as in HTTP/1.1's `Connection`."""
        self.clients = clients
        self._client = client
        self._is_local = is_local
        self.use: Account | None = None
        """The account of the client's network; None if the connection belongs to no network."""
        self.session = Session(clients.limits.http2_streams, clients.http2)
        self.transport: asyncio.Transport | None = None
        self._channels: dict[Stream, StreamChannel] = {}
        self._has_ended = False
        """Whether the client has half-closed: it sends no more, and may still read answers."""
        self._has_probed = False
        """Whether a probe (a PING) has been sent, and its result has yet to be checked."""
        self._is_ended = False
        """Whether `_end` has handled the session's failure."""
        self._is_active = False
        """Whether the client has sent a request since the last idle check."""
        self._is_shed = False
        """Whether the connection is being cut because its client is slow or memory is short."""
        self._quiet_checks = 0
        self._unsent = 0
        self._waits: InputWaits | None = None
        """The value of `waits`; None until it is needed."""
        wheel = clients.wheel
        self._idle_timer = WheelTimer(wheel, self._check_idle)
        self._head_timer = WheelTimer(wheel, self._on_head_timeout)
        self._write_timer = WheelTimer(wheel, self._check_progress)
        self._leave_timer = WheelTimer(wheel, self._send_last_goaway)

    @property
    def waits(self) -> InputWaits:
        """Measures for how long the connection's input waits for its turn."""
        if self._waits is None:
            self._waits = InputWaits.of(self.transport)
        return self._waits

    @property
    def client(self) -> str | None:
        """The client's address without its port."""
        if self._client is None and self.transport is not None:
            self._client = peer_of(self.transport)
        return self._client

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are trusted; None without trusted proxies."""
        return self.clients.proxies if not self._is_local else None

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that this client alone costs."""
        if self.transport is None or self._is_shed:
            return 0
        queued = sum(max(0, stream.queued_bytes - one.shared_bytes) for stream, one in self._channels.items())
        return self.transport.get_write_buffer_size() + self.session.out_bytes + self.session.input_bytes + queued

    def holdings(self) -> Iterator[Holding]:
        """Return the buffers that the streams share with other clients or with the cache."""
        if self.transport is not None and not self._is_shed:
            for channel in self._channels.values():
                yield from channel.holdings()

    @abstractmethod
    def flush(self) -> None:
        """Write the session's output, as far as the transport has room."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that this process holds because the client has not read them."""
        if self.transport is None:
            return 0
        queued = sum(stream.queued_bytes for stream in self._channels)
        return self.transport.get_write_buffer_size() + self.session.out_bytes + queued

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered or waits to be read, and no bytes are left to send."""
        is_busy = self._channels or self.session.streams or self.unsent_bytes or self.waits.is_waiting
        return not is_busy

    def guarded_channels(self) -> list[Channel]:
        """Return the channels whose live reads were authorised, and therefore have a verdict."""
        return [cast("Channel", one) for one in self._channels.values() if one.verdict is not None]

    # -- deadlines

    def _begin(self, transport: asyncio.Transport) -> None:
        limits = self.clients.limits
        self.clients.http2.opened(self.session)
        transport.set_write_buffer_limits(high=limits.send_buffer_bytes // 2)
        self._head_timer.set(limits.client_header_timeout_s)
        self._idle_timer.set(limits.keepalive_timeout_s / _IDLE_CHECKS)

    def _update_deadlines(self) -> None:
        """Set the deadline for the client's next action."""
        session = self.session
        if session.flood is not None:
            self.clients.note_flood(self.use, session.flood.value)
            session.flood = None
        if session.failed is not None:
            self._end()
        elif session.is_mid_head or not session.is_greeted:
            if not self._head_timer.is_set:
                self._head_timer.set(self.clients.limits.client_header_timeout_s)
        else:
            if self._head_timer.is_set:
                self._head_timer.clear()
            if session.has_goaway or session.last_answered_id is not None:
                self._close_if_over()

    def _check_idle(self) -> None:
        limits, transport = self.clients.limits, self.transport
        if transport is not None and transport.is_closing():
            # Set a deadline for the client to read the rest, because the client may have left without reading it.
            if not self._write_timer.is_set:
                self._expect_progress(transport)
            return
        if self._has_ended and transport is not None:
            self._look_after(transport)
            return
        if self._channels or self.session.streams or self._is_active:
            self._is_active = False
            self._quiet_checks = 0
        else:
            self._quiet_checks += 1
        if self._quiet_checks >= _IDLE_CHECKS and self.waits.is_waiting:
            # The waiting input may contain a request.
            self._idle_timer.set(LOOK_AGAIN_S)
        elif self._quiet_checks >= _IDLE_CHECKS:
            self.session.send_goaway(is_final=True)
            self._close()
        else:
            self._idle_timer.set(limits.keepalive_timeout_s / _IDLE_CHECKS)

    def eof_received(self) -> bool:
        """Called when the client has half-closed: answer its requests, then close.  Return False, which closes the
        transport, if all requests are answered."""
        session, transport = self.session, self.transport
        if transport is None or transport.is_closing() or session.failed is not None:
            return False
        if not (self._channels or session.streams or session.has_more):
            return False
        is_live = any(channel.is_live for channel in self._channels.values())
        if is_live and transport.get_extra_info(CLOSE_NOTIFY, False):
            return False
        self._has_ended = True
        self._end_input()
        if not transport.is_closing():
            self._look_after(transport)
        return True

    def _end_input(self) -> None:
        """Called when the client sends no more: fail incomplete bodies, and close once all requests are answered."""
        if self.session.has_more:
            return
        for channel in list(self._channels.values()):
            channel.fail_body()
        self._close_if_over()

    def _look_after(self, transport: asyncio.Transport) -> None:
        """Probe a client that has half-closed, or check the latest probe.  Drop the client if it is gone."""
        if is_refused(transport):
            transport.abort()
            return
        self._has_probed = not self._has_probed
        if self._has_probed:
            self.session.probe()
            self.flush()
        self._idle_timer.set(LOOK_S if self._has_probed else PROBE_AGAIN_S)

    def _on_head_timeout(self) -> None:
        """Called when the preface or a head was not complete in time."""
        if self.waits.is_waiting:
            # The missing part may be in this input, and the client must not be charged with the gateway's own delay.
            self._head_timer.set(LOOK_AGAIN_S)
            return
        self.clients.metrics.client_limited("client_header_timeout_s")
        if self.transport is not None and self.session.is_greeted:
            self.session.fail(ErrorCode.ENHANCE_YOUR_CALM)
            self.flush()
            self._end()
        elif self.transport is not None:
            self.transport.abort()

    def _expect_progress(self, transport: asyncio.Transport) -> None:
        """Set the deadline for the client to read some of the transport's bytes."""
        self._unsent = transport.get_write_buffer_size()
        self._write_timer.set(self.clients.limits.client_write_timeout_s)

    def _check_progress(self) -> None:
        """Cut the connection if the client has read too little since the last check."""
        transport = self.transport
        if transport is None:
            return
        unsent, self._unsent = self._unsent, transport.get_write_buffer_size()
        if self.clients.keeps_up(unsent - self._unsent):
            self._write_timer.set(self.clients.limits.client_write_timeout_s)
        else:
            self._is_shed = True
            self._cut(CloseReason.SLOW)

    # -- the end

    def close_if_idle(self) -> None:
        """Do nothing: the connection closes after its last GOAWAY."""

    def begin_leaving(self) -> None:
        """Send a first GOAWAY, unless one was sent.  Requests in progress, and requests on their way, are still
        answered."""
        if self.session.failed is not None or self.session.has_sent_goaway or self.transport is None:
            return
        self.session.send_goaway(is_final=False)
        self.flush()
        self._leave_timer.set(_LEAVE_S)

    def _send_last_goaway(self) -> None:
        self.session.send_goaway(is_final=True)
        self.flush()
        self._close_if_over()

    def _close_if_over(self) -> None:
        """Close the connection if either side is ending it and no request is open."""
        session = self.session
        # After the client's GOAWAY, continue while input is unread.  It may contain requests, and even requests after
        # the GOAWAY are answered.
        is_ending = (
            session.last_answered_id is not None or self._has_ended or (session.has_goaway and not session.has_more)
        )
        if is_ending and not self._channels and not session.streams:
            self._close()

    def _close(self) -> None:
        """Close once the client has read the last bytes, within the write timeout."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self.flush()
            transport.close()
            self._expect_progress(transport)

    def _end(self) -> None:
        """After a failure of the session, drop all channels, and give the client time to read the GOAWAY."""
        if self._is_ended:
            return
        self._is_ended = True
        self._head_timer.clear()
        self._leave_timer.clear()
        self.clients.on_bad_request(400, 0, self)
        self._drop_channels(is_by_client=False)
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        if not self._has_ended:
            transport.resume_reading()
        self._leave_timer = WheelTimer(self.clients.wheel, self._close)
        self._leave_timer.set(_LINGER_S)

    def _drop_channels(self, *, is_by_client: bool) -> None:
        """Drop the channels: a few at once, the others in steps, because a client may have a hundred long-polls."""
        channels = list(self._channels.values())
        for channel in channels[:_DROPPED_AT_ONCE]:
            self._drop_channel(channel, is_by_client=is_by_client)
        for channel in channels[_DROPPED_AT_ONCE:]:
            self.clients.steps.add(partial(self._drop_channel, channel, is_by_client=is_by_client))

    def _drop_channel(self, channel: StreamChannel, *, is_by_client: bool) -> None:
        if self._channels.get(channel.stream) is not channel:
            return
        self.session.reset(channel.stream, ErrorCode.CANCEL)
        channel.gone(is_by_client=is_by_client)
        if channel.is_over and self._channels.pop(channel.stream, None) is not None:
            self._unregister_if_over()

    def _unregister_if_over(self) -> None:
        """Unregister the connection if it is lost and has no channel."""
        if self.transport is None and not self._channels:
            self.clients.unregister(self)

    def shed(self) -> None:
        """Cut the connection because the process is short of memory."""
        self._is_shed = True
        self._cut(CloseReason.SLOW)

    def drop(self) -> None:
        """Cut the connection at the end of a drain."""
        self._cut(CloseReason.DRAINED)

    def _cut(self, why: CloseReason) -> None:
        for channel in self._channels.values():
            channel.cut_reason = why
        if self.transport is not None:
            self.transport.abort()
