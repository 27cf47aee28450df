"""The load test's run: what its statistics say, what it calls wrong, and that its origin can be counted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from loadtest.counted import as_json
from loadtest.run import FREE_PORTS, ROOT, WANTED, Line, judged, percentile, statistics


def lines(**failures: int) -> list[Line]:
    return [Line(kind, name, 10, failures.get(name, 0), 1.0, 2.0) for kind, name in WANTED]


def test_a_percentile_is_the_time_that_so_many_did_not_exceed() -> None:
    counts = {"3": 50, "20": 49, "100": 1}
    assert [percentile(counts, share) for share in (0.01, 0.5, 0.51, 0.99, 1.0)] == [3, 3, 20, 20, 100]
    assert percentile({}, 0.5) == 0


def test_statistics_are_taken_from_what_locust_writes() -> None:
    entry = {
        "method": "GET", "name": "sse", "num_requests": 3, "num_failures": 1, "response_times": {"5": 2, "7": 1},
    }  # fmt: skip
    assert statistics([entry]) == [Line("GET", "sse", 3, 1, 5.0, 7.0)]


def test_a_run_in_which_everything_was_done_and_nothing_failed_is_right() -> None:
    assert judged(0, lines(), live_peak=8, streams=8) == []


@pytest.mark.parametrize(
    ("status", "seen", "live_peak", "wrong"),
    [
        (1, lines(append=2), 8, ["POST append: 2 failed"]),
        (1, [*lines(), Line("verify", "sse: gap", 1, 1, 0, 0)], 8, ["verify sse: gap: 1 failed"]),
        (0, lines()[1:], 8, ["POST append: none"]),
        (0, lines(), 9, ["9 live requests at the origin for 8 streams"]),
        (2, lines(), 8, ["locust left with 2"]),
    ],
)
def test_what_went_wrong_is_named(status: int, seen: list[Line], live_peak: int, wrong: list[str]) -> None:
    assert judged(status, seen, live_peak, streams=8) == wrong


def test_counters_are_written_by_their_names() -> None:
    counters = Counters()
    counters.began(Kind.SSE)
    written = json.loads(json.dumps(as_json(counters)))
    assert (written["requests"]["sse"], written["live_peak"]) == (1, 1)


def test_the_counted_command_is_the_command_and_leaves_its_counters(tmp_path: Path) -> None:
    file = tmp_path / "origin.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtest.counted", str(file), "dev", *FREE_PORTS],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = [process.stdout.readline().split()[:2] for _ in range(3)]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert ready == [["READY", "origin"], ["READY", "gateway"], ["READY", "admin"]]
    assert process.returncode == 0
    assert json.loads(file.read_text())["live_peak"] == 0
