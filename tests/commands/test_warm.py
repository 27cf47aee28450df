"""What the tests' own way to start commands does when a test kills one at once."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from tests.commands.runs import BOUND_S, finished
from tests.commands.warm import ROOT, clean_environ, command


def ask(*arguments: str, bytes_short: int = 0, has_descriptors: bool = True) -> int:
    """Ask the parent for a program as `warm_client` does, and be gone; the end to read of what the program writes."""
    place = command(arguments, clean_environ())[4]
    reading, writing = os.pipe()
    environ = (f"{name}={value}" for name, value in clean_environ().items())
    words = [str(ROOT), str(len(arguments)), *arguments, *environ]
    body = "\0".join(words).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(place)
        if has_descriptors:
            socket.send_fds(client, [len(body).to_bytes(4, "big")], [0, writing, writing])
            client.sendall(body[: len(body) - bytes_short])
    os.close(writing)
    return reading


@pytest.mark.parametrize(
    ("bytes_short", "has_descriptors"),
    [
        pytest.param(0, True, id="when it has asked"),
        pytest.param(1, True, id="while it asks"),
        pytest.param(0, False, id="before it asks"),
    ],
)
async def test_a_client_that_is_killed_takes_its_program_along_and_harms_no_other(
    bytes_short: int, has_descriptors: bool
) -> None:
    reading = ask("origin", "--listen", "127.0.0.1:0", bytes_short=bytes_short, has_descriptors=has_descriptors)
    reader = asyncio.StreamReader()
    with os.fdopen(reading, "rb") as pipe:
        made = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        async with asyncio.timeout(BOUND_S):
            await reader.read()
        made[0].close()
    status, out, _ = await finished("--version")
    assert (status, out.startswith("durable-gateway")) == (0, True)
