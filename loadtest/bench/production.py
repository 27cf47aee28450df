"""The additions of a deployment: an access log, trusted proxies, tokens, browsers, a rate limit; one by one and
together.

The same reads are measured with nothing set, as the other benchmarks do, and as they come in production: from many
clients whose header sections differ.  Each setting has a gateway of its own.  Peers get the headers of all settings
together, and write an access log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from joserfc import jwt
from joserfc.jwk import OKPKey

from loadtest.bench import live, live_client, wrk
from loadtest.bench.children import Child
from loadtest.bench.fetch import fetch_raw
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.live_client import NCHAN
from loadtest.bench.machine import BenchError, memory
from loadtest.bench.peers import PLAIN, More, fresh
from loadtest.bench.stage import Benchmark, Stage, Watch

NOTHING: Final = "nothing set"
TOKENS: Final = "shared tokens"
JUDGED: Final = "judged tokens"
"""The same tokens, each of which the gateway verifies and lets read."""
CLIENTS: Final = 500
READERS: Final = 500
GAP_US: Final = 50_000
JOINING: Final = 50
IDLE: Final = 5_000
_ORIGINS: Final = tuple(f"https://app{number}.example.org" for number in range(8))
_WARM_UPS: Final = 3
_WARM_UP_READERS: Final = 200
_HIT: Final = "/1k/production"

_TABLES: Final = '\n[log]\nsink = "file"\npath = "{folder}/access.log"\n'
_PROXY: Final = 'trusted_proxies = ["127.0.0.1/32"]\n'
SHARED: Final = 'credentials = "shared"\n'
CORS: Final = f"cors = {{ allow_origins = {list(_ORIGINS)!r} }}\n"
_LIMIT: Final = '\n[[rate_limit]]\nname = "each"\nrequests_per_s = 1000000\n'


_ISSUER: Final = "https://bench.invalid"
_JUDGED: Final = f"""
[[route.auth]]
by = "jwt"
issuer = "{_ISSUER}"
audience = ["bench"]
keys_file = "{{folder}}/jwks.json"
permissions = ["read /**"]
"""


@cache
def _key() -> OKPKey:
    return OKPKey.generate_key("Ed25519", {"kid": "bench"}, private=True)


@cache
def token(client: int) -> str:
    """A client's own token, valid for a day; gateways without rules do not look at it."""
    claims = {"iss": _ISSUER, "aud": "bench", "sub": f"client-{client}", "exp": int(time.time()) + 86_400}
    header = {"alg": "Ed25519", "kid": "bench", "typ": "at+jwt"}
    text: str = jwt.encode(header, claims, _key(), algorithms=["Ed25519"])
    return text


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to set up the gateway, and the clients that belong to it."""

    more: More = PLAIN
    has_proxy: bool = False
    has_tokens: bool = False
    has_browsers: bool = False

    def section(self, client: int, accept: str) -> str:
        """The header section of one client."""
        lines = ["Host: bench"]
        if self.has_browsers:
            lines += [
                f"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/{client % 40 + 100}.{client}",
                "Accept-Language: en-GB,en;q=0.8",
                f"Origin: {_ORIGINS[client % len(_ORIGINS)]}",
                f"Referer: {_ORIGINS[client % len(_ORIGINS)]}/chat/{client}",
                "Sec-Fetch-Mode: cors",
                "Sec-Fetch-Site: cross-site",
            ]
        else:
            lines.append("User-Agent: bench")
        lines.append(f"Accept: {accept}")
        if self.has_proxy:
            lines += [f"X-Forwarded-For: 10.7.{client // 250}.{client % 250 + 1}", "X-Forwarded-Proto: https"]
        if self.has_tokens:
            lines.append(f"Authorization: Bearer {token(client)}")
        return "\r\n".join(lines) + "\r\n\r\n"


ALL: Final = Setting(More(_PROXY, SHARED + CORS, _TABLES), has_proxy=True, has_tokens=True, has_browsers=True)
SETTINGS: Final = {
    GATEWAY: ALL,
    NOTHING: Setting(),
    "access log": Setting(More(tables=_TABLES)),
    "trusted proxy": Setting(More(server=_PROXY), has_proxy=True),
    TOKENS: Setting(More(route=SHARED), has_tokens=True),
    JUDGED: Setting(More(route=SHARED + _JUDGED), has_tokens=True),
    "browsers": Setting(More(route=CORS), has_browsers=True),
    "rate limit": Setting(More(tables=_LIMIT)),
}
"""The gateway's settings; the one that stands for the gateway is all of them together but the rate limit."""


@contextmanager
def _set_up(stage: Stage, peer: str, accept: str) -> Iterator[tuple[Child, Path]]:
    """A server of its own for a setting or a peer, and the file with its clients' header sections."""
    setting = SETTINGS.get(peer, ALL)
    folder = stage.folder / f"production-{peer.replace(' ', '-')}"
    folder.mkdir(exist_ok=True)
    sections = folder / "sections"
    sections.write_bytes("".join(setting.section(client, accept) for client in range(CLIENTS)).encode())
    if peer == JUDGED:
        (folder / "jwks.json").write_text(json.dumps({"keys": [_key().as_dict(private=False)]}))
    parts = (setting.more.server, setting.more.route, setting.more.tables)
    more = More(*(part.replace("{folder}", str(folder)) for part in parts))
    name = GATEWAY if peer in SETTINGS else peer
    with fresh(
        name, stage.tools, stage.cores, stage.peers, stage.folder, more=more, logs=peer not in SETTINGS
    ) as child:
        yield child, sections


def _hit(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with _set_up(stage, peer, "*/*") as (server, sections):
        load = wrk.Load(_HIT, script="sections.lua", arguments=[str(sections)])
        for _ in range(_WARM_UPS):
            fetch_raw(server.port, _HIT, {"Authorization": f"Bearer {token(0)}"})
        # Each token is verified at its first request, which takes as long as twenty hits.
        wrk.run(stage.tools.wrk, server.port, load, 3 if peer == JUDGED else 1, stage.cores.load)
        watch = Watch(stage, server)
        report = wrk.run(stage.tools.wrk, server.port, load, stage.seconds, stage.cores.load)
        sample = watch.sample(report.requests_per_s, report.requests)
        watch.expect_no_origin()
    return {"production-hit": sample}


def _poll(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with _set_up(stage, peer, "*/*") as (server, sections):
        argv = live_client.arguments(stage, peer, server, is_long_poll=True)
        argv += ["--subscribers", str(READERS), "--gap-us", str(GAP_US), "--seconds", str(stage.seconds)]
        report = live_client.run(stage, stage.tools.poll, [*argv, "--sections", str(sections)])
    return {"production-poll": live_client.rate(report, report["answers"])}


def _join(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with _set_up(stage, peer, "text/event-stream\r\nCache-Control: no-cache") as (server, sections):
        argv = live_client.arguments(stage, peer, server)
        argv += ["--concurrency", str(JOINING), "--seconds", str(stage.seconds), "--sections", str(sections)]
        report = live_client.run(stage, stage.tools.join, argv)
    return {"production-join": live_client.rate(report, report["joins"])}


def _memory(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with _set_up(stage, peer, "text/event-stream\r\nCache-Control: no-cache") as (server, sections):
        more = ["--sections", str(sections)]
        count = min(IDLE, stage.max_files - 256)
        with live.held(stage, peer, server, "sse", _WARM_UP_READERS, more=more):
            pass
        before = memory(server.pids)
        with live.held(stage, peer, server, "sse", count, more=more) as opened:
            after = memory(server.pids)
    if not count:
        raise BenchError("too few files may be open")
    return {"production-memory": Sample((after.pss_bytes - before.pss_bytes) / count, cpu_us=opened.cpu_us)}


def _targets(peer: str) -> Sequence[Target]:
    single = [one for one in SETTINGS if one not in (GATEWAY, NOTHING)]
    return (
        Target(Relation.AT_MOST_CPU, 1.6, NOTHING),
        Target(Relation.AT_MOST_CPU, 1.5, peer),
        *(Target(Relation.AT_MOST_CPU, 1.3, NOTHING, of=one) for one in single if one != JUDGED),
        Target(Relation.AT_MOST_CPU, 1.15, TOKENS, of=JUDGED),
    )


def benchmarks() -> list[Benchmark]:
    """All benchmarks of what a deployment adds."""
    kinds = (
        ("hit", "cached 1 KB as in production", "requests/s", "nginx", _hit),
        ("poll", "long-poll as in production, 500 read on", "answers/s", NCHAN, _poll),
        ("join", "SSE as in production, join at the tail and leave", "joins/s", NCHAN, _join),
    )
    memory_row = Row(
        "production-memory",
        "memory per idle SSE subscriber as in production",
        "bytes",
        (Target(Relation.AT_MOST, 2_600),),
        is_rate=False,
    )
    return [
        *(
            Benchmark(
                f"production-{name}",
                (Row(f"production-{name}", title, unit, _targets(peer)),),
                (*SETTINGS, peer),
                measure,
            )
            for name, title, unit, peer, measure in kinds
        ),
        Benchmark("production-memory", (memory_row,), (GATEWAY, NOTHING, NCHAN), _memory),
    ]
