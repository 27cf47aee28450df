"""stdout where it cannot be written to: a disk that is full, a reader who has left."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

CANNOT_WRITE: Final = frozenset(
    {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EROFS}
)
"""What an OSError about output has for its number."""


def abandon_stdout() -> None:
    """Have what is still held for stdout go nowhere: Python would fail on it again, aloud, when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def watching_reader(left: Callable[[], object]) -> Iterator[None]:
    """Call `left` once when the reader of stdout closes its end of the pipe, without waiting for the next write.

    An epoll of its own reports the closed pipe (EPOLLERR, which needs no registration) and is itself watched by the
    loop: that leaves stdout's blocking mode alone, which it may share with other processes.  A regular file has no
    reader, and neither it nor a system without epoll is watched; there the next write fails.
    """
    try:
        watch = select.epoll()
        watch.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError):
        yield
        return
    loop = asyncio.get_running_loop()

    def changed() -> None:
        loop.remove_reader(watch.fileno())
        left()

    loop.add_reader(watch.fileno(), changed)
    try:
        yield
    finally:
        loop.remove_reader(watch.fileno())
        watch.close()
