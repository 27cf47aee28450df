"""How long connections to origins are kept, and when a connection is closed because its reply was abandoned.

After each reply, an HTTP/1.1 connection *rests*: for a moment, requests are sent only on other connections.  A faulty
origin may answer a request twice, or send a body after a reply that must not have one.  Usually these unexpected bytes
arrive during the rest, and the connection is closed.  Without the rest, the next request would already be sent, and the
unexpected bytes would be read as the reply to this request.

An idle connection is closed earlier than the origin announces in Keep-Alive.  Otherwise the origin might close the
connection just when a request is sent, and a write cannot be sent again.  The age of a connection is bounded too,
because the origin's name may later resolve to another server.

If the client has left, the gateway abandons the reply: it reads and drops the remaining bytes.  If the remaining bytes
are few and arrive soon, the connection is kept.  Otherwise the connection is closed.  If the connection were always
closed, a client could close kept connections by cancelling its reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

ABANDONED_S: Final = 0.25
"""The most seconds until the end of an abandoned reply.  After a longer time the connection is closed."""
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
"""A Keep-Alive field with more characters than this is ignored."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How long connections to origins are kept, in seconds."""

    idle_s: float = 15.0
    """How long an idle connection is kept."""
    rest_s: float = 0.0
    """How long an HTTP/1.1 connection rests after a reply.  HTTP/2 needs no rest, because each reply belongs to the
    HTTP/2 stream of its request."""
    age_s: float = 0.0
    """The age from which a connection takes no more requests.  0 means no bound."""

    def most_age_s(self, number: int) -> float:
        """Return the age bound of the `number`-th connection.  The bounds differ, so that connections that were opened
        at the same time are not all closed at the same time."""
        return self.age_s * (_YOUNGEST + (1 - _YOUNGEST) * (number * _GOLDEN % 1))

    def kept_s(self, hint: str | None) -> float:
        """Return how long to keep an idle connection after a reply with this Keep-Alive field.  `hint` is None if the
        reply does not have the field.
        """
        if hint is None:
            return self.idle_s
        origin_s = _hinted_s(hint)
        if origin_s is None:
            return self.idle_s
        return min(self.idle_s, origin_s - min(_MARGIN_S, _MARGIN_SHARE * origin_s))


def outlasts_abandoned(unread_bytes: int, content_length: int | None) -> bool:
    """Return whether an abandoned reply is short enough to keep its connection.

    The reply has this Content-Length, and `unread_bytes` of the body have arrived so far.
    """
    return max(unread_bytes, content_length or 0) <= MOST_ABANDONED_BYTES


@lru_cache(256)
def _hinted_s(field: str) -> float | None:
    """Return the `timeout` of a Keep-Alive field in seconds (RFC 2068 section 19.7.1.1); None if the field has no
    timeout.
    """
    found = _TIMEOUT.search(field) if len(field) <= _LONGEST_HINT else None
    return None if found is None else float(found[1])
