"""Every server passes the protocol's conformance suite; the gateway breaks nothing and repairs two failures."""

from collections.abc import Callable

import pytest

from tests.conformance.suite import TESTS, failures, named, run_conformance

Results = Callable[[str], dict[str, bool]]

MENDED = {
    "Caching and ETag should allow If-None-Match in CORS preflight responses",
    "SSE Mode JSON SSE catch-up pairs every data event with a control event",
    "SSE Mode base64 SSE catch-up pairs every data event with a control event",
}
"""Failures of the reference server that the gateway repairs, because it answers these requests itself."""


def test_the_in_memory_origin_passes_every_test(results: Results, memory_origin: str) -> None:
    found = results(memory_origin)
    assert failures(found) == []
    assert len(found) == TESTS


def test_the_gateway_before_the_in_memory_origin_passes_every_test(
    results: Results, gateway_before_memory_origin: str
) -> None:
    found = results(gateway_before_memory_origin)
    assert failures(found) == []
    assert len(found) == TESTS


def test_the_gateway_before_the_reference_server_passes_every_test_that_the_server_passes(
    results: Results, reference_server: str, gateway_before_reference_server: str
) -> None:
    through = results(gateway_before_reference_server)
    assert len(through) == TESTS
    failed = set(failures(through))
    assert not failed & MENDED
    # Of the server alone, only these are in question.
    in_question = failed | MENDED
    alone = run_conformance(reference_server, names=named(in_question))
    assert alone == dict.fromkeys(in_question, False)


def test_the_gateway_passes_over_tls(request: pytest.FixtureRequest, results_over_tls: dict[str, bool]) -> None:
    is_short = request.config.getoption("--transports") == "some"
    assert failures(results_over_tls) == []
    assert (20 if is_short else TESTS) <= len(results_over_tls) <= TESTS
