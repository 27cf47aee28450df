"""What requests come by: the same tests go over each.

`--transports some` (the default) has every test go over HTTP/1.1, those marked `http_2` over HTTP/2 as well, and those
of a few files over each other transport; `all` has every test go over every transport; a name has them go over that
one.  To add a transport: a name in `TRANSPORTS`, what listens for it in `listening`, and a client in
`tests/scenarios/wire.py`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.certificates import Authority, Pair

HTTP_1: Final = "http/1.1"
TLS: Final = "tls"
HTTP_2: Final = "h2"
"""With prior knowledge."""
HTTP_2_TLS: Final = "h2 over tls"
TRANSPORTS: Final = (HTTP_1, TLS, HTTP_2, HTTP_2_TLS)
SECURE: Final = frozenset({TLS, HTTP_2_TLS})
OVER_HTTP_2: Final = frozenset({HTTP_2, HTTP_2_TLS})
EDGE: Final = "edge.test"
"""The name that clients ask for."""

SOME: Final = frozenset(
    {"test_cut_short", "test_long_poll", "test_one_for_many", "test_relay", "test_slow_consumer", "test_sse"}
)
"""Files whose tests go over every transport even so."""


@dataclass(frozen=True, slots=True)
class Trust:
    """The gateway's certificate, and what its clients believe."""

    pair: Pair
    authority: Path
    client: ssl.SSLContext
    http_2_client: ssl.SSLContext
    """The same for one that speaks nothing but HTTP/2."""

    def believed_by(self, transport: str) -> ssl.SSLContext | None:
        """What a client believes that comes by this; None where it need not."""
        if transport not in SECURE:
            return None
        return self.http_2_client if transport in OVER_HTTP_2 else self.client


def made(folder: Path) -> Trust:
    """One for a run of tests."""
    authority = Authority(folder)
    pair = authority.issue(EDGE, "localhost", "127.0.0.1")
    http_2_client = authority.client()
    http_2_client.set_alpn_protocols([HTTP_2])
    return Trust(pair, authority.file, authority.client(), http_2_client)


def listening(transport: str, trust: Trust) -> dict[str, Any]:
    """Fields of a gateway's configuration that have it accept this."""
    if transport not in SECURE:
        return {"listen": "127.0.0.1:0"}
    return {"listeners": [{"address": "127.0.0.1:0", "tls": {"certificates": [trust.pair.as_config()]}}]}


def add_option(parser: pytest.Parser) -> None:
    """`--transports`."""
    parser.addoption("--transports", default="some", choices=["some", "all", *TRANSPORTS], help="what tests go over")


def chosen(metafunc: pytest.Metafunc) -> list[str]:
    """The transports that a test goes over; none of HTTP/2 for one that spells HTTP/1.1 out."""
    asked = metafunc.config.getoption("--transports")
    if asked == "all" or (asked == "some" and metafunc.module.__name__.rpartition(".")[2] in SOME):
        found = list(TRANSPORTS)
    elif asked == "some" and metafunc.definition.get_closest_marker("http_2") is not None:
        found = [HTTP_1, HTTP_2]
    else:
        found = [HTTP_1] if asked == "some" else [asked]
    if metafunc.definition.get_closest_marker("http_1") is not None:
        found = [transport for transport in found if transport not in OVER_HTTP_2] or [HTTP_1]
    return found
