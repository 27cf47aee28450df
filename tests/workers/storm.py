"""`python -m tests.workers.storm`: verifying readers and writers while workers are killed, or versions replaced.

Each stream has one writer, an idempotent producer that sends its numbered messages until they are acknowledged, and
readers that compare every number with the next one expected.  So a message that is lost, doubled or out of order is a
fault, and so is one that has not come `_HUNG_S` after its acknowledgement.  A writer that has an acknowledgement reads
over a new connection, which another worker may accept, and has to find its message.

While versions are replaced (`--upgrades`), every connection that is refused and every request that fails is a fault as
well; a live read may end in order at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any, Final

import uvloop

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.offload.crowd import Client, Tally
from tests.waiting import eventually, pause
from tests.workers.process import GatewayProcess

JSON: Final = {"Content-Type": "application/json"}
LOST: Final = (OSError, EOFError, asyncio.IncompleteReadError, RuntimeError)
_HUNG_S: Final = 20.0
"""A busy machine may leave a worker without the processor for some seconds."""
_MOST_LISTED: Final = 20
_LOOK_S: Final = 0.25
_AGAIN_S: Final = 0.02


@dataclass(frozen=True)
class Plan:
    """What goes on, for how long."""

    workers: int = 3
    seconds: float = 60.0
    streams: int = 20
    readers: int = 1_000
    write_every_s: float = 0.5
    kill_every_s: float = 0.0
    """0 kills none."""
    upgrades: int = 0
    seed: int = 1


@dataclass(eq=False)
class Log:
    """What one writer has written."""

    path: str
    acked_at: list[float] = field(default_factory=list)
    """When each message was acknowledged."""


@dataclass
class Storm:
    """A run, and what it has found."""

    plan: Plan
    origin: RunningOrigin
    gateway: GatewayProcess
    logs: list[Log]
    is_written: bool = False
    """Whether the writers are to come to their end."""
    is_over: bool = False
    """Whether readers that have everything are done."""
    tally: Tally = field(default_factory=Tally)
    counts: Counter[str] = field(default_factory=Counter)
    recoveries_s: list[float] = field(default_factory=list)
    """How long readers whose connection was lost had to wait for the next answer."""
    faults: list[str] = field(default_factory=list)
    """The first `_MOST_LISTED`."""
    fault_count: int = 0
    readers: list[Reader] = field(default_factory=list)

    def fault(self, what: str) -> None:
        """Note something that must not happen."""
        self.fault_count += 1
        if len(self.faults) < _MOST_LISTED:
            self.faults.append(what)

    def lost(self, who: str, error: BaseException) -> None:
        """A connection has ended within a request, or could not be made."""
        self.counts[type(error).__name__] += 1
        if isinstance(error, ConnectionRefusedError) or not self.plan.kill_every_s:
            self.fault(f"{who}: {error!r}")

    async def client(self) -> Client:
        """A new connection."""
        return await Client.open(self.gateway.url, self.tally)


@dataclass(eq=False, repr=False)
class Reader:
    """Follows one stream from its start, by SSE or by long-polls."""

    storm: Storm
    log: Log
    name: str
    by_sse: bool
    expected: int = 0
    at: str = "-1"
    port: int = 0
    """Of its latest connection."""
    _lost_at: float | None = None

    async def run(self) -> None:
        """Read until the run is over and everything has come."""
        while not self.is_done:
            client: Client | None = None
            try:
                client = await self.storm.client()
                self.port = client.port
                await (self._follow if self.by_sse else self._poll)(client)
            except LOST as error:
                self._lost_at = self._lost_at or time.monotonic()
                self.storm.lost(repr(self), error)
                await pause(_AGAIN_S)
            except TimeoutError:
                self.storm.fault(f"{self.name}: no answer")
            except AssertionError as error:
                self.storm.fault(f"{self.name}: {error}")
                await pause(_AGAIN_S)
            finally:
                if client is not None:
                    client.close()

    def __repr__(self) -> str:
        way = "SSE" if self.by_sse else "long-poll"
        return (
            f"<{self.name} of {self.log.path} by {way} at {self.at}, has {self.expected} of {len(self.log.acked_at)}>"
        )

    @property
    def is_done(self) -> bool:
        return self.storm.is_over and self.expected >= len(self.log.acked_at)

    async def _follow(self, client: Client) -> None:
        subscription = await client.subscribe(f"{self.log.path}?offset={self.at}&live=sse")
        self._answered()
        async for event in subscription.events():
            if event.name == "data":
                self._take(event.data.encode())
            elif event.name == "control":
                self.at = json.loads(event.data)["streamNextOffset"]
            if self.is_done:
                return

    async def _poll(self, client: Client) -> None:
        cursor = ""
        while not self.is_done:
            if client.is_closed:
                # A gateway that stops closes idle connections at the end, and this process may have read its last
                # answer late.
                self.storm.counts["idle closed"] += 1
                return
            body = bytearray()
            target = f"{self.log.path}?offset={self.at}&live=long-poll{cursor}"
            reply = await client.send("GET", target, take=body.extend)
            if reply.status not in (200, 204):
                self._refused(reply.status)
                return
            self._answered()
            if reply.status == 200:
                self._take(bytes(body))
            self.at = reply.next_offset
            cursor = f"&cursor={reply.cursor}" if reply.cursor is not None else ""
            if reply.headers.get("connection", "").lower() == "close":
                return

    def _refused(self, status: int) -> None:
        self.storm.counts[f"status {status}"] += 1
        self._lost_at = self._lost_at or time.monotonic()
        if not self.storm.plan.kill_every_s or status < 500:
            self.storm.fault(f"{self.name}: status {status}")

    def _answered(self) -> None:
        if self._lost_at is not None:
            self.storm.recoveries_s.append(time.monotonic() - self._lost_at)
            self._lost_at = None

    def _take(self, body: bytes) -> None:
        for one in json.loads(body):
            self.storm.counts["deliveries"] += 1
            if one["n"] != self.expected or one["path"] != self.log.path:
                self.storm.fault(f"{self.name} of {self.log.path}: {one} in place of {self.expected}")
            self.expected = one["n"] + 1

    def look(self, now: float) -> None:
        """See that nothing acknowledged long ago is missing."""
        acked = self.log.acked_at
        if self.expected < len(acked) and now - acked[self.expected] > _HUNG_S:
            self.storm.fault(f"{self} hangs")


async def write(storm: Storm, log: Log, rng: Random) -> None:
    """Append until the run is over."""
    client: Client | None = None
    number = 0
    while not storm.is_written:
        headers = {**JSON, "Producer-Id": log.path, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        body = json.dumps({"path": log.path, "n": number}).encode()
        while True:
            if client is not None and client.is_closed:
                # A gateway that stops closes idle connections at the end.
                storm.counts["idle closed"] += 1
                client.close()
                client = None
            try:
                client = client or await storm.client()
                reply = await client.send("POST", log.path, headers, body)
            except LOST as error:
                storm.lost(f"writer of {log.path}", error)
                client = None
            else:
                if reply.headers.get("connection", "").lower() == "close":
                    client.close()
                    client = None
                if reply.status in (200, 204):
                    break
                storm.counts[f"status {reply.status}"] += 1
                if reply.status < 500 or not storm.plan.kill_every_s:
                    storm.fault(f"writer of {log.path}: status {reply.status}")
            await pause(_AGAIN_S)
        log.acked_at.append(time.monotonic())
        storm.counts["writes"] += 1
        number += 1
        if rng.random() < 0.5:
            await _read_own(storm, log, reply.next_offset)
        await pause(storm.plan.write_every_s * rng.uniform(0.5, 1.5))
    if client is not None:
        client.close()


async def _read_own(storm: Storm, log: Log, tail: str) -> None:
    """Ask over a new connection where the tail is."""
    for _ in range(100):
        client: Client | None = None
        try:
            client = await storm.client()
            reply = await client.send("HEAD", log.path)
        except LOST as error:
            storm.lost(f"own read of {log.path}", error)
        else:
            if reply.status < 500:
                storm.counts["own reads"] += 1
                if reply.status != 200 or reply.next_offset < tail:
                    storm.fault(f"{log.path} ends at {reply}, and {tail} was acknowledged")
                return
        finally:
            if client is not None:
                client.close()
        await pause(_AGAIN_S)
    storm.fault(f"no answer to the writer of {log.path}")


async def kill(storm: Storm, rng: Random) -> None:
    """Kill a worker now and then."""
    while storm.plan.kill_every_s:
        await pause(storm.plan.kill_every_s)
        if storm.gateway.kill_worker(rng) is not None:
            storm.counts["kills"] += 1


async def upgrade(storm: Storm) -> None:
    """Replace the version so many times."""
    for _ in range(storm.plan.upgrades):
        await pause(storm.plan.seconds / (storm.plan.upgrades + 1))
        await storm.gateway.upgrade()
        storm.counts["upgrades"] += 1


async def storm(plan: Plan) -> Storm:
    """Run it to its end."""
    rng = Random(plan.seed)
    origin = await start_origin(OriginSettings())
    config = GatewayConfig.for_origin(
        origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", client_new_streams_per_s=0, shutdown_timeout_s=2.0
    )
    gateway = await GatewayProcess.start(config, plan.workers, is_cold=plan.upgrades > 0)
    logs = [Log(f"/s/{number}") for number in range(plan.streams)]
    run = Storm(plan, origin, gateway, logs)
    try:
        maker = await run.client()
        for log in logs:
            assert (await maker.send("PUT", log.path, JSON)).status == 201
        maker.close()
        origin.origin.counters.reset()
        await _rage(run, rng)
    finally:
        await gateway.stop()
        await origin.stop(grace_s=0)
    _compare(run)
    return run


async def _rage(run: Storm, rng: Random) -> None:
    plan = run.plan
    run.readers = [
        Reader(run, run.logs[number % plan.streams], f"reader {number}", by_sse=number // plan.streams % 2 == 0)
        for number in range(plan.readers)
    ]
    tasks = [asyncio.create_task(reader.run()) for reader in run.readers]
    writers = [asyncio.create_task(write(run, log, Random(f"{plan.seed}/{log.path}"))) for log in run.logs]
    trouble = [asyncio.create_task(kill(run, rng)), asyncio.create_task(upgrade(run))]
    until = time.monotonic() + plan.seconds
    try:
        while (now := time.monotonic()) < until:
            await pause(_LOOK_S)
            for reader in run.readers:
                reader.look(now)
            for task in (*tasks, *writers, *trouble):
                if task.done() and (error := task.exception()) is not None:
                    raise error
        await trouble[1]
        trouble[0].cancel()
        run.is_written = True
        await asyncio.gather(*writers)
        run.is_over = True
        # Readers that have all wait for one more answer, which would not come before their time is up.
        try:
            await eventually(lambda: all(reader.is_done for reader in run.readers), look_s=_LOOK_S)
        except AssertionError:
            for reader in run.readers:
                if not reader.is_done:
                    run.fault(f"{reader} hangs at worker {run.gateway.worker_at(reader.port)}")
        if plan.workers > 1:
            await eventually(gateway_is_well(run), look_s=_LOOK_S)
    finally:
        for task in (*tasks, *writers, *trouble):
            task.cancel()
        await asyncio.gather(*tasks, *writers, *trouble, return_exceptions=True)


def gateway_is_well(run: Storm) -> Callable[[], Any]:
    """Whether all workers serve again."""

    async def look() -> bool:
        return await run.gateway.is_well()

    return look


def _compare(run: Storm) -> None:
    """See that the origin has what was acknowledged, once."""
    for log in run.logs:
        stream = run.origin.origin.store._streams[log.path]
        numbers = [json.loads(record.payload)["n"] for record in stream.records]
        if numbers != list(range(len(log.acked_at))):
            run.fault(
                f"{log.path} has {len(numbers)} messages at the origin, and {len(log.acked_at)} were acknowledged"
            )


def report(run: Storm) -> str:
    """What has happened, in some lines."""
    counters = run.origin.origin.counters
    live = counters.requests[Kind.SSE] + counters.requests[Kind.LONGPOLL]
    recoveries = sorted(run.recoveries_s) or [0.0]
    lines = [
        ", ".join(f"{count:,} {what}" for what, count in sorted(run.counts.items())),
        (
            f"origin: {live} live requests, {counters.live_peak} at once, for {run.plan.streams} streams; "
            f"{counters.requests[Kind.CATCHUP]} catch-up reads"
        ),
        (
            f"recoveries: {len(run.recoveries_s):,}, median {median(recoveries):.2f} s, 99 % within "
            f"{recoveries[int(len(recoveries) * 0.99)]:.2f} s, longest {recoveries[-1]:.2f} s"
        ),
        f"{run.fault_count} faults",
        *run.faults,
    ]
    return "\n".join(lines)


def main() -> int:
    """0 where nothing was wrong."""
    parser = argparse.ArgumentParser(prog="storm", description=__doc__)
    for name, value in vars(Plan()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    plan = Plan(**vars(parser.parse_args()))
    # So that the report of a kernel's or a shell's end of this run is not lost.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run = runner.run(storm(plan))
    print(report(run), flush=True)  # noqa: T201
    return min(run.fault_count, 1)


if __name__ == "__main__":
    sys.exit(main())
