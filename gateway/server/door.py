"""The front door: every client's connection begins and ends here.

A door answers by itself only what it has a ready answer for: one complete request in one piece, nothing in flight,
nothing behind it.  Everything else it hands over, in the client's own bytes, to an aiohttp protocol that is made when
it is first needed and kept for the connection.  Two parsers on one port would be a way to smuggle requests past one of
them; there is one, and what it has judged is remembered byte for byte (`ready`).

A door goes back to answering by itself only when the strict protocol is idle and every byte it was given was one
complete request without a body, so that nothing can be left in its parser.  After anything else the connection stays
strict to its end, which costs speed and nothing more.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import cast

from gateway.config import LimitsConfig
from gateway.metrics_seam import Recorder
from gateway.server.connection import ClientConnection, ClientServer
from gateway.server.ready import MAX_REQUEST_BYTES, Ready, ReadyAnswers
from gateway.signals import Signal

_HEAD_END = b"\r\n\r\n"
_ABORT_S = 1.0
_UNPLAIN = (b"\r\ncontent-length:", b"\r\ntransfer-encoding:", b"\r\nupgrade:", b"\r\nexpect:")


class Door(asyncio.Protocol):
    """One client's connection.  Owner of its transport and of its one idle timer."""

    __slots__ = (
        "_active_at",
        "_candidate",
        "_has_spoken",
        "_held",
        "_is_clean",
        "_keeper",
        "_paused",
        "_strict",
        "_timer",
        "_unsent",
        "transport",
    )

    def __init__(self, keeper: Doorkeeper) -> None:
        self._keeper = keeper
        self.transport: asyncio.Transport | None = None
        self._strict: ClientConnection | None = None
        self._is_clean = True
        """Whether the strict protocol's parser holds nothing: all it was given were whole requests without bodies."""
        self._candidate: bytes | None = None
        self._held = b""
        """What came while the strict protocol was settling."""
        self._paused = False
        self._has_spoken = False
        self._active_at = 0.0
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being answered."""
        return self._strict is None or self._strict.is_idle

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self.transport = transport = cast("asyncio.Transport", transport)
        keeper = self._keeper
        if not keeper.admit(self):
            transport.abort()
            return
        # Unsent bytes are to be seen here, not in the kernel: half the bound there, half in the transport.
        half = keeper.limits.send_buffer_bytes // 2
        transport.set_write_buffer_limits(high=half)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, half)
        self._watch(keeper.limits.client_header_timeout_s)

    def data_received(self, data: bytes) -> None:
        strict = self._strict
        if self._held or (self._is_clean and strict is not None and strict.is_settling):
            # A quick client answers a response before its writer is done with it: wait those two turns of the loop, or
            # no request on a busy connection would ever find this door free.
            if not self._held:
                self._keeper.loop.call_soon(self._take_held)
            self._held += data
            return
        self._candidate = None
        self._has_spoken = True
        if self._is_clean and (strict is None or strict.is_idle):
            ready = self._keeper.ready
            if ready is not None and not self._paused and (answer := ready.find(data)) is not None:
                self._serve(answer, ready.render(answer))
                return
            if _is_one_plain_get(data):
                self._candidate = data
            else:
                self._is_clean = False
        else:
            self._is_clean = False
        if strict is None:
            strict = self._strict = self._keeper.strict(self)
            assert self.transport is not None
            strict.connection_made(self.transport)
        strict.data_received(data)

    def eof_received(self) -> None:
        """The client has said its last word: with None the transport closes, as aiohttp has it too."""

    def pause_writing(self) -> None:
        self._paused = True
        if self._strict is not None:
            self._strict.pause_writing()
        if self.is_idle:
            # A ready answer that the client does not take: nobody awaits it, so its deadline is kept here.
            self._unsent = self._unsent_now()
            self._watch(self._keeper.limits.client_write_timeout_s)

    def resume_writing(self) -> None:
        self._paused = False
        if self._strict is not None:
            self._strict.resume_writing()
        self._watch(self._keeper.limits.keepalive_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._keeper.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        strict, self._strict = self._strict, None
        if strict is not None:
            strict.connection_lost(exc)
        self.transport = None

    def _take_held(self) -> None:
        held, self._held = self._held, b""
        if self.transport is not None:
            self.data_received(held)

    # -- answers

    def _serve(self, answer: Ready, pieces: tuple[bytes, ...]) -> None:
        keeper, transport = self._keeper, self.transport
        assert transport is not None
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)
        self._active_at = keeper.loop.time()
        keeper.recorder.downstream_bytes(answer.body_bytes)
        keeper.recorder.request(answer.mode, answer.outcome, 0.0)

    def learn(self, answer: Ready) -> None:
        """The strict way has answered the request that came in last; remember it if it was one to remember."""
        if self._candidate is not None and self._keeper.ready is not None:
            self._keeper.ready.remember(self._candidate, answer)

    # -- time

    def _watch(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._active_at = self._keeper.loop.time()
        self._timer = self._keeper.loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        """The one timer: a connection that never spoke, is idle for too long, or does not take its answer, goes."""
        self._timer = None
        keeper, transport = self._keeper, self.transport
        if transport is None:
            return
        idle_s = keeper.limits.keepalive_timeout_s
        if not self.is_idle:
            # Whoever is answering keeps the time; idleness begins to count when this looks again.
            self._watch(max(idle_s, 1.0))
        elif self._paused:
            unsent, self._unsent = self._unsent, self._unsent_now()
            if self._unsent < unsent:
                self._watch(keeper.limits.client_write_timeout_s)
            else:
                keeper.recorder.slow_consumer()
                transport.abort()
        elif not self._has_spoken:
            transport.abort()
        elif (left := self._active_at + idle_s - keeper.loop.time()) > 0:
            self._timer = keeper.loop.call_later(left, self._look)
        else:
            transport.close()

    def _unsent_now(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def close_if_idle(self) -> None:
        """Used when the gateway leaves: what is being answered is left to end."""
        if self.is_idle and self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Doorkeeper:
    """Makes doors and knows those that are open.  `ready` is None where every request goes the strict way."""

    def __init__(
        self, server: ClientServer, limits: LimitsConfig, ready: ReadyAnswers | None, recorder: Recorder
    ) -> None:
        self._server = server
        self.limits = limits
        self.ready = ready
        self.recorder = recorder
        self.loop = asyncio.get_running_loop()
        self.is_leaving = False
        self._coming = 0
        """Connections that are accepted and have not been made yet."""
        self._doors: set[Door] = set()
        self._emptied = Signal()

    def __call__(self) -> Door:
        self._coming += 1
        return Door(self)

    def __len__(self) -> int:
        return len(self._doors)

    def admit(self, door: Door) -> bool:
        """Take note of a new connection; False when there are too many, or the gateway is leaving."""
        self._coming -= 1
        if self.is_leaving or len(self._doors) >= self.limits.max_connections:
            self._emptied.fire()
            return False
        self._doors.add(door)
        return True

    def leave(self, door: Door) -> None:
        self._doors.discard(door)
        if not self._doors:
            self._emptied.fire()

    def strict(self, door: Door) -> ClientConnection:
        """An aiohttp protocol for the door's connection."""
        return self._server.connect(door)

    def leave_in_order(self) -> None:
        """Close idle connections now; the strict protocol closes the others as they become idle."""
        self.is_leaving = True
        for door in list(self._doors):
            door.close_if_idle()

    async def abort(self) -> None:
        """Drop every connection that is left, and see it go."""
        for door in list(self._doors):
            door.abort()
        # What the loop has accepted already becomes a door in its next turn.
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_S):
                while self._doors or self._coming:
                    await self._emptied.wait()


def _is_one_plain_get(data: bytes) -> bool:
    """Whether `data` is one whole HTTP/1.1 GET that leaves nothing behind in a parser and keeps its connection."""
    if len(data) > MAX_REQUEST_BYTES or not data.startswith(b"GET ") or data.find(_HEAD_END) != len(data) - 4:
        return False
    if not data.startswith(b" HTTP/1.1\r\n", data.find(b"\r\n") - 9):
        return False
    lower = data.lower()
    if any(sign in lower for sign in _UNPLAIN):
        return False
    return b"\r\nconnection:" not in lower or b"\r\nconnection: keep-alive\r\n" in lower
