"""The certificates that the supervisor keeps for workers that start again.

The supervisor reads certificates at its own start only, because it must not wait for a disk later.  Each worker hands
its certificates over when it begins to serve, and when they change.  A worker that starts again reads the files itself.
If a file is unusable then, this worker has the certificates that its siblings have.  The process that reads the
configuration for a reload uses the same copy.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress

from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.server.certificates import Certificates, Portable, load_certificates, portable, restore
from gateway.server.handshake import ALPN
from gateway.workers.control import Control, Message


class KeptCertificates:
    """The certificates of the gateway's start, and the latest that a worker has handed over."""

    def __init__(self, config: GatewayConfig) -> None:
        """Read the certificates.  Raises ConfigError."""
        self._at_start: Certificates = load_certificates(config.every_listener, ALPN)
        _make_session_contexts(self._at_start)
        self._latest = b""
        """The pickled `Portable`; empty until a worker has handed its certificates over."""

    def __repr__(self) -> str:
        return f"<KeptCertificates of {len(self._at_start)} listeners, {len(self._latest)} bytes from workers>"

    def hear(self, message: Message) -> None:
        """Keep the certificates that a worker hands over."""
        if (memory := message["descriptor"]) is not None:
            self._latest = os.pread(memory, os.fstat(memory).st_size, 0)
            os.close(memory)

    def read(self, config: GatewayConfig) -> Certificates:
        """Read the certificates of a configuration.  Blocks.  A pair of files that is unusable keeps the version that
        the workers have.  Raises ConfigError if they have none."""
        return load_certificates(config.every_listener, ALPN, self._of_workers())

    def of_worker(self, generation: int, config: GatewayConfig) -> Certificates:
        """Return the certificates of a worker that has just been forked.  Blocks if it is not the first of its slot:
        this worker alone waits for the disk."""
        if generation <= 1:
            return self._at_start
        try:
            found = self.read(config)
        except ConfigError:
            found = self._of_workers()
        _make_session_contexts(found)
        return found

    def _of_workers(self) -> Certificates:
        if self._latest:
            with suppress(ConfigError):
                return restore(pickle.loads(self._latest), self._at_start)
        return self._at_start


def handing_over(control: Control) -> Callable[[Certificates], None]:
    """Return a function that hands a worker's certificates over to the supervisor, if they have changed."""
    latest: Portable = {}

    def hand_over(certificates: Certificates) -> None:
        nonlocal latest
        if (found := portable(certificates)) == latest:
            return
        # Without a free descriptor, the supervisor keeps the certificates that it has.
        with suppress(OSError):
            memory = os.memfd_create("durable-gateway-certificates")
            with os.fdopen(memory, "wb") as file:
                file.write(pickle.dumps(found))
                file.flush()
                if control.tell("certificates", memory):
                    latest = found

    return hand_over


def _make_session_contexts(certificates: Certificates) -> None:
    for one in certificates.values():
        one.make_session_contexts()
