"""The table of shared fetches: who waits for which, and whose answer may be taken for the tail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.engine.cold_reads import FirstRead
from gateway.engine.reply_recorder import ReplyRecorder, SentFetch
from gateway.errors import ShortOfMemory, TailMovedBack, UpstreamTimeout, UpstreamUnreachable
from gateway.protocol.cache_status import Outcome
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.worker_headers import HopSaid, Remembered
from gateway.tape.stream import End, Stream
from gateway.upstream.flight import METADATA, Beyond, Head, OriginError, StreamHead
from tests.engine.bench import BINARY, TEXT, BinaryOrigin, EngineBench, Start, part_of_stream
from tests.memory_upstream import BOUND_S, Asked
from tests.waiting import eventually, pass_turns


async def looking(bench: EngineBench, stream: Stream, start: str) -> asyncio.Task[Head]:
    """A look at what lies after `start`, which has begun."""
    read = bench.read("/s")
    look = asyncio.create_task(bench.engine.fetches.fresh_head(stream, start, read.route, read.source))
    await pass_turns()
    return look


def opened(bench: EngineBench) -> Stream:
    return bench.engine.store.open(bench.read("/s").key, bench.clock.now())


async def test_those_who_come_before_a_fetch_is_sent_share_it(start: Start) -> None:
    bench = start()
    stream, read = opened(bench), bench.read("/s")
    looks = [
        asyncio.create_task(bench.engine.fetches.fresh_head(stream, "-1", read.route, read.source)) for _ in range(20)
    ]
    asked = await bench.until(1)
    assert repr(bench.engine.fetches) == "1 flights, 20 waiting"
    BinaryOrigin(b"ab")(asked)
    heads = await asyncio.gather(*looks)
    assert set(heads) == {StreamHead("0002", up_to_date=True, is_closed=False)}
    await eventually(lambda: repr(bench.engine.fetches) == "0 flights, 0 waiting", look_s=0)
    assert len(bench.upstream.asked) == 1


@pytest.mark.parametrize("needs", [["facts"], ["facts", "facts"], ["facts", "tail"], ["tail", "facts"]])
async def test_facts_suffice_for_a_head_that_no_reader_needs_the_tail_of(start: Start, needs: list[str]) -> None:
    bench = start()
    stream, read, fetches = opened(bench), bench.read("/s"), bench.engine.fetches
    looks = [
        asyncio.create_task(
            fetches.fresh_facts(stream, read.route, read.source)
            if need == "facts"
            else fetches.fresh_head(stream, METADATA, read.route, read.source)
        )
        for need in needs
    ]
    asked = await bench.until(1)
    assert asked.shared is not None
    assert asked.shared.facts_suffice is ("tail" not in needs)
    BinaryOrigin(b"ab")(asked)
    await asyncio.gather(*looks)
    assert len(bench.upstream.asked) == 1


@pytest.mark.parametrize("life", ["life", "another"])
async def test_facts_in_the_owners_memory_name_no_present_tail(start: Start, life: str) -> None:
    facts = Remembered("text/plain", "2", False, 100.0, False, False, (), ())
    said = HopSaid("1.1.1", 100.0, "life", is_stale=True, lifetime=Lifetime(60, None), remembered=facts)

    def owner(asked: Asked) -> None:
        asked.said = said
        asked.answer(200)

    bench = start(owner)
    stream, read = opened(bench), bench.read("/s")
    fetches = bench.engine.fetches
    assert await fetches.fresh_facts(stream, read.route, read.source) == StreamHead("2", False, False)
    assert (stream.sighting, stream.expiry.lifetime) == (None, Lifetime(60, None))
    said = said._replace(life=life)
    found = await fetches.fresh_facts(stream, read.route, read.source)
    assert isinstance(found, TailMovedBack) is (stream.ended is End.RECREATED) is (life == "another")


@pytest.mark.parametrize("is_remembered", [False, True])
async def test_metadata_is_forgotten_with_the_bytes_that_the_owner_has_dropped(
    start: Start, is_remembered: bool
) -> None:
    """The owner may have found another stream there."""
    facts = Remembered("text/plain", "2", False, 100.0, False, False, (), ())
    said = HopSaid("1.1.1", 100.0, "life", "name")

    def owner(asked: Asked) -> None:
        asked.said = said
        ttl = {"Stream-TTL": "60"} if asked.method == "HEAD" else {}
        asked.answer(200, {**TEXT, "Stream-Next-Offset": "2", **ttl}, b"" if ttl else b"ab")

    bench = start(owner)
    assert await bench.body() == (200, b"ab")
    stream, read = bench.stream, bench.read("/s")
    fetches = bench.engine.fetches
    await fetches.fresh_head(stream, METADATA, read.route, read.source)
    assert (stream.expiry.lifetime, stream.head_headers) == (Lifetime(60, None), CIMultiDict({"Stream-TTL": "60"}))
    said = said._replace(name="other")
    if is_remembered:
        said = said._replace(is_stale=True, remembered=facts)
        await fetches.fresh_facts(stream, read.route, read.source)
    else:
        await fetches.fresh_head(stream, "2", read.route, read.source)
    assert stream.ended is None
    assert (stream.expiry.lifetime, stream.head_headers) == (None, None)


@pytest.mark.parametrize("is_tail_unknown", [False, True])
async def test_an_answer_of_the_owner_ends_later_reads_only_if_more_bytes_follow_it(
    start: Start, is_tail_unknown: bool
) -> None:
    """The owner's follower may have brought a part of what has been written."""
    tail = "2"

    def owner(asked: Asked) -> None:
        asked.said = HopSaid("1.1.1", 100.0, "life", lifetime=Lifetime(None, None), is_tail_unknown=is_tail_unknown)
        body = {"-1": b"abcd"[: int(tail)], "2": b"cd"}[asked.query.get("offset", "-1")]
        asked.answer(200, {**TEXT, "Stream-Next-Offset": tail}, body)

    bench = start(owner, follow_above_per_s=0)
    assert await bench.body() == (200, b"ab")
    tail = "4"
    assert await bench.body() == (200, b"abcd" if is_tail_unknown else b"ab")


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_an_owner_with_bytes_in_memory_confirms_none_while_the_origin_fails(start: Start, live: str) -> None:
    def owner(asked: Asked) -> None:
        asked.said = said._replace(as_of=bench.clock.now() if not is_failing else confirmed_at, is_stale=is_failing)
        body = b"ab" if asked.query.get("offset", "-1") == "-1" else b""
        asked.answer(200, {**TEXT, "Stream-Next-Offset": "2"}, body)

    is_failing, said = False, HopSaid("1.1.1", 0.0, "life", lifetime=Lifetime(None, None))
    bench = start(owner, trust_s=2)
    assert await bench.body() == (200, b"ab")
    confirmed_at = bench.clock.now()
    bench.clock.advance(3)
    # This shows that the stream is there, and nothing about its first bytes.
    assert await bench.body("/s?offset=2") == (200, b"")
    is_failing, count = True, len(bench.upstream.asked)
    if live:
        (answer,) = (await bench.poll(f"/s?offset=-1{live}")).answers
    else:
        answer = await bench.engine.catch_up(bench.read("/s?offset=-1"))
        answer.close()
    assert [asked.query["offset"] for asked in bench.upstream.asked[count:]] == ["-1"]
    assert (answer.status, answer.outcome) == (200, Outcome.STALE_IF_ERROR)


async def test_bytes_that_an_owner_sends_because_the_origin_fails_are_as_old_as_it_states(start: Start) -> None:
    def owner(asked: Asked) -> None:
        asked.said = HopSaid("1.1.1", bench.clock.now() - 70, "life", is_stale=True, lifetime=Lifetime(None, None))
        asked.answer(200, {**TEXT, "Stream-Next-Offset": "2"}, b"ab")

    bench = start(owner)
    bench.clock.advance(100)
    first = bench.engine.begin_catch_up(bench.read("/s?offset=-1"))
    assert isinstance(first, FirstRead)
    await eventually(lambda: first.flight.is_over, look_s=0)
    assert bench.engine.caught_up(first.read, first) is None
    answers = [await bench.engine.catch_up(first.read, first), await bench.engine.catch_up(bench.read("/t?offset=-1"))]
    for answer in answers:
        assert (answer.outcome, answer.headers["Age"]) == (Outcome.STALE_IF_ERROR, "70")
        answer.close()


@pytest.mark.parametrize("is_tail_unknown", [False, True])
async def test_bytes_that_an_owner_sends_for_another_read_are_as_old_as_it_states(
    start: Start, is_tail_unknown: bool
) -> None:
    def owner(asked: Asked) -> None:
        if asked.query["offset"] == "-1":
            asked.said = said
            asked.answer(200, {**TEXT, "Stream-Next-Offset": "2", "Cache-Control": "max-age=1"}, b"ab")
        else:
            asked.answer(503)

    bench = start(trust_s=60, retry_attempts=0)
    bench.clock.advance(100)
    lifetime = Lifetime(None, None)
    said = HopSaid("1.1.1", bench.clock.now() - 10, "life", is_stale=True, lifetime=lifetime)
    said = said._replace(is_tail_unknown=is_tail_unknown)
    reads = [asyncio.create_task(bench.engine.catch_up(bench.read("/s?offset=-1")))]
    first = await bench.until(1)
    reads += [asyncio.create_task(bench.engine.catch_up(bench.read("/s?offset=-1"))) for _ in range(3)]
    await pass_turns()
    bench.upstream.script = owner
    owner(first)
    for read in reads:
        answer = await read
        assert (answer.outcome, answer.headers.get("Age")) == (Outcome.STALE_IF_ERROR, "10")
        answer.close()
    # The owner is asked once to confirm the bytes for all that came later.
    assert len(bench.upstream.asked) == 2


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
@pytest.mark.parametrize("is_first", [False, True])
async def test_an_owners_bytes_do_not_show_that_the_stream_is_there_while_the_origin_fails(
    start: Start, live: str, is_first: bool
) -> None:
    def owner(asked: Asked) -> None:
        asked.said = said._replace(as_of=bench.clock.now(), is_stale=is_failing)
        body, end = (b"ab", "2") if asked.query.get("offset", "-1") == "-1" else (b"cd", "4")
        asked.answer(200, {**TEXT, "Stream-Next-Offset": end}, body)

    is_failing, said = is_first, HopSaid("1.1.1", 0.0, "life", lifetime=Lifetime(None, None))
    bench = start(owner)
    if not is_first:
        assert await bench.body() == (200, b"ab")
        bench.stream.mark_stale(may_have_ended=False)
        is_failing = True
    if live:
        (answer,) = (await bench.poll(f"/s?offset=-1{live}")).answers
    else:
        answer = await bench.engine.catch_up(bench.read("/s?offset=-1"))
        answer.close()
    assert (answer.status, answer.outcome) == (200, Outcome.STALE_IF_ERROR)


async def test_those_who_come_after_it_was_sent_share_the_next_one(start: Start) -> None:
    """What was acknowledged before they came may not be in an answer that was asked for before."""
    bench = start()
    stream = opened(bench)
    early = await looking(bench, stream, "-1")
    first = await bench.until(1)
    late = [await looking(bench, stream, "-1") for _ in range(5)]
    assert len(bench.upstream.asked) == 1
    BinaryOrigin(b"ab")(first)
    assert await early == StreamHead("0002", up_to_date=True, is_closed=False)
    second = await bench.until(2)
    # Its bytes are here: only what has come since is asked for.
    assert second.query["offset"] == "0002"
    BinaryOrigin(b"abcd")(second)
    assert {await look for look in late} == {StreamHead("0004", up_to_date=True, is_closed=False)}
    assert len(bench.upstream.asked) == 2


async def test_those_who_come_later_get_no_refusal_of_the_place_where_the_first_reply_ended(start: Start) -> None:
    """The origin may trim the stream beyond that place before the second request arrives."""
    bench = start()
    stream = opened(bench)
    early = await looking(bench, stream, "-1")
    first = await bench.until(1)
    late = [await looking(bench, stream, "-1") for _ in range(2)]
    BinaryOrigin(b"ab")(first)
    assert await early == StreamHead("0002", up_to_date=True, is_closed=False)
    (await bench.until(2)).answer(410, {}, b"trimmed")
    third = await bench.until(3)
    assert third.query["offset"] == "-1"
    third.answer(200, {**BINARY, "Stream-Next-Offset": "0004", "Stream-Up-To-Date": "true"}, b"cd")
    assert {await look for look in late} == {StreamHead("0004", up_to_date=True, is_closed=False)}
    assert len(bench.upstream.asked) == 3


async def test_those_who_come_later_start_again_together_if_the_stream_has_ended_meanwhile(start: Start) -> None:
    """Each of them would be relayed otherwise."""
    bench = start()
    stream = opened(bench)
    early = await looking(bench, stream, "-1")
    first = await bench.until(1)
    late = [await looking(bench, stream, "-1") for _ in range(2)]
    BinaryOrigin(b"ab")(first)
    await early
    second = await bench.until(2)
    bench.engine.store.drop_stream(stream, End.DELETED)
    second.answer(410, {}, b"trimmed")
    assert {type(await look) for look in late} == {TailMovedBack}
    assert len(bench.upstream.asked) == 2


async def test_those_who_come_later_ask_no_more_for_an_offset_before_one_that_was_trimmed(start: Start) -> None:
    bench = start()
    stream = opened(bench)
    early = await looking(bench, stream, "0002")
    first = await bench.until(1)
    late = await looking(bench, stream, "0002")
    bench.upstream.script = lambda asked: asked.answer(410, {}, b"trimmed")
    first.answer(200, {**BINARY, "Stream-Next-Offset": "0004", "Stream-Up-To-Date": "true"}, b"cd")
    await early
    found = await late
    assert isinstance(found, OriginError)
    assert found.status == 410
    assert [asked.query["offset"] for asked in bench.upstream.asked] == ["0002", "0004"]


@pytest.mark.parametrize("at", ["-1", "0001"])
async def test_a_later_offset_that_is_beyond_the_tail_is_not_the_one_that_was_asked_for(
    start: Start, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    bench = start()
    stream, fetches = opened(bench), bench.engine.fetches
    early = await looking(bench, stream, at)
    first = await bench.until(1)
    late = await looking(bench, stream, at)
    launch = fetches.launch

    def launch_and_forget(*args: Any) -> Any:
        monkeypatch.undo()
        flight = launch(*args)
        # Writes whose answers were lost may have replaced the stream.
        bench.engine.store.forget_bytes(stream)
        stream.may_be_another()
        return flight

    monkeypatch.setattr(fetches, "launch", launch_and_forget)
    stream.tape.reached("0009")
    first.answer(200, {**BINARY, "Stream-Next-Offset": "0004"}, b"abcd")
    await early
    second, fields = await bench.until(2), {**BINARY, "Stream-Next-Offset": "0003"}
    bench.upstream.script = lambda asked: asked.answer(200, fields, b"xyz")
    second.answer(200, fields)
    assert await late == StreamHead("0003", up_to_date=False, is_closed=False)
    assert [asked.query["offset"] for asked in bench.upstream.asked] == [at, "0004", at]


async def test_fetches_of_several_places_go_beside_each_other(start: Start) -> None:
    bench = start()
    stream = opened(bench)
    looks = [await looking(bench, stream, place) for place in ("-1", METADATA, "now")]
    await bench.until(3)
    assert len(bench.engine.fetches) == 3
    assert {flight.start for _, flight in bench.engine.fetches.flights()} == {"-1", METADATA, "now"}
    for asked in bench.upstream.asked:
        BinaryOrigin(b"ab")(asked)
    assert {await look for look in looks} == {StreamHead("0002", up_to_date=True, is_closed=False)}


async def test_the_last_who_leaves_ends_the_fetch(start: Start) -> None:
    bench = start()
    looks = [await looking(bench, opened(bench), "-1") for _ in range(2)]
    await bench.until(1)
    looks[0].cancel()
    await asyncio.gather(looks[0], return_exceptions=True)
    assert bench.engine.fetches.readers == 1
    looks[1].cancel()
    await asyncio.gather(looks[1], return_exceptions=True)
    await eventually(lambda: not bench.engine.fetches and not bench.engine.tasks, look_s=0)


async def test_a_fetch_whose_request_cannot_be_made_fails_its_readers(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(asked: Asked) -> None:
        raise RuntimeError("no request")

    bench = start(refuse)
    looks = [await looking(bench, opened(bench), "-1") for _ in range(2)]
    async with asyncio.timeout(BOUND_S):
        assert all([isinstance(await look, UpstreamUnreachable) for look in looks])
    await eventually(lambda: not bench.engine.fetches, look_s=0)
    assert not any(stream.holds for stream in bench.engine.store)
    assert "the fetch of" in caplog.text


async def test_a_fetch_that_hangs_is_not_waited_for_longer_than_the_route_says(start: Start) -> None:
    bench = start(collapse_wait_s=2.0)
    stream = opened(bench)
    early = await looking(bench, stream, "-1")
    hanging = await bench.until(1)
    late = await looking(bench, stream, "-1")
    bench.clock.advance(2.1)
    BinaryOrigin(b"ab")(await bench.until(2))
    assert await late == StreamHead("0002", up_to_date=True, is_closed=False)
    hanging.fail(UpstreamTimeout())
    early.cancel()
    await asyncio.gather(early, return_exceptions=True)


async def test_bytes_that_were_forgotten_meanwhile_are_asked_for_again(start: Start) -> None:
    bench = start()
    stream = opened(bench)
    stream.hold()
    look = await looking(bench, stream, "-1")
    first = await bench.until(1)
    bench.engine.store.forget_bytes(stream)
    part_of_stream(b"old", "0003")(first)
    second = await bench.until(2)
    assert stream.tape.size == 0
    part_of_stream(b"new!", "0004")(second)
    assert await look == StreamHead("0004", up_to_date=True, is_closed=False)
    assert stream.tape.read("-1", 100).pieces == (b"new!",)


async def test_a_fetch_that_a_purge_has_overtaken_lays_nothing(start: Start) -> None:
    bench = start()
    stream = opened(bench)
    stream.hold()
    look = await looking(bench, stream, "-1")
    overtaken = await bench.until(1)
    bench.engine.store.forget_bytes(stream)
    bench.upstream.script = part_of_stream(b"", "0000")
    part_of_stream(b"old", "0003")(overtaken)
    await look
    assert stream.tape.size == 0
    assert stream.tape.tail == "0000"


async def test_an_offset_behind_the_tail_is_told_where_it_is(start: Start) -> None:
    bench = start(part_of_stream(b"", "0002"))
    look = await looking(bench, opened(bench), "0009")
    assert await look == Beyond("0002", up_to_date=True, is_closed=False)


@pytest.mark.parametrize("status", [400, 404, 410, 500])
async def test_a_refusal_is_one_for_all_who_wait(start: Start, status: int) -> None:
    bench = start(retry_attempts=0)
    stream, read = opened(bench), bench.read("/s")
    looks = [
        asyncio.create_task(bench.engine.fetches.fresh_head(stream, "-1", read.route, read.source)) for _ in range(5)
    ]
    (await bench.until(1)).answer(status, {"Content-Type": "text/plain"}, b"why")
    heads = await asyncio.gather(*looks)
    assert len({id(head) for head in heads}) == 1
    assert isinstance(heads[0], OriginError)
    assert (heads[0].status, heads[0].body) == (status, b"why")


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("start_at", ["-1", METADATA, "now"])
async def test_a_refusal_requested_before_an_acknowledged_write_ends_nothing(
    start: Start, start_at: str, status: int
) -> None:
    """The write has found the stream, so the refusal may predate it."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin, follow_above_per_s=0)
    await bench.body()
    stream = bench.stream
    bench.upstream.script = lambda asked: None
    look = await looking(bench, stream, start_at)
    refused = await bench.until(2)
    bench.upstream.script = lambda asked: asked.answer(204, {"Stream-Next-Offset": "0004"})
    (await bench.relay(Mode.APPEND, b"cd")).close()
    refused.answer(status)
    assert isinstance(await look, OriginError)
    assert stream.ended is None
    assert stream.needs_revalidation
    origin.body = b"abcd"
    bench.upstream.script = origin
    assert await bench.body() == (200, b"abcd")
    assert bench.stream is stream


async def test_a_fetch_is_refused_at_once_where_memory_is_short_and_no_bytes_may_be_added(start: Start) -> None:
    bench = start()
    bench.engine.store.may_grow = False
    bench.engine.fetches.inflow.bound(0)
    look = await looking(bench, opened(bench), "-1")
    assert look.done()
    assert isinstance(look.result(), ShortOfMemory)
    assert not bench.upstream.asked


async def test_a_fetch_that_has_waited_for_room_is_refused_where_memory_is_short_by_then(start: Start) -> None:
    bench = start()
    bench.engine.fetches.inflow.bound(0)
    look = await looking(bench, opened(bench), "-1")
    assert not look.done()
    bench.engine.store.may_grow = False
    bench.engine.fetches.inflow.bound(None)
    assert isinstance(await look, ShortOfMemory)
    assert not bench.upstream.asked


async def test_a_question_for_the_tail_is_asked_while_no_bytes_may_be_added(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"), follow_above_per_s=0)
    await bench.body()
    stream = bench.stream
    bench.engine.store.may_grow = False
    bench.engine.fetches.inflow.bound(0)
    look = await looking(bench, stream, "0002")
    assert look.done()
    assert look.result() == StreamHead("0002", up_to_date=True, is_closed=False)


@pytest.mark.parametrize("stage", ["apply", "apply_another", "heard"])
async def test_a_reply_that_cannot_be_taken_ends_its_own_fetch_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Replies that arrive together are taken together."""
    bench = start()
    apply = ReplyRecorder.apply

    def fail(recorder: ReplyRecorder, fetch: SentFetch, *more: Any) -> Any:
        if fetch.source.target.path == "/1" and stage != "heard":
            raise TailMovedBack if stage == "apply_another" else ValueError
        return apply(recorder, fetch, *more)

    def fail_another(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(ReplyRecorder, "apply", fail)
    if stage == "apply_another":
        monkeypatch.setattr(ReplyRecorder, "apply_another", fail_another)
    reads = [asyncio.create_task(bench.body(f"/{number}")) for number in range(3)]
    await bench.until(3)
    if stage == "heard":
        heard = iter([None, ValueError(), None])

        def hear() -> None:
            if (error := next(heard)) is not None:
                raise error

        monkeypatch.setattr(bench.route, "heard", hear)
    for asked in bench.upstream.asked:
        part_of_stream(b"ab", "0002")(asked)
    async with asyncio.timeout(BOUND_S):
        found = await asyncio.gather(*reads, return_exceptions=True)
    assert (found[0], found[2]) == ((200, b"ab"), (200, b"ab"))
    assert isinstance(found[1], UpstreamUnreachable)
    await eventually(lambda: not len(bench.engine.fetches), look_s=0)
    assert [stream.holds for stream in bench.engine.store] == [0, 0]
