"""h2load: its call, and its report as figures."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.machine import BenchError, pinned

_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class H2Report:
    """The result of one run."""

    requests_per_s: float
    requests: int
    """Answered requests."""
    errors: int
    """Requests that failed, timed out, or were answered with 4xx or 5xx."""


def run(
    h2load: Path,
    port: int,
    path: str,
    seconds: float,
    core: int,
    *,
    connections: int = 10,
    streams: int = 10,
    headers: Mapping[str, str] | None = None,
    scheme: str = "https",
) -> H2Report:
    """Load a server over HTTP/2 for that long, with that many concurrent requests on each connection.

    Without TLS it speaks HTTP/2 with prior knowledge.

    Raises BenchError if any request failed, because a failed request is a fast one.
    """
    command = [str(h2load), "-D", str(max(1, round(seconds))), "-c", str(connections), "-m", str(streams)]
    for name, value in {"user-agent": "bench", **(headers or {})}.items():
        command += ["-H", f"{name.lower()}: {value}"]
    command += [f"{scheme}://127.0.0.1:{port}{path}"]
    with pinned(core):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"h2load did not end within {_PATIENCE_S:g} s after its time") from error
    if done.returncode:
        raise BenchError(f"h2load failed: {((done.stderr or done.stdout).strip().splitlines() or [''])[-1]}")
    report = parse(done.stdout)
    if report.errors or not report.requests:
        raise BenchError(f"h2load saw {report.errors} errors in {report.requests} requests to port {port}{path}")
    return report


def parse(text: str) -> H2Report:
    """h2load's report as figures.  Raises BenchError if it is unreadable or not of HTTP/2."""
    if not re.search(r"^Application protocol: h2c?\s*$", text, re.MULTILINE):
        raise BenchError("h2load's report is not of HTTP/2")
    rate = re.search(r"^finished in [^,]+, ([\d.]+) req/s", text, re.MULTILINE)
    counts = re.search(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text)
    if rate is None or counts is None:
        raise BenchError("h2load's report cannot be read")
    done, succeeded, *_ = map(int, counts.groups())
    return H2Report(float(rate[1]), done, done - succeeded)
