"""Making connections: resolve the name, try its addresses in turn, and start TLS if the URL asks for it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from gateway.aio.tasks import Tasks
from gateway.config.origin_tls import OriginTls
from gateway.upstream.connection import Connection, ConnectionOwner
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.failures import ConnectTimedOut, NotConnected
from gateway.upstream.resolver import LookUp, Resolver, look_up


class Dialer:
    """Owns the resolver and the default TLS context."""

    def __init__(self, tasks: Tasks, look_up: LookUp = look_up) -> None:
        self._resolver = Resolver(tasks, lambda: asyncio.get_running_loop().time(), look_up)
        self._context: ssl.SSLContext | None = None
        self.tls: Mapping[str, OriginTls] = {}
        """Origins with TLS settings of their own, by scheme, host and port."""

    async def dial(self, endpoint: Endpoint, owner: ConnectionOwner, within_s: float) -> Connection:
        """A new connection, made within `within_s` seconds, including name resolution and TLS.

        Each address gets an equal share of the remaining time, so that a dead one does not use it up.  Raises
        NotConnected.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within_s
        error: OSError | None = None
        try:
            async with asyncio.timeout_at(ends_at):
                addresses = await self._resolver.addresses(endpoint.host, endpoint.port)
            for number, address in enumerate(addresses):
                share_s = (ends_at - loop.time()) / (len(addresses) - number)
                try:
                    async with asyncio.timeout(share_s):
                        return await self._connect(loop, endpoint, address, owner)
                except OSError as failed:
                    error = failed
                    self._resolver.failed(endpoint.host, endpoint.port, address)
        except OSError as failed:
            error = failed
        try:
            if isinstance(error, TimeoutError):
                raise ConnectTimedOut from error
            raise NotConnected from error
        finally:
            # Its traceback refers to this frame.
            del error

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, address: str, owner: ConnectionOwner
    ) -> Connection:
        context: ssl.SSLContext | None = None
        server_name: str | None = None
        if endpoint.scheme == "https":
            tls = self.tls.get(str(endpoint))
            if tls is None and self._context is None:
                self._context = ssl.create_default_context()
            context = tls.context if tls is not None else self._context
            server_name = (tls.server_name if tls is not None else "") or endpoint.host
        connection = Connection(loop, owner, endpoint)
        try:
            await loop.create_connection(
                lambda: connection, address, endpoint.port, ssl=context, server_hostname=server_name
            )
        except BaseException:
            # uvloop does not call it if this is cancelled in the turn in which the connection is made.
            connection.connection_lost(None)
            raise
        return connection
