"""Walks that a batch's bound has stopped, kept open for the next batch.

If an origin answers with everything up to its tail, there is no token within the reply to continue from.  The next
batch would request the same reply and skip what was read, so a long backlog would be read as many times as it has
batches.  A few such replies therefore stay open.  Losing one costs a repeated read and nothing else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_durable_streams.places import Place
from pyspark_durable_streams.walk import Part, Walk

_MOST: Final = 8
"""The most connections kept open."""


@dataclass(frozen=True, slots=True)
class Paused:
    """A walk in the middle of a reply."""

    walk: Walk
    parts: Iterator[Part]
    rest: Part
    """Read but not used."""

    def close(self) -> None:
        """Drop its connection."""
        close = getattr(self.parts, "close", None)
        if close is not None:
            close()


class PausedWalks:
    """At most one walk per stream and a few in total, the latest ones; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._walks: OrderedDict[str, Paused] = OrderedDict()

    def keep(self, walk: Walk, parts: Iterator[Part], rest: Part) -> None:
        """Keep a walk that has read `rest` beyond the batch."""
        with self._lock:
            self._walks[walk.stream] = Paused(walk, parts, rest)
            gone = self._walks.popitem(last=False)[1] if len(self._walks) > _MOST else None
        if gone is not None:
            gone.close()

    def take(self, stream: str, place: Place) -> Paused | None:
        """The walk that continues at this place; None if there is none."""
        with self._lock:
            paused = self._walks.pop(stream, None)
        if paused is not None and paused.rest.place != place:
            paused.close()
            return None
        return paused

    def close(self) -> None:
        """Drop all walks."""
        with self._lock:
            walks, self._walks = self._walks, OrderedDict()
        for paused in walks.values():
            paused.close()
