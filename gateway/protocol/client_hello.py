"""The name that a TLS client asks for (SNI, RFC 6066 section 3), read from its first message before OpenSSL sees it.

Only the name is read, and only of a ClientHello that is laid out as RFC 8446 section 4.1.2 has it.  Whether the rest is
good is OpenSSL's to judge: a message that is anything else names nothing here.  A name that is not ASCII is refused,
because Python's `sni_callback` is not called for it and writes a traceback to stderr instead.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LONGEST_BYTES: Final = 1 << 14
"""Of a message whose name is looked for; post-quantum key shares take some two kilobytes."""
_MOST_BYTES: Final = 2 * LONGEST_BYTES
"""In which it is looked for, heads of records included."""
_RECORD_HEAD: Final = 5
_MESSAGE_HEAD: Final = 4
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0
_FIXED_BYTES: Final = 34
"""The version and the random bytes."""


class BadServerName(ValueError):
    """The name is not ASCII."""


class ClientHello(NamedTuple):
    """What has been read of the message."""

    server_name: str | None
    """In lower case, without a dot at its end; None where the client names no host."""


class _Unreadable(Exception):
    """The bytes are no ClientHello, or a longer one than is looked at."""


def read_client_hello(data: bytes) -> ClientHello | int:
    """The message at the beginning of `data`; while it is not whole, the least number of bytes that it takes, so that
    a client that sends one byte at a time has it read a few times only.  BadServerName."""
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
    return ClientHello(name.decode("ascii").lower().rstrip("."))


def _message(data: bytes) -> bytes | int:
    """The body of the ClientHello, which may lie in several records; while it is not whole, the bytes that it takes."""
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
    # The rest of the message, behind the head of a record where the last one is whole.
    return (len(data) if at > len(data) else at + _RECORD_HEAD) + size - len(found)


def _server_name(message: bytes) -> bytes | None:
    at = _FIXED_BYTES
    # The session, then the compression methods, have a length of one byte; between them the ciphers have two.
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    end = at + 2 + int.from_bytes(message[at : at + 2], "big")
    at += 2
    while at + 4 <= end:
        kind, size = int.from_bytes(message[at : at + 2], "big"), int.from_bytes(message[at + 2 : at + 4], "big")
        at += 4
        if kind == _SERVER_NAME:
            # A list, of which RFC 6066 allows one member of each type: two bytes, then type, length, name.
            if message[at + 2] != _HOST_NAME:
                return None
            length = int.from_bytes(message[at + 3 : at + 5], "big")
            return message[at + 5 : min(at + 5 + length, at + size)]
        at += size
    return None
