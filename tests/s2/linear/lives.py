"""Streams that are deleted and created again past the gateway, all the time: whatever is read has to be of one life.

Two basins have a stream of the same name, and all records have the same timestamp, so that only their content tells the
lives and the basins apart.  Reads come by the hosts of a zone as S2, and by a bridged route as Durable Streams.  An
answer may belong to an earlier life, because a held range is read from memory; but it has no records of two lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Final

import aiohttp
import orjson
import uvloop
from yarl import URL

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.faults import When
from gateway.origin.s2.app import RunningS2Origin, S2OriginSettings, start_s2_origin
from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf, session
from gateway.s2.session import FrameReader, Message

_ZONE: Final = "b.example.test"
_BRIDGE: Final = "bridge.example.test"
_BASINS: Final = ("first-basin", "second-basin")
_TIMESTAMP: Final = 1
_MOST_RECORDS: Final = 6
"""Most records of one append, and of a stream as it is created."""
_LONGEST_S: Final = 60.0
_READERS: Final = 6


@dataclass
class Lives:
    """The findings of a run."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)

    def saw(self, how: str, basin: str, bodies: Sequence[str]) -> None:
        """An answer has brought records with these bodies, in this order."""
        self.answers += 1
        parts = [body.split("/") for body in bodies]
        numbers = [int(number) for _, _, number in parts]
        is_of_one = len({(of, life) for of, life, _ in parts}) <= 1 and all(of == basin for of, _, _ in parts)
        if not is_of_one or numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else ()):
            self.wrong.append(f"{how} of {basin}: {', '.join(bodies)}")


def run_lives(seed: int, *, changes: int = 60) -> Lives:
    """Run once, in an event loop of its own, until the streams have changed so often."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(Random(seed), changes))


async def _run(rng: Random, changes: int) -> Lives:
    found = Lives()
    async with asyncio.timeout(_LONGEST_S), AsyncExitStack() as stack:
        origin = await start_s2_origin(S2OriginSettings())
        stack.push_async_callback(lambda: origin.stop(grace_s=0))
        route = {"origin": origin.url, "protocol": "s2", "origin_http": rng.choice(["1.1", "2"])}
        config = GatewayConfig.model_validate(
            {
                "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 2},
                "routes": [
                    {"name": "s2", "host": f"*.{_ZONE}", **route},
                    {"name": "bridge", "host": _BRIDGE, "present": "durable-streams", **route},
                ],
            }
        )
        gateway = await start_gateway(config, rng=Random(rng.random()))
        stack.push_async_callback(gateway.stop)
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, auto_decompress=False))
        writers = [_Writer(origin, http, basin, Random(rng.random())) for basin in _BASINS]
        for writer in writers:
            await writer.create_basin()
        readers = [
            asyncio.ensure_future(_Reader(http, gateway.gateway_url, found, Random(rng.random())).run())
            for _ in range(_READERS)
        ]
        await asyncio.gather(*(writer.run(changes) for writer in writers))
        for reader in readers:
            reader.cancel()
        for ended in await asyncio.gather(*readers, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                raise ended if isinstance(ended, BaseException) else AssertionError(ended)
    return found


@dataclass
class _Writer:
    """Appends to one stream at the origin, and deletes and creates it."""

    origin: RunningS2Origin
    http: aiohttp.ClientSession
    basin: str
    rng: Random
    life: int = 0
    records: int = 0

    async def create_basin(self) -> None:
        await self._send("POST", "/v1/basins", {"basin": self.basin, "config": {"create_stream_on_append": True}})
        await self._append()

    async def run(self, changes: int) -> None:
        for _ in range(changes):
            if self.rng.random() < 0.5:
                await self._append()
                continue
            # Some answers are held until the stream is another one.
            kind = self.rng.choice([Call.READ, Call.READ_SESSION])
            when = self.rng.choice([When.REQUEST, When.REPLY])
            gate = self.origin.origin.faults.hold(kind=kind, when=when, times=1)
            await self._send("DELETE", "/v1/streams/stream", None)
            self.life, self.records = self.life + 1, 0
            await self._append()
            gate.release()
            gate.remove()

    async def _append(self) -> None:
        added = range(self.records, self.records + self.rng.randint(1, _MOST_RECORDS))
        bodies = [f'"{self.basin}/{self.life}/{number}"' for number in added]
        records = [{"body": body, "timestamp": _TIMESTAMP} for body in bodies]
        await self._send("POST", "/v1/streams/stream/records", {"records": records})
        self.records = added.stop
        # The readers' turn.
        await asyncio.sleep(self.rng.choice([0, 0.002, 0.01]))

    async def _send(self, method: str, path: str, body: object) -> None:
        headers = {"Authorization": "Bearer token", "s2-basin": self.basin, "Content-Type": "application/json"}
        data = None if body is None else orjson.dumps(body)
        async with self.http.request(method, self.origin.url + path, data=data, headers=headers) as reply:
            assert reply.status < 300, await reply.text()


@dataclass
class _Reader:
    """Reads in all ways through the gateway."""

    http: aiohttp.ClientSession
    url: str
    found: Lives
    rng: Random

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            basin = self.rng.choice(_BASINS)
            await self.rng.choice([self._unary, self._unary, self._session, self._bridged])(basin)

    def _query(self) -> str:
        start, count = self.rng.randrange(2 * _MOST_RECORDS), self.rng.randint(1, 2 * _MOST_RECORDS)
        return self.rng.choice(
            [
                "seq_num=0",
                f"seq_num={start}",
                f"seq_num=0&count={count}",
                f"seq_num={start}&count={count}",
                f"timestamp={_TIMESTAMP}&count={count}",
                f"tail_offset={count}",
            ]
        )

    async def _get(self, host: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        sent = {"Host": host, "Authorization": "Bearer token", "Accept-Encoding": "identity", **headers}
        async with self.http.get(URL(self.url + path, encoded=True), headers=sent) as reply:
            return reply.status, await reply.read()

    async def _unary(self, basin: str) -> None:
        query = self._query()
        status, body = await self._get(f"{basin}.{_ZONE}", f"/v1/streams/stream/records?{query}", {})
        if status == 200:
            self.found.saw(query, basin, [orjson.loads(one["body"]) for one in orjson.loads(body)["records"]])

    async def _session(self, basin: str) -> None:
        query = f"{self._query().partition('&')[0]}&count={self.rng.randint(1, 2 * _MOST_RECORDS)}"
        headers = {"Content-Type": session.CONTENT_TYPE}
        status, body = await self._get(f"{basin}.{_ZONE}", f"/v1/streams/stream/records?{query}", headers)
        if status == 200:
            batches = [
                protobuf.decode_read_batch(one.body) for one in FrameReader().feed(body) if isinstance(one, Message)
            ]
            records = [record for batch in batches for record in batch.records]
            self.found.saw(f"session, {query}", basin, [orjson.loads(record.body) for record in records])

    async def _bridged(self, basin: str) -> None:
        offset = "-1" if self.rng.random() < 0.5 else f"{self.rng.randrange(2 * _MOST_RECORDS):020d}"
        status, body = await self._get(_BRIDGE, f"/{basin}/stream?offset={offset}", {})
        if status == 200:
            self.found.saw(f"bridged, {offset}", basin, orjson.loads(body))
