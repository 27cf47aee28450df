"""Watches a file descriptor that other processes share.

uvloop makes a watched descriptor non-blocking.  This mode is a property of the open file: on a terminal it would also
apply to stdout, where large writes would fail, and to the parent shell.  Therefore the mode is restored at once.  One
read of a ready descriptor does not block.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(descriptor: int, ready: Callable[[], object]) -> Iterator[None]:
    """Call `ready` whenever the descriptor is readable or at its end."""
    loop = asyncio.get_running_loop()
    is_blocking = os.get_blocking(descriptor)
    loop.add_reader(descriptor, ready)
    os.set_blocking(descriptor, is_blocking)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
