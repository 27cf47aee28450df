"""Watches the memory of clients and cache once a second, or more often near the limit.  It applies the guard's
decisions.

The guard can shrink or grow the cache, drop the clients that hold the most, and refuse fetches and live requests while
their data would not fit.  At the highest pressure, it refuses new connections.

The C library may keep the memory of dropped clients, so that this memory stays resident.  Such memory is returned to
the system before the next look.  Otherwise the next look would drop further clients because of the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.aio.clock import Clock, pause
from gateway.config.gateway import GatewayConfig
from gateway.container import container_limit_bytes
from gateway.limits.memory import MemoryGuard, Pressure
from gateway.ops.memory_figures import MemoryState
from gateway.tape.store import TapeStore
from gateway.upstream.incoming import Inflow
from gateway.workers.portions import share

INTERVAL_S: Final = 1.0
_NEAR: Final = 0.7
_NEAR_INTERVAL_S: Final = 0.1
"""While resident memory is above the fraction `_NEAR` of the limit, all memory is examined at this interval.  While it
is lower, only resident memory is examined at this interval.  A flood can reach the limit within a second.
"""
_PASSED_S: Final = 0.005
"""Near the limit, resident memory is examined at this interval.  All memory is examined as soon as the guard requires
it.  Hundreds of clients that connect together can exhaust the remaining memory within a tenth of a second.
"""
_TRIM_S: Final = 5.0
"""The least seconds between two returns of freed memory to the system, because each walks the whole heap."""
_CONTAINER_SHARE: Final = 0.9
"""The share of the container's memory limit that the gateway may use if `memory_max_bytes` is 0."""
_SHED_S: Final = 0.5
"""The most seconds until the memory of dropped clients is returned.  The return comes earlier if it takes little time.
Until the return, no further clients are dropped.
"""
_SHRINK_BYTES: Final = 1 << 19
"""The bytes that the cache frees in one turn of the loop."""
_TRIM_SHARE: Final = 0.05
"""The largest fraction of time that is spent on returning the memory of dropped clients."""

_log = logging.getLogger("gateway.memory")


class ClientMemory(Protocol):
    """The memory that clients hold, implemented by `gateway.server.shedding`."""

    async def look(self, is_urgent: Callable[[], bool]) -> int:
        """Measure the bytes that clients hold.  Do not pause while `is_urgent` returns true."""

    def drop_over_bound(self, excess: int) -> int:
        """Drop the clients that hold the most, because all together hold `excess` bytes too many.  Returns the number
        dropped."""

    def drop_for_memory(self, excess: int) -> int:
        """Drop the clients that hold the most, because the process uses `excess` bytes too many.  Returns the number
        dropped."""

    def refuse_new(self, refuses: bool) -> None:
        """Refuse new connections, or accept them again."""

    def counts(self) -> Mapping[str, int]:
        """Dropped connections by reason."""

    def release_connections(self) -> None:
        """Drop the references to connections that `look` has made."""


@dataclass(slots=True)
class MemoryLimits:
    """The limits in bytes.  0 is no limit."""

    memory_max_bytes: int
    client_bytes: int


def memory_limits(config: GatewayConfig, workers: int) -> MemoryLimits:
    """Return the limits of one worker among `workers`.  All workers are in the same container."""
    limits = config.limits
    container = container_limit_bytes() if not limits.memory_max_bytes else None
    most = limits.memory_max_bytes if container is None else int(_CONTAINER_SHARE * container)
    return MemoryLimits(share(most, workers), share(limits.most_client_bytes, workers))


class MemoryWatch:
    """Applies the memory guard's decisions to the cache, the clients and the fetches.

    `cache_budget` returns the configured budget of the cache.  `resident` returns the process's resident bytes, and
    `trim` returns freed memory to the operating system.  `inflow` bounds fetched bodies near the limit.
    """

    def __init__(
        self,
        store: TapeStore,
        clients: ClientMemory,
        limits: MemoryLimits,
        cache_budget: Callable[[], int],
        resident: Callable[[], int],
        trim: Callable[[], None],
        clock: Clock,
        inflow: Inflow,
    ) -> None:
        self._store = store
        self._inflow = inflow
        self._clients = clients
        self.limits = limits
        self._cache_budget = cache_budget
        self._resident = resident
        self._trim = trim
        self._clock = clock
        self._guard = MemoryGuard()
        self._trimmed_at = -_TRIM_S
        self._trim_took_s = 0.0
        """The seconds that the latest return of freed memory took.  After clients were dropped, this value determines
        how soon the next return may follow.
        """
        self._has_shed = False
        """Whether clients were dropped whose memory has not been returned to the system."""
        self.client_bytes = 0
        """The bytes that clients held at the latest look."""

    def __repr__(self) -> str:
        return f"<MemoryWatch {self._guard!r}, {self.client_bytes} bytes held by clients>"

    @property
    def cache_budget_bytes(self) -> int:
        """The cache's budget under the guard's current decision."""
        return int(self._cache_budget() * self._guard.cache_share)

    def figures(self) -> MemoryState:
        """Return the state for the metrics."""
        limits = self.limits
        return MemoryState(
            self.client_bytes,
            limits.client_bytes,
            limits.memory_max_bytes,
            int(self._guard.pressure),
            self._clients.counts(),
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                has_looked = False
                try:
                    await self.look()
                    has_looked = True
                except Exception:
                    # One failure must not end the watch.
                    _log.exception("memory could not be looked at")
                await self._pause(may_be_called=has_looked)
        finally:
            self._inflow.bound(None)

    async def _pause(self, *, may_be_called: bool) -> None:
        """Wait until the next look is due or the guard requires a look.  `may_be_called` is False after a failed look,
        because the guard would require the same look again at once.
        """
        clock, inflow = self._clock, self._inflow
        began = clock.now()
        has_looked = True
        while (left_s := began + INTERVAL_S - clock.now()) > 0:
            limit = self.limits.memory_max_bytes
            if not limit:
                inflow.bound(None)
                await pause(clock, left_s)
                continue
            near, resident = _NEAR * limit, self._resident()
            # Allow some inflow after each whole look.  Otherwise a process that stays near its limit would never fetch
            # again.
            inflow.bound(max(self._guard.may_add(resident, limit), int(has_looked)))
            has_looked = False
            await inflow.spent.wait_within(clock, min(left_s, _PASSED_S if resident > near else _NEAR_INTERVAL_S))
            if (resident := self._resident()) > near and (
                clock.now() - began >= _NEAR_INTERVAL_S
                or (may_be_called and self._guard.calls_for_look(resident, limit))
            ):
                return

    async def look(self) -> None:
        """Examine all memory once, and act."""
        limits = self.limits
        self.client_bytes = await self._clients.look(self._is_urgent)
        if limits.client_bytes and self.client_bytes > limits.client_bytes:
            dropped = self._clients.drop_over_bound(self.client_bytes - limits.client_bytes)
            _log.warning("clients hold %d bytes, more than client_bytes: %d dropped", self.client_bytes, dropped)
        if limits.memory_max_bytes:
            self._guard_memory(limits.memory_max_bytes)
        self._clients.release_connections()
        if limits.memory_max_bytes:
            await self._resize_cache(limits.memory_max_bytes)

    def _is_urgent(self) -> bool:
        """Return whether clients may have to be dropped before long."""
        limit, guard = self.limits.memory_max_bytes, self._guard
        if not limit:
            return False
        return guard.pressure >= Pressure.CLIENTS or guard.calls_for_look(self._resident(), limit)

    async def _resize_cache(self, limit: int) -> None:
        """Set the cache's budget to the guard's value.

        A reduction is made in steps with turns of the loop between them, because it may evict thousands of small
        streams.  If memory rises between two steps, the next look comes first.
        """
        store = self._store
        while store.budget_bytes > (wanted := self.cache_budget_bytes):
            in_use = min(store.budget_bytes, store.cost + store.lent)
            # Bytes of the budget are lent for derived data and for bodies that arrive, and are returned when they are
            # no longer needed.  A reduction therefore needs to evict only the cache's own bytes.
            store.resize(max(wanted, in_use - _SHRINK_BYTES) if store.cost else wanted)
            await asyncio.sleep(0)
            if self._guard.calls_for_look(self._resident(), limit):
                return
        if store.budget_bytes < wanted:
            store.resize(wanted)

    def _guard_memory(self, limit: int) -> None:
        store, guard = self._store, self._guard
        before, budget = guard.pressure, self._cache_budget()
        if self._has_shed:
            self._return_freed(min(_SHED_S, self._trim_took_s / _TRIM_SHARE))
        resident = self._resident()
        found = guard.look(resident, limit, store.cost + store.lent, budget)
        if found.pressure is not before:
            level = _log.warning if found.pressure > before else _log.info
            level("%d%% of memory_max_bytes is used: pressure %s", 100 * resident // limit, found.pressure.name.lower())
        store.may_grow = found.pressure < Pressure.CLIENTS
        self._clients.refuse_new(found.pressure >= Pressure.CONNECTIONS)
        if found.shed_bytes and not self._has_shed:
            self._has_shed = self._clients.drop_for_memory(found.shed_bytes) > 0
        if found.pressure and not self._has_shed:
            # If this look has dropped clients, a later look returns their memory, because the connections end in the
            # loop's next turn.
            self._return_freed(_TRIM_S)

    def _return_freed(self, pause_s: float) -> None:
        """Return freed memory to the system, unless this was done less than `pause_s` seconds ago."""
        now = self._clock.now()
        if now - self._trimmed_at >= pause_s:
            self._trimmed_at = now
            self._has_shed = False
            self._trim()
            self._trim_took_s = self._clock.now() - now
