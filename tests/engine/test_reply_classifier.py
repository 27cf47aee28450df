"""The reply classifier: a table of origin replies, with what may be shared and what each shows about the stream."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.reply_classifier import Learned, Personal, SharedRefusal, TapeFacts, classify
from gateway.engine.route import Route
from gateway.errors import GatewayError, TailMovedBack, UpstreamBroken
from gateway.protocol.stream_version import FIRST
from gateway.upstream.flight import METADATA, Beyond, Head, NotShareable, OriginError, StreamHead
from tests.engine.bench import BINARY, TEXT, BinaryOrigin, EngineBench, Start

PART = {**BINARY, "Stream-Next-Offset": "0002", "Stream-Up-To-Date": "true"}
UNKNOWN = TapeFacts(None, None, False, False, None, FIRST, 999.0)
"""What is known before a stream's first reply."""


async def judged(bench: EngineBench, place: str = "-1") -> Head:
    """What the origin's answer is, asked for at `place`."""
    read = bench.read("/s")
    stream = bench.engine.store.open(read.key, bench.clock.now())
    stream.hold()
    return await bench.engine.fetches.fresh_head(stream, place, read.route, read.source)


@pytest.mark.parametrize(
    ("more", "reason", "is_personal"),
    [
        ({"Set-Cookie": "a=b"}, "Set-Cookie", True),
        ({"Cache-Control": "private"}, "Cache-Control", True),
        ({"Cache-Control": "no-store"}, "Cache-Control", True),
        ({"Vary": "X-User"}, "Vary", True),
        ({"Vary": "*"}, "Vary", True),
        ({"Content-Encoding": "gzip"}, "encoded", False),
    ],
)
async def test_what_is_for_its_asker_alone_says_why(
    start: Start, more: dict[str, str], reason: str, is_personal: bool
) -> None:
    bench = start(lambda asked: asked.answer(200, {**PART, **more}, b"ab"))
    found = await judged(bench)
    assert isinstance(found, NotShareable)
    assert (found.reason, found.is_lasting, found.is_personal) == (reason, True, is_personal)
    assert bench.stream.tape.size == 0


@pytest.mark.parametrize("more", [{"Vary": "Origin"}, {"Vary": "Accept-Encoding"}, {"Cache-Control": "max-age=60"}])
async def test_what_may_be_shared_is_laid(start: Start, more: dict[str, str]) -> None:
    bench = start(lambda asked: asked.answer(200, {**PART, **more}, b"ab"))
    assert await judged(bench) == StreamHead("0002", up_to_date=True, is_closed=False)
    assert bench.stream.tape.read("-1", 10).pieces == (b"ab",)


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (200, TEXT, "no Stream-Next-Offset"),
        (204, PART, "status"),
        (206, PART, "status"),
        (301, {"Location": "/elsewhere"}, "status"),
    ],
)
async def test_what_is_not_of_the_protocol_is_foreign(
    start: Start, status: int, headers: dict[str, str], reason: str
) -> None:
    found = await judged(start(lambda asked: asked.answer(status, headers, b"ab")))
    assert isinstance(found, NotShareable)
    assert found.reason == reason


@pytest.mark.parametrize("offset", ["-1", "now", "", "a b", "x" * 5_000])
async def test_an_offset_that_no_origin_may_name_is_an_error(start: Start, offset: str) -> None:
    bench = start(lambda asked: asked.answer(200, {**PART, "Stream-Next-Offset": offset}, b"ab"), retry_attempts=0)
    assert isinstance(await judged(bench), UpstreamBroken)
    assert bench.stream.tape.size == 0


async def test_304_to_a_request_without_a_condition_is_an_error(start: Start) -> None:
    bench = start(lambda asked: asked.answer(304, PART), retry_attempts=0)
    assert isinstance(await judged(bench), UpstreamBroken)


async def test_bytes_without_a_new_offset_are_an_error(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    await judged(bench)
    bench.upstream.script = lambda asked: asked.answer(200, PART, b"more")
    found = await judged(bench, "0002")
    assert isinstance(found, UpstreamBroken)
    assert bench.stream.tape.read("-1", 10).pieces == (b"ab",)


@pytest.mark.parametrize(
    "another",
    [
        {"Stream-Next-Offset": "0001"},
        {"Stream-Next-Offset": "0002", "Content-Type": "application/json"},
    ],
    ids=["its tail has moved back", "its type is another"],
)
async def test_another_stream_under_the_same_name_ends_the_record(start: Start, another: dict[str, str]) -> None:
    bench = start(BinaryOrigin(b"ab"))
    await judged(bench)
    before = bench.stream
    bench.upstream.script = lambda asked: asked.answer(200, {**PART, **another})
    found = await judged(bench, "0002")
    assert isinstance(found, TailMovedBack)
    assert before.ended is not None
    assert bench.engine.store.find(before.key) is None


async def test_a_closed_stream_that_is_open_again_is_another_one(start: Start) -> None:
    origin = BinaryOrigin(b"ab")
    origin.is_closed = True
    bench = start(origin)
    await judged(bench)
    before = bench.stream
    assert before.tape.closed_at == "0002"
    origin.is_closed = False
    assert isinstance(await judged(bench, "0002"), TailMovedBack)
    assert before.ended is not None


async def test_metadata_teach_the_tail_and_the_life_of_a_stream(start: Start) -> None:
    origin = BinaryOrigin(b"abcd")
    origin.fields = {"Stream-TTL": "60"}
    bench = start(origin)
    assert await judged(bench, METADATA) == StreamHead("0004", up_to_date=True, is_closed=False)
    (asked,) = bench.upstream.asked
    assert asked.method == "HEAD"
    assert bench.stream.tape.tail == "0004"
    assert bench.stream.expiry.lifetime is not None
    assert bench.stream.tape.size == 0


@pytest.mark.parametrize("status", [405, 501])
async def test_an_origin_without_head_is_none_that_refuses(start: Start, status: int) -> None:
    bench = start(lambda asked: asked.answer(status))
    assert await judged(bench, METADATA) == NotShareable("no HEAD")


async def test_an_offset_of_a_clients_own_with_bytes_is_for_that_client(start: Start) -> None:
    found = await judged(start(lambda asked: asked.answer(200, PART, b"ab")), "0009")
    assert found == NotShareable("offset beyond the tail", is_lasting=False)
    assert await judged(start(lambda asked: asked.answer(200, PART)), "0009") == Beyond("0002", True, False)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 429, 500, 503])
async def test_a_refusal_keeps_its_status_and_its_short_body_and_drops_what_is_its_askers(
    start: Start, status: int
) -> None:
    headers = {"Content-Type": "text/plain", "Set-Cookie": "a=b", "ETag": '"x"', "X-Why": "because"}
    bench = start(lambda asked: asked.answer(status, headers, b"why"), retry_attempts=0)
    found = await judged(bench)
    if isinstance(found, GatewayError):
        raise AssertionError(found)
    assert isinstance(found, OriginError)
    assert (found.status, found.body, found.headers["X-Why"]) == (status, b"why", "because")
    assert "Set-Cookie" not in found.headers
    assert "ETag" not in found.headers


class TestPure:
    """Classifying with plain values: a head and what was known go in, nothing is changed."""

    class Head(NamedTuple):
        status: int
        headers: CIMultiDict[str]
        is_delimited: bool = True
        shape: None = None
        own: tuple[()] = ()

    def classified(self, start_at: str, status: int = 200, *, known: TapeFacts = UNKNOWN, **more: str) -> object:
        route = Route(GatewayConfig.for_origin("http://origin.test").routes[0], "edge", ManualClock())
        headers = CIMultiDict({**PART, **{name.replace("_", "-"): value for name, value in more.items()}})
        return classify(start_at, self.Head(status, headers), route, known, 1_000.0)

    @pytest.mark.parametrize("start_at", ["-1", "now", METADATA])
    def test_a_part_says_where_the_tail_is(self, start_at: str) -> None:
        learned = self.classified(start_at)
        assert isinstance(learned, Learned)
        assert (learned.offset, learned.up_to_date, learned.is_closed, learned.is_beyond) == (
            "0002",
            True,
            False,
            False,
        )
        assert learned.head() == StreamHead("0002", up_to_date=True, is_closed=False)
        # Only a HEAD says how long the stream lives.
        assert (learned.lifetime is not None) is (start_at == METADATA)

    def test_an_offset_that_the_origin_had_named_is_not_beyond_its_tail(self) -> None:
        for has_seen in (True, False):
            learned = self.classified("0009", known=UNKNOWN._replace(has_seen=has_seen))
            assert isinstance(learned, Learned)
            assert learned.is_beyond is not has_seen

    def test_what_asks_for_the_tail_is_up_to_date_and_what_asks_for_bytes_only_if_the_origin_says_so(self) -> None:
        for start_at in ("now", "-1"):
            learned = self.classified(start_at, Stream_Up_To_Date="false")
            assert isinstance(learned, Learned)
            assert learned.up_to_date is (start_at == "now")

    def test_a_personal_head_says_how_long_the_stream_lives(self) -> None:
        found = self.classified(METADATA, Cache_Control="private", Stream_TTL="60")
        assert isinstance(found, Personal)
        assert found.why.is_personal
        assert found.lifetime is not None
        assert found.lifetime.ttl_s == 60

    @pytest.mark.parametrize("status", [400, 404, 410, 429, 503])
    def test_an_error_is_a_refusal(self, status: int) -> None:
        assert self.classified("-1", status) == SharedRefusal()
