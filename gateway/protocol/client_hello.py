"""Parses the server name in a TLS ClientHello (SNI, RFC 6066 section 3) before OpenSSL processes the message.

Only the name is parsed, and only from a ClientHello laid out as in RFC 8446 section 4.1.2.  Any other message yields no
name, and OpenSSL decides whether it is valid.  A name that is not ASCII is refused here, because Python would not call
its `sni_callback` for such a name, but would write a traceback to stderr.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.protocol.target import canonical_name

LONGEST_BYTES: Final = 1 << 14
"""The longest ClientHello that is parsed.  With post-quantum key shares a message takes about two kilobytes."""
_MOST_BYTES: Final = 2 * LONGEST_BYTES
"""The most bytes examined, including record headers."""
_RECORD_HEAD: Final = 5
_MESSAGE_HEAD: Final = 4
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0
_FIXED_BYTES: Final = 34
"""The protocol version (2 bytes) and the random bytes (32)."""


class BadServerName(ValueError):
    """The server name is not ASCII."""


class ClientHello(NamedTuple):
    """A parsed ClientHello."""

    server_name: str | None
    """The server name in lower case, without a trailing dot; None if the client sends no host name."""


class _Unreadable(Exception):
    """The bytes are not a ClientHello, or the message is too long to parse."""


def read_client_hello(data: bytes) -> ClientHello | int:
    """Parse the message at the start of `data`.  Raises BadServerName.

    While the message is incomplete, return the minimum number of bytes to wait for.  A client that sends one byte at a
    time therefore causes only a few attempts.
    """
    try:
        message = _message(data)
        if isinstance(message, int):
            return message
        name = _server_name(message)
    except (_Unreadable, IndexError):
        return ClientHello(None)
    if name is None:
        return ClientHello(None)
    if not name.isascii():
        raise BadServerName
    return ClientHello(canonical_name(name.decode("ascii")))


def _message(data: bytes) -> bytes | int:
    """Return the body of the ClientHello, joined from its records.  If it is incomplete, return the number of bytes to
    wait for.
    """
    found = bytearray()
    size = _MESSAGE_HEAD
    at = 0
    while len(data) >= at + _RECORD_HEAD:
        begin = at + _RECORD_HEAD
        length = int.from_bytes(data[at + 3 : begin], "big")
        if data[at] != _HANDSHAKE or not length or begin > _MOST_BYTES:
            raise _Unreadable
        at = begin + length
        found += data[begin:at]
        if len(found) >= _MESSAGE_HEAD:
            size = _MESSAGE_HEAD + int.from_bytes(found[1:_MESSAGE_HEAD], "big")
            if found[0] != _CLIENT_HELLO or size > LONGEST_BYTES:
                raise _Unreadable
            if len(found) >= size:
                return bytes(found[_MESSAGE_HEAD:size])
    # Wait for the rest of the message, and for another record header if the last record is complete.
    return (len(data) if at > len(data) else at + _RECORD_HEAD) + size - len(found)


def _server_name(message: bytes) -> bytes | None:
    at = _FIXED_BYTES
    # The session id and the compression methods have 1-byte lengths, the cipher suites between them a 2-byte length.
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    end = at + 2 + int.from_bytes(message[at : at + 2], "big")
    at += 2
    while at + 4 <= end:
        kind, size = int.from_bytes(message[at : at + 2], "big"), int.from_bytes(message[at + 2 : at + 4], "big")
        at += 4
        if kind == _SERVER_NAME:
            # A list begins with its length (2 bytes).  Each entry has a type (1 byte), a length (2 bytes) and a name.
            # A list has at most one name of each type (RFC 6066).
            if message[at + 2] != _HOST_NAME:
                return None
            length = int.from_bytes(message[at + 3 : at + 5], "big")
            return message[at + 5 : min(at + 5 + length, at + size)]
        at += size
    return None
