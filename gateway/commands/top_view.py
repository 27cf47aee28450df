"""Renders the view of `top` from two snapshots of a gateway.  Pure functions, so that tests need no terminal.

The first lines show the state of the origins, and the share of recent reads and bytes that the origins did not have to
serve (`gateway.ops.spared`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.commands.figures import duration, rate, ratio, share, size, stream_name, stream_state
from gateway.commands.origins import Health, origin_words, worst

_HEALTH_STYLES: Final = {Health.ANSWERING: "green", Health.NOT_ASKED: "dim", Health.UNREACHABLE: "bold red"}


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot of the gateway, from `/api/overview`, `/api/origins` and `/api/top`.  Streams are ordered by `by`."""

    overview: Mapping[str, Any]
    origins: Sequence[Mapping[str, Any]]
    streams: Sequence[Mapping[str, Any]]
    by: str


def view(now: Look, before: Look | None, limit: int, trouble: str = "", *, fills: bool = True) -> RenderableType:
    """Render the rates between two snapshots, and at most `limit` streams ordered by their rates.

    With only one snapshot, or after a restart between two, render the counts since the start.  `fills`: the table has
    the width of the terminal instead of its content.  `trouble`: an error to show first.
    """
    if before is not None and before.overview["uptime_s"] >= now.overview["uptime_s"]:
        before = None
    parts: list[RenderableType] = [
        _summary(now.overview, before.overview if before else None, now.origins),
        _table(now, before, limit, fills),
    ]
    if trouble:
        parts.insert(0, Text(trouble, "bold red"))
    return Group(*parts)


def _summary(now: Mapping[str, Any], before: Mapping[str, Any] | None, origins: Sequence[Mapping[str, Any]]) -> Text:
    state = "draining" if now["is_draining"] else "ready" if now["is_ready"] else "not ready"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"durable-gateway {now['version']}", "bold")
    text.append(f"  {now['node']}  up {duration(now['uptime_s'])}  ")
    text.append(state, "green" if state == "ready" else "bold yellow")
    text.append("\n")
    spared = now["spared"]
    text.append("origin spared ")
    text.append(f"{share(spared['requests_spared'])} of reads, {share(spared['bytes_spared'])} of bytes", "bold")
    text.append(f" in the last {duration(spared['window_s'])}")
    health = worst(origins)
    # Begin a new line for a problem, because its text is long for a narrow terminal.
    text.append("\n" if health is Health.UNREACHABLE else "   ")
    text.append(origin_words(origins), _HEALTH_STYLES[health])
    text.append("\n")
    took_s = now["uptime_s"] - before["uptime_s"] if before else 0.0

    def counted(count: float, count_before: float) -> str:
        # A count may have fallen: with several workers, a worker that dies takes its counts with it.
        return f"{rate(max(0.0, count - count_before) / took_s)}/s" if before else f"{count:,.0f}"

    requests, requests_before = _requests(now), _requests(before) if before else 0
    upstream, upstream_before = _sum(now["upstream_requests"]), _sum(before["upstream_requests"]) if before else 0
    sent = max(0, now["downstream_bytes"] - (before["downstream_bytes"] if before else 0))
    line = [
        f"requests {counted(requests, requests_before)}",
        f"origin requests {counted(upstream, upstream_before)}",
        f"sent {size(sent / took_s)}/s" if before else f"sent {size(sent)}",
    ]
    cache = now["cache"]
    other = [
        f"subscribers {_sum(now['subscribers']):,}",
        f"streams followed {now['followed_streams']:,}",
        f"connections {now['connections']:,}",
        f"cache {size(cache['bytes'])} of {size(cache['limit_bytes'])} in {cache['tapes']:,} tapes",
    ]
    text.append("   ".join(line) + "\n")
    text.append("   ".join(other) + "\n")
    return text


def _table(now: Look, before: Look | None, limit: int, fills: bool) -> Table:
    per = "/s" if before else ""
    marked = {"requests": f"reads{per}", "bytes": f"sent{per}", "subscribers": "readers"}[now.by]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=fills, header_style="dim")
    table.add_column("stream", no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("readers", f"reads{per}", "hits", f"sent{per}", "held"):
        style = "bold not dim" if title == marked else None
        table.add_column(title, justify="right", no_wrap=True, header_style=style, style=style)
    table.add_column("state", no_wrap=True)
    for stream, reads, sent in _ordered(now, before)[:limit]:
        table.add_row(
            Text(stream_name(stream)),
            f"{stream['readers']:,}",
            rate(reads) if before else f"{reads:,}",
            ratio(stream["hit_ratio"]),
            size(sent),
            size(stream["bytes"]),
            stream_state(stream),
        )
    return table


def _ordered(now: Look, before: Look | None) -> list[tuple[Mapping[str, Any], float, float]]:
    """Return streams with their reads and sent bytes, per second or since the start, the busiest first."""
    if before is None:
        return [(stream, stream["reads"], stream["sent_bytes"]) for stream in now.streams]
    known = {stream["id"]: stream for stream in before.streams}
    took_s = now.overview["uptime_s"] - before.overview["uptime_s"]
    rows = []
    for stream in now.streams:
        # Give a stream that is not in the earlier snapshot a rate of 0.
        old = known.get(stream["id"], stream)
        reads, sent = stream["reads"] - old["reads"], stream["sent_bytes"] - old["sent_bytes"]
        rows.append((stream, max(0, reads) / took_s, max(0, sent) / took_s))
    match now.by:
        case "requests":
            rows.sort(key=lambda row: row[1], reverse=True)
        case "bytes":
            rows.sort(key=lambda row: row[2], reverse=True)
    return rows


def _requests(overview: Mapping[str, Any]) -> int:
    """Return the number of completed requests."""
    return sum(map(_sum, overview["requests"].values()))


def _sum(counts: Mapping[str, int]) -> int:
    return sum(int(count) for count in counts.values())
