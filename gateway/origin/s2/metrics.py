"""Validation of metrics queries, which name a resource, a metric set, a time range and an interval.

The origin has no metrics and answers with an empty list.  It refuses the same queries as S2 (422): without a start or
an end, with a range that is empty, in the future or longer than 30 days, or with an interval that the set does not
have.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from gateway.origin.s2.refusals import Refused, invalid
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import parse_u64

_LONGEST_S: Final = 30 * 24 * 3600
_MOST_AHEAD_S: Final = 300
"""How far the end may be ahead of the server's clock, in seconds."""

_ANY: Final = frozenset({"minute", "hour", "day"})
_OPERATIONS: Final = ("append-ops", "read-ops", "read-throughput", "append-throughput", "basin-ops")
_SETS: Final[tuple[dict[str, frozenset[str]], ...]] = (
    {"active-basins": _ANY, "account-ops": _ANY},
    {"storage": frozenset({"hour"}), **dict.fromkeys(_OPERATIONS, _ANY)},
    {"storage": frozenset({"minute"})},
)
"""The intervals of each metric set: of the account, of a basin and of a stream."""


def check_metrics_query(names: tuple[str, ...], query: str, now: float) -> None:
    """Check a metrics query for the account, a basin or a stream, which `names` identify.

    `now` is in Unix seconds.  Raises Refused (400, 422).
    """
    fields = dict(parse_qsl(query, keep_blank_values=True))
    sets = _SETS[len(names)]
    intervals = sets.get(fields.get("set", ""))
    if intervals is None:
        raise Refused(S2ErrorCode.BAD_QUERY, f"set is one of {', '.join(sets)}")
    interval = fields.get("interval")
    if interval is not None and interval not in _ANY:
        raise Refused(S2ErrorCode.BAD_QUERY, "interval is minute, hour or day")
    start, end = (_time(fields, name) for name in ("start", "end"))
    if start is None or end is None:
        raise invalid("start and end are required")
    if start >= end:
        raise invalid("start is before end")
    if end > now + _MOST_AHEAD_S:
        raise invalid("end is in the future")
    if end - start > _LONGEST_S:
        raise invalid("at most 30 days are between start and end")
    if interval is not None and interval not in intervals:
        raise invalid(f"the set has the interval {', '.join(sorted(intervals))}")


def _time(fields: dict[str, str], name: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if (number := parse_u64(text)) is None:
        raise Refused(S2ErrorCode.BAD_QUERY, f"{name} is a number of seconds")
    return number
