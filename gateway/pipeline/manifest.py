"""The ingest manifest: how much of each log file has been ingested, so that renamed or moved files are not read twice.

A file is identified by its first line, which a rotated, copied or compressed log keeps and no two logs share (a line
has a time in microseconds, and an id).  For each file the manifest holds the number of ingested bytes, always whole
lines, and a digest of their end.  If the digest does not match, the file is another one, and gets an entry of its own.

It also holds path, size and age of files that were read to their ends, so that they need not be opened again.  Without
a new line nothing is committed: a follow then holds this in memory, and a run of its own opens such a file again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

HEAD_BYTES: Final = 65_536
"""Bytes of the first line that identify a file."""
TAIL_BYTES: Final = 256

MOST: Final = 50_000
"""Files that are remembered: a log that is set aside each hour makes them in six years.  One that is forgotten and
still there is read again, and silver has its lines once."""
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Taken:
    """The ingested part of one file: its size in bytes, uncompressed, and a digest of its end."""

    size: int
    tail: str


@dataclass(frozen=True, slots=True)
class Seen:
    """State of a file when all of it was ingested; the file is not opened again while the state is the same."""

    size: int
    changed_ns: int
    inode: int


@dataclass(slots=True)
class Manifest:
    """How much of which files has been ingested."""

    taken: dict[str, Taken] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)

    def locate(self, first_line: bytes, tail_at: Callable[[int], str | None]) -> tuple[str, int]:
        """A file's key in the manifest, and the first byte that is not ingested yet.

        `tail_at` returns the digest of the bytes before a position, None if the file is shorter.
        """
        key = head = digest(first_line.rstrip(b"\r\n")[:HEAD_BYTES])
        number = 0
        while (known := self.taken.get(key)) is not None:
            if tail_at(known.size) == known.tail:
                return key, known.size
            number += 1
            key = f"{head}.{number}"
        return key, 0

    def take(self, key: str, size: int, tail: str) -> None:
        """Record that `size` bytes of the file are ingested in total; forget the file that has not grown longest."""
        self.taken.pop(key, None)
        self.taken[key] = Taken(size, tail)
        if len(self.taken) > MOST:
            del self.taken[next(iter(self.taken))]

    def forget(self, key: str) -> None:
        """Forget a file, so that it is read again from its beginning."""
        self.taken.pop(key, None)
        self.seen = {}

    def forget_unlisted(self, paths: Collection[str]) -> None:
        """Keep the states of these files only."""
        self.seen = {path: seen for path, seen in self.seen.items() if path in paths}

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON value."""
        return {
            "format": _FORMAT,
            "taken": {key: [taken.size, taken.tail] for key, taken in self.taken.items()},
            "seen": {path: [seen.size, seen.changed_ns, seen.inode] for path, seen in self.seen.items()},
        }


def read_manifest(found: Any) -> Manifest:
    """A manifest from its JSON value; an empty one from None.  Raises ValueError."""
    if found is None:
        return Manifest()
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError("not an ingest manifest of this release")
    return Manifest(
        taken={key: Taken(*value) for key, value in found["taken"].items()},
        seen={path: Seen(*value) for path, value in found["seen"].items()},
    )


def digest(text: bytes) -> str:
    """24 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text).hexdigest()[:24]
