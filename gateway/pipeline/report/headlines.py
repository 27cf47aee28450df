"""The main figures, each as a plain sentence.

A sentence without data is left out: an empty lake has no headlines.  If the origin had more requests than there were
reads, or sent more bytes than readers got, the sentence says so instead of a negative saving.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pipeline.report import wording
from gateway.pipeline.report.figures import Figures, Percentiles

_AT_ONCE_S = 1e-6
"""Less than the log's resolution: the answer was remembered."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure, its meaning, and the counts it was computed from."""

    figure: str
    says: str
    made_of: str


def headlines(figures: Figures) -> list[Headline]:
    """All headlines with data."""
    said = [
        _requests(figures),
        _bytes(figures),
        _waits("of catch-up reads began to be answered within this time", figures.first_byte_all),
        _waits("of appends were with their long-polling readers within this time", figures.delivery_all),
        _shared(figures),
        _errors(figures),
    ]
    return [one for one in said if one is not None]


def _requests(figures: Figures) -> Headline | None:
    total = figures.total
    if total.request_offload is None:
        return None
    made_of = f"{wording.many(total.reads, 'read')} cost it {wording.many(total.origin_requests, 'request')}"
    if total.request_offload < 0:
        asked = wording.times(total.origin_requests / total.reads)
        return Headline(f"{asked} ×", "was the origin asked for each read", made_of)
    return Headline(wording.share(total.request_offload), "of reads never reached the origin", made_of)


def _bytes(figures: Figures) -> Headline | None:
    total = figures.total
    if not total.sent_bytes:
        return None
    made_of = f"it sent {wording.size(total.fetched_bytes)}, readers got {wording.size(total.read_bytes)}"
    if total.saved_bytes:
        made_of += f" ({wording.size(total.sent_bytes)} as it was sent)"
    if not total.fetched_bytes:
        return Headline(wording.size(0), "was all that the origin had to send", made_of)
    ratio = total.read_bytes / total.fetched_bytes
    if ratio < 1:
        return Headline(f"{wording.times(1 / ratio)} ×", "what readers got was sent by the origin", made_of)
    return Headline(f"{wording.times(ratio)} ×", "was every byte from the origin delivered", made_of)


def _waits(says: str, waited: Percentiles | None) -> Headline | None:
    if waited is None or waited.p50_s is None:
        return None
    if waited.p50_s < _AT_ONCE_S:
        return Headline(wording.span(waited.p99_s), f"99 % {says}", f"half of {wording.count(waited.count)} at once")
    made_of = f"99 % within {wording.span(waited.p99_s)}, of {wording.count(waited.count)}"
    return Headline(wording.span(waited.p50_s), f"half {says}", made_of)


def _shared(figures: Figures) -> Headline | None:
    if figures.most_shared < 2:
        return None
    return Headline(
        wording.count(figures.most_shared),
        "readers followed one stream at once",
        "for one request to the origin at a time",
    )


def _errors(figures: Figures) -> Headline | None:
    if not figures.requests:
        return None
    made_of = f"{wording.count(figures.errors)} of {wording.many(figures.requests, 'request')} of all kinds"
    return Headline(wording.share(figures.errors / figures.requests), "of requests ended in an error", made_of)
