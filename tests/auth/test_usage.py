"""Usage by tenant."""

from __future__ import annotations

from gateway.auth.usage import MOST_TENANTS, OTHERS, Tenants


def test_tenants_beyond_the_bound_share_one_usage() -> None:
    tenants = Tenants()
    for number in range(MOST_TENANTS):
        tenants.usage("https://issuer.test", str(number)).add(1)
    for number in range(10):
        tenants.usage("https://issuer.test", f"late-{number}").add(1, 0.5)
    tenants.usage("https://issuer.test", "0").add(1)
    found = dict(tenants.items())
    assert len(found) == MOST_TENANTS + 1
    assert repr(found[OTHERS]) == "<Usage 10 requests, 10 bytes, 5 s>"
    assert found["https://issuer.test", "0"].requests == 2
