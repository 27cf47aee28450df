"""Every server passes the protocol's conformance suite; the gateway breaks nothing and repairs two failures."""

import pytest

from tests.conformance.suite import MENDED, TESTS, Found, failures
from tests.effort import some

ON_THEIR_OWN = some(["gateway before origin"], ["gateway before origin", "origin"])
"""Of these every test passes.  The short form tries the origin through the gateway alone."""


@pytest.mark.parametrize("server", ON_THEIR_OWN)
def test_every_test_passes(found: Found, server: str) -> None:
    results = found[server]
    assert failures(results) == []
    assert len(results) == TESTS


def test_the_gateway_before_the_reference_server_passes_every_test_that_the_server_passes(found: Found) -> None:
    through = found["gateway before reference server"]
    assert len(through) == TESTS
    failed = set(failures(through))
    assert not failed & MENDED
    # Of the server alone, only these are in question.
    assert found["reference server"] == dict.fromkeys(failed | MENDED, False)


@pytest.mark.parametrize("http", ["http/1.1", "h2"])
def test_the_gateway_passes_over_tls(request: pytest.FixtureRequest, found: Found, http: str) -> None:
    results = found[f"gateway over TLS, {http}"]
    is_short = request.config.getoption("--transports") == "some"
    assert failures(results) == []
    assert (20 if is_short else TESTS) <= len(results) <= TESTS
