"""Write a synthetic access log with a given number of lines, deterministically, a million lines in seconds.

What it is like: a dozen nodes and four routes, streams whose readers are few for most and very many for some (a power
law), clients with a browser each, catch-up reads, long-polls and SSE in the shares that a page with live data
makes, offsets that go on from read to read, outcomes as the gateway gives them when nearly everything is answered from
the tape.  The traffic of a day has its night.  One line in a thousand comes twice, as a sink writes that was not sure;
one in five thousand is torn or no line at all.  Lines come in the order of time, as in a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BEGIN: Final = 1_793_491_200
"""2026-11-01T00:00:00Z."""
DAYS: Final = 2
FILE_LINES: Final = 1_000_000
TWICE: Final = 1_000
TORN: Final = 5_000

_SLICE: Final = 250_000
_STREAMS: Final = 20_000
_CLIENTS: Final = 30_000
_AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.0 Safari/605",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    "durable-streams-client/0.3.1 node/24",
    "python-durable-streams/0.1.0",
    "curl/8.14.1",
)
_ROUTES: Final = ("chat", "feeds", "agents", "default")
_MODES: Final = ("longpoll", "catchup", "sse", "append", "head")
_MODE_SHARES: Final = (0.62, 0.27, 0.05, 0.05, 0.01)
_METHODS: Final = {"append": "POST", "head": "HEAD"}
_OUTCOMES: Final = {
    "longpoll": (("followed", 0.93), ("hit", 0.05), ("failed", 0.02)),
    "catchup": (("hit", 0.82), ("joined", 0.07), ("revalidated", 0.05), ("collapsed", 0.03), ("miss", 0.03)),
    "sse": (("followed", 0.97), ("failed", 0.03)),
    "append": (("pass", 0.98), ("refused", 0.02)),
    "head": (("pass", 1.0),),
}
_REASONS: Final = {"longpoll": ("answered", "timed_out", "left"), "sse": ("lifetime", "left", "slow")}


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: bytes, lines, and how many of them come for the second time or are none."""

    size: int
    lines: int
    twice: int
    torn: int


def write_log(folder: Path, lines: int, seed: int = 5) -> Written:
    """Write `lines` lines into files as a gateway sets them aside, the last being `access.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    size = twice = torn = 0
    written = 0
    number = 0
    while written < lines:
        count = min(FILE_LINES, lines - written)
        last = written + count == lines
        name = "access.log" if last else f"access.log.20261101T{number // 60:04d}{number % 60:02d}Z"
        with (folder / name).open("wb") as file:
            for text, more_twice, more_torn in _slices(written, count, lines, seed):
                file.write(text)
                size += len(text)
                twice += more_twice
                torn += more_torn
        written += count
        number += 1
    return Written(size, lines, twice, torn)


def _slices(begin: int, count: int, lines: int, seed: int) -> Iterator[tuple[bytes, int, int]]:
    for at in range(begin, begin + count, _SLICE):
        yield _slice(at, min(_SLICE, begin + count - at), lines, seed)


def _slice(begin: int, count: int, lines: int, seed: int) -> tuple[bytes, int, int]:
    """Lines `begin` to `begin + count` of all, and how many of them are there twice or torn."""
    random = np.random.default_rng([seed, begin])
    text = _lines(random, begin, count, lines).to_numpy(zero_copy_only=False)
    numbers = np.arange(begin, begin + count)
    # A line that comes twice comes a little later, in the place of one that is then not there.
    twice = np.flatnonzero((numbers % TWICE == TWICE - 1) & (np.arange(count) >= 700))
    text[twice] = text[twice - 700]
    torn = np.flatnonzero(numbers % TORN == TORN // 2)
    for index in torn:
        text[index] = text[index][: 40 + index % 97]
    return "\n".join([*text, ""]).encode(), len(twice), len(torn)


def _lines(random: np.random.Generator, begin: int, count: int, lines: int) -> Any:
    """The lines' texts."""
    # Two days, each with its night: where a line is among all gives its time.
    part = (begin + np.arange(count)) / lines
    day = part * DAYS
    time = BEGIN + 86_400 * (day - 0.12 * np.sin(2 * np.pi * day))
    mode = random.choice(len(_MODES), size=count, p=_MODE_SHARES)
    rank = np.minimum(random.zipf(1.25, size=count), _STREAMS) - 1
    # Whose stream it is decides who reads it: a reader has a few streams and keeps to them.
    client = (rank * 7_919 + random.integers(0, 2 + _CLIENTS // (rank + 1))) % _CLIENTS
    route = rank % len(_ROUTES)
    duration = np.where(
        mode == 0,
        np.minimum(random.exponential(9.0, count), 20.0),
        np.where(mode == 2, random.uniform(2.0, 65.0, count), random.lognormal(-7.0, 1.2, count)),
    )
    sent = np.where(mode <= 2, (random.lognormal(6.2, 1.3, count)).astype(np.int64), 0)
    rate = 1 + 400 // (1 + rank)
    ahead = ((time - BEGIN) * rate).astype(np.int64)
    behind = np.where(
        mode == 1, (ahead * random.uniform(0, 1, count)).astype(np.int64), ahead - (duration * rate).astype(np.int64)
    )
    is_first = (mode == 1) & (random.uniform(0, 1, count) < 0.3)
    draw = random.uniform(0, 1, count)
    outcome = np.empty(count, dtype=object)
    reason = np.full(count, "", dtype=object)
    for index, name in enumerate(_MODES):
        at = mode == index
        shares = np.cumsum([share for _, share in _OUTCOMES[name]])
        found = np.array([word for word, _ in _OUTCOMES[name]], dtype=object)
        outcome[at] = found[np.searchsorted(shares, draw[at], side="right").clip(max=len(found) - 1)]
        if reasons := _REASONS.get(name):
            reason[at] = np.array([f',"close_reason":"{word}"' for word in reasons], dtype=object)[
                (draw[at] * 997).astype(np.int64) % len(reasons)
            ]
    failed = np.isin(outcome, ["failed"])
    refused = np.isin(outcome, ["refused"])
    went = np.isin(outcome, ["miss", "joined", "pass", "revalidated"])
    status = np.where(failed, 502, np.where(refused, 409, np.where(mode == 3, 204, 200)))
    fetched = np.where(np.isin(outcome, ["miss", "joined"]), sent, 0)
    asked = np.where(went, ',"origin_requests":1', "")
    shared = np.where(outcome == "collapsed", ',"collapsed":4', np.where(outcome == "miss", ',"collapsed":1', ""))
    live = np.where((mode == 0) | (mode == 2), 1 + 2_000 // (1 + rank), 0)

    def words(choices: tuple[str, ...], which: Any) -> Any:
        return pa.array(np.array(choices, dtype=object)[which])

    def number(values: Any) -> Any:
        return pc.cast(pa.array(values), pa.string())

    def decimals(values: Any) -> Any:
        micros = np.rint(values * 1e6).astype(np.int64)
        whole, rest = np.divmod(micros, 1_000_000)
        return pc.binary_join_element_wise(number(whole), pc.utf8_lpad(number(rest), 6, "0"), ".")

    def offset(values: Any) -> Any:
        low = pc.utf8_lpad(number(values), 16, "0")
        return pc.binary_join_element_wise("0000000000000000", low, "_")

    ids = np.char.mod("5eed00c0ffee.%x.", (begin + np.arange(count)) // 256)
    ends = np.char.mod("%x", (begin + np.arange(count)) % 256)
    start = pc.if_else(pa.array(is_first), pa.scalar("-1"), offset(np.maximum(behind, 0)))
    start = pc.if_else(pa.array(mode == 3), pa.scalar(""), pc.binary_join_element_wise(',"start":"', start, '"', ""))
    subscribers = pc.if_else(
        pa.array(live > 0), pc.binary_join_element_wise(',"subscribers":', number(live), ""), pa.scalar("")
    )
    pieces = [
        '{"time":',
        decimals(time),
        ',"id":"',
        pa.array(ids),
        pa.array(ends),
        '","v":1,"node":"edge-',
        number(rank % 12),
        '","route":"',
        words(_ROUTES, route),
        '","stream":"/',
        words(_ROUTES, route),
        "/room-",
        number(rank),
        '","method":"',
        words(tuple(_METHODS.get(name, "GET") for name in _MODES), mode),
        '","mode":"',
        words(_MODES, mode),
        '","status":',
        number(status),
        ',"outcome":"',
        pa.array(outcome, pa.string()),
        '","duration_s":',
        decimals(duration),
        ',"first_byte_s":',
        decimals(duration * 0.97),
        start,
        ',"next_offset":"',
        offset(ahead),
        '","sent_bytes":',
        number(sent),
        ',"fetched_bytes":',
        number(fetched),
        pa.array(asked),
        pa.array(shared),
        subscribers,
        pa.array(reason, pa.string()),
        ',"is_final":true,"client":"10.',
        number(client // 65_536),
        ".",
        number(client // 256 % 256),
        '.0","user_agent":"',
        words(_AGENTS, client % len(_AGENTS)),
        '"}',
        "",
    ]
    return pc.binary_join_element_wise(*pieces)
