"""The tests' own way to start commands survives clients and programs that are killed or stall."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest

from tests.commands.runs import BOUND_S, finished
from tests.commands.warm import ROOT, clean_environ, command


def asking(client: socket.socket, place: str, *arguments: str, written: int, bytes_short: int = 0) -> None:
    """Ask the parent for a program as `warm_client` does; the program writes to the descriptor `written`."""
    environ = (f"{name}={value}" for name, value in clean_environ().items())
    body = "\0".join([str(ROOT), str(len(arguments)), *arguments, *environ]).encode()
    client.connect(place)
    socket.send_fds(client, [len(body).to_bytes(4, "big")], [0, written, written])
    client.sendall(body[: len(body) - bytes_short])


def parent() -> str:
    """Where the parent is asked."""
    return command((), clean_environ())[4]


def ask(*arguments: str, bytes_short: int = 0, has_descriptors: bool = True) -> int:
    """Ask the parent for a program, and be gone; the end to read of what the program writes."""
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        if has_descriptors:
            asking(client, parent(), *arguments, written=writing, bytes_short=bytes_short)
        else:
            client.connect(parent())
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


async def test_a_client_that_stalls_while_it_asks_delays_no_other_and_leaves_the_parent_running() -> None:
    place = parent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        asking(client, place, "--version", written=2, bytes_short=1)
        assert (await finished("--version"))[0] == 0
    assert parent() == place


async def test_a_signal_to_the_process_group_of_a_program_leaves_the_parent_running() -> None:
    place = parent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        asking(client, place, "origin", "--listen", "127.0.0.1:0", written=2)
        with client.makefile("rb") as answer:
            os.killpg(os.getpgid(int(answer.readline())), signal.SIGKILL)
            assert os.waitstatus_to_exitcode(int(answer.readline())) == -signal.SIGKILL
    assert (await finished("--version"))[0] == 0
    assert parent() == place
