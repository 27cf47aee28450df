"""When the followed streams that are in doubt are confirmed at the origin.

One refused write may bring thousands of streams into doubt, because a path has a stream for each token.  So the streams
are confirmed one by one, at most one in `EVERY_S`, and the paths take turns: a path with many streams does not delay
the others.  A stream that waits has its live readers meanwhile, and any other read of it asks the origin first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.aio.clock import Clock, Timer
from gateway.engine.s2.stream import S2Stream
from gateway.protocol.stream_key import Group

EVERY_S: Final = 0.02
"""Between two confirmations that no reader waits for."""


class S2Confirmations:
    """The streams that wait for their confirmation, each once.  Decides only; `confirm` asks the origin.

    `confirm` is called with a stream and the net of the client that the origin is asked for.
    """

    def __init__(self, clock: Clock, confirm: Callable[[S2Stream, str], object]) -> None:
        self._clock = clock
        self._confirm = confirm
        self._waiting: OrderedDict[Group, dict[S2Stream, str]] = OrderedDict()
        """The streams of each path and their clients' nets; the path whose turn is next is the first."""
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<S2Confirmations of {sum(map(len, self._waiting.values()))} streams>"

    def add(self, stream: S2Stream, client: str) -> None:
        """Have the stream confirmed in its turn."""
        self._waiting.setdefault(stream.stream.key.group, {}).setdefault(stream, client)
        if self._timer is None:
            self._turn()

    def remove(self, stream: S2Stream) -> None:
        """The stream is followed no more."""
        group = stream.stream.key.group
        if (streams := self._waiting.get(group)) is not None:
            streams.pop(stream, None)
            if not streams:
                del self._waiting[group]

    def _turn(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        group, streams = self._waiting.popitem(last=False)
        stream = next(iter(streams))
        client = streams.pop(stream)
        if streams:
            self._waiting[group] = streams
        self._timer = self._clock.call_later(EVERY_S, self._turn)
        self._confirm(stream, client)

    def close(self) -> None:
        """Confirm nothing more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
