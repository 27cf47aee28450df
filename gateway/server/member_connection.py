"""The connections of other members.  A connection is answered only after its member has proved itself
(`gateway.protocol.member_session`).

Any host that can reach the listener can open connections.  Unproved connections (from members that have not proved
themselves) therefore have small bounds of their own, in total and for each address.  Beyond a bound, one unproved
connection is cut.  If more than half of the unproved connections have sent a greeting, the oldest connection with a
greeting is cut.  Otherwise the oldest connection without a greeting is cut.  Strangers therefore cannot displace
members, whether or not the strangers send greetings.  A member's connection is unproved for only one round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from gateway.aio.sealing import SealingTransport
from gateway.protocol.member_session import MemberKey, Session, may_be_greeting, wanted_worker
from gateway.server.client_connections import Clients
from gateway.server.connection import Connection
from gateway.server.connection_passing import Passing

MOST_UNPROVED: Final = 256
MOST_UNPROVED_OF_ADDRESS: Final = 32
"""The most unproved connections, in total and of one address."""
_LOOK_S: Final = 0.05
_AGAIN_S: Final = 0.02
_MOST_TRIES: Final = 50
"""The seconds between two attempts to pass a connection on to a busy worker, and the number of attempts.  The queue of
a worker has room for only 10 connections, unless `net.unix.max_dgram_qlen` in sysctl(8) has another value."""
_REFUSED: Final = b"Only members of the fleet are answered here\n"


class MemberClients(Clients):
    """The registry of the connections of other members."""

    key: MemberKey
    worker: int
    """The number of this worker."""
    pass_on: Callable[[asyncio.BaseTransport, int, bytes], Passing] = staticmethod(lambda *_: Passing.REFUSED)
    """Passes a connection on to another worker, together with the greeting that has been read from the connection."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._unproved: dict[MemberConnection, str | None] = {}
        """The addresses of the unproved connections.  The latest is last."""

    def allow(self, most: int) -> None:
        """Allow this number of connections in total from now on."""
        self.use_limits(self.limits.model_copy(update={"max_connections": most, "client_connections": most}))

    def accepted(self, connection: MemberConnection) -> None:
        """Record a new connection.  Cut an unproved connection if there are too many of them."""
        unproved, address = self._unproved, connection.client
        same = [one for one, its in unproved.items() if its == address]
        cut: MemberConnection | None = None
        if len(same) >= MOST_UNPROVED_OF_ADDRESS:
            cut = _least(same)
        elif len(unproved) >= MOST_UNPROVED:
            cut = _least(list(unproved))
        unproved[connection] = address
        if cut is not None:
            del unproved[cut]
            cut.abort()

    def proved(self, connection: MemberConnection) -> None:
        """Record that the connection's member has proved itself, or that the connection has ended."""
        self._unproved.pop(connection, None)

    async def finish(self, timeout_s: float) -> None:
        """Wait for at most `timeout_s` seconds until the answers in progress are complete.  Close each connection that
        has no answer in progress."""
        now = asyncio.get_running_loop().time
        ends_at = now() + timeout_s
        self.close_idle()
        while not await self.emptied(max(0.0, min(_LOOK_S, ends_at - now()))) and now() < ends_at:
            # A connection stays open after an answer that began before the first call of `close_idle`.
            self.close_idle()


def _least(unproved: list[MemberConnection]) -> MemberConnection:
    """Return the connection to cut, from connections in the order of their arrival."""
    greeted = sum(one.session is not None for one in unproved)
    is_greeted = greeted > len(unproved) // 2
    return next(one for one in unproved if (one.session is not None) == is_greeted)


class MemberConnection(Connection):
    """The connection of another member."""

    __slots__ = ("_again", "_greeting", "_members", "_sealing", "_tries", "session")

    def __init__(self, clients: MemberClients) -> None:
        super().__init__(clients, None)
        self._members = clients
        self._greeting = b""
        self._again: asyncio.TimerHandle | None = None
        """The next attempt to pass this connection on."""
        self._tries = 0
        self._sealing: SealingTransport
        self.session: Session | None = None
        """The session of the connection; None before the greeting."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._sealing = SealingTransport(transport)
        super().connection_made(cast("asyncio.Transport", self._sealing))
        if not transport.is_closing():
            self._members.accepted(self)

    def data_received(self, data: bytes) -> None:
        session = self.session
        if session is None:
            self._greet(self._greeting + data)
            return
        is_first = not session.opener.has_opened
        try:
            opened = session.opener.opened(data)
        except ValueError:
            self.abort()
            return
        if is_first and session.opener.has_opened:
            self._members.proved(self)
        if opened:
            super().data_received(opened)

    def _greet(self, data: bytes) -> None:
        if may_be_greeting(data) and not data.endswith(b"\n"):
            self._greeting = data
            return
        self._stop_trying()
        self._greeting = b""
        members = self._members
        wanted = wanted_worker(data)
        if wanted is not None and wanted != members.worker:
            match members.pass_on(cast("asyncio.Transport", self._sealing), wanted, data):
                case Passing.DONE:
                    # This closes the descriptor.  The connection stays open, because the message holds another
                    # descriptor.
                    self.abort()
                    return
                case Passing.LATER if self._tries < _MOST_TRIES:
                    self._tries += 1
                    self._greeting = data
                    self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._greet, data)
                    return
        answered = members.key.answered(data, members.worker)
        if answered is None:
            self._refuse(403, _REFUSED)
            return
        answer, self.session = answered
        self._sealing.write(answer)
        self._sealing.seal = self.session.sealer.sealed

    def _stop_trying(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_trying()
        self._members.proved(self)
        super().connection_lost(exc)
