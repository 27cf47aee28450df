"""Loads the certificates of all listeners, at the start and again when their files change.

If the new files are unusable, the log states the reason and the previous certificates stay in use.  Open connections
are not affected.

`gateway.server.certificates` loads one listener's files, and `gateway.config.watched_files` detects changes.  A reload
of the whole configuration loads the certificates as well (`gateway.app`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gateway.aio.clock import Clock
from gateway.config.errors import ConfigError, Mistakes
from gateway.config.listener import ListenerConfig
from gateway.config.reader import ConfigReader, ConfigReadTimeout
from gateway.config.watched_files import Stamp, Watch
from gateway.server.certificates import LoadedCertificates, load
from gateway.server.listeners import Certificates, Listeners

_log = logging.getLogger("gateway.server")


def certificate_files(listeners: Sequence[ListenerConfig]) -> tuple[str, ...]:
    """Return the files of the listeners' certificates, keys and client CAs."""
    tables = [listener.tls for listener in listeners if listener.tls is not None]
    named = [
        file
        for tls in tables
        for file in (tls.client_ca, *(file for one in tls.certificates for file in (one.certificate, one.key)))
    ]
    return tuple(filter(None, named))


def load_certificates(
    listeners: Sequence[ListenerConfig], alpn: Sequence[str], old: Certificates | None = None
) -> dict[int, LoadedCertificates]:
    """Read the certificates of all listeners.  Blocks.

    `old` has the certificates in use.  Raises ConfigError if a file cannot be used and `old` has no earlier version of
    it.
    """
    found: dict[int, LoadedCertificates] = {}
    mistakes = Mistakes()
    for index, listener in enumerate(listeners):
        with mistakes.collected():
            loaded = load(listener, f"listener[{index}]", alpn, (old or {}).get(index))
            if loaded is not None:
                found[index] = loaded
    mistakes.raise_any()
    return found


class CertificateReloader:
    """Reloads the listeners' certificates when their files change.

    `configured` returns the configured listeners.  `use` is called with the loaded certificates.  During a reload, the
    lock `reloading` is held.
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
        """Watch the files until cancelled.  `known` is the stamp of the files from before they were read the first
        time."""
        await self._watch.run(known)

    def _load(self) -> Certificates:
        """Return the certificates of the current listeners.  Runs in a thread for reading files."""
        return load_certificates(self._configured(), self._listeners.alpn, self._listeners.certificates)

    async def _reload(self) -> None:
        """Load the files again, and use the new certificates if the files are usable.  Raises ConfigReadTimeout if
        reading takes too long."""
        async with self._reloading:
            try:
                self._use(await self._reader.read())
            except ConfigError as error:
                _log.warning("the new certificates are not used: %s", error)
                if isinstance(error, ConfigReadTimeout):
                    raise
