"""The way to the origins, as the engine knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from multidict import CIMultiDict

from gateway.upstream.asking import Asker, Asking
from gateway.upstream.reply import Body, Bounds, Reply


class Upstream(Protocol):
    """Whoever sends requests to origins: `client.OriginClient`, or a test's memory."""

    def ask(
        self,
        asker: Asker,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
    ) -> Asking:
        """Send one request.  `asker` is told what becomes of it, maybe before this returns."""

    async def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Reply:
        """Send one request and wait for the head of its answer; `on_sent` is called for each time that it is sent.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen, at once, where no origin may be asked.
        """
