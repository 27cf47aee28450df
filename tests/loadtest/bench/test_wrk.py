from __future__ import annotations

import pytest

from loadtest.bench.machine import BenchError
from loadtest.bench.wrk import SCRIPTS, parse

REPORT = """\
Running 2s test @ http://127.0.0.1:8080/1k/a
  1 threads and 50 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   812.33us    1.21ms  31.05ms   92.10%
    Req/Sec    61.71k     4.40k   68.30k    75.00%
  Latency Distribution
     50%  569.00us
     75%    1.02ms
     90%    1.90ms
     99%    7.05ms
  122834 requests in 2.00s, 162.86MB read
Requests/sec:  61404.13
Transfer/sec:     81.41MB
"""


def test_a_report_is_read_with_its_units() -> None:
    report = parse(REPORT)
    assert report.requests_per_s == 61_404.13
    assert report.bytes_per_s == 81.41 * (1 << 20)
    assert report.p50_ms == pytest.approx(0.569)
    assert report.p99_ms == pytest.approx(7.05)
    assert report.requests == 122_834
    assert report.errors == 0


def test_failed_and_refused_requests_are_counted_together() -> None:
    text = REPORT.replace("Requests/sec", "  Socket errors: connect 1, read 2, write 3, timeout 4\nRequests/sec")
    text = text.replace("Requests/sec", "  Non-2xx or 3xx responses: 100\nRequests/sec")
    assert parse(text).errors == 110


@pytest.mark.parametrize("line", ["Requests/sec", "Transfer/sec", "requests in", "99%"])
def test_a_report_that_lacks_something_is_none(line: str) -> None:
    text = "\n".join(kept for kept in REPORT.splitlines() if line not in kept)
    with pytest.raises(BenchError, match="wrk's report"):
        parse(text)


def test_every_script_says_what_it_asks_for() -> None:
    for script in SCRIPTS.glob("*.lua"):
        assert script.read_text(encoding="utf-8").startswith("-- "), script
