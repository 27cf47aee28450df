"""The meaning of a request: remembered for the client that repeats it, within a bound, and what a fork may name."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.auth.verdict import Forbidden
from gateway.config.routes import RouteConfig
from gateway.engine.route import Route
from gateway.errors import BadRequest
from gateway.http import request_parser as http
from gateway.http.known import HeaderCache
from gateway.protocol.client_address import Proxies
from gateway.server.context import RequestContext
from gateway.server.delivery import Delivery
from gateway.server.interpreting import RequestInterpreter, RequestMeaning
from gateway.server.request import Channel, Request


class Asking:
    """A parser, and clients that all send the same header section."""

    def __init__(self, prefixes: Sequence[str] = ("/",)) -> None:
        self._prefixes = prefixes
        self.restart()
        self._cache = HeaderCache()
        self._proxies = Proxies(["192.0.2.0/24"], "x-forwarded-for")

    def restart(self) -> None:
        """Parse by another configuration, which is an equal one."""
        routes = [
            Route(RouteConfig(name=f"r{number}", origin="http://origin.test", prefix=prefix), "node", ManualClock())
            for number, prefix in enumerate(self._prefixes)
        ]
        self.parser = RequestInterpreter("node", routes, lambda address: address or "")

    def ask(
        self,
        target: str,
        method: str = "POST",
        client: str = "192.0.2.1",
        scheme: str = "http",
        *,
        is_proxied: bool = False,
        more: str = "",
    ) -> RequestMeaning:
        data = f"{method} {target} HTTP/1.1\r\nHost: h\r\n{more}\r\n".encode()
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


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        (["/a/s"], "/a/s"),
        (["/a/%7e/./s"], "/a/~/s"),
        ([], None),
        (["/b/s"], Forbidden),
        (["/elsewhere"], Forbidden),
        (["/a/../b/s"], Forbidden),
        (["a/s"], BadRequest),
        (["http://h/a/s"], BadRequest),
        (["//h/a/s"], BadRequest),
        (["/a/s?x=1"], BadRequest),
        (["/a/__ds/subscriptions"], BadRequest),
        (["/a/s", "/a/s"], BadRequest),
    ],
)
def test_the_source_of_a_fork_is_a_stream_of_the_same_route(
    sources: list[str], found: str | type[Exception] | None
) -> None:
    more = "".join(f"Stream-Forked-From: {source}\r\n" for source in sources)
    for method in ("PUT", "POST"):
        asking = Asking(["/a", "/b"])
        if isinstance(found, type):
            for _ in range(3):
                with pytest.raises(found):
                    asking.ask("/a/f", method, more=more)
        else:
            assert {asking.ask("/a/f", method, more=more).forked for _ in range(3)} == {found}
    assert Asking(["/a", "/b"]).ask("/a/f", "GET", more=more).forked is None
