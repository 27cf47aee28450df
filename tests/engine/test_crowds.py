"""A path of which many streams are held: a write looks at few of them, and each hears of it before it is read."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any, Final

import pytest

from gateway.engine.relayed_request import RelayedRequest
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Partition, StreamKey
from gateway.tape import paths
from gateway.tape.stream import Stream
from gateway.upstream.reply import Reply
from tests.engine.bench import BinaryOrigin, EngineBench, Start

MOST_AWAKE: Final = paths.MOST_AWAKE
AWAKE: Final = 4
EVENTS: Final = 3
STREAMS: Final = 60


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few streams of a path are awake, and few events are kept."""
    monkeypatch.setattr(paths, "MOST_AWAKE", AWAKE)
    monkeypatch.setattr(paths, "MOST_EVENTS", EVENTS)


async def crowded(start: Start, streams: int = STREAMS) -> tuple[EngineBench, list[StreamKey]]:
    """A bench that has read a stream to its tail, 0002, and holds many others of its path."""
    bench = start(BinaryOrigin(b"ab"))
    await bench.body()
    own = bench.stream.key
    keys = [own._replace(partition=Partition(f"invented {number}")) for number in range(streams)]
    for key in keys:
        bench.engine.store.open(key, bench.clock.now()).tape.reached("0002")
    return bench, keys


async def write(bench: EngineBench, mode: Mode, status: int, tail: str | None = None) -> None:
    headers = {"Stream-Next-Offset": tail} if tail is not None else {}
    bench.upstream.script = lambda asked: asked.answer(status, headers)
    reply: Reply = await bench.relay(mode, b"cd" if mode is Mode.APPEND else None)
    reply.close()


@pytest.mark.parametrize(
    ("mode", "status", "awake"),
    [(Mode.APPEND, 403, AWAKE), (Mode.APPEND, 204, AWAKE), (Mode.APPEND, 502, AWAKE), (Mode.APPEND, 204, MOST_AWAKE)],
)
async def test_a_write_looks_at_a_bounded_number_of_streams(
    start: Start, monkeypatch: pytest.MonkeyPatch, mode: Mode, status: int, awake: int
) -> None:
    monkeypatch.setattr(paths, "MOST_AWAKE", awake)
    bench, _ = await crowded(start, STREAMS if awake == AWAKE else 1_500)
    looks: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(Stream, name)

        def counted(stream: Stream, *args: Any, **more: Any) -> Any:
            looks[name] += 1
            return real(stream, *args, **more)

        monkeypatch.setattr(Stream, name, counted)

    for name in ("has_expired", "acknowledged", "mark_stale"):
        count(name)
    await write(bench, mode, status, "0004" if status == 204 else None)
    # A refused write changes nothing.  Others concern the awake streams, and the writer's own.
    assert (0 if status == 403 else 1) <= max(looks.values(), default=0) <= awake + 3, looks
    # Each look takes about a microsecond, and other clients wait meanwhile.
    assert max(looks.values(), default=0) <= 1_000


async def test_a_sleeping_stream_knows_acknowledged_writes_when_it_is_looked_up(start: Start) -> None:
    bench, keys = await crowded(start)
    await write(bench, Mode.APPEND, 204, "0004")
    for key in keys:
        stream = bench.engine.store.find(key)
        assert stream is not None
        assert (stream.acked.tail, stream.version.acks) == ("0004", 1)


async def test_any_number_of_acknowledged_writes_is_one_event(start: Start) -> None:
    bench, keys = await crowded(start)
    for number in range(2, 2 + 3 * EVENTS):
        await write(bench, Mode.APPEND, 204, f"{2 * number:04}")
    stream = bench.engine.store.find(keys[0])
    assert stream is not None
    assert stream.acked.tail == f"{2 * (1 + 3 * EVENTS):04}"


async def test_a_stream_that_slept_through_its_deletion_is_gone_when_it_is_looked_up(start: Start) -> None:
    bench, keys = await crowded(start)
    await write(bench, Mode.DELETE, 204)
    assert all(bench.engine.store.find(key) is None for key in keys)


async def test_a_stream_that_slept_through_a_failed_write_is_confirmed_before_it_is_read(start: Start) -> None:
    bench, keys = await crowded(start)
    for _ in range(2 * EVENTS):
        await write(bench, Mode.APPEND, 502)
    stream = bench.engine.store.find(keys[0])
    assert stream is not None
    assert stream.needs_revalidation


async def test_a_stream_that_has_missed_more_than_is_kept_is_dropped(start: Start) -> None:
    bench, keys = await crowded(start)
    for _ in range(EVENTS):
        await write(bench, Mode.APPEND, 502)
        await write(bench, Mode.APPEND, 204, "0004")
    assert bench.engine.store.find(keys[0]) is None
    latest = bench.engine.store.find(keys[-1])
    assert latest is not None, "one that was awake has heard of each"
    assert latest.version.acks == EVENTS


@pytest.mark.parametrize(("mode", "status"), [(Mode.APPEND, 204), (Mode.CREATE, 502), (Mode.DELETE, 204)])
async def test_an_event_kept_for_sleeping_streams_does_not_keep_the_request(
    start: Start, mode: Mode, status: int
) -> None:
    # A test that has failed before may keep some.
    before = requests()
    bench, _ = await crowded(start)
    await write(bench, mode, status)
    bench.upstream.asked.clear()
    assert requests() <= before


def requests() -> set[int]:
    """The identities of all relayed requests."""
    gc.collect()
    return {id(one) for one in gc.get_objects() if isinstance(one, RelayedRequest)}


async def test_a_stream_in_use_stays_awake(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    await bench.body()
    own = bench.stream
    own.hold()
    for number in range(STREAMS):
        bench.engine.store.open(own.key._replace(partition=Partition(f"invented {number}")), bench.clock.now())
    assert own.is_awake
    await write(bench, Mode.APPEND, 204, "0004")
    assert own.acked.tail == "0004"
    bench.engine.store.release(own)
