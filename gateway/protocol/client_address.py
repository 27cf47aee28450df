"""The client's address and scheme behind trusted proxies, from header fields or from the PROXY protocol.

The header fields are `X-Forwarded-For` and `X-Forwarded-Proto`, or `Forwarded` (RFC 7239).  Each proxy appends the
address of its peer to a list.  The list is therefore read backwards, from its end.  Addresses of trusted proxies are
skipped.  The next address is the client's.  All members before the client's address are statements of the client
itself, and are ignored.  If all addresses are trusted, the first in the list is the client's.  A member that is not an
address (`unknown`, a pseudonym) ends the search.  The proxy that wrote this member then counts as the client.

Only one of these two kinds of fields is read, according to the configuration.  A proxy that writes one kind may forward
the other kind unchanged from the client.

A PROXY protocol header (versions 1 and 2) contains the address of the client whose connection a load balancer forwards.
Parsing is strict, because the header sets the identity of another party: a single wrong byte ends the connection.  TCP
addresses over IPv4 and IPv6 are accepted.  Headers with LOCAL (the balancer's own health check), UNKNOWN or a Unix
socket contain no client address.  The connection's peer then counts as the client, and its forwarding headers are not
trusted.  In version 2, TLVs (additional fields) may follow the addresses, and are skipped.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

FORWARDING: Final = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")
"""Headers with the address of a client behind a proxy.  They affect limits and the log, but no shared answer."""
UNIX: Final = "unix"
"""The entry in the list of networks that makes peers on a Unix socket trusted."""
_MOST_HOPS: Final = 64
_LONGEST_KEPT: Final = 256
"""If the header fields have more characters than this, the result is not cached."""
_LONGEST_NODE: Final = 64
"""Longer members are not addresses: even an IPv6 address with brackets and a port is shorter."""
_SCHEMES: Final = frozenset({"http", "https"})
_PAIR: Final = re.compile(
    r"""[ \t]*(?:([!#$%&'*+\-.^_`|~0-9A-Za-z]+)=([!#$%&'*+\-.^_`|~0-9A-Za-z:\[\]]+|"(?:[^"\\]|\\.)*"))?[ \t]*(;|,|\Z)"""
)
_ESCAPED: Final = re.compile(r"\\(.)")


class HeaderLines(Protocol):
    """The header fields of a request."""

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """Return all lines of the field `key`, or `default`."""


class _RawLines:
    """The header fields of a raw request, which begins with its request line or with the line break after it."""

    def __init__(self, request: bytes) -> None:
        self._lines = request.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]:
        mark = f"{key}:".lower().encode()
        found = [
            line[len(mark) :].strip(b" \t").decode("utf-8", "surrogateescape")
            for line in self._lines
            if line[: len(mark)].lower() == mark
        ]
        return found or default


class Hop(NamedTuple):
    """The statement of one proxy about its peer."""

    client: str
    scheme: str
    """The scheme that the peer used; empty if the proxy does not state a scheme."""


class Proxies:
    """The trusted proxies.  `networks` are as in the configuration; `header` is the field that the proxies write."""

    def __init__(self, networks: Iterable[str], header: str) -> None:
        texts = tuple(networks)
        self._trusts_unix = UNIX in texts
        self._networks = tuple(ipaddress.ip_network(text) for text in texts if text != UNIX)
        self._reads_forwarded = header == "forwarded"
        self.trusts = lru_cache(4_096)(self._trusts)
        """Returns whether the peer at this address is a trusted proxy.  The address is None for a peer on a Unix
        socket."""
        self._read_again = lru_cache(4_096)(self._read)

    def writes_x_forwarded(self, peer: str | None) -> bool:
        """Return whether the peer at this address is a trusted proxy that writes `X-Forwarded-*`."""
        return not self._reads_forwarded and self.trusts(peer)

    def _trusts(self, address: str | None) -> bool:
        if address is None:
            return self._trusts_unix
        try:
            plain = ipaddress.ip_address(plain_address(ipaddress.ip_address(address.partition("%")[0])))
        except ValueError:
            return False
        return any(plain in network for network in self._networks)

    def client_address(self, peer: str | None, headers: HeaderLines) -> str | None:
        """Return the client's address, without a port, for a request from `peer` with these headers; None if
        unknown."""
        return self._client_and_scheme(peer, headers)[0] if self.trusts(peer) else peer

    def client_and_scheme_of(self, peer: str | None, request: bytes) -> tuple[str | None, str]:
        """Return the client's address and the scheme that it used, for a raw request that is not parsed again.  The
        scheme is empty if no trusted proxy states one.
        """
        return self._client_and_scheme(peer, _RawLines(request)) if self.trusts(peer) else (peer, "")

    def scheme(self, peer: str | None, headers: HeaderLines, own: str) -> str:
        """Return the scheme that the client used; `own` is the scheme of this connection."""
        return (self._client_and_scheme(peer, headers)[1] or own) if self.trusts(peer) else own

    def _client_and_scheme(self, peer: str | None, headers: HeaderLines) -> tuple[str | None, str]:
        """Return the client's address, and the scheme as stated by the trusted proxy closest to the client."""
        schemes: tuple[str, ...] = ()
        if self._reads_forwarded:
            members = tuple(headers.getall("Forwarded", ()))
        else:
            members = tuple(headers.getall("X-Forwarded-For", ()))
            schemes = tuple(headers.getall("X-Forwarded-Proto", ()))
        is_short = sum(map(len, members)) + sum(map(len, schemes)) <= _LONGEST_KEPT
        return (self._read_again if is_short else self._read)(peer, members, schemes)

    def _read(self, peer: str | None, members: tuple[str, ...], schemes: tuple[str, ...]) -> tuple[str | None, str]:
        client, scheme = peer, ""
        hops = _forwarded_hops(members) if self._reads_forwarded else _x_forwarded_hops(members, schemes)
        for hop in hops:
            # A trusted proxy closer to the client has better information about the scheme.
            scheme = hop.scheme or scheme
            address = _host(hop.client) if len(hop.client) <= _LONGEST_NODE else None
            if address is None:
                break
            client = address
            if not self.trusts(address):
                break
        return client, scheme


def _x_forwarded_hops(members: Sequence[str], schemes: Sequence[str]) -> list[Hop]:
    """Return the hops, nearest first.  All hops get one scheme: the last member of X-Forwarded-Proto, which the nearest
    proxy has written.
    """
    scheme = schemes[-1].rpartition(",")[2].strip().lower() if schemes else ""
    if scheme not in _SCHEMES:
        scheme = ""
    nearest = ",".join(members).rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]
    return [Hop(member.strip(), scheme) for member in reversed(nearest)]


def _forwarded_hops(lines: Sequence[str]) -> list[Hop]:
    hops: list[Hop] = []
    for line in lines:
        client = scheme = ""
        is_begun = False
        at = 0
        while at < len(line):
            match = _PAIR.match(line, at)
            if match is None:
                # The line is malformed here.  The next member cannot be located, and the earlier members may be part of
                # a quoted string.
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


@lru_cache(4_096)
def _host(node: str) -> str | None:
    """Return the address in a node such as `192.0.2.1:80` or `[2001:db8::1]:80`; None if the node is not an address.

    The port and the brackets are optional.
    """
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


_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_BYTES: Final = 16
_LONGEST_LINE: Final = 107
"""The longest line of version 1, including its line end."""
LONGEST_BYTES: Final = 4_096
"""The longest header of version 2.  The TLVs of load balancers take a few hundred bytes."""
_LOCAL, _PROXY = 0, 1
_UNSPECIFIED: Final = 0
_STREAM: Final = 1
_INET, _INET6, _UNIX = 1, 2, 3
_ADDRESS_BYTES: Final = {_UNSPECIFIED: 0, _INET: 12, _INET6: 36, _UNIX: 216}


class BadProxyHeader(ValueError):
    """The data is not a PROXY header, or it is a PROXY header that the gateway does not accept."""


class ProxyHeader(NamedTuple):
    """A parsed PROXY header."""

    client: str | None
    """The client's address.  None if the header contains none, so that the connection's peer is the client."""
    size: int
    """The length of the header in bytes.  The client's data follows."""


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Parse the PROXY header at the start of `data`; return None while it is incomplete.

    Raises BadProxyHeader at the first wrong byte.
    """
    if data.startswith(_SIGNATURE):
        return _read_binary(data)
    if _SIGNATURE.startswith(data):
        return None
    return _read_line(data)


def _read_line(data: bytes) -> ProxyHeader | None:
    if not data.startswith(b"PROXY "[: len(data)]):
        raise BadProxyHeader("no PROXY header")
    end = data.find(b"\r\n", 0, _LONGEST_LINE)
    if end < 0:
        if len(data) >= _LONGEST_LINE:
            raise BadProxyHeader("a line that is too long")
        return None
    size = end + 2
    try:
        words = data[:end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise BadProxyHeader("no ASCII") from None
    if words[1] == "UNKNOWN":
        return ProxyHeader(None, size)
    if len(words) != 6:
        raise BadProxyHeader("not six words")
    _, family, source, destination, source_port, destination_port = words
    if family not in ("TCP4", "TCP6"):
        raise BadProxyHeader("no family")
    client, _ = (_address(family, text) for text in (source, destination))
    for port in (source_port, destination_port):
        if not port.isdigit() or len(port) > 5 or int(port) > 65_535 or (port[0] == "0" and port != "0"):
            raise BadProxyHeader("no port")
    return ProxyHeader(client, size)


def _address(family: str, text: str) -> str:
    try:
        # IPv6Address accepts a zone ("%eth0"), which is valid only on the balancer's machine.  The zone is refused
        # below.
        address = ipaddress.IPv4Address(text) if family == "TCP4" else ipaddress.IPv6Address(text)
    except ValueError:
        raise BadProxyHeader("no address") from None
    if "%" in text:
        raise BadProxyHeader("an address with a zone")
    return plain_address(address)


def _read_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED_BYTES:
        return None
    version, command = data[12] >> 4, data[12] & 0xF
    family, transport = data[13] >> 4, data[13] & 0xF
    length = int.from_bytes(data[14:16], "big")
    size = _FIXED_BYTES + length
    if version != 2 or command not in (_LOCAL, _PROXY):
        raise BadProxyHeader("a version other than 2, or an unknown command")
    if size > LONGEST_BYTES:
        raise BadProxyHeader("too long")
    if command == _PROXY:
        if family not in _ADDRESS_BYTES or (family and transport != _STREAM) or (not family and transport):
            raise BadProxyHeader("an unknown address family, or a transport that is not a stream")
        if length < _ADDRESS_BYTES[family]:
            raise BadProxyHeader("too short for its addresses")
    if len(data) < size:
        return None
    client: str | None = None
    if command == _PROXY and family == _INET:
        client = plain_address(ipaddress.IPv4Address(data[16:20]))
    elif command == _PROXY and family == _INET6:
        client = plain_address(ipaddress.IPv6Address(data[16:32]))
    return ProxyHeader(client, size)


def plain_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the address as text.  An IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2) becomes plain IPv4."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
