"""TLS with origins, read again when its files change: authorities, client certificates and their keys.

Files that cannot be used change nothing: what was read before is used on, and the operator gets a line that says why.
Connections that are open stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.origin_tls import OriginTls, load_tls, tls_files
from gateway.config.reader import ConfigReader
from gateway.config.watched_files import Stamp, Watch
from gateway.upstream.origins import Say


class Renewal:
    """Watches the files that the configuration names.  Owner of the task that does so: `close` is owed.

    `config` gives the configuration in effect, `take` takes what was read: the origins with which TLS is spoken
    otherwise than by default.
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
        self._asked = config()
        self._reader = ConfigReader(lambda: load_tls(self._asked), clock)
        self._tasks = Tasks()
        self._watch = Watch(lambda: tls_files(config()), self._renew, clock)

    @property
    def polls(self) -> int:
        """How often the files have been looked at."""
        return self._watch.polls

    def start(self, known: Stamp) -> None:
        """Watch from here on; `known` is the stamp of the files from before they were read."""
        self._tasks.start(self._watch.run(known), "watch the files of route.origin_tls")

    async def close(self) -> None:
        await self._tasks.close()

    async def _renew(self) -> None:
        asked = self._asked = self._config()
        try:
            tls = await self._reader.read()
        except ConfigError as error:
            self._say(f"{error}; what was read before is used on")
            return
        if asked is self._config():
            self._take(tls)
            self._say("route.origin_tls: its files have changed and were read again")
