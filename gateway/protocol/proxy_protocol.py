"""The header of the PROXY protocol, versions 1 and 2: a load balancer names the client it forwards.

Parsing is strict, because the header sets another party's identity: a single wrong byte ends the connection.  Accepted
are TCP addresses over IPv4 and IPv6.  LOCAL (the balancer's own health check), UNKNOWN and Unix sockets name no client:
the connection's peer counts as the client, and is not trusted to name others.  The TLVs behind the addresses of version
2 are skipped.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_BYTES: Final = 16
_LONGEST_LINE: Final = 107
"""The longest line of version 1, line end included."""
LONGEST_BYTES: Final = 4_096
"""The largest header of version 2; balancers' TLVs take a few hundred bytes."""
_LOCAL, _PROXY = 0, 1
_UNSPECIFIED: Final = 0
_STREAM: Final = 1
_INET, _INET6, _UNIX = 1, 2, 3
_ADDRESS_BYTES: Final = {_UNSPECIFIED: 0, _INET: 12, _INET6: 36, _UNIX: 216}


class BadProxyHeader(ValueError):
    """The data is not a PROXY header, or not an acceptable one."""


class ProxyHeader(NamedTuple):
    """A parsed header."""

    client: str | None
    """The client's address; None if the header names none, and the connection's peer is the client."""
    size: int
    """Bytes of the header; the client's data follows them."""


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Parse the header at the start of `data`.  None while it is incomplete; BadProxyHeader at the first wrong byte."""
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
        # A zone ("%eth0") belongs to the balancer's machine and has no meaning here.
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
        raise BadProxyHeader("no version 2, or no command of it")
    if size > LONGEST_BYTES:
        raise BadProxyHeader("too long")
    if command == _PROXY:
        if family not in _ADDRESS_BYTES or (family and transport != _STREAM) or (not family and transport):
            raise BadProxyHeader("no family, or none of a stream")
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
    """The address as text; an IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2) becomes plain IPv4."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
