"""Hostile origins over HTTP/2: what each does to its own request, to the others on the connection, and to the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
from multidict import CIMultiDict

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.framing import MOST_INTERIM
from gateway.http.http2 import frames
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.upstream import http2_connection
from gateway.upstream.client import Exchanges
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.slots import SlotLimits
from tests.http.http2.peer import (
    NO_SETTINGS,
    OK,
    block,
    data,
    frame,
    goaway,
    ping,
    reply,
    reset,
    setting,
    u32,
    window,
)
from tests.upstream.http2_peer import Http2Peer, http2_origin
from tests.upstream.test_exchange import PATIENT, Origin, bounded
from tests.waiting import eventually

BEGUN = [*OK, ("content-length", "9")]
SHORT = Bounds(connect_s=20.0, first_byte_s=0.3, idle_s=0.3, total_s=20.0)


@dataclass(frozen=True, slots=True)
class Case:
    """What an origin says to a request, by the id of its stream, and what follows."""

    says: Callable[[int], bytes]
    outcome: type[GatewayError] | bytes
    """The error of the request or of its body, or its whole body."""
    spares_others: bool
    """Whether other requests on the connection go on."""
    bounds: Bounds = PATIENT


CASES = {
    "a reset at once": Case(reset, UpstreamUnreachable, True),
    "a reset with an unknown code": Case(
        lambda id_: frame(frames.RST_STREAM, 0, id_, u32(999)), UpstreamUnreachable, True
    ),
    "a reset without an error": Case(lambda id_: reset(id_, ErrorCode.NO_ERROR), UpstreamUnreachable, True),
    "a reset mid-body": Case(
        lambda id_: reply(id_, BEGUN, ends=False) + data(id_, b"part") + reset(id_), UpstreamBroken, True
    ),
    "a reset behind the end": Case(
        lambda id_: reply(id_, ends=False) + data(id_, b"all", ends=True) + reset(id_), b"all", True
    ),
    "the same reset for ever": Case(lambda id_: reset(id_) * 1_000, UpstreamUnreachable, False),
    "a malformed head": Case(lambda id_: reply(id_, [*OK, ("Upper", "case")]), UpstreamBroken, True),
    "no status": Case(lambda id_: reply(id_, [("x", "y")]), UpstreamBroken, True),
    "101": Case(lambda id_: reply(id_, [(":status", "101")]), UpstreamBroken, True),
    "endless interim replies": Case(
        lambda id_: reply(id_, [(":status", "103")], ends=False) * (MOST_INTERIM + 1), UpstreamBroken, True
    ),
    "interim replies and silence": Case(
        lambda id_: reply(id_, [(":status", "103")], ends=False), UpstreamTimeout, True, SHORT
    ),
    "a body before its head": Case(lambda id_: data(id_, b"x"), UpstreamBroken, True),
    "more body than announced": Case(
        lambda id_: reply(id_, BEGUN, ends=False) + data(id_, b"0123456789"), UpstreamBroken, True
    ),
    "less body than announced": Case(
        lambda id_: reply(id_, BEGUN, ends=False) + data(id_, b"0123", ends=True), UpstreamBroken, True
    ),
    "a length and no body": Case(lambda id_: reply(id_, BEGUN), UpstreamBroken, True),
    "a body that stops": Case(
        lambda id_: reply(id_, BEGUN, ends=False) + data(id_, b"0123"), UpstreamTimeout, True, SHORT
    ),
    "trailers with pseudo fields": Case(
        lambda id_: reply(id_, ends=False) + data(id_, b"x") + reply(id_), UpstreamBroken, True
    ),
    "trailers": Case(lambda id_: reply(id_, ends=False) + data(id_, b"all") + reply(id_, [("x", "y")]), b"all", True),
    "DATA behind the end": Case(
        lambda id_: reply(id_, ends=False) + data(id_, b"all", ends=True) + data(id_, b"x"), b"all", False
    ),
    "a second reply": Case(
        lambda id_: reply(id_, ends=False) + data(id_, b"all", ends=True) + reply(id_), b"all", False
    ),
    "a window that overflows": Case(lambda id_: window(id_, (1 << 31) - 1), UpstreamBroken, True),
    "a window that grows by nothing": Case(lambda id_: window(id_, 0), UpstreamBroken, True),
    "the connection's window overflows": Case(lambda _: window(0, (1 << 31) - 1), UpstreamBroken, False),
    "many small window updates": Case(lambda _: window(0, 1) * 4_000, UpstreamBroken, False),
    "a header bomb": Case(lambda id_: reply(id_, [*OK, *[("x", "y" * 4_000)] * 30]), UpstreamBroken, False),
    "a header bomb by the table": Case(
        # One entry of the table, named again and again.
        lambda id_: frames.header_frames(
            id_, block(OK) + b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4_000 + b"\xbe" * 10_000, 1 << 14, ends=True
        ),
        UpstreamBroken,
        False,
    ),
    "endless CONTINUATION": Case(
        lambda id_: frame(frames.HEADERS, 0, id_, b"\x88") + frame(frames.CONTINUATION, 0, id_, b"\x88") * 300,
        UpstreamBroken,
        False,
    ),
    "empty CONTINUATION": Case(
        lambda id_: frame(frames.HEADERS, 0, id_, b"\x88") + frame(frames.CONTINUATION, 0, id_) * 300,
        UpstreamBroken,
        False,
    ),
    "a head that does not end": Case(lambda id_: frame(frames.HEADERS, 0, id_, b"\x88"), UpstreamTimeout, False, SHORT),
    "a frame that does not end": Case(
        lambda id_: frames.frame_head(100, frames.DATA, 0, id_) + b"x", UpstreamTimeout, False, SHORT
    ),
    "an invalid block": Case(
        lambda id_: frame(frames.HEADERS, 4, id_, b"\xff\xff\xff\xff\xff\x0f"), UpstreamBroken, False
    ),
    "too large a frame": Case(lambda id_: frames.frame_head(1 << 15, frames.DATA, 0, id_), UpstreamBroken, False),
    "a push": Case(lambda id_: frame(frames.PUSH_PROMISE, 4, id_, u32(2) + block(OK)), UpstreamBroken, False),
    "a pushed reply": Case(lambda _: reply(2), UpstreamBroken, False),
    "an unknown stream": Case(lambda id_: data(id_ + 100, b"x"), UpstreamBroken, False),
    "a reply to no request": Case(lambda id_: reply(id_ + 100), UpstreamBroken, False),
    "many PINGs": Case(lambda _: ping() * 100, UpstreamBroken, False),
    "many SETTINGS": Case(lambda _: NO_SETTINGS * 100, UpstreamBroken, False),
    "many empty frames": Case(lambda id_: reply(id_, ends=False) + data(id_) * 200, UpstreamBroken, False),
    "push enabled": Case(lambda _: setting(Setting.ENABLE_PUSH, 1), UpstreamBroken, False),
    "text": Case(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", UpstreamBroken, False),
    "GOAWAY for all": Case(lambda _: goaway(0), UpstreamUnreachable, False),
    "GOAWAY mid-body": Case(
        lambda id_: reply(id_, ends=False) + data(id_, b"a") + goaway(id_) + data(id_, b"ll", ends=True), b"all", True
    ),
    "GOAWAY with an error": Case(lambda id_: goaway(id_ - 2, ErrorCode.ENHANCE_YOUR_CALM), UpstreamUnreachable, True),
}


@pytest.fixture
async def exchanges() -> AsyncIterator[Exchanges]:
    made = Exchanges(SlotLimits(16))
    yield made
    await eventually(lambda: made.open_connections == 0)
    await made.close()


def sending(exchanges: Exchanges, running: Origin, path: str, bounds: Bounds = PATIENT) -> Awaitable[bytes]:
    async def work() -> bytes:
        async with await exchanges.send(OriginCall("POST", running.url + path, CIMultiDict(), bounds, b"x")) as reply_:
            return await reply_.read(1 << 24)

    return bounded(work())


@pytest.mark.parametrize("name", CASES)
async def test_a_hostile_reply_ends_what_it_must_and_no_more(
    exchanges: Exchanges, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.setattr(http2_connection, "PONG_S", 0.3)
    is_known = asyncio.Event()

    async def script(peer: Http2Peer) -> None:
        if peer.number == 1:
            other, asked = await peer.asked(), await peer.asked()
            # Not awaited: its client may read nothing more.
            peer.writes(case.says(asked.id))
            if not case.spares_others:
                await peer.idles()
            await is_known.wait()
            while case.outcome is UpstreamTimeout:
                kind, flags, _, payload = await peer.frame()
                if kind == frames.PING and not flags & frames.ACK:
                    await peer.says(frames.ping(payload, is_ack=True))
                    break
            await peer.answers(other)
        while True:
            await peer.answers(await peer.asked())

    async with http2_origin(script) as running:
        exchanges.configure_http2([running.url])
        other = asyncio.ensure_future(sending(exchanges, running, "/other"))
        await eventually(lambda: exchanges.http2.streams == 1)
        try:
            outcome: object = await sending(exchanges, running, "/s", case.bounds)
        except GatewayError as error:
            outcome = type(error)
        assert outcome == case.outcome
        is_known.set()
        if case.spares_others:
            assert await other == b"good"
        else:
            with pytest.raises((UpstreamBroken, UpstreamUnreachable)):
                await other
        assert await sending(exchanges, running, "/next") == b"good"
        assert running.connections <= 2


async def test_windows_that_stay_shut_cost_their_request_only(exchanges: Exchanges) -> None:
    """A body that no window lets through waits for its deadline; requests without one go on."""

    async def script(peer: Http2Peer) -> None:
        while True:
            asked = await peer.asked()
            if asked.is_whole:
                await peer.answers(asked)

    async with http2_origin(script, setting(Setting.INITIAL_WINDOW_SIZE, 0)) as running:
        exchanges.configure_http2([running.url])
        with pytest.raises(UpstreamTimeout):
            await sending(exchanges, running, "/s", SHORT)
        async with await bounded(
            exchanges.send(OriginCall("GET", running.url + "/s", CIMultiDict(), PATIENT))
        ) as reply_:
            assert await bounded(reply_.read(100)) == b"good"


async def test_windows_that_shrink_and_grow_lose_no_byte(exchanges: Exchanges) -> None:
    got = bytearray()

    async def script(peer: Http2Peer) -> None:
        asked = await peer.asked()
        size = 1
        while len(got) < 50_000:
            kind, _, _, payload = await peer.frame()
            if kind == frames.DATA:
                got.extend(payload)
                size = 1 if size > 1 else 9_000
                await peer.says(
                    setting(Setting.INITIAL_WINDOW_SIZE, size), window(asked.id, len(payload)), window(0, len(payload))
                )
                # Now and then, as no flood would.
                await asyncio.sleep(0)
        await peer.answers(asked)
        await peer.idles()

    body = bytes(range(250)) * 200
    async with http2_origin(script, setting(Setting.INITIAL_WINDOW_SIZE, 9_000)) as running:
        exchanges.configure_http2([running.url])
        async with await bounded(
            exchanges.send(OriginCall("POST", running.url + "/s", CIMultiDict(), PATIENT, body))
        ) as reply_:
            assert await bounded(reply_.read(100)) == b"good"
        assert bytes(got) == body


async def test_an_origin_that_resets_every_request_is_asked_no_more_often(exchanges: Exchanges) -> None:
    """Rapid reset by the server: nothing is repeated, and the connection stays."""
    asked: list[int] = []

    async def script(peer: Http2Peer) -> None:
        while True:
            asked.append((await peer.asked()).id)
            await peer.says(reset(asked[-1], ErrorCode.REFUSED_STREAM))

    async with http2_origin(script) as running:
        exchanges.configure_http2([running.url])
        for _ in range(600):
            with pytest.raises(UpstreamUnreachable):
                await sending(exchanges, running, "/s")
        assert (len(asked), running.connections) == (600, 1)
