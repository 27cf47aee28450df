"""Reads files in a thread while the gateway serves, such as the configuration for a reload.

The disk may hang, or the file may be a pipe without a writer.  The caller therefore waits for at most `READ_S`.  The
thread is a daemon thread, so the process can exit while the thread hangs.  (Python would wait for threads of the loop's
default executor at the exit.)  Each reader has at most one thread: while it hangs, further reads fail at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from gateway.aio.clock import Clock, wait_until
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig

READ_S: Final = 10.0
"""The longest wait for a read, in seconds."""

Load = Callable[[], GatewayConfig]
T = TypeVar("T")


class ConfigReadTimeout(ConfigError):
    """The configuration was not read in time.  It may be valid, and another attempt may succeed."""


class ConfigReader(Generic[T]):
    """Calls `load`, which blocks on the disk, in a thread."""

    def __init__(self, load: Callable[[], T], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._reading: asyncio.Future[Any] | None = None

    def __repr__(self) -> str:
        is_reading = self._reading is not None and not self._reading.done()
        return f"<ConfigReader {'reading' if is_reading else 'idle'}>"

    async def read(self) -> T:
        """Call `load` in a thread; return its result.

        Raises the exceptions of `load`, and ConfigReadTimeout if it takes longer than `READ_S`.
        """
        if self._reading is not None and not self._reading.done():
            raise ConfigReadTimeout("an earlier read of the configuration has not ended yet")
        reading = self._reading = self._started()
        if not await wait_until(reading, self._clock, READ_S):
            raise ConfigReadTimeout(f"the configuration could not be read within {READ_S:g} s")
        config: T = reading.result()
        return config

    def _started(self) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[Any] = loop.create_future()
        # After a timeout the result is not used.  Mark its exception as retrieved, so that asyncio does not log it.
        reading.add_done_callback(lambda done: done.exception())

        def resolve(config: T | None, error: Exception | None) -> None:
            # The loop may have been closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, reading, config, error)

        def read() -> None:
            try:
                config = self._load()
            except Exception as error:
                resolve(None, error)
            else:
                resolve(config, None)

        threading.Thread(target=read, name="configuration", daemon=True).start()
        return reading


def _resolve(reading: asyncio.Future[Any], config: object, error: Exception | None) -> None:
    if error is not None:
        reading.set_exception(error)
    else:
        reading.set_result(config)
