"""Decodes the peer's field blocks (RFC 7541), and encodes the field blocks of answers and requests.

Blocks are encoded without the dynamic table, which would tie their bytes to one connection.  An answer for many clients
is therefore encoded once, and a remembered answer is kept in encoded form.

A client that repeats a request sends the same block again.  Such a block consists of indexes and leaves the dynamic
table unchanged.  Its decoded value is remembered until the table changes.

The module also has the rules for fields that requests and replies share (RFC 9113 section 8.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Generic, TypeVar

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

is_name: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
is_value: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?").fullmatch
"""A field value of HTTP/1.1 (RFC 9110 section 5.5): no control characters, and no whitespace at either end."""
is_length: Final = re.compile(rb"[0-9]{1,18}").fullmatch
FORBIDDEN: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
"""Fields of HTTP/1.1 connections.  A message with one of them is malformed (section 8.2.2)."""


T = TypeVar("T")

FieldList = list[tuple[bytes, bytes]]

_MOST_REMEMBERED: Final = 64
"""The most remembered blocks of one connection."""
_LONGEST_REMEMBERED: Final = 512
"""The longest block that is remembered, in bytes."""
_MOST_DECODED: Final = 1 << 15
"""The most decoded bytes of one connection's remembered blocks.  A short block of indexes may decode to many bytes."""
_SIZE_UPDATE: Final = 0x20
"""The first three bits of a dynamic table size update."""
EMPTY_TABLE_UPDATE: Final = b"\x20"
"""A dynamic table size update to zero (RFC 7541 section 6.3)."""


class Undecodable(Exception):
    """A block is not a valid field block.  The state of the table is unknown."""


class TooLarge(Undecodable):
    """A block decodes to more bytes than allowed.  It was not decoded to its end."""


class _Table(HeaderTable):
    """A header table that counts its changes."""

    version = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.version += 1
        super().add(name, value)


class BlockReader(Generic[T]):
    """Decodes the blocks of one connection.  `understand` turns the fields of a head into the value that `read`
    returns."""

    def __init__(self, most_bytes: int, understand: Callable[[FieldList], T]) -> None:
        self._decoder = Decoder(max_header_list_size=most_bytes)
        self._table = self._decoder.header_table = _Table()
        self._understand = understand
        self._known: dict[bytes, T] = {}
        self._decoded_bytes = 0
        """The decoded bytes of all remembered blocks."""

    def read(self, block: bytes) -> T:
        """Return the value for a head's block.  Raises Undecodable."""
        known = self._known.get(block)
        if known is not None:
            return known
        version = self._table.version
        fields = self.decode(block)
        understood = self._understand(fields)
        is_lasting = self._table.version == version and not _changes_size(block)
        if is_lasting and len(block) <= _LONGEST_REMEMBERED:
            self._remember(block, understood, sum(len(name) + len(value) for name, value in fields))
        return understood

    def _remember(self, block: bytes, understood: T, size: int) -> None:
        if len(self._known) >= _MOST_REMEMBERED or self._decoded_bytes + size > _MOST_DECODED:
            self._forget()
        if size <= _MOST_DECODED:
            self._known[block] = understood
            self._decoded_bytes += size

    def _forget(self) -> None:
        self._known.clear()
        self._decoded_bytes = 0

    def decode(self, block: bytes) -> FieldList:
        """Return the fields of any block, including trailers.  Raises Undecodable."""
        version = self._table.version
        try:
            return [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise TooLarge from error
        except (HPACKError, IndexError) as error:
            raise Undecodable from error
        finally:
            if self._table.version != version or _changes_size(block):
                # Forget the remembered blocks, because the same bytes may now decode to other fields.
                self._forget()


def _changes_size(block: bytes) -> bool:
    return bool(block) and block[0] & 0xE0 == _SIZE_UPDATE


_STATUSES: Final = {b"200": 8, b"204": 9, b"206": 10, b"304": 11, b"400": 12, b"404": 13, b"500": 14}
"""Indexes of static table entries with both name and value."""
_NEVER_INDEXED: Final = frozenset({b"authorization", b"cookie"})
"""Secrets, which no intermediary may put into a table (RFC 7541 section 7.1.3)."""
_NAMES: Final = {
    name: index for index, (name, _) in reversed([*enumerate(HeaderTable.STATIC_TABLE, 1)]) if name[:1] != b":"
}


def _integer(value: int, bits: int, first: int) -> bytes:
    """Encode an integer with a prefix of `bits` bits, after the leading bits of `first` (RFC 7541 section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((first | value,))
    out = bytearray((first | most,))
    value -= most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _string(value: bytes) -> bytes:
    size = len(value)
    return (bytes((size,)) if size < 0x7F else _integer(size, 7, 0)) + value


@lru_cache(maxsize=1_024)
def _name(name: bytes) -> bytes:
    """Encode the name of a literal field without indexing (RFC 7541 sections 6.2.2, 6.2.3).  The result is empty if the
    field must not be sent."""
    name = name.lower()
    if name in FORBIDDEN:
        return b""
    index, first = _NAMES.get(name), 0x10 if name in _NEVER_INDEXED else 0
    return _integer(index, 4, first) if index is not None else bytes((first,)) + _string(name)


@lru_cache(maxsize=64)
def status_block(status: bytes) -> bytes:
    """Encode the pseudo field that begins every answer.  `status` has three digits."""
    index = _STATUSES.get(status)
    return bytes((0x80 | index,)) if index is not None else b"\x08\x03" + status


@lru_cache(maxsize=8)
def block_of(head: bytes) -> bytes:
    """Encode an HTTP/1.1 response head, including its status line and its empty line."""
    first, *lines = head[:-4].split(b"\r\n")
    out = [status_block(first[9:12])]
    _add_fields(out, lines)
    return b"".join(out)


@lru_cache(maxsize=32)
def split_response(response: bytes, body_bytes: int) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the field block and the body of a response.  Cached, because long-polls that wait together get the same
    response, except for the web origin in it.
    """
    size = len(response) - body_bytes
    return block_of(response[:size]), (response[size:],) if body_bytes else ()


_GET: Final = b"\x82"
_SCHEMES: Final = {"http": b"\x86", "https": b"\x87"}
_AUTHORITY, _METHOD, _PATH = b"\x01", b"\x02", b"\x04"
"""Encoded names from the static table, for literal fields without indexing."""


def request_block(head: bytes, scheme: str) -> bytes:
    """Encode an HTTP/1.1 request head with one Host line, including its request line and its empty line.

    The Host field becomes `:authority` (RFC 9113 section 8.3.1).
    """
    first, *lines = head[:-4].split(b"\r\n")
    method, path, _ = first.split(b" ")
    at = next(at for at, line in enumerate(lines) if line[:5].lower() == b"host:")
    host = lines.pop(at)[6:]
    out = [_GET if method == b"GET" else _METHOD + _string(method), _SCHEMES[scheme]]
    out += (_AUTHORITY, _string(host), _PATH, _string(path))
    _add_fields(out, lines)
    return b"".join(out)


def _add_fields(out: list[bytes], lines: list[bytes]) -> None:
    """Add literal fields for these lines of a head."""
    for line in lines:
        name, _, value = line.partition(b": ")
        if coded := _name(name):
            size = len(value)
            out += (coded, bytes((size,)) if size < 0x7F else _integer(size, 7, 0), value)
