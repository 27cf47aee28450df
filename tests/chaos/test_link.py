"""The bad stretch of network: nothing is lost in a calm, and what a storm does is seen at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from tests.chaos import link as links
from tests.chaos.link import Link, Weather
from tests.waiting import eventually

DATA = bytes(range(256)) * 400


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    there = server.sockets[0].getsockname()
    link = Link(lambda: there, Random(1))
    await link.start()
    yield link
    await link.stop()
    server.close()


async def sent(link: Link) -> bytes:
    """What comes back of DATA before the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    got = bytearray()
    try:
        async with asyncio.timeout(10):
            writer.write(DATA)
            while len(got) < len(DATA) and (piece := await reader.read(1 << 16)):
                got += piece
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return bytes(got)


@pytest.mark.parametrize("weather", [Weather(), Weather(slices=1.0), Weather(latency=1.0)])
async def test_what_is_late_or_in_slices_arrives_whole(link: Link, weather: Weather) -> None:
    link.weather = weather
    assert await sent(link) == DATA


@pytest.mark.parametrize("weather", [Weather(reset=1.0), Weather(cut=1.0)])
async def test_what_is_cut_off_is_a_part_from_the_beginning(link: Link, weather: Weather) -> None:
    link.weather = weather
    got = await sent(link)
    assert len(got) < len(DATA)
    assert DATA.startswith(got)


async def test_a_calm_ends_every_mishap(link: Link) -> None:
    link.weather.reset = 1.0
    link.weather.calm()
    assert await sent(link) == DATA


async def test_a_calm_ends_what_is_held_up(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_STALL_S", (1_000.0, 1_000.0))
    link.weather.stall = 1.0
    got = asyncio.get_running_loop().create_task(sent(link))
    await eventually(lambda: link.stalls > 0)
    link.calm()
    assert await got == DATA
