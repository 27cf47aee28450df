"""Bytes that several holders refer to are charged to them once, unless the cache is charged for them."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.limits.memory import Charges, Holding, SharedBytes


def charged(holdings: Iterable[tuple[int, Holding]], holders: int) -> list[int]:
    """The charges of `holders` holders, by pairs of a holder's number and a holding."""
    by_holder = [[one for number, one in holdings if number == holder] for holder in range(holders)]
    charges = Charges()
    for own in by_holder:
        charges.add_holdings(own)
    return [charges.charge_of(own) for own in by_holder]


def test_bytes_in_the_cache_are_charged_to_none() -> None:
    shared = SharedBytes(100, in_cache=True)
    assert charged([(0, Holding(shared, 100))], 2) == [0, 0]


def test_holders_divide_shared_bytes() -> None:
    shared = SharedBytes(100)
    held = [(0, Holding(shared, 100)), (1, Holding(shared, 50)), (2, Holding(shared, 50))]
    assert charged(held, 3) == [50, 25, 25]


def test_parts_that_are_less_than_the_whole_are_charged_in_full() -> None:
    shared = SharedBytes(100)
    assert charged([(0, Holding(shared, 30)), (1, Holding(shared, 40))], 2) == [30, 40]


def test_a_holder_of_several_bytes_is_charged_for_each() -> None:
    held = [(1, Holding(SharedBytes(10), 10)), (1, Holding(SharedBytes(20), 20)), (0, Holding(SharedBytes(5), 0))]
    assert charged(held, 2) == [0, 30]
