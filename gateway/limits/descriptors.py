"""How a process's open files are shared among client connections, live requests, connections to origins and the rest.

Every connection is an open file.  If the process may have fewer open files than the configured bounds need together,
the bounds are lowered: otherwise clients would take the files of the origins' connections, and the operator's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SPARE: Final = 64
"""Open files beside connections: listeners, logs, plans and certificates being read, name resolution, the loop."""
_UPSTREAM_SHARE: Final = 8
_FOLLOWED_SHARE: Final = 4
_FIXED_SHARE: Final = 4
"""Of too few open files, one in so many is kept for connections to origins, for live requests, and for the admin port
with what is spare."""


class Descriptors(NamedTuple):
    """Bounds on what takes open files."""

    max_connections: int
    upstream_connections: int
    followed_streams: int
    admin_connections: int


def fit(wanted: Descriptors, open_files: int) -> Descriptors:
    """The bounds that can be kept by a process with this limit of open files: those `wanted`, or lower ones.

    If files are short, each bound is at least 1: the admin port gets half of what is kept for it and for the rest;
    of what is left, clients get five eighths, live requests a quarter, other connections to origins an eighth.
    """
    if sum(wanted) + SPARE <= open_files:
        return wanted
    kept = min(wanted.admin_connections + SPARE, open_files // _FIXED_SHARE)
    left = open_files - kept
    admin = kept - min(SPARE, kept // 2)
    upstream, followed = left // _UPSTREAM_SHARE, left // _FOLLOWED_SHARE
    shares = Descriptors(left - upstream - followed, upstream, followed, admin)
    return Descriptors(*(max(1, min(pair)) for pair in zip(wanted, shares, strict=True)))
