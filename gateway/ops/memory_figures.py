"""The metric families of the memory guard and of the memory held for clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge


class MemoryState(NamedTuple):
    """The figures of the memory guard, in bytes.  A limit of 0 is no limit."""

    client_bytes: int = 0
    client_limit_bytes: int = 0
    memory_limit_bytes: int = 0
    pressure: int = 0
    shed: Mapping[str, int] = {}
    """Dropped connections by reason."""


class MemoryFigures:
    """Metric families of the guard's state, which `look` reads.  The application sets `look`."""

    def __init__(self) -> None:
        self.look: Callable[[], MemoryState] = MemoryState

    def families(self) -> Iterator[Metric]:
        """Return the families with their current values."""
        state = self.look()
        yield gauge(
            "durable_gateway_client_bytes",
            "Bytes held for all clients together, a second ago at most: unread answers, unfinished heads, bodies. "
            "Bytes that several hold count once. Excludes what the cache holds too.",
            (),
            [((), state.client_bytes)],
        )
        yield gauge(
            "durable_gateway_client_bytes_limit",
            "The bound on durable_gateway_client_bytes.",
            (),
            [((), state.client_limit_bytes)],
        )
        yield gauge(
            "durable_gateway_memory_limit_bytes",
            "Resident memory under which the process keeps itself (memory_max_bytes); 0 if there is no bound.",
            (),
            [((), state.memory_limit_bytes)],
        )
        yield gauge(
            "durable_gateway_memory_pressure",
            "How close to the memory limit the process is: 0 far, 1 the cache shrinks, 2 clients are dropped and no "
            "fetch begins, 3 new connections are refused. Excludes the pressure of client_bytes.",
            (),
            [((), state.pressure)],
        )
        yield counter(
            "durable_gateway_clients_shed",
            "Client connections dropped because they held the most: client_bytes above that bound, memory close to "
            "memory_max_bytes. Excludes slow ones that are dropped for taking nothing.",
            ("reason",),
            (((reason,), n) for reason, n in state.shed.items()),
        )
