"""Sends an answer with the effects of fault switches, and counts it.

A `Delivery` sends one answer.  A fault that ends the answer early raises `Cut`; nothing more must be sent then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.aio.clock import Clock, pause
from gateway.origin.faults import BodyEffect, Delay, Drop, Hold, Refuse, Replace, Stall, Truncate, When
from gateway.origin.s2.calls import Call
from gateway.origin.s2.counters import S2Counters
from gateway.origin.s2.exchange import Exchange
from gateway.origin.s2.faults import AdviseReconnect, FailSession, FinishSession

SERVER_NAME = "durable-gateway-s2-origin"


class Cut(Exception):
    """A fault switch has ended the answer."""


class Delivery:
    """One answer being sent."""

    def __init__(
        self, exchange: Exchange, call: Call, counters: S2Counters, clock: Clock, effects: Sequence[object]
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._counters = counters
        self._clock = clock
        self._effects = effects
        in_body = [effect for effect in effects if isinstance(effect, Drop | Truncate | Stall)]
        self._body_effects: list[BodyEffect] = sorted(in_body, key=lambda effect: effect.after_bytes)
        self._sent = 0
        self._messages = 0

    # -- before the answer

    async def request_faults(self) -> bool:
        """Apply the faults that come before the request is processed; return whether one of them was the answer."""
        for effect in self._effects:
            match effect:
                case Delay(delay_s):
                    await pause(self._clock, delay_s)
                case Hold(gate, When.REQUEST):
                    await gate.wait()
                case Refuse():
                    self._exchange.reset()
                    raise Cut
        for effect in self._effects:
            if isinstance(effect, Replace):
                await self.respond(effect.reply.status, effect.reply.headers, effect.reply.body)
                return True
        return False

    async def reply_faults(self) -> None:
        """Apply the faults between the computation of the answer and its sending."""
        for effect in self._effects:
            if isinstance(effect, Hold) and effect.when is When.REPLY:
                await effect.gate.wait()

    # -- the answer

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        if self._body_effects:
            await self.open(status, {**headers, "content-length": str(len(body))})
            await self.send(body)
            await self.end()
            return
        await self._exchange.respond(status, _complete(headers), body)
        self._counters.sent(self._call, len(body))

    async def open(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer whose body is sent by `send`."""
        await self._exchange.begin(status, _complete(headers))
        await self._apply_due()

    async def send(self, data: bytes) -> None:
        """Send a part of the body."""
        while self._body_effects and self._body_effects[0].after_bytes <= self._sent + len(data):
            due = self._body_effects[0].after_bytes - self._sent
            await self._put(data[:due])
            data = data[due:]
            await self._apply(self._body_effects.pop(0))
        await self._put(data)

    async def end(self) -> None:
        """End the body."""
        await self._exchange.end()

    # -- sessions

    def due_failure(self) -> FailSession | FinishSession | None:
        """Return the fault that ends the session in place of its next message, or None."""
        for effect in self._effects:
            if isinstance(effect, FailSession | FinishSession) and self._messages >= effect.after_messages:
                return effect
        return None

    @property
    def advises_reconnect(self) -> bool:
        """Whether the session's next message advises the client to reconnect."""
        return any(
            isinstance(effect, AdviseReconnect) and self._messages >= effect.after_messages for effect in self._effects
        )

    async def send_message(self, data: bytes) -> None:
        """Send one message of a session."""
        self._messages += 1
        await self.send(data)

    # -- the fault switches

    async def _put(self, data: bytes) -> None:
        if data:
            self._sent += len(data)
            # Count before waiting for room: the client may receive the bytes earlier.
            self._counters.sent(self._call, len(data))
            await self._exchange.send(data)

    async def _apply_due(self) -> None:
        while self._body_effects and self._body_effects[0].after_bytes <= self._sent:
            await self._apply(self._body_effects.pop(0))

    async def _apply(self, effect: BodyEffect) -> None:
        await self._exchange.flushed()
        match effect:
            case Stall(gate=gate):
                await gate.wait()
            case Drop():
                self._exchange.cut()
                raise Cut
            case Truncate():
                self._exchange.truncate()
                raise Cut


def _complete(headers: Mapping[str, str]) -> dict[str, str]:
    return {"server": SERVER_NAME, **headers}
