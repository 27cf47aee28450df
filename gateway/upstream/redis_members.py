"""The announcements of a fleet's members in Redis or Valkey: a key for each member that expires, and an index of names.

The index is a sorted set of the names by the time of their latest announcement, so that the keys are found without a
look at all keys of the database.  It has no more than `MOST_NAMES` names, none of long ago, and none of a time to come.
The times are those of Redis's own clock, so a member with a wrong clock removes no name of another member.  All keys
begin with the name of the fleet, which also keeps them in one slot of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from redis import exceptions

from gateway.config.redis_place import RedisPlace
from gateway.upstream.redis_database import RedisDatabase

MOST_NAMES: Final = 256
"""The most names in the index: four times as many as a fleet has members."""
_INDEXED_S: Final = 3_600.0
"""The most seconds that a name stays in the index after its latest announcement."""
_AHEAD_S: Final = 60.0
"""The most seconds by which the time of a name may lie ahead: Redis's clock may be set back."""
_MS_PER_S: Final = 1_000


class RedisMembers:
    """The announcements of one fleet."""

    def __init__(self, place: RedisPlace, fleet: str) -> None:
        """`fleet` is the fleet's name (`gateway.protocol.stored_orders.Seal.fleet`).  Raises OSError or ValueError if
        the file of the authorities cannot be used."""
        self._index = f"durable-gateway:{{{fleet}}}:members"
        self._prefix = f"durable-gateway:{{{fleet}}}:member:"
        self._database = database = RedisDatabase(place)
        self._client = database.client
        self.shown: Final = database.shown
        """The address, for the operator."""

    async def entries(self) -> list[tuple[bytes, bytes]]:
        """Return the names and the entries of the announcements that have not expired.  Raises OSError."""
        names: Any = await self._database.within(self._client.zrevrange(self._index, 0, MOST_NAMES - 1))
        if not names:
            return []
        prefix = self._prefix.encode()
        entries: Any = await self._database.within(self._client.mget([prefix + name for name in names]))
        return [(name, entry) for name, entry in zip(names, entries, strict=True) if entry is not None]

    async def announce(self, name: str, entry: bytes, life_s: float) -> None:
        """Set an announcement, which expires after `life_s`.  Raises OSError."""
        now, _ = await self._database.within(self._client.time())
        changes = self._client.pipeline(transaction=True)
        changes.set(self._prefix + name, entry, px=round(life_s * _MS_PER_S))
        changes.zadd(self._index, {name: now})
        changes.zremrangebyscore(self._index, "-inf", now - _INDEXED_S)
        # Names of a time to come would stay for good, and push out the names of all members.
        changes.zremrangebyscore(self._index, now + _AHEAD_S, "+inf")
        changes.zremrangebyrank(self._index, 0, -MOST_NAMES - 1)
        await self._database.within(changes.execute())

    async def withdraw(self, name: str, is_own: Callable[[bytes], bool]) -> None:
        """Remove an announcement if its entry is this gateway's own.  Raises OSError."""
        await self._database.within(self._withdraw(name, is_own))

    async def _withdraw(self, name: str, is_own: Callable[[bytes], bool]) -> None:
        key = self._prefix + name
        async with self._client.pipeline(transaction=True) as changes:
            await changes.watch(key)
            entry: Any = await changes.get(key)
            changes.multi()  # type: ignore[no-untyped-call]
            if entry is not None and is_own(entry):
                changes.delete(key)
                changes.zrem(self._index, name)
            # If another gateway has just taken the name over, the announcement is that gateway's.
            with suppress(exceptions.WatchError):
                await changes.execute()

    async def close(self) -> None:
        """Close the connection, and end the look-up of the address."""
        await self._database.close()
