"""A read as the engine sees it: no sockets, no HTTP library, only what decides the answer."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engine.route import Route
from gateway.tape.stream import StreamKey
from gateway.upstream.source import Source


@dataclass(frozen=True, slots=True)
class Read:
    """One client's read.  `start` is an offset token or a sentinel; `cursor` counts only on live reads."""

    route: Route
    key: StreamKey
    source: Source
    start: str
    cursor: str | None = None
    if_none_match: str | None = None
    is_private: bool = False
    """Whether the reader showed credentials, so that caches beyond this one must keep the answer to themselves."""
