"""Listening sockets: of several processes that want one path of a Unix socket, one gets it, and clients reach that one.

And how a process leaves the queue of a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.server.sockets import AcceptQueue, UnixSocket, accept_queued, peer_of

ROUNDS = 50
RIVALS = 4
BOUND_S = 20.0


def test_an_open_socket_is_in_use_at_once(tmp_path: Path) -> None:
    """Even before an event loop accepts on it."""
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


def test_only_one_of_several_rivals_takes_a_stale_socket(tmp_path: Path) -> None:
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


class _Late(socket.socket):
    """A listening socket; a further client connects as soon as its queue is found empty."""

    client: socket.socket

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except BlockingIOError:
            self.client.connect_ex(self.getsockname())
            raise


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_client_that_comes_after_the_last_look_at_the_queue_is_not_reset(
    family: socket.AddressFamily, host: str
) -> None:
    with _Late(family) as listening, socket.socket(family) as early, socket.socket(family) as late:
        listening.bind((host, 0))
        listening.listen(16)
        early.connect(listening.getsockname())
        late.setblocking(False)
        listening.client = late
        [accepted] = accept_queued(listening)
        with accepted:
            assert accepted.getpeername() == early.getsockname()
        # Its SYN was ignored.  It repeats the SYN, and the closed port refuses it.
        assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        with pytest.raises(OSError, match="not connected"):
            late.getpeername()


@pytest.mark.parametrize("is_shared", [True, False])
def test_another_process_gets_connections_from_a_shared_socket_that_this_one_has_left(is_shared: bool) -> None:
    with socket.socket() as kept, socket.socket() as early, socket.socket() as late:
        kept.bind(("127.0.0.1", 0))
        kept.listen(16)
        early.connect(kept.getsockname())
        for accepted in accept_queued(kept.dup(), is_shared=is_shared):
            accepted.close()
        late.setblocking(False)
        late.connect_ex(kept.getsockname())
        if is_shared:
            kept.settimeout(BOUND_S)
            accepted, address = kept.accept()
            accepted.close()
            assert address == late.getsockname()
        else:
            with pytest.raises(OSError, match="not connected"):
                late.getpeername()


@pytest.mark.parametrize(("make_loop", "wanted"), [(uvloop.new_event_loop, 8), (asyncio.new_event_loop, 0)])
def test_only_a_loop_that_accepts_singly_has_further_descriptors(
    make_loop: Callable[[], asyncio.AbstractEventLoop], wanted: int
) -> None:
    """Python's own loop would reset connections when it closes one."""

    async def look_at_a_queue() -> tuple[int, int]:
        listening = socket.create_server(("127.0.0.1", 0), backlog=16)
        queue = await AcceptQueue.on(listening, asyncio.Protocol, 16)
        with ExitStack() as clients:
            for _ in range(8):
                clients.enter_context(socket.create_connection(listening.getsockname()))
            for _ in range(2):
                queue.look()
            await queue.open_further()
            found = queue.wanted, queue.further
            for server in queue.servers:
                server.close()
        return found

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(look_at_a_queue()) == (wanted, wanted)


def test_each_address_of_a_host_name_has_a_queue_of_its_own() -> None:
    async def look_at_both() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, ["127.0.0.1", "127.0.0.2"], 0, backlog=16)
        queues = AcceptQueue.each_of(server, asyncio.Protocol, 16)
        names = [sock.getsockname() for sock in server.sockets]
        with ExitStack() as clients:
            for _ in range(8):
                clients.enter_context(socket.create_connection(names[1]))
            for queue in queues * 2:
                queue.look()
            assert [queue.wanted for queue in queues] == [0, 8]
            for queue in queues:
                await queue.open_further()
        servers = [one for queue in queues for one in queue.servers]
        bound = [sock.getsockname() for one in servers for sock in one.sockets]
        for one in servers:
            one.close()
        assert (len(servers), bound) == (1 + 8, [*names, *[names[1]] * 8])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(look_at_both())


def _reaches(path: str, wanted: UnixSocket) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        wanted.sock.settimeout(BOUND_S)
        accepted, _ = wanted.sock.accept()
        accepted.close()
    return True


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_ipv4_peer_of_a_socket_for_both_families_has_a_plain_address(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    peers: list[str | None] = []

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert transport.get_extra_info("peername")[0] == "::ffff:127.0.0.1"
            peers.append(peer_of(transport))
            transport.close()

    async def accepted(both: socket.socket) -> None:
        async with await asyncio.get_running_loop().create_server(Noting, sock=both), asyncio.timeout(BOUND_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", both.getsockname()[1])
            assert await reader.read() == b""
            writer.close()

    with socket.socket(socket.AF_INET6) as both, asyncio.Runner(loop_factory=new_loop) as runner:
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        both.bind(("::ffff:127.0.0.1", 0))
        runner.run(accepted(both))
    assert peers == ["127.0.0.1"]
