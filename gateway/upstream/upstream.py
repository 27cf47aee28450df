"""The engine's interface to the origins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from multidict import CIMultiDict

from gateway.limits.askers import Askers
from gateway.upstream.asking import PendingRequest, Requester
from gateway.upstream.reply import Body, Bounds, Reply


class Upstream(Protocol):
    """Sends requests to origins: `client.OriginClient`, or an in-memory one in tests."""

    def ask(
        self,
        requester: Requester,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
        client: str | Askers = "",
    ) -> PendingRequest:
        """Send one request.  `requester` is notified of its outcome, possibly before this returns.

        `client` is the net of the client that it is made for, or the nets of several; empty for the gateway's own.
        """

    async def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
        client: str | Askers = "",
        on_sent: Callable[[], object] = lambda: None,
    ) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen, at once, if no origin may be used;
        UpstreamCongested if no connection is free in time.
        """
