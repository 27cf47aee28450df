"""The access log's sinks: real files, real pipes, and a real origin with injected faults."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import aiohttp
import pytest

from gateway.aio.clock import ManualClock, SystemClock
from gateway.config.errors import ConfigError
from gateway.config.telemetry import LogConfig
from gateway.ops.access_log.sinks import open_sink
from gateway.ops.access_log.sinks.descriptor import DescriptorSink
from gateway.ops.access_log.sinks.file import FileSink
from gateway.ops.access_log.sinks.producer import Producer, Step
from gateway.ops.access_log.sinks.sink import RECOVERED_S, Sink
from gateway.ops.access_log.sinks.stream import StreamSink
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.ops.log_reading import BOUND_S, messages, numbered, numbers_in
from tests.scenarios.hostile import Asked, HostileOrigin, answer
from tests.waiting import eventually, time_passing

PATH = "/logs/edge"


# -- files -------------------------------------------------------------------------------------------------------------


OpenFile = Callable[..., FileSink]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def open_file(tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenFile]:
    """Opens file sinks in the test's folder."""
    opened: list[FileSink] = []

    def open_one(rotate_bytes: int = 0, rotate_s: float = 0, keep_files: int = 100) -> FileSink:
        path = tmp_path / "access.log"
        opened.append(FileSink(path, clock, rotate_bytes=rotate_bytes, rotate_s=rotate_s, keep_files=keep_files))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def all_lines(folder: Path) -> bytes:
    """The contents of all files, the rotated ones first, in order."""
    aside = [name for name in files(folder) if name != "access.log"]
    return b"".join((folder / name).read_bytes() for name in [*aside, "access.log"])


async def test_an_existing_file_is_appended_to(open_file: OpenFile, tmp_path: Path) -> None:
    (tmp_path / "access.log").write_bytes(numbered([0]))
    sink = open_file()
    assert await sink.write(numbered([1, 2]))
    assert await sink.write(numbered([3]))
    assert numbers_in(all_lines(tmp_path)) == [0, 1, 2, 3]
    assert files(tmp_path) == ["access.log"]


async def test_a_full_file_is_rotated_and_no_line_is_lost_or_cut(open_file: OpenFile, tmp_path: Path) -> None:
    sink = open_file(rotate_bytes=100)
    for number in range(50):
        assert await sink.write(numbered([2 * number, 2 * number + 1]))
    assert numbers_in(all_lines(tmp_path)) == list(range(100))
    assert len(files(tmp_path)) > 5
    assert all((tmp_path / name).stat().st_size <= 100 for name in files(tmp_path))


async def test_a_file_that_cannot_be_rotated_is_still_written_and_logged_once(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    # As long as a name may be: a date would make it too long.
    path = tmp_path / ("a" * 255)
    sink = FileSink(path, clock, rotate_bytes=100, rotate_s=3_600, keep_files=1)
    for number in range(50):
        assert await sink.write(numbered([number]))
        clock.advance(600)
    await sink.close()
    assert numbers_in(path.read_bytes()) == list(range(50))
    assert files(tmp_path) == [path.name]
    assert [record.message for record in caplog.records] == [
        f"access log: {path} cannot be rotated: File name too long"
    ]


async def test_a_batch_larger_than_a_file_is_still_in_one_file(open_file: OpenFile, tmp_path: Path) -> None:
    sink = open_file(rotate_bytes=10)
    assert await sink.write(numbered(range(10)))
    assert await sink.write(numbered(range(10, 20)))
    assert len(files(tmp_path)) == 2
    assert numbers_in(all_lines(tmp_path)) == list(range(20))


async def test_a_file_is_rotated_when_its_period_ends(open_file: OpenFile, tmp_path: Path, clock: ManualClock) -> None:
    sink = open_file(rotate_s=3_600)
    clock.advance(3_600 - clock.wall() % 3_600)
    assert await sink.write(numbered([0]))
    clock.advance(3_599)
    assert await sink.write(numbered([1]))
    assert files(tmp_path) == ["access.log"]
    clock.advance(1)
    assert await sink.write(numbered([2]))
    assert len(files(tmp_path)) == 2
    # Hours without a request leave no files behind.
    clock.advance(7_200)
    assert await sink.write(numbered([3]))
    assert len(files(tmp_path)) == 3
    assert numbers_in(all_lines(tmp_path)) == [0, 1, 2, 3]


async def test_a_restart_neither_delays_nor_repeats_a_rotation(
    open_file: OpenFile, tmp_path: Path, clock: ManualClock
) -> None:
    file = tmp_path / "access.log"
    file.write_bytes(numbered([0]))
    os.utime(file, (clock.wall(), clock.wall()))
    before = open_file(rotate_s=86_400)
    assert await before.write(numbered([1]))
    await before.close()
    assert files(tmp_path) == ["access.log"]
    os.utime(file, (clock.wall() - 86_400, clock.wall() - 86_400))
    assert await open_file(rotate_s=86_400).write(numbered([2]))
    assert len(files(tmp_path)) == 2
    assert numbers_in(file.read_bytes()) == [2]


@pytest.mark.parametrize("keep", [0, 1, 3])
async def test_only_the_newest_files_are_kept_and_other_files_are_left_alone(
    open_file: OpenFile, tmp_path: Path, clock: ManualClock, keep: int
) -> None:
    others = ["access.log.bak", "access.log.20260101T000000Z.gz", "another.log"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    sink = open_file(rotate_bytes=1, keep_files=keep)
    for number in range(10):
        clock.advance(number % 2)
        assert await sink.write(numbered([number]))
    for name in others:
        (tmp_path / name).unlink()
    assert len(files(tmp_path)) == 1 + keep
    assert numbers_in(all_lines(tmp_path)) == list(range(9 - keep, 10))


@pytest.mark.parametrize("step_s", [0, 1, -1])
async def test_a_rotated_file_outlasts_files_of_a_clock_that_was_ahead(
    open_file: OpenFile, tmp_path: Path, clock: ManualClock, step_s: int
) -> None:
    for year in (2031, 2032, 2033):
        (tmp_path / f"access.log.{year}0101T000000Z").write_bytes(numbered([year]))
    sink = open_file(rotate_bytes=1, keep_files=2)
    for number in range(5):
        assert await sink.write(numbered([number]))
        clock.step_wall(step_s)
    # Each write but the first has rotated the file of the write before it.
    kept = {one for name in files(tmp_path) for one in numbers_in((tmp_path / name).read_bytes())}
    assert len(kept) == 3
    assert kept == {2, 3, 4} if step_s >= 0 else kept > {3, 4}


async def test_a_new_file_replaces_one_that_was_moved(open_file: OpenFile, tmp_path: Path) -> None:
    sink = open_file()
    assert await sink.write(numbered([0]))
    (tmp_path / "access.log").rename(tmp_path / "moved")
    assert await sink.write(numbered([1]))
    (tmp_path / "access.log").unlink()
    assert await sink.write(numbered([2]))
    assert numbers_in((tmp_path / "moved").read_bytes()) == [0]
    assert numbers_in((tmp_path / "access.log").read_bytes()) == [2]


async def test_lines_are_given_up_while_they_cannot_be_written_and_logged_once(
    open_file: OpenFile, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = open_file()
    file = tmp_path / "access.log"
    file.unlink()
    file.mkdir()
    assert not await sink.write(numbered([0]))
    assert not await sink.write(numbered([1]))
    file.rmdir()
    # As on a disk that is nearly full: one batch is kept, the next one is not.
    assert await sink.write(numbered([2]))
    file.rename(tmp_path / "aside")
    file.mkdir()
    assert not await sink.write(numbered([3]))
    file.rmdir()
    for number in (4, 5):
        clock.advance(RECOVERED_S / 2)
        assert await sink.write(numbered([number]))
    assert numbers_in(file.read_bytes()) == [4, 5]
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"access log: {file}: Is a directory", f"access log: {file}: works again"]


async def test_a_partial_write_to_a_full_disk_is_truncated(open_file: OpenFile, tmp_path: Path) -> None:
    sink = open_file()
    before = numbered(range(10_000), pad="x" * 100)
    assert await sink.write(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        assert not await sink.write(numbered([1]) * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await sink.write(numbered([2]))
    assert (tmp_path / "access.log").read_bytes() == before + numbered([2])


async def test_a_failed_write_after_a_truncation_from_outside_leaves_no_hole(
    open_file: OpenFile, tmp_path: Path
) -> None:
    sink, file = open_file(), tmp_path / "access.log"
    before = numbered(range(10_000), pad="x" * 100)
    assert await sink.write(before)
    # As logrotate does with copytruncate.
    os.truncate(file, 0)
    assert await sink.write(numbered([1]))
    kept = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * len(before), limits[1]))
    try:
        assert not await sink.write(3 * before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == kept
    assert await sink.write(numbered([3]))
    assert numbers_in(file.read_bytes()) == [1, 3]


async def test_a_truncated_file_is_rotated_by_its_own_size(open_file: OpenFile, tmp_path: Path) -> None:
    sink = open_file(rotate_bytes=1_000)
    assert await sink.write(numbered([0], pad="x" * 900))
    os.truncate(tmp_path / "access.log", 0)
    assert await sink.write(numbered([1], pad="x" * 900))
    assert files(tmp_path) == ["access.log"]


async def test_a_line_that_a_crash_has_cut_is_ended_before_the_next(open_file: OpenFile, tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_bytes(b'{"number":0,"cut')
    assert await open_file().write(numbered([1]))
    torn, line, rest = file.read_bytes().split(b"\n", 2)
    assert (torn, numbers_in(line + b"\n"), rest) == (b'{"number":0,"cut', [1], b"")


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    config = LogConfig(sink="file", path=str(path))
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = rf"^log\.path: {path} cannot be written: another process writes it$"
        with pytest.raises(ConfigError, match=refused):
            open_sink(config, "edge", SystemClock(), Random(1))


async def test_a_file_that_a_rotation_begins_has_one_writer_too(
    open_file: OpenFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, file = open_file(), tmp_path / "access.log"
    file.unlink()
    with file.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not await sink.write(numbered([0]))
        assert file.read_bytes() == b""
    assert await sink.write(numbered([1]))
    with file.open("ab") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_cannot_be_written_is_refused_with_one_line(tmp_path: Path) -> None:
    config = LogConfig(sink="file", path=str(tmp_path / "nowhere" / "access.log"))
    with pytest.raises(ConfigError, match=r"^log\.path: .*/nowhere/access\.log cannot be written: No such file or dir"):
        open_sink(config, "edge", SystemClock(), Random(1))


# -- pipes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> list[int]:
    return list(os.pipe())


async def test_lines_go_to_a_descriptor_whole(pipe: list[int]) -> None:
    sink = DescriptorSink(ManualClock(), pipe[1], "pipe")
    lines = numbered(range(20_000))
    writing = asyncio.create_task(sink.write(lines))
    read = bytearray()
    while len(read) < len(lines):
        read += await asyncio.to_thread(os.read, pipe[0], 1 << 16)
    assert await writing
    assert read == lines
    await sink.close()
    for end in pipe:
        os.close(end)


async def test_a_pipe_without_a_reader_does_not_block_the_loop(pipe: list[int]) -> None:
    before = set(threading.enumerate())
    sink = DescriptorSink(ManualClock(), pipe[1], "pipe")
    writing = asyncio.create_task(sink.write(numbered(range(100_000))))
    # The pipe is full once it accepts nothing more, and the loop still runs: this code runs on it.
    os.set_blocking(pipe[0], False)
    await eventually(lambda: _unread(pipe[0]) >= 65_536)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    async with asyncio.timeout(BOUND_S):
        await sink.close()
    os.close(pipe[0])
    # The broken pipe frees the thread, which ends.
    await eventually(lambda: set(threading.enumerate()) <= before)
    os.close(pipe[1])


def _unread(descriptor: int) -> int:
    import fcntl
    import struct
    import termios

    found: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0]
    return found


async def test_a_broken_pipe_is_no_error_and_a_half_line_ends_before_the_next(
    pipe: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    os.set_blocking(pipe[1], False)
    sink = DescriptorSink(ManualClock(), pipe[1], "pipe")
    assert not await sink.write(numbered(range(100_000)))
    begun = os.read(pipe[0], 1 << 20)
    assert not begun.endswith(b"\n")
    assert await sink.write(numbered([7]))
    assert os.read(pipe[0], 1 << 20) == b"\n" + numbered([7])
    assert await sink.write(numbered([8]))
    assert os.read(pipe[0], 1 << 20) == numbered([8])
    os.close(pipe[0])
    assert not await sink.write(numbered([9]))
    assert caplog.records[-1].getMessage() == "access log: pipe: Broken pipe"
    await sink.close()
    os.close(pipe[1])


# -- a durable stream --------------------------------------------------------------------------------------------------


@pytest.fixture
async def origin() -> AsyncIterator[RunningOrigin]:
    running = await start_origin()
    yield running
    running.origin.faults.clear()
    await running.stop(grace_s=0)


OpenStream = Callable[..., Sink]


@pytest.fixture
async def open_stream(clock: ManualClock) -> AsyncIterator[OpenStream]:
    """Opens stream sinks."""
    opened: list[StreamSink] = []

    def open_one(url: str, authorization: str = "") -> StreamSink:
        opened.append(StreamSink(url + PATH, clock, Random(len(opened)), node="edge", authorization=authorization))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


async def written(sink: Sink, clock: ManualClock, lines: bytes) -> bool:
    """What `write` returns for these lines, with its pauses skipped."""
    async with asyncio.timeout(BOUND_S), time_passing(clock):
        return await sink.write(lines)


async def numbers(origin: RunningOrigin) -> list[object]:
    return [message["n"] for message in await messages(origin.url + PATH)]


async def restarted(origin: RunningOrigin) -> RunningOrigin:
    """The same origin with its streams, restarted on the same port."""
    await origin.stop(grace_s=0)
    return await start_origin(OriginSettings(port=origin.port), origin=origin.origin)


async def test_each_line_is_a_message_and_a_missing_stream_is_created(
    origin: RunningOrigin, open_stream: OpenStream
) -> None:
    sink = open_stream(origin.url)
    assert await sink.write(numbered([0, 1], agent="a\nb"))
    assert await sink.write(numbered([2]))
    assert await messages(origin.url + PATH) == [{"n": 0, "agent": "a\nb"}, {"n": 1, "agent": "a\nb"}, {"n": 2}]
    assert origin.origin.counters.requests[Kind.APPEND] == 3
    assert origin.origin.counters.requests[Kind.CREATE] == 1


async def test_a_lost_acknowledgement_repeats_nothing(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock
) -> None:
    sink = open_stream(origin.url)
    assert await sink.write(numbered([0]))
    faults = origin.origin.faults
    for number, half in enumerate((b"", b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"), 1):
        lost = faults.raw(half, kind="append", times=2) if half else faults.refuse(kind="append", times=2)
        assert await written(sink, clock, numbered([number]))
        assert lost.hits == 2
    assert await numbers(origin) == [0, 1, 2, 3]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_batch_is_sent_until_it_is_taken(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock, status: int
) -> None:
    sink = open_stream(origin.url)
    origin.origin.faults.status(status, kind="append", times=20)
    assert await written(sink, clock, numbered([0]))
    assert await numbers(origin) == [0]


async def test_the_pause_before_the_next_try_is_at_least_what_the_origin_asks(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock
) -> None:
    sink = open_stream(origin.url)
    assert await sink.write(numbered([0]))
    asked_at = clock.now()
    origin.origin.faults.status(503, kind="append", headers={"Retry-After": "7"})
    assert await written(sink, clock, numbered([1]))
    assert 7 <= clock.now() - asked_at < 10


async def test_a_restart_of_the_origin_loses_and_repeats_nothing(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock
) -> None:
    sink = open_stream(origin.url)
    assert await sink.write(numbered([0]))
    # The batch is taken, and the origin stops before it replies.
    gate = origin.origin.faults.hold(kind="append", when="reply")
    writing = asyncio.create_task(written(sink, clock, numbered([1])))
    await gate.waiting(1)
    again = await restarted(origin)
    try:
        gate.release()
        assert await writing
        assert await written(sink, clock, numbered([2]))
        assert await numbers(again) == [0, 1, 2]
    finally:
        await again.stop(grace_s=0)


async def test_under_any_faults_each_line_is_there_once_and_in_order(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock
) -> None:
    sink = open_stream(origin.url)
    rng = Random(3)
    faults = origin.origin.faults
    running = origin
    try:
        for number in range(60):
            match rng.randrange(6):
                case 0:
                    faults.refuse(kind="append", times=rng.randrange(1, 3))
                case 1:
                    faults.status(rng.choice([429, 500, 503]), kind="append", times=rng.randrange(1, 4))
                case 2:
                    faults.raw(b"HTTP/1.1 2", kind="append")
                case 3:
                    faults.raw(b"nonsense\r\n\r\n", kind="append")
                case 4:
                    running = await restarted(running)
            assert await written(sink, clock, numbered([2 * number, 2 * number + 1]))
        assert await numbers(running) == list(range(120))
    finally:
        await running.stop(grace_s=0)


async def test_an_origin_that_lost_its_state_is_written_to_again(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock
) -> None:
    sink = open_stream(origin.url)
    for number in range(3):
        assert await sink.write(numbered([number]))
    await origin.stop(grace_s=0)
    other = await start_origin(OriginSettings(port=origin.port))
    try:
        for number in range(3, 6):
            assert await written(sink, clock, numbered([number]))
        assert await numbers(other) == [3, 4, 5]
    finally:
        await other.stop(grace_s=0)


async def test_two_gateways_of_one_name_write_to_one_stream(origin: RunningOrigin, open_stream: OpenStream) -> None:
    first, second = open_stream(origin.url), open_stream(origin.url)
    for number in range(6):
        assert await (first, second)[number % 2].write(numbered([number]))
    assert await numbers(origin) == list(range(6))


async def test_batches_that_a_stream_refuses_are_given_up_one_by_one(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with aiohttp.ClientSession() as session:
        await session.put(origin.url + PATH, headers={"Content-Type": "text/plain"})
        sink = open_stream(origin.url)
        assert not await sink.write(numbered([0]))
        assert not await sink.write(numbered([1]))
        await session.delete(origin.url + PATH)
        clock.advance(RECOVERED_S)
        assert await sink.write(numbered([2]))
        await session.post(origin.url + PATH, headers={"Stream-Closed": "true", "Content-Type": "application/json"})
        assert not await sink.write(numbered([3]))
    assert await numbers(origin) == [2]
    said = [record.getMessage().removeprefix(f"access log: {origin.url}{PATH}: ") for record in caplog.records]
    assert said == ["the origin says 409", "works again", "the stream is closed"]


async def test_the_batch_after_a_given_up_one_is_not_mistaken_for_it(
    origin: RunningOrigin, open_stream: OpenStream, clock: ManualClock
) -> None:
    sink = open_stream(origin.url)
    assert await sink.write(numbered([0]))
    # The first batch is taken but its reply lost; later tries are refused for good.
    origin.origin.faults.refuse(kind="append")
    writing = asyncio.create_task(sink.write(numbered([1])))
    await eventually(lambda: clock.pending == 1)
    origin.origin.faults.status(403, kind="append")
    async with time_passing(clock):
        assert not await writing
    assert await written(sink, clock, numbered([2]))
    assert await numbers(origin) == [0, 1, 2]


async def test_authorization_is_sent_to_the_origin_and_logged_nowhere(
    open_stream: OpenStream, caplog: pytest.LogCaptureFixture
) -> None:
    async def take(asked: Asked, writer: asyncio.StreamWriter) -> None:
        is_known = asked.headers.get("Authorization") == "Bearer s3cret"
        writer.write(answer("204 No Content" if is_known else "401 Unauthorized", {}))

    origin = HostileOrigin(take)
    await origin.start()
    caplog.set_level(logging.DEBUG)
    try:
        assert await open_stream(origin.url, "Bearer s3cret").write(numbered([0]))
        assert not await open_stream(origin.url, "Bearer other").write(numbered([0]))
    finally:
        await origin.stop()
    assert "the origin says 401" in caplog.text
    assert "s3cret" not in caplog.text
    assert "Bearer" not in caplog.text
    secret = LogConfig(sink="stream", stream_url="http://a/b", stream_authorization="Bearer s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in f"{secret!r} {secret.model_dump_json()}"


def test_a_fenced_producer_begins_an_epoch_after_the_one_that_fenced_it() -> None:
    producer = Producer("edge-1")
    producer.judge(200, {})
    assert producer.headers() == {"Producer-Id": "edge-1", "Producer-Epoch": "0", "Producer-Seq": "1"}
    assert producer.judge(403, {"Producer-Epoch": "7"}).step is Step.AGAIN
    assert producer.headers() == {"Producer-Id": "edge-1", "Producer-Epoch": "8", "Producer-Seq": "0"}
    assert producer.judge(204, {}).step is Step.DONE
    assert (producer.epoch, producer.seq) == (8, 1)
