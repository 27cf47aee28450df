"""The admin part of one worker: its private application, and the answers that it gathers for the public port."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import orjson
from aiohttp import web

from gateway.aio.clock import Timer
from gateway.aio.tasks import Tasks
from gateway.config.change import Change
from gateway.config.errors import ConfigError
from gateway.ops.admin.app import MOST_LINE_BYTES
from gateway.ops.admin.subject import NotReloaded, NotUpgraded, Subject
from gateway.ops.gathering.adoption import adopt_at_start, follow_late, follow_settings, version_before
from gateway.ops.gathering.ended_counts import EndedCounts
from gateway.ops.gathering.endpoints import Gathered
from gateway.ops.gathering.peers import Peers
from gateway.ops.gathering.private import ORIGIN, private_application
from gateway.ops.gathering.sibling_orders import SiblingOrders, take_over_orders
from gateway.ops.partition_ids import PartitionIds
from gateway.upstream.health import news_of
from gateway.upstream.origin_state import Origin
from gateway.workers.place import WorkerPlace
from gateway.workers.removals import Removals
from gateway.workers.shared_memory import SlotState

_STOP_S: Final = 1.0
"""The most seconds for the last answers on the private socket."""
_FOLLOW_S: Final = 0.5
"""Seconds between two requests to the previous version while it ends, and between two requests to late workers."""
_LAST_ANSWERS_S: Final = 3.0
"""A version that is replaced answers the workers of the next version for this number of seconds after it has begun to
refuse changes.  Each of these workers asks at least once in this time, because a round of questions takes at most
2 s."""


class WorkerAdmin:
    """Owner of the private application, the sessions with the other workers, and the kept counters.  After `open`, the
    caller must call `close`."""

    def __init__(self, place: WorkerPlace, subject: Subject, partitions: PartitionIds) -> None:
        self._place = place
        self._subject = subject
        self._counts = EndedCounts(place.folder, place.slot)
        self._peers = Peers(place.peer_paths, self._generation)
        self._runner = web.AppRunner(
            private_application(subject, partitions, self._counts),
            access_log=None,
            shutdown_timeout=_STOP_S,
            max_line_size=MOST_LINE_BYTES,
        )
        self._timer: Timer | None = None
        self._tasks = Tasks()
        self._has_answered = asyncio.Event()
        """Set once the workers of the next version have had the time to ask for the last revocations.  It is also set
        if there is no next version."""
        self._has_answered.set()
        self._untold: dict[Origin, bool] = {}
        """The origins whose state is being reported to the other workers.  The value states whether the origin's state
        has changed since the latest report began."""
        subject.engine.origins.on_change = self._tell
        if (fleet := subject.engine.fleet) is not None:
            fleet.orders.siblings = SiblingOrders(self._peers, place.shared, place.slot, fleet.field.name)
        subject.engine.health.sends_checks = self._sends_checks
        before = partial(version_before, place.predecessors)
        purging = Removals(place.shared, place.slot).purging
        self.answering = Gathered(subject, self._peers, self._counts, before, purging)
        """The answers of the public port."""

    def __repr__(self) -> str:
        return f"<WorkerAdmin of slot {self._place.slot}>"

    async def open(self) -> None:
        """Serve the private socket, and take over the settings of operators.  Call this before clients are served."""
        await self._runner.setup()
        await web.SockSite(self._runner, self._place.peer_socket).start()
        place = self._place
        siblings = self._peers if place.generation > 1 else None
        earlier = version_before(place.predecessors)
        if earlier is not None and (fleet := self._subject.engine.fleet) is not None:
            await take_over_orders(fleet.orders, earlier)
        late = await adopt_at_start(self._subject, siblings, earlier, but=place.slot, start=self._follow_later)
        if late:
            following = follow_late(self._subject, self._peers, late, partial(asyncio.sleep, _FOLLOW_S), but=place.slot)
            self._tasks.start(following, "settings of late workers")
        self._keep_later()

    def begin_last_answers(self) -> None:
        """Record that this version refuses changes from now on, because the next version replaces it."""
        self._has_answered.clear()
        self._subject.engine.clock.call_later(_LAST_ANSWERS_S, self._has_answered.set)

    async def finish_answers(self) -> None:
        """Wait until the workers of the next version know the last revocations that this version has confirmed."""
        await self._has_answered.wait()

    async def close(self) -> None:
        """Stop serving the private socket."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        await self._peers.close()
        await self._runner.cleanup()

    def _follow_later(self, earlier: Peers) -> None:
        self._tasks.start(self._follow(earlier), "settings of the version before")

    async def _follow(self, earlier: Peers) -> None:
        try:
            await follow_settings(self._subject, earlier, partial(asyncio.sleep, _FOLLOW_S))
        finally:
            await earlier.close()

    async def reload(self) -> Change:
        """Ask the supervisor to reload all workers.  Raises ConfigError, NotReloaded or SupervisorGone."""
        told = await self._place.control.ask("reload")
        if told["error"]:
            raise (NotReloaded if told["is_temporary"] else ConfigError)(told["error"])
        return Change(self._subject.config, tuple(told["changed"]), tuple(told["needs_restart"]))

    async def upgrade(self) -> str:
        """Ask the supervisor to start the next version.  Raises NotUpgraded or SupervisorGone."""
        told = await self._place.control.ask("upgrade")
        if not told["is_done"]:
            raise NotUpgraded(told["text"])
        return str(told["text"])

    def _keep_later(self) -> None:
        self._timer = self._subject.engine.clock.call_later(self._counts.keep_after_s, self._keep)

    def _keep(self) -> None:
        self._tasks.start(self._counts.collect(self._subject.metrics.registry.collect()), "keep counters")
        self._keep_later()

    def _tell(self, origin: Origin) -> None:
        """Report the state of an origin to the other workers."""
        is_telling = origin in self._untold
        self._untold[origin] = True
        if not is_telling:
            self._tasks.start(self._tell_latest(origin), f"news of {origin.authority}")

    async def _tell_latest(self, origin: Origin) -> None:
        """Report the state of an origin, and repeat this while the state has changed since the latest report began.
        Only one report is sent at a time, so that no earlier state arrives after a later state."""
        slot = self._place.slot
        try:
            while self._untold[origin]:
                self._untold[origin] = False
                await self._peers.ask_all("POST", ORIGIN, orjson.dumps(news_of(origin)), but=slot)
        finally:
            del self._untold[origin]

    def _sends_checks(self) -> bool:
        """Return whether this worker sends health checks: it has the lowest slot of the workers that serve, or no
        worker serves."""
        serving = self._place.shared.serving()
        return not serving or serving[0] == self._place.slot

    def _generation(self, slot: int) -> int | None:
        shared = self._place.shared
        return None if shared.state(slot) is SlotState.DEAD else shared.generation(slot)
