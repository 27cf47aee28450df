"""Makes connections to origins: resolve the name, try its addresses in turn, and start TLS for an `https` URL.

`HopDialer` makes the connections to the other workers of this gateway.

An HTTP/2 connection counts as made when the origin's first SETTINGS have arrived.  Requests of one pool that wait for
an HTTP/2 connection to one host share a single attempt (`Http2Dials`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Final, TypeVar

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.origin_tls import OriginTls, load_tls, tls_files
from gateway.config.reader import ConfigReader, ConfigReadTimeout
from gateway.config.watched_files import Stamp, Watch
from gateway.errors import bare
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.reply_lines import ReadLines, read_with_own
from gateway.http.reply_parser import ReplyParser
from gateway.protocol.member_session import MemberKey
from gateway.protocol.worker_headers import HOP_RECORD, HOP_SAVED
from gateway.upstream.connection import ConnectionOwner, OriginConnection
from gateway.upstream.connection_pool import ConnectionPool
from gateway.upstream.failures import ConnectTimedOut, NoHttp2, NotConnected
from gateway.upstream.http2_connection import ALPN, Http2OriginConnection, Http2Owner
from gateway.upstream.member_connection import MemberConnection
from gateway.upstream.origin_call import Endpoint
from gateway.upstream.origin_state import Say
from gateway.upstream.resolver import LookUp, Resolver, ignore, look_up

P = TypeVar("P", OriginConnection, Http2OriginConnection)

MOST_GREETINGS: Final = 8
"""The most connections that are made at once to one member of the fleet."""
_OWN: Final = (f"{HOP_RECORD}: ".encode(), f"{HOP_SAVED}: ".encode())


class Dialer:
    """Makes connections.  Owner of the resolver and of the default TLS contexts."""

    def __init__(
        self, tasks: Tasks, look_up: LookUp = look_up, on_resolved: Callable[[str, int, list[str]], None] = ignore
    ) -> None:
        """`on_resolved` is called with host, port and addresses after each lookup."""
        self._resolver = Resolver(tasks, lambda: asyncio.get_running_loop().time(), look_up, on_resolved)
        self.look_again: Final = self._resolver.refresh
        """Called with host and port for each request, so that a name in use is resolved again when the resolution is
        due.
        """
        self._contexts: dict[bool, ssl.SSLContext] = {}
        """The default contexts for HTTP/1.1 (False) and HTTP/2 (True)."""
        self.tls: Mapping[str, OriginTls] = {}
        """The origins with their own TLS settings, by `scheme://host:port`."""

    def forget_names(self) -> None:
        """Discard all resolved names."""
        self._resolver.forget_addresses()

    async def dial(self, endpoint: Endpoint, owner: ConnectionOwner, within_s: float) -> OriginConnection:
        """Make a connection within `within_s` seconds, including name resolution and TLS.  Raises NotConnected.

        Each address gets an equal share of the remaining time, so that a dead address does not use up all of the time.
        """
        loop = asyncio.get_running_loop()

        async def connect(address: str) -> OriginConnection:
            return await self._connect(OriginConnection(loop, owner, endpoint), address, is_http2=False)

        return await self._dial(endpoint, within_s, connect)

    async def dial_http2(
        self, endpoint: Endpoint, owner: Http2Owner, counts: SessionCounts, within_s: float
    ) -> Http2OriginConnection:
        """Make an HTTP/2 connection like `dial`, and wait for the origin's SETTINGS."""
        loop = asyncio.get_running_loop()

        async def connect(address: str) -> Http2OriginConnection:
            connection = await self._connect(
                Http2OriginConnection(loop, owner, endpoint, counts), address, is_http2=True
            )
            try:
                failure = await connection.greeting
            except BaseException:
                connection.drop()
                raise
            if failure is not None:
                raise failure from connection.lost_by
            return connection

        return await self._dial(endpoint, within_s, connect)

    async def _dial(self, endpoint: Endpoint, within_s: float, connect: Callable[[str], Awaitable[P]]) -> P:
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
                        return await connect(address)
                except OSError as failed:
                    error = failed
                    self._resolver.avoid_address(endpoint.host, endpoint.port, address)
        except OSError as failed:
            error = failed
        try:
            if isinstance(error, TimeoutError):
                raise ConnectTimedOut from error
            if isinstance(error, NotConnected):
                raise error
            raise NotConnected from error
        finally:
            # Break a reference cycle: the error's traceback refers to this frame.
            del error

    async def _connect(self, connection: P, address: str, *, is_http2: bool) -> P:
        endpoint = connection.endpoint
        connection.address = address
        context: ssl.SSLContext | None = None
        server_name: str | None = None
        if endpoint.scheme == "https":
            tls = self.tls.get(str(endpoint))
            context = tls.context if tls is not None else self._default_context(is_http2=is_http2)
            server_name = (tls.server_name if tls is not None else "") or endpoint.host
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, address, endpoint.port, ssl=context, server_hostname=server_name
            )
        except BaseException:
            # Call `connection_lost` here.  If the connection is made and the task cancelled in one iteration of the
            # loop, uvloop does not call it.
            connection.connection_lost(None)
            raise
        return connection

    def _default_context(self, *, is_http2: bool) -> ssl.SSLContext:
        context = self._contexts.get(is_http2)
        if context is None:
            context = self._contexts[is_http2] = ssl.create_default_context()
            if is_http2:
                context.set_alpn_protocols([ALPN])
        return context


class Http2Dials:
    """Owner of the attempts to make HTTP/2 connections for pools."""

    def __init__(self, tasks: Tasks, dialer: Dialer, counts: SessionCounts) -> None:
        self._tasks = tasks
        self._dialer = dialer
        self._counts = counts
        self._dials: dict[tuple[ConnectionPool, Endpoint], asyncio.Task[NotConnected | None]] = {}

    def __repr__(self) -> str:
        return f"<Http2Dials {len(self._dials)} under way>"

    async def dialled(self, pool: ConnectionPool, endpoint: Endpoint, within_s: float) -> None:
        """Wait until a new HTTP/2 connection is in the pool.  Raises NotConnected.

        Joins an attempt in progress.  `within_s` bounds a new attempt.
        """
        key = pool, endpoint
        task = self._dials.get(key)
        if task is None:
            task = self._dials[key] = self._tasks.start(self._dial(pool, endpoint, within_s), f"dial {endpoint}")
            task.add_done_callback(lambda _: self._dials.pop(key, None))
        failed = await asyncio.shield(task)
        if failed is not None:
            # Make a new exception for each waiter, because each waiter adds its own traceback.
            raise type(failed)(*failed.args) from failed.__cause__

    async def _dial(self, pool: ConnectionPool, endpoint: Endpoint, within_s: float) -> NotConnected | None:
        """Make a connection and add it to the pool.  Return a failure as a value, which all waiters raise."""
        renewals = pool.renewals
        try:
            connection = await self._dialer.dial_http2(endpoint, pool, self._counts, within_s)
        except NotConnected as error:
            return bare(error)
        if not connection.has_room:
            # The connection has ended, or takes no requests.  Fail the waiters, because they would otherwise dial for
            # ever.
            connection.drop()
            return NoHttp2()
        if pool.renewals == renewals:
            pool.made_http2(connection)
        else:
            # Drop the connection, because the settings have changed during the attempt.  The waiters will find no
            # connection and dial again.
            connection.drop()
        return None


class _HopReplyParser(ReplyParser):
    """Parses the replies of another worker.  `HOP_RECORD` and `HOP_SAVED` have a new value in each reply, so they do
    not belong to the lines that these replies share.

    A head has no bounds here.  It repeats headers of the origin, which were within the bounds for origins.  But it may
    have the headers of several replies, and may repeat them (`gateway.protocol.worker_headers.Remembered`).
    """

    __slots__ = ()
    _most_head = _most_line = _most_fields = inf

    @staticmethod
    def _read_lines(lines: list[bytes]) -> ReadLines | None:
        return read_with_own(lines, _OWN)


class HopDialer(Dialer):
    """Makes connections to the workers' Unix sockets, one for each slot (a worker's number)."""

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


class MemberDialer(Dialer):
    """Makes connections to the other members of a fleet, and waits until they have proved themselves.

    A member bounds the connections of one address that have proved nothing, so only some are made at once to a member.
    All workers of this gateway have one address.

    The user part of a URL is the number of the member's worker that is to answer, such as `http://1@10.0.0.1:4439`.
    Without one, any worker answers.
    """

    def __init__(self, tasks: Tasks, key: MemberKey, names: Mapping[Endpoint, str], workers: int = 1) -> None:
        """`names` are the names of the members, and `workers` is the number of this gateway's workers."""
        super().__init__(tasks)
        self._key = key
        self._most = max(1, MOST_GREETINGS // workers)
        self._members: dict[Endpoint, tuple[str, asyncio.Semaphore]] = {}
        """The name of each member, and the turns to connect to it."""
        self._of_workers: dict[Endpoint, set[Endpoint]] = {}
        """The endpoints of each member's single workers that were used."""
        self.use_names(names)

    def use_names(self, names: Mapping[Endpoint, str]) -> list[Endpoint]:
        """Connect to these members only from now on.  Return the endpoints that have led to other members before."""
        others = [endpoint for endpoint, (name, _) in self._members.items() if names.get(endpoint) != name]
        for endpoint in list(others):
            del self._members[endpoint]
            others += self._of_workers.pop(endpoint, ())
        for endpoint in names.keys() - self._members.keys():
            self._members[endpoint] = names[endpoint], asyncio.Semaphore(self._most)
        return others

    async def dial(self, endpoint: Endpoint, owner: ConnectionOwner, within_s: float) -> OriginConnection:
        """Make a connection within `within_s` seconds, after a wait of at most as long for earlier dials."""
        any_worker, worker = endpoint._replace(user=""), int(endpoint.user) if endpoint.user else None
        loop, member = asyncio.get_running_loop(), self._members.get(any_worker)
        if member is None:
            raise NotConnected("no member is there")
        name, turn = member
        if worker is not None:
            self._of_workers.setdefault(any_worker, set()).add(endpoint)
        try:
            async with asyncio.timeout(within_s):
                await turn.acquire()
        except TimeoutError as error:
            raise ConnectTimedOut from error

        async def connect(address: str) -> OriginConnection:
            connection = MemberConnection(loop, owner, endpoint, self._key, name, worker)
            connection.new_parser = _HopReplyParser
            await self._connect(connection, address, is_http2=False)
            try:
                failure = await connection.greeted
            except BaseException:
                connection.drop()
                raise
            if failure is None and self._members.get(any_worker) is not member:
                failure = NotConnected("the member has left the list")
            if failure is not None:
                connection.drop()
                raise failure
            return connection

        try:
            return await self._dial(endpoint, within_s, connect)
        finally:
            turn.release()


class TlsReloader:
    """Reloads the certificate files of `route.origin_tls` when they change.  The caller must call `close`.

    `config` returns the current configuration.  `take` receives the reloaded TLS settings by origin.
    """

    def __init__(
        self,
        config: Callable[[], GatewayConfig],
        take: Callable[[Mapping[str, OriginTls]], object],
        clock: Clock,
        say: Say,
    ) -> None:
        self._config = config
        self._take = take
        self._say = say
        self._requested = config()
        self._reader = ConfigReader(lambda: load_tls(self._requested), clock)
        self._tasks = Tasks()
        self._watch = Watch(lambda: tls_files(config()), self._reload, clock)

    @property
    def polls(self) -> int:
        """The number of times the files have been checked."""
        return self._watch.polls

    def start(self, known: Stamp) -> None:
        """Start watching.  `known` is the stamp of the files, which was taken before the files were read."""
        self._tasks.start(self._watch.run(known), "watch the files of route.origin_tls")

    async def close(self) -> None:
        await self._tasks.close()

    async def _reload(self) -> None:
        requested = self._requested = self._config()
        try:
            tls = await self._reader.read()
        except ConfigError as error:
            self._say(f"{error}; the previous settings stay in use")
            if isinstance(error, ConfigReadTimeout):
                raise
            return
        if requested is self._config():
            self._take(tls)
            self._say("route.origin_tls: files changed and were reloaded")
