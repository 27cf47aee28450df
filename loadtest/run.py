"""One short mixed run of locust against `durable-gateway dev`, started and stopped here, on free ports.

It writes to `build/loadtest/` locust's report (`report.html`, `stats.json`, `locust.log`), the origin's counters
(`origin.json`), the gateway's metrics (`metrics.txt`) and its log (`gateway.log`).

Exit statuses: 0 all readers saw the right messages; 1 a gap, a repeat, a stale answer, an error, or a kind of user
without requests; 2 the run failed to start or to end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FREE_PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin-listen", "127.0.0.1:0")

# Short lives, so that the run sees many reconnects and timed-out polls.
SETTINGS = {
    "DURABLE_GATEWAY_ROUTE__DEFAULT__SSE_LIFETIME_S": "6",
    "DURABLE_GATEWAY_ROUTE__DEFAULT__LONG_POLL_TIMEOUT_S": "3",
}

WANTED = (
    ("POST", "append"), ("GET", "read-back"), ("GET", "catch-up"), ("GET", "revalidate"),
    ("GET", "long-poll"), ("GET", "sse"), ("deliver", "long-poll"), ("deliver", "sse"),
)  # fmt: skip
"""The requests that a meaningful run must have made."""

_START_S = 30.0
_STOP_S = 30.0
_LOCUST_GRACE_S = 60.0


class CouldNotRun(RuntimeError):
    """The run failed to start or to end; the text says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of locust's statistics: a kind of request."""

    kind: str
    name: str
    requests: int
    failures: int
    p50_ms: float
    p99_ms: float


def main() -> int:
    """Run locust, check the result, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make loadtest", description=__doc__.partition("\n")[0])
    parser.add_argument("--locust", default="locust", help="locust's program")
    parser.add_argument("--users", type=int, default=60)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "loadtest")
    options = parser.parse_args()
    try:
        return run(options.locust, options.users, options.streams, options.seconds, options.out)
    except CouldNotRun as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2


def run(locust: str, users: int, streams: int, seconds: int, out: Path) -> int:
    """One run; 0 when nothing was wrong, else 1.  Raises CouldNotRun."""
    program = shutil.which(locust)
    if program is None:
        raise CouldNotRun(f"there is no {locust}")
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "stats.json", "locust.log", "origin.json", "metrics.txt", "gateway.log"):
        (out / name).unlink(missing_ok=True)
    with gateway(out) as urls:
        status = load(Path(program).absolute(), users, streams, seconds, urls["gateway"], out)
        with urllib.request.urlopen(f"{urls['admin']}/metrics", timeout=10) as reply:
            (out / "metrics.txt").write_bytes(reply.read())
    lines = statistics(json.loads((out / "stats.json").read_text(encoding="utf-8")))
    origin = json.loads((out / "origin.json").read_text(encoding="utf-8"))
    wrong = judged(status, lines, origin["live_peak"], streams)
    show(lines, origin, streams, out)
    for text in wrong:
        print(f"WRONG {text}")
    return 1 if wrong else 0


@contextmanager
def gateway(out: Path) -> Iterator[dict[str, str]]:
    """Run `dev` until the block ends; its URLs by name.  CouldNotRun when it does not come up or leaves badly."""
    command = [sys.executable, "-m", "loadtest.counted", str(out / "origin.json"), "dev", *FREE_PORTS]
    with (out / "gateway.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(SETTINGS), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
        assert process.stdout is not None
        watchdog = threading.Timer(_START_S, process.kill)
        watchdog.start()
        try:
            urls: dict[str, str] = {}
            while not urls.keys() >= {"origin", "gateway", "admin"}:
                words = process.stdout.readline().decode().split()
                if not words:
                    raise CouldNotRun(f"the gateway did not start: {out / 'gateway.log'}")
                if words[0] == "READY":
                    urls[words[1]] = words[2]
            watchdog.cancel()
            # The lines to paste that `dev` prints; they are ignored here.
            drain = threading.Thread(target=process.stdout.read, daemon=True)
            drain.start()
            yield urls
        finally:
            watchdog.cancel()
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
        if status:
            raise CouldNotRun(f"the gateway left with {status}: {out / 'gateway.log'}")


def load(locust: Path, users: int, streams: int, seconds: int, url: str, out: Path) -> int:
    """Run locust; its exit status.  CouldNotRun when it cannot be started, hangs, or leaves no statistics."""
    command = [
        str(locust), "--locustfile", str(ROOT / "loadtest" / "locustfile.py"), "--host", url, "--headless",
        "--users", str(users), "--spawn-rate", str(max(1, users // 3)), "--run-time", f"{seconds}s",
        "--streams", str(streams), "--html", str(out / "report.html"), "--json-file", str(out / "stats"),
        "--only-summary", "--exit-code-on-error", "1",
    ]  # fmt: skip
    with (out / "locust.log").open("wb") as log:
        try:
            finished = subprocess.run(
                command,
                cwd=out,
                env=_environment({}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=seconds + _LOCUST_GRACE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CouldNotRun(f"locust: {error}") from error
    if not (out / "stats.json").exists():
        raise CouldNotRun(f"locust left with {finished.returncode} and no statistics: {out / 'locust.log'}")
    return finished.returncode


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's, without what configures gateways and locusts in it."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("DURABLE_GATEWAY_", "LOCUST_"))}
    return {**kept, **settings, "PYTHONPATH": str(ROOT)}


def statistics(stats: list[dict[str, Any]]) -> list[Line]:
    """Locust's statistics, from its JSON."""
    return [
        Line(
            entry["method"],
            entry["name"],
            entry["num_requests"],
            entry["num_failures"],
            percentile(entry["response_times"], 0.50),
            percentile(entry["response_times"], 0.99),
        )
        for entry in stats
    ]


def percentile(counts: Mapping[str, int], share: float) -> float:
    """The time, in ms, that `share` of the requests did not exceed; `counts` are of times as locust rounds them."""
    left = share * sum(counts.values())
    for time in sorted(counts, key=float):
        left -= counts[time]
        if left <= 0:
            return float(time)
    return 0.0


def judged(status: int, lines: list[Line], live_peak: int, streams: int) -> list[str]:
    """What is wrong with a run."""
    done = {(line.kind, line.name): line for line in lines}
    wrong = [f"{line.kind} {line.name}: {line.failures} failed" for line in lines if line.failures]
    wrong += [f"{kind} {name}: none" for kind, name in WANTED if (kind, name) not in done]
    if live_peak > streams:
        wrong.append(f"{live_peak} live requests at the origin for {streams} streams")
    if status and not wrong:
        wrong.append(f"locust left with {status}")
    return wrong


def show(lines: list[Line], origin: Mapping[str, Any], streams: int, out: Path) -> None:
    """The run in a few lines."""
    print(f"{'':28}{'count':>9}{'failed':>9}{'p50 ms':>9}{'p99 ms':>9}")
    for line in sorted(lines, key=lambda line: (line.kind, line.name)):
        name = f"{line.kind} {line.name}"
        print(f"{name:28}{line.requests:>9}{line.failures:>9}{line.p50_ms:>9.0f}{line.p99_ms:>9.0f}")
    asked = ", ".join(f"{count} {kind}" for kind, count in origin["requests"].items() if count)
    print(f"origin saw {asked}; at most {origin['live_peak']} live at once for {streams} streams")
    print(f"report: {out / 'report.html'}")


if __name__ == "__main__":
    sys.exit(main())
