"""Generated gold tables of a morning of traffic: the same every time, with everything that a report has to cope with.

Rows are plain values, which tests add up themselves; no Spark is needed.  The morning has a quiet
start (tapes are filled, and the origin sends more than readers receive), a rush, a gap of 20 minutes without requests,
an origin that fails for a while, and hostile names.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

import pyarrow as pa
from datasketches import hll_sketch, kll_doubles_sketch, tgt_hll_type

from gateway.pipeline import tables
from gateway.pipeline.parquet import arrow_schema
from gateway.pipeline.report.gather import Gold
from gateway.pipeline.tables import Table

BEGAN: Final = datetime(2026, 11, 20, 22, 30, tzinfo=UTC)
MINUTES: Final = 420
GAP: Final = range(200, 220)
FAILING: Final = range(300, 312)
ROUTES: Final = ("default", "orders", "chat-<b>x</b>")
PROTOCOLS: Final = {route: "s2" if route == "orders" else "durable-streams" for route in ROUTES}
EVIL: Final = "/v1/stream/</script><img src=x onerror=window.ran=1>"
EVIL_AGENT: Final = '=HYPERLINK("http://evil.example","x")"\'><script>window.ran=2</script>\u202eexe.gpj'
LONG: Final = "/v1/stream/" + "a-very-long-name-without-a-place-to-break-it/" * 5 + "end"
_READ_OUTCOMES: Final = ("hit", "stale_if_error", "collapsed", "followed", "joined", "revalidated", "miss", "pass")

Row = tuple[Any, ...]


def day(at: datetime) -> Any:
    return at.date()


def minute(nth: int) -> datetime:
    return BEGAN + timedelta(minutes=nth)


def traffic() -> list[Row]:
    """Rows of `tables.TRAFFIC`."""
    rng = random.Random(1)
    rows: list[Row] = []
    for nth in range(MINUTES):
        if nth in GAP:
            continue
        at = minute(nth)
        rush = 30 + 400 * math.exp(-(((nth - 150) / 60) ** 2)) + 150 * math.exp(-(((nth - 340) / 30) ** 2))
        for route, weight in zip(ROUTES, (1.0, 0.4, 0.12), strict=True):
            for mode, outcome, part, asked in (
                ("catchup", "hit", 0.50, 0.0),
                ("catchup", "collapsed", 0.08, 0.0),
                ("catchup", "joined", 0.06, 0.4),
                ("catchup", "revalidated", 0.03, 0.4),
                ("catchup", "miss", 0.05, 1.0),
                ("longpoll", "followed", 0.18, 0.02),
                ("sse", "followed", 0.06, 0.01),
                ("catchup", "pass", 0.01, 1.0),
                ("append", "pass", 0.05, 1.0),
            ):
                if nth < 8 and outcome == "hit":
                    continue
                requests = int(rush * weight * part * rng.uniform(0.8, 1.2))
                if not requests:
                    continue
                sent = requests * rng.randrange(2_000, 60_000) if mode != "append" else 0
                fetched = int(sent * asked * (4 if nth < 8 else 1)) * (60 if nth == 2 else 1)
                # Half of it is coded, to a fifth of its size.
                saved = sent * 2 // 5
                # A first reader that retries is charged with two.
                told = (
                    requests,
                    sent - saved,
                    saved,
                    fetched,
                    int(requests * asked),
                    requests - int(requests * asked * 0.9),
                )
                rows.append((day(at), at, route, PROTOCOLS[route], mode, outcome, *told))
            if nth in FAILING:
                reads = day(at), at, route, PROTOCOLS[route], "catchup"
                rows.append((*reads, "failed", int(rush * weight * 0.1) + 1, 900, 0, 0, 20, 0))
                rows.append(
                    (
                        *reads,
                        "stale_if_error",
                        int(rush * weight * 0.2) + 1,
                        90_000,
                        0,
                        0,
                        0,
                        int(rush * weight * 0.2) + 1,
                    )
                )
    return rows


def samples(name: str) -> list[tuple[datetime, str, str, float]]:
    """Minute, route, mode and seconds of single requests, from which the sketches are made; `name` is the seed."""
    rng = random.Random(name)
    return [
        (minute(nth), route, mode, rng.lognormvariate(middle + (1.5 if nth in FAILING else 0.0), 1.1))
        for nth in range(MINUTES)
        if nth not in GAP
        for route in ROUTES
        for mode, middle in (("catchup", -6.0), ("append", -4.5))
        for _ in range(12)
    ]


def errors() -> list[Row]:
    rows: list[Row] = []
    for nth in FAILING:
        rows.append((day(minute(nth)), minute(nth), "default", "catchup", 502, "failed", 40 + nth))
        rows.append((day(minute(nth)), minute(nth), "orders", "catchup", 504, "failed", 5))
    for nth in range(0, 180, 9):
        rows.append((day(minute(nth)), minute(nth), "-", "other", 404, "refused", 3))
        rows.append((day(minute(nth)), minute(nth), ROUTES[2], "catchup", 410, "pass", 2))
    rows.append((day(minute(77)), minute(77), "default", "sse", 0, "aborted", 7))
    return rows


def reconnects() -> list[Row]:
    return [
        (day(minute(nth)), minute(nth), "default", 900 if nth == 312 else 4, 850 if nth == 312 else 4, 4.0, nth == 312)
        for nth in range(0, MINUTES, 2)
        if nth not in GAP
    ]


def streams() -> list[tuple[datetime, str, str, int, int, int, int]]:
    """Hour, route, stream, requests, bytes read and fetched, and number of readers."""
    names = [EVIL, LONG, *(f"/v1/stream/room-{nth}" for nth in range(30)), "/v1/stream/\u202egnp.exe"]
    return [
        (
            BEGAN.replace(minute=0) + timedelta(hours=hour),
            ROUTES[nth % 3],
            stream,
            9_000 // (nth + 1) + hour,
            40_000_000 // (nth + 1),
            2_000_000 // (nth + 1),
            50 + nth,
        )
        for hour in range(7)
        for nth, stream in enumerate(names)
    ]


def fan_out() -> list[Row]:
    hour = BEGAN.replace(minute=0)
    rows = []
    for route in ROUTES[:2]:
        for mode, last in (("longpoll", 10), ("sse", 12), ("catchup", 5)):
            for power in range(last + 1):
                if power == 3:
                    continue
                at_least = 2**power
                number = int(5_000 * math.exp(-((power - 6) ** 2) / 9)) if mode != "catchup" else 4_000 >> power * 2
                rows.append((day(hour), hour, route, mode, at_least, number + 1, at_least + at_least // 2))
    return rows


def slow_consumers() -> list[Row]:
    hour = BEGAN.replace(minute=0)
    return [
        (day(hour), hour, "default", EVIL, f"10.0.0.{nth}", EVIL_AGENT, 20 - nth, 1_000_000 * nth) for nth in range(14)
    ]


def closed_loops() -> list[Row]:
    return [(day(minute(nth)), minute(nth), "orders", LONG, "10.9.9.9", EVIL_AGENT, 118) for nth in range(40)]


def anomalies() -> list[Row]:
    hour = BEGAN.replace(minute=0) + timedelta(hours=4)
    return [
        (day(hour), hour, "default", "hit_ratio", 0.31, 0.94, 6, -9.5),
        (day(hour), hour, "default", "fetched_bytes", 8.0e9, 2.0e8, 6, 21.0),
        (day(hour), hour, ROUTES[2], "requests", 91_000.0, 30_000.0, 7, 4.2),
    ]


def curve() -> list[Row]:
    rows: list[Row] = []
    for policy, bend, error in (("lru", 1.0, 0.012), ("s3-fifo", 0.86, 0.02), ("sieve", 0.9, None)):
        for nth in range(24):
            cache_bytes = int(2**20 * 2 ** (nth / 2))
            left = 0.06 + 0.9 * bend * math.exp(-nth / 7)
            rows.append((policy, cache_bytes, left * 0.9, left, error, 4_812_334, 61_200, 0.1))
    return rows


PLAN: Final[dict[str, Any]] = {
    "version": 1,
    "made_at": "2026-11-21T06:00:00Z",
    "made_from": {
        "first": "2026-11-20T22:30:00Z",
        "last": "2026-11-21T05:29:59Z",
        "lines": 512334,
        "nodes": ["edge-a"],
    },
    "target_hit_ratio": 0.85,
    "memory": {
        "cache_bytes": 201326592,
        "policy": "s3-fifo",
        "expected_hit_ratio": 0.866,
        "expected_byte_hit_ratio": 0.851,
        "error": 0.02,
    },
    "pin": [
        {
            "route": "default",
            "stream": f"/v1/stream/room-{nth}",
            "bytes": 1 << 20,
            "reason": f"{31 - nth} % of all reads.",
        }
        for nth in range(7)
    ],
    "do_not_store": [
        {
            "route": "default",
            "stream": "/v1/stream/<img%20onerror=1>",
            "bytes": 70 << 20,
            "reason": "Read once: <script>window.ran=3</script> of 70 MiB.",
        }
    ],
}


def tables_of(*only: Table) -> dict[str, pa.Table]:
    """Every table, or `only` these, by its place, as a lake's gold has it."""
    every = _every_table()
    return {table.place: every[table.place] for table in only} if only else every


@cache
def _every_table() -> dict[str, pa.Table]:
    found = {
        table.place: _table(table, rows)
        for table, rows in (
            (tables.TRAFFIC, traffic()),
            (tables.ERRORS, errors()),
            (tables.RECONNECTS, reconnects()),
            (tables.FAN_OUT, fan_out()),
            (tables.SLOW_CONSUMERS, slow_consumers()),
            (tables.USAGE, []),
            (tables.CLOSED_LOOPS, closed_loops()),
            (tables.ANOMALIES, anomalies()),
            (tables.CURVE, curve()),
        )
    }
    by_minute: defaultdict[tuple[datetime, str, str], list[float]] = defaultdict(list)
    for at, route, mode, value in samples("duration"):
        by_minute[at, route, mode].append(value)
    found[tables.LATENCY.place] = _named(
        tables.LATENCY,
        [
            {
                **dict(zip(("minute", "route", "mode"), key, strict=True)),
                "requests": len(values),
                "duration_sketch": seconds_sketch(values),
                "first_byte_sketch": seconds_sketch([value / 2 for value in values]),
            }
            for key, values in by_minute.items()
        ],
    )
    delays: defaultdict[tuple[datetime, str], list[float]] = defaultdict(list)
    for at, route, mode, value in samples("delay"):
        if mode == "catchup":
            delays[at, route].append(value)
    found[tables.DELIVERY.place] = _named(
        tables.DELIVERY,
        [
            {"minute": at, "route": route, "delay_sketch": seconds_sketch(values), "delay_max_s": max(values)}
            for (at, route), values in delays.items()
        ],
    )
    found[tables.TOP_STREAMS.place] = _named(
        tables.TOP_STREAMS,
        [
            {
                "hour": hour,
                "by": by,
                "route": route,
                "protocol": PROTOCOLS[route],
                "stream": stream,
                "requests": requests,
                "sent_bytes": read_bytes - read_bytes // 3,
                "saved_bytes": read_bytes // 3,
                "fetched_bytes": fetched,
                # Every hour ten readers leave and ten new ones arrive.
                "readers_sketch": readers_sketch(range(int(hour.timestamp()) // 360, int(hour.timestamp()) // 360 + n)),
            }
            for hour, route, stream, requests, read_bytes, fetched, n in streams()
            for by in ("requests", "bytes")
        ],
    )
    return found


def wide(steps: int, step_s: int) -> dict[str, pa.Table]:
    """Tables of so many steps of time, with very large and very small values."""
    times = [datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=step_s * at) for at in range(steps)]
    taken = seconds_sketch([0.00001] * 60 + [0.002] * 35 + [4000.0] * 5)
    read = ("default", "durable-streams", "catchup")
    found: dict[Table, list[Row]] = {
        tables.TRAFFIC: [
            row
            for nth, at in enumerate(times)
            for row in (
                (day(at), at, *read, "hit", 10**9, 2**40, 0, 2**41, nth * 30, nth),
                (day(at), at, *read, "miss", nth, 0, 0, 0, 0, 0),
            )
        ],
        tables.FAN_OUT: [
            (day(times[0]), times[0], "default", mode, 2**power, number, 2**power)
            for power in range(20)
            for mode, number in (("sse", 5), ("catchup", 3))
        ],
        tables.CURVE: [("lru", 1000 << power, 1.0, 1.0, None, 9, 9, 1.0) for power in range(min(steps, 28))],
    }
    waits = [{"minute": at, "route": "default", "mode": "catchup", "requests": 100} for at in times]
    return {table.place: _table(table, rows) for table, rows in found.items()} | {
        tables.LATENCY.place: _named(
            tables.LATENCY, [{**row, "duration_sketch": taken, "first_byte_sketch": taken} for row in waits]
        ),
        tables.DELIVERY.place: _named(
            tables.DELIVERY, [{"minute": at, "route": "default", "delay_sketch": taken} for at in times]
        ),
    }


def gold(of: Mapping[str, pa.Table] | None = None) -> Gold:
    """These tables, by default the made ones, as a report reads them."""
    known = tables_of() if of is None else of

    def read(table: Table, columns: Sequence[str]) -> pa.RecordBatchReader:
        schema = arrow_schema(table, columns)
        found = known.get(table.place, schema.empty_table())
        return found.select(columns).cast(schema).to_reader(max_chunksize=1_000)

    return read


def seconds_sketch(values: Iterable[float]) -> bytes:
    """A KLL sketch of seconds as the pipeline makes it."""
    sketch = kll_doubles_sketch(400)
    for value in values:
        sketch.update(value)
    return bytes(sketch.serialize())


def readers_sketch(readers: Iterable[int]) -> bytes:
    """A HyperLogLog sketch of readers as the pipeline makes it."""
    sketch = hll_sketch(12, tgt_hll_type.HLL_8)
    for reader in readers:
        sketch.update(reader)
    return bytes(sketch.serialize_updatable())


def _table(table: Table, rows: Iterable[Sequence[Any]]) -> pa.Table:
    names = [column.name for column in table.columns]
    return _named(table, [dict(zip(names, row, strict=True)) for row in rows])


def _named(table: Table, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows by column; NULL for columns that they leave out."""
    return pa.Table.from_pylist(list(rows), arrow_schema(table, [column.name for column in table.columns]))
