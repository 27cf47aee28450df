"""The index of the store on disk: an SQLite database with the streams and the place of each run.

A run is a range of a stream's bytes.  Each run is one record of a segment file.  The index is changed only after the
record is written, so a crash of the process may lose the latest runs, but leaves no incomplete run in the index.  A
crash of the machine may leave an incomplete run in the index.  The record's checksum then shows the damage.

Only one thread at a time uses the index: first the thread that opens the store, then the writer's thread.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson

_log = logging.getLogger("gateway.store")

FORMAT: Final = 2
"""The version of the format.  An index of another version is refused, because its records may have another meaning."""


class OtherFormatError(Exception):
    """The index was written in another format.  The argument is its version."""


class StoredKey(NamedTuple):
    """A stream's name on disk.  It differs from `StreamKey` because the store outlasts the configuration."""

    origin: str
    path: str
    query: str
    route: str
    sharing: str
    """A digest of those settings of the route that decide which readers may share the bytes."""

    def owner_in(self, store: str) -> str:
        """Return the digest that identifies the stream in its records.  `store` is the store's id."""
        return hashlib.blake2b(json.dumps([store, *self]).encode(), digest_size=16).hexdigest()


class Facts(NamedTuple):
    """The metadata of a stream that are stored with its bytes."""

    content_type: str
    identity: str | None
    """The origin's identifier of the incarnation, if its ETag has one."""
    first: str | None
    """The first token of the stream: no bytes lie between the start sentinel and this token.  None if no such token is
    known."""
    varies_by_origin: bool
    surrogate_keys: frozenset[str]


def is_unicode(key: StoredKey, facts: Facts) -> bool:
    """Return whether all texts of a stream can be stored in the index.  Texts from the origin may contain bytes that
    are not valid UTF-8."""
    try:
        "".join((*key, facts.content_type, facts.identity or "", *facts.surrogate_keys)).encode()
    except UnicodeEncodeError:
        return False
    return True


class Holder(NamedTuple):
    """The worker that used the store last.  Its counts of the removals that its disk has done are in shared memory, and
    outlive the worker (`gateway.workers.removals`)."""

    memory: str
    tenure: int
    """The worker's place in the memory, as a number that no later version gives to the place."""


class RunRow(NamedTuple):
    """One run in the index."""

    stream: int
    start: str
    end: str
    check: str
    """The last token after which the run has enough bytes for a confirmation (`gateway.disk.runs`)."""
    body: int
    """The number of the stream's bytes."""
    segment: int
    position: int
    size: int
    """The size of the record, which starts at `position` of the segment."""


_RUN_TYPES: Final = (int, str, str, str, int, int, int, int)


def _expect(types: tuple[type, ...], values: list[object]) -> None:
    """Raise TypeError if the type of a value is not one of `types`."""
    for value in values:
        if type(value) not in types:
            raise TypeError(value)


class Index:
    """The open database.  All methods raise sqlite3.Error.  The constructor raises OSError and OtherFormatError too."""

    def __init__(self, path: Path) -> None:
        # SQLite creates its other files with the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # With `bytes.decode`, text that is not UTF-8 raises UnicodeDecodeError, which shows the cause.
        self._database.text_factory = bytes.decode
        run = self._database.execute
        run("PRAGMA journal_mode = WAL")
        # A withdrawn stream must stay withdrawn even if the machine fails.
        run("PRAGMA synchronous = FULL")
        (version,) = run("PRAGMA user_version").fetchone()
        if version not in (0, FORMAT):
            self._database.close()
            raise OtherFormatError(version)
        run("BEGIN IMMEDIATE")
        run("CREATE TABLE IF NOT EXISTS streams (id INTEGER PRIMARY KEY, key BLOB NOT NULL, facts BLOB NOT NULL)")
        run(
            "CREATE TABLE IF NOT EXISTS runs (stream INTEGER NOT NULL, start TEXT NOT NULL, end TEXT NOT NULL, "
            "token TEXT NOT NULL, body INTEGER NOT NULL, segment INTEGER NOT NULL, position INTEGER NOT NULL, "
            "size INTEGER NOT NULL, PRIMARY KEY (segment, position)) WITHOUT ROWID"
        )
        run("CREATE INDEX IF NOT EXISTS runs_by_stream ON runs (stream)")
        run("CREATE TABLE IF NOT EXISTS store (id TEXT NOT NULL)")
        if run("SELECT id FROM store").fetchone() is None:
            run("INSERT INTO store VALUES (?)", (secrets.token_hex(16),))
        (self.store,) = run("SELECT id FROM store").fetchone()
        run("CREATE TABLE IF NOT EXISTS holder (memory TEXT NOT NULL, place INTEGER NOT NULL)")
        run(f"PRAGMA user_version = {FORMAT}")
        run("COMMIT")

    def close(self) -> None:
        self._database.close()

    def check(self) -> None:
        """Read the whole index once.  Raises ValueError or TypeError if this class cannot have written its content."""
        (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise ValueError(found)
        _expect((str,), [self.store])
        for holder in self._database.execute("SELECT memory, place FROM holder"):
            _expect((str,), [holder[0]])
            _expect((int,), [holder[1]])
        for _, key, facts in self.streams():
            _expect((str,), [*key, facts.content_type, *facts.surrogate_keys])
            _expect((str, type(None)), [facts.identity, facts.first])
            _expect((bool,), [facts.varies_by_origin])
        for row in self.runs():
            # SQLite allows a value whose type differs from the type of its column.
            if tuple(map(type, row)) != _RUN_TYPES or min(row.body, row.segment, row.position, row.size) < 0:
                raise TypeError(row)

    def streams(self) -> Iterator[tuple[int, StoredKey, Facts]]:
        """Return all streams, with their numbers."""
        for number, key, facts in self._database.execute("SELECT id, key, facts FROM streams"):
            content_type, identity, first, varies, surrogate_keys = orjson.loads(facts)
            found = Facts(content_type, identity, first, varies, frozenset(surrogate_keys))
            yield number, StoredKey(*orjson.loads(key)), found

    def runs(self) -> Iterator[RunRow]:
        """Return all runs, the oldest first."""
        rows = self._database.execute(
            "SELECT stream, start, end, token, body, segment, position, size FROM runs ORDER BY segment, position"
        )
        return map(RunRow._make, rows)

    def places(self, number: int) -> list[tuple[int, int, int]]:
        """Return the segment, the position and the size of each record of a stream."""
        found = self._database.execute("SELECT segment, position, size FROM runs WHERE stream = ?", (number,))
        return found.fetchall()

    @property
    def holder(self) -> Holder | None:
        """The worker that used the store last; None if no gateway with several workers has used the store."""
        found = self._database.execute("SELECT memory, place FROM holder").fetchone()
        return Holder(*found) if found is not None else None

    def put_holder(self, holder: Holder) -> None:
        self._database.execute("DELETE FROM holder")
        self._database.execute("INSERT INTO holder VALUES (?, ?)", holder)

    def clear(self) -> None:
        """Drop all streams."""
        self.begin()
        self._database.execute("DELETE FROM runs")
        self._database.execute("DELETE FROM streams")
        self.commit()

    def begin(self) -> None:
        """Begin a transaction if there is none."""
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make the changes since `begin` durable."""
        if self._database.in_transaction:
            self._database.execute("COMMIT")

    def roll_back(self) -> None:
        """Undo the changes since `begin`."""
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def put_stream(self, number: int, key: StoredKey, facts: Facts) -> None:
        row = (number, orjson.dumps(list(key)), orjson.dumps([*facts[:-1], sorted(facts.surrogate_keys)]))
        self._database.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", row)

    def put_run(self, row: RunRow) -> None:
        self._database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def drop_stream(self, number: int) -> None:
        self._database.execute("DELETE FROM runs WHERE stream = ?", (number,))
        self._database.execute("DELETE FROM streams WHERE id = ?", (number,))

    def drop_run(self, segment: int, position: int) -> None:
        self._database.execute("DELETE FROM runs WHERE segment = ? AND position = ?", (segment, position))

    def drop_segment(self, segment: int) -> None:
        """Drop the runs of a segment, and then all streams without runs."""
        self._database.execute("DELETE FROM runs WHERE segment = ?", (segment,))
        self._database.execute("DELETE FROM streams WHERE id NOT IN (SELECT stream FROM runs)")


def open_index(folder: Path) -> Index:
    """Open the index.  If it is damaged, rename it and begin with an empty index.  Raises OSError, sqlite3.Error,
    OtherFormatError."""
    path = folder / "index.sqlite"
    try:
        index = Index(path)
        try:
            index.check()
        except BaseException:
            index.close()
            raise
    except (sqlite3.DatabaseError, ValueError, TypeError) as error:
        if isinstance(error, sqlite3.OperationalError):
            # The index itself may be undamaged.  For example, the disk may be full.
            raise
        aside = folder / "index.damaged"
        _log.warning(
            "the index of the store on disk is damaged, and is now %s; the store begins empty: %s", aside, error
        )
        for end in ("", "-wal", "-shm"):
            if (part := path.with_name(path.name + end)).exists():
                part.rename(aside.with_name(aside.name + end))
        index = Index(path)
    return index
