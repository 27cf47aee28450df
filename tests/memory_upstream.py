"""Origins in memory: every request waits for the test to answer it, or is answered by a script; no socket, no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from urllib.parse import parse_qs, urlsplit

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError
from gateway.http.reply_lines import Head
from gateway.protocol.worker_headers import HopSaid
from gateway.upstream.failures import ConnectionLost
from gateway.upstream.origin_call import Body, Bounds, OriginCall, Shared
from gateway.upstream.reply import Reply, Requester, answer_to

BOUND_S = 20.0
"""Nothing in memory takes this long; what does is a hang."""


class MemoryInflow:
    """A reply's body as a test has it come."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.has_ended = False
        self._error: BaseException | None = None
        self.on_change: Callable[[], object] = lambda: None

    def say(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.on_change()

    def finish(self) -> None:
        self.has_ended = True
        self.on_change()

    def take(self) -> bytes | None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            return b"".join(pieces)
        if self.has_ended:
            return b""
        if self._error is not None:
            raise self._error
        return None

    def expect(self, by: float) -> None:
        """Memory has all the time that there is."""

    async def changed(self) -> None:
        waiter = asyncio.Event()
        self.on_change = waiter.set
        await waiter.wait()

    def retire(self) -> None:
        """It came by no connection."""

    def break_off(self, why: str) -> None:
        self.cut(ConnectionLost(why))

    def cut(self, error: BaseException) -> None:
        """Let no more arrive because of this error."""
        if not self.has_ended and self._error is None:
            self._error = error
            self.on_change()

    @property
    def is_over(self) -> bool:
        return self.has_ended or self._error is not None


class Asked:
    """One request, and the answer to it."""

    def __init__(
        self, method: str, url: str, headers: CIMultiDict[str], bounds: Bounds, body: Body, *, is_live: bool
    ) -> None:
        parts = urlsplit(url)
        self.method = method
        self.path = parts.path
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.headers = headers
        self.bounds = bounds
        self.body = body
        self.is_live = is_live
        self.inflow = MemoryInflow()
        self.said: HopSaid | None = None
        """What another worker says with its answer; None if the origin answers."""
        self.shared: Shared | None = None
        """The tape that the request is for."""
        self._asker: Requester
        self._has_left = False
        self._answer: asyncio.Future[Head] = asyncio.get_running_loop().create_future()

    def begin(self, status: int, headers: dict[str, str], length: int | None = None) -> None:
        """Answer with a head; the body comes by `inflow`."""
        fields = CIMultiDictProxy(CIMultiDict(headers))
        self._answer.set_result(Head(status, "", fields, length, is_delimited=True))

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Answer, whole."""
        self.begin(status, headers or {}, len(body))
        if body and self.method != "HEAD":
            self.inflow.say(body)
        self.inflow.finish()

    @property
    def is_answered(self) -> bool:
        return self._answer.done()

    def fail(self, error: BaseException) -> None:
        """Fail before the head, by an error of `errors.py`; or break off after it."""
        if self._answer.done():
            self.inflow.break_off("lost")
        else:
            self._answer.set_exception(error)

    def tell(self, requester: Requester) -> None:
        """Have `requester` told of the answer."""
        self._asker = requester
        self._answer.add_done_callback(self._tell)

    def _tell(self, answer: asyncio.Future[Head]) -> None:
        if self._has_left:
            return
        error = answer.exception()
        if isinstance(error, GatewayError):
            self._asker.failed(error)
        else:
            reply = Reply(answer.result(), self.inflow, self.bounds, inf)
            reply.said = self.said
            if self.said is not None and (told := getattr(self._asker, "told", None)) is not None:
                told(self.said)
            self._asker.head_arrived(reply)

    def give_up(self) -> None:
        self._has_left = True


class MemoryUpstream:
    """What an engine sends its requests by.  What the script leaves alone is the test's to answer."""

    def __init__(self, script: Callable[[Asked], None] = lambda asked: None) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self._came = asyncio.Event()

    def ask(self, requester: Requester, call: OriginCall) -> Asked:
        asked = Asked(call.method, call.url, call.headers, call.bounds, call.body, is_live=call.is_live)
        asked.shared = call.shared
        self.asked.append(asked)
        asked.tell(requester)
        requester.sent()
        self.script(asked)
        self._came.set()
        self._came = asyncio.Event()
        return asked

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = lambda: None) -> Reply:
        return await answer_to(self.ask, call, on_sent)

    async def until(self, count: int) -> Asked:
        """Wait until so many requests have been sent in all; the last of them."""
        async with asyncio.timeout(BOUND_S):
            while len(self.asked) < count:
                await self._came.wait()
        return self.asked[count - 1]
