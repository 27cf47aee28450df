"""JSON bodies cut into messages without a change to any of them (section 7.1).

An append's body is one message, or an array of messages: exactly one level of array is removed.  The messages keep
their bytes.  Parsed and written again they would not: numbers would lose digits, and objects repeated names.

To parse is to make an object of each value, and arrays and objects are the dear ones: 2 MiB of `[]` took 0.2 s of
processor time.  More than half of that was the collector, which new containers start and which can find nothing among
those of a parser, so it rests meanwhile.  The rest is bounded by counting them first.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Never

from gateway.protocol.json_grammar import is_json
from gateway.s2.records import MAX_BATCH_RECORDS

MOST_CONTAINERS: Final = 1 << 17
"""Arrays and objects in the body of an append: one for each 8 bytes of the 1 MiB that S2 takes."""

_SPACE: Final = " \t\r\n"


class BadMessages(ValueError):
    """The body is not JSON."""


class TooManyContainers(ValueError):
    """The body has more than `MOST_CONTAINERS` arrays and objects."""


def is_message(body: bytes) -> bool:
    """Whether the bytes are one JSON text in UTF-8."""
    with _collector_at_rest():
        return is_json(body)


def split_messages(body: bytes, most: int = MAX_BATCH_RECORDS) -> list[bytes]:
    """The messages of an append's body; none for an empty array.  Raises `BadMessages` or `TooManyContainers`.

    If there are more than `most`, only one more of them is returned: an array of a million takes a second to cut.
    """
    if _containers(body) > MOST_CONTAINERS:
        raise TooManyContainers
    # One parser decides what is JSON, so that what is appended is also what reads take for a message.
    if not is_message(body):
        raise BadMessages
    text = body.decode()
    at = _skip(text, 0)
    if text[at] != "[":
        return [text.strip(_SPACE).encode()]
    found: list[bytes] = []
    at = _skip(text, at + 1)
    with _collector_at_rest():
        while text[at] != "]" and len(found) <= most:
            try:
                _, end = _decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                raise BadMessages from error
            found.append(text[at:end].encode())
            at = _skip(text, end)
            if text[at] == ",":
                at = _skip(text, at + 1)
    return found


def _containers(body: bytes) -> int:
    """How many arrays and objects the body begins; at most so many, if all of it cannot be too many."""
    most = body.count(b"[") + body.count(b"{")
    if most <= MOST_CONTAINERS:
        return most
    # Without the strings, whose brackets are none.
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return outside.count(b"[") + outside.count(b"{")


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Keep the collector from looking through what a parser has just made."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _refuse(name: str) -> Never:
    raise ValueError(name)


_decoder: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
"""Only the ends of the values matter: numbers stay text, because a long one takes quadratic time to convert."""
