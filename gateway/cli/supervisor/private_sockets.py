"""The Unix sockets between the workers, in a folder that only the gateway's user can enter.

The supervisor opens these sockets and keeps them open.  If a worker dies, the requests in the queues of its sockets
therefore stay there for the slot's next worker.

The supervisor removes the folder at its end.  If the supervisor was killed, the last worker removes the folder.  If the
file of a socket is missing, all workers have therefore ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.cli.errors import FailedToRunError
from gateway.workers.place import listens

HOP: Final = "hop"
"""Requests that workers pass to each other."""
PEER: Final = "peer"
"""The private admin port of each worker."""
ARRIVALS: Final = "arrivals"
"""New connections that workers pass to each other."""

_BACKLOG: Final = 1_024
_PREFIX: Final = "durable-gateway-"
_SHARED_MEMORY: Final = "/dev/shm"
_LONGEST_PLACE: Final = 64
"""The most bytes of the path of the temporary folder.  The path of a Unix socket has at most 107 bytes (unix(7))."""


class PrivateSockets:
    """One socket of each kind for each slot."""

    def __init__(self, slots: int) -> None:
        """Raises FailedToRunError if there is no place for the sockets, or if they cannot be opened."""
        self.folder = _new_folder()
        self._held = HeldFolder(self.folder)
        self._sockets: dict[str, list[socket.socket]] = {kind: [] for kind in (HOP, PEER, ARRIVALS)}
        try:
            for kind, opened in self._sockets.items():
                for slot in range(slots):
                    opened.append(self._open(kind, slot))
        except OSError as error:
            self.close()
            raise FailedToRunError(f"cannot open the workers' sockets: {error.strerror}") from None

    def __repr__(self) -> str:
        return f"<PrivateSockets in {self.folder}>"

    def of(self, kind: str, slot: int) -> socket.socket:
        """Return a slot's socket."""
        return self._sockets[kind][slot]

    def paths(self, kind: str) -> tuple[str, ...]:
        """Return the path of each slot's socket."""
        return tuple(self._path(kind, slot) for slot in range(len(self._sockets[kind])))

    def close_others(self, slot: int) -> None:
        """Close all descriptors except those that a slot's worker uses.  Called in the worker's process."""
        self._held.close()
        for sockets in self._sockets.values():
            for other, sock in enumerate(sockets):
                if other != slot:
                    sock.close()

    def close_slot(self, slot: int) -> None:
        """Close the sockets of a slot that gets no further worker, so that no process waits for answers of this
        slot."""
        for sockets in self._sockets.values():
            sockets[slot].close()

    def close(self) -> None:
        """Close all sockets, and remove the folder."""
        for sockets in self._sockets.values():
            for sock in sockets:
                sock.close()
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self, kind: str, slot: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if kind == ARRIVALS else socket.SOCK_STREAM)
        sock.bind(self._path(kind, slot))
        if kind != ARRIVALS:
            sock.listen(_BACKLOG)
        return sock

    def _path(self, kind: str, slot: int) -> str:
        return f"{self.folder}/{kind}{slot}"


class HeldFolder:
    """The shared lock of one process on the folder.  The lock ends with the process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd: int | None = None
        # Without a free descriptor, the process gets no lock on the folder.
        with suppress(OSError):
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def __repr__(self) -> str:
        return f"<HeldFolder {self._folder}>"

    def close(self) -> None:
        """Release the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def remove_if_last(self) -> None:
        """Release the lock, and remove the folder if no other process has a lock on it.

        If two processes do this at the same moment, one of them removes the folder, because flock(2) releases a lock
        before it takes the lock in another mode."""
        if self._fd is not None:
            with suppress(BlockingIOError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(self._folder, ignore_errors=True)
        self.close()


def of_living_versions(paths: Sequence[str]) -> list[str]:
    """Return the paths of all sockets of those versions that still have a worker.  If all processes of a version were
    killed, its files stay, so the existence of a file does not show that a worker lives."""
    folders = {Path(path).parent for path in paths if listens(path)}
    return [path for path in paths if Path(path).parent in folders]


def _new_folder() -> str:
    """Make a temporary folder.  Raises FailedToRunError if there is no place for one."""
    try:
        if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_PLACE:
            return tempfile.mkdtemp(prefix=_PREFIX)
    except OSError:
        pass
    try:
        # A container whose other file systems are read-only can still write here.
        return tempfile.mkdtemp(prefix=_PREFIX, dir=_SHARED_MEMORY)
    except OSError as error:
        text = f"cannot make a temporary folder for the workers' sockets: {error.strerror}"
        raise FailedToRunError(text) from None
