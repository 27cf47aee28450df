"""The index: what it reads at the start is what it has written, or it is set aside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.disk.index import Facts, Index, RunRow, StoredKey, open_index
from tests.disk.test_withdrawals import opened, stream_of

KEY = StoredKey("http://o", "/s", "", "r", "x")
FACTS = Facts("text/plain", "identity", None, False, frozenset({"one"}))


def made(folder: Path) -> None:
    """Make an index with a stream of two runs."""
    index = Index(folder / "index.sqlite")
    index.begin()
    index.put_stream(7, KEY, FACTS)
    index.put_run(RunRow(7, "-1", "05", "03", 5, 1, 0, 50))
    index.put_run(RunRow(7, "05", "09", "05", 4, 1, 50, 40))
    index.commit()
    index.close()


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "index.sqlite", isolation_level=None)) as database:
        database.execute(statement)


def test_a_good_index_is_read(tmp_path: Path) -> None:
    made(tmp_path)
    index = open_index(tmp_path)
    assert list(index.streams()) == [(7, KEY, FACTS)]
    assert [row.start for row in index.runs()] == ["-1", "05"]
    index.close()
    assert not (tmp_path / "index.damaged").exists()


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE runs SET start = CAST(start AS BLOB)",
        "UPDATE runs SET token = CAST(token AS BLOB)",
        "UPDATE runs SET start = CAST(x'ff' AS TEXT)",
        "UPDATE runs SET body = 'x'",
        "UPDATE runs SET size = 1.5",
        "UPDATE runs SET size = -1",
        "UPDATE runs SET segment = 'a'",
        "UPDATE store SET id = x'00'",
        "UPDATE streams SET key = '[1, 2, 3, 4, 5]'",
        "UPDATE streams SET facts = '[1, null, null, false, []]'",
        "UPDATE streams SET facts = '[\"text/plain\", 5, null, false, []]'",
        "UPDATE streams SET facts = '[\"text/plain\", null, null, 1, []]'",
        "UPDATE streams SET facts = '[\"text/plain\", null, null, false, [5]]'",
    ],
)
def test_a_value_of_another_type_is_damage(tmp_path: Path, harm: str) -> None:
    made(tmp_path)
    change(tmp_path, harm)
    index = open_index(tmp_path)
    assert not list(index.streams())
    assert not list(index.runs())
    index.close()
    assert (tmp_path / "index.damaged").exists()


def test_a_damaged_page_is_damage(tmp_path: Path) -> None:
    made(tmp_path)
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        # The start reads no rows of this index.
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs_by_stream'").fetchone()
    with (tmp_path / "index.sqlite").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(100))
    open_index(tmp_path).close()
    assert (tmp_path / "index.damaged").exists()


def test_a_damaged_index_is_set_aside_with_its_log(tmp_path: Path) -> None:
    """SQLite would put the log of the damaged index into the new one."""
    (tmp_path / "index.sqlite").write_bytes(b"no database" * 1_000)
    for end in ("-wal", "-shm"):
        (tmp_path / f"index.sqlite{end}").write_bytes(b"log")
    index = open_index(tmp_path)
    assert (tmp_path / "index.damaged-wal").read_bytes() == b"log"
    # SQLite itself has written this one.
    assert (tmp_path / "index.damaged-shm").exists()
    assert (tmp_path / "index.damaged").read_bytes().startswith(b"no database")
    index.close()


def test_an_index_that_cannot_be_read_now_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)

    def fail(_: Index) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as failing:
        failing.setattr(Index, "check", fail)
        with pytest.raises(sqlite3.OperationalError):
            open_index(tmp_path)
    assert not (tmp_path / "index.damaged").exists()
    index = open_index(tmp_path)
    assert len(list(index.streams())) == 1
    index.close()


async def test_runs_without_a_stream_never_get_one(tmp_path: Path) -> None:
    """A damaged index has not found all runs of a stream that was withdrawn."""
    disk = opened(tmp_path)
    disk.leaving(stream_of("/s"))
    assert await disk.settled()
    await disk.close([])
    change(tmp_path, "DELETE FROM streams")
    disk = opened(tmp_path)
    disk.leaving(stream_of("/s", 50))
    (stored,) = disk.streams()
    assert stored.number == 2
    await disk.close([])
