"""Lines of silver for tests: the same for the same seed, and dense in the cases that the gold tables distinguish.

Days are few and quiet except for these cases: readers that wait for appends, streams that are created anew, a storm,
readers that are cut off, loops on a closed stream, an hour unlike the same hour before, and noise in which everything
collides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from random import Random
from typing import Any, Final

import pyarrow as pa

from gateway.pipeline.tables import REQUESTS

FIRST: Final = date(2026, 11, 1)
DAYS: Final = 9
ROUTES: Final = ("chat", "docs", "-")
_TYPES: Final = {
    "date": pa.date32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us"),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
_EMPTY: Final[dict[str, Any]] = {
    "node": "west",
    "route": "chat",
    "protocol": "durable-streams",
    "stream": "/s",
    "partition": "",
    "method": "GET",
    "mode": "catchup",
    "status": 200,
    "outcome": "hit",
    "duration_s": 0.0,
    "sent_bytes": 0,
    "saved_bytes": 0,
    "fetched_bytes": 0,
    "origin_requests": 0,
    "is_final": True,
}

Line = dict[str, Any]


def line(time: datetime, **told: Any) -> Line:
    """One line; other fields are those of a hit without bytes."""
    found = {column.name: None for column in REQUESTS.columns}
    return {**found, **_EMPTY, "time": time, "day": time.date(), **told}


def arrow(lines: Sequence[Line]) -> pa.Table:
    """Lines as a table with silver's columns, each with an id; times are UTC without a zone."""
    numbered = [{**one, "id": one["id"] or f"line-{number}"} for number, one in enumerate(lines)]
    return pa.Table.from_pylist(
        numbered, pa.schema([(column.name, _TYPES[column.type]) for column in REQUESTS.columns])
    )


def at(day: int, hour: float = 0.0) -> datetime:
    """The time that many hours into a day of the log."""
    return datetime.combine(FIRST, time()) + timedelta(days=day, hours=hour)


def log(seed: int = 1, days: int = DAYS) -> list[Line]:
    """All lines of the log."""
    random = Random(seed)
    scenes = (_everyday, _deliveries, _sse, _slow, _closed, _s2, _noise)
    lines = [one for scene in scenes for one in scene(random, days)]
    return [{**one, **_PARTIES.get(one["client"], {})} for one in lines]


_PARTIES: Final[dict[str | None, dict[str, str]]] = {
    "10.0.0.1": {"principal": "ada", "tenant": "acme", "issuer": "https://one.test"},
    "10.0.0.2": {"principal": "ada", "tenant": "acme", "issuer": "https://other.test"},
    "10.0.0.3": {"principal": "key-1"},
    "10.3.0.1": {"tenant": "acme", "issuer": "https://one.test"},
}
"""For whom the requests of these clients are allowed; the others need no credential."""


def _everyday(random: Random, days: int) -> Iterator[Line]:
    """Catch-ups, writes and failures all day; the last day has an hour with five times as many, and one with none."""
    for day in range(days):
        for hour in range(24):
            for route in ROUTES[:2]:
                count = random.randint(4, 6) * (20 if route == "chat" and hour in (9, 10, 23) else 1)
                if day == days - 1 and route == "chat":
                    count = {9: count * 5, 10: 0}.get(hour, count)
                for _ in range(count):
                    yield _ordinary(random, at(day, hour), route)


def _ordinary(random: Random, hour: datetime, route: str) -> Line:
    kind = random.choices(
        ("hit", "revalidated", "joined", "miss", "collapsed", "stale_if_error", "pass", "refused", "failed", "aborted"),
        (60, 8, 8, 8, 6, 1, 4, 3, 1, 1),
    )[0]
    mode = {"pass": random.choice(("append", "head", "other", "create")), "refused": random.choice(("catchup", "sse"))}
    size = random.choice((0, 100, 5_000, 70_000))
    asks = kind in ("miss", "joined", "revalidated", "pass", "failed")
    return line(
        hour + timedelta(microseconds=random.randrange(3_600_000_000)),
        route="-" if kind == "refused" and random.random() < 0.5 else route,
        stream=f"/{route}/{min(int(random.paretovariate(0.7)), 150)}",
        node=random.choice(("west", "east")),
        mode=mode.get(kind, "catchup"),
        outcome=kind,
        status={"refused": random.choice((400, 404)), "failed": 502, "aborted": random.choice((0, 200))}.get(kind, 200),
        duration_s=0.0 if kind == "hit" else round(random.expovariate(100), 6),
        first_byte_s=None if kind == "aborted" else round(random.expovariate(200), 6),
        sent_bytes=size,
        saved_bytes=7 * size if size == 5_000 else 0,
        fetched_bytes=size if asks else 0,
        origin_requests=random.choice((1, 1, 1, 2)) if asks else 0,
        collapsed=random.randint(1, 40) if kind in ("miss", "collapsed") else None,
        client=random.choice(("10.0.0.1", "10.0.0.2", "10.0.0.3", None)),
        user_agent=random.choice(("reader/1", "reader/2", None)),
        start="-1",
        next_offset="0009",
    )


def _deliveries(random: Random, days: int) -> Iterator[Line]:
    """A stream with a writer and long-polling readers around midnight; half-way it is created anew."""
    now, offset = at(days - 2, 23.9), 0
    common = {"route": "docs", "stream": "/docs/live"}
    for number in range(120):
        waiting = now + timedelta(milliseconds=50)
        now += timedelta(seconds=random.randint(2, 9), microseconds=random.randrange(1_000_000))
        if number == 60:
            yield line(now, **common, method="DELETE", mode="delete", status=204, outcome="pass")
            now += timedelta(seconds=1)
            yield line(now, **common, method="PUT", mode="create", status=201, outcome="pass", next_offset="0000")
            offset = 0
            continue
        start, offset = f"{offset:04}", offset + random.randint(1, 3)
        end, took = f"{offset:04}", random.randrange(1_000, 30_000)
        node = random.choice(("west", "west", "east"))
        write = {"mode": "append", "method": "POST", "status": 204, "outcome": "pass", "next_offset": end, "node": node}
        yield line(now, **common, **write, duration_s=took / 1e6, origin_requests=1)
        if random.random() < 0.1:
            # The same append again, by an idempotent producer.
            yield line(now + timedelta(milliseconds=40), **common, **write, duration_s=0.001, origin_requests=1)
        for reader in range(random.randint(0, 4)):
            # Some are woken before the writer has its answer.
            answered = now + timedelta(microseconds=random.randrange(-took, 20_000))
            yield line(
                answered,
                **common,
                mode="longpoll",
                outcome="followed",
                close_reason="answered",
                duration_s=(answered - waiting).total_seconds(),
                start=start if random.random() < 0.9 else "now",
                next_offset=end,
                client=f"10.0.1.{reader}",
                subscribers=reader + 1,
                sent_bytes=10,
            )


def _sse(random: Random, days: int) -> Iterator[Line]:
    """Readers of planned age around midnight, and one minute in which all of them lose their connections twice."""
    for reader in range(30):
        now = at(days - 2, 22.5) + timedelta(seconds=random.randrange(60))
        told = {"stream": "/chat/room", "mode": "sse", "outcome": "followed", "client": f"10.1.0.{reader}"}
        storm = at(days - 1, 0.5) + timedelta(seconds=random.randrange(20))
        while now < at(days - 1, 1):
            ends = now + timedelta(seconds=random.randint(48, 60), microseconds=random.randrange(1_000_000))
            is_lost = now < storm <= ends
            ends = storm if is_lost else ends
            yield line(now + (ends - now) / 2, **told, subscribers=30, sent_bytes=5, is_final=False)
            yield line(
                ends,
                **told,
                user_agent="browser",
                duration_s=(ends - now).total_seconds(),
                close_reason="failed" if is_lost else "lifetime",
                subscribers=30,
                sent_bytes=20,
                fetched_bytes=20 if reader == 0 else 0,
            )
            now = ends + timedelta(milliseconds=random.choice((100, 900, 400_000 if random.random() < 0.1 else 5)))
            if is_lost:
                again = now + timedelta(milliseconds=20)
                yield line(again, **told, user_agent="browser", duration_s=0.01, close_reason="failed", subscribers=1)
                now = again + timedelta(milliseconds=10)


def _slow(random: Random, days: int) -> Iterator[Line]:
    """Readers that are cut off, and one that stays, alone in its minute."""
    yield line(at(days - 1, 4), mode="sse", outcome="miss", subscribers=1, sent_bytes=7, is_final=False)
    for _ in range(12):
        yield line(
            at(days - 1, random.uniform(0, 3)),
            stream=random.choice(("/chat/a", "/chat/b")),
            mode=random.choice(("sse", "longpoll")),
            outcome="aborted",
            close_reason="slow",
            subscribers=2,
            client=random.choice(("10.2.0.1", None)),
            sent_bytes=random.randrange(9_000),
        )


def _closed(random: Random, days: int) -> Iterator[Line]:
    """Readers at the end of a closed stream: one that loops, one that asks a few times, one that loops by catch-up
    reads."""
    minute = at(days - 1, 3)
    for reader, times, reason in (("loop", 25, None), ("patient", 9, None), ("waiter", 10, "closed")):
        for _ in range(times):
            yield line(
                minute + timedelta(seconds=random.uniform(1, 59)),
                stream="/chat/closed",
                mode="longpoll",
                status=204,
                outcome="hit",
                close_reason=reason,
                start="0042",
                next_offset="0042",
                user_agent=reader,
                subscribers=1,
            )
    for later, end in ((0, "0042"), (59, "0042"), (70, "0042"), (30, "0041")):
        for second in range(12):
            yield line(
                minute + timedelta(minutes=later, seconds=5 * second),
                stream="/chat/closed",
                start=end,
                next_offset=end,
                client="10.3.0.1",
                user_agent=f"catch-up {end}",
            )


def _s2(random: Random, days: int) -> Iterator[Line]:
    """Sessions of S2 whose limits are reached; a loop on a closed stream would look the same."""
    for number in range(40):
        yield line(
            at(days - 2, 12) + timedelta(seconds=number),
            route="records",
            protocol="s2",
            stream="/v1/streams/a?s2-basin=b",
            mode="sse",
            outcome="followed",
            close_reason="closed",
            duration_s=0.5,
            start=f"{0:020}",
            next_offset=f"{7:020}",
            sent_bytes=900,
            client="10.0.0.1",
            user_agent="reader/1",
            subscribers=1,
        )


def _noise(random: Random, days: int) -> Iterator[Line]:
    """Random events on few streams by few readers, within minutes around midnight."""
    for _ in range(1_500):
        mode = random.choice(("append", "append", "longpoll", "longpoll", "longpoll", "sse", "create", "delete"))
        reasons = ("answered", "answered", "timed_out", "closed", "lifetime", "drained", "left", "ended", None)
        yield line(
            at(days - 1, -0.05) + timedelta(microseconds=random.randrange(360_000_000)),
            route="docs",
            stream=f"/noise/{random.randrange(3)}",
            node=random.choice(("west", "west", "east")),
            mode=mode,
            status=random.choice((200, 200, 200, 204, 201, 404))
            if mode != "create"
            else random.choice((201, 200, 200)),
            outcome=random.choice(("hit", "followed", "pass", "refused")),
            start=random.choice((None, "now", "-1", *[f"000{n}" for n in range(10)])) if mode != "append" else None,
            next_offset=random.choice((None, *[f"000{n}" for n in range(10)])),
            duration_s=random.choice((0.0, 0.005, round(random.uniform(0, 20), 6))),
            first_byte_s=random.choice((None, 0.001)),
            close_reason=random.choice(reasons) if mode in ("longpoll", "sse") else None,
            subscribers=random.randint(0, 70) if mode in ("longpoll", "sse") else None,
            client=random.choice(("10.9.0.1", "10.9.0.2", None)),
            sent_bytes=random.randrange(100),
            is_final=random.random() < 0.95,
        )
