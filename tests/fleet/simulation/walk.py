"""A random walk through the life of a fleet.

Members die, drain, return, stall, leave the lists of others, and disagree about who can be reached.  Meanwhile clients
create, append to, delete and read six streams through any member, operators purge, and live readers stay.  From time to
time all faults end.  Then the readers must have everything, the origin must have one live request for each stream that
has readers, and writes must be read at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, Final

from tests.fleet.simulation.network import SimulatedLoop
from tests.fleet.simulation.readers import PollReader, Reader, SseReader
from tests.fleet.simulation.repeatable import repeatable
from tests.fleet.simulation.truth import Counts
from tests.fleet.simulation.world import NAMES, PATHS, World

MOST_READERS: Final = 10
_MOST_AT_WORK: Final = 12
_CALL_S: Final = 100.0
"""The most time for a write and a read, each of which clients give up after 30 s."""
_CATCH_UP_S: Final = 60.0
_ENDED_S: Final = 0.1


class Walk:
    """The steps of a walk."""

    def __init__(self, world: World, *, has_faults: bool) -> None:
        self._world = world
        self._rng = world.rng
        self._pieces = 0
        self._at_work: set[asyncio.Task[None]] = set()
        self.readers: list[Reader] = []
        self._offsets: dict[str, list[tuple[int, int, str]]] = {path: [] for path in PATHS}
        """Known offsets of each stream: the life, the position in it, and the token."""
        self._steps: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (24, self._write), (18, self._read), (10, self._read_on), (8, self._write_and_read), (7, self._join),
            (4, self._leave), (12, self._pass_time),
        ]  # fmt: skip
        if has_faults:
            self._steps += [
                (4, self._purge), (3, self._disagree), (2, self._stall), (2, self._resume), (2, self._part),
                (2, self._mend), (1, self._unlist), (1, self._list), (0.6, self._kill), (0.3, self._drain),
                (2, self._return),
            ]  # fmt: skip

    async def step(self) -> None:
        """Take a random step, and let what it begins go on."""
        weights = [weight for weight, _ in self._steps]
        [(_, act)] = self._rng.choices(self._steps, weights)
        self._world.counts.count(act.__name__.strip("_"))
        await act()
        await asyncio.sleep(self._rng.random() * 0.01)
        self._raise_failures()
        truth = self._world.truth
        if any(truth.live_requests(path) > len(NAMES) for path in PATHS):
            # A live request that a member has given up ends a moment later.
            await asyncio.sleep(_ENDED_S)
            live = {path: truth.live_requests(path) for path in PATHS}
            assert max(live.values()) <= len(NAMES), f"live requests: {live}"

    # -- clients

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(_CALL_S):
                await work

        self._at_work.add(asyncio.create_task(bounded()))

    async def _room(self) -> None:
        """Wait until not too much is going on."""
        while len(self._at_work) >= _MOST_AT_WORK:
            await asyncio.wait(self._at_work, return_when=asyncio.FIRST_COMPLETED)
            self._raise_failures()

    def _raise_failures(self) -> None:
        for task in [task for task in self._at_work if task.done()]:
            self._at_work.remove(task)
            task.result()
        for reader in self.readers:
            if reader.task.done() and not reader.task.cancelled():
                reader.task.result()
        self.readers = [reader for reader in self.readers if not reader.task.done()]

    def _anywhere(self) -> tuple[str, str]:
        return self._rng.choice(list(self._world.members)), self._rng.choice(PATHS)

    async def _write(self) -> None:
        await self._room()
        self._begin(self._written(*self._anywhere()))

    async def _read(self) -> None:
        await self._room()
        self._begin(self._whole(*self._anywhere()))

    async def _read_on(self) -> None:
        await self._room()
        self._begin(self._from_offset(*self._anywhere()))

    async def _write_and_read(self) -> None:
        await self._room()
        member, path = self._anywhere()

        async def both() -> None:
            await self._written(member, path)
            await self._whole(member, path)

        self._begin(both())

    async def _written(self, member: str, path: str) -> None:
        """Write to a stream, whatever its state."""
        world, truth, began = self._world, self._world.truth, self._world.loop.time()
        self._pieces += 1
        if truth.alive(path) is None:
            piece = b"life%07d;" % self._pieces
            answered = await world.ask(member, "PUT", path, piece)
            if answered is not None and answered[0].status == 201:
                truth.acknowledge(member, path, piece)
        elif self._rng.random() < 0.12:
            answered = await world.ask(member, "DELETE", path)
            if answered is not None and answered[0].status == 204:
                truth.acknowledge_end(member, path, began)
        else:
            piece = b"%07d;" % self._pieces
            answered = await world.ask(member, "POST", path, piece)
            if answered is not None and answered[0].status == 204:
                truth.acknowledge(member, path, piece)

    async def _whole(self, member: str, path: str) -> None:
        """Read a stream from its start."""
        floor = self._world.truth.floor(member, path)
        answered = await self._world.ask(member, "GET", f"{path}?offset=-1")
        if answered is None:
            return
        reply, body = answered
        life = self._world.truth.judge(path, floor, reply.status, body, is_up_to_date=reply.is_up_to_date)
        if life is not None:
            known = self._offsets[path]
            known.append((life.number, len(body), reply.next_offset))
            del known[:-8]

    async def _from_offset(self, member: str, path: str) -> None:
        """Read on from a known offset."""
        if not self._offsets[path]:
            return
        truth, floor = self._world.truth, self._world.truth.floor(member, path)
        number, position, token = self._rng.choice(self._offsets[path])
        answered = await self._world.ask(member, "GET", f"{path}?offset={token}")
        life = truth.lives[path][number]
        if answered is None or not life.is_alive:
            # An offset of a dead life may be refused, or be one of the present life.
            return
        reply, body = answered
        if reply.status == 404:
            assert not (floor.exists and floor.life == number), f"404 for {path} at {member}: {floor}"
            return
        assert reply.status == 200, f"{path} at {token}: {reply}"
        held = bytes(life.content[position : position + len(body)])
        assert body == held, f"{path} at {token}: {body[:40]!r} in place of {held[:40]!r}"
        if reply.is_up_to_date and floor.life == number:
            assert position + len(body) >= floor.length, f"{path} at {token} is behind {floor}"

    async def _join(self) -> None:
        member, path = self._anywhere()
        life = self._world.truth.alive(path)
        if life is not None and len(self.readers) < MOST_READERS:
            kind = self._rng.choice((SseReader, PollReader))
            self.readers.append(kind(self._world, member, path, life))

    async def _leave(self) -> None:
        if self.readers:
            self._rng.choice(self.readers).leave()

    async def _purge(self) -> None:
        """Purge what a member keeps of all streams."""
        member, _ = self._anywhere()
        engine = self._world.members[member].engine
        for stream in list(engine.store):
            engine.purge.drop_stream(stream)

    async def _pass_time(self) -> None:
        await asyncio.sleep(self._rng.choice((0.02, 0.1, 0.6, 2.0)))

    # -- members

    async def _disagree(self) -> None:
        """Let a member believe that another one is lost."""
        member, _ = self._anywhere()
        self._world.trouble()
        if others := list(self._world.fleet(member).members.values()):
            self._rng.choice(others).lose()

    async def _stall(self) -> None:
        self._world.trouble()
        self._world.network.stall(self._rng.choice(NAMES))

    async def _resume(self) -> None:
        self._world.trouble()
        for name in sorted(self._world.network.stalled):
            self._world.network.resume(name)

    async def _part(self) -> None:
        self._world.trouble()
        self._world.network.part(*self._rng.sample(NAMES, 2))

    async def _mend(self) -> None:
        self._world.trouble()
        self._world.network.parted.clear()

    async def _unlist(self) -> None:
        """Remove another member from a member's list, if it is there.  No request may fail because of that."""
        name = self._rng.choice(list(self._world.members))
        gone = self._rng.choice([one for one in NAMES if one != name])
        listed = [one.name for one in self._world.fleet(name).members.values() if one.name != gone]
        self._world.list_members(name, [name, *listed])

    async def _list(self) -> None:
        """Give a member the whole list."""
        self._world.list_members(self._rng.choice(list(self._world.members)), NAMES)

    async def _kill(self) -> None:
        if len(self._world.members) > 1:
            self._world.trouble()
            await self._world.kill(self._rng.choice(list(self._world.members)))

    async def _drain(self) -> None:
        if len(self._world.members) > 1:
            self._world.trouble()
            await self._world.drain(self._rng.choice(list(self._world.members)))

    async def _return(self) -> None:
        for name in NAMES:
            if name not in self._world.members:
                self._world.trouble()
                await self._world.start_member(name)

    # -- quiet

    async def rest(self) -> None:
        """End all faults, and check what must be true once their effects are over."""
        world, truth = self._world, self._world.truth
        await world.heal()
        while self._at_work:
            await asyncio.wait(self._at_work)
            self._raise_failures()
        await self._until(lambda: all(reader.has_all for reader in self.readers), "the readers have everything")
        self._raise_failures()
        read = {reader.path for reader in self.readers if reader.life.is_alive}
        await self._until(lambda: all(truth.live_requests(path) == 1 for path in read), "one live request a stream")
        await asyncio.sleep(45.0)
        assert world.is_calm(world.loop.time())
        asked = self._asked()
        for path in PATHS:
            member = self._rng.choice(NAMES)
            await self._written(member, path)
            await self._whole(member, path)
            await self._from_offset(member, path)
        asked = self._asked() - asked
        assert asked <= 5 * len(PATHS) + len(self.readers), f"members have asked each other {asked} times"
        await self._until(lambda: all(reader.has_all for reader in self.readers), "the readers have the last writes")
        world.counts.count("rest")

    def _asked(self) -> int:
        """How often members have asked each other for streams."""
        return sum(one.asked for name in NAMES for one in self._world.fleet(name).members.values())

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        world = self._world
        gives_up_at = world.loop.time() + _CATCH_UP_S
        while not holds():
            self._raise_failures()
            lives = {path: world.truth.live_requests(path) for path in PATHS}
            assert world.loop.time() < gives_up_at, f"not: {what}; {self.readers}; {lives}"
            await asyncio.sleep(0.25)

    async def close(self) -> None:
        """End all readers and all work."""
        tasks = [*self._at_work, *(reader.task for reader in self.readers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def walk(seed: int, steps: int, rest_each: int = 250, *, has_faults: bool = True) -> Counts:
    """Walk this number of steps; return what has happened.  Raises AssertionError with the seed and the step.

    Without faults, members only relay, and nothing is purged.
    """
    rng = Random(seed)
    loop = SimulatedLoop(rng)

    async def run() -> Counts:
        settings: dict[str, Any] = {"tail_fresh_s": rng.choice((0, 600, 600)), "live_linger_s": rng.choice((0, 5))}
        world = await World.start(loop, rng, **settings)
        going, number = Walk(world, has_faults=has_faults), 0
        try:
            await world.heal()
            for number in range(1, steps + 1):
                await going.step()
                if number % rest_each == 0:
                    await going.rest()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {number}, {settings}, {loop.time():.3f} s")
            raise
        finally:
            await going.close()
            await world.close()
        world.counts.of["most live"] = world.truth.most_live
        world.counts.of["delivered bytes"] = world.network.delivered_bytes
        return world.counts

    try:
        with repeatable(Random(seed), loop.time):
            return loop.run_until_complete(run())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
