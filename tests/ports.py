"""Ports of loopback that stay a test's own while nothing listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """A free port, which nobody else gets in the block.

    A server may listen there, stop and start again.  In between, connections are refused; the port of a server that has
    stopped may be the next one of a server of another process.
    """
    # Linux binds a second socket to the address of one that does not listen if both ask for it, but chooses such an
    # address for nobody.
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port: int = kept.getsockname()[1]
        yield port
