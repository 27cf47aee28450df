"""From messages to POSTs: which messages go together, and what the body is.

The messages of one (batch, stream) are cut from the left: a POST takes messages while its body stays within
`max_bytes`, and a message that is larger goes alone.  So the cut is a function of the messages' lengths and of that
bound and of nothing else: not of the borders of Arrow's batches, not of the number of tasks.  That is what lets a
replay give the same body to the same sequence number.

A JSON stream's body is an array, of which the origin makes one message an element.  It is counted before it is sent:
a value that is two JSON values would become two messages, and one that is half a value would spoil its neighbours.
Any other stream is bytes: messages are put one behind the other, with the separator behind each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_durable_streams.errors import BadRow
from pyspark_durable_streams.framing import LINED

_SHOWN_BYTES: Final = 80


@dataclass(frozen=True, slots=True)
class Framing:
    """How the messages of a POST are put together."""

    is_json: bool
    separator: bytes = b""
    """Behind each message of a stream that is not JSON."""

    @classmethod
    def of(cls, content_type: str, separator: bytes | None = None) -> Framing:
        """For a stream of `content_type`; without a separator given, newline-delimited JSON has a newline."""
        essence = content_type.partition(";")[0].strip().lower()
        if essence == "application/json":
            return cls(is_json=True)
        if separator is None:
            separator = b"\n" if essence in LINED else b""
        return cls(is_json=False, separator=separator)

    @property
    def each_bytes(self) -> int:
        """What a message costs beyond its own bytes."""
        return 1 if self.is_json else len(self.separator)

    @property
    def once_bytes(self) -> int:
        """What a body costs beyond its messages: of JSON's two brackets, one stands where a comma is not."""
        return 1 if self.is_json else 0


def cut(lengths: Any, limit: int) -> list[int]:
    """Where each POST ends, as counts of messages from the start; `limit` bounds the sum of the lengths in one."""
    sums = np.cumsum(np.asarray(lengths, np.int64))
    ends: list[int] = []
    start, before = 0, 0
    while start < len(sums):
        end = max(int(np.searchsorted(sums, before + limit, side="right")), start + 1)
        ends.append(end)
        start, before = end, int(sums[end - 1])
    return ends


def bodies(messages: pa.LargeBinaryArray, framing: Framing, max_bytes: int) -> list[bytes]:
    """The bodies of the POSTs that bring `messages`, in order.  BadRow where one is not one JSON value.

    All of them are made, and looked at, before the first can be sent: a message that nobody can take must not be found
    half-way.  A body that would be empty is left out: it has nothing to bring, and no origin takes it.
    """
    lengths = pc.binary_length(messages).to_numpy(zero_copy_only=False) + framing.each_bytes
    made: list[bytes] = []
    start = 0
    for end in cut(lengths, max_bytes - framing.once_bytes):
        if body := _body(messages[start:end], framing):
            made.append(body)
        start = end
    return made


def _body(messages: pa.LargeBinaryArray, framing: Framing) -> bytes:
    count = len(messages)
    together = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), messages)
    between = pa.scalar(b"," if framing.is_json else framing.separator, pa.large_binary())
    joined = pc.binary_join(together, between)[0].as_buffer()
    if not framing.is_json:
        return b"".join((joined, framing.separator))
    body = b"".join((b"[", joined, b"]"))
    try:
        is_as_many = len(orjson.loads(body)) == count
    except orjson.JSONDecodeError:
        is_as_many = False
    if not is_as_many:
        raise _culprit(messages)
    return body


def _culprit(messages: pa.LargeBinaryArray) -> BadRow:
    for message in messages.to_pylist():
        try:
            orjson.loads(message)
        except orjson.JSONDecodeError as error:
            shown = message[:_SHOWN_BYTES].decode("utf-8", "replace")
            return BadRow(f"a value is not one JSON value ({error}): {shown!r}")
    return BadRow("values that are JSON each, but not together")
