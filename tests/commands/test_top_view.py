"""The view of `top` from two snapshots of a gateway."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gateway.commands.figures import share
from gateway.commands.origins import origin_words, worst
from gateway.commands.top_view import Look, view
from tests.origins import OPEN, WORDS, Row, origin_row


def stream(path: str, reads: int, sent_bytes: int, readers: int = 0) -> dict[str, Any]:
    return {
        "id": path,
        "path": path,
        "query": "",
        "bytes": 2048,
        "readers": readers,
        "reads": reads,
        "hits": reads // 2,
        "hit_ratio": reads // 2 / reads if reads else None,
        "sent_bytes": sent_bytes,
        "is_closed": False,
        "is_followed": readers > 0,
    }


def look(
    uptime_s: float,
    streams: list[dict[str, Any]],
    hits: int,
    misses: int,
    by: str = "requests",
    spared: tuple[float | None, float | None] = (0.9732, 0.99),
    origins: list[Row] | None = None,
) -> Look:
    overview = {
        "version": "9.9",
        "node": "edge-1",
        "uptime_s": uptime_s,
        "is_draining": False,
        "is_ready": True,
        "spared": {"window_s": 10.4, "requests_spared": spared[0], "bytes_spared": spared[1]},
        "requests": {"catchup": {"hit": hits, "miss": misses}, "sse": {"hit": 0, "miss": 0}},
        "upstream_requests": {"catchup": misses},
        "downstream_bytes": 1024 * (hits + misses),
        "subscribers": {"sse": 3, "longpoll": 4},
        "connections": 1_234,
        "cache": {"bytes": 1 << 20, "limit_bytes": 1 << 28, "tapes": 2, "evictions": 0},
        "followed_streams": 1,
    }
    return Look(overview, [origin_row()] if origins is None else origins, streams, by)


def lines(now: Look, before: Look | None, limit: int = 10, trouble: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=120).print(view(now, before, limit, trouble))
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


FIRST = look(100.0, [stream("/a", 1_000, 5_000), stream("/b", 10, 100, readers=7)], hits=900, misses=110)
SECOND = look(102.0, [stream("/a", 1_001, 5_001), stream("/b", 50, 8_292, readers=7)], hits=990, misses=120)


def test_one_snapshot_shows_counts() -> None:
    shown = lines(FIRST, None)
    assert shown[0] == "durable-gateway 9.9  edge-1  up 1m 40s  ready"
    assert shown[1] == "origin spared 97.3% of reads, 99.0% of bytes in the last 10s   origin answers"
    assert shown[2] == "requests 1,010   origin requests 110   sent 1010.0 KiB"
    assert shown[3] == "subscribers 7   streams followed 1   connections 1,234   cache 1.0 MiB of 256.0 MiB in 2 tapes"
    assert shown[4].split() == ["stream", "readers", "reads", "hits", "sent", "held", "state"]
    assert shown[6].split() == ["/a", "0", "1,000", "50.0%", "4.9", "KiB", "2.0", "KiB"]
    assert shown[7].split() == ["/b", "7", "10", "50.0%", "100", "B", "2.0", "KiB", "live"]


def test_two_snapshots_show_rates() -> None:
    shown = lines(SECOND, FIRST)
    assert shown[2] == "requests 50/s   origin requests 5.0/s   sent 50.0 KiB/s"
    assert shown[4].split() == ["stream", "readers", "reads/s", "hits", "sent/s", "held", "state"]
    assert shown[6].split()[:6] == ["/b", "7", "20", "50.0%", "4.0", "KiB"]
    assert shown[7].split()[:6] == ["/a", "0", "0.5", "50.0%", "0", "B"]
    assert len(lines(SECOND, FIRST, limit=1)) == 7


@pytest.mark.parametrize(("by", "first"), [("requests", "/b"), ("bytes", "/b"), ("subscribers", "/a")])
def test_streams_are_ordered_by_rate_or_by_number_of_subscribers(by: str, first: str) -> None:
    # The API has already ordered by subscribers, and here it is said to have put /a first.
    now = Look(SECOND.overview, SECOND.origins, SECOND.streams, by)
    assert lines(now, FIRST)[6].split()[0] == first


def test_a_restarted_gateway_shows_counts_again() -> None:
    shown = lines(look(3.0, [stream("/a", 2, 10)], hits=1, misses=1), FIRST)
    assert shown[2].startswith("requests 2   origin requests 1   ")


def test_an_error_is_shown_above_the_last_snapshot() -> None:
    assert lines(FIRST, None, trouble="cannot connect")[0] == "cannot connect"


def test_names_are_not_markup() -> None:
    now = look(1.0, [stream("/[red]x", 1, 1)], hits=0, misses=0)
    assert any(line.startswith(" /[red]x") for line in lines(now, None))


@pytest.mark.parametrize(
    ("spared", "said"),
    [
        ((None, None), "– of reads, – of bytes"),
        ((1.0, 0.99996), "100.0% of reads, >99.9% of bytes"),
        ((-1.5, 0.0), "-150.0% of reads, 0.0% of bytes"),
    ],
)
def test_a_missing_share_is_a_dash_and_a_negative_one_is_shown(
    spared: tuple[float | None, float | None], said: str
) -> None:
    shown = lines(look(1.0, [], hits=0, misses=0, spared=spared), None)
    assert shown[1] == f"origin spared {said} in the last 10s   origin answers"


def test_100_percent_is_shown_only_for_all() -> None:
    assert [share(value) for value in (1.0, 0.99999, 0.9994)] == ["100.0%", ">99.9%", "99.9%"]


def test_an_unreachable_origin_is_shown_after_the_spared_share() -> None:
    shown = lines(look(1.0, [], hits=0, misses=0, origins=[OPEN]), None)
    assert shown[1].endswith("in the last 10s")
    assert shown[2] == "origin unreachable: connection refused, next try in 1.5 s"


@pytest.mark.parametrize(("origins", "words", "health"), WORDS)
def test_origins_in_words(origins: list[Row], words: str, health: str) -> None:
    assert (origin_words(origins), worst(origins)) == (words, health)
