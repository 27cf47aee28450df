"""Sends shared requests to the worker that owns their stream, instead of to the origin.

The reply to a *shared* request may be sent to all readers of a tape.  With several workers, each stream has one owner
(`gateway.workers.worker_owners`).  Only the owner requests the stream's bytes from the origin, and only the owner has a
live request for the stream there.  The other workers send their shared requests to the owner's Unix socket.  Writes,
and requests for one client alone, are sent directly to the origin.

If the owner dies, the requests to it fail.  The asking worker waits a moment until the supervisor has noticed this.  It
then asks the next owner, which may be the asking worker itself.  The headers in `gateway.protocol.worker_headers` show
whether both workers have the same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.aio.clock import Clock, Timer
from gateway.errors import (
    GatewayError,
    ShortOfMemory,
    UpstreamBroken,
    UpstreamCongested,
    UpstreamTimeout,
    UpstreamUnavailable,
    UpstreamUnreachable,
)
from gateway.http.outgoing import RenderedHeaders
from gateway.http.reply_parser import Interim
from gateway.protocol.coding import AcceptedCodings
from gateway.protocol.sharing import Group, StreamKey
from gateway.protocol.worker_headers import HOP, HopAsk, HopSaid
from gateway.tape.stream import Stream
from gateway.upstream.client import HopClient
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Handed, OriginCall, Shared, split_url
from gateway.upstream.reply import PendingRequest, Reply, Requester, Upstream, answer_to

WATCH_S: Final = 0.1
"""Seconds between two checks whether the owners have changed."""
_FAILURES: Final[dict[str, type[GatewayError]]] = {
    kind.__name__: kind
    for kind in (ShortOfMemory, UpstreamBroken, UpstreamCongested, UpstreamTimeout, UpstreamUnreachable)
}
"""The errors that an owner can report, by name.  Any other name means that the origin is not available."""
_AGAIN_S: Final = 0.01
_MOST_WAITS: Final = 30
"""The number of times that a failed request waits `_AGAIN_S`, so that the supervisor can notice the owner's death."""
LEAST_FOLLOWED: Final = 1_024
"""When a worker remembers this many live requests, it forgets the requests of ended topics.  It repeats this when it
remembers twice as many requests as it kept, but not below this number."""
_UNSETTLED_S: Final = 1.0
"""For this many seconds after a change of the owners, workers may have different views of the owners."""


class WatchedTopic(Protocol):
    """The topic of a stream: its live readers."""

    @property
    def stream(self) -> Stream: ...


class Following(Protocol):
    """The streams that this worker follows, of one protocol (Durable Streams or S2)."""

    def topics(self) -> Iterable[WatchedTopic]:
        """Return the topics."""

    def restart(self, stream: Stream) -> None:
        """End a stream's live request, and send a new one."""


class Asking(Protocol):
    """A request that waits for the answer of another worker."""

    def owners_changed(self) -> None:
        """Called when streams may have other owners."""


class StreamOwners(Protocol):
    """The present owners of streams, in the view of this process: `gateway.workers.worker_owners.Owners`, for
    example."""

    @property
    def epoch(self) -> int:
        """A number that changes when the owners may have changed."""

    def other_owner(self, cell: int) -> int | None:
        """Return the number of the process that owns the paths of this cell; None if this process owns them.

        A cell is the set of all paths with equal hashes."""


class WritesElsewhere(Protocol):
    """The writes of other processes: `gateway.engine.others_writes.OthersWrites`, for example."""

    @property
    def index_of(self) -> Callable[[Group], int]:
        """Returns the cell of a path (`StreamOwners.other_owner`)."""

    def look(self, group: Group) -> None:
        """Apply the writes of other processes to the path."""


class HopUpstream:
    """The `Upstream` of shared requests.  `by_hop` sends requests to other workers, `upstream` to origins.

    In a fleet, `upstream` is another `HopUpstream`.  If this worker is the owner among the workers, that upstream sends
    the request to the member that owns the stream.
    """

    unsettled_s = _UNSETTLED_S
    """For this number of seconds after a change of the owners, this worker does not pass requests from other workers on
    to another owner."""

    def __init__(
        self, upstream: Upstream, by_hop: HopClient, others: WritesElsewhere, owners: StreamOwners, clock: Clock
    ) -> None:
        self._upstream = upstream
        self._beyond = upstream if isinstance(upstream, HopUpstream) else None
        """`upstream`, if it sends requests to other members; None if it sends them to the origin."""
        self.by_hop = by_hop
        self._others = others
        self.owners = owners
        self.clock = clock
        self._epoch = owners.epoch
        self._changed_at = clock.now()
        self._asking: set[Asking] = set()
        """The requests that wait for the answer of another worker."""
        self._followed: dict[StreamKey, tuple[int | None, Shared]] = {}
        """For each tape (a stream's bytes in memory): the owner that got the latest live request, and how this request
        is shared.  None as the owner means that the origin got the request."""
        self._most_followed = LEAST_FOLLOWED
        self._live: tuple[Following, ...] = ()
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<HopUpstream {len(self._asking)} asking, {len(self._followed)} followed, {self.owners!r}>"

    def ask(self, requester: Requester, call: OriginCall) -> PendingRequest:
        """Send one request to the owner of its stream, or to the origin if this worker is the owner."""
        shared = call.shared
        if shared is None:
            return self._upstream.ask(requester, call)
        self._others.look(shared.key.group)
        asking = _Asking(self, requester, call, shared)
        asking.begin()
        return asking

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply.  `on_sent` is called each time the request is sent to an
        origin."""
        return await answer_to(self.ask, call, on_sent)

    def is_owner(self, key: StreamKey) -> bool:
        """Return whether this worker asks the origin for the stream."""
        beyond = self._beyond
        return self.owner_for(Shared(key, Handed.NO)) is None and (beyond is None or beyond.is_owner(key))

    def follows_elsewhere(self, key: StreamKey) -> bool:
        """Return whether the latest live request for this tape was sent to another worker."""
        followed, beyond = self._followed.get(key), self._beyond
        is_elsewhere = followed is not None and followed[0] is not None
        return is_elsewhere or (beyond is not None and beyond.follows_elsewhere(key))

    def is_misplaced(self, key: StreamKey, handed: Handed = Handed.NO) -> bool:
        """Return whether the present owner of this tape is another process than the one that got the latest live
        request.  `handed` states from which kind of process the reader's request comes."""
        followed, beyond = self._followed.get(key), self._beyond
        is_misplaced = followed is not None and followed[0] != self.owner_for(Shared(key, handed))
        return is_misplaced or (beyond is not None and beyond.is_misplaced(key, handed))

    def claim(self, key: StreamKey, handed: Handed = Handed.NO) -> None:
        """Record that the latest live request for this tape now serves a reader whose request comes from `handed`."""
        if (followed := self._followed.get(key)) is not None:
            self._followed[key] = followed[0], Shared(key, handed)
        if self._beyond is not None:
            self._beyond.claim(key, handed)

    # -- for the requests

    def owner_for(self, shared: Shared) -> int | None:
        """Return the number of the process to ask, which is the slot of a worker; None if the origin is to be asked."""
        self.notice_change()
        if shared.handed is Handed.BY_MEMBER or (
            shared.handed is Handed.BY_WORKER and self.clock.now() < self._changed_at + self.unsettled_s
        ):
            # The sender of the request regards this worker as the owner, so do not pass the request on.
            return None
        return self.owners.other_owner(self._others.index_of(shared.key.group))

    def ask_owner(
        self,
        requester: Requester,
        call: OriginCall,
        shared: Shared,
        owner: int,
        accepted: AcceptedCodings | None = None,
    ) -> PendingRequest:
        """Send a request to another process.  `accepted` has the same meaning as in `handed`."""
        return self.by_hop.ask(requester, handed(call, shared, worker_url(owner), accepted))

    def said_by(self, reply: Reply, asked_at: float) -> HopSaid | None:
        """Return the owner's statement in its answer to a request that was sent at `asked_at` (monotonic seconds).

        Raises ValueError if the statement is malformed, and UpstreamUnreachable if another server has answered.
        """
        return HopSaid.of(reply.headers)

    def is_lost(self, error: GatewayError) -> bool:
        """Return whether a request has failed because the owner is dead."""
        return is_lost(error)

    def lost(self, owner: int) -> None:
        """Record that a request to this owner has failed twice.

        Nothing is recorded about a worker, because only the supervisor knows which workers serve."""

    def ask_origin(self, requester: Requester, call: OriginCall) -> PendingRequest:
        """Send a request to the origin."""
        return self._upstream.ask(requester, call)

    def body_begins(self, owner: int, reply: Reply) -> None:
        """Record that the body of an owner's answer is passed to the requester.

        Nothing is recorded about a worker, because the kernel ends the connections of a dead worker."""

    def answered(self, shared: Shared) -> None:
        """Apply the writes that other workers have relayed since the request was sent.  Called before a reply is
        recorded."""
        self._others.look(shared.key.group)

    def follows(self, shared: Shared, owner: int | None) -> None:
        """Record that the live request for a tape is sent to this owner; None means the origin."""
        if len(self._followed) >= self._most_followed:
            self._forget_ended(stream.key for _, stream in self._topics())
            self._most_followed = max(LEAST_FOLLOWED, 2 * len(self._followed))
        self._followed[shared.key] = owner, shared
        if owner is not None and self._beyond is not None:
            self._beyond.forget(shared.key)

    def forget(self, key: StreamKey) -> None:
        """Forget the latest live request for a tape, because the next one is sent to another worker."""
        self._followed.pop(key, None)

    def asks(self, asking: Asking) -> None:
        """Record that a request is sent to another worker.  `is_over` must follow."""
        self._asking.add(asking)

    def is_over(self, asking: Asking) -> None:
        """Record that a request no longer waits for the answer of another worker."""
        self._asking.discard(asking)

    # -- changes of the owners

    def notice_change(self) -> bool:
        """Return whether the owners have changed since the last call."""
        if (epoch := self.owners.epoch) == self._epoch:
            return False
        self._epoch, self._changed_at = epoch, self.clock.now()
        return True

    def watch(self, *live: Following) -> None:
        """Check regularly whether the owners have changed, until `close`."""
        seen, is_settled = self._epoch, False
        self._live = live

        def look() -> None:
            nonlocal seen, is_settled
            self._timer = self.clock.call_later(WATCH_S, look)
            self.notice_change()
            is_new, seen = seen != self._epoch, self._epoch
            # Check the live requests again when all workers have the same view of the owners.  Until then, this worker
            # does not pass requests from other workers on.
            was_settled, is_settled = is_settled, self.clock.now() >= self._changed_at + self.unsettled_s
            if is_new or is_settled != was_settled:
                self._owners_changed()

        self._timer = self.clock.call_later(WATCH_S, look)

    def _owners_changed(self) -> None:
        for asking in list(self._asking):
            asking.owners_changed()
        topics = self._topics()
        self._forget_ended(stream.key for _, stream in topics)
        for following, stream in topics:
            if (followed := self._followed.get(stream.key)) is not None:
                owner, shared = followed
                if owner != self.owner_for(shared):
                    following.restart(stream)

    def _topics(self) -> list[tuple[Following, Stream]]:
        return [(following, topic.stream) for following in self._live for topic in following.topics()]

    def _forget_ended(self, keys: Iterable[StreamKey]) -> None:
        """Forget all live requests except those for `keys`, which have topics."""
        for key in self._followed.keys() - set(keys):
            del self._followed[key]

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.by_hop.close()


class _Asking:
    """One shared request.  This object is the `Requester` of each attempt, at other workers and at the origin."""

    __slots__ = (
        "_asked_at",
        "_call",
        "_hop",
        "_is_given_up",
        "_owner",
        "_pending",
        "_requester",
        "_timer",
        "_waits",
        "shared",
    )

    def __init__(self, hop: HopUpstream, requester: Requester, call: OriginCall, shared: Shared) -> None:
        self._hop = hop
        self._requester = requester
        self._call = call
        self.shared = shared
        self._owner: int | None = None
        self._pending: PendingRequest | None = None
        self._timer: Timer | None = None
        self._waits = 0
        self._asked_at = 0.0
        self._is_given_up = False

    def begin(self) -> None:
        """Send the request to the present owner."""
        hop, shared = self._hop, self.shared
        owner = self._owner = hop.owner_for(shared) if self._waits <= _MOST_WAITS else None
        if self._call.is_live:
            hop.follows(shared, owner)
        self._pending = None
        if owner is None:
            pending = hop.ask_origin(self, self._call)
        else:
            hop.asks(self)
            self._asked_at = hop.clock.now()
            pending = hop.ask_owner(self, self._call, shared, owner)
        if self._requester is not None:
            self._pending = pending

    def owners_changed(self) -> None:
        """If the stream has another owner now, send the request to this owner."""
        if self._owner is not None and self._pending is not None and self._hop.owner_for(self.shared) != self._owner:
            pending, self._pending = self._pending, None
            pending.give_up()
            self.begin()

    def give_up(self) -> None:
        self._is_given_up = True
        self._hop.is_over(self)
        if self._timer is not None:
            self._timer.cancel()
        if (pending := self._pending) is not None:
            self._pending = None
            pending.give_up()

    # -- called by the upstream clients

    def told(self, said: HopSaid) -> None:
        """Apply the writes of other workers, and then pass on the statement of a member that owns the stream."""
        self._hop.answered(self.shared)
        if (told := getattr(self._requester, "told", None)) is not None:
            told(said)

    @property
    def sent(self) -> Callable[[], object]:
        # Only requests to origins count as sent.
        return self._requester.sent if self._owner is None else no_op

    def informed(self, interim: Interim) -> None:
        self._requester.informed(interim)

    def head_arrived(self, reply: Reply) -> None:
        self._pending, said = None, None
        if self._owner is not None:
            try:
                reply.said = said = self._hop.said_by(reply, self._asked_at)
            except UpstreamUnreachable as error:
                reply.close()
                self.failed(error)
                return
            except ValueError:
                reply.close()
                self._hop.is_over(self)
                self._requester.failed(UpstreamBroken("Another worker's answer is malformed"))
                return
        self._hop.is_over(self)
        self._hop.answered(self.shared)
        if self._owner is not None:
            told = getattr(self._requester, "told", None)
            if said is not None and told is not None:
                told(said)
            if said is not None and said.failure:
                # The owner has got no answer from the origin.  Fail with the owner's error.
                reply.close()
                self._requester.failed(failure_of(said))
                return
            self._hop.body_begins(self._owner, reply)
        self._requester.head_arrived(reply)

    def failed(self, error: GatewayError) -> None:
        self._pending = None
        if self._owner is None or not self._hop.is_lost(error) or self._is_given_up:
            self._hop.is_over(self)
            self._requester.failed(error)
            return
        self._waits += 1
        if self._waits == 1 and not isinstance(error, UpstreamTimeout):
            # The owner may have cut only this connection.
            self.begin()
            return
        # The owner has probably died.
        self._hop.lost(self._owner)
        self._timer = self._hop.clock.call_later(_AGAIN_S, self._again)

    def _again(self) -> None:
        self._timer = None
        self._waits += 1
        owner = self._hop.owner_for(self.shared)
        if owner == self._owner and self._waits <= _MOST_WAITS:
            self._timer = self._hop.clock.call_later(_AGAIN_S, self._again)
        else:
            self.begin()


def worker_url(slot: int) -> str:
    """Return the URL of a worker of this gateway for a `HopClient`."""
    return f"http://worker-{slot}:1"


def failure_of(said: HopSaid) -> GatewayError:
    """Return the error that the owner has reported because it has no answer."""
    return _FAILURES.get(said.failure, UpstreamUnavailable)()


def is_lost(error: GatewayError) -> bool:
    """Return whether a request to the owner has failed because the owner is dead.  An owner that sends an invalid
    answer is not dead."""
    return isinstance(error, UpstreamUnavailable | UpstreamUnreachable)


def handed(call: OriginCall, shared: Shared, to: str, accepted: AcceptedCodings | None = None) -> OriginCall:
    """Return the call in the form in which another process gets it.  `to` is the URL of that process
    (`http://host:port`).

    `accepted` is given if the answer is passed on to a client (`HopAsk.accepted`)."""
    key, client, headers = shared.key, call.client, call.headers
    partition = key.partition
    net = client if isinstance(client, str) else next(iter(client.nets), "")
    asked = HopAsk(partition.route, partition.readers, key.query, net, shared.facts_suffice, accepted).rendered()
    if not isinstance(headers, RenderedHeaders):
        headers = RenderedHeaders.of(headers)
    return call._replace(
        url=to + split_url(call.url)[1],
        headers=headers.with_field(HOP, asked),
        client="",
        shared=None,
    )
