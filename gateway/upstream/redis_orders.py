"""The purges and revocations of a fleet in Redis or Valkey: a stream of orders, and the revocations in effect.

The stream is trimmed to about `MOST_ENTRIES`.  The revocations are a hash with one field for each name, so that a later
revocation replaces an earlier one.  Both keys begin with the name of the fleet, which also keeps them in one slot of a
cluster.

redis-py sends the commands.  All of its failures become `OSError` with one short line, which is equal for equal
failures and has no credentials.  Each command has a bound in time.  The module is imported only if the configuration
needs it, because redis-py is an extra and takes 0.8 s to import.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from redis import exceptions
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.aio.tasks import Tasks
from gateway.config.redis_place import RedisPlace
from gateway.protocol.stored_orders import StoredEntry
from gateway.upstream.resolver import Resolver, look_up

MOST_ENTRIES: Final = 2_048
"""The orders that Redis keeps: twice as many as a member (`gateway.protocol.fleet_orders.MOST_ORDERS`)."""
_PAGE: Final = 256
"""The most entries in one answer, so that reading them does not keep the loop for long."""
_MOST_PAGES: Final = 512
_COMMAND_S: Final = 1.0
"""The most seconds for one answer of Redis, with the time to connect."""
_MOST_ADDRESSES: Final = 4
"""The most addresses of one name that are tried."""
_FIELD: Final = b"order"
_WORD_CHARS: Final = 24
_REFUSED: Final = "it has refused the user or the password"

T = TypeVar("T")


class _Connection(Connection):
    """A connection whose address is looked up by the gateway: redis-py's way would fill the threads of the loop."""

    def __init__(self, *, resolver: Resolver, tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(**options)
        self._resolver = resolver
        self._tls = tls
        self._address = ""

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
                return
            except OSError as error:
                failed = error
        raise failed


class RedisOrders:
    """The two keys of one fleet."""

    def __init__(self, place: RedisPlace, fleet: str) -> None:
        """`fleet` is the fleet's name (`gateway.protocol.stored_orders.Seal.fleet`).  Raises OSError or ValueError if
        the file of the authorities cannot be used."""
        self._orders = f"durable-gateway:{{{fleet}}}:orders"
        self._revocations = f"durable-gateway:{{{fleet}}}:revocations"
        self.shown: Final = f"{place.host}:{place.port}"
        """The address, for the operator."""
        self._tasks = Tasks()
        self._resolver = Resolver(self._tasks, lambda: asyncio.get_running_loop().time(), look_up)
        # Only without a file, these are the authorities of the system.
        tls = ssl.create_default_context(cafile=place.ca_file or None) if place.is_tls else None
        # A command that has failed is not repeated at once: the next look follows soon enough.
        self._client: Redis = Redis(
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

    async def since(self, entry_id: str) -> list[StoredEntry]:
        """Return the entry with this id, if it is still there, and those after it: a page of them.  Raises OSError."""
        found: Any = await self._within(self._client.xrange(self._orders, min=entry_id, count=_PAGE))
        return [StoredEntry(one.decode(), fields.get(_FIELD, b"")) for one, fields in found]

    async def revocations(self) -> AsyncIterator[dict[bytes, bytes]]:
        """Yield the entries of all revocations by their fields: pages of them.  Raises OSError."""
        cursor = 0
        for _ in range(_MOST_PAGES):
            found: Any = await self._within(self._client.hscan(self._revocations, cursor, count=_PAGE))
            cursor, page = found
            yield page
            if not cursor:
                break

    async def add(self, orders: Sequence[bytes], revocations: Mapping[bytes, bytes]) -> int:
        """Add orders to the stream, and revocations: all of them, or none.  Return the number of all revocations.

        Raises OSError.  They may have been added nevertheless."""
        changes = self._client.pipeline(transaction=True)
        for order in orders:
            changes.xadd(self._orders, {_FIELD: order}, maxlen=MOST_ENTRIES, approximate=True)
        if revocations:
            fields: Any = dict(revocations)
            changes.hset(self._revocations, mapping=fields)
        changes.hlen(self._revocations)
        answers: list[Any] = await self._within(changes.execute())
        return int(answers[-1])

    async def drop(self, revocations: Mapping[bytes, bytes]) -> None:
        """Drop revocations, except for those that were replaced meanwhile.  Raises OSError."""
        await self._within(self._drop(revocations))

    async def _drop(self, revocations: Mapping[bytes, bytes]) -> None:
        async with self._client.pipeline(transaction=True) as changes:
            await changes.watch(self._revocations)
            present: Any = await changes.hmget(self._revocations, list(revocations))
            same = [one for one, entry in zip(revocations, present, strict=True) if entry == revocations[one]]
            changes.multi()  # type: ignore[no-untyped-call]
            if same:
                changes.hdel(self._revocations, *same)
            # If there were other changes in between, a later look drops them.
            with suppress(exceptions.WatchError):
                await changes.execute()

    async def _within(self, command: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(_COMMAND_S):
                return await command
        except Exception as error:
            # A late answer must not be taken for that of the next command.
            await self._disconnect()
            raise OSError(_reason(error)) from None

    async def close(self) -> None:
        """Close the connection, and end the look-up of the address."""
        await self._disconnect()
        await self._tasks.close()

    async def _disconnect(self) -> None:
        """Close the connection.  The next command makes another one, maybe to another address."""
        self._resolver.forget_addresses()
        with suppress(Exception):
            async with asyncio.timeout(_COMMAND_S):
                await self._client.connection_pool.disconnect()


def _reason(error: Exception) -> str:
    match error:
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
