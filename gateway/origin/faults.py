"""Fault injection: switches that make the origin misbehave for a test or a load run.

A switch applies to requests of a kind, method and path (each optional), and to the next `times` of them (None: until
`remove`).  All switches that match a request apply to it:

    before the reply    delay, hold (at the request), then status, replace, raw or refuse in place of the reply
    after the reply     hold (at the reply): computed but not sent, so that a test can change the stream meanwhile
    in the body         drop, truncate, stall, each after a number of body bytes; then unsolicited bytes after it

A switch counts its hits.  With `hold` and `stall` a test can wait for requests instead of sleeping:

    gate = origin.faults.hold(kind="catchup")
    ...start n readers...
    await gate.waiting(n)
    gate.release()

This module holds the switches; `delivery` and `handlers` apply them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.origin.replies import Reply
from gateway.origin.requests import Kind


class When(StrEnum):
    """The point at which a request is held."""

    REQUEST = "request"
    """Before the store is read: the reply will show the stream at the time of the release."""
    REPLY = "reply"
    """After the store was read: the reply shows the stream as it was, however late it is sent.  Does not work for SSE,
    whose events are computed when there is data."""


class Gate:
    """Holds requests until a test opens it.  Once open, it stays open."""

    def __init__(self) -> None:
        self.held = 0
        """The number of requests held now."""
        self.passed = 0
        """The number of requests that have passed."""
        self._is_open = False
        self._held: set[asyncio.Future[None]] = set()
        self._reached: dict[asyncio.Future[None], int] = {}

    @property
    def is_open(self) -> bool:
        return self._is_open

    def release(self) -> None:
        """Let all requests pass, now and later."""
        self._is_open = True
        for waiter in tuple(self._held):
            if not waiter.done():
                waiter.set_result(None)

    async def waiting(self, count: int) -> None:
        """Wait until at least `count` requests are held here."""
        if self.held >= count:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reached[reached] = count
        try:
            await reached
        finally:
            self._reached.pop(reached, None)

    async def wait(self) -> None:
        """Wait until the gate opens; called by the origin."""
        if not self._is_open:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._held.add(waiter)
            self.held += 1
            for reached, count in tuple(self._reached.items()):
                if self.held >= count and not reached.done():
                    reached.set_result(None)
            try:
                await waiter
            finally:
                self.held -= 1
                self._held.discard(waiter)
        self.passed += 1


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before replying."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait at a gate."""

    gate: Gate
    when: When


@dataclass(frozen=True, slots=True)
class Replace:
    """Send this reply instead of the protocol's."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Raw:
    """Send these bytes instead of an HTTP reply, then close the connection."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """Reset the connection without a byte."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Reset the connection after this many body bytes."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Close the connection cleanly after this many body bytes, before the body is complete.

    The body is short of its Content-Length, or lacks its last chunk if `is_chunked`.
    """

    after_bytes: int
    is_chunked: bool


@dataclass(frozen=True, slots=True)
class Stall:
    """Stop sending after this many body bytes until a gate opens."""

    after_bytes: int
    gate: Gate


@dataclass(frozen=True, slots=True)
class Unsolicited:
    """Send unrequested bytes after a complete reply, on a connection that stays open."""

    data: bytes


BodyEffect = Drop | Truncate | Stall


class Switch:
    """One active fault: the requests that it matches, how many more it will hit, and how many it has hit."""

    def __init__(
        self,
        effect: object,
        kind: str | None,
        method: str | None,
        path: str | None,
        times: int | None,
        on_remove: Callable[[Switch], None],
    ) -> None:
        self.effect = effect
        self.times = times
        self.hits = 0
        self._kind = kind
        self._method = method
        self._path = path
        self._on_remove = on_remove

    def hit(self, kind: str, method: str, path: str) -> bool:
        """Return whether the fault applies to this request, and count the hit."""
        matches = (
            self._kind in (None, kind)
            and self._method in (None, method)
            and self._path in (None, path)
            and self.times != 0
        )
        if matches:
            self.hits += 1
            if self.times is not None:
                self.times -= 1
        return matches

    def remove(self) -> None:
        """Switch the fault off.  Held and stalled requests continue."""
        self._on_remove(self)
        if isinstance(self.effect, Hold | Stall):
            self.effect.gate.release()


class GatedSwitch(Switch):
    """A fault that holds requests until `release`."""

    @property
    def gate(self) -> Gate:
        assert isinstance(self.effect, Hold | Stall)
        return self.effect.gate

    @property
    def held(self) -> int:
        """The number of requests held now."""
        return self.gate.held

    async def waiting(self, count: int) -> None:
        """Wait until at least `count` requests are held."""
        await self.gate.waiting(count)

    def release(self) -> None:
        """Let all held requests continue, and hold no more."""
        self.remove()


class Faults:
    """The switches of one origin; `kinds` are the kinds of its requests.

    Every setter takes `kind` (see `requests.Kind`), `method` and `path` (raw, as in the request line) to select
    requests, and `times`, the number of requests to hit (None: all until removed).
    """

    def __init__(self, kinds: type[StrEnum] = Kind) -> None:
        self._kinds = kinds
        self._switches: list[Switch] = []

    def __repr__(self) -> str:
        return f"<Faults {len(self._switches)} switches>"

    def delay(
        self,
        delay_s: float,
        *,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
        times: int | None = None,
    ) -> Switch:
        """Reply after `delay_s` seconds by the origin's clock."""
        return self._set(Delay(delay_s), kind, method, path, times)

    def hold(
        self,
        *,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
        times: int | None = None,
        when: When | str = When.REQUEST,
    ) -> GatedSwitch:
        """Hold requests until released, at the point `when`."""
        return self._set_gated(Hold(Gate(), When(when)), kind, method, path, times)

    def status(
        self,
        status: int,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
        headers: Mapping[str, str] | None = None,
        text: str = "injected by a fault switch",
    ) -> Switch:
        """Answer the next `times` requests with a status, one line of text and additional headers."""
        body = b"" if status in (204, 304) else f"{text}\n".encode()
        plain = {"Content-Type": "text/plain; charset=utf-8"} if body else {}
        return self._set(Replace(Reply(status, {**plain, **(headers or {})}, body)), kind, method, path, times)

    def replace(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Send this reply, which is valid HTTP but may violate the protocol."""
        return self._set(Replace(Reply(status, dict(headers), body)), kind, method, path, times)

    def raw(
        self,
        data: bytes,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Send these bytes instead of a reply, then close the connection.  They need not be valid HTTP."""
        return self._set(Raw(data), kind, method, path, times)

    def unsolicited(
        self,
        data: bytes,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Send these bytes after a complete reply, on a connection that the client may reuse."""
        return self._set(Unsolicited(data), kind, method, path, times)

    def refuse(
        self,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Reset the connection instead of replying.  (To refuse connections, stop the origin.)"""
        return self._set(Refuse(), kind, method, path, times)

    def drop(
        self,
        after_bytes: int,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Reset the connection after this many body bytes, counted from the beginning of the response."""
        return self._set(Drop(after_bytes), kind, method, path, times)

    def truncate(
        self,
        after_bytes: int,
        *,
        is_chunked: bool = False,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """End the body early by closing the connection: short of Content-Length, or without the last chunk."""
        return self._set(Truncate(after_bytes, is_chunked), kind, method, path, times)

    def stall(
        self,
        after_bytes: int,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> GatedSwitch:
        """Stop sending after this many body bytes, until released."""
        return self._set_gated(Stall(after_bytes, Gate()), kind, method, path, times)

    def clear(self) -> None:
        """Remove every switch.  Held and stalled requests continue."""
        for switch in tuple(self._switches):
            switch.remove()

    def take(self, kind: str, method: str, path: str) -> list[object]:
        """Return the effects on this request, in the order in which the switches were set; called by the origin."""
        effects = [switch.effect for switch in self._switches if switch.hit(kind, method, path)]
        # An exhausted switch may be dropped here: the test still has a reference to it and can release its gate.
        self._switches = [switch for switch in self._switches if switch.times != 0]
        return effects

    def _set(self, effect: object, kind: str | None, method: str | None, path: str | None, times: int | None) -> Switch:
        switch = Switch(effect, self._kinds(kind) if kind else None, method, path, times, self._removed)
        self._switches.append(switch)
        return switch

    def _set_gated(
        self, effect: Hold | Stall, kind: str | None, method: str | None, path: str | None, times: int | None
    ) -> GatedSwitch:
        switch = GatedSwitch(effect, self._kinds(kind) if kind else None, method, path, times, self._removed)
        self._switches.append(switch)
        return switch

    def _removed(self, switch: Switch) -> None:
        if switch in self._switches:
            self._switches.remove(switch)
