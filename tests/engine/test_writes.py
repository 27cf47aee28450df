"""Relayed requests: what a write that was answered, refused or lost changes in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from gateway.engine.read import Uncacheable
from gateway.errors import UpstreamBroken
from gateway.protocol.mode import Mode
from gateway.tape.stream import End, Stream
from gateway.telemetry.access_record import CloseReason
from gateway.upstream.flight import METADATA
from gateway.upstream.reply import Reply
from tests.engine.bench import BINARY, BinaryOrigin, EngineBench, LongPoll, Start, bring, confirm
from tests.memory_upstream import Asked
from tests.waiting import eventually, pass_turns


async def known(start: Start, **settings: object) -> EngineBench:
    """A bench that has read a stream to its tail, 0002."""
    bench = start(BinaryOrigin(b"ab"), **settings)
    await bench.body()
    return bench


async def test_an_append_that_is_acknowledged_names_a_tail_that_reads_must_reach(start: Start) -> None:
    bench = await known(start)
    bench.upstream.script = lambda asked: asked.answer(204, {"Stream-Next-Offset": "0004"})
    (await bench.relay(Mode.APPEND, b"cd")).close()
    assert bench.stream.acked.tail == "0004"
    assert not bench.stream.holds_acknowledged("0002")
    # The bytes are the origin's to give: nothing of the request is laid.
    assert bench.stream.tape.read("-1", 100).pieces == (b"ab",)


async def test_a_create_that_made_a_stream_ends_what_was_remembered_under_its_name(start: Start) -> None:
    bench = await known(start)
    before = bench.stream
    bench.upstream.script = lambda asked: asked.answer(201, {"Stream-Next-Offset": "0000"})
    (await bench.relay(Mode.CREATE, b"")).close()
    assert before.ended is End.RECREATED


@pytest.mark.parametrize(
    ("ahead_s", "origin_ahead_s", "is_there"), [(-5, 0, False), (5, 0, True), (5, 10, False), (15, 10, True)]
)
async def test_a_create_whose_expiry_has_passed_leaves_nothing_to_answer_from(
    start: Start, ahead_s: int, origin_ahead_s: int, is_there: bool
) -> None:
    """A client may repeat a PUT until it is answered, after the expiry that it states.  The origin judges the expiry by
    its own clock."""

    def create(asked: Asked) -> None:
        date = format_datetime(datetime.fromtimestamp(bench.clock.wall() + origin_ahead_s, UTC), usegmt=True)
        asked.answer(201, {**BINARY, "Stream-Next-Offset": "0002", "Stream-Closed": "true", "Date": date})

    bench = start(create)
    expiry = datetime.fromtimestamp(bench.clock.wall() + ahead_s, UTC)
    bench.written = {"Stream-Expires-At": f"{expiry:%Y-%m-%dT%H:%M:%SZ}"}
    (await bench.relay(Mode.CREATE, b"")).close()
    assert [stream.tape.closed_at for stream in bench.engine.store] == ["0002"] * is_there


async def test_a_create_that_found_the_stream_there_ends_nothing(start: Start) -> None:
    bench = await known(start)
    before = bench.stream
    bench.upstream.script = lambda asked: asked.answer(200, {"Stream-Next-Offset": "0002"})
    (await bench.relay(Mode.CREATE, b"")).close()
    assert before.ended is None


@pytest.mark.parametrize(("status", "why"), [(204, End.DELETED), (404, End.DELETED), (403, None), (500, None)])
async def test_a_delete_ends_the_stream_where_the_origin_has_it_no_more(
    start: Start, status: int, why: End | None
) -> None:
    bench = await known(start)
    before = bench.stream
    bench.upstream.script = lambda asked: asked.answer(status)
    (await bench.relay(Mode.DELETE)).close()
    assert before.ended is why


async def test_an_append_of_one_party_is_in_the_next_read_of_another(writes: Writes) -> None:
    await writes.warm()
    await writes.begin(Mode.APPEND, Authorization="of a writer")
    writes.origin.body += b"cd"
    await writes.answer(0, 204, "0004")
    assert await writes.bench.body() == (200, b"abcd")


async def test_a_delete_ends_waiting_readers_at_once(writes: Writes) -> None:
    await writes.warm()
    client = await writes.wait()
    await writes.begin(Mode.DELETE)
    await writes.answer(0, 204)
    await pass_turns()
    assert [answer.status for answer in client.answers] == [404]


async def test_a_stream_made_again_has_tags_of_its_own(writes: Writes) -> None:
    """It has the offsets and the length of the earlier stream."""
    tags = []
    for body in (b"ab", b"cd"):
        writes.origin.body = body
        answer = await writes.bench.engine.catch_up(writes.bench.read("/s"))
        tags.append(answer.headers["ETag"])
        answer.close()
        assert await writes.bench.body() == (200, body)
        await writes.begin(Mode.CREATE)
        await writes.answer(len(tags) - 1, 201, "0002")
    assert tags[0] != tags[1]


async def test_a_delete_drops_the_tapes_of_all_parties(writes: Writes) -> None:
    assert await writes.bench.body() == (200, b"ab")
    record = writes.held
    await writes.begin(Mode.DELETE, Authorization="of a writer")
    await writes.answer(0, 204)
    # The path may name another stream to the writer, so this one is not said to have been deleted.
    assert record.ended is End.PURGED


async def test_a_delete_that_finds_nothing_has_all_parties_ask_the_origin(writes: Writes) -> None:
    """An earlier attempt may have done it, and its answer was lost."""
    await writes.warm()
    record, asked = writes.held, len(writes.bench.upstream.asked)
    await writes.begin(Mode.DELETE, Authorization="of a writer")
    await writes.answer(0, 404)
    assert record.ended is None
    assert record.version.may_have_ended
    assert await writes.bench.body() == (200, b"ab")
    # The write, and then the read.
    assert len(writes.bench.upstream.asked) > asked + 1


@pytest.mark.parametrize(("status", "doubts"), [(400, 0), (409, 0), (413, 0), (500, 1), (502, 1), (504, 1)])
async def test_a_write_that_may_have_been_done_is_doubted(start: Start, status: int, doubts: int) -> None:
    bench = await known(start)
    bench.upstream.script = lambda asked: asked.answer(status)
    (await bench.relay(Mode.APPEND, b"cd")).close()
    assert bench.stream.version.doubts == doubts
    assert bench.stream.needs_revalidation is bool(doubts)


async def test_a_close_that_is_refused_because_it_is_closed_teaches_where(start: Start) -> None:
    bench = await known(start)
    bench.upstream.script = lambda asked: asked.answer(409, {"Stream-Closed": "true", "Stream-Next-Offset": "0002"})
    (await bench.relay(Mode.APPEND, b"cd")).close()
    assert bench.stream.tape.closed_at == "0002" or bench.stream.is_closing


async def test_writes_that_are_under_way_are_counted_until_they_are_answered(start: Start) -> None:
    bench = await known(start)
    bench.upstream.script = lambda asked: None
    writes = [asyncio.create_task(bench.relay(Mode.APPEND, b"cd")) for _ in range(3)]
    await bench.until(4)
    assert len(bench.engine.pending_writes) == 3
    first, second, third = bench.upstream.asked[1:]
    first.answer(204, {"Stream-Next-Offset": "0004"})
    second.answer(409)
    third.fail(UpstreamBroken())
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert len(bench.engine.pending_writes) == 0
    assert isinstance(done[2], UpstreamBroken)
    for reply in done[:2]:
        assert not isinstance(reply, BaseException)
        reply.close()


async def test_what_a_delete_overtook_is_not_taken_for_the_streams_of_now(start: Start) -> None:
    bench = await known(start)
    bench.upstream.script = lambda asked: None
    appending = asyncio.create_task(bench.relay(Mode.APPEND, b"cd"))
    append = await bench.until(2)
    deleting = asyncio.create_task(bench.relay(Mode.DELETE))
    (await bench.until(3)).answer(204)
    (await deleting).close()
    append.answer(204, {"Stream-Next-Offset": "0004"})
    (await appending).close()
    assert all(stream.acked.tail is None for stream in bench.engine.store)


async def test_live_readers_are_sent_what_was_acknowledged_when_the_follower_brings_it(start: Start) -> None:
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    await bench.body()
    client = await bench.poll("/s?offset=0002&live=long-poll")
    live = await bench.live_request()
    confirm(live, "0002")
    await pass_turns()
    bench.upstream.script = lambda asked: asked.answer(204, {"Stream-Next-Offset": "0004"})
    (await bench.relay(Mode.APPEND, b"cd")).close()
    assert client.answers == []
    bring(live, b"cd", "0004")
    await eventually(lambda: client.bodies == [b"cd"], look_s=0)


async def test_a_stream_made_anew_by_an_overtaken_write_has_its_own_lifetime(start: Start) -> None:
    """PUT, DELETE and PUT are under way at once, and the answer to the first of them overtakes the others."""
    origin = BinaryOrigin()
    bench = start(lambda asked: None if asked.method in ("PUT", "DELETE") else origin(asked))
    writes = []
    for mode in (Mode.CREATE, Mode.DELETE, Mode.CREATE):
        writes.append(asyncio.create_task(bench.relay(mode)))
        await bench.until(len(writes))
    made = {"Stream-Next-Offset": "0002", "Content-Type": "application/octet-stream"}
    for number, (status, headers) in enumerate([(201, made), (204, {}), (201, made)]):
        bench.upstream.asked[number].answer(status, headers)
        (await writes[number]).close()
        if number == 0:
            assert await bench.body() == (200, b"ab")
    assert bench.stream.expiry.lifetime is None
    assert bench.stream.head_headers is None


async def test_an_overtaken_append_that_is_acknowledged_ends_what_was_said_of_the_tail(start: Start) -> None:
    """The answer to a PUT overtakes an append, which the new stream has taken; a read before has seen its tail."""
    origin = BinaryOrigin(b"ab")
    bench = start(lambda asked: None if asked.method in ("PUT", "POST") else origin(asked), tail_fresh_s=60)
    creating = asyncio.create_task(bench.relay(Mode.CREATE, b""))
    put = await bench.until(1)
    appending = asyncio.create_task(bench.relay(Mode.APPEND, b"cd"))
    append = await bench.until(2)
    put.answer(201, {"Stream-Next-Offset": "0002", "Content-Type": "application/octet-stream"})
    (await creating).close()
    assert await bench.body() == (200, b"ab")
    origin.body += b"cd"
    append.answer(204, {"Stream-Next-Offset": "0004"})
    (await appending).close()
    assert await bench.body() == (200, b"abcd")


class Writes:
    """Writes of several clients under way at once, which the test answers in its own order."""

    def __init__(self, start: Start, body: bytes) -> None:
        self.origin = BinaryOrigin(body)
        is_write = {"PUT", "POST", "DELETE"}
        self.bench = start(
            lambda asked: None if asked.method in is_write else self.origin(asked),
            tail_fresh_s=60,
            follow_above_per_s=0,
        )
        self._under_way: list[tuple[Asked, asyncio.Task[Reply]]] = []

    async def begin(self, *modes: Mode, target: str = "/s", **credentials: str) -> None:
        for mode in modes:
            count = len(self.bench.upstream.asked)
            body = None if mode is Mode.DELETE else b""
            writing = asyncio.create_task(self.bench.relay(mode, body, target, **credentials))
            self._under_way.append((await self.bench.until(count + 1), writing))

    async def answer(self, number: int, status: int, tail: str | None = None, **more: str) -> None:
        """Answer the write that was begun as this one, counted from 0."""
        asked, writing = self._under_way[number]
        offset = {} if tail is None else {"Stream-Next-Offset": tail}
        asked.answer(status, {**BINARY, **offset, **{name.replace("_", "-"): value for name, value in more.items()}})
        (await writing).close()

    async def fail(self, number: int) -> None:
        """Let it have no answer, after it may have been done."""
        asked, writing = self._under_way[number]
        asked.fail(UpstreamBroken())
        with pytest.raises(UpstreamBroken):
            await writing

    async def warm(self) -> None:
        """Read twice: the second read is answered from memory."""
        assert [await self.bench.body() for _ in range(2)] == [(200, self.origin.body)] * 2

    async def wait(self) -> LongPoll:
        """A long-poll that waits at 0002, while the live request is connected."""
        client = await self.bench.poll("/s?offset=0002&live=long-poll")
        confirm(await self.bench.live_request(), "0002")
        await pass_turns()
        return client

    async def read_in_time(self) -> tuple[int, bytes]:
        """A read, for which time goes by: it may wait for the live request first."""
        reading = asyncio.create_task(self.bench.body())
        for _ in range(30):
            await pass_turns(20)
            if reading.done():
                break
            self.bench.clock.advance(0.1)
        return await reading

    @property
    def whole_fetches(self) -> int:
        """How often the origin was asked for the stream from its start."""
        return sum(asked.query.get("offset") == "-1" for asked in self.bench.upstream.asked)

    @property
    def held(self) -> Stream:
        """The record of readers without credentials."""
        (found,) = [stream for stream in self.bench.engine.store if not stream.key.partition.readers]
        return found


@pytest.fixture
def writes(start: Start) -> Writes:
    """Writes to a stream that holds b"ab", of which nothing is held yet."""
    return Writes(start, b"ab")


@pytest.mark.parametrize("before", [b"abcdefghij", b"ab"])
async def test_an_append_that_is_answered_before_the_put_of_its_stream_ends_what_was_held(
    start: Start, before: bytes
) -> None:
    writes = Writes(start, before)
    # The second read is answered from memory, as the ones below must not be.
    assert [await writes.bench.body() for _ in range(2)] == [(200, before)] * 2
    await writes.begin(Mode.DELETE, Mode.CREATE, Mode.APPEND)
    writes.origin.body = b"cd"
    await writes.answer(2, 204, "0002")
    assert await writes.bench.body() == (200, b"cd")
    await writes.answer(0, 204)
    await writes.answer(1, 201, "0000")
    assert await writes.bench.body() == (200, b"cd")


async def test_an_append_beside_a_put_that_finds_the_stream_leaves_what_is_held(writes: Writes) -> None:
    assert await writes.bench.body() == (200, b"ab")
    await writes.begin(Mode.CREATE, Mode.APPEND)
    writes.origin.body += b"cd"
    await writes.answer(1, 204, "0004")
    await writes.answer(0, 200, "0004")
    assert writes.bench.stream.tape.read("-1", 100).pieces == (b"ab",)
    assert await writes.bench.body() == (200, b"abcd")


async def test_an_append_beside_a_slow_put_leaves_what_others_hold_and_have_read_already(writes: Writes) -> None:
    assert await writes.bench.body() == (200, b"ab")
    await writes.begin(Mode.CREATE, Mode.APPEND, Authorization="of a writer")
    writes.origin.body += b"cd"
    assert await writes.bench.body("/s?offset=0002") == (200, b"cd")
    held = writes.bench.stream
    await writes.answer(1, 204, "0004")
    assert b"".join(held.tape.read("-1", 100).pieces) == b"abcd"
    assert not held.needs_revalidation
    assert await writes.bench.body() == (200, b"abcd")
    await writes.answer(0, 200, "0004")


async def test_an_overtaken_append_beside_another_put_ends_what_is_held(writes: Writes) -> None:
    """A read between has learned a stream whose offsets coincide with those of the next."""
    await writes.begin(Mode.CREATE, Mode.DELETE, Mode.CREATE, Mode.APPEND)
    await writes.answer(0, 201, "0002")
    assert await writes.bench.body() == (200, b"ab")
    writes.origin.body = b"cd"
    await writes.answer(3, 204, "0002")
    assert await writes.bench.body() == (200, b"cd")


async def test_a_put_that_was_overtaken_overtakes_what_is_under_way(writes: Writes) -> None:
    """The late answer to an append that closed the stream before says nothing of the one that the PUT made."""
    await writes.begin(Mode.CREATE, Mode.DELETE, Mode.CREATE)
    await writes.answer(0, 201, "0002")
    await writes.begin(Mode.APPEND)
    writes.origin.body = b"wxyz"
    await writes.answer(1, 204)
    await writes.answer(2, 201, "0004")
    assert [await writes.bench.body() for _ in range(2)] == [(200, b"wxyz")] * 2
    await writes.answer(3, 204, "0004", Stream_Closed="true")
    assert await writes.bench.body() == (200, b"wxyz")
    assert writes.bench.stream.tape.closed_at is None
    assert not writes.bench.stream.is_closing


CREATE, APPEND, DELETE = Mode.CREATE, Mode.APPEND, Mode.DELETE


class TestMadeAnew:
    """DELETE and PUT are under way, or have failed, while another write is answered for the stream that they made."""

    async def test_a_record_that_a_read_began_meanwhile_is_of_the_stream_before(self, writes: Writes) -> None:
        await writes.begin(DELETE, CREATE, APPEND)
        assert await writes.bench.body() == (200, b"ab")
        writes.origin.body = b"cd"
        await writes.answer(2, 204, "0002")
        assert await writes.bench.body() == (200, b"cd")

    async def test_so_is_a_tail_that_another_append_has_moved_meanwhile(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(DELETE, CREATE, APPEND, APPEND)
        writes.origin.body = b"abcd"
        await writes.answer(3, 204, "0004")
        await writes.warm()
        writes.origin.body = b"wxyz"
        await writes.answer(2, 204, "0004")
        assert await writes.bench.body() == (200, b"wxyz")

    async def test_no_answer_is_of_two_lives_if_the_offset_lies_beyond_the_known_tail(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(DELETE, CREATE, APPEND)
        writes.origin.body = b"wxyz"
        await writes.answer(2, 204, "0004")
        assert await writes.bench.body() == (200, b"wxyz")

    @pytest.mark.parametrize("credentials", [{}, {"Authorization": "of a writer"}])
    async def test_the_closure_of_the_life_before_is_not_stated(
        self, writes: Writes, credentials: dict[str, str]
    ) -> None:
        writes.origin.is_closed = True
        await writes.warm()
        await writes.begin(DELETE, CREATE, APPEND, **credentials)
        writes.origin.is_closed, writes.origin.body = False, b"wxyz"
        await writes.answer(2, 204, "0004")
        assert await writes.bench.body() == (200, b"wxyz")

    @pytest.mark.parametrize("credentials", [{}, {"Authorization": "of a writer"}])
    async def test_a_tail_of_the_life_before_does_not_hide_a_shorter_one(
        self, writes: Writes, credentials: dict[str, str]
    ) -> None:
        await writes.warm()
        await writes.begin(DELETE, CREATE, APPEND, **credentials)
        await writes.answer(2, 204, "0004")
        writes.origin.body = b"CD"
        assert await writes.bench.body() == (200, b"CD")

    async def test_an_append_follows_a_delete_and_a_put_whose_outcomes_are_unknown(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(DELETE)
        await writes.fail(0)
        # It is not done yet.
        assert await writes.bench.body() == (200, b"ab")
        await writes.begin(CREATE)
        await writes.fail(1)
        writes.origin.body = b"cd"
        await writes.begin(APPEND)
        await writes.answer(2, 204, "0002")
        assert await writes.bench.body() == (200, b"cd")

    async def test_an_append_is_answered_beside_the_put_after_a_delete_whose_outcome_is_unknown(
        self, writes: Writes
    ) -> None:
        await writes.warm()
        await writes.begin(DELETE)
        await writes.fail(0)
        assert await writes.bench.body() == (200, b"ab")
        await writes.begin(CREATE, APPEND)
        writes.origin.body = b"cd"
        await writes.answer(2, 204, "0002")
        assert await writes.bench.body() == (200, b"cd")

    async def test_delete_and_put_fail_one_after_the_other_and_the_offsets_are_equal(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(CREATE, DELETE)
        writes.origin.body = b"AB"
        await writes.fail(1)
        # The origin confirms the offset, which is that of the new stream as well.
        await writes.bench.body()
        await writes.fail(0)
        assert await writes.bench.body() == (200, b"AB")

    @pytest.mark.parametrize("closing", [{}, {"Stream_Closed": "true"}])
    async def test_an_append_to_the_life_before_is_answered_after_both_have_failed(
        self, writes: Writes, closing: dict[str, str]
    ) -> None:
        await writes.warm()
        await writes.begin(APPEND, DELETE, CREATE)
        writes.origin.body = b"wx"
        await writes.fail(1)
        await writes.fail(2)
        await writes.warm()
        record = writes.held
        await writes.answer(0, 204, "0004", **closing)
        assert await writes.bench.body() == (200, b"wx")
        assert record.ended is None
        assert record.tape.closed_at is None

    @pytest.mark.parametrize(("body", "closing"), [(b"", {}), (b"cd", {"Stream_Closed": "true"})])
    async def test_another_put_finds_it_there(self, writes: Writes, body: bytes, closing: dict[str, str]) -> None:
        await writes.warm()
        await writes.begin(DELETE, CREATE, CREATE)
        writes.origin.body, writes.origin.is_closed = body, bool(closing)
        await writes.answer(2, 200, writes.origin.tail, **closing)
        assert await writes.bench.body() == (200, body)

    async def test_live_reads_that_began_after_an_acknowledgement_are_not_ended_by_the_delete_before_it(
        self, writes: Writes
    ) -> None:
        await writes.warm()
        await writes.begin(DELETE, CREATE, APPEND)
        writes.origin.body = b"ABcd"
        await writes.answer(2, 204, "0004")
        polling = asyncio.create_task(writes.bench.poll("/s?offset=0004&live=long-poll"))
        confirm(await writes.bench.live_request(), "0004")
        client = await polling
        await writes.answer(0, 204)
        await pass_turns()
        # It is asked to come back, as after any change of the stream.
        assert [answer.status for answer in client.answers] != [404]
        assert await writes.bench.body() == (200, b"ABcd")

    async def test_a_shorter_tail_beside_a_delete_is_no_sign_of_another_partitions_stream(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(CREATE, APPEND, Authorization="of a writer")
        await writes.answer(1, 204, "0004")
        await writes.begin(DELETE, Authorization="of a writer")
        writes.origin.body = b"CD"
        assert await writes.bench.body() == (200, b"CD")

    async def test_so_it_is_after_a_delete_that_had_no_answer(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(APPEND, Authorization="of a writer")
        await writes.answer(0, 204, "0004")
        await writes.begin(DELETE, Authorization="of a writer")
        await writes.fail(1)
        await writes.begin(CREATE, Authorization="of a writer")
        writes.origin.body = b"CD"
        assert await writes.bench.body() == (200, b"CD")

    async def test_a_strangers_delete_that_finds_nothing_does_not_end_the_doubt(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(DELETE)
        await writes.begin(DELETE, Authorization="of a stranger")
        await writes.fail(0)
        await writes.answer(1, 404)
        await writes.warm()
        await writes.begin(CREATE, APPEND)
        writes.origin.body = b"cd"
        await writes.answer(3, 204, "0002")
        assert await writes.bench.body() == (200, b"cd")

    async def test_both_are_done_late_after_a_read_that_found_the_stream_before(self, writes: Writes) -> None:
        await writes.warm()
        for number, mode in enumerate((DELETE, CREATE)):
            await writes.begin(mode)
            await writes.fail(number)
        await writes.warm()
        writes.origin.body = b"cd"
        await writes.begin(APPEND)
        await writes.answer(2, 204, "0002")
        assert await writes.bench.body() == (200, b"cd")

    @pytest.mark.parametrize("is_answered", [False, True])
    async def test_a_record_that_is_begun_after_a_delete_without_an_answer_is_in_doubt_as_well(
        self, writes: Writes, is_answered: bool
    ) -> None:
        await writes.begin(DELETE)
        if not is_answered:
            await writes.fail(0)
        # Neither is done yet, and nothing was held when the DELETE was sent.
        await writes.warm()
        await writes.begin(CREATE, APPEND)
        writes.origin.body = b"cd"
        await writes.answer(2, 204, "0002")
        assert await writes.bench.body() == (200, b"cd")

    async def test_a_put_without_an_answer_long_after_such_a_delete_was_done(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(DELETE)
        await writes.fail(0)
        await writes.warm()
        writes.bench.clock.advance(3_600)
        await writes.begin(CREATE)
        writes.origin.body = b"CD"
        await writes.fail(1)
        await writes.begin(CREATE)
        await writes.answer(2, 200, "0002")
        assert await writes.bench.body() == (200, b"CD")

    @pytest.mark.parametrize("is_answered", [False, True])
    async def test_a_writer_whose_query_the_origin_ignores(self, writes: Writes, is_answered: bool) -> None:
        await writes.warm()
        for mode in (APPEND, DELETE, CREATE):
            await writes.begin(mode, target="/s?token=1")
            if mode is APPEND:
                await writes.answer(0, 204, "0004")
        writes.origin.body = b"CD"
        assert await writes.bench.body() == (200, b"CD")
        if is_answered:
            await writes.answer(1, 204)
            await writes.answer(2, 201, "0002")
        else:
            await writes.fail(1)
            await writes.fail(2)
        await writes.warm()
        for number in range(3, 6):
            await writes.begin(APPEND, target="/s?token=1")
            writes.origin.body += b"ef"
            await writes.answer(number, 204, writes.origin.tail)
            await writes.warm()

    async def test_what_is_held_is_forgotten_when_too_many_such_deletes_are_remembered(self, writes: Writes) -> None:
        await writes.begin(DELETE)
        await writes.fail(0)
        await writes.warm()
        script = writes.bench.upstream.script
        writes.bench.upstream.script = lambda asked: asked.answer(502)
        for number in range(200):
            (await writes.bench.relay(DELETE, target=f"/{number}/{'x' * 8_000}")).close()
        writes.bench.upstream.script = script
        # Both are done by now, and the offsets are equal.
        writes.origin.body = b"cd"
        assert await writes.bench.body() == (200, b"cd")


class TestExpired:
    """Writes after a stream has expired, while nothing has told yet that it was made anew with equal offsets."""

    @pytest.mark.parametrize("lifetime", ["Stream-TTL", "Stream-Expires-At"])
    async def test_a_put_without_an_answer_and_another(self, writes: Writes, lifetime: str) -> None:
        expiry = datetime.fromtimestamp(writes.bench.clock.wall() + 10, UTC)
        writes.origin.fields = {lifetime: "10" if lifetime == "Stream-TTL" else f"{expiry:%Y-%m-%dT%H:%M:%SZ}"}
        await writes.warm()
        writes.bench.clock.advance(11)
        await writes.begin(CREATE)
        writes.origin.body, writes.origin.fields = b"CD", {}
        await writes.fail(0)
        await writes.begin(CREATE)
        await writes.answer(1, 200, "0002")
        assert await writes.bench.body() == (200, b"CD")

    @pytest.mark.parametrize(("mode", "status"), [(APPEND, 204), (CREATE, 200)])
    async def test_a_write_that_is_acknowledged_beside_the_put(self, writes: Writes, mode: Mode, status: int) -> None:
        writes.origin.fields = {"Stream-TTL": "10"}
        await writes.warm()
        writes.bench.clock.advance(11)
        await writes.begin(CREATE, mode)
        writes.origin.body = b"cd"
        await writes.answer(1, status, "0002")
        assert await writes.bench.body() == (200, b"cd")

    async def test_a_put_that_had_no_answer_before_and_is_done_after_it(self, writes: Writes) -> None:
        writes.origin.fields = {"Stream-TTL": "10"}
        await writes.warm()
        await writes.begin(CREATE)
        await writes.fail(0)
        writes.bench.clock.advance(11)
        writes.origin.body = b"CD"
        assert await writes.bench.body() == (200, b"CD")

    @pytest.mark.parametrize("is_lost", [False, True])
    async def test_the_lifetime_was_not_known(self, writes: Writes, is_lost: bool) -> None:
        """It is asked for before the first answer from memory."""
        writes.origin.fields = {"Stream-TTL": "10"}
        assert await writes.bench.body() == (200, b"ab")
        writes.bench.clock.advance(11)
        await writes.begin(CREATE, APPEND)
        writes.origin.body = b"CD"
        if is_lost:
            await writes.fail(0)
        await writes.answer(1, 204, "0002")
        assert await writes.bench.body() == (200, b"CD")

    async def test_the_lifetime_was_not_known_and_the_put_is_sent_again(self, writes: Writes) -> None:
        writes.origin.fields = {"Stream-TTL": "10"}
        assert await writes.bench.body() == (200, b"ab")
        writes.bench.clock.advance(11)
        await writes.begin(CREATE)
        writes.origin.body = b"CD"
        await writes.fail(0)
        await writes.begin(CREATE)
        await writes.answer(1, 200, "0002")
        assert await writes.bench.body() == (200, b"CD")

    async def test_a_tail_that_is_short_of_what_was_acknowledged_before(self, writes: Writes) -> None:
        writes.origin.fields = {"Stream-TTL": "10"}
        assert await writes.bench.body() == (200, b"ab")
        await writes.begin(APPEND, target="/s?token=1")
        await writes.answer(0, 204, "0004")
        writes.bench.clock.advance(11)
        await writes.begin(CREATE, target="/s?token=1")
        writes.origin.body = b"CD"
        await writes.fail(1)
        assert await writes.bench.body() == (200, b"CD")

    async def test_live_readers_outlast_the_expiry_that_a_stream_may_not_have_any_more(self, writes: Writes) -> None:
        expiry = datetime.fromtimestamp(writes.bench.clock.wall() + 10, UTC)
        writes.origin.fields = {"Stream-Expires-At": f"{expiry:%Y-%m-%dT%H:%M:%SZ}"}
        await writes.warm()
        client = await writes.wait()
        await writes.begin(CREATE)
        await writes.fail(0)
        writes.origin.fields = {}
        writes.bench.clock.advance(11)
        await pass_turns()
        assert [answer.status for answer in client.answers] != [404]

    async def test_a_late_answer_does_not_prolong_a_sliding_ttl(self, writes: Writes) -> None:
        """The origin did the append at once."""
        writes.origin.fields = {"Stream-TTL": "10"}
        await writes.warm()
        await writes.begin(APPEND)
        writes.bench.clock.advance(9)
        await writes.answer(0, 204, "0002")
        writes.bench.clock.advance(3)
        # It expired, and was made anew past this gateway.
        writes.origin.body = b"CD"
        assert await writes.bench.body() == (200, b"CD")


class TestSpared:
    """Writes that have not made the stream anew cost readers nothing that is held."""

    @pytest.mark.parametrize("data", [b"", b"cd"])
    async def test_a_close_beside_a_strangers_delete(self, writes: Writes, data: bytes) -> None:
        await writes.warm()
        record, client = writes.held, await writes.wait()
        wire, _ = await writes.bench.subscribe("/s?offset=0002&live=sse")
        await writes.begin(APPEND, Authorization="of a writer")
        writes.origin.body, writes.origin.is_closed = b"ab" + data, True
        await writes.answer(0, 204, writes.origin.tail, Stream_Closed="true")
        await writes.begin(DELETE, CREATE, Authorization="of a stranger")
        assert await writes.read_in_time() == (200, b"ab" + data)
        for number in (1, 2):
            await writes.answer(number, 403)
        if not client.answers:
            bring(writes.bench.live[0], data, writes.origin.tail, is_closed=True)
        await pass_turns()
        assert record.ended is None
        assert [answer.status for answer in client.answers] == [200 if data else 204]
        assert [why for why, _ in wire.ended] == [CloseReason.CLOSED]

    @pytest.mark.parametrize("modes", [(DELETE,), (DELETE, CREATE)])
    @pytest.mark.parametrize("is_read", [False, True])
    async def test_live_readers_of_another_partitions_stream(
        self, writes: Writes, modes: tuple[Mode, ...], is_read: bool
    ) -> None:
        await writes.warm()
        client = await writes.wait()
        wire, _ = await writes.bench.subscribe("/s?offset=0002&live=sse")
        # The writer's own stream of this path is longer.
        await writes.begin(APPEND, Authorization="of a writer")
        await writes.answer(0, 204, "0010")
        await writes.begin(*modes, Authorization="of a writer")
        if is_read:
            assert await writes.read_in_time() == (200, b"ab")
        else:
            writes.bench.clock.advance(1.1)
        await pass_turns(200)
        assert not client.answers
        assert not wire.ended

    async def test_appends_beside_a_strangers_delete(self, writes: Writes) -> None:
        await writes.warm()
        await writes.wait()
        edition = writes.held.version.edition
        await writes.begin(DELETE, Authorization="of a stranger")
        for number in range(1, 21):
            await writes.begin(APPEND)
            writes.origin.body += b"cd"
            await writes.answer(number, 204, writes.origin.tail)
            await pass_turns()
        assert writes.held.version.edition == edition
        assert len(writes.bench.live) == 1

    @pytest.mark.parametrize("modes", [(DELETE,), (DELETE, CREATE)])
    @pytest.mark.parametrize("query", ["offset=-1", "offset=now", "offset=0002&live=long-poll", "offset=0002&live=sse"])
    async def test_a_read_that_takes_longer_than_appends_beside_a_strangers_writes(
        self, writes: Writes, query: str, modes: tuple[Mode, ...]
    ) -> None:
        """It is answered; if what it was sent was forgotten at each attempt, it is relayed."""
        await writes.warm()
        script, upstream = writes.origin, writes.bench.upstream
        upstream.script = lambda asked: None
        await writes.begin(APPEND)
        writes.origin.body += b"cd"
        await writes.answer(0, 204, writes.origin.tail)
        await writes.begin(*modes, Authorization="of a stranger")
        ways = {"long-poll": writes.bench.poll, "sse": writes.bench.subscribe}
        read = ways.get(query.rpartition("=")[2], writes.bench.body)
        reading: asyncio.Task[object] = asyncio.create_task(read(f"/s?{query}"))
        number = 1 + len(modes)
        while not reading.done() and number < 60:
            await pass_turns(30)
            reads = [asked for asked in upstream.asked if asked.method in ("GET", "HEAD") and not asked.is_answered]
            await writes.begin(APPEND)
            writes.origin.body += b"cd"
            await writes.answer(number, 204, writes.origin.tail)
            number += 1
            for asked in reads:
                if asked.is_live:
                    confirm(asked, writes.origin.tail)
                else:
                    script(asked)
            await pass_turns(30)
        if modes == (DELETE,):
            await reading
        else:
            with pytest.raises(Uncacheable):
                await reading

    async def test_deletes_that_find_nothing_one_before_the_last_is_answered(self, writes: Writes) -> None:
        await writes.begin(CREATE)
        await writes.begin(DELETE, Authorization="of a stranger")
        await writes.answer(0, 201, "0002")
        await writes.warm()
        await writes.wait()
        edition = writes.held.version.edition
        for number in range(1, 21):
            await writes.begin(DELETE, Authorization="of a stranger")
            await writes.answer(number, 404)
            await pass_turns()
        assert await writes.read_in_time() == (200, b"ab")
        assert writes.held.version.edition == edition
        assert len(writes.bench.live) == 2

    async def test_puts_that_find_the_stream_there_beside_a_strangers_delete(self, writes: Writes) -> None:
        await writes.warm()
        edition = writes.held.version.edition
        await writes.begin(DELETE, Authorization="of a stranger")
        for number in range(1, 6):
            await writes.begin(CREATE)
            await writes.answer(number, 200, "0002")
            await writes.warm()
        assert writes.held.version.edition == edition

    @pytest.mark.parametrize("is_failed", [False, True])
    async def test_a_strangers_put_costs_a_stream_of_unknown_lifetime_one_fetch(
        self, writes: Writes, is_failed: bool
    ) -> None:
        """It may have expired, and the PUT may have made it anew; from then on its lifetime is known."""
        assert await writes.bench.body() == (200, b"ab")
        await writes.begin(CREATE, Authorization="of a stranger")
        if is_failed:
            await writes.answer(0, 503)
        for number in range(1, 6):
            await writes.begin(APPEND)
            writes.bench.clock.advance(2)
            writes.origin.body += b"cd"
            await writes.answer(number, 204, writes.origin.tail)
            assert await writes.bench.body() == (200, writes.origin.body)
        assert writes.whole_fetches == 2

    async def test_an_append_without_an_answer_beside_a_strangers_delete_and_put(self, writes: Writes) -> None:
        await writes.warm()
        edition = writes.held.version.edition
        await writes.begin(DELETE, CREATE, Authorization="of a stranger")
        await writes.begin(APPEND)
        await writes.fail(2)
        await writes.warm()
        assert writes.held.version.edition == edition

    async def test_puts_that_fail_cost_a_stream_of_unknown_lifetime_one_fetch(self, writes: Writes) -> None:
        assert await writes.bench.body() == (200, b"ab")
        for number in range(5):
            writes.bench.clock.advance(2)
            await writes.begin(CREATE, Authorization="of a stranger")
            await writes.answer(number, 503)
            assert await writes.bench.body() == (200, b"ab")
        assert writes.whole_fetches == 2

    @pytest.mark.parametrize("status", [403, 404, 410])
    async def test_a_strangers_delete_before_each_append(self, writes: Writes, status: int) -> None:
        await writes.warm()
        edition = writes.held.version.edition
        for number in range(0, 6, 2):
            await writes.begin(DELETE, Authorization="of a stranger")
            await writes.answer(number, status)
            await writes.warm()
            await writes.begin(APPEND)
            writes.origin.body += b"cd"
            await writes.answer(number + 1, 204, writes.origin.tail)
            await writes.warm()
        assert writes.held.version.edition == edition

    async def test_a_delete_that_is_refused_leaves_what_readers_hold(self, writes: Writes) -> None:
        """Anyone can send one, and the follower has brought what was acknowledged."""
        await writes.warm()
        await writes.bench.poll("/s?offset=0002&live=long-poll")
        confirm(await writes.bench.live_request(), "0002")
        await writes.begin(APPEND)
        writes.origin.body += b"cd"
        await writes.answer(0, 204, "0004")
        bring(writes.bench.live[0], b"cd", "0004")
        await eventually(lambda: writes.held.tape.tail == "0004", look_s=0)
        edition = writes.held.version.edition
        await writes.begin(DELETE)
        await writes.answer(1, 403)
        assert writes.held.version.edition == edition
        assert await writes.bench.body() == (200, b"abcd")

    @pytest.mark.parametrize("is_trimmed", [False, True])
    @pytest.mark.parametrize("is_answered", [False, True])
    async def test_puts_after_a_doubt_that_a_read_has_cleared(
        self, writes: Writes, is_trimmed: bool, is_answered: bool
    ) -> None:
        await writes.warm()
        await writes.begin(CREATE)
        if is_trimmed:
            script = writes.bench.upstream.script
            writes.bench.upstream.script = lambda asked: asked.answer(410)
            assert (await writes.bench.body("/s?offset=0001"))[0] == 410
            writes.bench.upstream.script = script
            await writes.answer(0, 200, "0002")
        else:
            await writes.fail(0)
        await writes.warm()
        edition = writes.held.version.edition
        for number in range(1, 4):
            await writes.begin(CREATE)
            await (writes.answer(number, 200, "0002") if is_answered else writes.fail(number))
            await writes.warm()
        assert writes.held.version.edition == edition

    async def test_a_put_and_an_append_without_an_answer(self, writes: Writes) -> None:
        await writes.warm()
        edition = writes.held.version.edition
        for number, mode in enumerate((APPEND, CREATE)):
            await writes.begin(mode)
            await writes.fail(number)
        await writes.warm()
        assert writes.held.version.edition == edition

    async def test_puts_that_find_the_stream_there_one_after_the_other(self, writes: Writes) -> None:
        await writes.begin(CREATE, CREATE)
        await writes.answer(0, 201, "0002")
        await writes.warm()
        edition = writes.held.version.edition
        for number in range(2, 12):
            await writes.begin(CREATE)
            await writes.answer(number - 1, 200, "0002")
            assert await writes.bench.body() == (200, b"ab")
        assert writes.held.version.edition == edition

    async def test_repeats_of_a_producer_beside_a_slow_put(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(CREATE)
        edition = writes.held.version.edition
        writes.bench.written = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
        for number in range(1, 6):
            await writes.begin(APPEND)
            await writes.answer(number, 204, "0002")
            assert await writes.bench.body() == (200, b"ab")
        assert writes.held.version.edition == edition

    @pytest.mark.parametrize("answer", [(204, "0004"), (400, None)])
    async def test_an_overtaken_append_of_another_partition_beside_another_put(
        self, writes: Writes, answer: tuple[int, str | None]
    ) -> None:
        await writes.begin(CREATE, APPEND, CREATE, Authorization="of a writer")
        await writes.answer(0, 201, "0002")
        assert await writes.bench.body() == (200, b"ab")
        edition = writes.held.version.edition
        await writes.answer(1, *answer)
        assert writes.held.version.edition == edition

    async def test_an_overtaken_put_that_is_refused(self, writes: Writes) -> None:
        await writes.begin(CREATE, CREATE)
        await writes.answer(0, 201, "0002")
        assert await writes.bench.body() == (200, b"ab")
        edition = writes.held.version.edition
        await writes.answer(1, 409)
        assert writes.held.version.edition == edition

    async def test_appends_that_a_closed_stream_refuses_beside_a_slow_put(self, writes: Writes) -> None:
        writes.origin.is_closed = True
        assert await writes.bench.body() == (200, b"ab")
        await writes.begin(CREATE, APPEND)
        edition = writes.held.version.edition
        await writes.answer(1, 409, "0002", Stream_Closed="true")
        assert writes.held.version.edition == edition

    async def test_overtaken_appends_that_are_refused_leave_the_live_request(self, writes: Writes) -> None:
        await writes.begin(CREATE, *[APPEND] * 5)
        await writes.answer(0, 201, "0002")
        assert await writes.bench.body() == (200, b"ab")
        await writes.bench.poll("/s?offset=0002&live=long-poll")
        confirm(await writes.bench.live_request(), "0002")
        for number in range(1, 6):
            await writes.answer(number, 400)
            await pass_turns()
        assert len(writes.bench.live) == 1


@pytest.mark.parametrize("is_poll", [False, True])
async def test_a_read_beyond_the_tail_is_answered_by_a_request_that_was_sent_after_it(
    start: Start, is_poll: bool
) -> None:
    """The reader may have the offset from another gateway, and the origin may have reached it since the other read."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    await bench.body()
    bench.upstream.script = lambda asked: None

    def beyond() -> list[Asked]:
        return [asked for asked in bench.upstream.asked if asked.query.get("offset") == "0003" and not asked.is_live]

    async def read() -> bytes:
        if not is_poll:
            return (await bench.body("/s?offset=0003"))[1]
        client = await bench.poll("/s?offset=0003&live=long-poll")
        await eventually(lambda: bool(client.bodies), look_s=0)
        return client.bodies[0]

    made_up = asyncio.create_task(bench.body("/s?offset=0003"))
    await eventually(lambda: len(beyond()) == 1, look_s=0)
    reads = [asyncio.create_task(read()) for _ in range(100)]
    await pass_turns()
    [early] = beyond()
    bench.upstream.script = BinaryOrigin(b"abcd")
    origin(early)
    assert await made_up == (200, b"")
    assert {await read for read in reads} == {b"d"}
    assert len(beyond()) == 2


async def test_caches_must_revalidate_an_answer_that_moves_a_reader_back(start: Start) -> None:
    """The origin does not mark its reply up to date here."""

    def script(asked: Asked) -> None:
        asked.answer(200, {**BINARY, "Stream-Next-Offset": "0002"}, b"ab" if asked.query["offset"] == "-1" else b"")

    bench = start(script)
    assert await bench.body() == (200, b"ab")
    answer = await bench.engine.catch_up(bench.read("/s?offset=0003"))
    assert answer.headers["Cache-Control"] == "no-cache"
    answer.close()


async def test_an_append_that_is_answered_late_does_not_make_its_end_the_tail(start: Start) -> None:
    """Two appends are under way; the second one is acknowledged first, and read."""
    origin = BinaryOrigin(b"ab")

    def script(asked: Asked) -> None:
        if not asked.is_live and asked.method != "POST":
            origin(asked)

    bench = start(script)
    await bench.body()
    following = asyncio.create_task(bench.subscribe("/s?offset=0002&live=sse"))
    live = await bench.live_request()
    confirm(live, "0002")
    await following
    tasks = [asyncio.create_task(bench.relay(Mode.APPEND, body)) for body in (b"cd", b"ef")]
    await eventually(lambda: sum(asked.method == "POST" for asked in bench.upstream.asked) == 2, look_s=0)
    first, second = (asked for asked in bench.upstream.asked if asked.method == "POST")
    origin.body = b"abcdef"
    second.answer(204, {"Stream-Next-Offset": "0006"})
    (await tasks[1]).close()
    read = bench.read("/s?offset=0002")
    await bench.engine.fetches.fresh_head(bench.stream, METADATA, read.route, read.source)
    first.answer(204, {"Stream-Next-Offset": "0004"})
    (await tasks[0]).close()
    reading = asyncio.create_task(bench.engine.catch_up(read))
    await pass_turns()
    bring(live, b"cd", "0004")
    answer = await reading
    said = answer.headers["Stream-Next-Offset"], answer.headers.get("Stream-Up-To-Date")
    answer.close()
    assert said in (("0004", None), ("0006", "true"))


async def test_a_read_that_asked_for_the_tail_is_told_it_although_an_append_is_acknowledged_meanwhile(
    start: Start,
) -> None:
    """An empty answer that is not up to date would be kept by caches as a piece of the past."""
    origin = BinaryOrigin(b"ab")

    def script(asked: Asked) -> None:
        if not asked.is_live and asked.method == "GET":
            origin(asked)

    bench = start(script, tail="asked")
    learning = asyncio.create_task(bench.body())
    await eventually(lambda: any(asked.method == "GET" for asked in bench.upstream.asked), look_s=0)
    await learning
    following = asyncio.create_task(bench.subscribe("/s?offset=0002&live=sse"))
    confirm(await bench.live_request(), "0002")
    await eventually(lambda: following.done() or bench.upstream.asked[-1].method == "HEAD", look_s=0)
    for asked in bench.upstream.asked:
        if asked.method == "HEAD" and not asked.is_answered:
            origin(asked)
    await following
    count = len(bench.upstream.asked)
    reading = asyncio.create_task(bench.engine.catch_up(bench.read("/s?offset=0002")))
    await eventually(lambda: len(bench.upstream.asked) > count, look_s=0)
    head = bench.upstream.asked[-1]
    assert head.method == "HEAD"
    appending = asyncio.create_task(bench.relay(Mode.APPEND, b"cd"))
    await eventually(lambda: bench.upstream.asked[-1].method == "POST", look_s=0)
    bench.upstream.asked[-1].answer(204, {"Stream-Next-Offset": "0004"})
    (await appending).close()
    origin(head)
    answer = await reading
    said = answer.headers["Stream-Next-Offset"], answer.headers.get("Stream-Up-To-Date")
    answer.close()
    assert said == ("0002", "true")
    assert "no-cache" in answer.headers["Cache-Control"]


class TestBridged:
    """On a route to S2 an append may create a stream that does not exist."""

    @pytest.fixture
    def writes(self, writes: Writes) -> Writes:
        # The origin in memory speaks Durable Streams, so only the route is told of S2.
        writes.bench.route.is_bridged = True
        return writes

    async def test_an_append_beside_a_delete_may_be_to_the_next_stream(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(DELETE, APPEND)
        writes.origin.body = b"CD"
        await writes.answer(1, 204, "0002")
        assert await writes.bench.body() == (200, b"CD")

    async def test_so_may_one_without_an_answer(self, writes: Writes) -> None:
        await writes.warm()
        for number, mode in enumerate((DELETE, APPEND)):
            await writes.begin(mode)
            await writes.fail(number)
        writes.origin.body = b"CD"
        assert await writes.bench.body() == (200, b"CD")

    async def test_what_is_held_is_given_while_the_origin_fails_though_an_append_failed(self, writes: Writes) -> None:
        await writes.warm()
        await writes.begin(APPEND)
        await writes.answer(0, 503)
        writes.bench.upstream.script = lambda asked: asked.answer(503, {"Retry-After": "1"})
        assert await writes.bench.body() == (200, b"ab")

    @pytest.mark.parametrize("is_acknowledged", [False, True])
    async def test_so_may_one_that_is_done_after_a_later_delete(self, writes: Writes, is_acknowledged: bool) -> None:
        await writes.warm()
        await writes.begin(APPEND)
        await writes.fail(0)
        await writes.begin(DELETE, CREATE)
        # The origin does the DELETE, then the append.
        writes.origin.body = b"CD"
        await (writes.answer(2, 200, "0002") if is_acknowledged else writes.fail(1))
        assert await writes.bench.body() == (200, b"CD")

    async def test_appends_to_many_streams_that_fail_cost_nothing_that_is_held(self, writes: Writes) -> None:
        await writes.warm()
        edition = writes.held.version.edition
        await writes.begin(APPEND)
        await writes.answer(0, 503)
        for number in range(1, 140):
            await writes.begin(APPEND, target=f"/{number}/{'x' * 8_000}")
            await writes.answer(number, 503)
        assert writes.held.version.edition == edition

    async def test_an_append_that_fails_leaves_the_live_request_to_the_others(self, writes: Writes) -> None:
        await writes.warm()
        await writes.wait()
        await writes.begin(*[APPEND] * 6)
        await writes.answer(0, 503)
        await pass_turns()
        before = len(writes.bench.live)
        for number in range(1, 6):
            writes.origin.body += b"cd"
            await writes.answer(number, 204, writes.origin.tail)
            await pass_turns()
        assert len(writes.bench.live) == before


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_a_read_beyond_the_tail_of_a_stream_of_which_only_the_type_is_known(start: Start, live: str) -> None:
    """Each request of the reader before it was overtaken by writes that may have made the stream anew."""
    origin, held = BinaryOrigin(b"ab"), list[Asked]()
    origin.is_closed = True

    def script(asked: Asked) -> None:
        if asked.method in ("DELETE", "PUT"):
            asked.fail(UpstreamBroken())
        elif len(held) < 2:
            held.append(asked)
        else:
            origin(asked)

    bench = start(script)

    async def said() -> bytes | list[str]:
        target = f"/s?offset=0009&live={live}"
        if live == "sse":
            return bytes((await bench.subscribe(target))[0].said)
        return [answer.headers["Stream-Next-Offset"] for answer in (await bench.poll(target)).answers]

    async def overtake() -> None:
        for mode in (Mode.DELETE, Mode.CREATE):
            with pytest.raises(UpstreamBroken):
                await bench.relay(mode)

    before = asyncio.create_task(said())
    await eventually(lambda: len(held) == 1, look_s=0)
    await overtake()
    origin(held[0])
    await eventually(lambda: len(held) == 2, look_s=0)
    await overtake()
    assert (bench.stream.content_type, bench.stream.tape.tail) == (BINARY["Content-Type"], None)
    found = await said()
    assert (b'"0002"' if live == "sse" else "0002") in found
    origin(held[1])
    assert await before == found
