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


def fit(wanted: Descriptors, admin_connections: int, open_files: int) -> Descriptors:
    """The bounds that can be kept by a process with this limit of open files: those `wanted`, or lower ones.

    If files are short, each bound is at least 1 and depends on no other: clients get five eighths of what is left to
    share, live requests a quarter, other connections to origins an eighth.
    """
    fixed = admin_connections + SPARE
    if sum(wanted) + fixed <= open_files:
        return wanted
    left = open_files - min(fixed, open_files // _FIXED_SHARE)
    upstream, followed = left // _UPSTREAM_SHARE, left // _FOLLOWED_SHARE
    shares = Descriptors(left - upstream - followed, upstream, followed)
    return Descriptors(*(max(1, min(pair)) for pair in zip(wanted, shares, strict=True)))
