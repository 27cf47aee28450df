"""Read the configuration again while the gateway serves.

The disk may hang, or the file may be a pipe without a writer.  So a daemon thread does the reading: the caller waits
`READ_S` at most, and the process does not wait for the thread when it exits (threads of the loop's default executor
are joined).  There is one such thread at a time; while it is stuck, further reads fail at once.
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
"""Longest time to wait for the configuration, in seconds."""

Load = Callable[[], GatewayConfig]
T = TypeVar("T")


class ConfigReadTimeout(ConfigError):
    """The configuration was not read in time: nothing is known of its contents, and another attempt may succeed."""


class ConfigReader(Generic[T]):
    """Calls `load` in a thread; it returns a configuration and whatever is read with it.  Owns the thread."""

    def __init__(self, load: Callable[[], T], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._reading: asyncio.Future[Any] | None = None

    def __repr__(self) -> str:
        is_reading = self._reading is not None and not self._reading.done()
        return f"<ConfigReader {'reading' if is_reading else 'idle'}>"

    async def read(self) -> T:
        """Return what `load` returns.

        Raises ConfigError if it cannot be used, and its subclass ConfigReadTimeout if it is not read within `READ_S`.
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
        # After a timeout or a cancellation the result has no taker: mark its exception as retrieved.
        reading.add_done_callback(lambda done: done.exception())

        def resolve(config: T | None, error: Exception | None) -> None:
            # The loop may have closed in the meantime.
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
