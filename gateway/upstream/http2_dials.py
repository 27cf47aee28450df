"""Making HTTP/2 connections for requests that wait: those of one pool for one host share one attempt at a time."""

from __future__ import annotations

import asyncio

from gateway.aio.tasks import Tasks
from gateway.errors import bare
from gateway.http.http2.counts import SessionCounts
from gateway.upstream.connection_pool import ConnectionPool
from gateway.upstream.dialer import Dialer
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.failures import NoHttp2, NotConnected


class Http2Dials:
    """Owns the attempts under way."""

    def __init__(self, tasks: Tasks, dialer: Dialer, counts: SessionCounts) -> None:
        self._tasks = tasks
        self._dialer = dialer
        self._counts = counts
        self._dials: dict[tuple[ConnectionPool, Endpoint], asyncio.Task[NotConnected | None]] = {}

    def __repr__(self) -> str:
        return f"<Http2Dials {len(self._dials)} under way>"

    async def dialled(self, pool: ConnectionPool, endpoint: Endpoint, within_s: float) -> None:
        """Wait until the pool has a new connection.  `within_s` bounds the attempt, unless one is under way.

        Raises NotConnected.
        """
        key = pool, endpoint
        task = self._dials.get(key)
        if task is None:
            task = self._dials[key] = self._tasks.start(self._dial(pool, endpoint, within_s), f"dial {endpoint}")
            task.add_done_callback(lambda _: self._dials.pop(key, None))
        failed = await asyncio.shield(task)
        if failed is not None:
            # A new exception for each waiter, because each adds its own traceback.
            raise type(failed)(*failed.args) from failed.__cause__

    async def _dial(self, pool: ConnectionPool, endpoint: Endpoint, within_s: float) -> NotConnected | None:
        """The failure as a value: the waiters raise it, and the task logs nothing."""
        renewals = pool.renewals
        try:
            connection = await self._dialer.dial_http2(endpoint, pool, self._counts, within_s)
        except NotConnected as error:
            return bare(error)
        if not connection.has_room:
            # It has ended, or takes no requests: without this, the waiters would dial again and again.
            connection.drop()
            return NoHttp2()
        if pool.renewals == renewals:
            pool.made_http2(connection)
        else:
            # It was begun with former settings.  The waiters find none in the pool, and make another one.
            connection.drop()
        return None
