"""How a request ended, in one word, and that word as a Cache-Status value (RFC 9211).

`Outcome` is the only vocabulary: Cache-Status, the metric label, the access log, dashboards and whatever reads them say
the same.  A closed stream answered at its tail is a HIT.  RFC 9211 section 2 asks caches not to add Cache-Status to
answers they generate themselves, so REFUSED has a value (for whoever wants it in a log) but need not be sent.
"""

from __future__ import annotations

import re
from enum import StrEnum, auto
from functools import lru_cache
from typing import Final


class Outcome(StrEnum):
    """How one request was answered."""

    HIT = auto()
    """From the tape alone, without the origin; also a closed stream at its tail."""
    REVALIDATED = auto()
    """From the tape, after a tail probe that brought nothing new."""
    JOINED = auto()
    """From the tape, and behind it the bytes a tail probe brought."""
    MISS = auto()
    """Fetched from the origin for this request."""
    COLLAPSED = auto()
    """From a fetch that another request had started."""
    FOLLOWED = auto()
    """From the stream's one live upstream request."""
    STALE_IF_ERROR = auto()
    """Immutable bytes from the tape while the origin fails."""
    PASS = auto()
    """Relayed, with no attempt to store."""
    REFUSED = auto()
    """Answered 4xx by the gateway itself."""
    FAILED = auto()
    """Answered 5xx, by the origin or by the gateway."""
    ABORTED = auto()
    """The connection was dropped in the middle of the body."""


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
# Outcomes that RFC 9211 has no parameter for say their own word, unless the caller knows a better one.
_OWN_DETAIL: Final = frozenset(
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
    """One member of a Cache-Status list, such as `durable-gateway; fwd=uri-miss; fwd-status=200; stored`.

    `node` names this gateway; `fwd_status` is the origin's status, when it gave one; `stored` says that the answer
    was laid on the tape; `detail` is free text; `by_method` makes a PASS say `fwd=method`, for what is not a GET;
    `ttl_s` is how long a hit is fresh, in seconds, negative where it is stale.  Values that recur are rendered once.
    """
    if detail is not None or ttl_s is not None:
        return _render(node, outcome, fwd_status, stored, by_method, detail, ttl_s)
    return _remembered(node, outcome, fwd_status, stored, by_method)


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
    if detail is None and outcome in _OWN_DETAIL:
        detail = outcome.value
    if detail is not None:
        parts.append(f"; detail={_item(detail)}")
    return "".join(parts)


@lru_cache(maxsize=1024)
def _remembered(node: str, outcome: Outcome, fwd_status: int | None, stored: bool, by_method: bool) -> str:
    # Free text stays out of this table: it could be different every time and would push the common values out.
    return _render(node, outcome, fwd_status, stored, by_method, None)


def _item(text: str) -> str:
    """A structured-field token where the text is one, else a quoted string (RFC 8941 sections 3.3.3 and 3.3.4)."""
    if _TOKEN.fullmatch(text):
        return text
    visible = "".join(c if " " <= c <= "~" else "?" for c in text)
    return '"' + visible.replace("\\", "\\\\").replace('"', '\\"') + '"'
