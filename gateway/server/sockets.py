"""Sockets to listen at that the event loop does not make: in the file system, and those that systemd hands over."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

_FIRST_FD: Final = 3
_MOST_FDS: Final = 1_024
_UNNAMED: Final = "unknown"
_TRIES: Final = 200
_PAUSE_S: Final = 0.005
"""A second in all: the lock is held for less than a millisecond."""


class UnixSocket:
    """A listening socket in the file system, and its file."""

    def __init__(self, path: str, mode: str, backlog: int) -> None:
        """As `open` does; only one at a time for each path."""
        self.path = Path(path)
        _remove_stale(self.path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.bind(path)
            self._made = _identity(self.path)
            # No client can connect before it listens, and by then it has its mode.
            self.path.chmod(int(mode, 8))
            self.sock.listen(backlog)
        except BaseException:
            self.sock.close()
            raise

    @classmethod
    async def open(cls, path: str, mode: str, backlog: int) -> Self:
        """Listen at `path`.  OSError where there is a file that is no socket, or another process listens on it.  A
        socket that is listened on no more is removed first."""
        # A socket that another process has bound and does not listen on yet looks as if nobody listened on it.
        async with _alone_in(Path(path).parent):
            return cls(path, mode, backlog)

    def remove(self) -> None:
        """Remove the file, unless another one is there by now.  Before the socket is closed: another process would take
        the file for one that is listened on no more, and put its own there."""
        with suppress(OSError):
            if _identity(self.path) == self._made:
                self.path.unlink()


@asynccontextmanager
async def _alone_in(folder: Path) -> AsyncIterator[None]:
    """Have no other gateway open a socket in the folder meanwhile; OSError where one takes too long for that."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for left in range(_TRIES - 1, -1, -1):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    raise
                await asyncio.sleep(_PAUSE_S)
        yield
    finally:
        os.close(fd)


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full backlog answers at once as well.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))


def handed_over(environ: Mapping[str, str], pid: int) -> list[tuple[str, int]]:
    """Names and descriptors of the sockets that this process was started with (sd_listen_fds); none where they are
    another process's.  ValueError where the environment says nonsense."""
    if environ.get("LISTEN_PID") != str(pid):
        return []
    said = environ.get("LISTEN_FDS", "0")
    if not said.isdecimal() or int(said) > _MOST_FDS:
        raise ValueError(f"LISTEN_FDS is {said!r}")
    names = environ["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in environ else []
    if names and len(names) != int(said):
        raise ValueError(f"LISTEN_FDNAMES has {len(names)} names for {said} sockets")
    return [(names[index] if names else _UNNAMED, _FIRST_FD + index) for index in range(int(said))]


def chosen(fds: Iterable[tuple[str, int]], name: str, others: Iterable[str]) -> list[int]:
    """The descriptors that a listener takes: those of a name, or with none those that no other listener names."""
    taken = set(others)
    return [fd for called, fd in fds if (called == name if name else called not in taken)]


def adopt(fd: int) -> socket.socket:
    """A socket that was handed over, to listen at.  OSError where it is none that listens for streams."""
    sock = socket.socket(fileno=os.dup(fd))
    is_listening = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not is_listening:
        sock.close()
        raise OSError(errno.EINVAL, f"descriptor {fd} is no socket that listens for streams")
    os.set_inheritable(sock.fileno(), False)
    return sock
