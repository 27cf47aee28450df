"""Listening sockets that the event loop does not make, and further descriptors for accepting connections.

The sockets are Unix sockets, and sockets passed by systemd.

In each turn of the loop, libuv accepts one connection for each descriptor.  With one descriptor and many new clients,
each turn would accept, read and end one connection.  The system calls between turns would empty the processor's caches
each time.  Several descriptors of one socket accept several connections in a turn.

A further descriptor has a cost.  Each connection wakes all descriptors.  A descriptor takes about 4 µs to find that
another descriptor has accepted the connection.  The gateway therefore looks at the length of the queue after every few
connections.  If the queue stays long, the number of further descriptors rises to the queue's length at once.  Otherwise
a client that waits behind a burst of others would lose a turn of the loop for each of them.  The number falls only
after the queue has stayed shorter for a while.  It is 0 while clients connect one at a time.

Python's own event loop accepts a whole queue in a turn, so it gets no further descriptors.  Under that loop, closing a
further descriptor would also reset the connections that the loop has just accepted there.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import ipaddress
import os
import socket
import stat
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import uvloop

from gateway.config.addresses import Address
from gateway.protocol.client_address import plain_address

_FIRST_FD: Final = 3
_MOST_FDS: Final = 1_024
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
_UNNAMED: Final = "unknown"
_TRIES: Final = 200
_PAUSE_S: Final = 0.005
"""The pause between two attempts to lock a folder.  All attempts together take one second, and a gateway holds the lock
for less than a millisecond."""
# Since Python 3.13 the loop removes a Unix socket's file when the socket closes.  Prevent this: the file of a systemd
# socket must stay, and `UnixSocket` removes its own file earlier.
_KEEPING_FILE: Final[Mapping[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


class UnixSocket:
    """A listening Unix socket and its file."""

    def __init__(self, path: str, mode: str, backlog: int) -> None:
        """Must be called with the folder locked, as in `open`.  Only one socket at a time may be made in a folder."""
        self.path = Path(path)
        _remove_stale(self.path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.bind(path)
            self._made = _identity(self.path)
            # Set the file's mode before listen(), because clients can connect after listen().
            self.path.chmod(int(mode, 8))
            self.sock.listen(backlog)
        except BaseException:
            self.sock.close()
            raise

    @classmethod
    async def open(cls, path: str, mode: str, backlog: int) -> Self:
        """Listen at `path`, after removing a stale socket there.  Raises OSError if another kind of file is there, or
        if a process listens there."""
        # Between bind and listen, another process's socket looks stale.  The lock makes the two calls one step.
        async with _folder_lock(Path(path).parent):
            return cls(path, mode, backlog)

    @classmethod
    def adopted(cls, path: str, sock: socket.socket) -> Self:
        """Make the object of a socket that listens at `path` already."""
        made = cls.__new__(cls)
        made.path, made.sock, made._made = Path(path), sock, _identity(Path(path))
        return made

    def remove(self) -> None:
        """Remove the file, unless another socket has taken its path.

        Call this before closing the socket.  Otherwise another process could find the file stale and put its own socket
        there.
        """
        with suppress(OSError):
            if _identity(self.path) == self._made:
                self.path.unlink()


def check_socket_path(path: str) -> None:
    """Raise OSError if no Unix socket could be made at `path`.

    Makes no socket.  A socket that is there, and may be in use, is no error.
    """
    where = Path(path)
    if not _is_socket(where):
        where.parent.stat()
        if not os.access(where.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


async def serve_on(sock: socket.socket, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> asyncio.Server:
    """Accept connections on a socket.  When the server closes, a Unix socket's file stays in place."""
    loop = asyncio.get_running_loop()
    if sock.family == socket.AF_UNIX:
        return await loop.create_unix_server(factory, sock=sock, backlog=backlog, **_KEEPING_FILE)
    return await loop.create_server(factory, sock=sock, backlog=backlog)


async def serve_each(
    bound: Iterable[socket.socket], factory: Callable[[], asyncio.BaseProtocol], backlog: int = 100
) -> list[asyncio.Server]:
    """Accept connections on sockets that the supervisor keeps open."""
    return [await serve_on(adopt_bound(one), factory, backlog) for one in bound]


async def listen_at(
    address: Address, factory: Callable[[], asyncio.BaseProtocol], **options: Any
) -> list[asyncio.Server]:
    """Accept connections at an address, or, if the address has no host, at all interfaces over IPv4 and IPv6.  Raises
    OSError.

    `options` are options of `create_server`.  With port 0, IPv4 and IPv6 use the same free port.
    """
    loop, port = asyncio.get_running_loop(), address.port
    servers: list[asyncio.Server] = []
    for host in address.hosts:
        try:
            servers.append(await loop.create_server(factory, host, port, reuse_address=True, **options))
        except OSError as error:
            if servers and error.errno in _NO_IPV6:
                break
            for server in servers:
                server.close()
            raise
        if not port and (sockets := servers[-1].sockets):
            port = sockets[0].getsockname()[1]
    return servers


@asynccontextmanager
async def _folder_lock(folder: Path) -> AsyncIterator[None]:
    """Lock the folder against other gateways that open a socket in it.  Raises OSError if the lock stays taken."""
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


def _is_socket(path: Path) -> bool:
    """Return whether there is a socket at `path`.  Raises OSError for a file of another kind."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket is there", str(path))
    return True


def _remove_stale(path: Path) -> None:
    if not _is_socket(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # With a full backlog, connect() must fail rather than block.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))


def passed_sockets(environ: Mapping[str, str], pid: int) -> list[tuple[str, int]]:
    """Return the names and descriptors of the sockets that systemd has passed to this process (sd_listen_fds).  Empty
    if systemd has passed the sockets for another process.  Raises ValueError for malformed environment variables.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return []
    count = environ.get("LISTEN_FDS", "0")
    if not count.isdecimal() or int(count) > _MOST_FDS:
        raise ValueError(f"LISTEN_FDS is {count!r}")
    names = environ["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in environ else []
    if names and len(names) != int(count):
        raise ValueError(f"LISTEN_FDNAMES has {len(names)} names for {count} sockets")
    return [(names[index] if names else _UNNAMED, _FIRST_FD + index) for index in range(int(count))]


def choose_fds(fds: Iterable[tuple[str, int]], name: str, others: Iterable[str]) -> list[int]:
    """Return the descriptors for one listener.  A listener with a name gets the descriptors with that name.  A listener
    without a name gets the descriptors that belong to no other listener.
    """
    taken = set(others)
    return [fd for called, fd in fds if (called == name if name else called not in taken)]


def adopt(fd: int) -> socket.socket:
    """Make a listening socket of a passed descriptor.  Raises OSError unless the descriptor is a listening stream
    socket.
    """
    sock = socket.socket(fileno=os.dup(fd))
    is_listening = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not is_listening:
        sock.close()
        raise OSError(errno.EINVAL, f"descriptor {fd} is not a listening stream socket")
    os.set_inheritable(sock.fileno(), False)
    return sock


def adopt_bound(bound: socket.socket) -> socket.socket:
    """Duplicate a socket that the supervisor keeps open, so that this process can close its own descriptor."""
    return socket.socket(fileno=fcntl.fcntl(bound.fileno(), fcntl.F_DUPFD_CLOEXEC, 0))


_SO_ATTACH_FILTER: Final = 26
"""The number of the option on Linux (socket(7)), which Python does not name."""
_INSTRUCTION: Final = struct.Struct("HBBI")
"""One instruction of a socket filter.  Its fields are the code, the number of instructions to skip if a test is true,
the number to skip if the test is false, and the operand."""
_WITHOUT_SYN: Final = b"".join(
    _INSTRUCTION.pack(*one)
    for one in (
        (0x30, 0, 0, 13),  # Load the flags of the TCP header.
        (0x45, 0, 1, 0x02),  # Is this a SYN?
        (0x06, 0, 0, 0),  # If it is, drop the segment.
        (0x06, 0, 0, 0xFFFFFFFF),  # Otherwise pass the whole segment.
    )
)


def accept_queued(listening: socket.socket, *, is_shared: bool = False) -> list[socket.socket]:
    """Accept every connection in the kernel's queue of a listening socket, then close the socket.

    The close resets connections that arrive in the queue after this function has last looked at the queue.  The kernel
    is therefore first told to ignore new connections.  Their clients repeat the SYN after a second, and reach the next
    process or are refused.

    If another process shares the socket (`is_shared`), that process would not get the new connections either.  New
    connections to a shared socket are therefore not ignored.  The queue outlives this close as long as the other
    process holds the socket.
    """
    accepted: list[socket.socket] = []
    listening.setblocking(False)
    if not is_shared:
        _ignore_new(listening)
    with listening, suppress(OSError):
        while True:
            sock, _ = listening.accept()
            sock.setblocking(False)
            accepted.append(sock)
    return accepted


def _ignore_new(listening: socket.socket) -> None:
    """Make the kernel ignore each SYN to a TCP socket.  Has no effect on other systems than Linux."""
    if sys.platform != "linux" or listening.family == socket.AF_UNIX:
        return
    instructions = ctypes.create_string_buffer(_WITHOUT_SYN, len(_WITHOUT_SYN))
    program = struct.pack("HP", len(_WITHOUT_SYN) // _INSTRUCTION.size, ctypes.addressof(instructions))
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


ARRIVALS_PER_LOOK: Final = 4
"""The number of new connections between two looks at the kernel's queues.  A look costs 1 to 3 µs."""
MOST_FURTHER: Final = 15
"""The most further descriptors of all sockets together.  They count among the open files that are kept free for other
uses than connections (`gateway.limits.memory.SPARE`)."""
_RISING: Final = 2
"""The number of further descriptors rises to the shortest queue among this many latest looks.  A burst of a few
connections therefore has no effect."""
_FALLING: Final = 16
"""The number of further descriptors falls to the longest queue among this many latest looks."""
_UNACKED: Final = 24
"""The position of the queue's length in a listening socket's TCP_INFO: four bytes (tcp(7))."""


def waiting(listening: socket.socket) -> int:
    """Return the number of connections that wait to be accepted; 0 where the system does not report it."""
    if sys.platform != "linux" or listening.family == socket.AF_UNIX:
        return 0
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED + 4)
    return int.from_bytes(info[_UNACKED:], sys.byteorder)


class AcceptQueue:
    """The queue of connections at one socket of a server.  It owns the further descriptors of this socket."""

    def __init__(
        self, server: asyncio.Server, factory: Callable[[], asyncio.BaseProtocol], backlog: int, index: int = 0
    ) -> None:
        """`index` is the socket's index among the sockets of the server."""
        self._server = server
        self._index = index
        self._factory = factory
        self._backlog = backlog
        self._further: list[asyncio.Server] = []
        self._seen: deque[int] = deque(maxlen=_FALLING)
        """The queue's lengths at the latest looks."""
        self._accepts_singly = isinstance(asyncio.get_running_loop(), uvloop.Loop)
        """Whether the event loop accepts one connection for each descriptor in a turn."""

    @classmethod
    async def on(cls, sock: socket.socket, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Self:
        """Accept connections on a socket."""
        return cls(await serve_on(sock, factory, backlog), factory, backlog)

    @classmethod
    def each_of(cls, server: asyncio.Server, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> list[Self]:
        """Return the queue of each socket of a server.  A host name with several addresses has several sockets."""
        return [cls(server, factory, backlog, index) for index in range(len(server.sockets))]

    def __repr__(self) -> str:
        return f"<AcceptQueue {1 + len(self._further)} descriptors>"

    @property
    def further(self) -> int:
        """The number of further descriptors."""
        return len(self._further)

    @property
    def servers(self) -> list[asyncio.Server]:
        """The servers of the further descriptors.  For the server's first socket, the list begins with the server
        itself."""
        return self._further.copy() if self._index else [self._server, *self._further]

    def look(self) -> None:
        """Look at the length of the queue, and close descriptors that are no longer needed."""
        if not (sockets := self._server.sockets):
            return
        seen = self._seen
        seen.append(waiting(sockets[self._index]))
        if self._further and len(seen) == _FALLING:
            longest = max(seen)
            while len(self._further) > longest:
                self._further.pop().close()

    @property
    def wanted(self) -> int:
        """The least number of further descriptors, according to the latest looks at the queue."""
        seen = self._seen
        return min(seen[-1], seen[-_RISING]) if self._accepts_singly and len(seen) >= _RISING else 0

    async def open_further(self, most: int = MOST_FURTHER) -> None:
        """Open the descriptors that are wanted, up to `most`.  Raises OSError if no file can be opened."""
        sockets, wanted = self._server.sockets, min(most, self.wanted)
        while len(self._further) < wanted and self._server.is_serving():
            server = await serve_on(adopt(sockets[self._index].fileno()), self._factory, self._backlog)
            self._further.append(server)


def peer_of(transport: asyncio.BaseTransport) -> str | None:
    """Return the peer's address without its port; None at a Unix socket.

    A socket for both families, such as systemd's, names an IPv4 peer by a mapped address.  The result is plain IPv4.
    """
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return None
    address: str = peer[0]
    # No other spelling comes from the system, so most addresses need not be parsed.
    return plain_address(ipaddress.ip_address(address)) if address.startswith("::ffff:") else address
