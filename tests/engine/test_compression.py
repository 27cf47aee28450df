"""Content coding: each body is coded once, kept within bounds, and never delays an answer for long."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.engine import compression as module
from gateway.engine.answer import Answer, BodyRun
from gateway.engine.compression import CODERS, INLINE_BYTES, PATIENCE_S
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.tape.stream import End
from tests.codings import DECODERS, messages
from tests.engine.coding_bench import Bench
from tests.waiting import pass_turns

SMALL = messages(100)
LARGE = messages(1_000)
ALL = tuple(Coding)
LOWEST = 19
"""The lowest priority that a thread may have (sched(7))."""


async def started(work: Any) -> asyncio.Task[Answer]:
    """Start the work and let it run up to its first wait."""
    task: asyncio.Task[Answer] = asyncio.create_task(work)
    await pass_turns(3)
    return task


def body_of(answer: Answer) -> bytes:
    assert answer.parts is not None
    pieces = answer.parts.held(answer.is_json)
    assert pieces is not None
    return DECODERS[answer.headers.get("Content-Encoding", "identity")](b"".join(pieces))


def is_coded(answer: Answer) -> bool:
    return "Content-Encoding" in answer.headers


@pytest.mark.parametrize("coding", ALL)
@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["inline", "in the thread"])
async def test_every_coding_can_be_decoded(coding: Coding, body: bytes) -> None:
    bench = Bench()
    stream = bench.stream()
    answer = await bench.code(stream, body, coding.value)
    assert answer.headers["Content-Encoding"] == coding.value
    assert answer.headers["ETag"] == f'"k:-1:9:{coding.value}"'
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert body_of(answer) == body
    assert answer.stream is stream
    assert bench.recorder.counts["coded", coding.value] == 1


@given(st.binary(min_size=1, max_size=5_000), st.sampled_from(ALL), st.integers(1, 9))
def test_coding_is_deterministic_and_reversible(data: bytes, coding: Coding, level: int) -> None:
    coded = CODERS[coding](data, level)
    assert DECODERS[coding.value](coded) == data
    assert CODERS[coding](data, level) == coded


@pytest.mark.parametrize(("coding", "low", "high"), [("zstd", 1, 19), ("br", 1, 9), ("gzip", 1, 9)])
async def test_the_route_sets_the_level(coding: str, low: int, high: int) -> None:
    sizes = []
    for level in (low, high):
        bench = Bench(**{f"{'brotli' if coding == 'br' else coding}_level": level})
        await bench.code(bench.stream(), LARGE, coding)
        sizes.append(bench.coder.cost)
    assert sizes[0] > sizes[1]


async def test_readers_of_the_same_run_share_one_job() -> None:
    bench = Bench()
    stream = bench.stream()
    tasks = [await started(bench.coder.code(bench.read(stream), bench.answer(stream, LARGE))) for _ in range(20)]
    assert bench.coder.making == len(bench.gate.held) == 1
    assert repr(bench.coder) == "<Coder 0 bodies, 0 bytes, 1 being coded>"
    bench.gate.release()
    answers = await asyncio.gather(*tasks)
    assert all(is_coded(answer) and body_of(answer) == LARGE for answer in answers)
    # The result is kept and not made again.
    again = await bench.coder.code(bench.read(stream), bench.answer(stream, LARGE))
    assert is_coded(again)
    assert bench.recorder.counts["coded", "gzip"] == 1


async def test_kept_bytes_are_returned_without_waiting() -> None:
    bench = Bench()
    stream = bench.stream()
    run = BodyRun(stream, "-1", "9", stream.version.edition)
    assert bench.coder.ready(run, Coding.BR) is None
    await bench.code(stream, LARGE, "br")
    data = bench.coder.ready(run, Coding.BR)
    assert data is not None
    assert DECODERS["br"](data) == LARGE
    assert bench.coder.ready(run, Coding.GZIP) is None
    assert bench.coder.ready(BodyRun(stream, "-1", "8", stream.version.edition), Coding.BR) is None


async def test_a_reader_that_leaves_does_not_cancel_the_job_for_others() -> None:
    bench = Bench()
    stream = bench.stream()
    leader = await started(bench.coder.code(bench.read(stream), bench.answer(stream, LARGE)))
    follower = await started(bench.coder.code(bench.read(stream), bench.answer(stream, LARGE)))
    leader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    bench.gate.release()
    assert is_coded(await follower)


async def test_a_reader_that_has_waited_too_long_gets_plain_bytes() -> None:
    bench = Bench()
    stream = bench.stream()
    task = await started(bench.coder.code(bench.read(stream), bench.answer(stream, LARGE)))
    bench.clock.advance(PATIENCE_S)
    answer = await task
    assert not is_coded(answer)
    assert answer.headers["ETag"] == '"k:-1:9"'
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert body_of(answer) == LARGE
    # The answer is plain only for now, so it must not be remembered.
    assert answer.stream is None
    bench.gate.release()
    assert is_coded(await bench.code(stream, LARGE))
    assert bench.recorder.counts["coded", "gzip"] == 1


async def test_the_thread_leaves_the_core_to_the_loop() -> None:
    bench = Bench()

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with bench.thread as thread:
        # Only Linux has a priority for each thread.
        is_lower = thread.submit(priority).result() > priority() or priority() == LOWEST
    assert is_lower == (sys.platform == "linux")


async def test_nothing_is_coded_after_close() -> None:
    bench = Bench()
    bench.coder.executor = ThreadPoolExecutor(1)
    bench.coder.close()
    stream = bench.stream()
    answer = await bench.coder.code(bench.read(stream), bench.answer(stream, LARGE))
    assert not is_coded(answer)
    assert body_of(answer) == LARGE
    assert not bench.coder.making


async def test_bodies_beyond_the_queue_bound_are_sent_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 2 * len(LARGE))
    bench = Bench()
    streams = [bench.stream(str(at)) for at in range(3)]
    tasks = [await started(bench.coder.code(bench.read(one), bench.answer(one, LARGE))) for one in streams]
    assert [task.done() for task in tasks] == [False, False, True]
    bench.gate.release()
    assert [is_coded(answer) for answer in await asyncio.gather(*tasks)] == [True, True, False]
    assert is_coded(await bench.code(streams[2], LARGE))


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["inline", "in the thread"])
async def test_a_coding_error_costs_no_answer(
    body: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(data: bytes, level: int) -> bytes:
        raise MemoryError("no room")

    bench = Bench()
    stream = bench.stream()
    with monkeypatch.context() as patch:
        patch.setitem(CODERS, Coding.GZIP, broken)
        answer = await bench.code(stream, body)
    assert not is_coded(answer)
    assert body_of(answer) == body
    assert answer.stream is None
    assert "coding failed (gzip)" in caplog.text
    assert not bench.coder.making
    assert is_coded(await bench.code(stream, body))


async def test_a_body_that_does_not_shrink_is_sent_plain_and_not_coded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    stream = bench.stream()
    noise = b"[" + Random(1).randbytes(3_000) + b"]"
    calls: list[int] = []
    br = CODERS[Coding.BR]

    def counted(data: bytes, level: int) -> bytes:
        calls.append(len(data))
        return br(data, level)

    monkeypatch.setitem(CODERS, Coding.BR, counted)
    for _ in range(3):
        answer = await bench.code(stream, noise, "br")
        assert not is_coded(answer)
        assert body_of(answer) == noise
        # It will always be plain, so the answer may be remembered.
        assert answer.stream is stream
    assert calls == [len(noise)]
    assert not bench.recorder.counts["coded", "br"]


async def test_small_bodies_and_incompressible_types_are_sent_plain() -> None:
    bench = Bench()
    stream = bench.stream()
    tiny = await bench.code(stream, messages(5))
    assert not is_coded(tiny)
    assert tiny.headers["Vary"] == "Accept-Encoding"
    picture = await bench.coder.code(bench.read(stream), bench.answer(stream, SMALL, **{"Content-Type": "image/png"}))
    assert not is_coded(picture)
    assert "Vary" not in picture.headers
    # A client that refuses identity gets coded bytes even for a small body.
    assert is_coded(await bench.code(stream, messages(5), "gzip, identity;q=0"))


@pytest.mark.parametrize("cache_control", ["no-transform", "public, max-age=60, no-transform"])
async def test_a_body_with_no_transform_is_not_coded(cache_control: str) -> None:
    bench = Bench()
    stream = bench.stream()
    answer = bench.answer(stream, SMALL, **{"Cache-Control": cache_control})
    assert not is_coded(await bench.coder.code(bench.read(stream), answer))


@pytest.mark.parametrize(
    ("before", "after"),
    [("Origin", "Origin, Accept-Encoding"), ("accept-encoding", "accept-encoding"), ("*", "*")],
)
async def test_vary_keeps_its_other_names(before: str, after: str) -> None:
    bench = Bench()
    stream = bench.stream()
    answer = await bench.coder.code(bench.read(stream), bench.answer(stream, SMALL, Vary=before))
    assert answer.headers["Vary"] == after


async def test_a_route_without_codings_does_not_set_vary() -> None:
    bench = Bench(compression=())
    stream = bench.stream()
    answer = await bench.coder.code(bench.read(stream), bench.answer(stream, SMALL))
    assert not is_coded(answer)
    assert "Vary" not in answer.headers


async def test_a_304_names_the_coding_of_the_clients_copy() -> None:
    bench = Bench()
    stream = bench.stream()
    for field, etag in [
        ('"k:-1:9:gzip"', '"k:-1:9:gzip"'),
        ('"k:-1:9"', '"k:-1:9"'),
        ('W/"k:-1:9:gzip"', '"k:-1:9:gzip"'),
        ("*", '"k:-1:9"'),
    ]:
        answer = Answer(304, CIMultiDict({"ETag": '"k:-1:9"'}), Outcome.HIT)
        answer = await bench.coder.code(bench.read(stream, if_none_match=field), answer)
        assert answer.headers["ETag"] == etag
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert "Content-Encoding" not in answer.headers


# -- keeping


async def test_coded_bytes_are_dropped_with_the_stream() -> None:
    bench = Bench()
    stream, other = bench.stream("a"), bench.stream("b")
    for one in (stream, other):
        for coding in ALL:
            await bench.code(one, LARGE, coding.value)
    assert len(bench.coder) == 6
    assert bench.store.lent == bench.coder.cost > 0
    bench.store.drop_stream(stream, End.DELETED)
    assert len(bench.coder) == 3
    bench.store.forget_bytes(other)
    assert (len(bench.coder), bench.coder.cost, bench.store.lent) == (0, 0, 0)


@pytest.mark.parametrize("is_dropped", [True, False])
async def test_the_result_of_a_job_on_dropped_bytes_is_not_kept(is_dropped: bool) -> None:
    bench = Bench()
    stream = bench.stream()
    task = await started(bench.coder.code(bench.read(stream), bench.answer(stream, LARGE)))
    if is_dropped:
        bench.store.drop_stream(stream, End.DELETED)
    else:
        bench.store.forget_bytes(stream)
    bench.gate.release()
    answer = await task
    assert is_coded(answer)
    assert body_of(answer) == LARGE
    assert answer.stream is None
    assert (len(bench.coder), bench.store.lent, bench.coder.making) == (0, 0, 0)


async def test_no_reader_joins_a_job_on_dropped_bytes() -> None:
    bench = Bench()
    stream = bench.stream()
    old = await started(bench.coder.code(bench.read(stream), bench.answer(stream, LARGE)))
    bench.store.forget_bytes(stream)
    other = messages(1_001)
    new = await started(bench.coder.code(bench.read(stream), bench.answer(stream, other)))
    bench.gate.release()
    assert body_of(await old) == LARGE
    assert body_of(await new) == other
    assert body_of(await bench.code(stream, other)) == other
    assert len(bench.coder) == 1


async def test_a_growing_stream_keeps_only_its_latest_run() -> None:
    bench = Bench()
    stream = bench.stream()
    for size in range(200, 210):
        await bench.code(stream, messages(size), end=str(size))
    assert len(bench.coder) == 1
    assert bench.store.lent == bench.coder.cost
    # `on_evict` reports each run that was replaced.
    assert bench.evicted == [stream] * 9


async def test_coded_bytes_stay_within_their_share_and_evict_the_least_recently_used() -> None:
    bench = Bench(keep_bytes=60_000)
    hot = bench.stream("hot")
    await bench.code(hot, LARGE)
    for at in range(20):
        bench.coder.keep_coded(hot)
        await bench.code(bench.stream(str(at)), LARGE)
        assert bench.coder.cost <= 60_000
        assert bench.store.lent == bench.coder.cost
    assert bench.coder.ready(BodyRun(hot, "-1", "9", hot.version.edition), Coding.GZIP) is not None
    assert bench.evicted
    assert hot not in bench.evicted


async def test_a_body_too_large_to_keep_is_sent_coded_and_not_remembered() -> None:
    bench = Bench(keep_bytes=10_000)
    stream = bench.stream()
    answer = await bench.code(stream, LARGE)
    assert is_coded(answer)
    assert answer.stream is None
    assert len(bench.coder) == bench.coder.cost == bench.store.lent == 0


async def test_coded_bytes_count_within_the_budget() -> None:
    bench = Bench(cache_bytes=200_000, keep_bytes=1 << 20)
    cold = bench.stream("cold")
    bench.store.store(cold, "-1", "1", [b"x" * 186_000], 0.0)
    hot = bench.stream("hot")
    bench.store.store(hot, "-1", "1", [LARGE[1:10_000]], 0.0)
    await bench.code(hot, LARGE)
    assert bench.coder.cost > 5_000
    assert bench.store.cost + bench.store.lent <= 200_000
    assert cold.ended is End.EVICTED
    # A stream's own tape never makes room for its coded bytes.
    room = 200_000 - bench.store.cost - bench.store.lent
    bench.store.store(hot, "1", "2", [b"x" * (room - 1_000)], 0.0)
    before = hot.tape.size
    assert is_coded(await bench.code(hot, LARGE, "br"))
    assert hot.tape.size == before
    assert len(bench.coder) == 1
    assert bench.store.cost + bench.store.lent <= 200_000


async def test_only_small_bodies_are_coded_on_the_loop() -> None:
    bench = Bench()
    stream = bench.stream()
    at = next(size for size in range(1, 1_000) if len(messages(size)) > INLINE_BYTES)
    here = await bench.coder.code(bench.read(stream), bench.answer(stream, messages(at - 1)))
    assert is_coded(here)
    assert not bench.gate.held
    task = await started(bench.coder.code(bench.read(stream), bench.answer(stream, messages(at), end="a")))
    assert not task.done()
    bench.gate.release()
    assert is_coded(await task)


async def test_an_answer_that_is_plain_only_this_time_is_not_repeated() -> None:
    bench = Bench()
    stream = bench.stream()
    large = bench.coder.code_now(bench.read(stream), bench.answer(stream, LARGE))
    assert not is_coded(large)
    assert large.stream is None
    small = bench.coder.code_now(bench.read(stream), bench.answer(stream, SMALL, end="a"))
    assert is_coded(small)
    assert small.stream is stream


async def test_a_coded_answer_is_not_coded_again() -> None:
    bench = Bench()
    stream = bench.stream()
    # The coded form of this body would shrink once more.
    body = b"[" + b"1," * 1_000_000 + b"1]"
    answer = await bench.code(stream, body)
    again = bench.coder.code_now(bench.read(stream), answer)
    assert again.headers["ETag"] == '"k:-1:9:gzip"'
    assert body_of(again) == body


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["inline", "in the thread"])
async def test_bytes_of_an_older_edition_are_neither_kept_nor_confused_with_current_ones(body: bytes) -> None:
    bench = Bench()
    stream = bench.stream()
    old = bench.answer(stream, body)
    bench.store.forget_bytes(stream)
    coding = await started(bench.coder.code(bench.read(stream), old))
    assert coding.done()
    coded = coding.result()
    assert not is_coded(coded)
    assert body_of(coded) == body
    assert len(bench.coder) == bench.coder.making == 0
    other = body.replace(b"hello", b"salut")
    assert body_of(await bench.code(stream, other)) == other
