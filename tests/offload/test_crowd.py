"""The clients of the load cases see how their connections end."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from tests.offload.crowd import Client, Tally
from tests.waiting import eventually, pass_turns


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_sees_that_the_server_has_closed_its_connection(is_reset: bool) -> None:
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    async with server:
        client = await Client.open(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Tally())
        writer = await accepted.get()
        was_closed = client.is_closed
        if is_reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await eventually(lambda: client.is_closed)
        # By now this process has read the end, too.
        await pass_turns()
        assert (was_closed, client.is_closed) == (False, True)
        client.close()
