"""A supervisor under a service manager: its notifications with their senders, and a listening socket from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.origin.app import RunningOrigin
from tests.commands.warm import ROOT, clean_environ
from tests.scenarios.wire import Wire
from tests.waiting import eventually
from tests.workers.process import runs

_BOUND_S = 60.0
_CREDENTIALS = struct.Struct("3i")
SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "gateway", *sys.argv[2:]])
"""


class Manager:
    """The end of a service manager."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    async def heard(self, *names: str) -> tuple[int, dict[str, str]]:
        """The sender and the fields of the next notification that has one of these fields."""
        loop = asyncio.get_running_loop()
        while True:
            arrived = asyncio.Event()
            loop.add_reader(self._socket.fileno(), arrived.set)
            try:
                async with asyncio.timeout(_BOUND_S):
                    await arrived.wait()
            finally:
                loop.remove_reader(self._socket.fileno())
            data, ancillary, _, _ = self._socket.recvmsg(65_536, socket.CMSG_SPACE(_CREDENTIALS.size))
            sender, _, _ = _CREDENTIALS.unpack(ancillary[0][2])
            fields = dict(line.split("=", 1) for line in data.decode().splitlines())
            if fields.keys() & set(names):
                return sender, fields


@contextmanager
def managed(path: Path) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.setblocking(False)
        sock.bind(str(path))
        yield Manager(sock)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        yield sock


async def test_a_service_manager_learns_of_all_that_happens_to_a_gateway_on_its_socket(
    durable_origin: RunningOrigin, listening: socket.socket, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[server]\nadmin = "127.0.0.1:0"\nworkers = 2\nshutdown_timeout_s = 2\n'
        f'[[listener]]\naddress = "systemd"\n[[route]]\norigin = "{durable_origin.url}"\n'
    )
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    async def is_served() -> bool:
        """A new connection: it waits in the socket's queue while nobody accepts."""
        wire = await Wire.open(url)
        await wire.ask("/absent")
        answer = await wire.answer()
        await wire.closed()
        return answer.status == 404

    with managed(tmp_path / "notify") as manager:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SYSTEMD, str(listening.fileno()), "serve", "--config", str(file)),
            cwd=ROOT,
            env={**clean_environ(), "DURABLE_GATEWAY_SERVER__WORKERS": "2", "NOTIFY_SOCKET": str(tmp_path / "notify")},
            pass_fds=[listening.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        main = process.pid
        try:
            assert await manager.heard("READY") == (main, {"READY": "1"})
            assert await is_served()
            process.send_signal(signal.SIGHUP)
            assert (await manager.heard("RELOADING"))[0] == main
            sender, fields = await manager.heard("READY")
            assert (sender, fields["STATUS"]) == (main, "reloaded: nothing has changed")
            process.send_signal(signal.SIGUSR2)
            # systemd believes its main process alone, so that one has to name the next.
            sender, fields = await manager.heard("MAINPID")
            assert sender == process.pid
            main = int(fields["MAINPID"])
            assert main != process.pid
            assert await is_served()
            async with asyncio.timeout(_BOUND_S):
                assert await process.wait() == 0
            assert await is_served()
            os.kill(main, signal.SIGTERM)
            assert await manager.heard("STOPPING") == (main, {"STOPPING": "1", "STATUS": "draining"})
        finally:
            for pid in {main, process.pid}:
                if runs(pid):
                    os.kill(pid, signal.SIGTERM)
            await eventually(lambda: not runs(main) and not runs(process.pid), within_s=_BOUND_S)
            await process.wait()
