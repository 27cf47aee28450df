"""Files that change while they are watched: each change is told once, and not before it has come to rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.config.watched_files import LOOK_S, Stamp, Watch, stamp
from tests.waiting import eventually

BOUND_S = 20.0


class Watched:
    """Files that are watched, and how often a change was told."""

    def __init__(self, *paths: Path, known: Stamp | None = None) -> None:
        self.clock = ManualClock()
        self.told = 0
        self.paths = tuple(map(str, paths))
        self._watch = Watch(lambda: self.paths, self._changed, self.clock)
        self._tasks = Tasks()
        self._tasks.start(self._watch.run(stamp(self.paths) if known is None else known), "watch")

    async def _changed(self) -> None:
        self.told += 1

    async def __aenter__(self) -> Watched:
        await self._looked(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def _looked(self, times: int) -> None:
        await eventually(lambda: self._watch.looks >= times)

    async def looks(self, count: int) -> int:
        """Have the files looked at so many times more; how often a change has been told by then."""
        for _ in range(count):
            self.clock.advance(LOOK_S)
            await self._looked(self._watch.looks + 1)
        return self.told


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = tmp_path / "one.crt", tmp_path / "one.key"
    certificate.write_text("certificate")
    key.write_text("key")
    return certificate, key


async def test_files_that_stay_as_they_are_are_told_of_never(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        assert await watched.looks(3) == 0


async def test_a_file_that_was_replaced_is_told_once_when_two_looks_have_seen_the_same(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        for path in pair:
            new = path.with_suffix(".new")
            new.write_text(path.read_text())
            new.rename(path)
            assert await watched.looks(1) == 0
        assert [await watched.looks(1) for _ in range(3)] == [1, 1, 1]


async def test_a_file_that_was_written_over_is_another_by_its_size_or_its_time(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        pair[0].write_text("certificate and more")
        assert await watched.looks(2) == 1
        os.utime(pair[1], ns=(1, 1))
        assert await watched.looks(2) == 2


async def test_a_link_is_followed_to_what_it_leads_to(tmp_path: Path) -> None:
    """As Kubernetes does it: a link to the directory is swapped, and the file's own path stays the same."""
    old, new, data = tmp_path / "v1", tmp_path / "v2", tmp_path / "data"
    for folder in (old, new):
        folder.mkdir()
        (folder / "tls.crt").write_text("certificate")
    data.symlink_to(old)
    async with Watched(data / "tls.crt") as watched:
        link = tmp_path / "data.new"
        link.symlink_to(new)
        link.rename(data)
        assert await watched.looks(2) == 1


async def test_a_file_that_is_away_is_a_change_and_its_return_another(pair: tuple[Path, Path]) -> None:
    async with Watched(*pair) as watched:
        pair[0].unlink()
        assert await watched.looks(2) == 1
        pair[0].write_text("certificate")
        assert await watched.looks(2) == 2


async def test_what_changed_between_the_reading_and_the_watching_is_told(pair: tuple[Path, Path]) -> None:
    known = stamp(map(str, pair))
    pair[0].write_text("certificate and more")
    async with Watched(*pair, known=known) as watched:
        assert await watched.looks(1) == 1


async def test_other_files_than_before_are_a_change_and_a_path_that_is_none_is_a_file_that_is_away(
    pair: tuple[Path, Path],
) -> None:
    async with Watched() as watched:
        assert await watched.looks(2) == 0
        watched.paths = (str(pair[0]), "no\0path")
        assert await watched.looks(2) == 1
        assert await watched.looks(2) == 1
