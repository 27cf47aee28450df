"""The purges and revocations of a fleet in Redis or Valkey: a stream of orders, and the revocations in effect.

The stream is trimmed to about `MOST_ENTRIES`.  The revocations are a hash with one field for each name, so that a later
revocation replaces an earlier one.  Both keys begin with the name of the fleet, which also keeps them in one slot of a
cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from redis import exceptions

from gateway.config.redis_place import RedisPlace
from gateway.protocol.stored_orders import StoredEntry
from gateway.upstream.redis_database import AnswerTooLargeError, RedisDatabase

MOST_ENTRIES: Final = 2_048
"""The orders that Redis keeps: twice as many as a member (`gateway.protocol.fleet_orders.MOST_ORDERS`)."""
_PAGE: Final = 256
"""The most entries in one answer, so that reading them does not keep the loop for long."""
_LEAST_PAGE: Final = 2
"""The fewest entries in one answer: the last one that was read, and the next one."""
_SMALL_PAGE_BYTES: Final = 1 << 22
"""After a page with fewer bytes, the next one may have twice as many entries."""
_MOST_PAGES: Final = 512
_FIELD: Final = b"order"


class RedisOrders:
    """The two keys of one fleet."""

    def __init__(self, place: RedisPlace, fleet: str) -> None:
        """`fleet` is the fleet's name (`gateway.protocol.stored_orders.Seal.fleet`).  Raises OSError or ValueError if
        the file of the authorities cannot be used."""
        self._orders = f"durable-gateway:{{{fleet}}}:orders"
        self._revocations = f"durable-gateway:{{{fleet}}}:revocations"
        self._database = database = RedisDatabase(place)
        self._client = database.client
        self._page = _PAGE
        """The most entries of the stream in one answer for now.  Orders may be large."""
        self.shown: Final = database.shown
        """The address, for the operator."""

    async def since(self, entry_id: str) -> list[StoredEntry]:
        """Return the entry with this id, if it is still there, and those after it: a page of them.  Raises OSError."""
        while True:
            try:
                found: Any = await self._database.within(self._client.xrange(self._orders, entry_id, count=self._page))
                break
            except AnswerTooLargeError:
                if self._page == _LEAST_PAGE:
                    raise
                self._page //= 2
            except OSError:
                # Perhaps the answer is too large for the time.
                self._page = max(_LEAST_PAGE, self._page // 2)
                raise
        entries = [StoredEntry(one.decode(), fields.get(_FIELD, b"")) for one, fields in found]
        if sum(len(one.data) for one in entries) < _SMALL_PAGE_BYTES:
            self._page = min(_PAGE, 2 * self._page)
        return entries

    async def revocations(self) -> AsyncIterator[dict[bytes, bytes]]:
        """Yield the entries of all revocations by their fields: pages of them.  Raises OSError."""
        cursor = 0
        for _ in range(_MOST_PAGES):
            found: Any = await self._database.within(self._client.hscan(self._revocations, cursor, count=_PAGE))
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
        answers: list[Any] = await self._database.within(changes.execute())
        return int(answers[-1])

    async def drop(self, revocations: Mapping[bytes, bytes]) -> None:
        """Drop revocations, except for those that were replaced meanwhile.  Raises OSError."""
        await self._database.within(self._drop(revocations))

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

    async def close(self) -> None:
        """Close the connection, and end the look-up of the address."""
        await self._database.close()
