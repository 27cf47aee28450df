"""Streams that another stream may have replaced are not written, whether they are awake or asleep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.disk.store import DiskStore
from gateway.protocol.sharing import Group, StreamKey
from gateway.tape import paths
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from tests.disk.test_withdrawals import READERS, opened
from tests.tape.store_machine import Told, new_store

PATH = Group("http://o", "/s")
PIECE = bytes(65_536)


def with_disk(folder: Path) -> tuple[TapeStore, DiskStore]:
    """The store in memory and the store on disk, joined as the engine joins them."""
    store, _ = new_store(64 << 20)
    disk = opened(folder)
    store.keeper, disk.is_not_stored, disk.is_in_doubt = disk, store.is_not_stored, store.is_in_doubt
    return store, disk


def fetch(store: TapeStore, query: str, first: int, last: int) -> Stream:
    """Store 64 KiB between each two of these offsets."""
    stream = store.open(StreamKey(PATH, query, READERS), 0.0)
    stream.content_type = "text/plain"
    for number in range(first, last):
        store.store(stream, f"{number:08}", f"{number + 1:08}", [PIECE], 0.0)
    return stream


def evict(store: TapeStore, _: DiskStore, stream: Stream) -> None:
    store.drop_stream(stream, End.EVICTED)


def shorten(store: TapeStore, _: DiskStore, stream: Stream) -> None:
    store._drop_bytes(stream)


def stop(_: TapeStore, disk: DiskStore, stream: Stream) -> None:
    disk.leaving(stream)


def wake(store: TapeStore, _: DiskStore, stream: Stream) -> None:
    store.find(stream.key)


@pytest.mark.parametrize(
    ("missed", "leave"), [(1, evict), (1, shorten), (1, stop), (3, wake), (0, evict)], ids=lambda one: str(one)[:20]
)
async def test_a_stream_that_sleeps_through_a_delete_is_not_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missed: int,
    leave: Callable[[TapeStore, DiskStore, Stream], None],
) -> None:
    monkeypatch.setattr(paths, "MOST_AWAKE", 2)
    monkeypatch.setattr(paths, "MOST_EVENTS", 2)
    store, disk = with_disk(tmp_path)
    stream = fetch(store, "q", 0, 10)
    for number in range(4):
        store.open(StreamKey(PATH, str(number), READERS), 0.0)
    assert not stream.is_awake
    for _ in range(missed):
        store.withdraw_kept(PATH)
        store.tell(PATH, Told(lambda stream: None))
    leave(store, disk, stream)
    assert await disk.settled()
    assert len(disk) == (0 if missed else 1)
    await disk.close(store)


async def test_a_stream_in_doubt_is_not_written_until_the_doubt_is_settled(tmp_path: Path) -> None:
    store, disk = with_disk(tmp_path)
    stream = fetch(store, "q", 0, 10)
    store.withdraw_kept(PATH)
    stream.may_be_another()
    fetch(store, "q", 10, 30)
    assert len(disk) == 0
    stream.version = stream.version.settled_by(stream.version)
    fetch(store, "q", 30, 40)
    assert len(disk) == 1
    stream.mark_stale()
    # The bytes on disk are as doubtful as those that leave memory.
    disk.leaving(stream)
    assert len(disk) == 0
    await disk.close([])
