"""A supervisor and its workers, as an operator starts them and sees them: by the command line, signals and the admin
port."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from gateway.config.gateway import GatewayConfig
from tests.commands.warm import altered_command
from tests.fast_clock import CommonClock
from tests.scenarios.wire import Answer, Dropped, Wire
from tests.waiting import eventually, pause
from tests.workers.clock import SharedClock
from tests.workers.program import CLOCK, MUTANT
from tests.workers.toml import as_toml

ROOT: Final = Path(__file__).parents[2]
_READY_S: Final = 60.0
_EXIT_S: Final = 30.0
_UPGRADE_S: Final = 120.0
"""The next version loads the program, which takes a busy machine more than half a minute.  The supervisor waits as
long."""
_ATTEMPTS: Final = 40
_AGAIN_S: Final = 0.05
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)")
_LEFT: Final = {
    "durable_gateway_followed_streams": "topics",
    "durable_gateway_flights": "flights",
    "durable_gateway_connections": "clients",
}
"""The gauges that are 0 when no client is left, and what they count."""


class GatewayProcess:
    """`durable-gateway serve`.  `stop` is owed."""

    def __init__(self, process: asyncio.subprocess.Process, workers: int, folder: tempfile.TemporaryDirectory[str]):
        self._process = process
        self.workers = workers
        self._folder = folder
        self.said_at_end = ""
        self.killed: list[int] = []
        """The workers that were ended by `kill_worker`."""
        self.urls: dict[str, list[str]] = {}
        self.pid = 0
        """The supervisor's."""
        self._has_ended = False

    # -- the start

    @classmethod
    async def start(
        cls,
        config: GatewayConfig,
        workers: int,
        *,
        clock: CommonClock | SharedClock | None = None,
        mutant: str = "",
        is_cold: bool = False,
    ) -> GatewayProcess:
        """Start it with a configuration file, and wait until it is ready.

        It is forked from a process that has loaded the program, unless `is_cold`.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DURABLE_GATEWAY_")}
        environment["PYTHONPATH"] = str(ROOT)
        match clock:
            case CommonClock():
                environment[CLOCK] = f"{clock.speed} {clock.began}"
            case SharedClock():
                environment[CLOCK] = clock.path
        if mutant:
            environment[MUTANT] = mutant
        folder = tempfile.TemporaryDirectory(prefix="workers-")
        _write(folder.name, config)
        command = ["serve", "--config", f"{folder.name}/gateway.toml"]
        command += ["--workers", str(workers)]
        errors = os.open(f"{folder.name}/stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            process = await asyncio.create_subprocess_exec(
                *(_cold(command) if is_cold else altered_command(command)),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        finally:
            os.close(errors)
        made = cls(process, workers, folder)
        try:
            await made._ready({"gateway", "admin"})
        except BaseException:
            await made._end()
            raise
        return made

    async def _ready(self, names: set[str]) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(_READY_S):
            while not self.urls.keys() >= names:
                line = await self._process.stdout.readline()
                if not line:
                    raise AssertionError(f"not ready: {self.said()}")
                match line.decode().split():
                    case ["PID", pid]:
                        self.pid = int(pid)
                    case ["READY", name, url]:
                        self.urls.setdefault(name, []).append(url)

    @property
    def url(self) -> str:
        return self.urls["gateway"][0]

    @property
    def admin_url(self) -> str:
        return self.urls["admin"][0]

    def said(self) -> str:
        """Everything that was written to stderr."""
        return Path(self._folder.name, "stderr").read_text(errors="replace")

    # -- its workers

    def worker_pids(self) -> list[int]:
        """The processes that the supervisor has forked, in the order of their pids."""
        return children(self.pid)

    def kill_worker(self, rng: Random) -> int | None:
        """End a worker by SIGKILL; returns its pid, or None if there is none."""
        pids = self.worker_pids()
        if not pids:
            return None
        pid = rng.choice(pids)
        self.kill(pid)
        return pid

    def kill(self, pid: int) -> None:
        """End this worker by SIGKILL."""
        self.killed.append(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def workers_of(self, *ports: int) -> dict[int, int]:
        """The workers that serve these clients' connections, all of which have had answers."""
        found: dict[int, int] = {}

        def are_found() -> bool:
            found.update(self.worker_of_ports())
            return found.keys() >= {*ports}

        await eventually(are_found, state=self.said)
        return {port: found[port] for port in ports}

    def worker_at(self, port: int) -> int | None:
        """The worker that has the connection from this port of loopback; None if none has yet."""
        return self.worker_of_ports().get(port)

    def worker_of_ports(self) -> dict[int, int]:
        """The workers that have clients' connections, by the clients' ports.

        A connection that has had no answer yet may still be passed to another worker.  While it is passed, two workers
        have it for a moment, and this is not said of either.
        """
        holders = [(link, pid) for pid in self.worker_pids() for link in _descriptors(pid)]
        count = Counter(link for link, _ in holders)
        held = {link: pid for link, pid in holders if count[link] == 1}
        found = {}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if (pid := held.get(f"socket:[{fields[9]}]")) is not None:
                found[int(fields[2].rpartition(":")[2], 16)] = pid
        return found

    async def upgrade(self) -> None:
        """Have the next version take over, as SIGUSR2 does, and wait until this one has ended."""
        old = self.pid
        os.kill(old, signal.SIGUSR2)
        await eventually(lambda: not runs(old), within_s=_UPGRADE_S, look_s=_AGAIN_S, state=self.said)
        # The process that has started the version before, and that version's last worker, end a moment later.
        await eventually(lambda: len(self._supervisors()) == 1, look_s=_AGAIN_S, state=self._supervisors)
        (self.pid,) = self._supervisors()

    def _supervisors(self) -> list[int]:
        """The processes with this command line that no other one of them has forked."""
        ours = {pid for pid in _all_pids() if self._folder.name in _file(pid, "cmdline")}
        return [pid for pid in ours if _parent(pid) not in ours]

    # -- the admin port

    async def admin(self, target: str, body: Mapping[str, Any] | None = None) -> Answer:
        """A GET of the admin port, or a POST with a body.  Raises OSError or Dropped."""
        wire = await Wire.open(self.admin_url)
        try:
            headers = {"Host": "localhost"}
            if body is None:
                await wire.ask(target, headers)
            else:
                headers["Content-Type"] = "application/json"
                await wire.ask(target, headers, "POST", json.dumps(body).encode())
            return await wire.answer()
        finally:
            await wire.closed()

    async def post(self, target: str, body: Mapping[str, Any]) -> Answer:
        """A POST that has to be answered 2xx.  It may be done twice: a worker that is killed leaves it unanswered."""
        for _ in range(_ATTEMPTS):
            try:
                answer = await self.admin(target, body)
            except (OSError, Dropped):
                await pause(_AGAIN_S)
                continue
            assert answer.status in (200, 202), (target, answer.status, answer.body)
            return answer
        raise AssertionError(f"{target} is not answered: {self.said()}")

    async def drain(self, within_s: float) -> None:
        await self.post("/api/drain", {"within_s": within_s})

    async def undo_drain(self) -> None:
        await self.post("/api/drain", {"undo": True})

    def write(self, config: GatewayConfig | str) -> None:
        """Change the configuration file, which no process reads before it is told."""
        if isinstance(config, str):
            Path(self._folder.name, "gateway.toml").write_text(config)
        else:
            _write(self._folder.name, config)

    async def reload(self, config: GatewayConfig) -> None:
        self.write(config)
        await self.post("/api/reload", {})

    async def purge(self, stream: str, *, is_soft: bool) -> None:
        """Purge a path by the admin port."""
        await self.post("/api/purge", {"stream": stream, "soft": is_soft})

    async def revoke(self, principal: str) -> int:
        """Revoke a principal by the admin port.  The number of live reads that this ends."""
        answer = await self.post("/api/revoke", {"subject": "principal", "name": principal})
        ended: int = json.loads(answer.body)["live_reads"]
        return ended

    async def exposition(self) -> str:
        """`/metrics`."""
        return (await self.admin("/metrics")).body.decode()

    async def figures(self) -> Counter[str]:
        """The metrics, summed over their labels."""
        return summed(await self.exposition())

    async def is_well(self) -> bool:
        """Whether all workers serve, and none waits before it asks an origin again."""
        try:
            if (await self.admin("/readyz")).status != 200:
                return False
            origins = json.loads((await self.admin("/api/origins")).body)["origins"]
        except (OSError, Dropped):
            return False
        pids = self.worker_pids()
        is_whole = self.workers == 1 or (len(pids) == self.workers and not set(pids) & set(self.killed))
        return is_whole and all(origin["retry_in_s"] is None for origin in origins)

    async def left_over(self) -> list[str]:
        exposition = await self.exposition()
        found = summed(exposition)
        found["busy"] = sum(
            int(float(value))
            for name, labels, value in samples(exposition)
            if name == "durable_gateway_upstream_connections" and 'state="busy"' in labels
        )
        names = {**_LEFT, "busy": "connections in use at the origin"}
        return [f"{found[name]} {what}" for name, what in names.items() if found[name]]

    # -- the end

    async def stop(self) -> str:
        """End it in order, as SIGTERM does.  Returns its metrics just before.  AssertionError if it fails."""
        exposition = await self.exposition()
        is_first = self._process.returncode is None
        os.kill(self.pid, signal.SIGTERM)
        status = await self._end()
        assert status == 0 or not is_first, f"exit status {status}: {self.said_at_end}"
        assert "Traceback" not in self.said_at_end, self.said_at_end
        return exposition

    async def ended(self) -> int:
        """Wait until it has ended by itself; its exit status."""
        return await self._end()

    async def kill_all(self) -> None:
        """End it by SIGKILL, unless it has ended."""
        if runs(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        if not self._has_ended:
            await self._end()

    async def _end(self) -> int:
        try:
            async with asyncio.timeout(_EXIT_S):
                status = await self._process.wait()
            # A version that has taken over is no child of this process.
            await eventually(lambda: not runs(self.pid), within_s=_EXIT_S, look_s=_AGAIN_S)
        except (TimeoutError, AssertionError):
            os.killpg(self.pid or self._process.pid, signal.SIGKILL)
            status = await self._process.wait()
        self.said_at_end, self._has_ended = self.said(), True
        self._folder.cleanup()
        return status


def _cold(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "tests.workers.program", *arguments]


def _write(folder: str, config: GatewayConfig) -> None:
    Path(folder, "gateway.toml").write_text(as_toml(config))


def children(pid: int) -> list[int]:
    """The processes that this one has forked and that run still."""
    return sorted(one for one in map(int, _file(pid, f"task/{pid}/children").split()) if runs(one))


def runs(pid: int) -> bool:
    """Whether a process has not ended."""
    return _file(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def _parent(pid: int) -> int:
    fields = _file(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _descriptors(pid: int) -> set[str]:
    """What the descriptors of a process are open on; nothing if the process is gone."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(one.readlink()))
    return found


def _file(pid: int, name: str) -> str:
    """A file of /proc; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def samples(exposition: str) -> list[tuple[str, str, str]]:
    """Name, labels and value of each sample."""
    found = (_SAMPLE.match(line) for line in exposition.splitlines())
    return [(one[1], one[2] or "", one[3]) for one in found if one is not None]


def summed(exposition: str) -> Counter[str]:
    """The samples of each name, summed over their labels."""
    sums: Counter[str] = Counter()
    for name, _, value in samples(exposition):
        if value not in ("NaN", "+Inf", "-Inf"):
            sums[name] += int(float(value))
    return sums
