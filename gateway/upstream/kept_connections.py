"""How long connections to origins are kept, and when a connection is closed because its reply was abandoned.

An HTTP/1.1 connection rests for a moment after each reply, while other connections carry the next requests.  A faulty
origin may answer a request twice, or send a body that does not belong there.  Usually these bytes arrive during the
rest, and the connection is closed.  Without the rest, the next request would already be sent, and these bytes would be
read as its reply.

An idle connection is closed earlier than the origin announces in Keep-Alive.  Otherwise the origin might close the
connection just when a request is sent, and a write cannot be sent again.  The age of a connection is bounded too,
because the origin's name may resolve to another server later.

If the gateway no longer needs a reply, because the client has left, it abandons the reply: the rest is read and
dropped.  The connection is kept if the rest is short and arrives soon, and is closed otherwise.  If the connection were
always closed, a client could close kept connections by cancelling its reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

ABANDONED_S: Final = 0.25
"""If an abandoned reply ends within this number of seconds, the connection is kept."""
MOST_ABANDONED_BYTES: Final = 1 << 16
"""The most bytes of an abandoned reply that are read and dropped."""
_MARGIN_S: Final = 1.0
_MARGIN_SHARE: Final = 0.5
"""The gateway closes the connection `_MARGIN_S` before the announced timeout.  The margin is at most this share of the
timeout.
"""
_YOUNGEST: Final = 0.8
_GOLDEN: Final = 0.618_033_988_75
_TIMEOUT: Final = re.compile(r"(?:^|,)[ \t]*timeout[ \t]*=[ \t]*\"?([0-9]{1,9})\"?[ \t]*(?:,|$)", re.IGNORECASE)
_LONGEST_HINT: Final = 256
"""The most characters of a Keep-Alive field that is read.  A longer field is ignored."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How long connections to origins are kept, in seconds."""

    idle_s: float = 15.0
    """How long an idle connection is kept."""
    rest_s: float = 0.0
    """How long an HTTP/1.1 connection rests after a reply.  HTTP/2 needs no rest: a stream identifies its request."""
    age_s: float = 0.0
    """The age from which a connection takes no more requests.  0 means no bound."""

    def most_age_s(self, number: int) -> float:
        """Return the age bound of the `number`-th connection.  Bounds differ, so that connections made at the same time
        do not all end at the same time."""
        return self.age_s * (_YOUNGEST + (1 - _YOUNGEST) * (number * _GOLDEN % 1))

    def kept_s(self, hint: str | None) -> float:
        """Return how long to keep an idle connection after a reply with this Keep-Alive field.  None stands for a reply
        without the field.
        """
        if hint is None:
            return self.idle_s
        origin_s = _hinted_s(hint)
        if origin_s is None:
            return self.idle_s
        return min(self.idle_s, origin_s - min(_MARGIN_S, _MARGIN_SHARE * origin_s))


def outlasts_abandoned(unread_bytes: int, content_length: int | None) -> bool:
    """Return whether a connection may be kept although its reply was abandoned, because the reply is short.

    The reply has this Content-Length, and `unread_bytes` of it have arrived so far.
    """
    return max(unread_bytes, content_length or 0) <= MOST_ABANDONED_BYTES


@lru_cache(256)
def _hinted_s(field: str) -> float | None:
    """Return the `timeout` of a Keep-Alive field in seconds (RFC 2068 section 19.7.1.1); None if the field has no
    timeout.
    """
    found = _TIMEOUT.search(field) if len(field) <= _LONGEST_HINT else None
    return None if found is None else float(found[1])
