"""The outcome of a request, and its Cache-Status value (RFC 9211).

Cache-Status, metric labels, the access log and dashboards all use the names of `Outcome`.  RFC 9211 section 2 asks
caches not to add Cache-Status to responses that they generate themselves.  The value for REFUSED is therefore only for
logs, and need not be sent.
"""

from __future__ import annotations

import re
from enum import StrEnum, auto
from functools import lru_cache
from typing import Final


class Outcome(StrEnum):
    """How a request was answered."""

    HIT = auto()
    """From memory, without asking the origin.  Also for a read at the tail of a closed stream."""
    REVALIDATED = auto()
    """From memory, after the origin stated that there are no further bytes."""
    JOINED = auto()
    """From memory, followed by further bytes that the origin returned."""
    MISS = auto()
    """Fetched from the origin for this request."""
    COLLAPSED = auto()
    """From a fetch that another request started."""
    FOLLOWED = auto()
    """From the stream's one live upstream request."""
    STALE_IF_ERROR = auto()
    """From memory, because the origin is failing."""
    PASS = auto()
    """Relayed, without an attempt to store the reply."""
    REFUSED = auto()
    """A 4xx of the gateway itself."""
    FAILED = auto()
    """A 5xx of the origin or the gateway."""
    ABORTED = auto()
    """The client's connection was dropped before the body was complete."""


_PARAMETERS: Final = {
    Outcome.HIT: "; hit",
    Outcome.REVALIDATED: "; fwd=stale",
    Outcome.JOINED: "; fwd=partial",
    Outcome.MISS: "; fwd=uri-miss",
    Outcome.COLLAPSED: "; fwd=uri-miss",
    Outcome.FOLLOWED: "; fwd=stale",
    Outcome.STALE_IF_ERROR: "; fwd=stale",
    Outcome.PASS: "; fwd=bypass",
    Outcome.REFUSED: "",
    Outcome.FAILED: "; fwd=miss",
    Outcome.ABORTED: "; fwd=miss",
}
_IS_COLLAPSED: Final = frozenset({Outcome.COLLAPSED, Outcome.FOLLOWED})
# RFC 9211 has no parameter for these outcomes, so the outcome's name becomes the detail unless the caller states
# another detail.
_DEFAULT_DETAIL: Final = frozenset(
    {Outcome.FOLLOWED, Outcome.STALE_IF_ERROR, Outcome.REFUSED, Outcome.FAILED, Outcome.ABORTED}
)
_TOKEN: Final = re.compile(r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*")


def cache_status(
    node: str,
    outcome: Outcome,
    *,
    fwd_status: int | None = None,
    stored: bool = False,
    detail: str | None = None,
    by_method: bool = False,
    ttl_s: int | None = None,
) -> str:
    """Return one member of a Cache-Status list, such as `durable-gateway; fwd=uri-miss; fwd-status=200; stored`.

    `node` is the name of this gateway.  `fwd_status` is the origin's status, if it sent one.  `stored` states that the
    reply was stored.  `detail` is free text.  `by_method` gives a PASS the parameter `fwd=method`, for
    a request that was relayed because its method is not GET.  `ttl_s` is a hit's remaining freshness in seconds,
    negative if stale.

    Results without `detail` and `ttl_s` are cached.
    """
    if detail is not None or ttl_s is not None:
        return _render(node, outcome, fwd_status, stored, by_method, detail, ttl_s)
    return _cached(node, outcome, fwd_status, stored, by_method)


def _render(
    node: str,
    outcome: Outcome,
    fwd_status: int | None,
    stored: bool,
    by_method: bool,
    detail: str | None,
    ttl_s: int | None = None,
) -> str:
    parts = [_item(node), _PARAMETERS[outcome]]
    if by_method and outcome is Outcome.PASS:
        parts[1] = "; fwd=method"
    if parts[1].startswith("; fwd="):
        if fwd_status is not None:
            parts.append(f"; fwd-status={fwd_status}")
        if stored:
            parts.append("; stored")
        if outcome in _IS_COLLAPSED:
            parts.append("; collapsed")
    if ttl_s is not None:
        parts.append(f"; ttl={ttl_s}")
    if detail is None and outcome in _DEFAULT_DETAIL:
        detail = outcome.value
    if detail is not None:
        parts.append(f"; detail={_item(detail)}")
    return "".join(parts)


@lru_cache(maxsize=1024)
def _cached(node: str, outcome: Outcome, fwd_status: int | None, stored: bool, by_method: bool) -> str:
    # Do not cache `detail`: it is free text that could differ every time and evict the common values.
    return _render(node, outcome, fwd_status, stored, by_method, None)


def _item(text: str) -> str:
    """Return the text as a structured-field token, or else a quoted string (RFC 8941 sections 3.3.3 and 3.3.4)."""
    if _TOKEN.fullmatch(text):
        return text
    visible = "".join(c if " " <= c <= "~" else "?" for c in text)
    return '"' + visible.replace("\\", "\\\\").replace('"', '\\"') + '"'
