"""Reloading of the TLS files for origins when they change: authorities, client certificates and their keys.

Unusable files change nothing: the previous settings stay in use, and the operator gets a line with the reason.  Open
connections are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.origin_tls import OriginTls, load_tls, tls_files
from gateway.config.reader import ConfigReader, ConfigReadTimeout
from gateway.config.watched_files import Stamp, Watch
from gateway.upstream.origins import Say


class TlsReloader:
    """Watches the files that the configuration names.  Owns its task; `close` must be called.

    `config` returns the configuration in effect.  `take` receives the reloaded settings: the origins with TLS settings
    of their own.
    """

    def __init__(
        self,
        config: Callable[[], GatewayConfig],
        take: Callable[[Mapping[str, OriginTls]], object],
        clock: Clock,
        say: Say,
    ) -> None:
        self._config = config
        self._take = take
        self._say = say
        self._requested = config()
        self._reader = ConfigReader(lambda: load_tls(self._requested), clock)
        self._tasks = Tasks()
        self._watch = Watch(lambda: tls_files(config()), self._reload, clock)

    @property
    def polls(self) -> int:
        """How often the files have been checked."""
        return self._watch.polls

    def start(self, known: Stamp) -> None:
        """Start watching; `known` is the stamp of the files taken before they were read."""
        self._tasks.start(self._watch.run(known), "watch the files of route.origin_tls")

    async def close(self) -> None:
        await self._tasks.close()

    async def _reload(self) -> None:
        requested = self._requested = self._config()
        try:
            tls = await self._reader.read()
        except ConfigError as error:
            self._say(f"{error}; the previous settings stay in use")
            if isinstance(error, ConfigReadTimeout):
                raise
            return
        if requested is self._config():
            self._take(tls)
            self._say("route.origin_tls: files changed and were reloaded")
