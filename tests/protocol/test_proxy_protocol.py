"""PROXY headers: valid ones are parsed in any pieces, all others are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.client_address import LONGEST_BYTES, BadProxyHeader, ProxyHeader, read_proxy_header

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V4 = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + b"\x12\x34\x01\xbb"
V6 = bytes.fromhex("20010db8000000000000000000000007" + "20010db8000000000000000000000001") + b"\x12\x34\x01\xbb"
MAPPED = bytes.fromhex("00000000000000000000ffffc0000207" + "00000000000000000000ffffc0000201") + b"\x12\x34\x01\xbb"


def binary(command: int = 0x21, family: int = 0x11, rest: bytes = V4, length: int | None = None) -> bytes:
    size = len(rest) if length is None else length
    return SIGNATURE + bytes([command, family]) + size.to_bytes(2, "big") + rest


GOOD: list[tuple[str, bytes, str | None]] = [
    ("v1, IPv4", b"PROXY TCP4 192.0.2.7 198.51.100.1 4660 443\r\n", "192.0.2.7"),
    ("v1, IPv6", b"PROXY TCP6 2001:db8::7 2001:db8::1 4660 443\r\n", "2001:db8::7"),
    ("v1, mapped", b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:192.0.2.1 0 65535\r\n", "192.0.2.7"),
    ("v1, unknown", b"PROXY UNKNOWN\r\n", None),
    ("v1, unknown with words", b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n", None),
    ("v2, IPv4", binary(), "192.0.2.7"),
    ("v2, IPv6", binary(family=0x21, rest=V6), "2001:db8::7"),
    ("v2, mapped", binary(family=0x21, rest=MAPPED), "192.0.2.7"),
    ("v2, TLVs", binary(rest=V4 + b"\x04\x00\x03abc" + b"\x05\x00\x80" + b"u" * 128), "192.0.2.7"),
    ("v2, TLVs that lie", binary(rest=V4 + b"\x04\xff\xffabc"), "192.0.2.7"),
    ("v2, the longest", binary(rest=V4 + bytes(LONGEST_BYTES - 28)), "192.0.2.7"),
    ("v2, local", binary(command=0x20, family=0, rest=b""), None),
    ("v2, local with addresses", binary(command=0x20), None),
    ("v2, local of no family", binary(command=0x20, family=0xFF, rest=b"xyz"), None),
    ("v2, unspecified", binary(family=0, rest=b""), None),
    ("v2, Unix", binary(family=0x31, rest=b"/run/a".ljust(108, b"\0") * 2), None),
]

BAD: list[tuple[str, bytes]] = [
    ("a request", b"GET / HTTP/1.1\r\n\r\n"),
    ("a handshake", b"\x16\x03\x01\x02\x00\x01"),
    ("another word", b"PROXYTCP4 192.0.2.7 198.51.100.1 1 2\r\n"),
    ("lower case", b"proxy TCP4 192.0.2.7 198.51.100.1 1 2\r\n"),
    ("a blank before", b" PROXY TCP4 192.0.2.7 198.51.100.1 1 2\r\n"),
    ("a line end before", b"\r\nPROXY TCP4 192.0.2.7 198.51.100.1 1 2\r\n"),
    ("two blanks", b"PROXY TCP4  192.0.2.7 198.51.100.1 1 2\r\n"),
    ("a tab", b"PROXY TCP4\t192.0.2.7 198.51.100.1 1 2\r\n"),
    ("a blank at the end", b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2 \r\n"),
    ("no ports", b"PROXY TCP4 192.0.2.7 198.51.100.1\r\n"),
    ("one word more", b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2 3\r\n"),
    ("a family that is not", b"PROXY TCP5 192.0.2.7 198.51.100.1 1 2\r\n"),
    ("UDP", b"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n"),
    ("no family", b"PROXY \r\n"),
    ("IPv6 as IPv4", b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n"),
    ("IPv4 as IPv6", b"PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n"),
    ("a name", b"PROXY TCP4 localhost 198.51.100.1 1 2\r\n"),
    ("octal", b"PROXY TCP4 192.0.02.7 198.51.100.1 1 2\r\n"),
    ("too large", b"PROXY TCP4 192.0.2.256 198.51.100.1 1 2\r\n"),
    ("short", b"PROXY TCP4 192.0.2 198.51.100.1 1 2\r\n"),
    ("a zone", b"PROXY TCP6 fe80::1%eth0 2001:db8::1 1 2\r\n"),
    ("a bad destination", b"PROXY TCP4 192.0.2.7 x 1 2\r\n"),
    ("a port too large", b"PROXY TCP4 192.0.2.7 198.51.100.1 1 65536\r\n"),
    ("a port with a sign", b"PROXY TCP4 192.0.2.7 198.51.100.1 +1 2\r\n"),
    ("a port with a zero", b"PROXY TCP4 192.0.2.7 198.51.100.1 01 2\r\n"),
    ("a long port", b"PROXY TCP4 192.0.2.7 198.51.100.1 000001 2\r\n"),
    ("digits that are none", "PROXY TCP4 192.0.2.7 198.51.100.1 ١ 2\r\n".encode()),
    ("a line feed alone", b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2\n" + b" " * 107),
    ("a line without end", b"PROXY UNKNOWN " + b"x" * 93),
    ("a line one byte too long", b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n"),
    ("version 1 in version 2", binary(command=0x11)),
    ("version 3", binary(command=0x31)),
    ("a command that is not", binary(command=0x22)),
    ("a family that is not, v2", binary(family=0x41)),
    ("datagrams", binary(family=0x12)),
    ("no transport", binary(family=0x10)),
    ("a transport of no family", binary(family=0x01)),
    ("shorter than its addresses", binary(rest=V4[:-1])),
    ("shorter than its IPv6 addresses", binary(family=0x21, rest=V4)),
    ("too long", binary(length=LONGEST_BYTES - 15)),
    ("the longest that can be said", binary(length=0xFFFF)),
    ("a signature with a wrong end", SIGNATURE[:-1] + b"\r" + bytes(16)),
]


@pytest.mark.parametrize(("data", "client"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD])
def test_a_header_names_the_client_and_what_follows_is_the_clients(data: bytes, client: str | None) -> None:
    assert read_proxy_header(data) == ProxyHeader(client, len(data))
    assert read_proxy_header(data + b"GET / HTTP/1.1\r\n\r\n") == ProxyHeader(client, len(data))


@pytest.mark.parametrize("data", [row[1] for row in GOOD], ids=[row[0] for row in GOOD])
def test_an_incomplete_header_is_awaited(data: bytes) -> None:
    assert all(read_proxy_header(data[:size]) is None for size in range(len(data)))


@pytest.mark.parametrize("data", [row[1] for row in BAD], ids=[row[0] for row in BAD])
def test_a_single_wrong_byte_is_refused(data: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        read_proxy_header(data)


@given(st.sampled_from(GOOD), st.integers(0, 60), st.integers(0, 255))
def test_a_changed_byte_is_refused_awaited_or_parsed_as_changed(
    row: tuple[str, bytes, str | None], at: int, byte: int
) -> None:
    data = bytearray(row[1] + b"tail")
    data[at % len(row[1])] = byte
    try:
        header = read_proxy_header(bytes(data))
    except BadProxyHeader:
        return
    assert header is None or header.size <= len(data)


@given(st.binary(max_size=300))
def test_any_input_is_decided_within_the_bound(data: bytes) -> None:
    padded = data + bytes(LONGEST_BYTES)
    try:
        header = read_proxy_header(padded)
    except BadProxyHeader:
        return
    assert header is not None
    assert header.size <= LONGEST_BYTES
