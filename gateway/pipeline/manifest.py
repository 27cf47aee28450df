"""What has been taken of which file of lines, so that nothing is taken twice however files are moved about.

A file is known by its first line and not by its name: a log that is set aside, copied or compressed begins with the
same line, which no other log does (a line has a time to the microsecond, and an id).  Of each the book has how many
bytes were taken, always whole lines, and a digest of the last of them: where those are not what the book says, it is
another file that happens to begin alike, and has a place of its own in the book.

The book is plain data and does no I/O.  Where the same file was seen last, and how large and old it was then, saves to
open it again when none of that has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

HEAD_BYTES: Final = 65_536
"""So much of a first line tells files apart."""
TAIL_BYTES: Final = 256

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """How much of one file was taken (bytes, as they are when not compressed), and a digest of the end of that."""

    size: int
    tail: str


@dataclass(frozen=True, slots=True)
class Seen:
    """How a file looked when all of it was taken: it need not be opened while it looks like that."""

    size: int
    changed_ns: int
    inode: int


@dataclass(slots=True)
class Book:
    """All that was taken.  `lineage` tells the batches of this book from those of another in the same lake."""

    lineage: str
    next_batch: int = 0
    taken: dict[str, Taken] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)

    def place_of(self, first_line: bytes, tail_at: Callable[[int], str | None]) -> tuple[str, int]:
        """A file's key in the book, and from which byte on it is new.

        `tail_at` gives the digest of what the file has before a byte, None where it is shorter than that.
        """
        head = digest(first_line.rstrip(b"\r\n")[:HEAD_BYTES])
        number = 0
        while True:
            key = f"{head}.{number}" if number else head
            known = self.taken.get(key)
            if known is None:
                return key, 0
            if tail_at(known.size) == known.tail:
                return key, known.size
            number += 1

    def take(self, key: str, size: int, tail: str) -> None:
        """`size` bytes of the file are taken, all told."""
        self.taken[key] = Taken(size, tail)

    def next(self) -> Book:
        """The book for the batch after this one."""
        return replace(self, next_batch=self.next_batch + 1, taken=dict(self.taken), seen=dict(self.seen))

    def written(self) -> str:
        """The book as text."""
        return json.dumps(
            {
                "format": _FORMAT,
                "lineage": self.lineage,
                "next_batch": self.next_batch,
                "taken": {key: [taken.size, taken.tail] for key, taken in self.taken.items()},
                "seen": {path: [seen.size, seen.changed_ns, seen.inode] for path, seen in self.seen.items()},
            }
        )


def read_book(text: str) -> Book:
    """The book that a text is; ValueError where it is none."""
    found: Any = json.loads(text)
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError("no book of taken files, or one of another release")
    return Book(
        lineage=str(found["lineage"]),
        next_batch=int(found["next_batch"]),
        taken={key: Taken(*value) for key, value in found["taken"].items()},
        seen={path: Seen(*value) for path, value in found["seen"].items()},
    )


def digest(text: bytes) -> str:
    """What tells one text from others."""
    return hashlib.sha256(text).hexdigest()[:24]
