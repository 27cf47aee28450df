"""What a supervisor hands to a worker that it forks."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.server.certificates import LoadedCertificates
from gateway.workers.place import WorkerPlace


@dataclass(frozen=True, slots=True, eq=False)
class Handed:
    """A worker's place, its sockets, and the certificates.

    The supervisor keeps every socket open.  The queue of a listening socket therefore outlives the worker that accepts
    from it, and the next worker of the slot goes on.
    """

    place: WorkerPlace
    listening: Mapping[int, Sequence[socket.socket]]
    """The worker's sockets by the index of their listener in the configuration."""
    admin: Sequence[socket.socket]
    """The sockets of the admin port, from which all workers accept."""
    certificates: Mapping[int, LoadedCertificates]
    """Certificates by the index of their listener.  All workers have the same contexts, because a TLS session can be
    resumed only where the context has the session's keys."""
