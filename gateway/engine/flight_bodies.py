"""The bodies of flights: stored on the tape (the stream's bytes in memory) as they arrive, or compared with the tape.

A flight is an upstream fetch that readers share.  It *lands* when its whole reply is available to them.

If a body may be stored, the cache's budget is charged while the body arrives.  The body is read at the pace of its
readers.

A *confirmation* is a request for bytes that are already in memory.  The reply shows whether the origin has trimmed the
bytes, and whether they belong to the present stream.  A confirmation at one offset is valid for all readers, and for
all bytes after this offset.

A `Comparison` compares the bytes in memory with the bytes of a confirmation.  Equal offsets prove nothing, for three
reasons.  A re-created stream may have equal offsets.  The start sentinel (`-1`) means another position after the origin
has trimmed the stream.  And an origin may have sent the reply of another stream.  A comparison of the first bytes
detects most of these cases, so the first `MOST_COMPARED` bytes are compared.

A comparison of the lengths detects the remaining cases.  For example, a trimmed stream of equal messages begins with
the same bytes but is shorter.  If a reply ends at a known offset, its body must be exactly the bytes in memory up to
this offset.  If the Content-Length does not show that the body has this length, up to `MOST_COUNTED` bytes are
compared.

JSON messages are compared as text, because `1` and `1.0` are two messages.  Only the white space between messages may
differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gateway.aio.clock import Clock
from gateway.aio.tasks import in_task
from gateway.engine.reply_recorder import Effect, SentFetch, is_overtaken
from gateway.errors import UpstreamBroken, UpstreamCongested
from gateway.protocol.json_body import ArrayUnwrapper, NotAnArray
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START, is_before
from gateway.tape.arriving_charge import ArrivingCharge
from gateway.tape.origin_statements import LEAST_GAP_S
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.flight import Flight, StreamHead
from gateway.upstream.incoming import Inflow
from gateway.upstream.reply import Reply

# Looking up a member of an enum is slow in Python 3.11, so every fetch uses this constant.
_CATCHUP: Final = Mode.CATCHUP

MOST_COMPARED: Final = 1 << 16
"""The number of bytes that are usually compared.  A reply of at most twice this size is read to its end, so that its
connection can be used again."""
MOST_COUNTED: Final = 1 << 20
"""The most bytes that are compared if the Content-Length does not show that the reply is as long as the bytes in
memory."""
MOST_CLOSED_UP: Final = 1 << 14
"""In the first `MOST_CLOSED_UP` bytes, only the white space between messages may differ.  In later bytes all white
space may differ, because the strict check is slow."""
_SPACE: Final = b" \t\r\n"
_MOST_SPACE: Final = 1 << 12
"""The most white space between messages, in bytes, by which a reply may be longer than the bytes in memory.  This bound
applies if the whole reply is compared.  Further bytes are not read."""

_OUTER: Final = re.compile(rb'[ \t\r\n]+|["\[\]{}]')
_INNER: Final = re.compile(rb'["\[\]{}]')
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Comparison:
    """One comparison.  Pass the origin's body to `feed` until `is_over`, then check `agrees`."""

    def __init__(self, tape: Tape, start: str, end: str, length: int | None) -> None:
        """Compare the bytes in memory after `start` with a reply whose next offset is `end`.

        `length` is the reply's Content-Length in bytes; None if the reply has no such header.
        """
        self._unwrapper = ArrayUnwrapper() if tape.is_json else None
        extent = tape.extent(start, end)
        is_known = extent.end == tape.resolve(end)
        is_same_length = length == extent.size + (0 if self._unwrapper is None else 2)
        self._is_other_length = is_known and length is not None and not is_same_length and self._unwrapper is None
        self._is_exact = is_known and extent.size <= (MOST_COMPARED if is_same_length else MOST_COUNTED)
        """Whether the whole body is compared."""
        self.is_past = not is_known and is_before(extent.end, end)
        """Whether the reply ends after the end of the bytes in memory.  The length of such a reply shows nothing."""
        limit = extent.size if self._is_exact else min(extent.size, MOST_COMPARED)
        self._held = tape.beginning(start, limit)
        self._is_all_held = limit == extent.size
        self._size = 0
        """The number of bytes received."""
        self._found = bytearray()
        """The received bytes if they differ from the bytes in memory; otherwise empty."""
        self._most_found = limit + 1
        if self._is_exact and self._unwrapper is not None:
            self._most_found += limit + _MOST_SPACE
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether the result is final.  The rest of the body need not be passed to `feed` then."""
        return self._has_ended or self._is_other_length or self._size >= self._most_found

    def feed(self, chunk: bytes) -> None:
        """Process a part of the body.  Raises NotAnArray."""
        if not self.is_over:
            self._add(chunk if self._unwrapper is None else self._unwrapper.feed(chunk))

    def finish(self) -> None:
        """Handle the end of the body.  Raises NotAnArray."""
        if not self.is_over:
            if self._unwrapper is not None:
                self._add(self._unwrapper.finish())
            self._has_ended = self._size < self._most_found

    def _add(self, found: bytes) -> None:
        at, found = self._size, found[: self._most_found - self._size]
        self._size += len(found)
        if not self._found:
            if self._held.startswith(found, at):
                # Do not keep equal bytes twice, because many comparisons may be in progress.
                return
            self._found += self._held[:at]
        self._found += found

    @property
    def has_held(self) -> bool:
        """Whether there are bytes in memory to compare."""
        return bool(self._held)

    @property
    def compared(self) -> int:
        """The number of bytes in memory that were compared."""
        return min(self._size, len(self._held))

    @property
    def agrees(self) -> bool:
        """Whether the origin's bytes equal the bytes in memory, up to the end of the shorter of the two.  True if no
        bytes are in memory."""
        held = self._held
        found = bytes(self._found) if self._found else held[: self._size]
        if not held:
            return True
        if not found or self._is_other_length:
            return False
        if self._are_equal(held, found):
            return True
        # The white space between messages may differ between catch-up replies and live replies.
        if self._unwrapper is None or not self._are_equal(held.translate(None, _SPACE), found.translate(None, _SPACE)):
            return False
        one, other = _close_up(held[:MOST_CLOSED_UP]), _close_up(found[:MOST_CLOSED_UP])
        size = min(len(one), len(other))
        return one[:size] == other[:size]

    def _are_equal(self, held: bytes, found: bytes) -> bool:
        if self._is_exact:
            return self._has_ended and held == found
        size = min(len(held), len(found))
        if held[:size] != found[:size] or (self.is_past and self._has_ended and len(found) < len(held)):
            return False
        is_message_whole = self._has_ended if len(found) == size else self._is_all_held
        follows = held[size : size + 1] or found[size : size + 1]
        return self._unwrapper is None or not is_message_whole or follows in (b"", b",")


def _close_up(text: bytes) -> bytes:
    """Remove the white space around the commas between JSON messages, and the white space at the end of the text.  The
    last message may be cut off."""
    out = bytearray()
    depth = at = position = 0
    while (token := (_INNER if depth else _OUTER).search(text, position)) is not None:
        position = token.end()
        first = token[0][:1]
        if first == b'"':
            rest = _REST_OF_STRING.match(text, position)
            position = len(text) if rest is None else rest.end()
        elif first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        else:
            out += text[at : token.start()]
            at = position
            if text[at : at + 1] not in (b"", b",") and not out.endswith(b","):
                # No comma is next to this white space, so the text is not valid JSON.  Keep a space between the two
                # parts.
                out += b" "
    return bytes(out + text[at:])


async def receive(
    stream: Stream,
    flight: Flight,
    head: StreamHead,
    reply: Reply,
    store: TapeStore,
    inflow: Inflow,
    on_bytes: Callable[[int], None],
) -> None:
    """Announce the head and add the whole body to the flight, at the pace that `inflow` allows.

    `on_bytes` is called with the size of each piece.  Raises UpstreamBroken if the body does not fit the stream's type,
    and TailMovedBack if the body belongs to another stream.  Raises another GatewayError if the body cannot be read to
    its end.  An example is UpstreamCongested: other requests need the connection, and the flight's readers take no
    data.
    """
    start, end = flight.start, head.next_offset
    is_json = stream.tape.is_json
    unwrapper = ArrayUnwrapper() if is_json else None
    # If the Content-Length shows that the body is too large to be stored, the body must not evict other bytes.
    is_too_large = (reply.head.content_length or 0) - 2 * is_json > flight.keep_bytes
    arriving = ArrivingCharge(store, stream)

    def make_way() -> None:
        """Called when other requests need the connection.  If the cache has room for the body, read the body into the
        cache.  Otherwise give the flight up."""
        flight.spools = flight.charged_bytes > 0 and arriving.has_room
        flight.must_go = not flight.spools
        flight.go_on()

    reply.on_reclaim = make_way
    flight.announce(head, reply.head.content_length, is_verbatim=not is_json)
    try:
        async for chunk in reply.chunks():
            on_bytes(len(chunk))
            inner = chunk if unwrapper is None else unwrapper.feed(chunk)
            if inner:
                stream.tape.check(start, end, has_bytes=True)
                spooled = flight.spools
                if is_too_large or flight.is_passing or flight.size + len(inner) > flight.keep_bytes:
                    arriving.release()
                    flight.spools = False
                elif not arriving.grow(len(inner)):
                    flight.spools = False
                if spooled and not flight.spools:
                    # The cache has no room for the rest, and other requests still need the connection.
                    flight.must_go = True
                flight.charged_bytes = arriving.size
                flight.add_chunk(inner)
                if flight.is_over:
                    # The body has proved too large to be kept, and no reader is left.
                    return
                if not inflow.count_bytes(len(chunk)):
                    await inflow.renewed()
                if not (flight.is_wanted or flight.spools):
                    await in_task()
                    if not flight.must_go:
                        await reply.hold(flight.until_wanted())
                    if flight.must_go:
                        raise UpstreamCongested
        if unwrapper is not None and (rest := unwrapper.finish()):
            stream.tape.check(start, end, has_bytes=True)
            flight.add_chunk(rest)
    except NotAnArray as error:
        raise UpstreamBroken from error
    finally:
        arriving.release()
        flight.charged_bytes = 0


class FlightBodies:
    """Processes the bodies of flights."""

    def __init__(self, store: TapeStore, clock: Clock, metrics: MetricsRecorder) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self.inflow = Inflow()
        """Limits the number of bytes that the bodies add to memory."""

    async def compare(self, fetch: SentFetch, head: StreamHead, reply: Reply) -> Effect | None:
        """Process the reply to a confirmation: announce its head, compare its bytes with the bytes in memory, and land
        the flight.

        If the bytes differ, the bytes in memory are dropped.  Returns the effect on the stream's live readers.  Raises
        UpstreamBroken, TailMovedBack or another GatewayError.
        """
        stream, flight, route = fetch.stream, fetch.flight, fetch.route
        reusable_s = stream.reusable_s(route.trust_s)
        confirmed_at = flight.as_of
        comparison = Comparison(stream.tape, flight.start, head.next_offset, reply.head.content_length)
        flight.announce(head)
        is_short = (reply.head.content_length or 0) <= 2 * MOST_COMPARED
        try:
            async for chunk in reply.chunks():
                self._count(fetch, len(chunk))
                comparison.feed(chunk)
                if comparison.is_over and (not is_short or flight.fetched > 2 * MOST_COMPARED):
                    break
            else:
                comparison.finish()
        except NotAnArray as error:
            raise UpstreamBroken from error
        effect = None
        if not is_overtaken(stream, flight):
            if not comparison.has_held:
                # The bytes were dropped from memory after the request was sent, so the reply confirms nothing.
                pass
            elif comparison.agrees:
                if comparison.is_past and flight.start == START:
                    # After a trim of the stream, the start sentinel means a later position.  The compared bytes are too
                    # few to show that the reply begins at the tape's first position.  So this confirmation expires
                    # soon.  A fetch will extend the tape to the end of this reply, and then the next confirmation can
                    # compare more bytes.
                    confirmed_at = min(confirmed_at, self._clock.now() - reusable_s + LEAST_GAP_S)
                stream.confirm(flight.start, confirmed_at)
            else:
                # The origin has trimmed the bytes, or they belong to another stream.
                self._store.forget_bytes(stream)
                stream.may_be_another()
                effect = Effect.REFOLLOW
        flight.land()
        return effect

    async def store(self, fetch: SentFetch, head: StreamHead, reply: Reply) -> None:
        """Announce the head of the reply, store its body as it arrives, and land the flight.  Raises like `compare`."""
        flight = fetch.flight

        def received(size: int) -> None:
            self._count(fetch, size)

        await receive(fetch.stream, flight, head, reply, self._store, self.inflow, received)
        if not flight.is_over:
            self._keep(fetch, head, flight.kept, flight.size)
            flight.land()

    # -- a body that has arrived

    def take_body(self, fetch: SentFetch, head: StreamHead, reply: Reply) -> list[bytes]:
        """Return a body that has arrived, as non-empty pieces.

        Raises UpstreamBroken if the body does not fit the stream's type, TailMovedBack if the body belongs to another
        stream, or another GatewayError.
        """
        stream, flight = fetch.stream, fetch.flight
        # After this, the request is not repeated, even if its reply proves to be broken.
        flight.head, flight.expected = head, reply.head.content_length
        # One call takes the whole body, because all of it has arrived.
        body = reply.take() or b""
        pieces = [body] if body else []
        if stream.tape.is_json:
            unwrapper = ArrayUnwrapper()
            try:
                pieces = [piece for piece in (unwrapper.feed(body), unwrapper.finish()) if piece]
            except NotAnArray as error:
                raise UpstreamBroken from error
        if pieces:
            stream.tape.check(flight.start, head.next_offset, has_bytes=True)
        self._count(fetch, len(body))
        return pieces

    def _count(self, fetch: SentFetch, size: int) -> None:
        """Count body bytes of a reply."""
        fetch.flight.fetched += size
        # The metric counts only bytes from origins, so do not count bytes from another worker.
        if fetch.facts.said is None:
            self._metrics.upstream_bytes(size, _CATCHUP, fetch.route.name)

    def store_body(self, fetch: SentFetch, head: StreamHead, body: list[bytes]) -> None:
        """Store a body that has arrived, and land the flight."""
        size = sum(map(len, body))
        self._keep(fetch, head, body, size)
        fetch.flight.land_whole(body, size)

    def _keep(self, fetch: SentFetch, head: StreamHead, body: list[bytes], size: int) -> None:
        """Store the whole body of a flight, if it may be kept."""
        stream, flight = fetch.stream, fetch.flight
        start, end = flight.start, head.next_offset
        if start == NOW:
            if size:
                raise UpstreamBroken
        elif flight.is_kept and size <= flight.keep_bytes and not is_overtaken(stream, flight):
            if flight.is_passing and not stream.has_topic:
                # The cache plan excludes the stream, so the bytes are sent only to the flight's readers.
                self._store.unstored_bytes += size
                return
            self._store.store(stream, start, end, body, self._clock.now())
            stream.confirm(start, flight.as_of)
            if head.is_stale:
                stream.own_record().stale_stored_at = self._clock.now()
            if size and stream.tape.knows_after(start):
                flight.shared = stream.shared_bytes()
