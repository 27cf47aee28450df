"""Locks of the shared memory that another worker holds."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

from gateway.workers.shared_memory import SharedMemory


def hold_lock(descriptor: int, byte: int, channel: Connection) -> None:
    """Hold a lock until the other end of the channel sends something."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, byte)
    channel.send("locked")
    channel.recv()


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let all locks be held by a stopped worker."""
    with monkeypatch.context() as patch:
        patch.setattr(SharedMemory, "lock", lambda *_: False)
        yield
