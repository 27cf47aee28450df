"""Requests that are found by their bytes, over connections without a socket: order, limits and drains."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.limits import LimitsConfig
from gateway.config.rate_limits import RateLimitConfig
from gateway.http.http2.head import Http2Request
from gateway.limits.accounts import Account, Accounts, client_nets
from gateway.limits.rate_limits import RateLimits
from gateway.protocol.client_address import Proxies
from gateway.server.client_connections import Clients
from gateway.server.connection import Connection
from gateway.server.header_meanings import Section
from gateway.server.http2.connection import Http2Connection
from gateway.server.request import Channel, Request
from gateway.server.request_admission import Admission
from gateway.tape.origin_statements import Sighting
from gateway.telemetry.metrics import NoMetrics
from tests.http.http2.peer import NO_SETTINGS
from tests.http.http2.peer import request as http2_request
from tests.server.memory_transport import MemoryTransport
from tests.server.test_remembered import Kept
from tests.server.test_remembered import request as request_for
from tests.waiting import eventually

NET = "192.0.2.0"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OTHER = b"GET /other HTTP/1.1\r\nHost: edge\r\n\r\n"


class Server:
    """A server with one remembered answer, to `known`; its handler answers nothing."""

    def __init__(self) -> None:
        self.handled: list[Request] = []
        kept = Kept(100_000)
        kept.append(stream := kept.stream("a"), b"ab")
        self.known = request_for("a", "-1")
        kept.remember(self.known, *kept.read(stream, "-1", 100))
        self.clients = Clients(self._handle, LimitsConfig(), kept.answers, kept.bench.clock, NoMetrics())
        self.clients.find = kept.sections.find
        self.clock, self.stream = kept.bench.clock, stream
        stream.saw_tail(Sighting("00000001", self.clock.now(), self.clock.now() + 100))

    def _handle(self, request: Request) -> None:
        self.handled.append(request)

    def connect(self) -> tuple[Connection, MemoryTransport]:
        connection = Connection(self.clients)
        transport = MemoryTransport(connection)
        connection.connection_made(transport)
        return connection, transport

    def connect_http2(self) -> tuple[Http2Connection, MemoryTransport]:
        """A connection over HTTP/2 whose client has sent its preface."""
        connection = Http2Connection(self.clients)
        transport = MemoryTransport(connection)
        connection.connection_made(transport)
        connection.data_received(PREFACE + NO_SETTINGS)
        return connection, transport


# -- answers in the order of their requests


async def test_a_remembered_answer_is_sent_at_once_to_a_request_that_nothing_stands_before() -> None:
    server = Server()
    connection, transport = server.connect()
    connection.data_received(server.known)
    assert transport.output.endswith(b"\r\n\r\nab")
    assert not server.handled


@pytest.mark.parametrize("event", ["its second has passed", "a doubt", "an acknowledged write"])
async def test_a_remembered_answer_is_sent_until_it_may_be_wrong(event: str) -> None:
    server = Server()
    server.connect()[0].data_received(server.known)
    server.clients.is_current = lambda answer, request: False
    connection, transport = server.connect()
    connection.data_received(server.known)
    assert transport.output.endswith(b"ab")
    match event:
        case "a doubt":
            server.stream.mark_stale()
        case "an acknowledged write":
            server.stream.acknowledged("9", is_closed=False, query="")
        case _:
            server.clock.advance(1.0)
    connection.data_received(server.known)
    assert len(server.handled) == 1


async def test_a_remembered_answer_does_not_overtake_the_answer_to_an_earlier_request() -> None:
    server = Server()
    server.connect()[0].data_received(server.known)
    connection, transport = server.connect()
    connection.data_received(OTHER)
    connection.data_received(server.known)
    assert [request.target for request in server.handled] == ["/other"]
    assert transport.output == b""


# -- a drain that is undone


async def test_after_an_undone_drain_answers_keep_their_connections_again() -> None:
    server = Server()
    server.clients.begin_drain()
    server.connect()[0].data_received(OTHER)
    server.clients.undo_drain()
    server.connect()[0].data_received(OTHER)
    # In a late turn of the loop a request waits for the next one.
    await eventually(lambda: len(server.handled) == 2)
    assert [request.keeps_alive for request in server.handled] == [False, True]


# -- whose request it is


def test_a_section_names_the_client_of_its_own_lines_and_of_its_own_connection() -> None:
    proxies = Proxies(["10.0.0.0/8"], "X-Forwarded-For")
    first, second = (
        Section(b"\r\nHost: edge\r\nX-Forwarded-For: %b\r\n\r\n" % client) for client in (b"192.0.2.1", b"192.0.2.2")
    )
    assert first.client_address(proxies, "10.0.0.1") == "192.0.2.1"
    assert second.client_address(proxies, "10.0.0.1") == "192.0.2.2"
    # An untrusted peer is the client itself, whatever it says.
    assert first.client_address(proxies, "198.51.100.7") == "198.51.100.7"


# -- limits


def admission(most_live_reads: int = 100, **limit: Any) -> tuple[Admission, Account]:
    """Admission with one rate limit, and a client's account."""
    clock = ManualClock()
    accounts = Accounts(client_nets(32, 64), clock.now)
    rates = RateLimits(accounts, [RateLimitConfig(name="limit", **limit)] if limit else ())
    limits = LimitsConfig(client_live_reads=most_live_reads)
    account = accounts.open_account(NET)
    assert account is not None
    return Admission(limits, accounts, rates, NoMetrics(), Random(1), clock.now), account


def channel() -> Channel:
    return cast(Channel, SimpleNamespace(live_use=None, live_bytes=0))


def test_a_remembered_answer_takes_a_token_of_each_rate_limit() -> None:
    admits, account = admission(requests_per_s=1, burst=2)
    assert [admits.admit_remembered(account, "r", 0) for _ in range(3)] == [True, True, False]


def test_a_remembered_answer_is_charged_its_bytes() -> None:
    admits, account = admission(bytes_per_s=100)
    assert [admits.admit_remembered(account, "r", 350) for _ in range(2)] == [True, False]


def test_a_live_read_that_joins_takes_a_token_of_each_rate_limit() -> None:
    admits, account = admission(requests_per_s=1, burst=1)
    assert admits.begin_join(channel(), account, "r")
    admits.joined(account, "r")
    assert not admits.begin_join(channel(), account, "r")


@pytest.mark.parametrize("limit", [{}, {"requests_per_s": 1_000}], ids=["no-rate-limit", "rate-limit"])
def test_a_live_read_joins_only_within_the_bound_on_its_clients_live_reads(limit: dict[str, Any]) -> None:
    admits, account = admission(most_live_reads=1, **limit)
    first = channel()
    assert admits.begin_join(first, account, "r")
    assert not admits.begin_join(channel(), account, "r")
    assert first.live_use is not None
    first.live_use.end_live(0)
    assert admits.begin_join(channel(), account, "r")


# -- over HTTP/2


FIELDS = [(":method", "GET"), (":scheme", "http"), (":authority", "edge"), (":path", "/a?offset=-1")]


async def test_over_http_2_a_remembered_answer_is_sent_and_reported_as_over_http_1() -> None:
    server, hits = Server(), list[bytes]()
    server.clients.on_hit = lambda answer, peer, request, section, began, key: hits.append(request)
    connection, transport = server.connect_http2()
    connection.data_received(http2_request(1, FIELDS))
    connection.flush()
    assert transport.output.endswith(b"ab")
    assert [b"/a?offset=-1" in request for request in hits] == [True]
    assert not server.handled


async def test_over_http_2_a_remembered_answer_that_is_not_admitted_goes_to_the_handler() -> None:
    server = Server()
    server.clients.limits_hits, server.clients.admits = True, lambda answer, peer, section, key: False
    connection, _ = server.connect_http2()
    connection.data_received(http2_request(1, FIELDS))
    assert [request.target for request in server.handled] == ["/a?offset=-1"]


def test_a_request_over_http_2_is_known_by_all_of_its_fields() -> None:
    fields = [(name.encode(), value.encode()) for name, value in (*FIELDS, ("accept-encoding", "br"), ("x-a", "b"))]
    alias = Http2Request(fields).alias
    assert alias is not None
    lines = alias.split(b"\r\n")
    assert lines[0] == b"GET /a?offset=-1 HTTP/1.1"
    assert sorted(line.lower() for line in lines[1:-2]) == [b"accept-encoding: br", b"host: edge", b"x-a: b"]
