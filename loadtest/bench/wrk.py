"""wrk: its call, and its report as figures."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtest.bench.machine import BenchError, pinned

SCRIPTS: Final = Path(__file__).parent / "scripts"

_PATIENCE_S: Final = 60.0
_HEADERS: Final = {"User-Agent": "bench", "Accept": "*/*"}
_TIME_UNITS_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
_SIZE_UNITS: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


@dataclass(frozen=True, slots=True)
class WrkReport:
    """The result of one run."""

    requests_per_s: float
    bytes_per_s: float
    p50_ms: float
    p99_ms: float
    requests: int
    errors: int
    """Connections that failed, timed out, or were answered with 4xx or 5xx."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests, their server, and the load."""

    path: str
    scheme: str = "http"
    connections: int = 50
    headers: Mapping[str, str] = field(default_factory=dict)
    script: str | None = None
    arguments: Sequence[str] = ()


def run(wrk: Path, port: int, load: Load, seconds: float, core: int) -> WrkReport:
    """Load a server for that long.  Raises BenchError if any request failed, because a failed request is a fast one."""
    command = [
        str(wrk),
        "-t1",
        f"-c{load.connections}",
        f"-d{max(1, round(seconds))}s",
        "--timeout",
        "20s",
        "--latency",
    ]
    for name, value in {**_HEADERS, **load.headers}.items():
        command += ["-H", f"{name}: {value}"]
    if load.script is not None:
        command += ["-s", str(SCRIPTS / load.script)]
    command += [f"{load.scheme}://127.0.0.1:{port}{load.path}", "--", *load.arguments]
    with pinned(core):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"wrk did not end within {_PATIENCE_S:g} s after its time") from error
    if done.returncode:
        raise BenchError(f"wrk failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    report = parse(done.stdout)
    if report.errors or not report.requests:
        raise BenchError(f"wrk saw {report.errors} errors in {report.requests} requests to port {port}{load.path}")
    return report


def parse(text: str) -> WrkReport:
    """wrk's report, made with --latency, as figures.  Raises BenchError if it is unreadable."""
    rate = re.search(r"^Requests/sec:\s+([\d.]+)", text, re.MULTILINE)
    size = re.search(r"^Transfer/sec:\s+([\d.]+)(B|KB|MB|GB)", text, re.MULTILINE)
    count = re.search(r"^\s*(\d+) requests in ", text, re.MULTILINE)
    if rate is None or size is None or count is None:
        raise BenchError("wrk's report cannot be read")
    refused = re.search(r"^\s*Non-2xx or 3xx responses: (\d+)", text, re.MULTILINE)
    broken = re.search(r"^\s*Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text, re.MULTILINE)
    return WrkReport(
        requests_per_s=float(rate[1]),
        bytes_per_s=float(size[1]) * _SIZE_UNITS[size[2]],
        p50_ms=_percentile(text, 50),
        p99_ms=_percentile(text, 99),
        requests=int(count[1]),
        errors=(int(refused[1]) if refused else 0) + (sum(map(int, broken.groups())) if broken else 0),
    )


def _percentile(text: str, share: int) -> float:
    found = re.search(rf"^\s*{share}%\s+([\d.]+)(us|ms|s|m)\s*$", text, re.MULTILINE)
    if found is None:
        raise BenchError("wrk's report has no latencies")
    return float(found[1]) * _TIME_UNITS_MS[found[2]]
