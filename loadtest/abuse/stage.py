"""One run: its processes, its phases, and their measurements."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from gateway.commands.dev_tls import local_certificate
from loadtest.abuse import abusers, hostile
from loadtest.abuse.delays import note_delays
from loadtest.abuse.good import PATIENCE_S, Good, Tally
from loadtest.abuse.wire import HOST
from loadtest.bench.certificates import Certificate, gateway_tls
from loadtest.bench.machine import BenchError, Cores, busy_s, core_time, pinned

MEMORY_BYTES: Final = 512 << 20
"""Bound on the gateway's memory: `limits.memory_max_bytes`, by which a run is judged."""
CACHE_BYTES: Final = 128 << 20
NEW_STREAMS_PER_S: Final = 8
REQUESTS_PER_S: Final = 20
"""Requests that the gateway admits from each client network per second; a good client needs half of it at most."""
REFUSALS_PER_S: Final = 5
"""Refusals per second above which it bans a client network."""
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_REALTIME: Final = os.SCHED_RR | os.SCHED_RESET_ON_FORK
"""For the event loop alone: threads and processes that it starts are as others."""
_PRIORITY: Final = 10
_START_S: Final = 120.0
_STOP_S: Final = 30.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run."""

    seconds: float
    """Length of each phase."""
    good: int = 100
    abusive: int = 1_000
    kinds: tuple[str, ...] = tuple(abusers.KINDS)
    """Kinds of abusive clients; if empty, hostile origins and `abusive` clients that call them."""
    origins: tuple[str, ...] = (*hostile.KINDS, hostile.REFUSES)
    """Kinds of hostile origins."""
    flood: float = 1.0
    """Share of the rates of `abusers.KINDS` at which floods strike."""
    warm_s: float = 3.0
    """Time before a phase counts."""
    is_alone_again: bool = False
    """Whether the good clients run alone a second time, after the abusive ones have ended.  Their times
    then count as one phase, because a machine's speed drifts by a third within minutes."""
    is_pinned: bool = True
    """Whether the gateway has a core of its own."""
    is_realtime: bool = False
    """Whether gateway, origin and good clients go before all other work on the machine."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of all processes."""

    gateway: int
    tls: int
    """The port at which the gateway speaks TLS."""
    origin: int
    count: int
    """The port at which the origin reports the number of its requests and its delays."""
    s2: int
    """The port of the S2 origin."""
    hostile: Mapping[str, int]


@dataclass(slots=True)
class Phase:
    """Measurements of one phase."""

    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    """Length of the phase."""
    peak_bytes: int = 0
    """Peak resident memory of the gateway."""
    busy: float = 0.0
    """Share of a core that the gateway used."""
    waited: float = 0.0
    """Share of the time in which the gateway's loop was ready to run and another process had its core."""
    clients_waited: float = 0.0
    """The same share for the good clients' loop: its waiting is in their times, and is not the gateway's."""
    clients_late_s: list[float] = field(default_factory=list)
    """How late the good clients' loop called a timer, each 10 ms: the part of their times that is not the gateway's."""
    stolen: float = 0.0
    """Share of the time that the machine's host took from a core that the run uses: the largest of any core."""
    origin_per_s: list[float] = field(default_factory=list)
    """Requests at the good origin, per second."""
    origin_late_s: list[float] = field(default_factory=list)
    """How late the good origin's loop called a timer, each 10 ms: part of all times but those of hits, and not the
    gateway's."""


@dataclass(slots=True)
class Result:
    """The result of a run."""

    plan: Plan
    alone: Phase
    beside: Phase
    got: dict[str, dict[str, int]]
    """Outcomes of each kind of abusive client, or of each caller of a hostile origin."""


def run(plan: Plan, folder: Path) -> Result:
    """One run; configuration and logs go into `folder`.  Raises BenchError if a process does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    gateway, tls, admin, origin, count, s2, *others = _free_ports(6 + len(plan.origins))
    hostile_ports = dict(zip(plan.origins, others, strict=True))
    ports = Ports(gateway, tls, origin, count, s2, {} if plan.kinds else hostile_ports)
    config = folder / "gateway.toml"
    certificate = local_certificate(folder / "tls", time.time())
    listener = gateway_tls(ports.tls, Certificate(certificate.certificate, certificate.key))
    config.write_text(_config(ports, admin) + listener, encoding="utf-8")
    command = (sys.executable, "-m", "gateway", "serve", "--config", str(config))
    cores = Cores.of_this_machine() if plan.is_pinned else None
    server, load = (cores.server, cores.load) if cores else (None, None)
    used = (cores.server, cores.load) if cores else tuple(os.sched_getaffinity(0))
    measured = _REALTIME if plan.is_realtime else os.SCHED_OTHER
    with (
        pinned(load) if load is not None else nullcontext(),
        _child("origin", {"port": origin, "count_port": count, "s2_port": s2}, folder, load, measured, origin),
        _process("gateway", command, folder, server, measured, gateway) as pid,
        _scheduled(measured),
    ):
        return uvloop.run(_phases(plan, folder, ports, pid, load, used))


async def _phases(plan: Plan, folder: Path, ports: Ports, pid: int, core: int | None, used: Sequence[int]) -> Result:
    good = Good(ports.gateway, ports.origin, random.Random(2).random)
    each = max(2, plan.good // 5)
    await good.prepare(each)
    tasks = [asyncio.ensure_future(client) for client in good.clients(each)]
    try:
        alone = await _phase(plan, good, ports, pid, used)
        with _abuse(plan, folder, ports, core) as log:
            beside = await _phase(plan, good, ports, pid, used)
            await _all_struck(log)
        if plan.is_alone_again:
            alone = joined(alone, await _phase(plan, good, ports, pid, used))
    finally:
        for task in tasks:
            task.cancel()
        failed = [one for one in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(one, Exception)]
    if failed:
        raise failed[0]
    return Result(plan, alone, beside, _said(log))


async def _all_struck(log: Path) -> None:
    """Wait, for `PATIENCE_S` at most, until each kind has struck: in a short run on a busy machine one may be late."""
    for _ in range(int(PATIENCE_S / _LOOK_S)):
        if _has_said(log, abusers.ALL_STRUCK):
            return
        await asyncio.sleep(_LOOK_S)


@contextmanager
def _abuse(plan: Plan, folder: Path, ports: Ports, core: int | None) -> Iterator[Path]:
    """Run the abusive clients, or the hostile origins and their callers, during the block; their outcomes are in the
    file after it."""
    # Beside the measured clients, abusive ones run when those do not need the core.
    policy = os.SCHED_IDLE if plan.is_pinned and not plan.is_realtime else os.SCHED_OTHER
    if plan.kinds:
        struck = {"gateway": ports.gateway, "tls": ports.tls, "origin": ports.origin, "s2": ports.s2}
        work: dict[str, Any] = {"ports": struck, "kinds": plan.kinds, "count": plan.abusive, "flood": plan.flood}
        with _child("abusers", work, folder, core, policy):
            yield folder / "abusers.log"
        return
    listening = {kind: port for kind, port in ports.hostile.items() if kind != hostile.REFUSES}
    work = {"port": ports.gateway, "kinds": list(ports.hostile), "count": plan.abusive}
    with (
        _child("hostile", {"ports": listening}, folder, core, policy, next(iter(listening.values()), 0)),
        _child("callers", work, folder, core, policy),
    ):
        yield folder / "callers.log"


async def _phase(plan: Plan, good: Good, ports: Ports, pid: int, cores: Sequence[int]) -> Phase:
    """Let everything run for a while, then measure for `plan.seconds`; refusals count from the start.

    A short phase on a busy machine lasts until requests of every kind have been answered, for `PATIENCE_S` at most.
    """
    phase = Phase()
    good.tally = phase.tally
    _forget_peak(pid)
    await asyncio.sleep(plan.warm_s)
    phase.tally.forget()
    before, stolen = (busy_s([pid]), _waited_s(pid), _waited_s(os.getpid())), _stolen_s(cores)
    began = time.monotonic()
    async with _beside(_look(ports.count, phase)), _beside(note_delays(phase.clients_late_s)):
        await asyncio.sleep(plan.seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await phase.tally.answered.wait()
    phase.seconds = passed = time.monotonic() - began
    after = busy_s([pid]), _waited_s(pid), _waited_s(os.getpid())
    phase.busy, phase.waited, phase.clients_waited = ((b - a) / passed for a, b in zip(before, after, strict=True))
    phase.stolen = max((b - a) / passed for a, b in zip(stolen, _stolen_s(cores), strict=True))
    phase.peak_bytes = _peak_bytes(pid)
    good.tally = Tally()
    return phase


def joined(before: Phase, after: Phase) -> Phase:
    """Two phases as one."""
    seconds = before.seconds + after.seconds
    tally = Tally()
    for phase in (before, after):
        for kind, took in phase.tally.seconds.items():
            tally.seconds[kind] += took
        tally.refused += phase.tally.refused
        tally.wrong += phase.tally.wrong
        tally.examples += phase.tally.examples
    return Phase(
        tally=tally,
        seconds=seconds,
        # The peak after the abusive clients would be theirs.
        peak_bytes=before.peak_bytes,
        busy=(before.busy * before.seconds + after.busy * after.seconds) / seconds,
        waited=max(before.waited, after.waited),
        clients_waited=max(before.clients_waited, after.clients_waited),
        clients_late_s=before.clients_late_s + after.clients_late_s,
        stolen=max(before.stolen, after.stolen),
        origin_per_s=before.origin_per_s + after.origin_per_s,
        origin_late_s=before.origin_late_s + after.origin_late_s,
    )


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do the work until the block ends."""
    working = asyncio.ensure_future(work)
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _look(port: int, phase: Phase) -> None:
    """Record the number of the origin's requests, and how late its loop was, every second."""

    async def look() -> tuple[int, list[float]]:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            said = json.loads(await reader.read())
            return said["requests"], said["late_s"]
        finally:
            writer.close()

    (before, _), at = await look(), time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        (now, late_s), then = await look(), time.monotonic()
        phase.origin_per_s.append((now - before) / (then - at))
        phase.origin_late_s += late_s
        before, at = now, then


# -- processes


def _config(ports: Ports, admin: int) -> str:
    limits = {
        "cache_bytes": CACHE_BYTES,
        "memory_max_bytes": MEMORY_BYTES,
        "client_new_streams_per_s": NEW_STREAMS_PER_S,
        "client_refusals_per_s": REFUSALS_PER_S,
    }
    lines = [
        "[server]",
        f'listen = "127.0.0.1:{ports.gateway}"',
        f'admin = "127.0.0.1:{admin}"',
        "workers = 1",
        "[limits]",
    ]
    lines += [f"{name} = {value}" for name, value in limits.items()]
    lines += ["[[rate_limit]]", 'name = "each"', f"requests_per_s = {REQUESTS_PER_S}", f"burst = {4 * REQUESTS_PER_S}"]
    routes = [("good", "", ports.origin)]
    routes += [(f"hostile-{n}", hostile.prefix(kind), port) for n, (kind, port) in enumerate(ports.hostile.items())]
    for name, path, port in routes:
        lines += ["[[route]]", f'name = "{name}"', f'prefix = "{path or "/"}"']
        lines += [f'origin = "http://127.0.0.1:{port}{path}"']
    lines += ["[[route]]", 'name = "records"', 'prefix = "/v1/"', 'protocol = "s2"']
    lines += [f'origin = "http://127.0.0.1:{ports.s2}"']
    return "\n".join(lines) + "\n"


@contextmanager
def _child(
    role: str, arguments: dict[str, Any], folder: Path, core: int | None, policy: int, port: int = 0
) -> Iterator[int]:
    """Start a process of `loadtest.abuse.child`."""
    command = (sys.executable, "-m", "loadtest.abuse.child", role, json.dumps(arguments))
    with _process(role, command, folder, core, policy, port) as pid:
        yield pid


@contextmanager
def _process(
    name: str, command: Sequence[str], folder: Path, core: int | None, policy: int, port: int
) -> Iterator[int]:
    """A process until the end of the block; when it begins, the process accepts at `port`, or has printed something if
    that is 0.  Raises BenchError."""
    log = folder / f"{name}.log"
    with log.open("wb") as output, pinned(core) if core is not None else nullcontext():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        _schedule(process.pid, policy)
        deadline = time.monotonic() + _START_S
        while not (_accepts(port) if port else log.stat().st_size):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{name} does not start: {log.read_text()[-200:]}")
            time.sleep(0.02)
        yield process.pid
        if process.poll() is not None:
            raise BenchError(f"{name} has ended by itself: {log.read_text()[-200:]}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _scheduled(policy: int) -> Iterator[None]:
    """Give this process's main thread a policy during the block."""
    _schedule(0, policy)
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _schedule(pid: int, policy: int) -> None:
    """Give the main thread of a process, or of this one, a scheduling policy (sched(7)).  Raises BenchError."""
    try:
        os.sched_setscheduler(pid, policy, os.sched_param(_PRIORITY if policy == _REALTIME else 0))
    except PermissionError:
        raise BenchError("real-time priorities need CAP_SYS_NICE") from None


def _free_ports(count: int) -> list[int]:
    """Free ports below the range from which the kernel assigns ports to the thousands of connections of a run."""
    lowest = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    candidates = random.sample(range(lowest // 2, lowest), 4 * count)
    free = [port for port in candidates if _is_free(port)]
    if len(free) < count:
        raise BenchError(f"no {count} free ports below {lowest}")
    return free[:count]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _said(log: Path) -> dict[str, dict[str, int]]:
    """The output of a child after it ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise BenchError(f"{log.name} ends without figures: {lines[-1:]}")
    said: dict[str, dict[str, int]] = json.loads(lines[-1])
    return said


def _has_said(log: Path, line: str) -> bool:
    """Whether the output of a child has this line."""
    return line in log.read_text(encoding="utf-8", errors="replace")


def _waited_s(pid: int) -> float:
    """Seconds that the main thread of a process has been ready without a core (schedstat, in sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def _stolen_s(cores: Sequence[int]) -> list[float]:
    return [core_time(core).stolen_s for core in cores]


def _peak_bytes(pid: int) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1_024 if found else 0


def _forget_peak(pid: int) -> None:
    """Let the peak begin anew from what is resident now (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
