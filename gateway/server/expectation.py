"""A client that waits for 100 Continue before it sends its body (RFC 9110 section 10.1.1).

The expectation goes to the origin with the head of the request, and the origin's 100 Continue to the client.  So the
origin may refuse a body before any of it is sent.  An origin that ignores the expectation waits for the body, so after
a while the gateway asks the client for it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from multidict import CIMultiDict

from gateway.server.request import Request

CONTINUE_S: Final = 1.0
"""How long an origin may leave an expectation unanswered; clients wait about as long."""


def is_expecting(request: Request) -> bool:
    """Whether the client waits for 100 Continue."""
    return request.headers.get("Expect", "").lower() == "100-continue" and request.version != "1.0"


def ask_for_body(request: Request) -> None:
    """Send 100 Continue."""
    request.channel.inform(100, CIMultiDict())


class Expectation:
    """The expectation of one request, until its client is asked for the body or answered.  Owns its timer."""

    __slots__ = ("_request", "_timer")

    def __init__(self, request: Request, idle_timeout_s: float) -> None:
        """`idle_timeout_s` is the time after which the body is late."""
        self._request = request
        # Sooner than the body is late, for which its client would be to blame.
        patience_s = min(CONTINUE_S, idle_timeout_s / 2)
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(patience_s, self.meet)

    def meet(self) -> None:
        """Ask the client for the body, unless that was done or the request is answered."""
        if self._timer is not None:
            self.end()
            if not self._request.has_begun:
                ask_for_body(self._request)

    def end(self) -> None:
        """The client need not be asked any more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
