"""Sends requests to the other workers of this gateway, over their Unix sockets.

The host of such a request's URL is `worker-<slot>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from gateway.aio.tasks import Tasks
from gateway.http.reply import ReplyParser
from gateway.http.reply_lines import ReadLines, read_with_own
from gateway.protocol.hop import HOP_RECORD, HOP_SAVED
from gateway.upstream.asking import Requester, answer_to
from gateway.upstream.call import Endpoint, OriginCall
from gateway.upstream.client import Exchanges
from gateway.upstream.connection import ConnectionOwner, OriginConnection
from gateway.upstream.connection_pool import UNBOUNDED
from gateway.upstream.dialer import Dialer
from gateway.upstream.exchange import Exchange
from gateway.upstream.failures import ConnectTimedOut, NotConnected
from gateway.upstream.incoming import no_op
from gateway.upstream.reply import Reply

_OWN: Final = (f"{HOP_RECORD}: ".encode(), f"{HOP_SAVED}: ".encode())


class _HopReplyParser(ReplyParser):
    """Parses the replies of another worker.  `HOP_RECORD` and `HOP_SAVED` have another value in each of them, so they
    are no part of what these replies have in common.

    A head has no bounds here: it repeats what the bounds of origins' heads have let in, maybe of several replies, maybe
    twice (`gateway.protocol.hop.Remembered`).
    """

    __slots__ = ()
    _most_head = _most_line = _most_fields = inf

    @staticmethod
    def _read_lines(lines: list[bytes]) -> ReadLines | None:
        return read_with_own(lines, _OWN)


class _HopDialer(Dialer):
    """Makes connections to the Unix sockets of the slots."""

    def __init__(self, tasks: Tasks, paths: Sequence[str]) -> None:
        super().__init__(tasks)
        self._paths = paths

    async def dial(self, endpoint: Endpoint, owner: ConnectionOwner, within_s: float) -> OriginConnection:
        loop = asyncio.get_running_loop()
        connection = OriginConnection(loop, owner, endpoint)
        connection.new_parser = _HopReplyParser
        connection.address = path = self._paths[int(endpoint.host.removeprefix("worker-"))]
        try:
            async with asyncio.timeout(within_s):
                await loop.create_unix_connection(lambda: connection, path)
        except TimeoutError as error:
            connection.connection_lost(None)
            raise ConnectTimedOut from error
        except OSError as error:
            connection.connection_lost(None)
            raise NotConnected from error
        except BaseException:
            connection.connection_lost(None)
            raise
        return connection


class HopClient:
    """Sends requests to other workers.  `close` ends all connections."""

    def __init__(self, paths: Sequence[str]) -> None:
        """`paths` are the sockets of all slots."""
        self._exchanges = Exchanges(UNBOUNDED)
        self._exchanges.dialer = _HopDialer(self._exchanges.tasks, paths)

    def __repr__(self) -> str:
        return f"<HopClient {self._exchanges.open_connections} connections>"

    def ask(self, requester: Requester, call: OriginCall) -> Exchange:
        """Send one request.  The requester is notified of its outcome, possibly before this returns."""
        return self._exchanges.ask(requester, call)

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply."""
        return await answer_to(self.ask, call, on_sent)

    async def close(self) -> None:
        await self._exchanges.close()
