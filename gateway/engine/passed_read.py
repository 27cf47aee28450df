"""Passed reads: a worker passes the owner's answer on to its client, and does not record the answer.

With several workers, the first read of a stream at a worker that does not own the stream is often the only read there.
If this worker stored the reply and made the answer from the stored bytes, it would do the owner's work a second time.
Therefore, the owner answers the first read in the form that clients get, and this worker passes the bytes on.  From the
second read on, a worker stores the stream's bytes (`gateway.engine.owner_upstream`), so that hits need no request to
the owner.

A passed answer is as current as an answer of the owner to its own clients.  The owner gets the request after the client
has sent it, and first applies the writes of all workers (`gateway.engine.others_writes`).  This worker has nothing in
memory that could contradict the answer.

If the owner dies, the read continues as a shared fetch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from gateway.aio.batches import Backlog, Batch
from gateway.engine.owner_upstream import HopUpstream, failure_of, is_lost
from gateway.engine.read import Read, Uncacheable
from gateway.engine.read_runner import ReadRunner
from gateway.errors import GatewayError, UpstreamBroken
from gateway.http.reply_parser import Interim
from gateway.protocol.worker_headers import HOP_OUTCOME, HopSaid
from gateway.upstream.flight import NotShareable
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Handed, OriginCall, Shared
from gateway.upstream.reply import PendingRequest, Reply

_PLACES: Final = 1 << 14
"""The most streams with a passed answer that a worker remembers."""


class PassedReads:
    """Begins passed reads.  Remembers the streams that had a passed read, because only the first read of a stream is
    passed."""

    def __init__(self, hop: HopUpstream, runner: ReadRunner, backlog: Backlog) -> None:
        self.hop = hop
        self._runner = runner
        self._latest = array("q", bytes(8 * _PLACES))
        """Hashes of the streams that had a passed read.  Several streams share one element of this array.  The element
        has the hash of the latest of these streams."""
        self.answered: Final[Batch[PassedRead]] = Batch(PassedRead.look, backlog=backlog)
        """The reads that have to continue, because their owner has answered or died."""

    def __repr__(self) -> str:
        return f"<PassedReads {self.answered!r}>"

    def begin(self, read: Read) -> PassedRead | None:
        """Return the read to be passed to the owner of its stream; None for any other read.

        Raises TooManyAbsent or TooManyRequests.
        """
        key, route = read.key, read.route
        # Do not pass these reads.  The caching headers of their answers depend on the reader, or on the age of the
        # metadata in this worker's memory.
        if read.is_handed or read.is_private or read.if_none_match is not None or read.max_age_s is not None:
            return None
        if route.guard is not None and route.guard.absence_times is not None:
            # The 404 for an absent stream must look like a refusal of the guard, and take the same time.
            return None
        if (owner := self.hop.owner_for(Shared(key, Handed.NO))) is None:
            return None
        mark = hash(key)
        if self._latest[place := mark % _PLACES] == mark or not self._runner.is_first(read):
            return None
        self._runner.admit_first(read)
        self._latest[place] = mark
        return PassedRead(self, read, owner)


class PassedRead:
    """A read that the owner of its stream answers.  This object is the `Requester` that receives the owner's answer.

    The caller must call `wait`.  Then it must call either `give_up` or `take_reply`.
    """

    __slots__ = ("_error", "_owner", "_passed", "_pending", "_ready", "_reply", "read")

    def __init__(self, passed: PassedReads, read: Read, owner: int) -> None:
        self._passed = passed
        self.read = read
        self._owner = owner
        self._pending: PendingRequest | None = None
        self._ready: Callable[[], object] | None = None
        self._reply: Reply | None = None
        self._error: GatewayError | None = None

    def wait(self, ready: Callable[[], object]) -> None:
        """Ask the owner, and call `ready` when the owner has answered or died.  `ready` is never called before this
        method has returned."""
        self._ready = ready
        read, hop = self.read, self._passed.hop
        source = read.source
        call = OriginCall("GET", source.url(read.start), source.headers, source.bounds, client=source.client)
        hop.asks(self)
        pending = hop.ask_owner(self, call, Shared(read.key, Handed.NO), self._owner, read.accepted)
        if self._reply is None and self._error is None:
            # Keep the pending request only until it has an outcome, because it and this object refer to each other.
            self._pending = pending

    def look(self) -> None:
        """Call `ready`, because the owner has answered or died."""
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    def give_up(self) -> None:
        """Give up the read, because its client has left."""
        self._ready = None
        self._withdraw()
        if self._reply is not None:
            self._reply.close()

    def _withdraw(self) -> None:
        self._passed.hop.is_over(self)
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.give_up()

    def take_reply(self) -> Reply | None:
        """Return the owner's answer, to be passed on; None if the owner has died.  The caller must close the answer.

        Raises Uncacheable or a GatewayError.
        """
        reply = self._reply
        if reply is None:
            if self._error is None or is_lost(self._error):
                return None
            raise self._error
        if reply.head.get(HOP_OUTCOME) is not None:
            return reply
        reply.close()
        try:
            said = HopSaid.of(reply.headers)
        except ValueError:
            said = None
        if said is not None and said.failure:
            raise failure_of(said)
        if said is None or said.alone is None:
            raise UpstreamBroken("Another worker's answer is malformed")
        raise Uncacheable(NotShareable(*said.alone))

    # -- called by the client of other workers

    @property
    def sent(self) -> Callable[[], object]:
        """Do nothing: only requests to origins count as sent."""
        return no_op

    def informed(self, interim: Interim) -> None:
        """Ignore an interim reply."""

    def head_arrived(self, reply: Reply) -> None:
        self._pending, self._reply = None, reply
        self._passed.hop.is_over(self)
        self._passed.answered.add(self)

    def failed(self, error: GatewayError) -> None:
        self._pending, self._error = None, error
        self._passed.hop.is_over(self)
        self._passed.answered.add(self)

    def owners_changed(self) -> None:
        """Stop waiting for the asked worker if it no longer owns the stream.  A worker that has died may still have an
        open socket."""
        read = self.read
        if self._pending is not None and self._passed.hop.owner_for(Shared(read.key, Handed.NO)) != self._owner:
            self._withdraw()
            self._passed.answered.add(self)
