"""stdout that cannot be written: a full disk, a pipe whose reader has left."""

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
"""The errno values of an OSError about output."""


def abandon_stdout() -> None:
    """Redirect stdout to /dev/null: otherwise Python's flush at exit fails again and prints the error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def watching_reader(left: Callable[[], object]) -> Iterator[None]:
    """Call `left` once when the reader of stdout closes its end of the pipe, without waiting for the next write.

    A separate epoll reports the closed pipe (EPOLLERR, which needs no registration), and the loop watches that epoll.
    So stdout's blocking mode, which other processes may share, stays as it is.  A regular file and a system without
    epoll are not watched; there the next write fails.
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
