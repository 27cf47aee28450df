"""Sockets in the file system: of all that want one place, one has it, and clients reach that one."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.server.sockets import UnixSocket

ROUNDS = 50
RIVALS = 4
BOUND_S = 20.0


def test_a_socket_that_is_open_is_in_use_at_once(tmp_path: Path) -> None:
    """Before an event loop has heard of it."""
    path = str(tmp_path / "s.sock")
    first = asyncio.run(UnixSocket.open(path, "600", 16))
    try:
        with pytest.raises(OSError, match="in use"):
            asyncio.run(UnixSocket.open(path, "600", 16))
        assert _reaches(path, first)
    finally:
        first.remove()
        first.sock.close()
    assert not list(tmp_path.iterdir())


def test_of_rivals_for_a_stale_socket_one_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    barrier = threading.Barrier(RIVALS, timeout=BOUND_S)

    def contend(_: int) -> UnixSocket | None:
        barrier.wait()
        try:
            return asyncio.run(UnixSocket.open(path, "600", 16))
        except OSError:
            return None

    with ThreadPoolExecutor(RIVALS) as rivals:
        for _ in range(ROUNDS):
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(path)
            winners = [found for found in rivals.map(contend, range(RIVALS)) if found is not None]
            try:
                assert len(winners) == 1
                assert _reaches(path, winners[0])
            finally:
                for winner in winners:
                    winner.remove()
                    winner.sock.close()


def _reaches(path: str, wanted: UnixSocket) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        wanted.sock.settimeout(BOUND_S)
        accepted, _ = wanted.sock.accept()
        accepted.close()
    return True
