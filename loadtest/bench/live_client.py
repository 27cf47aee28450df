"""The C clients of live readers (`clients/live.c`, `poll.c`, `join.c`): their calls, and their reports as figures.

Each is writer and readers in one process, so a delay is measured with one clock.  For the gateway it is also the
origin, and publishing writes to every follower; for nchan it publishes by POST.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any, Final

from loadtest.bench.children import Child
from loadtest.bench.figures import Sample
from loadtest.bench.machine import BenchError, pinned
from loadtest.bench.stage import Stage

NCHAN: Final = "nchan"

_PATIENCE_S: Final = 60.0

_numbers = itertools.count(1)


def arguments(
    stage: Stage, peer: str, server: Child | None, *, is_long_poll: bool = False, is_secure: bool = False
) -> list[str]:
    """Arguments for the server to read from, the way to publish, the measured process, and a new stream.

    Without a server the client reads from itself.
    """
    name = f"s{next(_numbers)}"
    live = str(stage.peers.live_port)
    if server is None:
        return ["--port", live, "--path", "/live/x", "--origin", live]
    processes = measured(stage, server)
    reading = ["--port", str(server.secure_port), "--tls"] if is_secure else ["--port", str(server.port)]
    if peer == NCHAN:
        path = f"/{'poll' if is_long_poll else 'sse'}/{name}"
        publishing = ["--post", str(server.port), "--post-path", f"/pub/{name}"]
        return [*reading, "--path", path, *publishing, *processes]
    return [*reading, "--path", f"/live/{name}", "--origin", live, *processes]


def measured(stage: Stage, server: Child) -> list[str]:
    """Arguments for the measured process and its core."""
    processes = [argument for pid in server.pids for argument in ("--pid", str(pid))]
    return [*processes, "--core", str(stage.cores.server)]


def run(stage: Stage, program: Path, argv: list[str]) -> dict[str, Any]:
    """A client's report.  Raises BenchError with its last line if it failed; it ends at the first error."""
    patience_s = _PATIENCE_S + stage.seconds
    with pinned(stage.cores.load):
        try:
            done = subprocess.run(
                [str(program), *argv], capture_output=True, text=True, timeout=patience_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{program.name} did not end after {patience_s:g} s") from error
    if done.returncode:
        raise BenchError(f"{program.name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def rate(report: dict[str, Any], operations: int) -> Sample:
    """Operations in a report's window, as a rate and with the server's processor time."""
    seconds, server_s, core_s = report["seconds"], report["server_s"], report["core_s"]
    if operations == 0:
        raise BenchError("not one operation was completed in the window")
    busy, foreign = server_s / seconds, max(0.0, core_s - server_s) / seconds
    return Sample(operations / seconds, busy, foreign, server_s / operations * 1e6)
