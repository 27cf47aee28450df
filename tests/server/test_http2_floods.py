"""The log line that tells an operator which client network an HTTP/2 connection is closed for, and for which frames."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hyperframe.frame import DataFrame, Frame, PingFrame, RstStreamFrame, SettingsFrame

from gateway.app import RunningGateway
from tests.scenarios.http2_wire import Call, Http2Wire
from tests.server.conftest import Pair, create_closed, start_pair, stop_pair, write
from tests.server.test_http2 import waiting, wire_to
from tests.waiting import eventually

PREFIX = "an HTTP/2 connection of "


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The level and text of each line about a flood."""
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, text) for level, text in found if text.startswith(PREFIX)]


def line(kind: str, net: str = "127.0.0.1") -> tuple[str, str]:
    return "WARNING", f"{PREFIX}{net} ends: too many frames of the kind {kind}"


async def flood(wire: Http2Wire, kind: str) -> None:
    """Send frames of one kind until the connection ends."""
    frames: dict[str, Frame] = {"ping": PingFrame(0, b"12345678"), "settings": SettingsFrame(0)}
    await wire.greet()
    if kind == "empty":
        await wire.ask("/s", {"Content-Type": "text/plain"}, "POST", ends=False)
        frames[kind] = DataFrame(wire.call.id)
    with suppress(ConnectionError):
        for _ in range(1_000):
            if kind in frames:
                await wire.frame(frames[kind])
            else:
                await cancel_one(wire)
    assert await wire.is_ended()


async def cancel_one(wire: Http2Wire) -> None:
    await wire.ask("/s?offset=-1&live=sse")
    await wire.frame(RstStreamFrame(wire.call.id, 8))


async def flooded(gateway: RunningGateway, kind: str) -> None:
    async with wire_to(gateway) as wire:
        await flood(wire, kind)


@pytest.mark.parametrize("kind", ["reset", "ping", "settings", "empty"])
async def test_a_flood_is_logged_with_its_network_and_kind(
    pair: Pair, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    await create_closed(pair)
    await flooded(pair.fast, kind)
    assert lines(caplog) == [line(kind)]


async def test_floods_write_one_line_every_ten_seconds(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("ping", "ping", "settings"):
        await flooded(pair.fast, kind)
    pair.clock.advance(9.9)
    await flooded(pair.fast, "ping")
    assert lines(caplog) == [line("ping")]
    pair.clock.advance(0.1)
    await flooded(pair.fast, "settings")
    assert lines(caplog) == [line("ping"), line("settings")]


async def test_a_flood_through_a_trusted_proxy_names_no_client(caplog: pytest.LogCaptureFixture) -> None:
    """The frames of many clients share the connection."""
    pair = await start_pair(trusted_proxies=("127.0.0.1",))
    try:
        await flooded(pair.fast, "ping")
        assert lines(caplog) == [line("ping", "a trusted proxy")]
    finally:
        await stop_pair(pair)


async def test_a_connection_that_still_has_readers_is_logged_when_it_takes_no_more(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    async with wire_to(pair.fast) as wire:
        await wire.ask("/s?offset=-1&live=sse")
        reader = wire.call
        await eventually(waiting(pair.fast, 1))
        for _ in range(500):
            await cancel_one(wire)
        while not wire.goaways:
            await wire.read()
        assert lines(caplog) == [line("reset")]
        # The reader goes on, and the connection is not logged again.
        pair.clock.advance(10.0)
        await write(pair.fast, "POST", "/s", b"def", Content_Type="text/plain")
        while b"def" not in reader.body:
            await wire.read()
    assert lines(caplog) == [line("reset")]


async def test_readers_of_a_proxy_that_come_and_go_write_no_line(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Each second all 100 readers of one connection are replaced, which is more than resets before an answer may be."""
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    rng = Random(18)
    readers: list[Call] = []
    async with wire_to(pair.fast) as wire:
        for number in range(100 + 6 * 100):
            if number >= 100:
                pair.clock.advance(1 / 100)
                left = readers.pop(rng.randrange(len(readers)))
                await wire.frame(RstStreamFrame(left.id, 8))
            await wire.ask("/s?offset=-1&live=sse")
            readers.append(wire.call)
            await wire.head()
        await write(pair.fast, "POST", "/s", b"def", Content_Type="text/plain")
        while not all(b"def" in one.body for one in readers):
            await wire.read()
        assert not wire.goaways
    assert lines(caplog) == []
