"""The site of the measurements: an in-memory origin and gateways as in production, on loopback.

The gateways have one core, the origin and the readers the other.  Each gateway has a route for each way in which live
reads are timed, below a prefix of its own, and all routes have the same origin.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.children import Child, free_ports, running
from loadtest.bench.fetch import fetch_raw
from loadtest.bench.machine import BenchError, Cores, busy_s, memory
from loadtest.bench.production import ALL

STEADY: Final = "/steady"
"""Live reads last, and are silent without events."""
SHORT: Final = "/short"
"""Live reads end after some two seconds."""
SHORT_S: Final = 2.0
BEAT: Final = "/beat"
"""Each live read gets two heartbeats a second."""
BEAT_S: Final = 0.5
CHECKED: Final = "/checked"
"""Live reads end after some twenty seconds."""
CHECKED_S: Final = 20.0
CHECKED_BEAT_S: Final = 15.0
MOST_CONNECTIONS: Final = 16_500
_TIMES: Final = {
    STEADY: (3_600.0, 300.0),
    SHORT: (SHORT_S, 300.0),
    BEAT: (3_600.0, BEAT_S),
    CHECKED: (CHECKED_S, CHECKED_BEAT_S),
}
"""Lifetime and heartbeat of each route, in seconds."""
_PAGE_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway of the site."""

    child: Child
    admin: int

    @property
    def port(self) -> int:
        """The port for clients."""
        return self.child.port

    @property
    def busy_s(self) -> float:
        """Its processor time so far."""
        return busy_s(self.child.pids)

    @property
    def bytes(self) -> int:
        """Its memory in user space."""
        return memory(self.child.pids).pss_bytes

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        for line in fetch_raw(self.admin, "/metrics").decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise BenchError(f"the gateway has no metric {name}")


@dataclass(frozen=True, slots=True)
class Site:
    """An origin, and gateways in front of it: one alone, or the members of a fleet."""

    origin: int
    gateways: Sequence[Gateway]


@contextmanager
def running_site(gateways: int, cores: Cores, folder: Path) -> Iterator[Site]:
    """Start a site; several gateways are a fleet."""
    folder.mkdir()
    ports = free_ports(3 * gateways + 1)
    origin, places = ports[0], [ports[index : index + 3] for index in range(1, len(ports), 3)]
    argv: list[str | Path] = [sys.executable, "-m", "gateway", "origin", "--listen", f"127.0.0.1:{origin}"]
    with ExitStack() as stack:
        starting = running("origin", [*argv, "--sse-lifetime", "3600"], origin, cores.origin, folder / "origin.log")
        stack.enter_context(starting)
        started = []
        for number, (listen, admin, _) in enumerate(places):
            home = folder / str(number)
            home.mkdir()
            file = home / "gateway.toml"
            file.write_text(_config(number, places, origin, home), encoding="utf-8")
            serve: list[str | Path] = [sys.executable, "-m", "gateway", "serve", "--config", file]
            child = stack.enter_context(running("gateway", serve, listen, cores.server, home / "log"))
            started.append(Gateway(child, admin))
        _wait_until_ready(started)
        yield Site(origin, started)


def _wait_until_ready(gateways: Sequence[Gateway]) -> None:
    """Wait until each member reaches the others, and has given them back all of their streams."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        answers = [fetch_raw(one.admin, "/readyz?verbose").decode("latin-1") for one in gateways]
        if all(answer.startswith("HTTP/1.1 200") and "%" not in answer for answer in answers):
            return
        time.sleep(0.1)
    raise BenchError(f"the members do not reach each other: {answers[-1].splitlines()[-1]}")


def _config(number: int, places: Sequence[Sequence[int]], origin: int, home: Path) -> str:
    listen, admin, hop = places[number]
    routes = "".join(
        f"""
[[route]]
name = "{prefix.strip("/")}"
prefix = "{prefix}"
strip_prefix = false
origin = "http://127.0.0.1:{origin}"
credential_headers = ["authorization"]
sse_lifetime_s = {lifetime_s}
heartbeat_s = {heartbeat_s}
live_linger_s = 1
{ALL.more.route}"""
        for prefix, (lifetime_s, heartbeat_s) in _TIMES.items()
    )
    fleet = ""
    if len(places) > 1:
        members = ", ".join(
            f'{{ name = "m{index}", url = "http://127.0.0.1:{place[2]}" }}' for index, place in enumerate(places)
        )
        fleet = f"""
[fleet]
name = "m{number}"
listen = "127.0.0.1:{hop}"
members = [{members}]
secret = "the members of a measurement on one machine"
"""
    return f"""\
[server]
listen = "127.0.0.1:{listen}"
admin = "127.0.0.1:{admin}"
node_name = "m{number}"
shutdown_timeout_s = 1
workers = 1
{ALL.more.server}
[limits]
max_connections = {MOST_CONNECTIONS}
client_connections = {MOST_CONNECTIONS}
client_live_reads = {MOST_CONNECTIONS}
followed_streams = 2000
client_followed_streams = 2000
client_new_streams_per_s = 0
{fleet}{routes}{ALL.more.tables.format(folder=home)}"""


def kernel_bytes() -> int:
    """Memory of the kernel's objects (`Slab` of /proc/meminfo) and of TCP's buffers (`mem` of /proc/net/sockstat)."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    sockstat = dict(line.split(":", 1) for line in Path("/proc/net/sockstat").read_text(encoding="ascii").splitlines())
    tcp = sockstat["TCP"].split()
    pages = int(tcp[tcp.index("mem") + 1])
    return int(meminfo["Slab"].split()[0]) * 1024 + pages * _PAGE_BYTES
