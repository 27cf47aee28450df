"""The arrival of a flight's body: from the origin's reply into the flight, at the pace of its readers.

While the body arrives, the cache's budget is charged for it, as far as it is to be stored and fits.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.aio.eager import in_task
from gateway.errors import UpstreamBroken, UpstreamCongested
from gateway.limits.inflow import Inflow
from gateway.protocol.json_array import ArrayUnwrapper, NotAnArray
from gateway.tape.arriving import Arriving
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.upstream.flight import Flight, StreamHead
from gateway.upstream.reply import Reply


def take_whole(stream: Stream, flight: Flight, head: StreamHead, reply: Reply) -> int:
    """Announce the head and add the body, which has arrived; return its size in bytes.  It is stored in the same call,
    so nothing is charged for it before.

    Raises UpstreamBroken if the body is not of the stream's type, TailMovedBack if it is another stream's, or another
    GatewayError.
    """
    is_json = stream.tape.is_json
    flight.announce(head, reply.content_length, is_verbatim=not is_json)
    pieces: list[bytes] = []
    while piece := reply.take():
        pieces.append(piece)
    body = b"".join(pieces)
    unwrapper = ArrayUnwrapper() if is_json else None
    try:
        for inner in (body,) if unwrapper is None else (unwrapper.feed(body), unwrapper.finish()):
            if inner:
                stream.tape.check(flight.start, head.next_offset, has_bytes=True)
                flight.add(inner)
    except NotAnArray as error:
        raise UpstreamBroken from error
    return len(body)


async def receive(
    stream: Stream,
    flight: Flight,
    head: StreamHead,
    reply: Reply,
    store: TapeStore,
    inflow: Inflow,
    on_bytes: Callable[[int], None],
) -> None:
    """Announce the head and add the whole body to the flight, at the pace that `inflow` allows; `on_bytes` is called
    with the size of each piece.

    Raises UpstreamBroken if the body is not of the stream's type, TailMovedBack if it is another stream's, or another
    GatewayError, as UpstreamCongested if its connection is needed for others while its readers take nothing.
    """
    start, end = flight.start, head.next_offset
    is_json = stream.tape.is_json
    unwrapper = ArrayUnwrapper() if is_json else None
    # It must not evict others for the bytes that come before it proves too large to be stored.
    is_too_large = (reply.content_length or 0) - 2 * is_json > flight.keep_bytes
    arriving = Arriving(store, stream)

    def make_way() -> None:
        """Others wait for the connection: read on as long as the cache has room for the body, or give up."""
        flight.spools = flight.charged_bytes > 0 and arriving.has_room
        flight.must_go = not flight.spools
        flight.room.fire()

    reply.on_reclaim = make_way
    flight.announce(head, reply.content_length, is_verbatim=not is_json)
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
                    # There was room for less than was read on: others still wait for the connection.
                    flight.must_go = True
                flight.charged_bytes = arriving.size
                flight.add(inner)
                if flight.is_over:
                    # It has proved too large to be kept, and no reader is left.
                    return
                if not inflow.take(len(chunk)):
                    await inflow.renewed()
                if not (flight.is_wanted or flight.spools):
                    await in_task()
                    if not flight.must_go:
                        await reply.hold(flight.until_wanted())
                    if flight.must_go:
                        raise UpstreamCongested
        if unwrapper is not None and (rest := unwrapper.finish()):
            stream.tape.check(start, end, has_bytes=True)
            flight.add(rest)
    except NotAnArray as error:
        raise UpstreamBroken from error
    finally:
        arriving.release()
        flight.charged_bytes = 0
