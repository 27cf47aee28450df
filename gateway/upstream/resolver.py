"""Name resolution for origins, with a cache.

Each lookup has its own thread.  If the name servers do not answer, `getaddrinfo` takes a minute or more and cannot be
interrupted.  The event loop's own lookups are not used, because they share a few threads.  A few names without an
answer would block all other lookups and the exit of the process.

Concurrent requests for a name share one lookup.  Connections rotate over the addresses.  After a failure an address is
tried last, until the name is resolved again.

A name in use is resolved again when its time in the cache is over, because the origin may have moved.  It is resolved
again even if all requests use kept connections (`refresh`).  While lookups fail, the last addresses stay in use for a
bounded time, like stale data in RFC 8767.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import Final

from gateway.aio.tasks import Tasks
from gateway.limits.memory import evict_oldest


async def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a name.  Raises OSError if there are none.

    Cancelling the caller does not stop the lookup.  The loop and the process can end without waiting for the lookup.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError) -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def work() -> None:
        found = _addresses(host, port)
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(partial(settle, found))

    try:
        threading.Thread(target=work, name="lookup", daemon=True).start()
    except RuntimeError as error:
        raise socket.gaierror(socket.EAI_AGAIN, "no thread for the lookup") from error
    return await answer


def _addresses(host: str, port: int) -> list[str] | OSError:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError:
        return socket.gaierror(socket.EAI_NONAME, "no name")
    except OSError as error:
        return error


TTL_S: Final = 30.0
STALE_S: Final = 600.0
"""How long expired addresses stay in use while lookups fail."""
RETRY_S: Final = 5.0
"""The pause after a failed lookup while expired addresses are in use."""
MOST_LOOKUPS: Final = 32
"""The most concurrent lookups."""
_MOST_NAMES: Final = 1_024
_MOST_ADDRESSES: Final = 64
"""The most addresses kept for one name."""


@dataclass(slots=True)
class _Entry:
    """The cached addresses of a name."""

    until: float
    stale_until: float
    addresses: list[str]
    failed: list[str] = field(default_factory=list)


LookUp = Callable[[str, int], Awaitable[Iterable[str]]]
"""Looks up the addresses of a name, for connections to a port.  Raises OSError if there are none."""


def ignore(host: str, port: int, addresses: list[str]) -> None:
    """Do nothing with resolved addresses."""


class Resolver:
    """Owner of the cache and of the lookups in progress."""

    def __init__(
        self,
        tasks: Tasks,
        now: Callable[[], float],
        look_up: LookUp,
        on_resolved: Callable[[str, int, list[str]], None] = ignore,
    ) -> None:
        self._on_resolved = on_resolved
        self._tasks = tasks
        self._now = now
        self._look_up = look_up
        self._entries: OrderedDict[tuple[str, int], _Entry] = OrderedDict()
        self._lookups: dict[tuple[str, int], asyncio.Task[_Entry | OSError]] = {}
        self._places = asyncio.Semaphore(MOST_LOOKUPS)

    def __repr__(self) -> str:
        return f"<Resolver {len(self._entries)} names, {len(self._lookups)} lookups>"

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host in the order to try.  Raises OSError if its name does not resolve."""
        if _is_address(host):
            return [host]
        now = self._now()
        entry = self._entries.get((host, port))
        if entry is None or now >= entry.until:
            entry = await self._look_up_once(host, port)
        if entry.addresses:
            entry.addresses.append(entry.addresses.pop(0))
            return [entry.addresses[-1], *entry.addresses[:-1], *entry.failed]
        return list(entry.failed)

    def avoid_address(self, host: str, port: int, address: str) -> None:
        """Try this address last from now on, because a connection to it has failed."""
        entry = self._entries.get((host, port))
        if entry is not None and address in entry.addresses:
            entry.addresses.remove(address)
            entry.failed.append(address)

    def refresh(self, host: str, port: int) -> None:
        """Resolve a cached name again in the background, if its time in the cache is over."""
        entry = self._entries.get((host, port))
        if entry is not None and self._now() >= entry.until:
            self._start(host, port)

    def forget_addresses(self) -> None:
        """Forget all addresses."""
        self._entries.clear()

    async def _look_up_once(self, host: str, port: int) -> _Entry:
        """Return the looked-up addresses, or expired ones if the lookup fails.  Raises OSError if there are none."""
        found = await asyncio.shield(self._start(host, port))
        if isinstance(found, OSError):
            # Make a new exception for each waiter, because each waiter adds its own traceback.
            raise type(found)(*found.args) from found
        return found

    def _start(self, host: str, port: int) -> asyncio.Task[_Entry | OSError]:
        task = self._lookups.get((host, port))
        if task is None:
            task = self._lookups[host, port] = self._tasks.start(self._query(host, port), f"resolve {host}")
            task.add_done_callback(lambda _: self._lookups.pop((host, port), None))
        return task

    async def _query(self, host: str, port: int) -> _Entry | OSError:
        """Look a name up.  Return a failure as a value, so that each waiter can raise it."""
        try:
            async with self._places:
                found = await self._look_up(host, port)
            addresses = list(dict.fromkeys(found))[:_MOST_ADDRESSES]
            if not addresses:
                return self._failed_look_up(host, port, socket.gaierror(socket.EAI_NONAME, "no address"))
        except OSError as error:
            return self._failed_look_up(host, port, error)
        now = self._now()
        self._entries.pop((host, port), None)
        entry = self._entries[host, port] = _Entry(now + TTL_S, now + TTL_S + STALE_S, addresses)
        evict_oldest(self._entries, _MOST_NAMES)
        self._on_resolved(host, port, addresses.copy())
        return entry

    def _failed_look_up(self, host: str, port: int, error: OSError) -> _Entry | OSError:
        now, entry = self._now(), self._entries.get((host, port))
        if entry is None or now >= entry.stale_until:
            self._entries.pop((host, port), None)
            return error
        entry.until = now + RETRY_S
        return entry


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
