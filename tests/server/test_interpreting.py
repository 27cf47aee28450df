"""The meaning of a request that its client repeats is remembered, for that client and within a bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gateway.aio.clock import ManualClock
from gateway.config.routes import RouteConfig
from gateway.engine.route import Route
from gateway.http import request_parser as http
from gateway.http.known import HeaderCache
from gateway.protocol.client_address import Proxies
from gateway.server.context import RequestContext
from gateway.server.delivery import Delivery
from gateway.server.interpreting import RequestInterpreter, RequestMeaning
from gateway.server.request import Channel, Request


class Asking:
    """A parser, and clients that all send the same header section."""

    def __init__(self) -> None:
        self.restart()
        self._cache = HeaderCache()
        self._proxies = Proxies(["192.0.2.0/24"], "x-forwarded-for")

    def restart(self) -> None:
        """Parse by another configuration, which is an equal one."""
        route = Route(RouteConfig(origin="http://origin.test"), "node", ManualClock())
        self.parser = RequestInterpreter("node", [route], lambda address: address or "")

    def ask(
        self,
        target: str,
        method: str = "POST",
        client: str = "192.0.2.1",
        scheme: str = "http",
        *,
        is_proxied: bool = False,
    ) -> RequestMeaning:
        data = f"{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
        events = self._cache.lookup(data)
        if events is None:
            events = http.RequestParser().feed(data)
            self._cache.store(data, events)
        proxies = self._proxies if is_proxied else None
        channel = SimpleNamespace(versions={"1.1"}, client=client, proxies=proxies, scheme=scheme)
        request = Request(cast(Channel, channel), cast(http.RequestHead, events[0]), None)
        return self.parser.interpret(RequestContext(request, cast(Delivery, None), 0.0, None))


def test_equal_requests_of_one_client_are_parsed_once() -> None:
    asking = Asking()
    asking.ask("/first")
    parsed = asking.ask("/s")
    assert asking.ask("/s") is parsed
    others: list[dict[str, Any]] = [
        {"client": "192.0.2.2"}, {"method": "PUT"}, {"method": "DELETE"}, {"scheme": "https"}, {"is_proxied": True},
    ]  # fmt: skip
    for other in others:
        assert asking.ask("/s") is parsed
        assert asking.ask("/s", **other) is not parsed
    assert asking.ask("/s?a=1") is not parsed
    assert asking.ask("/s") is parsed
    asking.restart()
    assert asking.ask("/s") is not parsed


def test_the_meanings_of_repeated_requests_are_bounded() -> None:
    asking = Asking()
    for number in range(1_100):
        asking.ask(f"/{number}")
    asking.ask("/" + "a" * 300)
    assert repr(asking.parser) == "<RequestInterpreter remembers 1024 requests>"
