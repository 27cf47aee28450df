from __future__ import annotations

import pytest

from loadtest.bench.h2load import H2Report, parse
from loadtest.bench.machine import BenchError

REPORT = """\
starting benchmark...
spawning thread #0: 10 total client(s). Timing-based test with 0s of warm-up time and 2s of main duration for measurements.
TLS Protocol: TLSv1.3
Cipher: TLS_AES_256_GCM_SHA384
Application protocol: h2

finished in 2.00s, 81208.50 req/s, 17.12MB/s
requests: 162417 total, 162517 started, 162417 done, 162417 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 162417 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 34.24MB (35905357) total, 9.59MB (10054400) headers (space savings 49.49%), 21.34MB (22377128) data
"""  # noqa: E501


def test_a_report_is_read() -> None:
    assert parse(REPORT) == H2Report(81_208.5, 162_417, 0)


def test_a_report_without_tls_is_read() -> None:
    assert parse(REPORT.replace("protocol: h2", "protocol: h2c")) == H2Report(81_208.5, 162_417, 0)


def test_whatever_did_not_succeed_is_an_error() -> None:
    assert parse(REPORT.replace("162417 succeeded, 0 failed", "162400 succeeded, 17 failed")).errors == 17


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (REPORT.replace("protocol: h2", "protocol: http/1.1"), "not of HTTP/2"),
        (REPORT.replace("finished in", "ended after"), "cannot be read"),
        (REPORT.replace("succeeded", "well"), "cannot be read"),
        ("", "not of HTTP/2"),
    ],
)
def test_a_report_that_lacks_something_is_none(text: str, why: str) -> None:
    with pytest.raises(BenchError, match=why):
        parse(text)
