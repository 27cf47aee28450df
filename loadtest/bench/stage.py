"""The stage: all running servers, and the time for each measurement; the argument of every benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.children import Child
from loadtest.bench.figures import Row, Sample
from loadtest.bench.machine import BenchError, Cores, busy_s, core_time
from loadtest.bench.peers import Peers
from loadtest.bench.tools import Tools

_LEAST_ORIGIN_US = 1.0
"""Least processor time of a responder per request (microseconds): two system calls, for the request and the answer."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The means of measurement."""

    tools: Tools
    cores: Cores
    peers: Peers
    folder: Path
    seconds: float
    max_files: int
    """Most connections of one process."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark that measures several peers in turn; `measure` returns a sample for each row that it can fill."""

    name: str
    rows: Sequence[Row]
    peers: Sequence[str]
    measure: Callable[[Stage, str], Mapping[str, Sample]]
    most_rounds: int = 100


@dataclass(slots=True)
class Watch:
    """Processor time from now on: of a server, of its core, of the origins."""

    stage: Stage
    server: Child
    began: float = 0.0
    server_s: float = 0.0
    core_s: float = 0.0
    origin_s: float = 0.0

    def __post_init__(self) -> None:
        self.server_s = busy_s(self.server.pids)
        self.core_s = core_time(self.stage.cores.server).busy_s
        self.origin_s = self._origins_s()
        self.began = time.monotonic()

    def _origins_s(self) -> float:
        return busy_s(child.pid for child in self.stage.peers.origins.values())

    def sample(self, value: float, operations: int) -> Sample:
        """A figure with the processor time since the start: the server's, per second and per operation, and that of
        others."""
        took = time.monotonic() - self.began
        used_s = busy_s(self.server.pids) - self.server_s
        core = (core_time(self.stage.cores.server).busy_s - self.core_s) / took
        return Sample(value, used_s / took, max(0.0, core - used_s / took), used_s / operations * 1e6)

    def expect_origin(self, operations: int) -> None:
        """Raise BenchError unless the origins worked for every operation: otherwise some requests were answered from a
        cache."""
        each_us = (self._origins_s() - self.origin_s) / operations * 1e6
        if each_us < _LEAST_ORIGIN_US:
            raise BenchError(
                f"{self.server.name}: the origins worked {each_us:.2f} µs for each of {operations} requests"
            )

    def expect_no_origin(self) -> None:
        """Raise BenchError if the origins worked: then the measured reads were not cached ones."""
        share = (self._origins_s() - self.origin_s) / (time.monotonic() - self.began)
        if share > 0.03:
            raise BenchError(f"{self.server.name}: the origins were {share:.0%} busy in a benchmark of cached reads")
