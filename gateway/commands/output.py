"""Handles failures of stdout: a full disk, or a pipe whose reader has left."""

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
"""The `errno` values of failed writes."""


def abandon_stdout() -> None:
    """Redirect stdout to /dev/null.  Otherwise Python's flush at exit would fail again and print an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def watching_reader(left: Callable[[], object]) -> Iterator[None]:
    """Call `left` once when the reader of stdout closes its end of the pipe, even without a write.

    The event loop cannot watch stdout directly, because it would change the blocking mode, which other processes may
    share.  Instead it watches an epoll object that reports EPOLLERR for stdout.  Regular files are not watched, and
    nothing is watched on systems without epoll.  The reader's end then shows only when the next write fails.
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
