"""Web origins that an origin does not allow, as a route remembers them."""

from __future__ import annotations

from gateway.aio.clock import ManualClock
from gateway.engine.hit_for_miss import DeniedOrigins
from gateway.protocol.sharing import Group

PATH = Group("http://origin", "/s")


def test_a_denial_is_remembered_for_its_time_and_ends_once_the_web_origin_is_allowed() -> None:
    clock = ManualClock()
    denied = DeniedOrigins(10, clock.now)
    for name in ("https://a.example", "https://b.example"):
        denied.remember(PATH, name)
    denied.discard(PATH, "https://b.example")
    denied.discard(PATH, "https://c.example")
    assert [denied.has(PATH, f"https://{name}.example") for name in "abc"] == [True, False, False]
    assert not denied.has(PATH._replace(path="/t"), "https://a.example")
    clock.advance(10)
    assert not denied.has(PATH, "https://a.example")


def test_invented_web_origins_take_bounded_memory() -> None:
    denied = DeniedOrigins(10, ManualClock().now)
    for number in range(2_000):
        denied.remember(PATH, f"https://{number}.example/{'x' * 8_000}")
    denied.remember(PATH, "y" * (1 << 21))
    assert 0 < len(denied) < 200
    assert denied.has(PATH, f"https://1999.example/{'x' * 8_000}")


def test_nothing_is_remembered_for_no_time() -> None:
    clock = ManualClock()
    denied = DeniedOrigins(0, clock.now)
    denied.remember(PATH, "https://a.example")
    clock.advance(0.001)
    assert not denied.has(PATH, "https://a.example")
