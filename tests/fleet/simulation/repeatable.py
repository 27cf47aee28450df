"""Sets that keep the order of their elements, in place of those whose order depends on addresses in memory.

The order in which a gateway serves the elements of a set means nothing.  But it decides what a walk meets, and the same
seed is to give the same walk.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, MutableSet
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from random import Random
from typing import Any, Final
from unittest.mock import patch

from gateway.aio.batches import Batch
from gateway.aio.clock import SystemClock
from gateway.aio.tasks import Tasks
from gateway.aio.timers import Wheel
from gateway.engine.fetch_table import FetchTable
from gateway.engine.owner_upstream import HopUpstream
from gateway.live.topic import Topic
from gateway.ops.history import Sampling
from gateway.ops.loop_delay import LoopDelay
from gateway.ops.memory_watch import MemoryWatch
from gateway.origin.live import Drain
from gateway.origin.streams import Stream
from gateway.server.turns import Turns
from gateway.upstream.connection_pool import ConnectionPool
from gateway.upstream.flight import Flight

_SETS: Final[tuple[tuple[type, str], ...]] = (
    (Topic, "readers_now"),
    (Tasks, "_tasks"),
    (HopUpstream, "_asking"),
    (FetchTable, "_under_way"),
    (Flight, "_readers"),
    (ConnectionPool, "_waiting"),
    (Stream, "watchers"),
    (Drain, "watchers"),
)
_STOPWATCHES: Final[tuple[tuple[type, str], ...]] = ((Wheel, "_spent"), (Turns, "_now"), (Batch, "_now"))
"""The clocks by which work is divided into turns of the loop.  Work takes no time of a simulation."""


class OrderedSet(MutableSet[Any]):
    """A set that is iterated in the order in which its elements were added."""

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._elements = dict.fromkeys(elements)

    def __contains__(self, element: object) -> bool:
        return element in self._elements

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, value: Any) -> None:
        self._elements[value] = None

    def discard(self, value: Any) -> None:
        self._elements.pop(value, None)


@contextmanager
def repeatable(rng: Random, now: Callable[[], float]) -> Iterator[None]:
    """Let new objects have ordered sets, the time that `now` returns, and random names that `rng` decides."""
    # The process's memory is no part of a simulation.  Measurements would cost most of its steps.
    with ExitStack() as stack:
        stack.enter_context(patch.object(secrets, "token_hex", lambda size: rng.randbytes(size).hex()))
        for kind, name in _SETS:
            stack.enter_context(patch.object(kind, "__init__", _begun(kind, partial(_order, name))))
        for kind, name in _STOPWATCHES:
            stack.enter_context(patch.object(kind, "__init__", _begun(kind, partial(_set, name, now))))
        stack.enter_context(patch.object(SystemClock, "now", staticmethod(now)))
        stack.enter_context(patch.object(MemoryWatch, "run", _watch_nothing))
        for kind in (LoopDelay, Sampling):
            stack.enter_context(patch.object(kind, "start", lambda of: None))
        yield


def _begun(kind: type, change: Callable[[Any], None]) -> Any:
    """Return an `__init__` that ends with a change of the object."""
    initialise: Any = getattr(kind, "__init__")  # noqa: B009

    @wraps(initialise)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        initialise(self, *arguments, **named)
        change(self)

    return init


def _order(name: str, of: Any) -> None:
    assert not getattr(of, name)
    setattr(of, name, OrderedSet())


async def _watch_nothing(_: object) -> None:
    """Do not look at the memory."""


def _set(name: str, value: object, of: Any) -> None:
    setattr(of, name, value)
