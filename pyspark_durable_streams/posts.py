"""From messages to POSTs: how messages are grouped, and the bodies.

The messages of one (batch, stream) are grouped from the first on: a POST takes messages while its body stays within
`max_bytes`, and a larger message goes alone.  The grouping is a function of the messages' lengths and of that bound
only: not of the borders of Arrow's batches, not of the number of tasks.  A replay therefore gives the same body to the
same sequence number.

The body for a JSON stream is an array, whose elements the origin stores as messages.  The elements are counted before
sending: a value of two JSON values would become two messages, and half a value would corrupt its neighbours.  The
grammar alone decides, and the bytes are sent as they are: a copy must not stop at a text that its source took.  For any
other stream the body is bytes: the messages one after the other, each followed by the separator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_durable_streams.codec import parsed
from pyspark_durable_streams.errors import BadRow
from pyspark_durable_streams.framing import LINED

_SHOWN_BYTES: Final = 80


@dataclass(frozen=True, slots=True)
class Framing:
    """How the messages of a POST are combined."""

    is_json: bool
    separator: bytes = b""
    """Follows each message of a non-JSON stream."""

    @classmethod
    def of(cls, content_type: str, separator: bytes | None = None) -> Framing:
        """The framing for `content_type`; the default separator is a newline for newline-delimited JSON, else empty."""
        essence = content_type.partition(";")[0].strip().lower()
        if essence == "application/json":
            return cls(is_json=True)
        if separator is None:
            separator = b"\n" if essence in LINED else b""
        return cls(is_json=False, separator=separator)

    @property
    def each_bytes(self) -> int:
        """The cost of a message beyond its own bytes."""
        return 1 if self.is_json else len(self.separator)

    @property
    def once_bytes(self) -> int:
        """The cost of a body beyond its messages: two brackets of JSON, minus the comma that the last message lacks."""
        return 1 if self.is_json else 0


def cut(lengths: Any, limit: int) -> list[int]:
    """The end of each POST, as counts of messages from the start; `limit` bounds the sum of the lengths in one."""
    sums = np.cumsum(np.asarray(lengths, np.int64))
    ends: list[int] = []
    start, before = 0, 0
    while start < len(sums):
        end = max(int(np.searchsorted(sums, before + limit, side="right")), start + 1)
        ends.append(end)
        start, before = end, int(sums[end - 1])
    return ends


def bodies(messages: pa.LargeBinaryArray, framing: Framing, max_bytes: int) -> list[bytes]:
    """The bodies of the POSTs for `messages`, in order.  BadRow if one is not a single JSON value.

    All of them are built and validated before the first can be sent, so that an invalid message is not found half-way.
    An empty body is left out: it carries nothing, and no origin accepts it.
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
        if len(parsed(body)) == count:
            return body
    except ValueError:
        pass
    raise _invalid_message(messages)


def _invalid_message(messages: pa.LargeBinaryArray) -> BadRow:
    for message in messages.to_pylist():
        try:
            parsed(message)
        except ValueError as error:
            shown = message[:_SHOWN_BYTES].decode("utf-8", "replace")
            return BadRow(f"a value is not one JSON value ({error}): {shown!r}")
    return BadRow("the values are JSON one by one, but not together")
