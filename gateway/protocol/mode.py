"""The kinds of requests, with their names in metrics, logs and dashboards."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The kind of a request, determined by its method and `live` parameter."""

    CATCHUP = "catchup"
    """GET without `live`: bytes from an offset (section 5.6)."""
    LONGPOLL = "longpoll"
    """GET with `live=long-poll` (section 5.7)."""
    SSE = "sse"
    """GET with `live=sse` (section 5.8)."""
    HEAD = "head"
    """Metadata (section 5.5)."""
    CREATE = "create"
    """PUT (section 5.1)."""
    APPEND = "append"
    """POST: append, close, or both (sections 5.2 and 5.3)."""
    DELETE = "delete"
    """DELETE (section 5.4)."""
    OTHER = "other"
    """All other requests: OPTIONS, unknown methods, reserved paths."""
