"""A connection to another member of the fleet, which carries nothing before that member has proved itself
(`gateway.protocol.member_session`)."""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.aio.sealing import SealingTransport
from gateway.http.reply_parser import ReplyBroken
from gateway.protocol.member_session import ANOTHER_SERVER, MemberKey, NotProved, Opener, may_be_greeting
from gateway.upstream.connection import ConnectionOwner, OriginConnection
from gateway.upstream.failures import NotAMember, NotConnected
from gateway.upstream.origin_call import Endpoint


class MemberConnection(OriginConnection):
    """A connection to the member `name`."""

    __slots__ = ("_greeting", "_key", "_name", "_opener", "_sealing", "_unread", "_worker", "greeted")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: ConnectionOwner,
        endpoint: Endpoint,
        key: MemberKey,
        name: str,
        worker: int | None,
    ) -> None:
        """`worker` is the number of the member's worker that is to answer; None stands for any worker."""
        super().__init__(loop, owner, endpoint)
        self._key = key
        self._name = name
        self._worker = worker
        self._greeting = key.greeting(worker)
        self._opener: Opener | None = None
        self._unread = b""
        self._sealing: SealingTransport
        self.greeted: asyncio.Future[NotConnected | None] = loop.create_future()
        """Done when the member has proved itself (None), or has failed to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sealing = SealingTransport(cast("asyncio.Transport", transport))
        super().connection_made(cast("asyncio.Transport", self._sealing))
        self._sealing.write(self._greeting)

    def data_received(self, data: bytes) -> None:
        opener = self._opener
        if opener is None:
            self._greeted(self._unread + data)
            return
        forged = False
        try:
            opened = opener.opened(data)
        except ValueError:
            forged, opened = True, b""
        if forged:
            # Fail outside the `except` block, so that the error does not become the context of other exceptions.
            self.fail(ReplyBroken("not sent by the member"))
        elif opened:
            super().data_received(opened)

    def _greeted(self, data: bytes) -> None:
        end = data.find(b"\n") + 1
        if not end and may_be_greeting(data):
            self._unread = data
            return
        self._unread = b""
        failure: NotConnected | None = None
        try:
            # The member sends nothing after its answer before it is asked.
            if end != len(data):
                raise NotProved(ANOTHER_SERVER, differs=False)
            session = self._key.session(self._greeting, data, self._name)
        except NotProved as error:
            failure = NotAMember(str(error), differs=error.differs)
        else:
            if self._worker not in (None, session.worker):
                failure = NotConnected(f"worker {self._worker} does not serve")
            self._opener, self._sealing.seal = session.opener, session.sealer.sealed
            # An empty record proves this member at once, so that its connection is no longer among the strangers'.
            self._sealing.write(b"")
        if not self.greeted.done():
            self.greeted.set_result(failure)

    def eof_received(self) -> bool:
        if self._opener is None:
            self.drop()
            return False
        return super().eof_received()

    def _on_lost(self) -> None:
        super()._on_lost()
        if not self.greeted.done():
            self.greeted.set_result(NotConnected())
