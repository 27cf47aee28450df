"""Points that the model has not seen: `python -m loadtest.capacity check`.

One gateway of one process serves 15,000 SSE readers, of one stream and of 1,000 streams.  Their responses end after
some twenty seconds, so that they join again.  Events are spaced out, and processor time is that of two mean lifetimes,
in which each reader joins twice on average.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

import orjson

from loadtest.capacity.costs import CHECKED, Costs
from loadtest.capacity.crowd import Crowd, Writer
from loadtest.capacity.measure import EVENT_BYTES, Figures, at_site, prepared, window
from loadtest.capacity.model import LIFETIME_SHARE, Demand, Fleet, Load, Machine
from loadtest.capacity.site import CHECKED as PREFIX
from loadtest.capacity.site import CHECKED_BEAT_S, CHECKED_S, Site, kernel_bytes

READERS: Final = 15_000
_DEMANDS: Final = (
    Demand(READERS, 1, 2.0, EVENT_BYTES, sse_lifetime_s=CHECKED_S, heartbeat_s=CHECKED_BEAT_S),
    Demand(READERS, 1_000, 0.1, EVENT_BYTES, sse_lifetime_s=CHECKED_S, heartbeat_s=CHECKED_BEAT_S),
)
_QUICK_PARTS: Final = 50
_SETTLE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Figure:
    """The resources that one gateway uses for a demand."""

    processor: float
    """Processor time, as a share of one core."""
    memory_bytes: float
    """Memory in user space."""
    kernel_bytes: float
    """The kernel's memory for its ends of all connections."""


@dataclass(frozen=True, slots=True)
class Point:
    """A demand, and the resources that one gateway was measured to use for it."""

    demand: Demand
    measured: Figure

    def predicted(self, costs: Costs) -> Figure:
        """Return the resources that the gateway uses according to the model."""
        load = Load(costs, self.demand, Fleet(1, Machine(cores=1)))
        parts = load.memory().parts
        sockets = self.demand.readers + self.demand.read_streams
        streams_bytes = self.demand.read_streams * costs.stream_bytes
        return Figure(
            load.processor().used,
            parts["processes"] + parts["readers"] + streams_bytes,
            sockets * costs.socket_bytes,
        )

    @classmethod
    def of(cls, document: dict[str, dict[str, float]]) -> Self:
        """Make a point from its JSON."""
        return cls(Demand(**document["demand"]), Figure(**document["measured"]))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Checked:
    """The points, with the day of their measurement."""

    measured_on: str
    points: Sequence[Point]

    def write(self, path: Path = CHECKED) -> None:
        """Write the file of the points."""
        document = {"measured_on": self.measured_on, "points": [asdict(point) for point in self.points]}
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def read(cls, path: Path = CHECKED) -> Self:
        """Read the file of the points."""
        document = orjson.loads(path.read_bytes())
        return cls(document["measured_on"], [Point.of(point) for point in document["points"]])


def measured(*, is_quick: bool) -> list[Point]:
    """Measure all points; takes some two minutes."""
    points = []
    for demand in _DEMANDS:
        if is_quick:
            streams = max(1, demand.streams // _QUICK_PARTS)
            demand = replace(demand, readers=demand.readers // _QUICK_PARTS, streams=streams)
        print(f"{demand.readers:,} readers of {demand.streams:,} streams", flush=True)
        with tempfile.TemporaryDirectory(prefix="capacity-") as name:
            stage = prepared(Path(name), 1.0)
            figures = at_site(stage, 1, partial(_taken, demand))
        points.append(Point(demand, Figure(**figures)))
    return points


async def _taken(demand: Demand, site: Site) -> Figures:
    """Measure the resources that the gateway of a site uses for a demand."""
    [gateway] = site.gateways
    writer = await Writer.open(site.origin)
    prefix = f"{PREFIX}/s"
    await writer.create(prefix, demand.streams)
    kernel_before = kernel_bytes()
    crowd = Crowd(gateway.port, prefix, demand.streams)
    await crowd.open(demand.readers)
    await asyncio.sleep(_SETTLE_S)
    used_bytes, kernel_after = gateway.bytes, kernel_bytes()
    seconds = 2 * LIFETIME_SHARE * demand.sse_lifetime_s

    async def write() -> None:
        loop = asyncio.get_running_loop()
        began, gap_s = loop.time(), 1 / (demand.events_per_s * demand.streams)
        for number in range(int(seconds / gap_s)):
            await asyncio.sleep(max(0.0, began + number * gap_s - loop.time()))
            await writer.append(prefix, [number % demand.streams], demand.event_bytes)
        await asyncio.sleep(max(0.0, began + seconds - loop.time()))

    found = await window(site, crowd, write)
    await crowd.close()
    writer.close()
    print(
        f"{found.joins / demand.readers:.2f} joins and {found.events / demand.readers:.2f} events of each reader "
        f"in {found.seconds:.1f} s",
        flush=True,
    )
    return {
        "processor": found.busy_us[0] / found.seconds / 1e6,
        "memory_bytes": float(used_bytes),
        "kernel_bytes": (kernel_after - kernel_before) / 2,
    }
