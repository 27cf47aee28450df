"""The folders of workers: who may use them, which are emptied, and which are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.errors import ConfigError
from gateway.config.store import StoreConfig
from gateway.disk.folders import (
    ALL_LOCKS,
    LOCK,
    SLOT_LOCK,
    WORKER_LOCKS,
    InUseError,
    folder_of,
    is_behind,
    lock_gateway,
    mark_behind,
    part_of,
    read_key,
    remove_rest,
    take_lock,
    unmark,
    write_key,
)
from gateway.disk.index import Holder
from gateway.disk.opening import OpenedFolder, open_folder
from gateway.disk.store import DiskStore
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.stream_version import Edition, Version
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from tests.waiting import pass_turns

MIB = 1 << 20
OURS, EARLIER = Holder("memory", 1), Holder("another", 1)
READERS = Partition("r")


def config(folder: Path, most: int = 16 * MIB) -> StoreConfig:
    return StoreConfig(path=str(folder), max_bytes=most, segment_bytes=MIB)


def stream(path: str, size: int = 1 << 18) -> Stream:
    made = Stream(StreamKey(Group("http://o", path), "", READERS), Tape(), Version(Edition(path)), "text/plain")
    for number in range(4):
        made.tape.store(f"{number:08}", f"{number + 1:08}", [bytes(size // 4)], 0.0)
    return made


async def fill(folder: Path, holder: Holder | None, *paths: str, most: int = 16 * MIB) -> None:
    """Have a worker write streams to a folder."""
    disk = DiskStore(open_folder(config(folder, most), WORKER_LOCKS, holder), config(folder, most), ManualClock())
    disk.take_routes({READERS: "all"})
    await disk.close([stream(path) for path in paths])


def segments(folder: Path) -> list[int]:
    """The sizes of the segments."""
    return [path.stat().st_size for path in folder.glob("*.segment")]


def opened(folder: Path, holder: Holder | None, *, is_late: bool = False) -> tuple[set[str], Holder | None]:
    """What a worker finds in a folder: the paths, and the worker before it."""
    found = open_folder(config(folder), WORKER_LOCKS, holder, is_late=is_late)
    try:
        return {group.path for group in found.loaded.paths}, found.holder
    finally:
        found.close()


def test_the_first_worker_has_the_folder_of_a_gateway_of_one_process() -> None:
    whole = StoreConfig(path="/s", max_bytes=64 * MIB, segment_bytes=32 * MIB)
    assert part_of(whole, 0, 1) is whole
    first, third = part_of(whole, 0, 4), part_of(whole, 2, 4)
    assert (first.path, first.max_bytes, first.segment_bytes) == ("/s", 16 * MIB, 8 * MIB)
    assert (third.path, third.max_bytes, third.segment_bytes) == ("/s/2", 16 * MIB, 8 * MIB)
    assert part_of(whole.model_copy(update={"segment_bytes": MIB}), 0, 4).segment_bytes == MIB


@pytest.mark.parametrize(
    ("before", "is_marked", "is_late", "kept"),
    [
        (OURS, False, False, True),
        (OURS, False, True, True),
        # The counts in memory show what it has missed.
        (OURS, True, True, True),
        (EARLIER, False, False, True),
        (EARLIER, True, False, False),
        (EARLIER, False, True, False),
        (None, False, False, True),
        (None, True, False, False),
        (None, False, True, False),
    ],
)
async def test_a_folder_that_may_have_missed_removals_is_emptied(
    tmp_path: Path, before: Holder | None, is_marked: bool, is_late: bool, kept: bool
) -> None:
    await fill(tmp_path, before, "/s")
    if is_marked:
        mark_behind(tmp_path)
    expected = ({"/s"} if kept else set(), before if before == OURS else None)
    assert opened(tmp_path, OURS, is_late=is_late) == expected
    assert kept or not segments(tmp_path)
    # The next worker of this gateway goes on from the counts of this one.
    assert opened(tmp_path, OURS, is_late=True) == (expected[0], OURS)


async def test_one_process_goes_on_with_the_folder_of_the_first_worker(tmp_path: Path) -> None:
    await fill(tmp_path, EARLIER, "/s")
    assert opened(tmp_path, None) == ({"/s"}, None)
    mark_behind(tmp_path)
    assert opened(tmp_path, None) == (set(), None)
    assert not is_behind(tmp_path)


def test_a_mark_is_removed_and_made_only_where_a_folder_is(tmp_path: Path) -> None:
    mark_behind(tmp_path / "1")
    assert not (tmp_path / "1").exists()
    mark_behind(tmp_path)
    mark_behind(tmp_path)
    assert is_behind(tmp_path)
    unmark(tmp_path)
    unmark(tmp_path)
    assert not is_behind(tmp_path)


async def test_the_store_names_its_holder_and_removes_its_mark_once_all_is_done(tmp_path: Path) -> None:
    await fill(tmp_path, EARLIER, "/s")
    disk = DiskStore(open_folder(config(tmp_path), WORKER_LOCKS, EARLIER), config(tmp_path), ManualClock())
    mark_behind(tmp_path)
    done: list[bool] = []
    disk.when_done(done.append, None)
    assert await disk.settled()
    await pass_turns()
    assert done == [True]
    assert is_behind(tmp_path)
    disk.when_done(done.append, OURS)
    assert await disk.settled()
    await disk.close([])
    assert done == [True, True]
    assert not is_behind(tmp_path)
    assert opened(tmp_path, OURS) == ({"/s"}, OURS)


async def test_a_smaller_part_of_the_bytes_takes_effect_at_once(tmp_path: Path) -> None:
    await fill(tmp_path, None, *(f"/{number}" for number in range(24)))
    assert sum(segments(tmp_path)) > 6 * MIB
    await fill(tmp_path, None, most=4 * MIB)
    assert 3 * MIB < sum(segments(tmp_path)) <= 4 * MIB
    paths, _ = opened(tmp_path, None)
    assert "/23" in paths
    assert "/0" not in paths


def test_one_process_at_a_time_has_a_lock(tmp_path: Path) -> None:
    lock = take_lock(tmp_path / "new", SLOT_LOCK)
    with pytest.raises(InUseError):
        take_lock(tmp_path / "new", SLOT_LOCK)
    os.close(lock)
    os.close(take_lock(tmp_path / "new", SLOT_LOCK))


def test_the_next_version_keeps_the_lock_of_the_same_folder(tmp_path: Path) -> None:
    lock = lock_gateway(str(tmp_path))
    with pytest.raises(ConfigError, match=f"store.path: another process uses {tmp_path}"):
        lock_gateway(str(tmp_path))
    inherited = os.dup(lock)
    assert lock_gateway(str(tmp_path), inherited) == inherited
    os.close(lock)
    with pytest.raises(ConfigError, match="another process uses"):
        lock_gateway(str(tmp_path))
    # The lock of another folder is of no use, and is released.
    other = lock_gateway(str(tmp_path / "other"), inherited)
    os.close(lock_gateway(str(tmp_path)))
    os.close(other)


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"store.path: \[Errno"):
        lock_gateway(str(tmp_path / "file" / "store"))
    with pytest.raises(ConfigError, match=r"store.path: \[Errno"):
        open_folder(config(tmp_path / "file"), ALL_LOCKS)


def test_the_key_of_the_owners_outlasts_a_restart(tmp_path: Path) -> None:
    assert read_key(str(tmp_path)) is None
    write_key(str(tmp_path), b"k" * 16)
    write_key(str(tmp_path), b"l" * 16)
    assert read_key(str(tmp_path)) == b"l" * 16
    (tmp_path / "hash.key").write_bytes(b"torn")
    assert read_key(str(tmp_path)) is None


async def test_folders_of_slots_that_no_longer_exist_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for slot in range(4):
        await fill(folder_of(tmp_path, slot), OURS, "/s")
    mark_behind(folder_of(tmp_path, 3))
    others = [tmp_path / name for name in ("01", "x", "5x", "2024")]
    for one in others:
        one.mkdir()
    (tmp_path / "2024" / "index.html").write_text("of the operator")
    lock = take_lock(folder_of(tmp_path, 2), SLOT_LOCK)
    # The version before still uses one of them.
    assert not remove_rest(tmp_path, 2)
    assert [folder_of(tmp_path, slot).exists() for slot in range(4)] == [True, True, True, False]
    os.close(lock)
    (folder_of(tmp_path, 2) / "notes").write_text("of the operator")
    assert remove_rest(tmp_path, 1)
    assert [folder_of(tmp_path, slot).exists() for slot in range(4)] == [True, False, True, False]
    assert "cannot remove the folder of a worker that is gone" in caplog.text
    assert [file.name for file in folder_of(tmp_path, 2).iterdir()] == ["notes"]
    assert all(one.exists() for one in others)
    assert (tmp_path / "2024" / "index.html").exists()
    assert opened(tmp_path, None) == ({"/s"}, None)


def test_an_opened_folder_is_released(tmp_path: Path) -> None:
    found: OpenedFolder = open_folder(config(tmp_path), WORKER_LOCKS)
    with pytest.raises(InUseError):
        open_folder(config(tmp_path), WORKER_LOCKS)
    found.close()
    open_folder(config(tmp_path), WORKER_LOCKS).close()


async def test_one_gateway_does_not_use_the_folder_of_another_ones_worker(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 1)
    worker = open_folder(config(folder), WORKER_LOCKS)
    for start in (lambda: DiskStore.open(config(folder), ManualClock()), lambda: lock_gateway(str(folder))):
        with pytest.raises(ConfigError, match=f"store.path: another process uses {folder}"):
            start()
    assert not (folder / LOCK).exists()
    worker.close()
    disk = DiskStore.open(config(folder), ManualClock())
    with pytest.raises(InUseError):
        open_folder(config(folder), WORKER_LOCKS)
    await disk.close([])
    assert remove_rest(tmp_path, 1)
    assert folder.exists(), "it belongs to another gateway now"


async def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    await fill(tmp_path, None, "/s")
    others = [tmp_path / name for name in ("copy-of.segment", "1.segment", "\u0661.segment", "notes")]
    for file in others:
        file.write_bytes(b"")
    assert opened(tmp_path, None) == ({"/s"}, None)
    assert all(file.exists() for file in others)
