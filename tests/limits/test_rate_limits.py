"""Configured rate limits: which requests each one counts, and what a refused client gets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.rate_limits import RateLimitConfig
from gateway.limits.accounts import Accounts, client_nets
from gateway.limits.rate_limits import RateLimits


class Limits(RateLimits):
    """Rate limits with the accounts of clients."""

    def __init__(self, *tables: dict[str, Any]) -> None:
        accounts = Accounts(client_nets(32, 64), lambda: 0.0)
        configs = [RateLimitConfig(**{"name": f"limit-{n}", **table}) for n, table in enumerate(tables)]
        super().__init__(accounts, configs)
        self.of = accounts.open_account


def admitted(rates: Limits, net: str = "a", route: str = "r", now: float = 0.0, *, is_live: bool = False) -> bool:
    account = rates.of(net)
    if rates.refusal(account, route, now, is_live=is_live) is not None:
        return False
    rates.take(account, route, now)
    return True


@pytest.mark.parametrize(
    ("per", "others"), [("client", [True, True, True]), ("route", [False, True, True]), ("all", [False] * 3)]
)
def test_a_limit_is_per_client_route_or_all(per: str, others: list[bool]) -> None:
    rates = Limits({"per": per, "requests_per_s": 1})
    assert [admitted(rates, "a", "r") for _ in range(2)] == [True, False]
    asked = [("b", "r"), ("b", "other"), ("c", "third")]
    assert [rates.refusal(rates.of(net), route, 0.0, is_live=False) is None for net, route in asked] == others


def test_a_client_without_a_net_is_not_limited_per_client_and_others_routes_are_free() -> None:
    rates = Limits({"requests_per_s": 1, "routes": ("r",)})
    assert all(admitted(rates, "", "r") for _ in range(5))
    assert all(admitted(rates, "a", "other") for _ in range(5))
    assert [admitted(rates, "a", "r") for _ in range(2)] == [True, False]


def test_every_limit_has_to_admit_and_none_is_charged_for_a_refusal() -> None:
    rates = Limits({"requests_per_s": 1, "burst": 5}, {"per": "all", "requests_per_s": 1, "burst": 2})
    assert [admitted(rates) for _ in range(5)] == [True, True, False, False, False]
    refusal = rates.refusal(rates.of("a"), "r", 0.0, is_live=False)
    assert refusal is not None
    assert refusal.limit == "limit-1"
    assert refusal.wait_s == 1
    # The first limit was charged for two requests only.
    assert rates.fields(rates.of("a"), "r", 0.0) == (
        '"limit-0";q=5;w=5, "limit-1";q=2;w=2',
        '"limit-0";r=3;t=2, "limit-1";r=0;t=2',
    )


def test_bytes_are_a_debt_that_refuses_until_it_is_paid() -> None:
    rates = Limits({"bytes_per_s": 100})
    assert admitted(rates)
    rates.charge(rates.of("a"), "r", 350, 0.0)
    assert not admitted(rates)
    assert not admitted(rates, now=2.5)
    assert admitted(rates, now=2.6)
    assert rates.fields(rates.of("a"), "r", 0.0) == (
        '"limit-0-bytes";q=100;w=1;qu="content-bytes"',
        '"limit-0-bytes";r=0;t=4',
    )


def test_live_reads_are_counted_until_they_end_and_their_bytes_charged_then() -> None:
    rates = Limits({"live_reads": 2, "bytes_per_s": 100})
    lives = [live for _ in range(2) if (live := rates.begin_live(rates.of("a"), "r", lambda: 0.0)) is not None]
    assert len(lives) == 2
    assert not admitted(rates, is_live=True)
    assert admitted(rates)
    assert admitted(rates, "b", is_live=True)
    lives.pop().end_live(250)
    assert not admitted(rates, now=1.5, is_live=True)
    assert admitted(rates, now=1.6, is_live=True)


def test_a_replaced_limit_keeps_its_allowance_if_it_has_not_changed() -> None:
    kept: dict[str, Any] = {"name": "kept", "requests_per_s": 1}
    changed: dict[str, Any] = {"name": "changed", "requests_per_s": 1}
    rates = Limits(kept, changed)
    assert admitted(rates)
    rates.replace([RateLimitConfig(**kept), RateLimitConfig(**{**changed, "burst": 9})])
    refusal = rates.refusal(rates.of("a"), "r", 0.0, is_live=False)
    assert refusal is not None
    assert refusal.limit == "kept"
    rates.replace([])
    assert not rates.limits
    assert admitted(rates)


@given(st.floats(1, 1_000), st.integers(1, 20), st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.5))))
def test_no_client_gets_more_than_its_limit(per_s: float, burst: int, asked: list[tuple[str, float]]) -> None:
    rates, now = Limits({"requests_per_s": per_s, "burst": burst}), 0.0
    got = {"a": 0, "b": 0}
    for net, pause_s in asked:
        now += pause_s
        got[net] += admitted(rates, net, now=now)
    assert max(got.values()) <= burst + per_s * now + 1e-6 * (1 + per_s)


def test_a_suspended_client_comes_back_without_what_it_had_not_used() -> None:
    rates = Limits({"requests_per_s": 2, "burst": 10}, {"bytes_per_s": 100}, {"per": "all", "requests_per_s": 50})
    assert admitted(rates)
    account = rates.of("a")
    assert account is not None
    rates.suspend(account, 0.0, 20.0)
    assert not admitted(rates, now=20.0)
    assert [admitted(rates, now=21.01) for _ in range(3)] == [True, True, False]
    assert admitted(rates, "b", now=21.01)
    assert all(admitted(rates, now=26.01) for _ in range(10)), "the allowance has grown back"


def test_a_limit_per_client_holds_for_each_of_many_networks() -> None:
    rates = Limits({"requests_per_s": 1, "burst": 1})
    nets = [(str(number), route) for number in range(9_000) for route in ("r", "s")]
    assert all(admitted(rates, *one) for one in nets[::2])
    assert not any(admitted(rates, *one) for one in nets)
