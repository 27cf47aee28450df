"""A DNS server on loopback, whose answers the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final

import dns.asyncresolver
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

NAME: Final = "gateway-headless.test"

Reply = Callable[[dns.message.Message], dns.message.Message]


class DnsServer(asyncio.DatagramProtocol):
    """Answers for one name, with `addresses` or by a fault."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.ttl_s = 1
        self.fault = ""
        self.lost = 0
        """How many of the next requests get lost."""
        self.nameservers = ["127.0.0.1"]
        self.search: list[str] = []
        self.asked: list[str] = []
        """The record types of all requests."""
        self.port = 0
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        self.asked.append(dns.rdatatype.to_text(question.rdtype))
        answer = dns.message.make_response(query)
        if self.lost:
            self.lost -= 1
            return
        match self.fault:
            case "silent":
                return
            case "garbage":
                self._transport.sendto(data[:2] + b"\xff" * 40, addr)
                return
            case "refused" | "servfail":
                answer.set_rcode(dns.rcode.from_text(self.fault))
            case _ if question.name.to_text(omit_final_dot=True) != NAME:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            case _:
                version = 6 if question.rdtype == dns.rdatatype.AAAA else 4
                texts = [text for text in self.addresses if ip_address(text).version == version]
                if texts:
                    answer.answer.append(dns.rrset.from_text(question.name, self.ttl_s, "IN", question.rdtype, *texts))
        self._transport.sendto(answer.to_wire(max_size=65_535), addr)


@asynccontextmanager
async def dns_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DnsServer]:
    """Serve on loopback, as the system's only DNS server."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(DnsServer, ("127.0.0.1", 0))
    make, server.port = dns.asyncresolver.Resolver, transport.get_extra_info("sockname")[1]

    def configured() -> dns.asyncresolver.Resolver:
        resolver = make(configure=False)
        resolver.nameservers, resolver.port = list(server.nameservers), server.port
        resolver.search, resolver.ndots = [dns.name.from_text(one) for one in server.search], 5
        return resolver

    monkeypatch.setattr(dns.asyncresolver, "Resolver", configured)
    try:
        yield server
    finally:
        transport.close()
