"""Usage of this process by tenant, since its start: requests, body bytes and the time of live reads.

There are too many principals for metrics.  The access log names them, and the pipeline's table `usage` adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_TENANTS: Final = 256
"""Bound on tenants with figures of their own; all further tenants share one set."""
OTHERS: Final = ("", "")
"""Stands for the further tenants."""


class Usage:
    """The usage of one tenant."""

    __slots__ = ("live_s", "requests", "sent_bytes")

    def __init__(self) -> None:
        self.requests = 0
        """Requests that ended."""
        self.sent_bytes = 0
        """Body bytes handed to clients."""
        self.live_s = 0.0
        """Seconds of live reads that ended."""

    def __repr__(self) -> str:
        return f"<Usage {self.requests} requests, {self.sent_bytes} bytes, {self.live_s:g} s>"

    def add(self, sent_bytes: int, live_s: float = 0.0) -> None:
        """Count a request that has ended."""
        self.requests += 1
        self.sent_bytes += sent_bytes
        self.live_s += live_s


class Tenants:
    """Owner of the usage of all tenants, by issuer and name."""

    def __init__(self) -> None:
        self._usages: dict[tuple[str, str], Usage] = {}

    def __repr__(self) -> str:
        return f"<Tenants {len(self._usages)}>"

    def usage(self, issuer: str, tenant: str) -> Usage:
        """The usage of a tenant; small tenants share one."""
        key = (issuer, tenant)
        if (found := self._usages.get(key)) is None:
            key = key if len(self._usages) < MOST_TENANTS else OTHERS
            found = self._usages.setdefault(key, Usage())
        return found

    def items(self) -> Iterable[tuple[tuple[str, str], Usage]]:
        """The usages by issuer and name."""
        return self._usages.items()
