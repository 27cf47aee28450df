"""Collects work of one kind in one turn of the event loop, and does it in the next turn.

A request runs some three hundred functions.  Their code does not fit into a processor's fastest caches.  If many
requests run the same functions one after the other, the code of these functions stays in the caches.  At saturation,
batches save a tenth of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Final, Generic, TypeVar

from gateway.aio.clock import SystemClock

_log = logging.getLogger("gateway.aio.batches")

T = TypeVar("T")

MOST_S: Final = 0.001
"""The seconds for which one turn of the loop may work on a batch.  After this time, the remaining items wait for the
next turn, so that a long batch does not delay other events.
"""


class Backlog:
    """Counts the items that wait in several batches."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = 0

    def __repr__(self) -> str:
        return f"<Backlog {self.items}>"


class Batch(Generic[T]):
    """Calls `work` with each item once, in the order of `add`.  The calls happen in the turn of the loop after `add`,
    or in later turns if there are too many items for one turn.

    If `work` raises an exception, the exception is logged, and the next item follows.  `work` runs in an empty context,
    not in the context of a caller of `add`.
    """

    __slots__ = ("_backlog", "_items", "_now", "_work")

    def __init__(
        self,
        work: Callable[[T], object],
        now: Callable[[], float] = SystemClock.now,
        backlog: Backlog | None = None,
    ) -> None:
        """`backlog` counts the items of this batch, and may also count the items of other batches.  With None, the
        batch creates its own backlog."""
        self._work = work
        self._backlog = backlog if backlog is not None else Backlog()
        self._now = now
        self._items: list[T] = []

    def __repr__(self) -> str:
        return f"<Batch of {len(self._items)}>"

    def add(self, item: T) -> None:
        """Add an item.  `work` is called with this item in a later turn."""
        if not self._items:
            self._run_soon()
        self._items.append(item)
        self._backlog.items += 1

    def _run_soon(self) -> None:
        # Schedule one call for all items, because getting the running loop takes a system call.
        asyncio.get_running_loop().call_soon(self._run, context=Context())

    def _run(self) -> None:
        items, self._items = self._items, []
        work, now, done = self._work, self._now, 0
        until = now() + MOST_S
        try:
            for item in items:
                done += 1
                try:
                    work(item)
                except Exception:
                    _log.exception("unhandled error")
                if now() > until:
                    break
        finally:
            # Subtract the processed items even if an error ends the turn.
            self._backlog.items -= done
            if done < len(items):
                if not self._items:
                    self._run_soon()
                self._items[:0] = items[done:]
