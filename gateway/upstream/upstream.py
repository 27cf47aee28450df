"""The engine's interface to the origins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.upstream.asking import PendingRequest, Requester
from gateway.upstream.call import OriginCall
from gateway.upstream.incoming import no_op
from gateway.upstream.reply import Reply


class Upstream(Protocol):
    """Sends requests to origins: `client.OriginClient`, or an in-memory one in tests."""

    def ask(self, requester: Requester, call: OriginCall) -> PendingRequest:
        """Send one request.  `requester` is notified of its outcome, possibly before this returns."""

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen, at once, if no origin may be used;
        UpstreamCongested if no connection is free in time.
        """
