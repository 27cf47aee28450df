"""Requests over HTTP/1.1 that are answered without being parsed, because their meaning is known.

A remembered answer (`remembered`) is sent to the same bytes, and to requests of the same meaning.  A live request joins
the readers of its stream (`joins`).
"""

from __future__ import annotations

import logging
from abc import abstractmethod

from gateway.protocol.client_address import Proxies
from gateway.server.clients import Clients, peer_of
from gateway.server.handling import Handling
from gateway.server.joins import Join
from gateway.server.reading import ReadingConnection
from gateway.server.remembered import RememberedAnswer
from gateway.server.request_keys import Section

_log = logging.getLogger("gateway.server")


class RecognisingConnection(ReadingConnection, Handling):
    """The part of a client's connection that looks its requests up."""

    __slots__ = ("_client", "_exact", "_is_local")

    scheme: str = "http"
    versions = frozenset({"1.0", "1.1"})

    def __init__(self, clients: Clients, client: str | None, *, is_local: bool) -> None:
        super().__init__(clients)
        self._exact = clients.exact
        self._client = client
        self._is_local = is_local

    @property
    def client(self) -> str | None:
        """The address that the connection comes from, without its port; None if it has none."""
        if self._client is None and self.transport is not None:
            self._client = peer_of(self.transport)
        return self._client

    @property
    def proxies(self) -> Proxies | None:
        return self._clients.proxies if not self._is_local else None

    @abstractmethod
    def _receive(self, data: bytes) -> None:
        """Take input that is not a remembered request, or has to wait."""

    def data_received(self, data: bytes) -> None:
        # The hottest path, where every attribute lookup counts: a hit on an idle connection.
        answer = self._exact.get(data)
        if (
            answer is None
            or self._is_busy
            or (began := self._now()) >= answer.until
            or (answer.version is not answer.stream.version and not answer.is_unchanged())
            or self.transport is None
        ):
            self._receive(data)
            return
        self._is_active = True
        answer.hits += 1
        if answer.joined is not None:
            self.transport.write(answer.joined)
        else:
            self._shared_bytes, self._shared = answer.body_bytes, answer.shared
            self.transport.writelines(answer.pieces)
        if self._clients.on_hit is not None:
            self._clients.on_hit(answer, self, data, None, began)

    def _answers_known(self, data: bytes) -> bool:
        """Answer a request that nothing stands before without parsing it; False if it is not known."""
        clients = self._clients
        if clients.find is None or (found := clients.find(data)) is None:
            return False
        known, section = found
        if isinstance(known, Join):
            self._is_busy = self._is_active = True
            try:
                if clients.join(self, known, section):
                    return True
            except Exception:
                _log.exception("unhandled error")
                self.abort()
                return True
            self._is_busy = False
        elif (
            isinstance(known, RememberedAnswer)
            and clients.is_current(known, data)
            and (clients.admits is None or clients.admits(known, self, section))
        ):
            self._is_active = True
            self._serve(known, data, section)
            return True
        return False

    def _serve(self, answer: RememberedAnswer, request: bytes, section: Section) -> None:
        assert self.transport is not None
        on_hit = self._clients.on_hit
        began = 0.0 if on_hit is None else self._now()
        answer.hits += 1
        if answer.joined is not None:
            self.transport.write(answer.joined)
        else:
            self._shared_bytes, self._shared = answer.body_bytes, answer.shared
            self.transport.writelines(answer.pieces)
        if on_hit is not None:
            on_hit(answer, self, request, section, began)
