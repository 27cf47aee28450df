"""Exchanges over HTTP/2: what shares a connection, what is repeated, how bodies flow, and how connections end."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import pytest
from multidict import CIMultiDict

from gateway.config.origin_tls import OriginTls
from gateway.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.http2 import frames
from gateway.http.http2.client_session import MOST_STREAMS, REPLY_WINDOW
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.upstream import http2_connection
from gateway.upstream.breaker import BreakerState
from gateway.upstream.client import Exchanges
from gateway.upstream.failures import reason_of
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.origin_state import Origin as Books
from gateway.upstream.reply import Reply
from gateway.upstream.slots import Purpose, SlotLimits
from tests.http.http2.peer import OK, data, goaway, reply, reset, setting, window
from tests.server.test_garbage import collecting
from tests.upstream.http2_peer import Asked, Http2Peer, good, http2_origin
from tests.upstream.test_exchange import PATIENT, Origin, Peer, books_of, bounded, origin, recorded
from tests.waiting import eventually

T = TypeVar("T")

SHORT = Bounds(connect_s=20.0, first_byte_s=0.2, idle_s=0.2, total_s=20.0)


@pytest.fixture
async def exchanges() -> AsyncIterator[Exchanges]:
    made = Exchanges(SlotLimits(16))
    yield made
    await eventually(lambda: made.open_connections == 0)
    await made.close()


def sending(
    exchanges: Exchanges, running: Origin, method: str = "GET", bounds: Bounds = PATIENT, **more: Any
) -> Awaitable[Reply]:
    exchanges.configure_http2([running.url])
    return bounded(exchanges.send(OriginCall(method, running.url + "/s", CIMultiDict(), bounds, **more)))


async def body_of(reply: Reply) -> bytes:
    async with reply:
        return await bounded(reply.read(1 << 24))


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


# -- connections


async def test_requests_share_one_connection(exchanges: Exchanges) -> None:
    everyone = asyncio.Event()

    async def script(peer: Http2Peer) -> None:
        asked = [await peer.asked() for _ in range(10)]
        everyone.set()
        for one in reversed(asked):
            await peer.answers(one, one.fields[":path"].encode())
        await peer.idles()

    async with http2_origin(script) as running:
        exchanges.configure_http2([running.url])
        urls = [f"{running.url}/s{number}" for number in range(10)]
        replies = await bounded(
            asyncio.gather(*(exchanges.send(OriginCall("GET", url, CIMultiDict(), PATIENT)) for url in urls))
        )
        assert everyone.is_set()
        assert [await body_of(one) for one in replies] == [f"/s{number}".encode() for number in range(10)]
        assert running.connections == 1
        assert exchanges.connections()["shared"][:2] == (0, 1)
        assert (exchanges.http2.connections, exchanges.http2.streams) == (1, 0)


async def test_a_request_is_one_of_http_2(exchanges: Exchanges) -> None:
    asked: list[Asked] = []

    async def script(peer: Http2Peer) -> None:
        asked.append(await peer.asked())
        await peer.answers(asked[0], b"", [(":status", "204")])
        await peer.idles()

    async with http2_origin(script) as running:
        reply = await sending(exchanges, running, "PUT", body=b"")
        assert (reply.status, reply.head.reason, await body_of(reply)) == (204, "No Content", b"")
        host = running.url.removeprefix("http://")
        assert asked[0].is_whole
        assert asked[0].fields == {
            ":method": "PUT", ":scheme": "http", ":authority": host, ":path": "/s", "content-length": "0",
        }  # fmt: skip


async def test_a_second_connection_is_opened_when_the_streams_are_used_up(exchanges: Exchanges) -> None:
    held: list[tuple[Http2Peer, Asked]] = []

    async def script(peer: Http2Peer) -> None:
        while True:
            held.append((peer, await peer.asked()))

    async with http2_origin(script, setting(Setting.MAX_CONCURRENT_STREAMS, 2)) as running:
        exchanges.configure_http2([running.url])
        waiting = [asyncio.ensure_future(sending(exchanges, running)) for _ in range(5)]
        await eventually(lambda: len(held) == 5)
        assert sorted(peer.number for peer, _ in held) == [1, 1, 2, 2, 3]
        assert exchanges.connections()["shared"][:2] == (3, 0)
        assert exchanges.slot_use().taken[Purpose.READ] == 5, "a slot is an exchange, not a connection"
        for peer, asked in held:
            await peer.answers(asked)
        for one in waiting:
            assert await body_of(await one) == b"good"
        # The origin now takes fewer.
        for peer in {peer for peer, _ in held}:
            await peer.says(setting(Setting.MAX_CONCURRENT_STREAMS, 1))
        assert exchanges.connections()["shared"][:2] == (0, 3)


async def test_streams_of_one_connection_are_bounded_whatever_the_origin_allows() -> None:
    exchanges = Exchanges(SlotLimits(0))
    asked: list[int] = []

    async def script(peer: Http2Peer) -> None:
        while True:
            await peer.asked()
            asked.append(peer.number)

    async with http2_origin(script) as running:
        waiting = [asyncio.ensure_future(sending(exchanges, running)) for _ in range(MOST_STREAMS + 1)]
        await eventually(lambda: len(asked) == MOST_STREAMS + 1)
        assert asked.count(1) == MOST_STREAMS
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await exchanges.close()


async def test_slots_bound_exchanges(exchanges: Exchanges) -> None:
    asked: list[int] = []

    async def script(peer: Http2Peer) -> None:
        while True:
            one = await peer.asked()
            asked.append(one.id)

    async with http2_origin(script) as running:
        waiting = [asyncio.ensure_future(sending(exchanges, running)) for _ in range(20)]
        await eventually(lambda: exchanges.slot_use().waiting[Purpose.READ] == 20 - 12)
        await eventually(lambda: len(asked) == 12)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_client_that_leaves_resets_its_stream_alone(exchanges: Exchanges) -> None:
    seen: list[frames.ErrorCode] = []

    async def script(peer: Http2Peer) -> None:
        left, stays = await peer.asked(), await peer.asked()
        _, _, stream_id, code = await peer.until(frames.RST_STREAM)
        assert stream_id == left.id
        seen.append(ErrorCode(int.from_bytes(code, "big")))
        await peer.answers(stays)
        await peer.idles()

    async with http2_origin(script) as running:
        leaving = asyncio.ensure_future(sending(exchanges, running))
        await eventually(lambda: exchanges.http2.streams == 1)
        staying = asyncio.ensure_future(sending(exchanges, running))
        await eventually(lambda: exchanges.http2.streams == 2)
        leaving.cancel()
        assert await body_of(await staying) == b"good"
        assert seen == [ErrorCode.CANCEL]
        assert running.connections == 1


async def test_an_idle_connection_is_closed_in_order(exchanges: Exchanges) -> None:
    ended: list[int] = []

    async def script(peer: Http2Peer) -> None:
        request = await peer.asked()
        # Not earlier: a connection that waits for its first request is idle, too.
        exchanges.keep(KeepAlive(idle_s=0.01))
        await peer.answers(request)
        await peer.until(frames.GOAWAY)
        ended.append(peer.number)

    async with http2_origin(script) as running:
        assert await body_of(await sending(exchanges, running)) == b"good"
        await eventually(lambda: ended == [1] and exchanges.http2.connections == 0)
        assert exchanges.connections()["shared"][:2] == (0, 0)


async def test_an_origin_that_does_not_speak_http_2_gets_no_request(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        await peer.says(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with origin(script) as running:
        with pytest.raises(UpstreamUnreachable) as failed:
            await sending(exchanges, running, "POST", body=b"x")
        assert failed.value.is_unsent
        assert failed.value.__cause__ is not None
        assert reason_of(failed.value.__cause__) == "does not speak HTTP/2"


@pytest.mark.parametrize("said", [setting(Setting.MAX_CONCURRENT_STREAMS, 0), frames.settings({}) + goaway(0)])
async def test_an_origin_that_takes_no_request_is_not_dialled_again_and_again(
    exchanges: Exchanges, said: bytes
) -> None:
    async with http2_origin(lambda peer: peer.idles(), said) as running:
        with pytest.raises(UpstreamUnreachable) as failed:
            await sending(exchanges, running)
        assert failed.value.is_unsent
        assert running.connections == 1


async def test_an_origin_that_does_not_greet_times_out_unsent(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read()

    async with origin(script) as running:
        with pytest.raises(UpstreamTimeout) as failed:
            await sending(exchanges, running, bounds=Bounds(connect_s=0.1))
        assert failed.value.is_unsent


async def test_requests_that_wait_for_a_connection_share_the_attempt(exchanges: Exchanges) -> None:
    may_greet = asyncio.Event()

    async def script(peer: Peer) -> None:
        greeted = Http2Peer(peer)
        await may_greet.wait()
        await greeted.greeted()
        await good(greeted)

    async with origin(script) as running:
        waiting = [asyncio.ensure_future(sending(exchanges, running)) for _ in range(8)]
        await eventually(lambda: running.connections == 1)
        waiting[0].cancel()
        may_greet.set()
        assert [await body_of(await one) for one in waiting[1:]] == [b"good"] * 7
        assert running.connections == 1


async def test_another_version_is_used_from_the_next_request_on(exchanges: Exchanges) -> None:
    held: list[tuple[Http2Peer, Asked]] = []

    async def script(peer: Peer) -> None:
        if peer.number == 2:
            while True:
                await peer.asked()
                await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold")
        greeted = Http2Peer(peer)
        await greeted.greeted()
        held.append((greeted, await greeted.asked()))
        await greeted.idles()

    async with origin(script) as running:
        waiting = asyncio.ensure_future(sending(exchanges, running))
        await eventually(lambda: len(held) == 1)
        exchanges.configure_http2([])
        for _ in range(2):
            newer = await bounded(exchanges.send(OriginCall("GET", running.url + "/s", CIMultiDict(), PATIENT)))
            assert await body_of(newer) == b"old"
        await held[0][0].answers(held[0][1])
        assert await body_of(await waiting) == b"good"
        await eventually(lambda: exchanges.http2.connections == 0)
        # And back: the kept connection of HTTP/1.1 is not used.
        third = asyncio.ensure_future(sending(exchanges, running))
        await eventually(lambda: len(held) == 2)
        await held[1][0].answers(held[1][1])
        assert await body_of(await third) == b"good"


async def test_a_connection_that_was_busy_at_the_change_is_not_kept(exchanges: Exchanges) -> None:
    may_answer = asyncio.Event()

    async def script(peer: Peer) -> None:
        if peer.number == 1:
            await peer.asked()
            await may_answer.wait()
            await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold")
            await peer.asked()
            raise AssertionError("asked over HTTP/1.1 again")
        greeted = Http2Peer(peer)
        await greeted.greeted()
        await good(greeted)

    async with origin(script) as running:
        old = asyncio.ensure_future(exchanges.send(OriginCall("GET", running.url + "/s", CIMultiDict(), PATIENT)))
        await eventually(lambda: running.connections == 1)
        exchanges.configure_http2([running.url])
        may_answer.set()
        assert await body_of(await bounded(old)) == b"old"
        assert exchanges.connections()["shared"][:2] == (0, 0)
        assert await body_of(await sending(exchanges, running)) == b"good"


@pytest.mark.parametrize("change", ["tls", "version"])
async def test_a_connection_that_was_being_made_at_the_change_is_not_used(exchanges: Exchanges, change: str) -> None:
    may_greet = asyncio.Event()

    async def script(peer: Peer) -> None:
        if peer.number == 2 and change == "version":
            await peer.asked()
            await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew")
            await peer.reader.read()
        greeted = Http2Peer(peer)
        if peer.number == 1:
            await may_greet.wait()
        await greeted.greeted()
        while True:
            await greeted.answers(await greeted.asked(), b"old" if peer.number == 1 else b"new")

    async with origin(script) as running:
        waiting = asyncio.ensure_future(sending(exchanges, running))
        await eventually(lambda: running.connections == 1)
        if change == "tls":
            exchanges.configure_tls({"https://other:443": OriginTls(ssl.create_default_context(), "")})
        else:
            exchanges.configure_http2([])
        may_greet.set()
        assert await body_of(await waiting) == b"new"
        assert running.connections == 2


async def test_idle_connections_make_room_for_new_ones() -> None:
    """Busy and idle ones together are no more than the slots."""
    exchanges = Exchanges(SlotLimits(1))
    async with http2_origin(good) as one, http2_origin(good) as other:
        exchanges.configure_http2([one.url, other.url])
        for running in (one, other, one):
            work = exchanges.send(OriginCall("GET", running.url + "/s", CIMultiDict(), PATIENT))
            assert await body_of(await bounded(work)) == b"good"
            assert exchanges.connections()["shared"][:2] == (0, 1)
        assert (one.connections, other.connections) == (2, 1)
    await exchanges.close()


# -- what is repeated


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", b"x")])
@pytest.mark.parametrize("how", ["GOAWAY", "REFUSED_STREAM"])
async def test_an_unprocessed_request_is_sent_once_more(
    exchanges: Exchanges, method: str, body: bytes | None, how: str
) -> None:
    async def script(peer: Http2Peer) -> None:
        first = await peer.asked()
        await peer.answers(first)
        if peer.number == 1:
            second = await peer.asked()
            await peer.says(goaway(first.id) if how == "GOAWAY" else reset(second.id, ErrorCode.REFUSED_STREAM))
            if how == "REFUSED_STREAM":
                await peer.answers(await peer.asked())
        await peer.idles()

    async with http2_origin(script) as running:
        await body_of(await sending(exchanges, running))
        assert await body_of(await sending(exchanges, running, method, body=body)) == b"good"
        assert running.connections == (2 if how == "GOAWAY" else 1)


async def test_a_read_on_a_lost_connection_is_sent_once_more_and_a_write_is_not(exchanges: Exchanges) -> None:
    async def script(peer: Http2Peer) -> None:
        if peer.number == 1:
            await peer.answers(await peer.asked())
            await peer.answers(await peer.asked())
            await peer.asked()
            await peer.asked()
            peer.hang_up()
        await good(peer)

    async with http2_origin(script) as running:
        await body_of(await sending(exchanges, running))
        await body_of(await sending(exchanges, running))
        read = asyncio.ensure_future(sending(exchanges, running))
        write = asyncio.ensure_future(sending(exchanges, running, "POST", body=b"x"))
        assert await body_of(await read) == b"good"
        with pytest.raises(UpstreamUnreachable) as failed:
            await write
        assert not failed.value.is_unsent


async def test_repetitions_are_bounded_by_complete_replies(exchanges: Exchanges) -> None:
    asked: list[int] = []

    async def script(peer: Http2Peer) -> None:
        one = await peer.asked()
        asked.append(peer.number)
        if peer.number == 1:
            await peer.answers(one)
            for _ in range(4):
                await peer.asked()
                asked.append(peer.number)
        # Then it hangs up.

    async with http2_origin(script) as running:
        await body_of(await sending(exchanges, running))
        lost = await asyncio.gather(*(sending(exchanges, running) for _ in range(4)), return_exceptions=True)
        assert [type(one) for one in lost] == [UpstreamUnreachable] * 4
        assert asked == [1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("has_head", [False, True], ids=["unanswered", "in the body"])
async def test_a_lost_connection_is_one_failure_of_its_origin_however_many_exchanges_it_ends(
    exchanges: Exchanges, has_head: bool
) -> None:
    async def script(peer: Http2Peer) -> None:
        for asked in [await peer.asked() for _ in range(12)]:
            if has_head:
                await peer.says(reply(asked.id, ends=False))
        if has_head:
            await peer.idles()

    async def one(running: Origin, books: Books) -> None:
        reply = await recorded(exchanges, running, books)
        heads.append(None)
        await everyone.wait()
        await body_of(reply)

    async with http2_origin(script) as running:
        exchanges.configure_http2([running.url])
        heads: list[None] = []
        everyone = asyncio.Event()
        books = books_of(running)
        asking = [asyncio.ensure_future(one(running, books)) for _ in range(12)]
        if has_head:
            await eventually(lambda: len(heads) == 12)
            await running.stop()
            everyone.set()
        failures = await bounded(asyncio.gather(*asking, return_exceptions=True))
        assert {type(failure) for failure in failures} == {UpstreamBroken if has_head else UpstreamUnreachable}
        assert (books.failures, books.breaker.state) == (1, BreakerState.CLOSED)


async def test_a_streamed_body_is_never_repeated(exchanges: Exchanges) -> None:
    async def script(peer: Http2Peer) -> None:
        await peer.answers(await peer.asked())
        await peer.says(reset((await peer.asked()).id, ErrorCode.REFUSED_STREAM))
        await peer.idles()

    async with http2_origin(script) as running:
        await body_of(await sending(exchanges, running))
        with pytest.raises(UpstreamUnreachable) as failed:
            await sending(exchanges, running, "POST", body=pieces(b"a"))
        assert failed.value.__cause__ is not None
        assert reason_of(failed.value.__cause__) == "request reset"


# -- bodies


async def test_a_body_streams_while_the_reply_streams(exchanges: Exchanges) -> None:
    """An append session: each part of the request is answered before the next one is sent."""
    acked: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(peer: Http2Peer) -> None:
        asked = await peer.asked()
        await peer.says(reply(asked.id, ends=False))
        while True:
            kind, flags, _, payload = await peer.frame()
            if kind == frames.DATA and payload:
                await peer.says(data(asked.id, b"ack " + payload))
            if kind == frames.DATA and flags & frames.END_STREAM:
                await peer.says(data(asked.id, ends=True))
                await peer.idles()

    async def parts() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d" % number
            assert await acked.get() == b"ack %d" % number

    async with http2_origin(script) as running, await sending(exchanges, running, "POST", body=parts()) as answer:
        got: list[bytes] = []
        async for piece in answer.chunks():
            got.append(piece)
            acked.put_nowait(piece)
        assert got == [b"ack %d" % number for number in range(5)]


async def test_an_upload_waits_for_the_origins_window(exchanges: Exchanges) -> None:
    taken: list[int] = []

    async def parts() -> AsyncIterator[bytes]:
        for number in range(40):
            taken.append(number)
            yield bytes(10_000)

    sizes: list[int] = []
    is_stalled = asyncio.Event()

    async def script(peer: Http2Peer) -> None:
        asked = await peer.asked()
        while sum(sizes) < 65_535:
            kind, _, _, payload = await peer.frame()
            sizes.append(len(payload) if kind == frames.DATA else 0)
        is_stalled.set()
        await peer.says(window(0, 1 << 20), window(asked.id, 1 << 20))
        while not peer.seen[-1][1] & frames.END_STREAM or peer.seen[-1][0] != frames.DATA:
            kind, _, _, payload = await peer.frame()
            sizes.append(len(payload) if kind == frames.DATA else 0)
        await peer.answers(asked)
        await peer.idles()

    async with http2_origin(script) as running:
        answer = asyncio.ensure_future(sending(exchanges, running, "POST", body=parts()))
        await bounded(is_stalled.wait())
        assert len(taken) < 10
        assert await body_of(await answer) == b"good"
        assert sum(sizes) == 400_000


async def test_an_upload_that_is_not_read_does_not_stop_other_requests(exchanges: Exchanges) -> None:
    """It may use up the connection's window, which all request bodies on the connection share."""
    is_stalled = asyncio.Event()

    async def script(peer: Http2Peer) -> None:
        if peer.number == 1:
            await peer.asked()
            while sum(len(payload) for kind, _, _, payload in peer.seen if kind == frames.DATA) < 65_535:
                await peer.frame()
            is_stalled.set()
            await peer.idles()
        await good(peer)

    async with http2_origin(script, setting(Setting.INITIAL_WINDOW_SIZE, 1 << 20)) as running:
        upload = asyncio.ensure_future(sending(exchanges, running, "POST", body=pieces(*[bytes(10_000)] * 10)))
        await bounded(is_stalled.wait())
        assert await body_of(await sending(exchanges, running, "POST", body=b"x")) == b"good"
        assert await body_of(await sending(exchanges, running, "POST", body=b"x")) == b"good"
        assert running.connections == 2
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)


async def test_a_reply_that_is_not_read_stops_its_origin_and_no_other(exchanges: Exchanges) -> None:
    sent = {1: 0, 3: 0}

    async def script(peer: Http2Peer) -> None:
        slow, quick = await peer.asked(), await peer.asked()
        room = {0: 1 << 20, slow.id: REPLY_WINDOW, quick.id: REPLY_WINDOW}
        await peer.says(reply(slow.id, ends=False), reply(quick.id, ends=False))

        async def send(stream_id: int, most: int) -> None:
            """Send this many bytes, or until the window has been shut while the other stream was read."""
            while sent[stream_id] < most:
                while min(room[0], room[stream_id]) < 1 << 14:
                    kind, _, which, payload = await peer.frame()
                    if kind == frames.WINDOW_UPDATE:
                        room[which] += int.from_bytes(payload, "big")
                await peer.says(data(stream_id, bytes(1 << 14)))
                sent[stream_id] += 1 << 14
                room[0] -= 1 << 14
                room[stream_id] -= 1 << 14

        await send(slow.id, REPLY_WINDOW)
        await send(quick.id, 8 * REPLY_WINDOW)
        while room[slow.id] >= 1 << 14 and sent[slow.id] < 8 * REPLY_WINDOW:
            await send(slow.id, sent[slow.id] + (1 << 14))
        await peer.says(data(quick.id, ends=True))
        await send(slow.id, 8 * REPLY_WINDOW)
        await peer.says(data(slow.id, ends=True))
        await peer.idles()

    async with http2_origin(script) as running:
        first = asyncio.ensure_future(sending(exchanges, running))
        await eventually(lambda: exchanges.http2.streams == 1)
        second = await sending(exchanges, running)
        slow = await first
        assert len(await body_of(second)) == 8 * REPLY_WINDOW
        assert REPLY_WINDOW <= sent[1] <= 2 * REPLY_WINDOW
        assert len(await body_of(slow)) == 8 * REPLY_WINDOW


async def test_a_reply_may_end_before_the_request(exchanges: Exchanges) -> None:
    async def script(peer: Http2Peer) -> None:
        asked = await peer.asked()
        await peer.says(reply(asked.id, [(":status", "413")]), reset(asked.id, ErrorCode.NO_ERROR))
        await good(peer)

    endless = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        await endless.wait()

    async with http2_origin(script) as running:
        reply_ = await sending(exchanges, running, "POST", body=parts())
        assert (reply_.status, await body_of(reply_)) == (413, b"")
        assert await body_of(await sending(exchanges, running)) == b"good"
        assert running.connections == 1


@pytest.mark.parametrize("length", ["5", "1"])
async def test_a_body_of_another_length_resets_its_stream(exchanges: Exchanges, length: str) -> None:
    codes: list[bytes] = []

    async def script(peer: Http2Peer) -> None:
        codes.append((await peer.until(frames.RST_STREAM))[3])
        await good(peer)

    async with http2_origin(script) as running:
        exchanges.configure_http2([running.url])
        with pytest.raises(UpstreamBroken):
            await bounded(
                exchanges.send(
                    OriginCall(
                        "POST", running.url + "/s", CIMultiDict({"Content-Length": length}), PATIENT, pieces(b"a", b"b")
                    )
                )
            )
        assert await body_of(await sending(exchanges, running)) == b"good"
        assert running.connections == 1
        assert len(codes) == 1


# -- silence


async def test_an_exchange_that_times_out_leaves_the_others_alone(exchanges: Exchanges) -> None:
    is_believed = asyncio.Event()

    async def script(peer: Http2Peer) -> None:
        other = await peer.asked()
        _, _, _, payload = await peer.until(frames.PING)
        # The answer to the second PING shows that the first one's has been read.
        await peer.says(frames.ping(payload, is_ack=True), frames.ping(bytes(8), is_ack=False))
        await peer.until(frames.PING)
        is_believed.set()
        await peer.answers(other)
        await good(peer)

    async with http2_origin(script) as running:
        other = asyncio.ensure_future(sending(exchanges, running))
        await eventually(lambda: exchanges.http2.streams == 1)
        with pytest.raises(UpstreamTimeout):
            await sending(exchanges, running, bounds=SHORT)
        await bounded(is_believed.wait())
        assert await body_of(await other) == b"good"
        assert await body_of(await sending(exchanges, running)) == b"good"
        assert running.connections == 1


async def test_a_silent_connection_is_dropped_and_not_used_again(
    exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_connection, "PONG_S", 1.0)

    async def script(peer: Http2Peer) -> None:
        if peer.number == 1:
            await peer.idles()
        await good(peer)

    async with http2_origin(script) as running:
        with pytest.raises(UpstreamTimeout):
            await sending(exchanges, running, bounds=SHORT)
        assert await body_of(await sending(exchanges, running)) == b"good"
        assert running.connections == 2
        await eventually(lambda: exchanges.http2.connections == 1)


# -- garbage


async def test_exchanges_leave_no_cyclic_garbage(exchanges: Exchanges) -> None:
    async def script(peer: Http2Peer) -> None:
        if peer.number % 3 == 0:
            await peer.says(setting(Setting.ENABLE_PUSH, 1))
        while True:
            asked = await peer.asked()
            match asked.fields[":path"]:
                case "/reset":
                    await peer.says(reset(asked.id))
                case "/malformed":
                    await peer.says(reply(asked.id, []))
                case "/goaway":
                    await peer.says(goaway(asked.id), reply(asked.id))
                case "/cut":
                    await peer.says(reply(asked.id, [*OK, ("content-length", "9")], ends=False), data(asked.id, b"x"))
                    peer.hang_up()
                case "/left":
                    pass
                case _:
                    await peer.answers(asked)

    async def use(running: Origin) -> None:
        for path in ("/", "/reset", "/malformed", "/goaway", "/cut", "/left", "/late", "/up"):
            body = pieces(b"a", b"b") if path == "/up" else None
            bounds = Bounds(0.5, 0.05, 0.05, 0.5) if path in ("/left", "/late") else PATIENT
            work = exchanges.send(
                OriginCall("POST" if body else "GET", running.url + path, CIMultiDict(), bounds, body)
            )
            try:
                await body_of(await bounded(work))
            except (UpstreamBroken, UpstreamUnreachable, UpstreamTimeout):
                pass

    async with http2_origin(script) as running:
        exchanges.configure_http2([running.url])
        await use(running)
        gc.collect()
        with collecting() as found:
            for _ in range(3):
                await use(running)
    assert found == []
