"""Measures the costs of the model: `python -m loadtest.capacity measure`.

| cost                              | how it is measured                                                              |
|-----------------------------------|---------------------------------------------------------------------------------|
| a long-poll                       | `production-poll` of `make bench`                                               |
| a join                            | 5,000 readers of one stream, whose responses end after two seconds              |
| a delivery                        | 10,000 readers of one stream, spaced out, less the event                        |
| an event at the owner             | streams with a reader each, less the delivery                                   |
| an event at a hop, and its relay  | two members, all readers at one of them, less the above                         |
| the next live request             | responses of two seconds, less the joins of the readers                         |
| a heartbeat                       | readers with two heartbeats a second                                            |
| an idle reader                    | readers as in production                                                        |
| one end of a connection           | half of what the kernel's objects grow by: both ends are on this machine        |
| a followed stream                 | streams with a reader each, less the reader                                     |

Processor time is read from the processes' own clocks, so that other load hardly changes it.  It is the median of
several rounds.  Deliveries, joins and heartbeats are measured with thousands of readers.  A few hundred readers stay in
the processor's caches, so that each step takes a half or a third of the time.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from loadtest.bench import live, live_client, production
from loadtest.bench.certificates import make_certificate
from loadtest.bench.children import free_ports
from loadtest.bench.fetch import fetch_raw
from loadtest.bench.figures import GATEWAY
from loadtest.bench.machine import BenchError, Cores, memory, pinned
from loadtest.bench.peers import Peers
from loadtest.bench.stage import Stage
from loadtest.bench.tools import prepare
from loadtest.capacity.costs import Costs
from loadtest.capacity.crowd import Crowd, Writer, until
from loadtest.capacity.site import BEAT, BEAT_S, SHORT, SHORT_S, STEADY, Gateway, Site, kernel_bytes, running_site

EVENT_BYTES: Final = 200
_WARM_UP: Final = 100
_SETTLE_S: Final = 0.5
_FOLLOWED: Final = "durable_gateway_followed_streams"
_MICRO: Final = 1e6

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int = 3
    seconds: float = 2.0
    """Of each window; windows with ends of live reads are three times as long."""
    readers: int = 5_000
    """Idle readers, of which memory is measured."""
    streams: int = 1_000
    crowd: int = 10_000
    """Readers of one stream."""

    @property
    def ending(self) -> int:
        """Readers whose responses end after two seconds, so few that the core of the gateways suffices."""
        return self.streams // 2

    @property
    def rejoining(self) -> int:
        """Readers of one stream whose responses end after two seconds."""
        return self.crowd // 2


QUICK: Final = Sizes(rounds=1, seconds=1.0, readers=300, streams=60, crowd=300)


def measure(sizes: Sizes) -> Costs:
    """Measure all costs; takes some three minutes."""
    with tempfile.TemporaryDirectory(prefix="capacity-") as name:
        stage = prepared(Path(name), sizes.seconds)
        figures = _of_readers(stage, sizes)
        figures |= at_site(stage, 1, lambda site: _alone(site, sizes, figures))
        figures |= at_site(stage, 2, lambda site: _in_fleet(site, sizes, figures))
    return Costs.of(figures)


def prepared(folder: Path, seconds: float) -> Stage:
    """The stage of the parts of `make bench`, without peers.  Raises BenchError if a tool is missing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tools = prepare(Path("build/bench"))
    [live_port] = free_ports(1)
    peers = Peers({}, {}, live_port, make_certificate(tools.secure.openssl, folder))
    return Stage(tools, Cores.of_this_machine(), peers, folder, seconds, hard)


def at_site(stage: Stage, gateways: int, work: Callable[[Site], Coroutine[Any, Any, Figures]]) -> Figures:
    """Carry out some work at a site of its own, on the core of the load."""
    folder = stage.folder / f"site-{gateways}"
    with (
        running_site(gateways, stage.cores, folder) as site,
        pinned(stage.cores.load),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(work(site))


# -- readers of one stream ---------------------------------------------------------------------------------------------


def _of_readers(stage: Stage, sizes: Sizes) -> Figures:
    """Long-polls, an event of many readers, and memory of readers, all as in production."""
    name = "production-poll"
    [poll] = [benchmark for benchmark in production.benchmarks() if benchmark.name == name]
    _say(name)
    samples = [poll.measure(stage, GATEWAY)[name].cpu_us for _ in range(sizes.rounds)]
    figures: Figures = {"poll_us": median(sample for sample in samples if sample is not None)}
    _say("deliveries")
    figures["fanout_us"] = median(_fanout_us(stage, sizes) for _ in range(sizes.rounds))
    for mode, cost in (("sse", "sse_bytes"), ("longpoll", "long_poll_bytes")):
        _say(f"memory of readers, {mode}")
        figures[cost], socket_bytes = _idle_bytes(stage, mode, sizes.readers)
        if mode == "sse":
            figures["socket_bytes"] = socket_bytes
    return figures


def _fanout_us(stage: Stage, sizes: Sizes) -> float:
    """Processor time of an event of a stream with many readers."""
    with production.set_up(stage, GATEWAY, "text/event-stream") as ready:
        argv = live_client.arguments(stage, GATEWAY, ready.server)
        argv += ["--subscribers", str(sizes.crowd), "--window", "1", "--seconds", str(stage.seconds), *ready.clients]
        report = live_client.run(stage, stage.tools.live, ["fanout", *argv])
    return float(report["server_s"] / report["events"] * _MICRO)


def _idle_bytes(stage: Stage, mode: str, count: int) -> tuple[float, float]:
    """Memory of each of so many idle readers: in the gateway, and in the kernel for one end of the connection."""
    with production.set_up(stage, GATEWAY, "*/*" if mode == "longpoll" else "text/event-stream") as ready:
        with live.held(stage, GATEWAY, ready.server, mode, _WARM_UP, more=ready.clients):
            pass
        before, kernel_before = memory(ready.server.pids).pss_bytes, kernel_bytes()
        with live.held(stage, GATEWAY, ready.server, mode, count, more=ready.clients):
            after, kernel_after = memory(ready.server.pids).pss_bytes, kernel_bytes()
    return (after - before) / count, (kernel_after - kernel_before) / 2 / count


# -- streams -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """The work and the processor time of a stretch of time."""

    seconds: float
    busy_us: tuple[float, ...]
    """Processor time of each gateway."""
    joins: int
    events: int
    received_bytes: int


async def window(site: Site, crowd: Crowd, work: Callable[[], Coroutine[Any, Any, object]]) -> Window:
    """Watch gateways and readers while some work is done."""
    began, busy = asyncio.get_running_loop().time(), [gateway.busy_s for gateway in site.gateways]
    joins, events, received = crowd.joins, crowd.events, crowd.received_bytes
    await work()
    crowd.expect_no_failure()
    return Window(
        asyncio.get_running_loop().time() - began,
        tuple((gateway.busy_s - before) * _MICRO for gateway, before in zip(site.gateways, busy, strict=True)),
        crowd.joins - joins,
        crowd.events - events,
        crowd.received_bytes - received,
    )


async def _alone(site: Site, sizes: Sizes, known: Figures) -> Figures:
    """The costs of streams at their owner, where also their readers are."""
    [gateway] = site.gateways
    writer = await Writer.open(site.origin)
    _say("streams of one gateway")
    figures: Figures = {"process_bytes": gateway.bytes}
    idle_us = await _idle_us(site, sizes)
    figures["idle_us"] = idle_us[0]

    crowd, grown = await _followed(site, gateway, writer, sizes)
    figures["stream_bytes"] = max(0.0, grown[0] / sizes.streams - known["sse_bytes"])
    events = await _events(site, crowd, writer, sizes)
    of_event = median((one.busy_us[0] - idle_us[0] * one.seconds) / one.events for one in events)
    # An event of n readers is an event and n deliveries, an event of one reader an event and a delivery.
    figures["delivery_us"] = max(0.0, (known["fanout_us"] - of_event) / (sizes.crowd - 1))
    figures["event_us"] = of_event - figures["delivery_us"]
    figures["frame_bytes"] = median(one.received_bytes / one.events for one in events) - EVENT_BYTES
    reply = fetch_raw(gateway.port, f"{STEADY}/many/0?offset=-1&live=long-poll")
    figures["poll_reply_bytes"] = len(reply.partition(b"\r\n\r\n")[0]) + 4
    await crowd.close()

    all_of_one = await _ends(site, gateway, writer, 1, sizes.rejoining, sizes)
    figures["join_us"] = (all_of_one.busy_us[0] - idle_us[0] * all_of_one.seconds) / all_of_one.joins
    one = await _ends(site, gateway, writer, 1, sizes.ending, sizes)
    join_us = (one.busy_us[0] - idle_us[0] * one.seconds) / one.joins
    figures["join_reply_bytes"] = one.received_bytes / one.joins
    many = await _ends(site, gateway, writer, sizes.ending, sizes.ending, sizes)
    spent_us = many.busy_us[0] - idle_us[0] * many.seconds - many.joins * join_us
    figures["follow_us"] = max(0.0, spent_us / many.joins)
    figures["later_join_us"] = join_us

    figures["heartbeat_us"] = await _heartbeat_us(site, writer, sizes, idle_us[0])
    writer.close()
    return figures


async def _in_fleet(site: Site, sizes: Sizes, known: Figures) -> Figures:
    """The costs of hops: the first member has no readers, and the second has all."""
    owner, other = site.gateways
    writer = await Writer.open(site.origin)
    _say("streams of two members")
    idle_us = await _idle_us(site, sizes)
    crowd, grown = await _followed(site, other, writer, sizes)
    hops = owner.metric(_FOLLOWED)
    own = sizes.streams - hops
    if not 0 < hops < sizes.streams:
        raise BenchError(f"one member owns {hops:g} of {sizes.streams} streams")
    figures: Figures = {"hop_reader_bytes": max(0.0, grown[0] / hops - known["stream_bytes"])}
    of_own = own * known["stream_bytes"] + sizes.streams * known["sse_bytes"]
    figures["hop_stream_bytes"] = max(0.0, (grown[1] - of_own) / hops)

    share = hops / sizes.streams
    relays, hop_events = [], []
    for one in await _events(site, crowd, writer, sizes):
        relays.append((one.busy_us[0] - idle_us[0] * one.seconds) / (one.events * share) - known["event_us"])
        of_own = one.events * ((1 - share) * known["event_us"] + known["delivery_us"])
        hop_events.append((one.busy_us[1] - idle_us[1] * one.seconds - of_own) / (one.events * share))
    figures["hop_relay_us"] = max(0.0, median(relays))
    figures["hop_event_us"] = max(0.0, median(hop_events))
    await crowd.close()

    many = await _ends(site, other, writer, sizes.ending, sizes.ending, sizes)
    # The live request of a stream ends as often as the response to its reader.  Which member owns a stream is not known
    # here, so half of them are taken to be at each.
    follows = many.joins
    served_us = (many.busy_us[0] - idle_us[0] * many.seconds) / (follows / 2)
    figures["hop_serve_us"] = max(0.0, served_us - known["follow_us"])
    of_own = many.joins * known["later_join_us"] + follows / 2 * known["follow_us"]
    figures["hop_follow_us"] = max(0.0, (many.busy_us[1] - idle_us[1] * many.seconds - of_own) / (follows / 2))
    writer.close()
    return figures


async def _idle_us(site: Site, sizes: Sizes) -> tuple[float, ...]:
    """Processor time of each gateway in a second without readers."""
    found = await window(site, Crowd(site.gateways[0].port, STEADY, 1), lambda: asyncio.sleep(sizes.seconds))
    return tuple(busy_us / found.seconds for busy_us in found.busy_us)


async def _followed(site: Site, at: Gateway, writer: Writer, sizes: Sizes) -> tuple[Crowd, list[float]]:
    """Streams with a reader each at a gateway, and the memory by which each gateway has grown."""
    warm, prefix = f"{STEADY}/warm", f"{STEADY}/many"
    await writer.create(warm, _WARM_UP)
    early = Crowd(at.port, warm, _WARM_UP)
    await early.open(_WARM_UP)
    await early.close()
    await _until_nothing_is_followed(site)
    await writer.create(prefix, sizes.streams)
    before = [gateway.bytes for gateway in site.gateways]
    crowd = Crowd(at.port, prefix, sizes.streams)
    await crowd.open(sizes.streams)
    await asyncio.sleep(_SETTLE_S)
    return crowd, [gateway.bytes - had for gateway, had in zip(site.gateways, before, strict=True)]


async def _until_nothing_is_followed(site: Site) -> None:
    def is_so() -> bool:
        return not any(gateway.metric(_FOLLOWED) for gateway in site.gateways)

    await until(is_so, "no stream is followed", look_s=0.1)


async def _events(site: Site, crowd: Crowd, writer: Writer, sizes: Sizes) -> list[Window]:
    """Append to each stream in turn, several times."""

    async def append() -> None:
        wanted = crowd.events + sizes.streams
        await writer.append(f"{STEADY}/many", range(sizes.streams), EVENT_BYTES)
        await until(lambda: crowd.events >= wanted, "each reader has the event")

    return [await window(site, crowd, append) for _ in range(1 + sizes.rounds)][1:]


async def _ends(site: Site, at: Gateway, writer: Writer, streams: int, readers: int, sizes: Sizes) -> Window:
    """Readers of so many streams, whose responses end after two seconds."""
    prefix = f"{SHORT}/{streams}-{readers}"
    await writer.create(prefix, streams)
    crowd = Crowd(at.port, prefix, streams)
    await crowd.open(readers)
    await asyncio.sleep(2 * SHORT_S)
    found = await window(site, crowd, lambda: asyncio.sleep(3 * sizes.seconds))
    await crowd.close()
    return found


async def _heartbeat_us(site: Site, writer: Writer, sizes: Sizes, idle_us: float) -> float:
    prefix, readers = f"{BEAT}/one", sizes.crowd
    await writer.create(prefix, 1)
    crowd = Crowd(site.gateways[0].port, prefix, 1)
    await crowd.open(readers)
    await asyncio.sleep(_SETTLE_S)
    found = await window(site, crowd, lambda: asyncio.sleep(2 * sizes.seconds))
    await crowd.close()
    return max(0.0, (found.busy_us[0] / found.seconds - idle_us) * BEAT_S / readers)


def _say(text: str) -> None:
    print(text, flush=True)
