"""Rules for the names of basins, streams and access tokens (S2's API reference).

The error code for an invalid name depends on its place in the request: the path, a header or the body.
"""

from __future__ import annotations

import re
from typing import Final

MAX_STREAM_NAME_BYTES: Final = 512
MAX_TOKEN_ID_BYTES: Final = 96

_BASIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{6,46}[a-z0-9]")


class BadName(ValueError):
    """The name violates S2's rules."""


def check_basin_name(name: str) -> None:
    """Raise BadName unless a basin may have this name."""
    if not _BASIN_NAME.fullmatch(name):
        raise BadName("a basin's name has 8 to 48 lower-case letters, digits and inner hyphens")


def check_stream_name(name: str) -> None:
    """Raise BadName unless a stream may have this name."""
    # Clients that normalise paths would remove dot segments.
    if not _is_within(name, MAX_STREAM_NAME_BYTES) or name in (".", ".."):
        raise BadName(f"a stream's name has 1 to {MAX_STREAM_NAME_BYTES} bytes, none of them NUL, and is not . or ..")


def check_token_id(token_id: str) -> None:
    """Raise BadName unless an access token may have this id."""
    if not _is_within(token_id, MAX_TOKEN_ID_BYTES):
        raise BadName(f"a token's id has 1 to {MAX_TOKEN_ID_BYTES} bytes, none of them NUL")


def _is_within(name: str, most_bytes: int) -> bool:
    return 1 <= len(name.encode()) <= most_bytes and "\0" not in name
