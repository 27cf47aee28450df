"""The sampled counters of the last ten minutes, for the charts of a newly loaded page."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from pydantic import with_config

from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, Nothing
from gateway.ops.admin.subject import Subject
from gateway.ops.figures import DELAY_BOUNDS_S
from gateway.ops.history import INTERVAL_S, WINDOW_S, History, Recent, Sample


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class HistorySample:
    """Counters since the start at one moment.  The difference of two samples gives a rate."""

    at: float
    """The time of the sample, in Unix seconds."""
    uptime_s: float
    requests: dict[str, int]
    """Finished requests by outcome, without outcomes at 0."""
    upstream_requests: int
    upstream_bytes: int
    downstream_bytes: int
    subscribers: dict[str, int]
    """Live readers at this moment, by mode."""
    delivery_delays: list[int]
    """The cumulative counts of the histogram of delivery delays: one for each bound, and the total."""
    requests_spared: float | None
    """The share of requests spared in the window before the sample, defined as in `spared` of /api/overview."""
    bytes_spared: float | None


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class HistoryShown:
    """The samples of the last ten minutes, or since the start."""

    interval_s: float
    """Seconds between samples."""
    window_s: float
    """Seconds over which the shares are counted."""
    delivery_delay_bounds_s: list[float]
    samples: list[HistorySample]
    """Oldest first."""


def history_endpoints(subject: Subject) -> list[Endpoint]:
    """Make the endpoint `GET /api/history`."""

    async def history(_: ApiRequest[Nothing, Nothing]) -> HistoryShown:
        return show_history(subject.history, subject.started_at)

    return [Endpoint("GET", "/api/history", "The counters of the last ten minutes", history, HistoryShown)]


def show_history(history: History, started_at: float) -> HistoryShown:
    """Return a history as the API shows it.  `started_at` is in monotonic seconds."""
    return HistoryShown(
        interval_s=INTERVAL_S,
        window_s=WINDOW_S,
        delivery_delay_bounds_s=list(DELAY_BOUNDS_S),
        samples=[_shown(sample, recent, started_at) for sample, recent in history.samples()],
    )


def _shown(sample: Sample, recent: Recent, started_at: float) -> HistorySample:
    return HistorySample(
        at=sample.at,
        uptime_s=sample.now - started_at,
        requests={str(outcome): count for outcome, count in sample.requests.items()},
        upstream_requests=sample.upstream_requests,
        upstream_bytes=sample.upstream_bytes,
        downstream_bytes=sample.downstream_bytes,
        subscribers={str(mode): count for mode, count in sample.subscribers.items()},
        delivery_delays=list(accumulate(sample.delivery_delays)),
        requests_spared=recent.tally.requests_spared,
        bytes_spared=recent.tally.bytes_spared,
    )
