"""A client: a party, a connection that it keeps as long as it lasts, and a memory of nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.answers import BROKEN, Answer
from tests.chaos.judge import Asked
from tests.chaos.ledger import Entry
from tests.chaos.parties import PARTIES, SHARED
from tests.chaos.run import Run
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import Dropped, Wire

HUNG = "no answer within the time that nothing takes"
LOST = (Dropped, OSError, RuntimeError)
"""A connection that has ended; uvloop raises RuntimeError when it is written to."""


class Hung(Exception):
    """A request was not answered for so long that it never will be."""


class Client:
    """Sends requests one after the other.  `leave` is owed."""

    def __init__(
        self, run: Run, party: str, *, is_far: bool, name: str = "writer", speaks_http_2: bool = False
    ) -> None:
        self._run = run
        self.party = party
        self.is_far = is_far
        """Whether it comes by the bad stretch of network."""
        is_named = run.system.manners.is_personal or run.system.ledger is not None
        self.name = name.replace(" ", "-") if is_named else ""
        """Its User-Agent, which no shared request has; empty if it sends none."""
        self._kind = Http2Wire if speaks_http_2 else Wire
        self._wire: Wire | None = None
        self._epoch = -1

    @property
    def web_origin(self) -> str | None:
        """The web origin of the page that it runs in; None if it is no browser."""
        return PARTIES[self.party].get("Origin")

    async def wire(self) -> Wire:
        """The connection, made anew after each turn of the weather.  Raises OSError."""
        if self._wire is not None and self._epoch != self._run.epoch:
            self.leave()
        if self._wire is None:
            system = self._run.system
            if not self.is_far and system.gateway is None:
                raise ConnectionRefusedError
            url = system.client_side.url if self.is_far else system.running.url
            self._epoch = self._run.epoch
            self._wire = await self._kind.open(url)
        return self._wire

    async def ask(self, asked: Asked, headers: Mapping[str, str] = {}, body: bytes | None = None) -> Answer:
        """Send a request and wait for the whole answer; BROKEN where the connection ends before.  Raises Hung."""
        entry, wire, status = self.entry(asked), None, None
        try:
            wire = await self.wire()
            await self.send(wire, asked, headers, body, entry)
            head = await wire.head(asked.method)
            status = head.status
            answer = Answer(status, head.headers, await wire.body())
        except LOST:
            self.leave()
            return BROKEN
        except TimeoutError:
            self.leave()
            raise Hung from None
        except BaseException:
            self.leave()
            raise
        finally:
            if entry is not None:
                entry.ended(status, wire)
        if answer.status == 500 and "Via" not in answer.headers:
            # What the origin says has passed through the gateway.
            self._run.violate(str(asked), str(status), "the gateway has failed by an error of its own")
        if answer.headers.get("Connection", "").lower() == "close" or (isinstance(wire, Http2Wire) and wire.goaways):
            self.leave()
        return answer

    async def open(self, url: str, receive_bytes: int | None) -> Wire:
        """A further connection, with that much room in the kernel.  Raises OSError."""
        return await self._kind.open(url, receive_bytes)

    def entry(self, asked: Asked) -> Entry | None:
        """The ledger's entry of a request that is sent now; None if there is no ledger.  `Entry.ended` is owed."""
        ledger = self._run.system.ledger
        return ledger.begin(str(asked), asked.method, asked.path, self.name) if ledger is not None else None

    async def send(
        self,
        wire: Wire,
        asked: Asked,
        headers: Mapping[str, str],
        body: bytes | None = None,
        entry: Entry | None = None,
    ) -> None:
        """Send a request on a connection."""
        fields = {**PARTIES[self.party], **headers}
        if self.name:
            fields["User-Agent"] = self.name
        if entry is not None:
            fields |= entry.headers
            if asked.path.startswith(f"{SHARED}/"):
                # The route's readers share, whatever their tokens.
                fields["Authorization"] = f"Bearer {self.party}.{self.name}"
        if asked.path.startswith(f"{SHARED}/") and (token := self._run.system.token(self.name or self.party)):
            fields["Authorization"] = f"Bearer {token}"
        if asked.accepts:
            fields["Accept-Encoding"] = ", ".join(asked.accepts)
        if asked.held:
            fields["If-None-Match"] = ", ".join(one.etag for one in asked.held)
        parts = (("offset", asked.offset), ("live", asked.live), ("cursor", asked.cursor))
        query = "&".join(f"{name}={value}" for name, value in parts if value is not None)
        await wire.ask(asked.path + (f"?{query}" if query else ""), fields, asked.method, body)

    def leave(self) -> None:
        """Drop the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.writer.transport.abort()


async def until_gone(wire: Wire) -> None:
    """Close a connection for good."""
    wire.writer.transport.abort()
    try:
        async with asyncio.timeout(1):
            await wire.writer.wait_closed()
    except (OSError, TimeoutError):
        pass
