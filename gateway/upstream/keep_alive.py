"""How long a connection to an origin is kept: at rest after a reply, idle, and at most.

A connection rests for a moment after each reply.  An origin that answers one request twice, or sends a body where none
belongs, does so within that time in most cases.  The bytes then arrive while no reply is awaited, and the connection is
closed.  Later, they would be read as the next reply, for another stream.  Other connections serve requests meanwhile.

A connection is kept for a shorter time than the origin states.  Otherwise a request sent at the last moment would meet
the origin's close, and a write is not sent twice.  Nor is it used for ever, because the origin's name may lead to
another server by then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MARGIN_S: Final = 1.0
_MARGIN_SHARE: Final = 0.5
"""The margin to the origin's own bound: a second, but no more than half of that bound."""
_YOUNGEST: Final = 0.8
_GOLDEN: Final = 0.618_033_988_75
_TIMEOUT: Final = re.compile(r"(?:^|,)[ \t]*timeout[ \t]*=[ \t]*\"?([0-9]{1,9})\"?[ \t]*(?:,|$)", re.IGNORECASE)
_LONGEST_HINT: Final = 256
"""Characters of a Keep-Alive field that are read."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How long connections to origins are kept, in seconds."""

    idle_s: float = 15.0
    """How long an idle connection is kept."""
    rest_s: float = 0.0
    """How long an HTTP/1.1 connection rests after a reply.  HTTP/2 needs no rest, because a reply names its request."""
    age_s: float = 0.0
    """The age at which a connection begins no more exchanges; 0 means no bound."""

    def most_age_s(self, number: int) -> float:
        """The age bound of the `number`-th connection: spread, because many are often made at the same time."""
        return self.age_s * (_YOUNGEST + (1 - _YOUNGEST) * (number * _GOLDEN % 1))

    def kept_s(self, hint: str | None) -> float:
        """How long to keep an idle connection whose last reply had this Keep-Alive field; None for no field."""
        if hint is None:
            return self.idle_s
        origin_s = _hinted_s(hint)
        if origin_s is None:
            return self.idle_s
        return min(self.idle_s, origin_s - min(_MARGIN_S, _MARGIN_SHARE * origin_s))


@lru_cache(256)
def _hinted_s(field: str) -> float | None:
    """The seconds after which the origin closes an idle connection (RFC 2068 section 19.7.1.1); None if unknown."""
    found = _TIMEOUT.search(field) if len(field) <= _LONGEST_HINT else None
    return None if found is None else float(found[1])
