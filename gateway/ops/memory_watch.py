"""Looks at clients and cache once a second, near the memory limit more often, and acts by what the guard decides.

The cache shrinks and grows, clients that hold the most are dropped, fetches and live requests are refused while there
is no room for what they would bring, and at last new connections are refused.

What dropped clients held is free, but the C library may keep it, and then it stays resident.  So it is returned to the
system before the next look, or that look would drop other clients for the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.aio.clock import Clock, pause
from gateway.limits.inflow import Inflow
from gateway.limits.memory import MemoryGuard, Pressure
from gateway.ops.memory_figures import MemoryState
from gateway.tape.store import TapeStore

INTERVAL_S: Final = 1.0
_NEAR: Final = 0.7
_NEAR_INTERVAL_S: Final = 0.1
"""Above this part of the limit everything is looked at this often, and below it the process's memory alone: a second is
enough for a flood to pass all marks."""
_PASSED_S: Final = 0.005
"""There the process's memory alone is looked at this often, and everything as soon as the guard calls for it: hundreds
of clients that come together take memory from one mark to the limit within a tenth of a second."""
_TRIM_S: Final = 5.0
"""Freed memory is returned to the system at most this often: that goes over the whole heap."""
_SHED_S: Final = 0.5
"""After clients were dropped it is returned once this long has passed, or earlier if that takes little time.  No other
clients are dropped before."""
_SHRINK_BYTES: Final = 1 << 19
"""Bytes that the cache gives back in one turn of the loop."""
_TRIM_SHARE: Final = 0.05
"""The part of the time that returning memory may take after clients were dropped."""

_log = logging.getLogger("gateway.memory")


class ClientMemory(Protocol):
    """The memory that clients hold; `gateway.server.shedding`, with the reasons bound."""

    async def look(self) -> int:
        """The bytes that clients hold now."""

    def drop_over_bound(self, excess: int) -> int:
        """Drop the costliest because clients together hold too much; return how many."""

    def drop_for_memory(self, excess: int) -> int:
        """Drop the costliest because the process does."""

    def refuse_new(self, refuses: bool) -> None:
        """Refuse new connections, or accept them again."""

    def counts(self) -> Mapping[str, int]:
        """Dropped connections by reason."""

    def release_connections(self) -> None:
        """Keep nothing of what was looked at."""


@dataclass(slots=True)
class MemoryLimits:
    """The bounds in bytes; 0 is no bound."""

    memory_max_bytes: int
    client_bytes: int


class MemoryWatch:
    """`cache_budget` gives the configured budget of the cache; `resident` and `trim` are the system's; `inflow` is
    given a bound near the limit."""

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
        """How long it took the last time, which bounds how soon it is done again after clients were dropped."""
        self._has_shed = False
        """Whether clients were dropped whose memory has not been returned to the system yet."""
        self.client_bytes = 0
        """The bytes that clients held at the latest look."""

    def __repr__(self) -> str:
        return f"<MemoryWatch {self._guard!r}, {self.client_bytes} bytes held by clients>"

    @property
    def cache_budget_bytes(self) -> int:
        """The budget of the cache that the guard allows now."""
        return int(self._cache_budget() * self._guard.cache_share)

    def figures(self) -> MemoryState:
        """The state for the metrics."""
        limits = self.limits
        return MemoryState(
            self.client_bytes,
            limits.client_bytes,
            limits.memory_max_bytes,
            int(self._guard.pressure),
            self._clients.counts(),
        )

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                has_looked = False
                try:
                    await self.look()
                    has_looked = True
                except Exception:
                    # One failure must not end the guard.
                    _log.exception("memory could not be looked at")
                await self._pause(may_be_called=has_looked)
        finally:
            self._inflow.bound(None)

    async def _pause(self, *, may_be_called: bool) -> None:
        """Wait until the next look is due, or the guard calls for it.  After a failed look it would call at once."""
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
            # After each whole look something may be added, or a process that stays near its limit would fetch no more.
            inflow.bound(max(self._guard.may_add(resident, limit), int(has_looked)))
            has_looked = False
            await inflow.spent.wait_within(clock, min(left_s, _PASSED_S if resident > near else _NEAR_INTERVAL_S))
            if (resident := self._resident()) > near and (
                clock.now() - began >= _NEAR_INTERVAL_S
                or (may_be_called and self._guard.calls_for_look(resident, limit))
            ):
                return

    async def look(self) -> None:
        """Look once, and act."""
        limits = self.limits
        self.client_bytes = await self._clients.look()
        if limits.client_bytes and self.client_bytes > limits.client_bytes:
            dropped = self._clients.drop_over_bound(self.client_bytes - limits.client_bytes)
            _log.warning("clients hold %d bytes, more than client_bytes: %d dropped", self.client_bytes, dropped)
        if limits.memory_max_bytes:
            self._guard_memory(limits.memory_max_bytes)
        self._clients.release_connections()
        if limits.memory_max_bytes:
            await self._resize_cache(limits.memory_max_bytes)

    async def _resize_cache(self, limit: int) -> None:
        """Give the cache the budget that the guard allows.  It gives bytes back bit by bit, with turns of the loop
        between: thousands of small tapes may have to go.  Where memory rises meanwhile, the next look goes first."""
        store = self._store
        while store.budget_bytes > (wanted := self.cache_budget_bytes):
            in_use = min(store.budget_bytes, store.cost + store.lent)
            # Lent bytes come back by themselves: a lower budget takes away only the cache's own.
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
            # Not in the look that drops clients: their connections end in the loop's next turn.
            self._return_freed(_TRIM_S)

    def _return_freed(self, pause_s: float) -> None:
        """Return freed memory to the system, unless that was done less than `pause_s` ago."""
        now = self._clock.now()
        if now - self._trimmed_at >= pause_s:
            self._trimmed_at = now
            self._has_shed = False
            self._trim()
            self._trim_took_s = self._clock.now() - now
