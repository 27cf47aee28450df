"""The acknowledged writes of a stream that the bytes in memory may lack.  The record of these writes is immutable.

A write that the origin has acknowledged must be in all later answers (read-your-writes).  The acknowledgement usually
states the tail after the write, so bytes that end before this tail lack the write.  Some acknowledgements state no
tail.  Any bytes may then lack the write until a request has read the stream up to its tail.

The gateway assigns writes to streams by path.  An origin may keep several streams at one path, and select the stream by
credentials or query.  Suppose that a write with another query was acknowledged with a tail, and that a later request
finds an earlier tail.  The write then changed another stream, and later writes with that query are ignored.

Each `gateway.tape.stream.Stream` has one `AcknowledgedWrites`, and replaces it at each event.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.protocol.names import is_before
from gateway.tuples import make

MAX_OTHER_QUERIES: Final = 16


class AcknowledgedWrites(NamedTuple):
    """The writes through this gateway that the origin has acknowledged since a request last read up to the tail."""

    tail: str | None = None
    """The furthest tail in the acknowledgements; None if no acknowledgement stated a tail."""
    query: str = ""
    """The query of the latest write that advanced `tail` or closed the stream."""
    is_closed: bool = False
    """Whether a write has closed the stream."""
    is_unplaced: bool = False
    """Whether the acknowledgement of a write has stated no tail."""
    through: str | None = None
    """An offset.  All writes that were acknowledged before a request last read up to the tail end at or before this
    offset, and so do later writes of other gateways that are known to end there.  None if there is no such offset."""
    other_queries: frozenset[str] = frozenset()
    """Queries that select other streams at the same path, at most `MAX_OTHER_QUERIES`."""

    def with_write(self, tail: str, query: str, *, is_closed: bool) -> AcknowledgedWrites:
        """Return the value after the acknowledgement of a write with this query.  The write ended at `tail`."""
        if self.tail is not None and not is_before(self.tail, tail) and not is_closed:
            return self
        return self._replace(tail=max(self.tail or tail, tail), query=query, is_closed=self.is_closed or is_closed)

    def with_unplaced(self) -> AcknowledgedWrites:
        """Return the value after an acknowledgement that stated no tail."""
        return self._replace(is_unplaced=True)

    def with_write_within(self, tail: str) -> AcknowledgedWrites:
        """Return the value after a write was acknowledged that ended at `tail` or before it."""
        if self.through is not None and not is_before(self.through, tail):
            return self
        return self._replace(through=tail)

    def read_up_to(self, tail: str, own_query: str, *, is_closing: bool) -> AcknowledgedWrites:
        """Return the value after a request has found this tail.  The request was sent after the latest acknowledgement.

        `own_query` is the query of the request.  `is_closing`: a write has closed the stream, but the gateway has not
        received the stream's end yet.
        """
        if self.tail is None and self.through is None and not self.is_unplaced:
            return self
        # All acknowledged writes end at this tail or before it.  The memory may still lack bytes before these ends,
        # because the request may have been a HEAD.
        through, others = tail if self.is_unplaced else self.through, self.other_queries
        if self.tail is not None:
            is_short = is_before(tail, self.tail) or is_closing
            if is_short and self.query != own_query and len(others) < MAX_OTHER_QUERIES:
                others |= {self.query}
            if not is_short and not self.is_unplaced:
                through = self.tail
        if through is not None and is_before(tail, through):
            through = None
        is_closed = self.is_closed and self.tail is None
        return make(AcknowledgedWrites, (None, self.query, is_closed, False, through, others))

    def forgotten(self) -> AcknowledgedWrites:
        """Return the value without writes that may belong to another stream."""
        return self._replace(tail=None, is_closed=False, through=None)


NONE: Final = AcknowledgedWrites()
"""The value of a stream without acknowledged writes."""
