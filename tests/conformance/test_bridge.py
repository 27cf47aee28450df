"""S2 streams presented as Durable Streams pass the conformance suite, but for what S2 cannot keep.

A route has one content type and the suite's tests have several.  So there are three routes: most tests are of text and
pass on its route, those that do not have to pass on that of JSON, and the rest on that of bytes.
`docs/guides/s2-bridge.md` has the list of what is left out, with these reasons.
"""

from __future__ import annotations

import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conformance.suite import LONG_POLL_TIMEOUT_S, NONE, Results, Run, failures, run_conformance
from tests.served import forked_gateway, served

BASIN = "conformance"
ROUTES = {
    "text": 'records = "bytes"\ncontent_type = "text/plain"',
    "json": 'records = "json"',
    "binary": 'records = "bytes"',
}
"""What each route is configured by, in the order in which tests are tried on them."""

LEFT_OUT = {
    "Fork": "S2 has no forks: they are answered 501.",
    "TTL": "S2 has a retention for records and none for streams: lifetimes are answered 501.",
    "Expires-At": "The same.",
    "[Pp]roducer": "Idempotent producers are answered 501.",
    "close-with-different-body-dedup": "The same.",
    "[Ss]eq (ordering|values)": "`Stream-Seq` is answered 501.",
    "with seq(?!uence-)": "The same.",
    "sequence (ordering|numbers)": "The same.",
    "headers with different casing": "The same: it sends `Stream-Seq`.",
    "application/x-protobuf|image/png": "The type of a stream is the route's; one binary type stands for all.",
}
"""Patterns of the names of tests that are left out, and why."""

SELECTED = 170
"""The number of tests that are not."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """The results of each route, with the tests that have not passed on the one before."""
    config = tmp_path_factory.mktemp("bridge") / "gateway.toml"
    with served(forked_gateway("origin", "--protocol", "s2", "--listen", "127.0.0.1:0"), "origin") as origin:
        _create_basin(origin["origin"])
        _write(config, origin["origin"])
        with served(forked_gateway("serve", "--config", str(config)), "gateway", "admin") as urls:
            first, *others = (f"{urls['gateway']}/{route}" for route in ROUTES)
            selected = Run(first, f"^(?!.*({'|'.join(LEFT_OUT)}))")
            found = run_conformance(selected, *(Run(url, NONE, and_failed=True) for url in others))
            return dict(zip(ROUTES, found, strict=True))


def _create_basin(origin: str) -> None:
    request = urllib.request.Request(
        f"{origin}/v1/basins",
        data=b'{"basin":"%s"}' % BASIN.encode(),
        method="POST",
        headers={"Authorization": "Bearer token", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 201


def _write(config: Path, origin: str) -> None:
    routes = [
        f"""
[[route]]
name = "{name}"
prefix = "/{name}"
strip_prefix = true
origin = "{origin}"
protocol = "s2"
origin_http = "2"
present = "durable-streams"
long_poll_timeout_s = {LONG_POLL_TIMEOUT_S}

[route.bridge]
basin = "{BASIN}"
{bridge}

[route.cors]
allow_origins = ["*"]
"""
        for name, bridge in ROUTES.items()
    ]
    config.write_text('[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n' + "".join(routes))


def test_every_test_that_makes_sense_passes_on_the_route_of_its_type(results: dict[str, Results]) -> None:
    assert failures(results["binary"]) == []
    assert len(results["text"]) == SELECTED
    for route, other in pairwise(ROUTES):
        assert results[other].keys() == set(failures(results[route])) != set()


def test_the_guide_says_what_is_left_out() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "s2-bridge.md").read_text(encoding="utf-8")
    for pattern, reason in LEFT_OUT.items():
        if reason.startswith("The same"):
            continue
        assert reason in " ".join(page.split()), pattern
