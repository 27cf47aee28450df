"""The client connections of the process: the registry of open ones, the state they share, and their drain.

`Clients` owns the set of open connections, the wheel with their deadlines, the spare parsers, and the count of refused
connections.  A connection asks to be admitted when it begins, and is unregistered when it has ended.

Each client net may have at most its share of the connections.  While `max_connections` are open, a new connection can
displace an idle one.  The idle one is taken from a net with the most connections, and only if the net of the new
connection has fewer.  A trusted proxy stands for many clients, so its connections belong to no net.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol

from gateway.aio.clock import DETACHED, Clock, SystemClock
from gateway.aio.pace import Pace
from gateway.aio.signal import Signal
from gateway.aio.timers import Wheel
from gateway.config.limits import LimitsConfig
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.known import HeaderCache
from gateway.http.request import RequestParser
from gateway.limits.accounts import Account, Accounts, client_nets
from gateway.limits.memory import Holding
from gateway.limits.slow_clients import keeps_up
from gateway.protocol.client_address import Proxies
from gateway.server.joins import Join, Joins
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.server.request import Answered, Channel, Request
from gateway.server.request_keys import Known, Section, Sections
from gateway.server.sockets import ARRIVALS_PER_LOOK
from gateway.server.turns import Turns
from gateway.telemetry.metrics import MetricsRecorder

_log = logging.getLogger("gateway.server")

_ABORT_S: Final = 1.0
LATE_BODY_S: Final = 0.002
"""Seconds from the failure of one late body to that of the next.  A failure takes about a millisecond of work: the
answer, the end of the connection to the origin, and the beginning of the upload that waits for the slot."""
LATE_BODIES_S: Final = 2.0
"""Seconds within which all bodies fail that became late at the same time."""
_SPARE_PARSERS: Final = 16
_FLOOD_LINES_S: Final = 10.0
"""Seconds between two log lines about floods."""
_MOST_LOOKED_AT: Final = 1_000
"""Bound on the connections that one search for an idle connection to displace looks at."""

Work = Coroutine[Any, Any, Answered | None]
"""The remaining work of answering a request.  Its result is None if the channel is free already, or will be freed
without a task.  Raises ConnectionError if the connection was dropped in the middle of the answer."""
Handler = Callable[[Request], Work | None]
"""Answers a request as far as possible without waiting; returns the remaining work, or None if there is none."""


class ConnectionRefusal(StrEnum):
    """Why an accepted connection is closed: before anything is read, without an answer, or between two answers."""

    LIMIT = "limit"
    """`max_connections` connections are open."""
    CLIENT = "client"
    """The client's network has as many connections as one network may have."""
    BANNED = "banned"
    """The client's network has had too many requests refused (`client_refusals_per_s`)."""
    DISPLACED = "displaced"
    """The connection was idle, its network had the most connections, and a network with fewer needed its place."""
    LEAVING = "leaving"
    """The gateway is stopping, and the deadline of its drain has passed."""
    MEMORY = "memory"
    """The process is close to `memory_max_bytes`."""
    PROXY = "proxy"
    """The PROXY header is missing, malformed, or comes from a peer that is not trusted."""


class ClientConnection(Protocol):
    """One open connection."""

    use: Account | None
    """The account in which the connection is counted, set by `Clients`; None if it belongs to no net."""

    @property
    def client(self) -> str | None:
        """The client's address without its port; None if the connection has none, as at a Unix socket."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are believed; None if no proxy is trusted."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered and nothing is left to be sent."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not read yet, as far as this process holds them."""

    @property
    def held_bytes(self) -> int:
        """Bytes that this client alone makes the process hold: unread answers, unfinished heads, and waiting bodies."""

    def holdings(self) -> Iterable[Holding]:
        """The bytes that the process holds for the client, and perhaps for others as well."""

    def shed(self) -> None:
        """Close the connection at once, because too much memory is held."""

    def begin_leaving(self) -> None:
        """The drain begins: ask the client to move to another connection, if the protocol can do so without an answer.
        Requests that arrive meanwhile are answered."""

    def close_if_idle(self) -> None:
        """The drain's deadline has come: close the connection in order, unless it is being used."""

    def drop(self) -> None:
        """Close the connection at once."""


class Flushing(Protocol):
    """A connection that gathers its output."""

    def flush(self) -> None:
        """Write the output."""


class Peer(Protocol):
    """The remote end of a connection."""

    use: Account | None
    """The account in which the connection is counted; None if it belongs to no net."""

    @property
    def client(self) -> str | None:
        """The client's address without its port, as the socket or the PROXY header gives it; None if there is none."""

    @property
    def scheme(self) -> str:
        """The scheme of the connection, as in a URL."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are believed; None if no proxy is trusted."""


class Clients:
    """The registry of open connections, and what they share.

    `remembered` is None if the fast path is off.
    """

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
        """`accounts` are the accounts in which connections are counted; None for own ones that nothing else shares."""
        nets = client_nets(limits.client_v4_bits, limits.client_v6_bits)
        self.accounts = Accounts(nets, clock.now) if accounts is None else accounts
        self.handler = handler
        self.use_limits(limits)
        self.remembered = remembered
        self.metrics = metrics
        self.on_bad_request: Callable[[int, int, ClientConnection], None] = lambda status, sent_bytes, connection: None
        """Called for each request that could not be parsed, with the status and the body's size in bytes."""
        self.speaks_s2 = False
        """Whether all routes are S2 routes.  If so, a request that names no route is refused in the form of S2."""
        self.joins = Joins(Sections([])) if joins is None else joins
        self.exact: Mapping[bytes, tuple[RememberedAnswer, Section]] = (
            remembered.exact if remembered is not None else {}
        )
        """The results of `find` for requests that are repeated byte for byte."""
        self.find: Callable[[bytes], tuple[Known, Section] | None] | None = None
        """Finds the remembered answer or join of a request, and its header section; None if all requests go to the
        handler."""
        self.refusals: Sized = ()
        """Streams whose origin has recently refused some reader; mostly empty."""
        self.limits_hits = False
        """Whether there are rate limits, so that `admits` must be called for each remembered answer."""
        self.admits: Callable[[RememberedAnswer, Peer, Section], bool] = admit_any
        """Whether a remembered answer may be sent for this header section.  Called if the answer is guarded, or
        `limits_hits` is set."""
        self.join: Callable[[Channel, Join, Section], bool] = refuse_join
        """Begins a live answer to a known request, without parsing it; False if that is impossible."""
        self.is_current: Callable[[RememberedAnswer, bytes], bool] = (
            remembered.is_current if remembered is not None else lambda answer, request: False
        )
        """Whether an answer that was found by the meaning of a request is still valid for it."""
        self.now = clock.now
        self.wall = clock.wall
        self.loop = asyncio.get_running_loop()
        # Deadlines of connections use the machine's clock, whichever clock the streams use.
        self.wheel = Wheel(SystemClock())
        self.sent_bytes = 0
        """Body bytes of live answers that have not been counted in the metrics yet."""
        self.on_hit: Callable[[RememberedAnswer, Peer, bytes, Section, float], None] | None = None
        """Called for each remembered answer that was sent, if hits are logged or traced one by one.  The arguments are
        the answer, its connection, its request and header section, and the time at which the request was read
        (monotonic seconds)."""
        self.proxies: Proxies | None = None
        """The proxies whose forwarding headers are believed; None if no proxy is trusted."""
        self.repeats = True
        """Whether the latest hit that was found by its header section also equalled the remembered request byte for
        byte.  New connections expect the same of their requests."""
        self.is_draining = False
        """Whether each answer over HTTP/1.1 says that its connection closes, and HTTP/2 connections get a GOAWAY."""
        self._is_closing = False
        """Whether no connection is admitted any more."""
        self.is_short_of_memory = False
        """Whether new connections are refused because the process is close to its memory limit."""
        self.unadmitted = 0
        """Connections that have been accepted and not admitted yet.  Each adds itself and calls `admit_connection`."""
        self.latest_peer: str | None = None
        """The address of the latest connection.  Connections of one proxy share this string, which saves memory."""
        self._arrivals = 0
        self.on_arrivals: Callable[[], None] = lambda: None
        """Called after each `ARRIVALS_PER_LOOK` admitted connections."""
        self._open: OrderedDict[ClientConnection, None] = OrderedDict()
        self.refused: Counter[ConnectionRefusal] = Counter()
        """Refused connections by reason."""
        self.http2 = SessionCounts()
        """Counters of the HTTP/2 sessions among the connections."""
        self.turns = Turns(partial(self.loop.call_soon, context=DETACHED))
        """Decides when parsed requests are begun."""
        self.late_bodies = Pace(SystemClock(), LATE_BODY_S, LATE_BODIES_S)
        """Decides when bodies that have not arrived in time fail."""
        self.header_cache = HeaderCache()
        self._parsers: list[RequestParser] = []
        """Parsers that are between two messages, kept for reuse."""
        self._unflushed: list[Flushing] = []
        """Connections with output to be written at the end of the loop's turn."""
        self._emptied = Signal()
        self._flood_logged_at = -_FLOOD_LINES_S

    def __repr__(self) -> str:
        return f"<Clients {len(self._open)} open, {self.refused.total()} refused{', draining' * self.is_draining}>"

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(self._open)

    def use_limits(self, limits: LimitsConfig) -> None:
        """Use these limits from now on."""
        self.limits = limits
        # Copied to attributes, because the fields of a pydantic model are slow to reach.
        self.high_water = limits.send_buffer_bytes // 2
        """Half of the bound on unsent bytes; the listener gives the other half to the kernel's send buffer."""
        self.header_timeout_s = limits.client_header_timeout_s
        self._most_connections = limits.max_connections
        self._most_connections_of_one = limits.most_client_connections

    def admit_connection(self, client: ClientConnection) -> bool:
        """Register a new connection; False if there are too many or the gateway is about to stop."""
        self.unadmitted -= 1
        address, proxies = client.client, client.proxies
        # A trusted proxy's connection belongs to no net, because its requests come from other clients.
        is_proxy = proxies is not None and proxies.trusts(address)
        account = self.accounts.open_account(self.accounts.net_of(address)) if not is_proxy else None
        refusal = self._refusal(account)
        if refusal is not None:
            self.refused[refusal] += 1
            self._emptied.fire()
            return False
        if account is not None:
            self.accounts.connect(account)
            client.use = account
        self._open[client] = None
        self.accounts.open_connections += 1
        self._arrivals += 1
        if self._arrivals >= ARRIVALS_PER_LOOK:
            self._arrivals = 0
            self.on_arrivals()
        return True

    def _refusal(self, account: Account | None) -> ConnectionRefusal | None:
        """Why a new connection of the net is refused; None if it is accepted.  May displace another connection to make
        room."""
        if self._is_closing:
            return ConnectionRefusal.LEAVING
        if self.is_short_of_memory:
            return ConnectionRefusal.MEMORY
        if account is not None and account.is_banned(self.now()):
            return ConnectionRefusal.BANNED
        accounts = self.accounts
        connections = account.connections if account is not None else 0
        has_share = connections < self._most_connections_of_one
        if accounts.open_connections < self._most_connections:
            return None if has_share else ConnectionRefusal.CLIENT
        # A net with as many connections as the largest displaces none: the two would displace each other for ever.
        may_displace = has_share and connections + 1 < accounts.most_connections
        return None if may_displace and self._displace() else ConnectionRefusal.LIMIT

    def is_banned(self, account: Account) -> bool:
        """Whether an open connection's net is banned.  If so, its next request is not answered, and it is closed."""
        if not account.is_banned(self.now()):
            return False
        self.refused[ConnectionRefusal.BANNED] += 1
        return True

    def _displace(self) -> bool:
        """Close an idle connection of a net that has the most connections; False if the search finds none within its
        bound."""
        most = self.accounts.most_connections
        for _ in range(min(len(self._open), _MOST_LOOKED_AT)):
            client = next(iter(self._open))
            # Begin with another connection next time.
            self._open.move_to_end(client)
            if client.use is not None and client.use.connections == most and client.is_idle:
                self._uncount(client)
                self.refused[ConnectionRefusal.DISPLACED] += 1
                client.drop()
                return True
        return False

    def replace(self, client: ClientConnection, successor: ClientConnection) -> None:
        """Put `successor` in the place of `client`: the connection changes its protocol."""
        self._open.pop(client, None)
        self._open[successor] = None
        successor.use, client.use = client.use, None

    def unregister(self, client: ClientConnection) -> None:
        """Unregister a connection that has ended, and whose answers have ended."""
        if client in self._open:
            del self._open[client]
            self.accounts.open_connections -= 1
        if client.use is not None:
            self._uncount(client)
        if not self._open:
            self._emptied.fire()

    def _uncount(self, client: ClientConnection) -> None:
        use, client.use = client.use, None
        if use is not None:
            self.accounts.disconnect(use)

    async def emptied(self, timeout_s: float) -> None:
        """Wait until no connection is left, for at most `timeout_s` seconds."""
        # A connection that the loop has accepted gets its protocol in the loop's next turn.
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open or self.unadmitted:
                    await self._emptied.wait()

    def note_flood(self, use: Account | None, kind: str) -> None:
        """Log that an HTTP/2 connection ends because of too many frames of a kind; at most one line in 10 s.

        `use` is the account in which the connection is counted.
        """
        now = self.now()
        if now - self._flood_logged_at >= _FLOOD_LINES_S:
            self._flood_logged_at = now
            net = use.net if use is not None else "a trusted proxy"
            _log.warning("an HTTP/2 connection of %s ends: too many frames of the kind %s", net, kind)

    def flush_soon(self, connection: Flushing) -> None:
        """Flush the connection at the end of the loop's turn; one call of the loop serves all connections."""
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
        """A parser that has read nothing yet; give it back with `spare` between two messages."""
        return self._parsers.pop() if self._parsers else RequestParser()

    def spare(self, parser: RequestParser) -> None:
        """Take a parser back.  Most connections wait for a request, and need no parser meanwhile."""
        if len(self._parsers) < _SPARE_PARSERS:
            self._parsers.append(parser)
        else:
            parser.close()

    def unsent(self) -> tuple[int, int]:
        """Bytes that clients have not read yet: the sum over all connections, and the largest of one."""
        sizes = [client.unsent_bytes for client in self._open]
        return sum(sizes), max(sizes, default=0)

    def keeps_up(self, taken_bytes: int) -> bool:
        """Whether a client keeps up if it has taken `taken_bytes` of its unread bytes within the write timeout.  If
        not, it is counted as slow, and the caller drops it."""
        limits = self.limits
        if keeps_up(taken_bytes, limits.client_write_timeout_s, limits.client_min_rate):
            return True
        self.metrics.slow_consumer()
        if taken_bytes > 0:
            self.metrics.client_limited("client_min_rate")
        return False

    def count(self) -> None:
        """Report the figures that are counted in batches to the metrics."""
        sent, self.sent_bytes = self.sent_bytes, 0
        self.metrics.downstream_bytes(sent)
        if self.remembered is not None:
            self.remembered.count()

    def begin_drain(self) -> None:
        """Move clients to other processes without failing a request.

        An idle connection stays open: closing it would race with the client's next request, and a client may not repeat
        a POST that fails (RFC 9112 section 9.3.1).  The next answer says that the connection closes.
        """
        self.is_draining = True
        for client in list(self._open):
            client.begin_leaving()

    def undo_drain(self) -> None:
        """Keep connections again, except the connections that were asked to leave already."""
        self.is_draining = False

    def close_idle(self) -> None:
        """Admit no more connections, and close the idle ones; the others close after their answers."""
        self._is_closing = True
        for client in list(self._open):
            client.begin_leaving()
            client.close_if_idle()

    async def abort(self) -> None:
        """Drop every remaining connection and wait for it to close."""
        for client in list(self._open):
            client.drop()
        await self.emptied(_ABORT_S)


def admit_any(answer: RememberedAnswer, peer: Peer, section: Section) -> bool:
    """Admit the request, because there are neither rate limits nor rules."""
    return True


def refuse_join(channel: Channel, join: Join, section: Section) -> bool:
    """Join nothing: live requests go to the handler."""
    return False


def peer_of(transport: asyncio.BaseTransport) -> str | None:
    """The peer's address without its port; None at a Unix socket."""
    peer = transport.get_extra_info("peername")
    return peer[0] if isinstance(peer, tuple) else None
