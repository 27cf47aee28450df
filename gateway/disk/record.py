"""The format of a record: one run of a stream's bytes, with its tokens and a checksum.

A record consists of a head of fixed size, a header in JSON, and the bytes.  The head has a magic number, the sizes of
the header and of the bytes, and a checksum of the sizes, the header and the bytes.  A record is decoded only if its
length and its checksum are right.  A record that is incomplete after a crash, or has a flipped bit, is therefore never
used.

The header identifies the run and the stream.  The identifier of the stream is a digest of its key and of the store's
random id.  A reader therefore detects an index that points to the record of another stream or run.  It also detects a
changed key in the index, and an index of an earlier store in the same folder.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from gateway.tape.block import Block

_HEAD: Final = struct.Struct("<4sIQ16s")
_MAGIC: Final = b"dgr2"


class Record(NamedTuple):
    """A decoded record."""

    owner: str
    """The digest that identifies the stream (`StoredKey.owner_in`)."""
    written_at: float
    """The time when the record was created, in Unix seconds."""
    block: Block


def encode(owner: str, written_at: float, block: Block) -> list[bytes]:
    """Return the record of a block, as a list of pieces."""
    header = orjson.dumps([owner, written_at, block.start, block.end, block.is_json, block.marks])
    sizes = (len(header), block.size)
    return [_HEAD.pack(_MAGIC, *sizes, _checksum(sizes, [header, *block.pieces])), header, *block.pieces]


def decode(data: bytes | bytearray) -> Record | None:
    """Return the record in `data`, which must be exactly one record; None if it is damaged."""
    if len(data) < _HEAD.size:
        return None
    magic, header_size, size, checksum = _HEAD.unpack_from(data)
    start = _HEAD.size + header_size
    if magic != _MAGIC or len(data) != start + size:
        return None
    view = memoryview(data)
    if _checksum((header_size, size), [view[_HEAD.size : start], view[start:]]) != checksum:
        return None
    owner, written_at, first, end, is_json, marks = orjson.loads(view[_HEAD.size : start])
    block = Block(first, end, [bytes(view[start:])], is_json, 0.0)
    block.marks = [(position, token) for position, token in marks]
    return Record(owner, written_at, block)


def _checksum(sizes: tuple[int, int], parts: Sequence[bytes | memoryview]) -> bytes:
    digest = hashlib.blake2b(struct.pack("<IQ", *sizes), digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()
