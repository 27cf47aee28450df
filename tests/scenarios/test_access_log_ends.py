"""However a request ends, the access log has one final line of it, and the metrics count it once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.faults import Faults
from tests.ops.log_reading import lines_of
from tests.scenarios import test_access_log
from tests.scenarios.conftest import Edge, bounded
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import Wire
from tests.waiting import eventually

log = test_access_log.log
pytestmark = pytest.mark.http_2

REQUESTS: Final[dict[str, tuple[str, str]]] = {
    "catch-up": ("GET", "?offset=-1"),
    "HEAD": ("HEAD", ""),
    "append": ("POST", ""),
    "SSE": ("GET", "?offset=-1&live=sse"),
    "long-poll": ("GET", "?offset=-1&live=long-poll"),
}
LEAVING: Final = ("reset", "closed", "stream")
BODY: Final = b"x" * 60_000


@pytest.fixture(params=["partition", "bypass"])
def settings(request: pytest.FixtureRequest, log: Path) -> dict[str, Any]:
    """Reads are shared, or each is relayed."""
    return {"sink": "file", "path": str(log), "credentials": request.param, "shutdown_timeout_s": 0.2}


async def leave(wire: Wire, how: str) -> None:
    if how == "stream" and isinstance(wire, Http2Wire):
        await wire.reset_stream()
    elif how == "reset":
        wire.reset()
    else:
        await wire.closed()


class Asker:
    """Sends requests whose lines are found by their User-Agent."""

    def __init__(self, edge: Edge, origin: RunningOrigin) -> None:
        self.edge = edge
        self.origin = origin
        self.names: list[str] = []

    async def put(self) -> str:
        """Make the stream of the next request, which the gateway has not seen; returns its path."""
        path = f"/{len(self.names)}"
        await self.edge.send_to(self.origin.url, "PUT", path, {"Content-Type": "text/plain"}, BODY)
        return path

    async def ask(self, name: str, kind: str, wire: Wire | None = None) -> Wire:
        """Ask for that stream."""
        method, query = REQUESTS[kind]
        path = f"/{len(self.names)}"
        self.names.append(f"{name} {kind}")
        headers = {"User-Agent": self.names[-1], "Authorization": "Bearer a", "Content-Type": "text/plain"}
        wire = wire or await self.edge.wire()
        await wire.ask(path + query, headers, method, b"more" if method == "POST" else None)
        return wire


async def has_one_line_each(edge: Edge, log: Path, names: list[str], unseen: Sequence[str] = ()) -> None:
    """Each of these requests has a final line, and all lines are those that the metrics count.  Those `unseen` may have
    been taken back before the gateway began them, and then have none."""

    def finals() -> list[dict[str, Any]]:
        return [line for line in lines_of(log) if line["is_final"]]

    def are_there() -> bool:
        edge.clock.advance(1.0)
        return len(finals()) >= len(names)

    await eventually(are_there, state=lambda: (sorted(names), finals()))
    lines = finals()
    agents = Counter(line["user_agent"] for line in lines)
    assert Counter(names) <= agents <= Counter([*names, *unseen])
    assert Counter((line["mode"], line["outcome"]) for line in lines) == counted(edge)


def counted(edge: Edge) -> Counter[tuple[str, str]]:
    """Ended requests by mode and outcome, as the metrics have them."""
    (family,) = [one for one in edge.gateway.metrics.registry.collect() if one.name == "durable_gateway_requests"]
    counts: Counter[tuple[str, str]] = Counter()
    for sample in family.samples:
        if sample.name.endswith("_total"):
            counts[sample.labels["mode"], sample.labels["outcome"]] += int(sample.value)
    return +counts


async def test_a_client_that_leaves_before_or_in_its_answer_has_a_line(
    edge: Edge, log: Path, origin: RunningOrigin, faults: Faults
) -> None:
    asker = Asker(edge, origin)
    for how in LEAVING:
        for kind in REQUESTS:
            gate = faults.hold(path=await asker.put(), times=1)
            wire = await asker.ask(f"{how} before", kind)
            await bounded(gate.waiting(1))
            await leave(wire, how)
            gate.release()
            if kind in ("HEAD", "append"):
                continue
            stalled = faults.stall(20_000, path=await asker.put())
            wire = await asker.ask(f"{how} within", kind)
            await bounded(stalled.waiting(1))
            await leave(wire, how)
            stalled.release()
    await edge.leave()
    await has_one_line_each(edge, log, asker.names)


@pytest.mark.parametrize("settings", ["partition"], indirect=True)
async def test_readers_that_join_a_crowd_and_leave_with_its_event_have_a_line(edge: Edge, log: Path) -> None:
    names, unseen, numbers = list[str](), list[str](), itertools.count()

    async def ask(wire: Wire, target: str, method: str = "GET", into: list[str] = names) -> None:
        into.append(f"{method} {next(numbers)}")
        headers = {"User-Agent": into[-1], "Content-Type": "text/plain"}
        await wire.ask(target, headers, method, b"more" if method == "POST" else None)

    tail = (await edge.put("/s", b"0123456789", User_Agent="PUT")).next_offset
    names.append("PUT")
    for live in ("sse", "long-poll"):
        target = f"/s?offset={tail if live == 'long-poll' else '-1'}&live={live}"
        for _ in range(2):
            wires = [await edge.wire() for _ in range(4)]
            for wire in wires:
                await ask(wire, target)
            await eventually(lambda: readers(edge) == 4)
            # One more joins and leaves, and one that has joined leaves, with the append that answers the others.
            late, writer = await edge.wire(), await edge.wire()
            await ask(late, target, into=unseen)
            await leave(late, "stream")
            await leave(wires.pop(), "reset")
            await ask(writer, "/s", "POST")
            tail = (await writer.answer("POST")).next_offset
            for wire in wires:
                await wire.head()
                await leave(wire, "stream")
            await eventually(lambda: readers(edge) == 0)
            target = f"/s?offset={tail}&live={live}"
    await edge.leave()
    await has_one_line_each(edge, log, names, unseen)


def readers(edge: Edge) -> int:
    return sum(topic.readers for topic in edge.gateway.engine.live.topics())


async def test_what_is_under_way_as_the_gateway_stops_has_a_line(
    edge: Edge, log: Path, origin: RunningOrigin, faults: Faults
) -> None:
    asker = Asker(edge, origin)
    gates = []
    for kind in REQUESTS:
        gates.append(faults.hold(path=await asker.put(), times=1))
        await asker.ask("before", kind)
        await bounded(gates[-1].waiting(1))
        if kind not in ("HEAD", "append"):
            gates.append(faults.stall(20_000, path=await asker.put()))
            await asker.ask("within", kind)
            await bounded(gates[-1].waiting(1))
    async with edge.time_passing():
        await bounded(edge.gateway.stop())
    for gate in gates:
        gate.release()
    await has_one_line_each(edge, log, asker.names)
