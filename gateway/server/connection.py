"""One client's HTTP/1.1 connection, which answers its requests in order.

A request whose answer is remembered is answered without being parsed (`recognising.py`).  Every other request is parsed
and goes to the request handler.  A live answer has no task: the stream's reader writes it to the connection
(`gateway.server.live`).

The connection is a single object.  Each further object would cost some 40 bytes for every idle SSE reader, and a
look-up for every answer.  The connection's code is split into several classes, each in a file of its own.  Each class
owns the attributes in its `__slots__` and uses the classes above it in this table:

| class                  | file             | owns                                                                     |
|------------------------|------------------|--------------------------------------------------------------------------|
| PhasedChannel          | `phase.py`       | The phase, the request, its task or live answer, the live read's account |
| Handling               | `handling.py`    | No attributes: it runs the handler, and ends an answer that fails        |
| TimedConnection        | `timeouts.py`    | The transport, the deadline, and how fast the client reads               |
| WritingConnection      | `writing.py`     | The framing of the answer                                                |
| ReadingConnection      | `reading.py`     | The input: unparsed, parsed and pending, and the body being received     |
| RecognisingConnection  | `recognising.py` | The client's address and latest query: it answers remembered requests    |
| Connection             | `connection.py`  | No attributes: it begins requests in order, and ends the connection      |

HTTP/2 streams are built on the first two classes as well (`gateway.server.http2.channel`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final, cast

from gateway.errors import BadRequest
from gateway.http.framing import State
from gateway.http.http2 import frames
from gateway.http.outgoing import response_head
from gateway.http.request_parser import Event, Mark, RequestHead
from gateway.limits.memory import Holding
from gateway.server.client_connections import Clients
from gateway.server.handling import REFUSALS, refusal
from gateway.server.http2.connection import Http2Connection
from gateway.server.phase import Phase
from gateway.server.reading import NO_EVENTS
from gateway.server.recognising import RecognisingConnection
from gateway.server.request import Channel, Handler, Request
from gateway.server.request_body import RequestBody
from gateway.server.sockets import peer_of
from gateway.server.timeouts import CLOSE_NOTIFY, PROBE_S

_log = logging.getLogger("gateway.server")

_LINGER_S: Final = 1.0
_PREFACE: Final = frames.PREFACE

# Module names are faster to look up than enum members, and every request needs these members.
_ANSWERING, _IDLE, _LINGERING, _LIVE = Phase.ANSWERING, Phase.IDLE, Phase.LINGERING, Phase.LIVE
_END: Final = Mark.END
_HEAD: Final = State.HEAD


class Connection(RecognisingConnection):
    """One client's HTTP/1.1 connection.  It owns its transport."""

    __slots__ = ()

    def __init__(self, clients: Clients, client: str | None = None, *, is_local: bool = False) -> None:
        """`client` is the client's address from a PROXY header; None without such a header.  `is_local` means that the
        peer is the client itself, even if the peer's address is in the list of trusted proxies."""
        super().__init__(clients)
        clients.unadmitted += 1
        self._repeats = clients.repeats
        self._beginning = None
        self.client = client
        self.proxies = None if is_local else clients.proxies

    def __repr__(self) -> str:
        """The phase, and the objects that the connection holds."""
        held = {
            "parser": self._parser is not None,
            "task": self._task is not None,
            "request": self._request is not None,
            "body": self._body is not None,
            "whole body": self._request is not None and self._request.body is not None and self._request.body.is_whole,
            "pending": bool(self._pending),
        }
        names = [name for name, is_held in held.items() if is_held]
        return f"<{type(self).__name__} {', '.join([self.phase.name, *names])}>"

    @property
    def has_pending(self) -> bool:
        """Whether a parsed request waits for an earlier request."""
        return bool(self._pending)

    def holdings(self) -> Iterator[Holding]:
        """Return the buffers that the connection shares with other connections or with the cache."""
        if self.transport is None or self.cut_reason is not None:
            return
        if self._shared is not None:
            yield Holding(self._shared, min(self._shared_bytes, self.transport.get_write_buffer_size()))
        if self._live is not None:
            yield from self._live.holdings()
        elif self._request is not None and self._request.held is not None:
            yield from self._request.held.holdings()

    def guarded_channels(self) -> tuple[Channel, ...]:
        """Return the connection itself if its live read has a verdict."""
        return (cast("Channel", self),) if self.verdict is not None else ()

    # -- called by asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        clients = self._clients
        if self.client is None:
            if (peer := peer_of(transport)) != clients.latest_peer:
                clients.latest_peer = peer
            self.client = clients.latest_peer
        if not clients.admit_connection(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(clients.high_water)
        # This is the first deadline, so there is no earlier deadline to clear.
        self._tick = clients.wheel.add(self, clients.header_timeout_s)

    def _receive(self, data: bytes) -> None:
        clients = self._clients
        if self.phase is _LINGERING or self.transport is None or self.transport.is_closing():
            return
        is_first = not self._is_busy
        if self._is_waiting:
            self._unparsed += data
            self._limit_unparsed()
            return
        if is_first:
            self._candidate = None
        self._unparsed += data
        if not self._is_active and self._quiet_checks < 0 and self._unparsed[:1] == _PREFACE[:1] and self._is_http2():
            return
        if not is_first:
            self._read(has_turn=False)
        elif clients.turns.must_wait(self):
            self._is_waiting = self._is_busy = True
        else:
            self._begin()

    def take_turn(self) -> None:
        """Begin the waiting request, or read the waiting input.  Called when the connection's turn comes
        (`gateway.server.turns`)."""
        is_waiting, self._is_waiting = self._is_waiting, False
        if self.transport is None or self.transport.is_closing():
            return
        stands_alone = is_waiting and self.phase is _IDLE and self._parser is None and not self._pending
        if stands_alone and not self.is_full:
            self._begin_late()
        else:
            self._take_pending()
            self._read()
        if self._has_ended:
            self._end_input()

    def _begin_late(self) -> None:
        """Take the input of a request that waited for its turn.  Look for a remembered answer again, because an equal
        request of another client may have been answered while this request waited.
        """
        data, self._unparsed = self._unparsed, b""
        # Clear the flag before the answer, because the code at the end of the answer may take more input.
        self._is_busy = False
        if not self._answers_known(data):
            self._unparsed, self._is_busy = data, True
            self._begin()
        elif self._is_paused:
            self._end_pause()

    def _begin(self) -> None:
        """Take input whose first request does not wait for an earlier request."""
        data = self._unparsed
        if (events := self._clients.header_cache.lookup(data)) is None:
            self._read(is_first=True)
        else:
            self._unparsed = b""
            if self._is_paused:
                # Reading was paused, because the request arrived in parts while it waited for its turn.
                self._end_pause()
            self._take_known(events, data)

    def _take_known(self, events: list[Event], data: bytes) -> None:
        """Answer a request that arrived in one piece, and whose header section has been parsed before."""
        self._is_active = True
        head: RequestHead = events[0]  # type: ignore[assignment]  # `lookup` begins with a head.
        if len(events) == 2:
            if head.method == "GET":
                self._may_remember(events, data)
            body = None
        else:
            body = RequestBody.arrived(self, events[1])  # type: ignore[arg-type]
        self._is_taking = True
        self._answer(head, body)
        self._is_taking = False
        self._update_deadline()

    def _is_http2(self) -> bool:
        """Return whether the first bytes are the preface of HTTP/2, or the beginning of the preface (RFC 9113 section
        3.3).  Hand the connection over to HTTP/2 once the preface is whole.
        """
        data, transport = self._unparsed, self.transport
        assert transport is not None
        if len(data) < len(_PREFACE) and _PREFACE.startswith(data):
            self._is_busy = True
            self._set_head_deadline()
            return True
        if self.scheme != "http" or not data.startswith(_PREFACE):
            return False
        self._clear_deadline()
        self.transport = None
        Http2Connection(self._clients, self.client, is_expected=False, is_local=self.proxies is None).take_over(
            self, transport, data
        )
        return True

    def eof_received(self) -> bool:
        """Called when the client has half-closed: answer its requests, then close.  Return False, which closes the
        transport, if all requests are answered."""
        is_asking = self.phase not in (_IDLE, _LINGERING)
        if self.transport is None or self.transport.is_closing() or not (is_asking or self._pending or self._unparsed):
            return False
        is_live = self.phase is _LIVE or self.live_use is not None
        if is_live and self.transport.get_extra_info(CLOSE_NOTIFY, False):
            return False
        self._has_ended = True
        if not self.is_full:
            self._set_deadline(PROBE_S)
        self._end_input()
        return True

    def pause_writing(self) -> None:
        self.is_full = self._is_busy = True
        if self.phase is _LIVE:
            # Do not close a slow reader here.  When its client has read, the reader continues from the tape, the
            # stream's bytes in memory.
            self._clients.metrics.slow_consumer(is_closed=False)
        self._begin_window()

    def resume_writing(self) -> None:
        self.is_full = False
        self._end_window()
        self._set_idle_deadline()
        self._has_room()
        if self.phase is _ANSWERING:
            return
        if self._live is not None:
            self._live.pump()
        elif self.phase is _IDLE:
            self._resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self.transport = None
        # Let the handler write the rest of its answer, which is discarded.  The transport will not call resume_writing
        # any more.
        self.is_full = False
        self._pending = NO_EVENTS
        self._unparsed = b""
        parser, self._parser = self._parser, None
        if parser is not None:
            parser.close()
        body, self._body = self._body, None
        if body is not None:
            body.fail(BadRequest("Request body ended early"))
        if self._room is not None:
            self._has_room(ConnectionResetError("the client has left"))
        self._clients.joins.beginnings.drop(self._beginning)
        self._beginning = None
        if not self._leave_live():
            self._client_left()
        if (renewing := self.renewing) is not None:
            self.renewing = None
            renewing.end_read(self)
        self._leave_if_gone()

    # -- requests in order

    def _take_pending(self) -> None:
        """Handle parsed events while the connection's phase allows."""
        pending, turns, has_begun = self._pending, self._clients.turns, False
        self._is_taking = True
        while pending and self.transport is not None and not self.transport.is_closing():
            if self._body is not None:
                self._take_body(self._body, pending)
                continue
            event = pending[0]
            if not isinstance(event, RequestHead) and event not in REFUSALS:
                # Drop the event, because it belongs to a body that is no longer read.
                pending.popleft()
            elif self.phase is not _IDLE or self.is_full or (has_begun and turns.must_wait(self)):
                break
            elif isinstance(event, RequestHead):
                pending.popleft()
                has_begun = True
                self._begin_request(event)
            else:
                self._refuse(*REFUSALS[event])
                break
        self._is_taking = False
        self._update_deadline()

    def _update_deadline(self) -> None:
        """Set `_is_busy`, and the deadline for the client's next action."""
        transport, parser = self.transport, self._parser
        if transport is None or transport.is_closing():
            return
        self._is_busy = (
            self.phase is not _IDLE or parser is not None or bool(self._pending) or bool(self._unparsed) or self.is_full
        )
        if self.phase is _IDLE and parser is not None and parser.state is _HEAD:
            self._set_head_deadline()
        elif self.has_partial_head:
            self.has_partial_head = False
            self._set_idle_deadline()

    def _begin_request(self, head: RequestHead) -> None:
        pending = self._pending
        if pending and pending[0] is _END:
            pending.popleft()
            body = self._body = None
        else:
            body = self._body = RequestBody(self, head.length)
            # Feed all input that has arrived, so that a small body is whole before the handler waits for the body.
            self._take_body(body, pending)
        self._answer(head, body)

    def _answer(self, head: RequestHead, body: RequestBody | None) -> None:
        if self._shared_bytes and self.transport is not None:
            self._shared_bytes = min(self._shared_bytes, self.transport.get_write_buffer_size())
        self._begin_handling(Request(self, head, body))

    def _begin_handling(self, request: Request) -> None:
        self.enter_phase(_ANSWERING)
        self._request = request
        if self._clients.is_draining:
            request.keeps_alive = False
        self._run(request, self._clients.handler)

    def _run(self, request: Request, handler: Handler) -> None:
        if (task := self._handle(request, handler)) is not None:
            self._task = task
        elif self.phase is _LIVE:
            self._drop_request()

    def _drop_request(self) -> None:
        """Drop the parts of the request that a live answer does not need.  Otherwise an idle reader would keep these
        parts in memory until the reader leaves.
        """
        self._candidate = None
        if self.sse_route is not None:
            self._request = None

    def _repeated(self, data: bytes | None) -> Request | None:
        if self.transport is None or self.transport.is_closing():
            return None
        if data is None:
            return self._request
        events = self._clients.header_cache.lookup(data)
        if events is None:
            parser = self._clients.parser()
            events = parser.feed(data)
            self._clients.spare(parser)
        return Request(self, cast("RequestHead", events[0]), None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Called when the request's task has ended, or was cancelled before it began."""
        # If the tasks differ, the request's live answer has ended already, and the next request has begun.
        if self._task is task:
            self._task = None
            if self.phase is _LIVE:
                self._drop_request()
            self._leave_if_gone()

    def _leave_if_gone(self) -> None:
        request = self._request
        if self.transport is None and self._task is None and (request is None or not request.is_detached):
            self._request = None
            self._clients.unregister(self)

    def response_written(self, request: Request) -> None:
        """Called when the answer is written: take the next request, or close the connection."""
        self.enter_phase(_IDLE)
        self._request = None
        if self.live_use is not None:
            self.end_live_use()
        if self.transport is None:
            self._leave_if_gone()
            return
        is_whole = request.body is None or request.body.is_whole
        self._body = None
        if self._is_body_full:
            self._resume_reading()
        if not is_whole:
            self._linger()
        elif not request.keeps_alive:
            self._close()
        else:
            self._resume()

    def _resume(self) -> None:
        """Begin the next request, if its bytes have arrived."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._candidate = None
        self._is_active = True
        if not self.is_full and self._tick < 0:
            self._set_idle_deadline()
        if self._is_taking or self._is_waiting:
            # A caller further up the stack, or a later call of `take_turn`, takes the input after this request.
            return
        if not self._pending and self._parser is None and not self._unparsed:
            # The usual case: the client has sent nothing more.
            self._is_busy = self.is_full
            if self._has_ended:
                self._close()
            return
        self._take_pending()
        self._read()

    def _refuse(self, status: int, body: bytes) -> None:
        """Refuse bytes that are not an acceptable request, and close the connection."""
        headers, body = refusal(status, body, is_s2=self._clients.speaks_s2)
        self._clients.on_bad_request(status, len(body), self)
        assert self.transport is not None
        self.transport.write(response_head(status, headers, self._clients.wall(), keeps=False) + body)
        self._linger()

    def _linger(self) -> None:
        """Half-close, and give the client time to read the answer.  Closing a connection with unread input makes the
        kernel send a reset, which can destroy the answer."""
        transport = self.transport
        self._pending = NO_EVENTS
        self._unparsed = b""
        if transport is None or transport.is_closing():
            return
        self.enter_phase(_LINGERING)
        self._is_busy = True
        if transport.can_write_eof():
            transport.write_eof()
        if not self._has_ended:
            transport.resume_reading()
        self._set_deadline(_LINGER_S)
