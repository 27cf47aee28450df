"""The rows of `selection_rows` that read."""

from __future__ import annotations

from s2_sdk import ReadLimit, SeqNum, TailOffset

from tests.s2.sdk.selection_rows import (
    BASIN,
    INVALID,
    NO_STREAM,
    Here,
    metered,
    row,
    row_with_stream,
    stamped,
)

# -- sdk/tests/stream_ops.rs


@row_with_stream
async def read_with_count_limit_partial(here: Here) -> None:
    await here.append("a", "b", "c")
    assert [(one["seq_num"], one["body"]) for one in await here.read("seq_num=1&count=2")] == [(1, "b"), (2, "c")]


@row_with_stream
async def read_with_count_limit_exact(here: Here) -> None:
    await here.append("a", "b", "c")
    assert await here.bodies("seq_num=0&count=3") == ["a", "b", "c"]


@row_with_stream
async def read_with_count_limit_exceeds(here: Here) -> None:
    await here.append("a", "b")
    assert await here.bodies("seq_num=0&count=5") == ["a", "b"]


@row_with_stream
async def read_with_count_over_max_clamps(here: Here) -> None:
    await here.append(*map(str, range(1_000)))
    await here.append(*"abcde")
    assert len(await here.read("seq_num=0&count=2000")) == 1_000


@row_with_stream
async def read_with_bytes_limit_partial(here: Here) -> None:
    await here.append("a", "b", "c")
    assert await here.bodies(f"seq_num=0&bytes={metered('a', 'b', 'c') - 5}") == ["a", "b"]


@row_with_stream
async def read_with_bytes_limit_exact(here: Here) -> None:
    await here.append("a")
    assert await here.bodies(f"seq_num=0&bytes={metered('a')}") == ["a"]


@row_with_stream
async def read_with_bytes_limit_exceeds(here: Here) -> None:
    await here.append("a", "b")
    assert await here.bodies("seq_num=0&bytes=1000") == ["a", "b"]


@row_with_stream
async def read_with_bytes_over_max_clamps(here: Here) -> None:
    for _ in range(2):
        await here.append("x" * 700_000)
    assert len(await here.read(f"seq_num=0&bytes={2 << 20}")) == 1


@row_with_stream
async def read_from_seq_num_with_bytes_limit(here: Here) -> None:
    await here.append("a", "b", "c", "d")
    assert await here.bodies(f"seq_num=1&bytes={metered('b', 'c')}") == ["b", "c"]


@row_with_stream
async def read_with_zero_bytes_limit(here: Here) -> None:
    await here.append("a")
    assert await here.read("seq_num=0&bytes=0") == []


@row_with_stream
async def read_with_unbounded_limit(here: Here) -> None:
    await here.append("a", "b")
    assert await here.bodies() == ["a", "b"]


@row_with_stream
async def read_empty_stream_errors(here: Here) -> None:
    assert await here.read() == (416, {"tail": {"seq_num": 0, "timestamp": 0}})


@row_with_stream
async def read_beyond_tail_errors(here: Here) -> None:
    ack = await here.append("a")
    for clamp in ("", "&clamp=false", "&clamp=true"):
        assert await here.read(f"seq_num=10{clamp}") == (416, {"tail": ack["tail"]})


@row_with_stream
async def read_beyond_tail_with_clamp_to_tail_and_wait_returns_empty_batch(here: Here) -> None:
    await here.append("a")
    assert await here.read("seq_num=10&clamp=true&wait=1") == []


@row_with_stream
async def read_session_beyond_tail_errors(here: Here) -> None:
    await here.append("a")
    reader = await here.client.session("seq_num=10", here.name, s2_basin=BASIN)
    reader.close()
    assert reader.status == 416


@row_with_stream
async def read_session_beyond_tail_with_clamp_to_tail(here: Here) -> None:
    """A session at the tail says where it is, and sends no record before there is one."""
    await here.append("a")
    async with here.s2.basin(BASIN).stream(here.name).read_session(start=SeqNum(10), clamp_to_tail=True) as session:
        assert (await session.caught_up()).seq_num == 1
        await here.append("b")
        assert [one.body for one in (await anext(session)).records] == [b"b"]


@row_with_stream
async def read_session_reports_caught_up_after_tail_delivery(here: Here) -> None:
    ack = await here.append("a", "b")
    async with here.s2.basin(BASIN).stream(here.name).read_session(start=TailOffset(2)) as session:
        assert not session.is_caught_up()
        found: list[bytes] = []
        while len(found) < 2:
            found += [one.body for one in (await anext(session)).records]
        assert found == [b"a", b"b"]
        assert (await session.caught_up()).seq_num == ack["tail"]["seq_num"]
        await here.append("c")
        assert [one.body for one in (await anext(session)).records] == [b"c"]


@row_with_stream
async def read_from_timestamp(here: Here) -> None:
    records, first = stamped(*"abcd")
    ack = await here.append(*records)
    assert (ack["start"]["timestamp"], ack["end"]["timestamp"]) == (first, first + 3)
    assert await here.bodies(f"timestamp={first + 1}") == ["b", "c", "d"]
    assert await here.bodies(f"timestamp={first + 2}&count=1") == ["c"]
    assert await here.bodies(f"timestamp={first + 1}&bytes={metered('b') + 5}") == ["b"]


@row_with_stream
async def read_from_timestamp_in_future_errors(here: Here) -> None:
    records, first = stamped(*"ab")
    await here.append(*records)
    assert await here.read(f"timestamp={first + 100}") == (416, {"tail": {"seq_num": 2, "timestamp": first + 1}})


@row_with_stream
async def read_empty_stream_with_wait_returns_empty(here: Here) -> None:
    assert await here.read("seq_num=0&wait=1") == []


@row_with_stream
async def read_with_count_zero_returns_empty(here: Here) -> None:
    await here.append("a", "b")
    assert await here.read("seq_num=0&count=0") == []


@row_with_stream
async def read_with_bytes_zero_returns_empty(here: Here) -> None:
    await here.append("a", "b")
    assert await here.read("seq_num=0&bytes=0") == []


@row_with_stream
async def read_from_tail_offset_variants(here: Here) -> None:
    ack = await here.append(*"abcde")
    assert await here.read("tail_offset=0") == (416, {"tail": ack["tail"]})
    assert await here.bodies("tail_offset=3") == ["c", "d", "e"]
    assert await here.bodies("tail_offset=999") == ["a", "b", "c", "d", "e"]


@row_with_stream
async def read_until_timestamp(here: Here) -> None:
    records, first = stamped(*"abc")
    await here.append(*records)
    assert await here.bodies(f"seq_num=0&until={first + 2}") == ["a", "b"]


@row_with_stream
async def read_start_timestamp_ge_until_errors(here: Here) -> None:
    records, first = stamped(*"abc")
    await here.append(*records)
    assert await here.read(f"timestamp={first + 2}&until={first + 2}") == INVALID


@row
async def read_nonexistent_stream_errors(here: Here) -> None:
    assert await here.read() == NO_STREAM


@row_with_stream
async def read_session_termination(here: Here) -> None:
    """Of the Python and TypeScript SDKs: a session ends at its limit."""
    await here.append(*"abcde")
    stream = here.s2.basin(BASIN).stream(here.name)
    async with stream.read_session(start=SeqNum(0), limit=ReadLimit(count=2)) as session:
        found = [one.body async for batch in session for one in batch.records]
    assert found == [b"a", b"b"]
