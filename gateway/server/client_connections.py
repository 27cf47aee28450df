"""The client connections of the process: the registry, the state that connections share, and the drain (the orderly end
of all connections).

`Clients` owns the set of open connections, the timer wheel with their deadlines, the spare parsers, and the counts of
refused connections.  A new connection calls `admit_connection`, and a connection that has ended calls `unregister`.

Each client network may have at most its share of the connections.  While `max_connections` are open, a new connection
may displace an idle one.  The idle connection must belong to a network with the most connections, and the new
connection's network must have fewer.  A trusted proxy has many clients, so its connections belong to no network.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from enum import StrEnum
from functools import partial
from typing import Final, Protocol

from gateway.aio.batches import Batch
from gateway.aio.clock import DETACHED, Clock, SystemClock
from gateway.aio.pace import Pace
from gateway.aio.signal import Signal
from gateway.aio.timers import Wheel
from gateway.config.limits import LimitsConfig
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.known import HeaderCache
from gateway.http.request_parser import RequestParser
from gateway.limits.accounts import Account, Accounts, Room, client_nets
from gateway.limits.memory import Holding
from gateway.limits.slow_clients import keeps_up
from gateway.protocol.client_address import Proxies
from gateway.server.header_meanings import Known, Presented, Section, Sections
from gateway.server.joins import Join, Joins
from gateway.server.query_credentials import Beginning, VerdictKey
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.server.request import Channel, Handler, Peer
from gateway.server.sockets import ARRIVALS_PER_LOOK
from gateway.server.turns import Turns
from gateway.telemetry.metrics import MetricsRecorder

_log = logging.getLogger("gateway.server")

_ABORT_S: Final = 1.0
_LATE_TURNS: Final = 32
"""After a deadline, a late event loop gets this many turns to process events that were due before the deadline."""
LATE_BODY_S: Final = 0.002
"""Request bodies that miss a time limit (late bodies) fail one after another, with pauses of this many seconds.  Each
failure takes about a millisecond, in which the gateway writes the answer, ends the origin's connection, and starts the
next waiting upload.
"""
LATE_BODIES_S: Final = 2.0
"""All bodies that became late at the same time fail within this many seconds."""
_SPARE_PARSERS: Final = 16
_FLOOD_LINES_S: Final = 10.0
"""The least seconds between two log lines about floods."""
_MOST_LOOKED_AT: Final = 1_000
"""The most connections that one search for an idle connection examines."""


class ConnectionRefusal(StrEnum):
    """The reason why the gateway closes a connection without an answer, on arrival or between two requests."""

    LIMIT = "limit"
    """`max_connections` connections are open."""
    CLIENT = "client"
    """The client's network already has all connections of its share."""
    BANNED = "banned"
    """The gateway has refused too many requests of the client's network (`client_refusals_per_s`)."""
    DISPLACED = "displaced"
    """The connection was idle and gave its place to a network with fewer connections."""
    LEAVING = "leaving"
    """The gateway is stopping, and the deadline of its drain has passed."""
    MEMORY = "memory"
    """The process is close to `memory_max_bytes`."""
    PROXY = "proxy"
    """The PROXY header is missing, malformed, or comes from a peer that is not trusted."""


class ClientConnection(Protocol):
    """One open connection, as the registry uses it."""

    use: Account | None
    """The account of the client's network, set by `Clients`; None if the connection belongs to no network."""

    @property
    def client(self) -> str | None:
        """The client's address without its port; None without an address, as at a Unix socket."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are trusted; None without trusted proxies."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered or waits to be read, and no bytes are left to send."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that this process holds because the client has not read them."""

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that this client alone costs: unread answers, unfinished heads, and waiting bodies."""

    def holdings(self) -> Iterable[Holding]:
        """Buffers held for the client that other clients may share."""

    def guarded_channels(self) -> Iterable[Channel]:
        """Return the channels whose live reads were authorised, and therefore have a verdict."""

    def shed(self) -> None:
        """Cut the connection because the process is short of memory."""

    def begin_leaving(self) -> None:
        """Called when a drain begins: ask the client to use another connection, if the protocol can ask without an
        answer.  Requests that arrive meanwhile are answered."""

    def close_if_idle(self) -> None:
        """Called at the deadline of a drain: close the connection properly, unless it is in use."""

    def drop(self) -> None:
        """Cut the connection at once."""


class Flushing(Protocol):
    """A connection that collects its output."""

    def flush(self) -> None:
        """Write the collected output."""


class Clients:
    """The registry of open connections, and the state that the connections share."""

    def __init__(
        self,
        handler: Handler,
        limits: LimitsConfig,
        remembered: RememberedAnswers | None,
        clock: Clock,
        metrics: MetricsRecorder,
        joins: Joins | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        """`remembered` has the remembered answers; None if no answer is remembered.  `accounts` counts
        connections by network.  If it is None, the registry makes its own accounts.
        """
        nets = client_nets(limits.client_v4_bits, limits.client_v6_bits)
        self.accounts = Accounts(nets, clock.now) if accounts is None else accounts
        self.handler = handler
        self.use_limits(limits)
        self.remembered = remembered
        self.metrics = metrics
        self.on_bad_request: Callable[[int, int, ClientConnection], None] = lambda status, sent_bytes, connection: None
        """Called for each request that cannot be parsed, with the status and the body's size in bytes."""
        self.speaks_s2 = False
        """Whether all routes are S2 routes, so that a request without a route is refused in S2's format."""
        self.joins = Joins(Sections([])) if joins is None else joins
        self.exact: Mapping[bytes, tuple[RememberedAnswer, Section]] = (
            remembered.exact if remembered is not None else {}
        )
        """Remembered answers and header sections by the exact bytes of a request.  A look-up here is faster than
        `find`."""
        self.find: Callable[[bytes, Beginning | None], tuple[Known | Presented, Section] | None] | None = None
        """Finds the remembered answer or the join (remembered live request) for a request, and the request's header
        section.  The last argument is the beginning of the client's latest request line, if it is kept.  The function
        itself is None if every request goes to the handler."""
        self.refusals: Sized = ()
        """The streams for which the origin has recently refused a reader.  Usually empty."""
        self.limits_hits = False
        """Whether rate limits apply, so that every remembered answer needs a call of `admits`."""
        self.admits: Callable[[RememberedAnswer, Peer, Section, VerdictKey | None], bool] = lambda *_: True
        """Returns whether a remembered answer may be sent to this peer.  Called if the answer needs authorisation or if
        `limits_hits` is set.  The last argument is the key of the verdict on the peer's request."""
        self.join: Callable[[Channel, Join, Section, Presented | None], bool] = lambda *_: False
        """Begins a live answer without parsing the request.  Returns False if the request has to be parsed.  The last
        argument is set if the request's line and credentials differ from those of the remembered request."""
        self.is_current: Callable[[RememberedAnswer, bytes], bool] = (
            remembered.is_current if remembered is not None else lambda answer, request: False
        )
        """Returns whether a remembered answer is valid for a request now."""
        self.now = clock.now
        self.wall = clock.wall
        self.loop = asyncio.get_running_loop()
        # Deadlines use the machine's clock, even if streams use another clock, as in tests.
        self.wheel = Wheel(SystemClock())
        self.sent_bytes = 0
        """Body bytes of live answers that the metrics do not include yet."""
        self.on_hit: Callable[[RememberedAnswer, Peer, bytes, Section, float, VerdictKey | None], None] | None = None
        """Called after each remembered answer if hits are logged or traced one by one.  The arguments are the answer,
        its connection, the request, its header section, and the time of the request in monotonic seconds."""
        self.proxies: Proxies | None = None
        """The proxies whose forwarding headers are trusted; None without trusted proxies."""
        self.repeats = True
        """Whether the latest request that had a remembered answer consisted of exactly the bytes under which `exact`
        holds the answer.  If so, new connections look in `exact` before they call `find`."""
        self.is_draining = False
        """Whether HTTP/1.1 answers announce the end of their connection, and HTTP/2 connections get a GOAWAY."""
        self._is_closing = False
        """Whether new connections are refused because the drain's deadline has passed."""
        self.is_short_of_memory = False
        """Whether new connections are refused because the process is close to its memory limit."""
        self.unadmitted = 0
        """The number of connections that are accepted but have not called `admit_connection`.  Each connection adds
        itself."""
        self.latest_peer: str | None = None
        """The address of the latest connection's peer.  A new connection with an equal address keeps this string
        instead of its own copy, so connections of one proxy take less memory."""
        self._arrivals = 0
        self.on_arrivals: Callable[[], None] = lambda: None
        """Called once for every `ARRIVALS_PER_LOOK` admitted connections."""
        self._open: OrderedDict[ClientConnection, None] = OrderedDict()
        self.refused: Counter[ConnectionRefusal] = Counter()
        """The number of refused connections for each reason."""
        self.http2 = SessionCounts()
        """Counters of the HTTP/2 connections."""
        self.turns = Turns(
            partial(self.loop.call_soon, context=DETACHED), partial(self.loop.call_later, context=DETACHED)
        )
        """Spreads the starts of requests over turns of the event loop."""
        self.late_bodies = Pace(SystemClock(), LATE_BODY_S, LATE_BODIES_S)
        """Spreads the failures of bodies that have not arrived in time."""
        self.steps: Batch[Callable[[], object]] = Batch(lambda step: step())
        """Spreads the steps that end connections over several turns of the event loop."""
        self.header_cache = HeaderCache()
        self._parsers: list[RequestParser] = []
        self.new_parser: Callable[[], RequestParser] = RequestParser
        """Parsers for reuse, each between two messages."""
        self._unflushed: list[Flushing] = []
        """Connections with output to write at the end of the loop's turn."""
        self._emptied = Signal()
        self._flood_logged_at = -_FLOOD_LINES_S

    def __repr__(self) -> str:
        return f"<Clients {len(self._open)} open, {self.refused.total()} refused{', draining' * self.is_draining}>"

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(self._open)

    def use_limits(self, limits: LimitsConfig) -> None:
        self.limits = limits
        # Copy the fields, because fields of a pydantic model are slow to reach.
        self.high_water = limits.send_buffer_bytes // 2
        """Half of the bound on unsent bytes.  The kernel's send buffer has the other half."""
        self.header_timeout_s = limits.client_header_timeout_s
        self._most_connections = limits.max_connections
        self._most_connections_of_one = limits.most_client_connections

    def admit_connection(self, client: ClientConnection) -> bool:
        """Register a new connection.  Returns False if the connection must close, because there are too many
        connections or the gateway refuses new ones.
        """
        self.unadmitted -= 1
        # Count refused connections too, because other connections wait behind them in the listeners' queues.
        self._arrivals += 1
        if self._arrivals >= ARRIVALS_PER_LOOK:
            self._arrivals = 0
            self.on_arrivals()
        address, proxies = client.client, client.proxies
        # A trusted proxy's connection belongs to no network, because its requests come from many clients.
        is_proxy = proxies is not None and proxies.trusts(address)
        account = self.accounts.open_account(self.accounts.net_of(address)) if not is_proxy else None
        refusal = self._refusal(account)
        if refusal is not None:
            self.refused[refusal] += 1
            self._emptied.fire()
            return False
        self.accounts.connect(account)
        client.use = account
        self._open[client] = None
        return True

    def _refusal(self, account: Account | None) -> ConnectionRefusal | None:
        """Return the reason to refuse a new connection of this network; None to accept it.  May displace another
        connection to make room.
        """
        if self._is_closing:
            return ConnectionRefusal.LEAVING
        if self.is_short_of_memory:
            return ConnectionRefusal.MEMORY
        if account is not None and account.is_banned(self.now()):
            return ConnectionRefusal.BANNED
        match self.accounts.room_for(account, self._most_connections, self._most_connections_of_one):
            case Room.FREE:
                return None
            case Room.NO_SHARE:
                return ConnectionRefusal.CLIENT
            case Room.BY_DISPLACING:
                return None if self._displace() else ConnectionRefusal.LIMIT
            case Room.NONE:
                return ConnectionRefusal.LIMIT

    def is_banned(self, account: Account) -> bool:
        """Return whether the network of an open connection is banned.  The caller then closes the connection without an
        answer."""
        if not account.is_banned(self.now()):
            return False
        self.refused[ConnectionRefusal.BANNED] += 1
        return True

    def _displace(self) -> bool:
        """Close an idle connection of a network that has the most connections.  Returns False if a bounded search finds
        no such connection."""
        most = self.accounts.most_connections
        for _ in range(min(len(self._open), _MOST_LOOKED_AT)):
            client = next(iter(self._open))
            # Move the connection to the end, so that the next search begins with another connection.
            self._open.move_to_end(client)
            if client.use is not None and client.use.connections == most and client.is_idle:
                self._uncount(client)
                self.refused[ConnectionRefusal.DISPLACED] += 1
                client.drop()
                return True
        return False

    def replace(self, client: ClientConnection, successor: ClientConnection) -> None:
        """Register `successor` in place of `client`, because the connection changes its protocol."""
        self._open.pop(client, None)
        self._open[successor] = None
        successor.use, client.use = client.use, None

    def unregister(self, client: ClientConnection) -> None:
        """Unregister a connection.  Must be called when the connection and all its answers have ended."""
        if client in self._open:
            del self._open[client]
            self.accounts.end_connection()
        if client.use is not None:
            self._uncount(client)
        if not self._open:
            self._emptied.fire()

    def _uncount(self, client: ClientConnection) -> None:
        use, client.use = client.use, None
        if use is not None:
            self.accounts.disconnect(use)

    async def emptied(self, timeout_s: float) -> bool:
        """Wait until no connection is left, for at most `timeout_s` seconds.  Returns whether none is left.

        If the event loop is late, events that were due within this time are processed before the return.
        """
        # Wait for the loop's next turn, in which it makes the protocol of a connection that has just been accepted.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(timeout_s):
                while self._open or self.unadmitted:
                    await self._emptied.wait()
        except TimeoutError:
            # Events that were due in time may need further turns: the loop runs timers before it reads, and the wheel
            # ends only some live reads in one turn.
            for _ in range(_LATE_TURNS):
                await asyncio.sleep(0)
        return not (self._open or self.unadmitted)

    def note_flood(self, use: Account | None, kind: str) -> None:
        """Log that an HTTP/2 connection ends because of too many frames of this kind, at most every 10 s.

        `use` is the account of the connection's network.
        """
        now = self.now()
        if now - self._flood_logged_at >= _FLOOD_LINES_S:
            self._flood_logged_at = now
            net = use.net if use is not None else "a trusted proxy"
            _log.warning("an HTTP/2 connection of %s ends: too many frames of the kind %s", net, kind)

    def flush_soon(self, connection: Flushing) -> None:
        """Flush the connection at the end of the loop's turn.  All connections share one scheduled call."""
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            try:
                connection.flush()
            except Exception:
                _log.exception("unhandled error")

    def parser(self) -> RequestParser:
        """Return a parser that has read nothing.  The caller gives the parser back with `spare` when the parser is
        between two messages."""
        return self._parsers.pop() if self._parsers else self.new_parser()

    def spare(self, parser: RequestParser) -> None:
        """Take a parser back for reuse.  Most connections wait for a request and need no parser."""
        if len(self._parsers) < _SPARE_PARSERS:
            self._parsers.append(parser)
        else:
            parser.close()

    def unsent(self) -> tuple[int, int]:
        """Return the bytes that clients have not read: the sum over all connections, and the largest number of one
        connection.
        """
        sizes = [client.unsent_bytes for client in self._open]
        return sum(sizes), max(sizes, default=0)

    def keeps_up(self, taken_bytes: int) -> bool:
        """Return whether a client that has read `taken_bytes` within the write timeout is fast enough.  If not, count
        the client as slow in the metrics.  The caller must then drop the client.
        """
        limits = self.limits
        if keeps_up(taken_bytes, limits.client_write_timeout_s, limits.client_min_rate):
            return True
        self.metrics.slow_consumer()
        if taken_bytes > 0:
            self.metrics.client_limited("client_min_rate")
        return False

    def count(self) -> None:
        """Report to the metrics the figures that are counted in batches."""
        sent, self.sent_bytes = self.sent_bytes, 0
        self.metrics.downstream_bytes(sent)
        if self.remembered is not None:
            self.remembered.count()

    def begin_drain(self) -> None:
        """Make clients move to other processes without a failed request.

        Idle connections stay open.  A close would race with the client's next request, and a client may not repeat a
        failed POST (RFC 9112 section 9.3.1).  The next answer announces the end of its connection instead.
        """
        self.is_draining = True
        for client in list(self._open):
            client.begin_leaving()

    def undo_drain(self) -> None:
        """End the drain.  Connections that have been asked to leave still leave."""
        self.is_draining = False

    def close_idle(self) -> None:
        """Admit no more connections, and close the idle connections.  Busy connections close after their answers."""
        self._is_closing = True
        for client in list(self._open):
            client.begin_leaving()
            client.close_if_idle()

    async def abort(self) -> None:
        """Cut every remaining connection, and wait until all are closed."""
        for client in list(self._open):
            client.drop()
        await self.emptied(_ABORT_S)
