"""The certificates that the supervisor keeps for workers that start again.

The supervisor reads certificates only at its own start, because it must not wait for a disk later.  Each worker sends
its certificates to the supervisor when it begins to serve, and when they change.  A worker that starts again reads the
files itself.  If a file is unusable then, this worker uses the supervisor's copy of the certificates of its siblings.
The process that reads the configuration for a reload uses the same copy.
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
    """The certificates at the gateway's start, and the latest certificates that a worker has sent."""

    def __init__(self, config: GatewayConfig) -> None:
        """Read the certificates.  Raises ConfigError."""
        self._at_start: Certificates = load_certificates(config.every_listener, ALPN)
        _make_session_contexts(self._at_start)
        self._latest = b""
        """The latest certificates of a worker as a pickled `Portable`; empty until a worker has sent them."""

    def __repr__(self) -> str:
        return f"<KeptCertificates of {len(self._at_start)} listeners, {len(self._latest)} bytes from workers>"

    def hear(self, message: Message) -> None:
        """Keep the certificates in a worker's message."""
        if (memory := message["descriptor"]) is not None:
            self._latest = os.pread(memory, os.fstat(memory).st_size, 0)
            os.close(memory)

    def read(self, config: GatewayConfig) -> Certificates:
        """Read the certificates of a configuration from their files.  Blocks.  If a pair of files is unusable, the
        certificate that the workers have is used instead.  Raises ConfigError if they have none."""
        return load_certificates(config.every_listener, ALPN, self._of_workers())

    def of_worker(self, generation: int, config: GatewayConfig) -> Certificates:
        """Return the certificates for a worker that has just been forked.  Called in the worker's process.  Blocks
        unless the worker is the first of its slot, so only this worker waits for the disk."""
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
    """Return a function that sends a worker's certificates to the supervisor if they have changed."""
    latest: Portable = {}

    def hand_over(certificates: Certificates) -> None:
        nonlocal latest
        if (found := portable(certificates)) == latest:
            return
        # If there is no free descriptor, send nothing.  The supervisor then keeps its earlier copy.
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
