"""The figures of an origin that the admin port and the metrics show."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.upstream.breaker import BreakerState


@dataclass(frozen=True, slots=True)
class OriginState:
    """A snapshot of an origin."""

    origin: str
    """Scheme, host and port."""
    routes: tuple[str, ...]
    weight: int
    """The largest weight in any route; 0 if the origin is used only after redirects."""
    state: BreakerState
    is_ejected: bool
    reason: str | None
    """The current problem; None if there is none."""
    since_s: float
    """The seconds since the origin entered this state."""
    retry_in_s: float | None
    """The seconds until the next probe is due; None while the breaker is closed."""
    requests: int
    failures: int
    refused: int
    """The number of requests not sent because the breaker was open."""
    overflows: int
    """The number of requests not sent because too many were waiting."""
    redirects: int
    """The number of requests that another origin redirected to this one."""
    ejections: int
    checks: dict[bool, int]
    """The numbers of successful (True) and failed (False) health checks."""
    transitions: dict[BreakerState, int]
    in_flight: int
    waiting: int
    last_heard_s: float | None

    @property
    def is_up(self) -> bool:
        """Whether requests are sent to the origin as usual."""
        return self.state is BreakerState.CLOSED and not self.is_ejected


def duration_text(seconds: float) -> str:
    """Format a duration in whole units, at least one second: `12 s`, `3 min`, `2 h`."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7_200 else f"{round(seconds / 3600)} h"
