"""What a request to an origin is for.  Each purpose has its share of the connections (`slots`)."""

from __future__ import annotations

from enum import StrEnum


class Purpose(StrEnum):
    """What a request to an origin is for."""

    READ = "read"
    """A GET or HEAD without a body that is answered at once."""
    WRITE = "write"
    """Any other method, and any request with a body."""
    LIVE = "live"
    """A live read, which lasts for minutes."""
