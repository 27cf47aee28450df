"""The admin port of one worker: its private application, and the answers that it gathers for the public port."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.aio.clock import Timer
from gateway.ops.admin.app import MOST_LINE_BYTES
from gateway.ops.admin.subject import Subject
from gateway.ops.gathering.adoption import adopt_settings
from gateway.ops.gathering.ended_counts import KEEP_EVERY_S, EndedCounts
from gateway.ops.gathering.endpoints import Gathered
from gateway.ops.gathering.peers import Peers
from gateway.ops.gathering.private import private_application
from gateway.ops.partition_ids import PartitionIds
from gateway.workers.place import WorkerPlace
from gateway.workers.shared_memory import SlotState

_STOP_S: Final = 1.0
"""The most seconds for the last answers on the private socket."""


class WorkerAdmin:
    """Owner of the private application, the sessions with the other workers, and the kept counters.  `close` is owed
    after `open`."""

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
        self.answering = Gathered(subject, self._peers, self._counts)
        """The answers of the public port."""

    def __repr__(self) -> str:
        return f"<WorkerAdmin of slot {self._place.slot}>"

    async def open(self) -> None:
        """Serve the private socket, and take over what operators have set.  Call this before clients are served."""
        await self._runner.setup()
        await web.SockSite(self._runner, self._place.peer_socket).start()
        if self._place.generation > 1:
            await adopt_settings(self._subject, self._peers, self._place.slot)
        self._keep_later()

    async def close(self) -> None:
        """Stop serving the private socket."""
        if self._timer is not None:
            self._timer.cancel()
        await self._peers.close()
        await self._runner.cleanup()

    def _keep_later(self) -> None:
        self._timer = self._subject.engine.clock.call_later(KEEP_EVERY_S, self._keep)

    def _keep(self) -> None:
        self._counts.collect(self._subject.metrics.registry.collect())
        self._keep_later()

    def _generation(self, slot: int) -> int | None:
        shared = self._place.shared
        return None if shared.state(slot) is SlotState.DEAD else shared.generation(slot)
