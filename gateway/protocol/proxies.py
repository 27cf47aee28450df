"""Who the client is behind proxies that are trusted: `X-Forwarded-For` and `X-Forwarded-Proto`, or `Forwarded`
(RFC 7239).

Each proxy adds the address it was reached from at the end of a list.  So the list is read from its end, and only as
far as trusted proxies have written it: the first address that is no trusted proxy is the client, and what stands before
it is that client's own word.  Where all of them are trusted, the first is the client.  What is no address (`unknown`, a
pseudonym) ends the reading at the proxy that wrote it.

Only one of the two is looked at: a proxy that writes the one passes the other on as a client has made it up.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from gateway.protocol.proxy_header import plain_address

UNIX: Final = "unix"
"""In place of a network: whoever comes by a Unix socket."""
_MOST_HOPS: Final = 64
_SCHEMES: Final = frozenset({"http", "https"})
_PAIR: Final = re.compile(
    r"""[ \t]*(?:([!#$%&'*+\-.^_`|~0-9A-Za-z]+)=([!#$%&'*+\-.^_`|~0-9A-Za-z:\[\]]+|"(?:[^"\\]|\\.)*"))?[ \t]*(;|,|$)"""
)
_ESCAPED: Final = re.compile(r"\\(.)")


class HeaderLines(Protocol):
    """The header of a request."""

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """Every line of a name."""


class _Spelled:
    """The lines of one name in a request in bytes."""

    def __init__(self, request: bytes, name: str) -> None:
        self._name = name
        mark = f"{name}:".lower().encode()
        lines = request.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        self._found = [
            line[len(mark) :].strip(b" \t").decode("utf-8", "surrogateescape")
            for line in lines
            if line[: len(mark)].lower() == mark
        ]

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]:
        return (self._found if key == self._name else None) or default


class Hop(NamedTuple):
    """What one proxy says of whom it was reached by."""

    client: str
    scheme: str
    """Empty where it does not say."""


class Proxies:
    """The proxies that are trusted.  `networks` are as in the configuration; `header` is the one that they write."""

    def __init__(self, networks: Iterable[str], header: str) -> None:
        texts = tuple(networks)
        self._trusts_unix = UNIX in texts
        self._networks = tuple(ipaddress.ip_network(text) for text in texts if text != UNIX)
        self._is_standard = header == "forwarded"
        self.trusts = lru_cache(4_096)(self._trusts)
        """Whether the peer at an address (None: by a Unix socket) is one of them."""

    def writes_customary(self, peer: str | None) -> bool:
        """Whether what the peer at an address says in `X-Forwarded-*` is its own word."""
        return not self._is_standard and self.trusts(peer)

    def _trusts(self, address: str | None) -> bool:
        if address is None:
            return self._trusts_unix
        try:
            plain = ipaddress.ip_address(plain_address(ipaddress.ip_address(address.partition("%")[0])))
        except ValueError:
            return False
        return any(plain in network for network in self._networks)

    def client(self, peer: str | None, headers: HeaderLines) -> str | None:
        """The address of the client whose request with this header has come from `peer`, without a port; None where
        nobody knows it."""
        return self._origin(peer, headers)[0] if self.trusts(peer) else peer

    def client_of(self, peer: str | None, request: bytes) -> str | None:
        """The same of a request in bytes, that has been parsed before."""
        if not self.trusts(peer):
            return peer
        wanted = "Forwarded" if self._is_standard else "X-Forwarded-For"
        return self._origin(peer, _Spelled(request, wanted))[0]

    def scheme(self, peer: str | None, headers: HeaderLines, own: str) -> str:
        """The scheme by which the client has asked, where `own` is the connection's."""
        return (self._origin(peer, headers)[1] or own) if self.trusts(peer) else own

    def _origin(self, peer: str | None, headers: HeaderLines) -> tuple[str | None, str]:
        """The client's address, and the scheme as the nearest proxy has it that says one."""
        client, scheme = peer, ""
        hops = _standard_hops(headers) if self._is_standard else _customary_hops(headers)
        for hop in hops:
            # Those nearer to the client know better, as long as they are trusted.
            scheme = hop.scheme or scheme
            address = _host(hop.client)
            if address is None:
                break
            client = address
            if not self.trusts(address):
                break
        return client, scheme


def _customary_hops(headers: HeaderLines) -> list[Hop]:
    """From the nearest on.  The scheme is one for all: of the last line's last member, which the nearest wrote."""
    schemes = headers.getall("X-Forwarded-Proto", ())
    scheme = schemes[-1].rpartition(",")[2].strip().lower() if schemes else ""
    if scheme not in _SCHEMES:
        scheme = ""
    members = ",".join(headers.getall("X-Forwarded-For", ())).rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]
    return [Hop(member.strip(), scheme) for member in reversed(members)]


def _standard_hops(headers: HeaderLines) -> list[Hop]:
    hops: list[Hop] = []
    for line in headers.getall("Forwarded", ()):
        client = scheme = ""
        is_begun = False
        at = 0
        while at < len(line):
            match = _PAIR.match(line, at)
            if match is None:
                # Nobody can tell where the next member begins: what came before may be a part of this one.
                hops.clear()
                is_begun = False
                break
            name, value, end = (match[1] or "").lower(), match[2] or "", match[3]
            is_begun = is_begun or bool(name)
            if value.startswith('"'):
                value = _ESCAPED.sub(r"\1", value[1:-1])
            if name == "for":
                client = value
            elif name == "proto" and value.lower() in _SCHEMES:
                scheme = value.lower()
            at = match.end()
            if end == "," and is_begun:
                hops.append(Hop(client, scheme))
                client = scheme = ""
                is_begun = False
        if is_begun:
            hops.append(Hop(client, scheme))
    return hops[: -_MOST_HOPS - 1 : -1]


def _host(node: str) -> str | None:
    """The address of `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`; None for
    anything else."""
    if node.startswith("["):
        host, bracket, port = node[1:].partition("]")
        if not bracket or (port and not (port[0] == ":" and port[1:].isalnum())):
            return None
    elif node.count(":") == 1:
        host, _, port = node.partition(":")
        if not port.isalnum():
            return None
    else:
        host = node
    try:
        return plain_address(ipaddress.ip_address(host)) if "%" not in host else None
    except ValueError:
        return None
