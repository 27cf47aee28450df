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
    """Metric families of the guard's state.  They get the state from `look`, which the application sets."""

    def __init__(self) -> None:
        self.look: Callable[[], MemoryState] = MemoryState

    def families(self) -> Iterator[Metric]:
        """Return the families with their current values."""
        state = self.look()
        yield gauge(
            "durable_gateway_client_bytes",
            "Bytes of memory held for all clients at the latest measurement, at most a second ago: unread answers, "
            "unfinished request heads, request bodies. Bytes held for several clients count once. Excludes bytes that "
            "are also in the cache.",
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
            "The bound on the process's resident memory (memory_max_bytes); 0 without a bound.",
            (),
            [((), state.memory_limit_bytes)],
        )
        yield gauge(
            "durable_gateway_memory_pressure",
            "The measures in effect because resident memory is close to its limit: 0 none, 1 the cache shrinks, 2 "
            "clients are dropped and no fetch starts, 3 new connections are refused. Excludes measures because of "
            "client_bytes.",
            (),
            [((), state.pressure)],
        )
        yield counter(
            "durable_gateway_clients_shed",
            "Client connections dropped because they held the most memory, by reason: client_bytes (all clients "
            "together exceeded this bound), memory (the process came close to memory_max_bytes). Excludes clients "
            "dropped for reading too slowly.",
            ("reason",),
            (((reason,), n) for reason, n in state.shed.items()),
        )
