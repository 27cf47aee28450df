"""Beginning and ending at a time: a stream's first message at or after it.

The protocol knows no times; messages may tell theirs.  A field of JSON messages is taken for it: one that the user
names, else `timestamp` (as the envelopes of bridged S2 streams have it) or `time` (an access log's).  Its values are
numbers, of seconds or milliseconds since 1970, or texts in ISO 8601.  Tokens are opaque, so that there is nothing to
search in: the stream is read to that message, from its beginning or from where it is entered.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.framing import Piece, Unit
from pyspark_durable_streams.misfits import Parser
from pyspark_durable_streams.places import Place
from pyspark_durable_streams.walk import Walk

USUAL_FIELDS: Final = ("timestamp", "time")
_SAMPLE: Final = 100
"""So many messages of each piece are looked at for a time, until one has it."""
_LEAST_MS: Final = 1e11
"""Numbers from here on are milliseconds: of 1973 and later.  As seconds they would be of the year 5138."""


class Moment:
    """A time (seconds since 1970) that is looked for in one stream, by the first of the fields that its messages have.
    `end` is the end of the read that is looked for, as options name it: `starting` or `ending`.
    """

    def __init__(self, end: str, at_s: float, fields: tuple[str, ...]) -> None:
        self.at_s = at_s
        self._end = end
        self._fields = fields
        self._clock: _MessageClock | None = None

    def index(self, walk: Walk, piece: Piece) -> int | None:
        """The index of the first of these messages of a walk at that time or after it; None if there is none.

        Raises BadOption if none of the stream's first messages has a time in one of the fields.
        """
        if self._clock is None and walk.unit is not Unit.BYTE:
            self._clock = _MessageClock.of(piece, self._fields)
        if self._clock is None:
            raise BadOption(
                f"option {self._end}Timestamp: stream {walk.stream} tells no time: its messages are not JSON objects"
                f" with {' or '.join(self._fields)}; timestampField names another field, {self._end}Offsets needs none"
            )
        return self._clock.first(piece, self.at_s)


def place_at(walk: Walk, moment: Moment) -> Place:
    """The place of the first message at a time or after it; the stream's end if there is none yet.

    Raises BadOption if the messages tell no time.
    """
    with closing(walk.parts()) as parts:
        for part in parts:
            if (index := moment.index(walk, part.piece)) is not None:
                return replace(part.inside(index, walk.unit or Unit.ELEMENT), count=0)
    return replace(walk.place, count=0)


class _MessageClock:
    """Reads the times of messages."""

    def __init__(self, field: str, sample: Any) -> None:
        self._field = field
        self._is_text = isinstance(sample, str)
        self._unit_s = 1e-3 if not self._is_text and abs(sample) >= _LEAST_MS else 1.0
        kind = pa.timestamp("us", "UTC") if self._is_text else pa.float64()
        self._parser = Parser(pa.schema([(field, kind)]))

    @classmethod
    def of(cls, piece: Piece, fields: tuple[str, ...]) -> _MessageClock | None:
        """A clock for messages like these; None if they tell no time."""
        for line in piece.data.split(b"\n", _SAMPLE)[:_SAMPLE]:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            for field in fields:
                value = message.get(field) if isinstance(message, dict) else None
                if isinstance(value, int | float | str) and not isinstance(value, bool):
                    clock = cls(field, value)
                    if clock._times(Piece(line + b"\n", 1)).null_count == 0:
                        return clock
        return None

    def first(self, piece: Piece, at_s: float) -> int | None:
        """The index of the first of these messages at or after a time; None if there is none."""
        reached = pc.greater_equal(self._times(piece), at_s).to_numpy(zero_copy_only=False)
        found = np.flatnonzero(reached == True)  # noqa: E712  (a message without a time is null, not false)
        return int(found[0]) if found.size else None

    def _times(self, piece: Piece) -> pa.Array:
        """Seconds since 1970, null for messages that tell none."""
        values = self._parser.parse(piece).table.column(self._field).combine_chunks()
        if self._is_text:
            return pc.divide(values.cast(pa.int64()).cast(pa.float64()), 1e6)
        return pc.multiply(values, self._unit_s)
