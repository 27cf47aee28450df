"""Reading the configuration again while the gateway serves.

The disk that a configuration is on may not answer, or what is read may be a pipe that nobody writes to.  So it is read
in a thread that nobody has to wait for: not the one who asked, beyond `READ_S`, nor the process when it leaves (a
thread of the loop's own pool would be joined).  There is one such thread at a time; while it stands, nothing else is
read.
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
"""A configuration that is not read within this time is given up."""

Load = Callable[[], GatewayConfig]
T = TypeVar("T")


class ConfigReader(Generic[T]):
    """Reads by `load`, which gives a configuration and what else is read with it.  Owner of the thread."""

    def __init__(self, load: Callable[[], T], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._reading: asyncio.Future[Any] | None = None

    async def read(self) -> T:
        """The configuration as it is now; ConfigError where it cannot be used, or not be read in time."""
        if self._reading is not None and not self._reading.done():
            raise ConfigError("the configuration is still being read, since an earlier time")
        reading = self._reading = self._begun()
        if not await wait_until(reading, self._clock, READ_S):
            raise ConfigError(f"the configuration could not be read within {READ_S:g} s")
        config: T = reading.result()
        return config

    def _begun(self) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[Any] = loop.create_future()
        # Whoever asked may have gone: what came of it is nobody's news then.
        reading.add_done_callback(lambda done: done.exception())

        def tell(config: T | None, error: Exception | None) -> None:
            # After the loop's end there is nobody to tell.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, reading, config, error)

        def read() -> None:
            try:
                config = self._load()
            except Exception as error:
                tell(None, error)
            else:
                tell(config, None)

        threading.Thread(target=read, name="configuration", daemon=True).start()
        return reading


def _resolve(reading: asyncio.Future[Any], config: object, error: Exception | None) -> None:
    if error is not None:
        reading.set_exception(error)
    else:
        reading.set_result(config)
