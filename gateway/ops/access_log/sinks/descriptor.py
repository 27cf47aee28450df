"""A sink that writes to an open file descriptor, such as stdout for a container's log collector."""

from __future__ import annotations

import os
from functools import partial

from gateway.aio.clock import Clock
from gateway.ops.access_log.sinks.sink import Trouble
from gateway.ops.access_log.sinks.thread import WorkThread
from gateway.ops.access_log.sinks.turns import WriteTurns

STDOUT = 1


class DescriptorSink:
    """Writes to a descriptor.  It does not own the descriptor, and does not close it."""

    def __init__(
        self, clock: Clock, descriptor: int = STDOUT, name: str = "stdout", turns: WriteTurns | None = None
    ) -> None:
        """With `turns`, other processes write to the same descriptor."""
        self._descriptor = descriptor
        self._turns = turns
        self._thread = WorkThread("access-log")
        self._trouble = Trouble(name, clock)
        self._is_torn = False
        """Whether only a part of the last line was written."""

    async def write(self, lines: bytes) -> bool:
        return await self._thread.run(partial(self._write, lines))

    async def close(self) -> None:
        self._thread.stop(self._turns.close if self._turns is not None else lambda: None)

    def _write(self, lines: bytes) -> bool:
        if self._turns is None:
            return self._write_alone(lines)
        with self._turns.turn() as is_torn:
            self._is_torn |= is_torn
            return self._write_alone(lines)

    def _write_alone(self, lines: bytes) -> bool:
        # End the partial line, so that the next record begins on a new line.
        rest = memoryview(b"\n" + lines if self._is_torn else lines)
        self._is_torn = False
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            written = lines[: len(lines) - len(rest)]
            self._is_torn = bool(written) and not written.endswith(b"\n")
            self._trouble.failed(error.strerror or str(error))
            return False
        self._trouble.worked()
        return True
