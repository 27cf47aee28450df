"""The audit log of the admin port: one line for each attempted change and for each request that fails authorisation.

Lines go to the logger `gateway.admin.audit` (`gateway.telemetry.audit`).  The level is INFO for a change that was made,
and WARNING for a refusal.  A line has the method, the path, the client's address and the status, followed by the change
or the reason of the refusal.
"""

from __future__ import annotations

from typing import Final

from gateway.aio.clock import Clock
from gateway.ops.admin.endpoint import Refused
from gateway.telemetry.audit import RefusalLines, audit_log, shortened

_log: Final = audit_log("gateway.admin.audit")


class Audit:
    """Writes the audit lines."""

    def __init__(self, clock: Clock) -> None:
        self._refusals = RefusalLines(_log, clock.now)

    def __repr__(self) -> str:
        return f"<Audit {self._refusals!r}>"

    def done(self, method: str, path: str, remote: str | None, status: int, change: str) -> None:
        """Log a change that was made or begun.  `change` is empty if the path alone describes the change."""
        _log.info("%s %s by %s: %d%s", method, path, remote, status, f": {change}" if change else "")

    def refused(self, method: str, path: str, remote: str | None, refused: Refused) -> None:
        """Log a refused change, or a request that failed authorisation."""
        self._refusals.write("%s %s by %s: %d: %s", method, shortened(path), remote, refused.status, refused)
