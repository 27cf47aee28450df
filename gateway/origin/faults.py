"""Switches for bad luck: what a test or a load run makes the origin do wrong.

A switch is set for requests of a kind, method and path (each optional) and for the next `times` of them (None: until
`remove`).  Every switch that fits a request acts on it:

    before the answer   delay, hold (at the request), then status, replace, raw or refuse in place of the answer
    after the answer    hold (at the reply): computed, not yet sent, so a test can let the stream move on meanwhile
    in the body         drop, truncate, stall, each after a number of body bytes; then unsolicited bytes behind it

A switch counts what it did, and `hold` and `stall` can be waited for, so that tests need no sleep:

    gate = origin.faults.hold(kind="catchup")
    ...start n readers...
    await gate.waiting(n)
    gate.release()

This module decides; `delivery` carries out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.origin.replies import Reply
from gateway.origin.requests import Kind


class When(StrEnum):
    """Where a hold stands."""

    REQUEST = "request"
    """Before the store is asked: the answer will show the stream as it is at the release."""
    REPLY = "reply"
    """After the store was asked: the answer shows the stream as it was, however late it leaves.  Not for live readers,
    whose answer is computed only when there is something to say."""


class Gate:
    """Where requests wait until a test opens it; once open it stays open."""

    def __init__(self) -> None:
        self.held = 0
        """Requests that wait here now."""
        self.passed = 0
        """Requests that have been let through."""
        self._is_open = False
        self._opened: set[asyncio.Future[None]] = set()
        self._counted: dict[asyncio.Future[None], int] = {}

    @property
    def is_open(self) -> bool:
        return self._is_open

    def release(self) -> None:
        """Let everybody through, now and from now on."""
        self._is_open = True
        for waiter in tuple(self._opened):
            if not waiter.done():
                waiter.set_result(None)

    async def waiting(self, count: int) -> None:
        """Wait until at least `count` requests are held here."""
        if self.held >= count:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counted[reached] = count
        try:
            await reached
        finally:
            self._counted.pop(reached, None)

    async def wait(self) -> None:
        """Stand here until the gate opens; for the origin."""
        if not self._is_open:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._opened.add(waiter)
            self.held += 1
            for reached, count in tuple(self._counted.items()):
                if self.held >= count and not reached.done():
                    reached.set_result(None)
            try:
                await waiter
            finally:
                self.held -= 1
                self._opened.discard(waiter)
        self.passed += 1


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before answering."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Stand at a gate."""

    gate: Gate
    when: When


@dataclass(frozen=True, slots=True)
class Instead:
    """Answer this instead of what the protocol says."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Raw:
    """Put these bytes on the connection instead of an HTTP answer, then close it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """Reset the connection without a byte."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Reset the connection after so many body bytes."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Close the connection politely after so many body bytes, with more promised: by Content-Length, or by the missing
    last chunk."""

    after_bytes: int
    is_chunked: bool


@dataclass(frozen=True, slots=True)
class Stall:
    """Stop sending after so many body bytes until a gate opens."""

    after_bytes: int
    gate: Gate


@dataclass(frozen=True, slots=True)
class Unsolicited:
    """Bytes behind a complete answer that nobody asked for, on a connection that stays open."""

    data: bytes


Effect = Delay | Hold | Instead | Raw | Refuse | Drop | Truncate | Stall | Unsolicited
BodyEffect = Drop | Truncate | Stall


class Switch:
    """One fault that has been set: whom it hits, how often it still will, how often it did."""

    def __init__(
        self,
        effect: Effect,
        kind: Kind | None,
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

    def takes(self, kind: Kind, method: str, path: str) -> bool:
        """Whether this request is hit; a hit is used up here."""
        fits = (
            self._kind in (None, kind)
            and self._method in (None, method)
            and self._path in (None, path)
            and self.times != 0
        )
        if fits:
            self.hits += 1
            if self.times is not None:
                self.times -= 1
        return fits

    def remove(self) -> None:
        """Switch off; whoever is held or stalled goes on."""
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
        """Requests that are held now."""
        return self.gate.held

    async def waiting(self, count: int) -> None:
        """Wait until at least `count` requests are held."""
        await self.gate.waiting(count)

    def release(self) -> None:
        """Let everybody go on, and hold nobody any more."""
        self.remove()


class Faults:
    """The switches of one origin.

    Every setter takes `kind` (see `requests.Kind`), `method` and `path` (raw, as in the request line) to narrow it,
    and `times`, the number of requests to hit (None: all until removed).
    """

    def __init__(self) -> None:
        self._switches: list[Switch] = []

    def delay(
        self,
        delay_s: float,
        *,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
        times: int | None = None,
    ) -> Switch:
        """Answer only after `delay_s` seconds of the origin's clock."""
        return self._set(Delay(delay_s), kind, method, path, times)

    def hold(
        self,
        *,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
        times: int | None = None,
        when: When | str = When.REQUEST,
    ) -> GatedSwitch:
        """Hold requests until released; see `When` for where."""
        return self._set_gated(Hold(Gate(), When(when)), kind, method, path, times)

    def status(
        self,
        status: int,
        *,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
        headers: Mapping[str, str] | None = None,
        text: str = "injected by a fault switch",
    ) -> Switch:
        """Answer the next `times` requests with a status, one line of text and extra headers."""
        body = b"" if status in (204, 304) else f"{text}\n".encode()
        plain = {"Content-Type": "text/plain; charset=utf-8"} if body else {}
        return self._set(Instead(Reply(status, {**plain, **(headers or {})}, body)), kind, method, path, times)

    def replace(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Answer nonsense, well-formed as HTTP."""
        return self._set(Instead(Reply(status, dict(headers), body)), kind, method, path, times)

    def raw(
        self,
        data: bytes,
        *,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Put these bytes on the wire instead of an answer, then close: for what is not even HTTP."""
        return self._set(Raw(data), kind, method, path, times)

    def unsolicited(
        self,
        data: bytes,
        *,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Send these bytes behind a complete answer, on the connection that the client may use again."""
        return self._set(Unsolicited(data), kind, method, path, times)

    def refuse(
        self,
        *,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Reset the connection instead of answering.  (To refuse the connection itself, stop the origin.)"""
        return self._set(Refuse(), kind, method, path, times)

    def drop(
        self,
        after_bytes: int,
        *,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Reset the connection after so many body bytes; for SSE they are counted from the connection's start."""
        return self._set(Drop(after_bytes), kind, method, path, times)

    def truncate(
        self,
        after_bytes: int,
        *,
        is_chunked: bool = False,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """End the body early by closing the connection: less than Content-Length, or without the last chunk."""
        return self._set(Truncate(after_bytes, is_chunked), kind, method, path, times)

    def stall(
        self,
        after_bytes: int,
        *,
        times: int | None = 1,
        kind: Kind | str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> GatedSwitch:
        """Stop sending after so many body bytes until released."""
        return self._set_gated(Stall(after_bytes, Gate()), kind, method, path, times)

    def clear(self) -> None:
        """Remove every switch; whoever is held or stalled goes on."""
        for switch in tuple(self._switches):
            switch.remove()

    def take(self, kind: Kind, method: str, path: str) -> list[Effect]:
        """What happens to this request, in the order the switches were set; for the origin."""
        taken = [switch.effect for switch in self._switches if switch.takes(kind, method, path)]
        # A used-up gate stays reachable through the switch that the test holds, so it may go from the list.
        self._switches = [switch for switch in self._switches if switch.times != 0]
        return taken

    def _set(
        self, effect: Effect, kind: Kind | str | None, method: str | None, path: str | None, times: int | None
    ) -> Switch:
        switch = Switch(effect, Kind(kind) if kind else None, method, path, times, self._removed)
        self._switches.append(switch)
        return switch

    def _set_gated(
        self, effect: Hold | Stall, kind: Kind | str | None, method: str | None, path: str | None, times: int | None
    ) -> GatedSwitch:
        switch = GatedSwitch(effect, Kind(kind) if kind else None, method, path, times, self._removed)
        self._switches.append(switch)
        return switch

    def _removed(self, switch: Switch) -> None:
        if switch in self._switches:
            self._switches.remove(switch)
