"""A sink that appends to a durable stream at an origin.  Each batch is one append of JSON messages, which takes effect
exactly once.

The stream is created if it does not exist.  While the origin cannot append a batch, the batch is sent again after
growing, random pauses.  The log's queue bounds the records that wait during these pauses.  `producer` interprets the
replies, and this module sends and waits.  A batch is appended twice only if the origin loses its record of the
producer, but not the stream, between the append and the reply.

The URL must lead to the origin directly.  If batches went through the gateway, every batch would be another request to
log.
"""

from __future__ import annotations

import random

from multidict import CIMultiDict
from yarl import URL

from gateway.aio.clock import Clock, pause
from gateway.errors import GatewayError
from gateway.ops.access_log.sinks.producer import Producer, Step, Verdict
from gateway.ops.access_log.sinks.sink import Trouble
from gateway.protocol.names import JSON_TYPE
from gateway.upstream.client import OriginClient
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.slots import SlotLimits

_BOUNDS = Bounds(connect_s=5.0, first_byte_s=15.0, idle_s=5.0, total_s=30.0)
_REPLY_BYTES = 1 << 16
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_SPREAD = (0.5, 1.0)
_PROMPT_TRIES = 3
"""The most times that a batch is sent again without a pause: with a new number, or after the stream was created."""


class StreamSink:
    """The writer of one stream.  It owns an HTTP client, so that logging and clients' requests never wait for each
    other's connections."""

    def __init__(self, url: str, clock: Clock, rng: random.Random, *, node: str, authorization: str = "") -> None:
        self._url = str(URL(url, encoded=True).with_fragment(None))
        self._clock = clock
        self._rng = rng
        self._producer = Producer(f"{node}-{rng.getrandbits(64):016x}")
        self._client = OriginClient(SlotLimits(1))
        self._trouble = Trouble(url, clock)
        self._headers = CIMultiDict({"User-Agent": node, "Content-Type": JSON_TYPE})
        if authorization:
            self._headers["Authorization"] = authorization

    async def write(self, lines: bytes) -> bool:
        # Newlines inside a line are escaped, so every newline ends a line.
        body = b"[" + lines[:-1].replace(b"\n", b",") + b"]"
        failures = prompt = 0
        while True:
            verdict = await self._append(body)
            match verdict.step:
                case Step.DONE:
                    self._trouble.worked()
                    return True
                case Step.GIVE_UP:
                    self._trouble.failed(verdict.text)
                    return False
                case Step.AGAIN if prompt < _PROMPT_TRIES:
                    prompt += 1
                    continue
                case _:
                    self._trouble.failed(verdict.text)
            longest = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(failures, 10))
            failures += 1
            await pause(self._clock, max(verdict.wait_s, longest * self._rng.uniform(*_SPREAD)))

    async def close(self) -> None:
        await self._client.close()

    async def _append(self, body: bytes) -> Verdict:
        """Try once.  Creates the stream if it does not exist."""
        try:
            status, headers = await self._send("POST", {**self._producer.headers()}, body)
            verdict = self._producer.judge(status, headers)
            if verdict.step is not Step.CREATE:
                return verdict
            status, headers = await self._send("PUT", {}, None)
        except GatewayError as error:
            return Verdict(Step.WAIT, text=str(error))
        if status in (200, 201):
            return Verdict(Step.AGAIN, text=verdict.text)
        if status >= 500:
            return Verdict(Step.WAIT, text=f"the origin says {status} to creating the stream")
        self._producer.give_up()
        return Verdict(Step.GIVE_UP, text=f"the origin says {status} to creating the stream")

    async def _send(self, method: str, more: dict[str, str], body: bytes | None) -> tuple[int, CIMultiDict[str]]:
        headers = self._headers.copy()
        headers.update(more)
        async with await self._client.send(OriginCall(method, self._url, headers, _BOUNDS, body)) as reply:
            await reply.read(_REPLY_BYTES)
            return reply.status, CIMultiDict(reply.headers)
