"""Sends requests to all workers of this gateway over their private admin sockets.

The supervisor keeps each worker's socket open.  While a worker starts again, a request to it therefore waits in the
socket's queue, and the new worker answers it.  A dead worker is not asked, because it has no data that could be shown
or purged.  Its successor takes over the settings of operators (`adoption`).  If no process listens at a worker's
socket, the worker has ended and gets no successor, so it is not asked again.

A request to all workers is over when every living worker has answered.  If a worker was replaced meanwhile, its
successor gets the request too, so that no change is lost between two generations.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, UnixConnector
from yarl import URL

LOOK_S: Final = 2.0
"""The most seconds for all answers to a request that changes nothing."""
CHANGE_S: Final = 10.0
"""The most seconds for all workers to make a change."""
_AGAIN_S: Final = 0.02
"""The pause before a worker that has dropped the connection is asked again."""
_LOST: Final = 502
_GONE: Final = 503
_ENDED: Final = frozenset({errno.ECONNREFUSED, errno.ENOENT})
"""The errors of a connection attempt that show that no process listens at the socket any more.  ENOENT shows this too,
because the file of a socket is removed only when all workers of its version have ended."""
_LATE: Final = 504
_BASE: Final = URL("http://worker")
_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """One worker's answer.  A worker that has not answered in time has status 504."""

    slot: int
    status: int
    body: bytes
    has_ended: bool = False
    """Whether no process listens at the worker's socket.  The worker has then ended, and its slot gets no further
    worker."""

    earlier: str = ""
    """The worker's name, if its version is earlier than the previous version; otherwise empty.  `slot` does not show
    the number of such a worker."""

    @property
    def name(self) -> str:
        """The worker's name among the workers of its version."""
        return self.earlier or f"worker {self.slot}"

    @property
    def is_late(self) -> bool:
        """Whether the worker may still live, but has not answered in time or has dropped the connection."""
        return self.status in (_LATE, _LOST)

    @property
    def is_good(self) -> bool:
        """Whether the worker has fulfilled the request."""
        return 200 <= self.status < 300


class Peers:
    """The workers of a gateway, by slot, and an HTTP session with each.  `close` closes the sessions."""

    def __init__(
        self, paths: Sequence[str], generation: Callable[[int], int | None], earlier: Mapping[int, str] | None = None
    ) -> None:
        """`paths` are the sockets of the slots.  `generation` returns the generation of the worker in a slot; None if
        the slot has no worker.  `earlier` has, by slot, the names of the workers whose versions are earlier than the
        previous version."""
        self._paths = tuple(paths)
        self.generation = generation
        self.earlier = earlier or {}
        self._sessions: dict[int, ClientSession] = {}

    def __repr__(self) -> str:
        return f"<Peers {self.living()} of {len(self._paths)}>"

    @property
    def slots(self) -> range:
        """All slots."""
        return range(len(self._paths))

    def living(self) -> list[int]:
        """Return the slots with a worker."""
        return [slot for slot in self.slots if self.generation(slot) is not None]

    async def ask_all(
        self, method: str, target: str, body: bytes = b"", within_s: float = LOOK_S, but: int | None = None
    ) -> list[PeerAnswer]:
        """Ask every living worker except the worker of the slot `but`.  Return the answers in the sequence of the
        slots."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        found: dict[int, tuple[int, PeerAnswer]] = {}
        while True:
            alive = {slot: generation for slot in self.slots if (generation := self.generation(slot)) is not None}
            alive.pop(-1 if but is None else but, None)
            found = {slot: one for slot, one in found.items() if slot in alive}
            missing = [
                slot
                for slot, generation in alive.items()
                if slot not in found or found[slot][0] != generation or found[slot][1].status == _LOST
            ]
            left_s = until - loop.time()
            if not missing or (left_s <= 0 and len(found) == len(alive)):
                return [found[slot][1] for slot in sorted(found)]
            if any(slot in found and found[slot][0] == alive[slot] for slot in missing):
                await asyncio.sleep(_AGAIN_S)
            answers = await asyncio.gather(*(self._ask(slot, method, target, body, left_s) for slot in missing))
            found.update({answer.slot: (alive[answer.slot], answer) for answer in answers})

    async def ask_one(self, slot: int, method: str, target: str, body: bytes, within_s: float) -> PeerAnswer:
        """Ask the worker of one slot, which may be a successor that has begun to listen."""
        return await self._ask(slot, method, target, body, within_s)

    async def _ask(self, slot: int, method: str, target: str, body: bytes, within_s: float) -> PeerAnswer:
        session = self._sessions.get(slot)
        if session is None:
            session = self._sessions[slot] = ClientSession(
                connector=UnixConnector(self._paths[slot], limit=0),
                cookie_jar=DummyCookieJar(),
                timeout=ClientTimeout(total=None),
            )
        url, earlier = URL(str(_BASE) + target, encoded=True), self.earlier.get(slot, "")
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                async with session.request(method, url, data=body or None, headers=_JSON) as reply:
                    return PeerAnswer(slot, reply.status, await reply.read(), earlier=earlier)
        except TimeoutError:
            return PeerAnswer(slot, _LATE, b"", earlier=earlier)
        except (ClientError, OSError) as error:
            has_ended = isinstance(error, OSError) and error.errno in _ENDED
            return PeerAnswer(slot, _GONE if has_ended else _LOST, b"", has_ended, earlier)

    async def close(self) -> None:
        """Close the connections to the workers."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
