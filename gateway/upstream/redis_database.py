"""A connection to the Redis or Valkey server of a fleet.

redis-py sends the commands.  All of its failures become `OSError` with one short line, which is equal for equal
failures and has no credentials.  Each command has a bound in time.  The modules that use redis-py are imported only if
the configuration needs them, because redis-py is an extra and takes 0.8 s to import.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from redis import exceptions
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.aio.tasks import Tasks
from gateway.config.redis_place import RedisPlace
from gateway.upstream.resolver import Resolver, look_up

_COMMAND_S: Final = 1.0
"""The most seconds for one answer of Redis, with the time to connect."""
_MOST_ANSWER_BYTES: Final = 1 << 24
"""The most bytes of one answer of Redis: enough for a page of any announcements, revocations or small orders."""
_MOST_ADDRESSES: Final = 4
"""The most addresses of one name that are tried."""
_WORD_CHARS: Final = 24
_REFUSED: Final = "it has refused the user or the password"

T = TypeVar("T")


class _TooLargeError(Exception):
    """An answer of Redis has too many bytes.  It is no OSError, because redis-py gives these its own types."""


class AnswerTooLargeError(OSError):
    """An answer of Redis has too many bytes."""


class _BoundedReader:
    """The stream from Redis, which reads no more of one answer than `_MOST_ANSWER_BYTES`."""

    def __init__(self, stream: asyncio.StreamReader | None) -> None:
        self._stream: Any = stream
        self._left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def begin_answer(self) -> None:
        self._left = _MOST_ANSWER_BYTES

    def _count(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooLargeError

    async def readexactly(self, n: int) -> bytes:
        self._count(n)
        part: bytes = await self._stream.readexactly(n)
        return part

    async def readline(self) -> bytes:
        line: bytes = await self._stream.readline()
        self._count(len(line))
        return line

    async def read(self, n: int = -1) -> bytes:
        part: bytes = await self._stream.read(n)
        self._count(len(part))
        return part


class _Connection(Connection):
    """A connection whose address is looked up by the gateway: redis-py's way would fill the threads of the loop.

    Its answers are bounded, because another party may write large values to Redis."""

    def __init__(self, *, resolver: Resolver, tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(**options)
        self._resolver = resolver
        self._tls = tls
        self._address = ""
        self._bounded = _BoundedReader(None)

    def _connection_arguments(self) -> Mapping[str, Any]:
        tls = {} if self._tls is None else {"ssl": self._tls, "server_hostname": self.host}
        return {"host": self._address, "port": self.port, **tls}

    async def _connect(self) -> None:
        failed = OSError("no address")
        # The order is always the same, so that all members try the same address first.
        addresses = sorted(await self._resolver.addresses(self.host, self.port))[:_MOST_ADDRESSES]
        for address in addresses:
            self._address = address
            try:
                # An address that does not answer must leave time for the next one.
                async with asyncio.timeout(_COMMAND_S / len(addresses)):
                    await super()._connect()  # type: ignore[no-untyped-call]
                self._bounded = _BoundedReader(self._reader)
                self._reader = cast("Any", self._bounded)
                return
            except OSError as error:
                failed = error
        raise failed

    async def read_response(self, *args: Any, **options: Any) -> Any:
        self._bounded.begin_answer()
        return await super().read_response(*args, **options)


class RedisDatabase:
    """One database, over one connection: one command at a time."""

    def __init__(self, place: RedisPlace) -> None:
        """Raises OSError or ValueError if the file of the authorities cannot be used."""
        self.shown: Final = f"{place.host}:{place.port}"
        """The address, for the operator."""
        self._tasks = Tasks()
        self._resolver = Resolver(self._tasks, lambda: asyncio.get_running_loop().time(), look_up)
        # Only without a file, these are the authorities of the system.
        tls = ssl.create_default_context(cafile=place.ca_file or None) if place.is_tls else None
        # A command that has failed is not repeated at once: the next look follows soon enough.
        self.client: Final[Redis] = Redis(
            connection_pool=ConnectionPool(
                _Connection,
                max_connections=1,
                host=place.host,
                port=place.port,
                db=place.database,
                username=place.user or None,
                password=place.password or None,
                socket_timeout=_COMMAND_S,
                socket_connect_timeout=_COMMAND_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                driver_info=None,
                resolver=self._resolver,
                tls=tls,
            )
        )

    async def within(self, command: Awaitable[T]) -> T:
        """Return the answer to a command, if it comes in time.  Raises OSError; AnswerTooLargeError if the answer has
        too many bytes."""
        try:
            async with asyncio.timeout(_COMMAND_S):
                return await command
        except Exception as error:
            # A late answer must not be taken for that of the next command.
            await self._disconnect()
            kind = AnswerTooLargeError if isinstance(error, _TooLargeError) else OSError
            raise kind(_reason(error)) from None

    async def close(self) -> None:
        """Close the connection, and end the look-up of the address."""
        await self._disconnect()
        await self._tasks.close()

    async def _disconnect(self) -> None:
        """Close the connection.  The next command makes another one, maybe to another address."""
        self._resolver.forget_addresses()
        with suppress(Exception):
            async with asyncio.timeout(_COMMAND_S):
                await self.client.connection_pool.disconnect()


def _reason(error: Exception) -> str:
    match error:
        case _TooLargeError():
            return "its answer is too large"
        case exceptions.AuthenticationError() | exceptions.AuthorizationError():
            return _REFUSED
        case exceptions.AuthenticationWrongNumberOfArgsError():
            return _REFUSED
        case exceptions.NoPermissionError():
            return "the user lacks a right"
        case exceptions.ReadOnlyError():
            return "it is a replica, which takes no changes"
        case exceptions.OutOfMemoryError():
            return "it is out of memory"
        case exceptions.BusyLoadingError():
            return "it is loading its data"
        case exceptions.TimeoutError() | TimeoutError():
            return "it has not answered in time"
        case exceptions.ConnectionError() | OSError():
            return "it cannot be reached"
        case exceptions.ResponseError():
            # The first word of an error is its code.
            word = str(error).partition(" ")[0][:_WORD_CHARS]
            return f"it has refused a command ({word if word.isalpha() else type(error).__name__})"
    return f"its answer cannot be used ({type(error).__name__})"
