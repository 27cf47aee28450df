"""Restarts on one host, as the guide on deploying has them, under clients that keep their connections.

The processes are real.  Each client appends and reads on one connection, which it replaces only when an answer says
that it closes.  A request that fails, or a connection that ends at any other time, is a fault.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.origin.app import RunningOrigin
from tests.commands.runs import Run, running
from tests.commands.warm import ROOT, clean_environ
from tests.ports import kept_port
from tests.waiting import eventually

CLIENTS = 5
THINKS_S = 0.01
"""A client's pause between two rounds, in which its connection is idle."""
BOUND_S = 60.0

SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "gateway", *sys.argv[2:]])
"""


@dataclass
class Kept:
    """A client that keeps its connection."""

    port: int
    path: str
    sent: int = 0
    acknowledged: int = 0
    moves: int = 0
    faults: list[str] = field(default_factory=list)

    async def run(self, stopped: asyncio.Event) -> None:
        try:
            while not stopped.is_set():
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    keeps = True
                    while keeps and not stopped.is_set():
                        await asyncio.sleep(THINKS_S)
                        keeps = await self._append(reader, writer) and await self._read(reader, writer)
                    self.moves += not keeps
                finally:
                    writer.close()
        except (OSError, EOFError) as error:
            self.faults.append(f"{type(error).__name__}: {error}")

    async def _append(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.sent += 1
        body = b"%d," % self.sent
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: g\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status, keeps, _ = await answer(reader)
        assert status == 204
        self.acknowledged = self.sent
        return keeps

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(f"GET {self.path}?offset=-1 HTTP/1.1\r\nHost: g\r\n\r\n".encode())
        status, keeps, body = await answer(reader)
        assert (status, body) == (200, numbers(self.acknowledged))
        return keeps


def numbers(count: int) -> bytes:
    return b"".join(b"%d," % number for number in range(1, count + 1))


async def answer(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    """Status, whether the connection is kept, and the body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
    return int(head.split()[1]), "connection: close" not in head, await reader.readexactly(length)


@asynccontextmanager
async def clients(origin: RunningOrigin, port: int) -> AsyncIterator[list[Kept]]:
    """Busy clients of a gateway.  After the block no request has failed, and nothing was lost or doubled."""
    kept = [Kept(port, f"/s{number}") for number in range(CLIENTS)]
    for one in kept:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(origin.url.rpartition(":")[2]))
        writer.write(f"PUT {one.path} HTTP/1.1\r\nHost: o\r\nContent-Type: text/plain\r\n\r\n".encode())
        assert (await answer(reader))[0] == 201
        writer.close()
    stopped = asyncio.Event()
    running = [asyncio.create_task(one.run(stopped)) for one in kept]
    async with asyncio.timeout(BOUND_S):
        yield kept
        stopped.set()
        await asyncio.gather(*running)
    assert [fault for one in kept for fault in one.faults] == []
    for one in kept:
        assert await content(origin, one.path) == numbers(one.sent)


async def content(origin: RunningOrigin, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(origin.url.rpartition(":")[2]))
    writer.write(f"GET {path}?offset=-1 HTTP/1.1\r\nHost: o\r\n\r\n".encode())
    _, _, body = await answer(reader)
    writer.close()
    return body


async def busy(kept: Sequence[Kept], more: int = 3) -> None:
    """Wait until each client has had `more` appends acknowledged."""
    wanted = [one.acknowledged + more for one in kept]

    def are_busy() -> bool:
        return all(one.acknowledged >= count or one.faults for one, count in zip(kept, wanted, strict=True))

    await eventually(are_busy)


async def ready(run: Run) -> Run:
    await run.until(lambda run: b"READY admin" in run.out)
    return run


async def test_processes_that_share_a_port_replace_each_other_without_a_failed_request(
    durable_origin: RunningOrigin, tmp_path: Path
) -> None:
    with kept_port() as port:
        file = tmp_path / "gateway.toml"
        file.write_text(
            f'[server]\nadmin = "127.0.0.1:0"\nshutdown_timeout_s = 2\n'
            f'[[listener]]\naddress = "127.0.0.1:{port}"\nreuse_port = true\n'
            f'[[route]]\norigin = "{durable_origin.url}"\n'
        )
    async with AsyncExitStack() as stack:
        serve = ("serve", "--config", str(file))
        old = await ready(await stack.enter_async_context(running(*serve)))
        async with clients(durable_origin, port) as kept:
            await busy(kept)
            for _ in range(2):
                new = await ready(await stack.enter_async_context(running(*serve)))
                assert (await old.finished(signal.SIGTERM))[0] == 0
                await busy(kept)
                old = new
            assert all(one.moves for one in kept)
        assert (await old.finished(signal.SIGTERM))[0] == 0


async def test_a_socket_of_systemd_keeps_connections_waiting_for_the_next_process(
    durable_origin: RunningOrigin, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[server]\nadmin = "127.0.0.1:0"\nshutdown_timeout_s = 4\n[[listener]]\naddress = "systemd"\n'
        f'[[route]]\norigin = "{durable_origin.url}"\n'
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)

        async def started() -> Run:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", SYSTEMD, str(listening.fileno()), "serve", "--config", str(file)),
                cwd=ROOT,
                env=clean_environ(),
                pass_fds=[listening.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            return await ready(Run(process, None))

        old = await started()
        try:
            async with clients(durable_origin, listening.getsockname()[1]) as kept:
                await busy(kept)
                assert (await old.finished(signal.SIGTERM))[0] == 0
                old = await started()
                await busy(kept)
            assert (await old.finished(signal.SIGTERM))[0] == 0
        finally:
            await old.close()


async def test_a_gateway_alone_on_its_port_answers_until_its_clients_have_moved(
    durable_origin: RunningOrigin, tmp_path: Path
) -> None:
    """Only between two processes a connection is refused."""
    with kept_port() as port:
        arguments = ("serve", "--origin", durable_origin.url, "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0")
        environ = {"DURABLE_GATEWAY_SERVER__SHUTDOWN_TIMEOUT_S": "2"}
        async with running(*arguments, environ=environ) as gateway:
            await ready(gateway)
            kept = [Kept(port, f"/s{number}") for number in range(CLIENTS)]
            stopped = asyncio.Event()
            for one in kept:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"PUT {one.path} HTTP/1.1\r\nHost: o\r\nContent-Type: text/plain\r\n\r\n".encode())
                assert (await answer(reader))[0] == 201
                writer.close()
            tasks = [asyncio.create_task(one.run(stopped)) for one in kept]
            async with asyncio.timeout(BOUND_S):
                await busy(kept)
                assert (await gateway.finished(signal.SIGTERM))[0] == 0
                await asyncio.gather(*tasks)
            for one in kept:
                # The next connection is refused, and no request was lost.
                assert [fault.partition(":")[0] for fault in one.faults] == ["ConnectionRefusedError"]
                assert one.moves
                assert await content(durable_origin, one.path) == numbers(one.sent)
