"""When the origin has to confirm bytes that are held, and the request that does it, shared by all readers.

Bytes are given without the origin for as long as its freshness allows, and never for longer than `route.trust_s`
(`Stream.reusable_s`).  After that the origin is asked for them at the first position that is served: only that shows
whether it has trimmed them.  A client's `no-cache` or `max-age` asks for a more recent confirmation, but not for one of
its own: a confirmation that is at most `LEAST_AGE_S` old will do, so these clients cost the origin no more than one
request a second for each stream.

A reader that begins before the first confirmed position needs another confirmation.  The second one within the time
that the first is valid begins at the first position held.  A stream therefore costs no more than three, in whatever
order its readers begin: the third is for the start sentinel, which may name any position.

If the origin has trimmed the first position held, the tape begins after it from then on, the reader's own position is
confirmed, and further confirmations begin midway between the two.  Both a refusal and an answer halve the number of
positions between them, so a trim costs about twice the binary logarithm of that number.
"""

from __future__ import annotations

from gateway.aio.clock import Clock
from gateway.engine.fetch_table import FetchTable
from gateway.engine.read import Read
from gateway.errors import TailMovedBack
from gateway.protocol.names import START, is_before
from gateway.tape.stream import Stream
from gateway.upstream.collapse import Lead
from gateway.upstream.flight import CONFIRMATION, Head, OriginError, as_seen_by


class Confirming:
    """Has the origin confirm held bytes.  Keeps no state of its own."""

    def __init__(self, fetches: FetchTable, clock: Clock) -> None:
        self._fetches = fetches
        self._clock = clock

    async def ask(self, read: Read, stream: Stream) -> Head | None:
        """The origin's answer to a request sent now for the bytes held after the read's offset; None if another read's
        request has confirmed them.

        Bytes that the origin does not have are forgotten.  Raises TailMovedBack if those of the read are gone.
        """
        fetches, route, source, start = self._fetches, read.route, read.source, stream.tape.resolve(read.start)
        due = stream.confirmed_before(self._clock.now(), route.trust_s, read.max_age_s)
        is_refused = False
        while True:
            await fetches.join_earlier(stream, CONFIRMATION, route, source.client)
            if stream.ended is not None or not stream.tape.knows_after(start):
                raise TailMovedBack
            if stream.confirmed_at(start) > due:
                return None
            first = start
            if start != START and not is_refused and stream.confirmed.asked_at > due:
                tape, is_cut = stream.tape, stream.confirmed.refused_at > due
                first = (tape.midway(start) if is_cut else tape.first()) or start
            joined = fetches.join(stream, first, route, source, CONFIRMATION)
            flight = joined.fetch
            if isinstance(joined, Lead):
                stream.confirmed.asked_at = self._clock.now()
            flight.watch()
            try:
                await flight.until_over()
            finally:
                flight.unwatch()
            found = flight.error or flight.head
            assert found is not None
            is_trimmed = isinstance(found, OriginError) and found.status == 410
            if is_trimmed and flight.start == start != read.start:
                # What the reader has asked for is another position now.
                raise TailMovedBack
            if not (is_trimmed and flight.start != start) and not is_before(start, flight.start):
                return as_seen_by(found, source.headers)
            if is_trimmed:
                is_refused = True
                stream.confirmed.refused_at = self._clock.now()
