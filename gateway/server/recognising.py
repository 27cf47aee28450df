"""HTTP/1.1 requests that are answered without being parsed, because an equal request was answered before.

Such a request is answered by a remembered answer (`remembered.py`).  A live request instead joins the live readers of
its stream by a *join*, which is a remembered live request (`joins.py`).  Requests are equal if they have the same line
and differ only in headers that do not affect the answer.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Final

from gateway.protocol.client_address import Proxies
from gateway.protocol.mode import Mode
from gateway.server.header_meanings import Known, Presented, Section
from gateway.server.joins import Join
from gateway.server.query_credentials import Beginning, beginning_of
from gateway.server.reading import ReadingConnection
from gateway.server.remembered import RememberedAnswer

_log = logging.getLogger("gateway.server")

_GET: Final = ord("G")
# A module name is faster to look up than an enum member.
_LONGPOLL: Final = Mode.LONGPOLL


class RecognisingConnection(ReadingConnection):
    """The part of a client's connection that looks for the remembered answer or the join of a request."""

    __slots__ = ("_beginning", "_repeats", "client", "proxies")

    _repeats: bool
    """Whether requests are first looked up by their exact bytes, which saves time only while clients send equal bytes.
    True if the latest request with a remembered answer or join had exactly the bytes of the remembered request."""
    _beginning: Beginning | None
    """The beginning of the line of the client's latest long-poll with credentials that has joined a group.  If the next
    line begins in the same way, it need not be divided.  None if there is no such line, or no room to keep its
    beginning."""
    client: str | None
    """The client's address without its port; None without an address, as at a Unix socket."""
    proxies: Proxies | None
    scheme: str = "http"
    versions = frozenset({"1.0", "1.1"})
    outlasts_reads = True

    @abstractmethod
    def _receive(self, data: bytes) -> None:
        """Take input that has to be parsed, or has to wait."""

    def data_received(self, data: bytes) -> None:
        if self._is_busy:
            self._receive(data)
        elif (use := self.use) is not None and use.banned_until and self._clients.is_banned(use):
            self.abort()
        elif not self._answers_known(data):
            self._receive(data)

    def _answers_known(self, data: bytes) -> bool:
        """Answer a request without parsing it, if an equal request was answered before.  Return False for any other
        request.  Call this only if all earlier requests are answered.
        """
        # An idle connection's remembered answer is the hottest path of the gateway, where every attribute look-up
        # counts.
        clients, transport = self._clients, self.transport
        if (find := clients.find) is None or transport is None:
            return False
        # A look-up in `exact` has to hash all bytes, which costs as much as `find`.  It saves time only while clients
        # send equal bytes.
        if self._repeats and (exact := clients.exact.get(data)) is not None:
            answer, section = exact
            key = answer.verdict_key
        elif self._repeats and (live := clients.joins.exact.get(data)) is not None and live[1].cost:
            return self._joins(*live)
        elif data[0] != _GET or (found := find(data, self._beginning)) is None:
            # All other requests must be parsed, because only GETs have remembered answers.
            return False
        else:
            known, section = found
            presented = None
            if isinstance(known, Presented):
                presented, known = known, known.known
                key = presented.key
            else:
                key = known.verdict_key
            if type(known) is not RememberedAnswer:
                return self._joins_known(data, known, section, presented)
            answer = known
            self._repeats = clients.repeats = presented is None and answer.alias == data
        began = self._now()
        if (
            began >= answer.until or answer.version is not answer.stream.version or clients.refusals
        ) and not clients.is_current(answer, data):
            return False
        if (clients.limits_hits or answer.is_guarded) and not clients.admits(answer, self, section, key):
            return False
        self._is_active = True
        answer.hits += 1
        if (joined := answer.joined) is not None:
            transport.write(joined)
        else:
            self._shared_bytes, self._shared = answer.body_bytes, answer.shared
            transport.writelines(answer.pieces)
        if (on_hit := clients.on_hit) is not None:
            on_hit(answer, self, data, section, began, key)
        return True

    def _joins_known(self, data: bytes, known: Known, section: Section, presented: Presented | None) -> bool:
        """Begin a live answer if `known` is a remembered live request.  Returns False if the request has to be
        parsed."""
        if not isinstance(known, Join):
            return False
        clients = self._clients
        self._repeats = clients.repeats = presented is None and known.alias == data
        if self._repeats:
            clients.joins.found_by_meaning(known, section)
        has_joined = self._joins(known, section, presented)
        if presented is not None:
            kept = presented.allowed
            if not has_joined and kept is not None and section.allowed.get(presented.key) is not kept:
                # The verdict in `presented`, which is kept with the beginning, may have lapsed.  The section may have a
                # later one.
                presented = presented._replace(allowed=None)
                has_joined = self._joins(known, section, presented)
            # SSE readers need no beginning, because they seldom ask again.
            if has_joined and presented.allowed is None and known.mode is _LONGPOLL:
                self._keep_beginning(presented, section)
        return has_joined

    def _keep_beginning(self, presented: Presented, section: Section) -> None:
        """Keep the beginning of a request line with credentials, so that the client's next line need not be divided."""
        key = presented.key
        found = beginning_of(presented.line, key, section.mark, section.allowed.get(key))
        if found is None and self._beginning is None:
            return
        self._beginning = self._clients.joins.beginnings.keep(found, self._beginning)

    def _joins(self, join: Join, section: Section, presented: Presented | None = None) -> bool:
        """Begin a live answer for a request with this header section.  Returns False if the request has to be parsed.

        `presented` has this request's line and credentials if they differ from those of the remembered request.
        """
        self._is_busy = self._is_active = True
        try:
            if self._clients.join(self, join, section, presented):
                return True
        except Exception:
            _log.exception("unhandled error")
            self.abort()
            return True
        self._is_busy = False
        return False
