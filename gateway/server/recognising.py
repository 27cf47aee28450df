"""Requests over HTTP/1.1 that are answered without being parsed, because their meaning is known.

A remembered answer (`remembered`) is sent to the same bytes, and to requests of the same meaning.  A live request joins
the readers of its stream (`joins`).
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Final

from gateway.protocol.client_address import Proxies
from gateway.server.joins import Join
from gateway.server.reading import ReadingConnection
from gateway.server.remembered import RememberedAnswer
from gateway.server.request_keys import Section

_log = logging.getLogger("gateway.server")

_GET: Final = ord("G")


class RecognisingConnection(ReadingConnection):
    """The part of a client's connection that looks its requests up."""

    __slots__ = ("_repeats", "client", "proxies")

    _repeats: bool
    """Whether the latest known request equals the alias of its answer byte for byte."""
    client: str | None
    """The client's address without its port; None if the connection has none, as at a Unix socket."""
    proxies: Proxies | None
    scheme: str = "http"
    versions = frozenset({"1.0", "1.1"})

    @abstractmethod
    def _receive(self, data: bytes) -> None:
        """Take input that is not a remembered request, or has to wait."""

    def data_received(self, data: bytes) -> None:
        if self._is_busy:
            self._receive(data)
        elif (use := self.use) is not None and use.banned_until and self._clients.is_banned(use):
            self.abort()
        elif not self._answers_known(data):
            self._receive(data)

    def _answers_known(self, data: bytes) -> bool:
        """Answer a known request without parsing it; False if it is not known.  No other request may precede it."""
        # A hit on an idle connection is the hottest path, where every attribute lookup counts.
        clients, transport = self._clients, self.transport
        if (find := clients.find) is None or transport is None:
            return False
        # If clients send different bytes, hashing a whole request would cost as much as the rest of the lookup.
        if self._repeats and (exact := clients.exact.get(data)) is not None:
            answer, section = exact
        elif data[0] != _GET or (found := find(data)) is None:
            # Only GETs are known.
            return False
        else:
            known, section = found
            if type(known) is not RememberedAnswer:
                self._repeats = clients.repeats = False
                return isinstance(known, Join) and self._joins(known, section)
            answer = known
            self._repeats = clients.repeats = known.alias == data
        began = self._now()
        if (
            began >= answer.until or answer.version is not answer.stream.version or clients.refusals
        ) and not clients.is_current(answer, data):
            return False
        if (clients.limits_hits or answer.is_guarded) and not clients.admits(answer, self, section):
            return False
        self._is_active = True
        answer.hits += 1
        if (joined := answer.joined) is not None:
            transport.write(joined)
        else:
            self._shared_bytes, self._shared = answer.body_bytes, answer.shared
            transport.writelines(answer.pieces)
        if (on_hit := clients.on_hit) is not None:
            on_hit(answer, self, data, section, began)
        return True

    def _joins(self, join: Join, section: Section) -> bool:
        """Begin a live answer to a request with this header section; False if the request has to be parsed."""
        self._is_busy = self._is_active = True
        try:
            if self._clients.join(self, join, section):
                return True
        except Exception:
            _log.exception("unhandled error")
            self.abort()
            return True
        self._is_busy = False
        return False
