"""Reloading of the listeners' certificates when their files change.

Unusable files change nothing: the previous certificates stay in use, and the log has a line with the reason.  Open
connections are not affected.  `gateway.server.certificates` loads, `gateway.config.watched_files` notices changes; a
reload of the whole configuration loads the certificates as well (`gateway.app`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gateway.aio.clock import Clock
from gateway.config.errors import ConfigError
from gateway.config.listener import ListenerConfig
from gateway.config.reader import ConfigReader, ConfigReadTimeout
from gateway.config.watched_files import Stamp, Watch
from gateway.server.listeners import Certificates, Listeners, certificate_files, load_certificates

_log = logging.getLogger("gateway.server")


class CertificateReloader:
    """Watches the certificate files of the listeners; `configured` returns the configured listeners, as in effect.

    `use` receives the loaded certificates, while `reloading` is held.
    """

    def __init__(
        self,
        configured: Callable[[], Sequence[ListenerConfig]],
        listeners: Listeners,
        use: Callable[[Certificates], object],
        reloading: asyncio.Lock,
        clock: Clock,
    ) -> None:
        self._configured = configured
        self._listeners = listeners
        self._use = use
        self._reloading = reloading
        self._reader = ConfigReader(self._load, clock)
        self._watch = Watch(lambda: certificate_files(configured()), self._reload, clock)

    async def run(self, known: Stamp) -> None:
        """Watch until cancelled; `known` is the stamp of the files taken before they were read."""
        await self._watch.run(known)

    def _load(self) -> Certificates:
        """The current listeners' certificates.  Runs in the reader's thread."""
        return load_certificates(self._configured(), self._listeners.alpn, self._listeners.certificates)

    async def _reload(self) -> None:
        """Load the files again.  Raises ConfigReadTimeout if they are not read in time."""
        async with self._reloading:
            try:
                self._use(await self._reader.read())
            except ConfigError as error:
                _log.warning("certificates are not taken: %s", error)
                if isinstance(error, ConfigReadTimeout):
                    raise
