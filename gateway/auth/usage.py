"""The usage of each tenant since the start of the process: requests, body bytes, and the duration of live reads.

There are too many principals (authenticated parties) for metrics.  The access log has their usage, and the table
`usage` of `gateway.pipeline` has the sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_TENANTS: Final = 256
"""The most tenants with their own figures.  All further tenants share one `Usage`."""
OTHERS: Final = ("", "")
"""The key of the further tenants."""


class Usage:
    """The usage of one tenant."""

    __slots__ = ("live_s", "requests", "sent_bytes")

    def __init__(self) -> None:
        self.requests = 0
        """The number of completed requests."""
        self.sent_bytes = 0
        """The number of body bytes sent to clients."""
        self.live_s = 0.0
        """The duration of completed live reads in seconds."""

    def __repr__(self) -> str:
        return f"<Usage {self.requests} requests, {self.sent_bytes} bytes, {self.live_s:g} s>"

    def add(self, sent_bytes: int, live_s: float = 0.0, *, is_answered: bool = True) -> None:
        """Count a request that has ended.  A failed request does not count, but its sent bytes do."""
        self.requests += is_answered
        self.sent_bytes += sent_bytes
        self.live_s += live_s


class Tenants:
    """The usage of all tenants, by issuer and name."""

    def __init__(self) -> None:
        self._usages: dict[tuple[str, str], Usage] = {}

    def __repr__(self) -> str:
        return f"<Tenants {len(self._usages)}>"

    def usage(self, issuer: str, tenant: str) -> Usage:
        """Return the usage of a tenant.  If there are too many tenants, return the usage that further tenants share."""
        key = (issuer, tenant)
        if (found := self._usages.get(key)) is None:
            key = key if len(self._usages) < MOST_TENANTS else OTHERS
            found = self._usages.setdefault(key, Usage())
        return found

    def items(self) -> Iterable[tuple[tuple[str, str], Usage]]:
        """Return the usages, by issuer and name."""
        return self._usages.items()
