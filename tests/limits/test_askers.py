"""The clients of a shared request."""

from __future__ import annotations

from gateway.limits.queues import Askers


def test_each_client_joins_once() -> None:
    askers, joined = Askers("a"), list[str]()
    askers.on_join = joined.append
    for net in ("a", "b", "b", "", "c"):
        askers.add_client(net)
    assert joined == ["b", "", "c"]
    assert list(askers.nets) == ["a", "b", "", "c"]


def test_the_clients_of_one_request_are_bounded() -> None:
    askers = Askers("first")
    for number in range(1_000):
        askers.add_client(f"net {number}")
    assert len(askers.nets) == 256
