"""Names of origins, resolved: what a name server said is believed for a while, and asked again after it.

Who asks for the same name at the same time shares one question.  An address at which nobody answered is tried last
until the name is resolved again; among the others connections take turns.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from gateway.aio.tasks import Tasks

TTL_S: Final = 30.0
_MOST_NAMES: Final = 1_024
_MOST_ADDRESSES: Final = 64
"""Of one name."""


@dataclass(slots=True)
class _Known:
    """What a name stands for."""

    until: float
    addresses: list[str]
    failed: list[str] = field(default_factory=list)


LookUp = Callable[[str, int], Awaitable[Iterable[str]]]
"""The addresses of a name, for connections to a port; OSError where there are none."""


class Resolver:
    """Owner of what is known of names, and of the questions under way."""

    def __init__(self, tasks: Tasks, now: Callable[[], float], look_up: LookUp) -> None:
        self._tasks = tasks
        self._now = now
        self._look_up = look_up
        self._known: dict[tuple[str, int], _Known] = {}
        self._asking: dict[tuple[str, int], asyncio.Task[list[str] | OSError]] = {}

    def __repr__(self) -> str:
        return f"<Resolver {len(self._known)} names, {len(self._asking)} asked for>"

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where a host may be reached, in the order to try; OSError where its name does not resolve."""
        if _is_address(host):
            return [host]
        now = self._now()
        known = self._known.get((host, port))
        if known is None or now >= known.until:
            found = await self._asked(host, port)
            known = self._known.get((host, port))
            if known is None or now >= known.until:
                while len(self._known) >= _MOST_NAMES:
                    del self._known[next(iter(self._known))]
                known = self._known[host, port] = _Known(now + TTL_S, found)
        if known.addresses:
            known.addresses.append(known.addresses.pop(0))
            return [known.addresses[-1], *known.addresses[:-1], *known.failed]
        return list(known.failed)

    def failed(self, host: str, port: int, address: str) -> None:
        """Nobody answered there."""
        known = self._known.get((host, port))
        if known is not None and address in known.addresses:
            known.addresses.remove(address)
            known.failed.append(address)

    async def _asked(self, host: str, port: int) -> list[str]:
        task = self._asking.get((host, port))
        if task is None:
            task = self._asking[host, port] = self._tasks.start(self._ask(host, port), f"resolve {host}")
            task.add_done_callback(lambda _: self._asking.pop((host, port), None))
        found = await asyncio.shield(task)
        if isinstance(found, OSError):
            # A new one each time: many may wait for the same answer, and each adds its own traceback.
            raise type(found)(*found.args) from found
        return list(found)

    async def _ask(self, host: str, port: int) -> list[str] | OSError:
        """The addresses, or why there are none: that is told to who asked, and no line in a log."""
        try:
            addresses = list(dict.fromkeys(await self._look_up(host, port)))
        except OSError as error:
            return error
        return addresses[:_MOST_ADDRESSES] or socket.gaierror(socket.EAI_NONAME, "no address")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name by the system's resolver."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "no name") from error
    return [str(info[4][0]) for info in found]
