"""What a request to an origin is for.  Each purpose has its share of the connections (`slots`)."""

from __future__ import annotations

from enum import StrEnum


class Purpose(StrEnum):
    """What a request to an origin is for."""

    READ = "read"
    """A GET or HEAD that is answered at once."""
    WRITE = "write"
    """Any other method, and any request with a body."""
    LIVE = "live"
    """A live read, which lasts for minutes."""


def purpose_of(method: str, *, is_live: bool, has_body: bool) -> Purpose:
    """The purpose of a request."""
    if is_live:
        return Purpose.LIVE
    return Purpose.READ if method in ("GET", "HEAD") and not has_body else Purpose.WRITE
