"""Watched files that change: each change is reported once, after two equal polls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.config.reader import ConfigReadTimeout
from gateway.config.watched_files import POLL_S, Stamp, Watch, stamp
from tests.waiting import eventually

BOUND_S = 20.0


class Watched:
    """Watched files, and the number of reported changes."""

    def __init__(self, *paths: Path, known: Stamp | None = None) -> None:
        self.clock = ManualClock()
        self.told = 0
        self.is_hanging = False
        self.paths = tuple(map(str, paths))
        self._watch = Watch(lambda: self.paths, self._changed, self.clock)
        self._tasks = Tasks()
        self._tasks.start(self._watch.run(stamp(self.paths) if known is None else known), "watch")

    async def _changed(self) -> None:
        self.told += 1
        if self.is_hanging:
            raise ConfigReadTimeout("the disk hangs")

    async def __aenter__(self) -> Watched:
        await self._polled(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def _polled(self, times: int) -> None:
        await eventually(lambda: self._watch.polls >= times)

    async def polls(self, count: int) -> int:
        """Poll the files `count` more times; return the number of changes reported so far."""
        for _ in range(count):
            self.clock.advance(POLL_S)
            await self._polled(self._watch.polls + 1)
        return self.told


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = tmp_path / "one.crt", tmp_path / "one.key"
    certificate.write_text("certificate")
    key.write_text("key")
    return certificate, key


async def test_unchanged_files_are_never_reported(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        assert await watched.polls(3) == 0


async def test_a_replaced_file_is_reported_once_after_two_equal_polls(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        for path in pair:
            new = path.with_suffix(".new")
            new.write_text(path.read_text())
            new.rename(path)
            assert await watched.polls(1) == 0
        assert [await watched.polls(1) for _ in range(3)] == [1, 1, 1]


async def test_a_change_that_is_not_read_in_time_is_reported_again(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        watched.is_hanging = True
        pair[0].write_text("certificate and more")
        assert [await watched.polls(1) for _ in range(3)] == [0, 1, 2]
        watched.is_hanging = False
        assert [await watched.polls(1) for _ in range(3)] == [3, 3, 3]


async def test_an_overwritten_file_is_a_change_by_its_size_or_its_time(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        pair[0].write_text("certificate and more")
        assert await watched.polls(2) == 1
        os.utime(pair[1], ns=(1, 1))
        assert await watched.polls(2) == 2


async def test_a_link_is_followed(tmp_path: Path) -> None:
    """Kubernetes swaps a link to the directory; the file's own path stays the same."""
    old, new, data = tmp_path / "v1", tmp_path / "v2", tmp_path / "data"
    for folder in (old, new):
        folder.mkdir()
        (folder / "tls.crt").write_text("certificate")
    data.symlink_to(old)
    async with Watched(data / "tls.crt") as watched:
        link = tmp_path / "data.new"
        link.symlink_to(new)
        link.rename(data)
        assert await watched.polls(2) == 1


async def test_a_removed_file_is_a_change_and_its_return_another(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        pair[0].unlink()
        assert await watched.polls(2) == 1
        pair[0].write_text("certificate")
        assert await watched.polls(2) == 2


async def test_a_change_between_reading_and_watching_is_reported(pair: tuple[Path, Path]) -> None:
    known = stamp(map(str, pair))
    pair[0].write_text("certificate and more")
    async with Watched(*pair, known=known) as watched:
        assert await watched.polls(1) == 1


async def test_other_paths_are_a_change_and_an_invalid_path_counts_as_missing(
    pair: tuple[Path, Path],
) -> None:
    async with Watched() as watched:
        assert await watched.polls(2) == 0
        watched.paths = (str(pair[0]), "no\0path")
        assert await watched.polls(2) == 1
        assert await watched.polls(2) == 1
