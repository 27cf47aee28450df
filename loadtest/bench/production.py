"""The additions of a deployment: an access log, trusted proxies, tokens, browsers, a rate limit; one by one and
together.

The same reads are measured with nothing set, as the other benchmarks do, and as they come in production: from many
clients whose header sections differ.  Each setting has a gateway of its own.  Peers get the headers of all settings
together, and write an access log.  So do the gateways that judge who may read: what that costs in production is the
difference to the gateway with all settings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from joserfc import jwt
from joserfc.jwk import OKPKey

from gateway.auth.signed_urls import Signed, SigningKey, signed_query
from loadtest.bench import live, live_client, wrk
from loadtest.bench.children import Child, free_ports, running
from loadtest.bench.fetch import fetch_raw
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.live_client import NCHAN
from loadtest.bench.machine import BenchError, memory
from loadtest.bench.peers import AUTH_REQUEST, PLAIN, More, fresh
from loadtest.bench.stage import Benchmark, Stage, Watch

NOTHING: Final = "nothing set"
TOKENS: Final = "shared tokens"
JUDGED: Final = "judged tokens"
"""All settings, and the gateway verifies each client's token."""
SIGNED: Final = "signed URLs"
"""All settings, and a signed URL for each client in place of its token."""
FORWARDED: Final = "forward-auth"
"""All settings, and an authorisation service lets each token read, for longer than a run takes."""
CLIENTS: Final = 500
READERS: Final = 500
GAP_US: Final = 50_000
JOINING: Final = 50
IDLE: Final = 5_000
_ORIGINS: Final = tuple(f"https://app{number}.example.org" for number in range(8))
_WARM_UPS: Final = 3
_WARM_UP_REQUESTS: Final = 10
"""Requests of each client before the window: a credential is judged at its first, and remembered by its bytes at the
third."""
_WARM_UP_READERS: Final = 200
_HIT: Final = "/1k/production"
_LINKED: Final = "/**"

_TABLES: Final = '\n[log]\nsink = "file"\npath = "{folder}/access.log"\n'
_PROXY: Final = 'trusted_proxies = ["127.0.0.1/32"]\n'
SHARED: Final = 'credentials = "shared"\n'
CORS: Final = f"cors = {{ allow_origins = {list(_ORIGINS)!r} }}\n"
_LIMIT: Final = '\n[[rate_limit]]\nname = "each"\nrequests_per_s = 1000000\n'


ISSUER: Final = "https://bench.invalid"
"""The issuer of the clients' tokens, whose audience is `bench`."""
_JUDGED: Final = f"""
[[route.auth]]
by = "jwt"
issuer = "{ISSUER}"
audience = ["bench"]
keys_file = "{{folder}}/jwks.json"
permissions = ["read /**"]
"""


_LINK_KEY: Final = SigningKey("bench", b"a key of the benchmarks")
_SIGNED: Final = """
[[route.auth]]
by = "signed"
keys = [{ id = "bench", file = "{folder}/link.key" }]
"""
_FORWARDED: Final = """
[[route.auth]]
by = "forward"
url = "http://127.0.0.1:{service}/may"
"""
_ALLOWED: Final = b"HTTP/1.1 204 No Content\r\nCache-Control: max-age=300\r\n\r\n"
"""The authorisation service's reply to every request."""


@cache
def _key() -> OKPKey:
    return OKPKey.generate_key("Ed25519", {"kid": "bench"}, private=True)


def key_set() -> str:
    """The issuer's public key, as a JSON Web Key Set (RFC 7517)."""
    return json.dumps({"keys": [_key().as_dict(private=False)]})


@cache
def token(client: int) -> str:
    """A client's own token, valid for a day; gateways without rules do not look at it."""
    claims = {"iss": ISSUER, "aud": "bench", "sub": f"client-{client}", "exp": int(time.time()) + 86_400}
    header = {"alg": "Ed25519", "kid": "bench", "typ": "at+jwt"}
    text: str = jwt.encode(header, claims, _key(), algorithms=["Ed25519"])
    return text


@cache
def link(client: int) -> str:
    """Return a query that signs the cached stream and the followed streams for this client, valid for a day."""
    return signed_query(Signed(str(int(time.time()) + 86_400 + client), streams=_LINKED), _LINK_KEY)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to set up the gateway, and the clients that belong to it."""

    more: More = PLAIN
    has_proxy: bool = False
    has_tokens: bool = False
    has_browsers: bool = False
    has_links: bool = False

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


def _judging(rule: str) -> Setting:
    """All settings, and a rule of authorisation."""
    return replace(ALL, more=replace(ALL.more, route=ALL.more.route + rule))


SETTINGS: Final = {
    GATEWAY: ALL,
    NOTHING: Setting(),
    "access log": Setting(More(tables=_TABLES)),
    "trusted proxy": Setting(More(server=_PROXY), has_proxy=True),
    TOKENS: Setting(More(route=SHARED), has_tokens=True),
    JUDGED: _judging(_JUDGED),
    "browsers": Setting(More(route=CORS), has_browsers=True),
    "rate limit": Setting(More(tables=_LIMIT)),
    SIGNED: replace(_judging(_SIGNED), has_tokens=False, has_links=True),
    FORWARDED: _judging(_FORWARDED),
}
"""The gateway's settings.  The peer named `gateway` has the log, the proxy, tokens and browsers together."""
_JUDGING: Final = frozenset({JUDGED, SIGNED, FORWARDED})


@dataclass(frozen=True, slots=True)
class Ready:
    """A server with a setting, and its clients' files."""

    server: Child
    sections: Path
    """The header sections of all clients."""
    queries: Path | None
    """The queries of their URLs, a line each; None if their URLs have none."""

    @property
    def clients(self) -> list[str]:
        """Arguments of the C clients for the files."""
        queries = [] if self.queries is None else ["--queries", str(self.queries)]
        return ["--sections", str(self.sections), *queries]


@contextmanager
def set_up(stage: Stage, peer: str, accept: str) -> Iterator[Ready]:
    """A server of its own for a setting or a peer."""
    setting = SETTINGS.get(peer, ALL)
    folder = stage.folder / f"production-{peer.replace(' ', '-')}"
    folder.mkdir(exist_ok=True)
    sections, queries = folder / "sections", folder / "queries"
    sections.write_bytes("".join(setting.section(client, accept) for client in range(CLIENTS)).encode())
    if setting.has_links:
        queries.write_text("".join(f"{link(client)}\n" for client in range(CLIENTS)), encoding="ascii")
    (folder / "jwks.json").write_text(key_set())
    (folder / "link.key").write_bytes(_LINK_KEY.secret)
    with ExitStack() as stack:
        service = 0
        if peer in (FORWARDED, AUTH_REQUEST):
            service = stack.enter_context(_authorisation_service(stage, folder)).port
        parts = (setting.more.server, setting.more.route, setting.more.tables)
        filled = (part.replace("{folder}", str(folder)).replace("{service}", str(service)) for part in parts)
        starting = fresh(
            GATEWAY if peer in SETTINGS else peer,
            stage.tools,
            stage.cores,
            stage.peers,
            stage.folder,
            more=More(*filled),
            logs=peer not in SETTINGS,
            service=service,
        )
        yield Ready(stack.enter_context(starting), sections, queries if setting.has_links else None)


def _authorisation_service(stage: Stage, folder: Path) -> AbstractContextManager[Child]:
    """A service that allows every request, on the origins' core."""
    [port] = free_ports(1)
    (folder / "allowed").write_bytes(_ALLOWED)
    argv: list[str | Path] = [stage.tools.respond, str(port), folder / "allowed"]
    return running("authorisation service", argv, port, stage.cores.origin, folder / "service.log")


def _hit(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with set_up(stage, peer, "*/*") as ready:
        server, files = ready.server, [ready.sections, *([] if ready.queries is None else [ready.queries])]
        load = wrk.Load(_HIT, script="sections.lua", arguments=[str(file) for file in files])
        path = _HIT if ready.queries is None else f"{_HIT}?{link(0)}"
        for _ in range(_WARM_UPS):
            fetch_raw(server.port, path, {"Authorization": f"Bearer {token(0)}"})
        least = _WARM_UP_REQUESTS * CLIENTS if peer in _JUDGING else 0
        while (least := least - wrk.run(stage.tools.wrk, server.port, load, 1, stage.cores.load).requests) > 0:
            pass
        watch = Watch(stage, server)
        report = wrk.run(stage.tools.wrk, server.port, load, stage.seconds, stage.cores.load)
        sample = watch.sample(report.requests_per_s, report.requests)
        watch.expect_no_origin()
    return {"production-hit": sample}


def _poll(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with set_up(stage, peer, "*/*") as ready:
        argv = live_client.arguments(stage, peer, ready.server, is_long_poll=True)
        argv += ["--subscribers", str(READERS), "--gap-us", str(GAP_US), "--seconds", str(stage.seconds)]
        argv += ["--least", str(_WARM_UP_REQUESTS * READERS), *ready.clients]
        report = live_client.run(stage, stage.tools.poll, argv)
    return {"production-poll": live_client.rate(report, report["answers"])}


def _join(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with set_up(stage, peer, "text/event-stream\r\nCache-Control: no-cache") as ready:
        argv = live_client.arguments(stage, peer, ready.server)
        argv += ["--concurrency", str(JOINING), "--seconds", str(stage.seconds)]
        argv += ["--least", str(_WARM_UP_REQUESTS * CLIENTS), *ready.clients]
        report = live_client.run(stage, stage.tools.join, argv)
    return {"production-join": live_client.rate(report, report["joins"])}


def _memory(stage: Stage, peer: str) -> Mapping[str, Sample]:
    with set_up(stage, peer, "text/event-stream\r\nCache-Control: no-cache") as ready:
        more = ["--sections", str(ready.sections)]
        count = min(IDLE, stage.max_files - 256)
        with live.held(stage, peer, ready.server, "sse", _WARM_UP_READERS, more=more):
            pass
        before = memory(ready.server.pids)
        with live.held(stage, peer, ready.server, "sse", count, more=more) as opened:
            after = memory(ready.server.pids)
    if not count:
        raise BenchError("too few files may be open")
    return {"production-memory": Sample((after.pss_bytes - before.pss_bytes) / count, cpu_us=opened.cpu_us)}


def _targets(peer: str) -> Sequence[Target]:
    single = [one for one in SETTINGS if one not in (GATEWAY, NOTHING)]
    return (
        Target(Relation.AT_MOST_CPU, 1.6, NOTHING),
        Target(Relation.AT_MOST_CPU, 1.5, peer),
        *(Target(Relation.AT_MOST_CPU, 1.3, NOTHING, of=one) for one in single if one not in _JUDGING),
        *(Target(Relation.AT_MOST_CPU, 1.15, GATEWAY, of=one) for one in sorted(_JUDGING)),
    )


def benchmarks() -> list[Benchmark]:
    """All benchmarks of what a deployment adds."""
    hit = Row("production-hit", "cached 1 KB as in production", "requests/s", _targets("nginx"))
    live_reads = (
        ("poll", "long-poll as in production, 500 read on", "answers/s", _poll),
        ("join", "SSE as in production, join at the tail and leave", "joins/s", _join),
    )
    memory_row = Row(
        "production-memory",
        "memory per idle SSE subscriber as in production",
        "bytes",
        (Target(Relation.AT_MOST, 2_600),),
        is_rate=False,
    )
    return [
        Benchmark("production-hit", (hit,), (*SETTINGS, "nginx", AUTH_REQUEST), _hit),
        *(
            Benchmark(
                f"production-{name}",
                (Row(f"production-{name}", title, unit, _targets(NCHAN)),),
                (*SETTINGS, NCHAN),
                measure,
            )
            for name, title, unit, measure in live_reads
        ),
        Benchmark("production-memory", (memory_row,), (GATEWAY, NOTHING, NCHAN), _memory),
    ]
