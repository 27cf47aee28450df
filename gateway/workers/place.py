"""The place of a worker among the workers of one gateway."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from gateway.workers.control import Control
from gateway.workers.shared_memory import SharedMemory


@dataclass(frozen=True, slots=True, eq=False)
class WorkerPlace:
    """A worker's slot, and everything that the worker shares with the other workers.  A gateway with a single process
    has no `WorkerPlace`."""

    slot: int
    workers: int
    """The number of slots."""
    generation: int
    """The number of processes that have had this slot, including this one."""
    shared: SharedMemory
    hop_socket: socket.socket
    """The listening Unix socket for requests that other workers pass to this worker."""
    hop_paths: tuple[str, ...]
    """The path of each slot's `hop_socket`."""
    peer_socket: socket.socket
    """The listening Unix socket of this worker's private admin port."""
    peer_paths: tuple[str, ...]
    """The path of each slot's `peer_socket`."""
    predecessors: tuple[str, ...]
    """The paths of the private admin sockets of the previous version, which this version replaces.  Empty after an
    ordinary start."""
    arrivals_socket: socket.socket
    """The Unix socket for new connections that other workers pass to this worker."""
    arrivals_paths: tuple[str, ...]
    """The path of each slot's `arrivals_socket`."""
    folder: str
    """A folder that only the gateway's user can enter.  The supervisor removes the folder at its end.  If the
    supervisor was killed, the last worker removes the folder."""
    secret: bytes
    """32 random bytes, which are the same at all workers of a gateway, and after an upgrade at the workers of the next
    version too."""
    control: Control
    """The channel to the supervisor."""

    @property
    def process_name(self) -> str:
        """The name of this process in statements to other workers.  No other process of the gateway has had it."""
        return f"{self.slot}.{self.generation}.{os.getpid()}"

    @property
    def has_predecessor(self) -> bool:
        """Whether a process still runs whose version this version replaces."""
        return any(map(listens, self.predecessors))


def listens(path: str) -> bool:
    """Return whether a process listens at a Unix socket.  Does not wait: if the queue is full, a process listens."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
