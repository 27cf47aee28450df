"""The ingest manifest: how much of each log file has been ingested.  Renamed or moved files are not read twice.

A file is identified by its first line.  No two logs have the same first line, because a line has a time in microseconds
and an id.  A rotated, copied or compressed log keeps its first line.  For each file, the manifest holds the number of
ingested bytes (whole lines), and a digest of the last of them.  A file with the same first line but another digest is
another file and gets a separate entry.

The manifest also holds path, size and time of files that were read to their ends, so that they are not opened again.
This part is committed only together with new lines.  Until then, a run that follows its source keeps it in memory, and
a new run opens the file again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

HEAD_BYTES: Final = 65_536
"""Most bytes of the first line that identify a file."""
TAIL_BYTES: Final = 256
"""Number of bytes before the end of the ingested part that the digest is made of."""

MOST: Final = 50_000
"""Most files in the manifest: nearly six years of a log that is rotated each hour.

A file that drops out of the manifest and still exists is read again.  Silver still gets none of its lines twice.
"""
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Taken:
    """The ingested part of one file: its size in bytes, uncompressed, and a digest of its end."""

    size: int
    tail: str


@dataclass(frozen=True, slots=True)
class Seen:
    """State of a file when all of it had been ingested.  While the state is the same, the file is not opened again."""

    size: int
    changed_ns: int
    inode: int


@dataclass(slots=True)
class Manifest:
    """The ingested part of each log file."""

    taken: dict[str, Taken] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)

    def locate(self, first_line: bytes, tail_at: Callable[[int], str | None]) -> tuple[str, int]:
        """Return a file's key in the manifest, and the position of the first byte that is not ingested yet.

        `tail_at` returns the digest of the bytes before a position, or None if the file is shorter.
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
        """Record that the first `size` bytes of the file are ingested.

        If there are too many files, forget the file that has not grown for the longest time.
        """
        self.taken.pop(key, None)
        self.taken[key] = Taken(size, tail)
        if len(self.taken) > MOST:
            del self.taken[next(iter(self.taken))]

    def forget(self, key: str) -> None:
        """Forget a file, so that it is read again from its beginning."""
        self.taken.pop(key, None)
        self.seen = {}

    def forget_unlisted(self, paths: Collection[str]) -> None:
        """Forget the states of all files other than these."""
        self.seen = {path: seen for path, seen in self.seen.items() if path in paths}

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as a JSON value."""
        return {
            "format": _FORMAT,
            "taken": {key: [taken.size, taken.tail] for key, taken in self.taken.items()},
            "seen": {path: [seen.size, seen.changed_ns, seen.inode] for path, seen in self.seen.items()},
        }


def read_manifest(found: Any) -> Manifest:
    """Parse a manifest from its JSON value; None gives an empty manifest.  Raises ValueError."""
    if found is None:
        return Manifest()
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError("not an ingest manifest of this release")
    return Manifest(
        taken={key: Taken(*value) for key, value in found["taken"].items()},
        seen={path: Seen(*value) for path, value in found["seen"].items()},
    )


def digest(text: bytes) -> str:
    """Return the first 24 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text).hexdigest()[:24]
