"""Every server passes what the protocol's own suite asks of it; the gateway adds nothing wrong and mends two things."""

from tests.conformance.suite import TESTS, failures, run_conformance

MENDED = {
    "Caching and ETag should allow If-None-Match in CORS preflight responses",
    "SSE Mode JSON SSE catch-up pairs every data event with a control event",
    "SSE Mode base64 SSE catch-up pairs every data event with a control event",
}
"""What the reference server fails and the gateway can put right, because it answers these itself."""


def test_the_in_memory_origin_passes_every_test(memory_origin: str) -> None:
    results = run_conformance(memory_origin)
    assert failures(results) == []
    assert len(results) == TESTS


def test_the_gateway_before_the_in_memory_origin_passes_every_test(gateway_before_memory_origin: str) -> None:
    results = run_conformance(gateway_before_memory_origin)
    assert failures(results) == []
    assert len(results) == TESTS


def test_the_gateway_before_the_reference_server_fails_nothing_that_the_server_passes(
    reference_server: str, gateway_before_reference_server: str
) -> None:
    alone = run_conformance(reference_server)
    through = run_conformance(gateway_before_reference_server)
    assert len(alone) == len(through) == TESTS
    assert set(failures(alone)) >= MENDED
    assert set(failures(through)) <= set(failures(alone)) - MENDED
