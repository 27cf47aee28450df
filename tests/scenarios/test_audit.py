"""Audit lines of refused requests, and secrets, which reach no log, error, page of the admin port, metric or trace."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest
from aiohttp import ClientSession
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.ops.opentelemetry_tracer import OpenTelemetryTracer
from gateway.origin.app import RunningOrigin
from gateway.telemetry.audit import REFUSALS_PER_WINDOW, WINDOW_S
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.credentials import ISSUER, LINK_KEY, bearer, jwt_rule, signed, signed_rule, token
from tests.scenarios.noting import log_lines
from tests.scenarios.wire import Dropped
from tests.transports import OVER_HTTP_2
from tests.waiting import eventually

pytestmark = pytest.mark.judging

CREATE = {"Content-Type": "text/plain", **bearer("writer", streams=["* /**"])}


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "gateway.audit"]


@pytest.mark.http_2
async def test_a_method_of_any_length_is_cut_in_the_log_and_in_the_audit(
    start: Start, origin: RunningOrigin, tmp_path: Path, caplog: pytest.LogCaptureFixture, transport: str
) -> None:
    log = tmp_path / "access.log"
    edge = await start(origin.url, auth=[jwt_rule(tmp_path)], credentials="shared", sink="file", path=str(log))
    # The parser of HTTP/1.1 knows its methods.
    method, shown = ("A" * 6_000, "A" * 200 + "…") if transport in OVER_HTTP_2 else ("PATCH", "PATCH")
    assert (await edge.send(method, "/eve/s", bearer("ada"))).status == 403
    assert audited(caplog)[0].startswith(f"{shown} /eve/s by ")
    (line,) = await log_lines(edge, log, 1)
    assert line["method"] == method[:32]


@pytest.mark.parametrize("conceal", [False, True])
async def test_each_refusal_leaves_a_line_within_a_bound(
    start: Start, origin: RunningOrigin, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, conceal: bool
) -> None:
    edge = await start(origin.url, auth=[jwt_rule(tmp_path)], credentials="shared", conceal=conceal)
    status = 404 if conceal else 403
    await edge.get("/ada/s?offset=-1")
    await edge.send("DELETE", "/bob/s", bearer("ada"))
    await edge.get(f"/{'x' * 1_000}", bearer("ada", exp=1))
    not_allowed = "The credential does not allow this"
    assert audited(caplog) == [
        "GET /ada/s by 127.0.0.0/24 on route default: 401: Authorisation needed",
        f"DELETE /bob/s by 127.0.0.0/24 on route default: {status}: {not_allowed} (ada of {ISSUER})",
        f"GET /{'x' * 199}… by 127.0.0.0/24 on route default: 401: The token has expired",
    ]
    for _ in range(REFUSALS_PER_WINDOW):
        await edge.get("/ada/s")
    assert len(audited(caplog)) == REFUSALS_PER_WINDOW
    edge.clock.advance(WINDOW_S)
    await edge.get("/ada/s")
    assert audited(caplog)[-2] == "3 more refusals since were not written"


ORIGIN_SECRET = "Bearer s3cret-of-the-origin"
ADMIN_SECRET = "s3cret-of-the-operator"
SERVICE_SECRET = "s3cret-for-services"
DOWN = "http://127.0.0.1:1/"


@pytest.fixture
async def watched(
    origin: RunningOrigin, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[tuple[Edge, InMemorySpanExporter, Path]]:
    """A gateway with all kinds of credentials, all logs and a tracer."""
    secret = tmp_path / "origin"
    secret.write_text(ORIGIN_SECRET)
    log = tmp_path / "access.log"
    rules = [
        jwt_rule(tmp_path, cookie="__Secure-t", parameter="token", tenant_claim="org"),
        signed_rule(tmp_path, cookie="__Secure-s"),
        {"by": "jwt", "issuer": "https://down.test", "audience": ["a"], "keys_url": f"{DOWN}?key={SERVICE_SECRET}"},
        {"by": "forward", "url": f"{DOWN}?key={SERVICE_SECRET}"},
    ]
    config = GatewayConfig.for_origin(
        origin.url,
        auth=rules,
        credentials="shared",
        origin_credentials={"file": str(secret)},
        sink="file",
        path=str(log),
        sample_ratio=1.0,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        shutdown_timeout_s=1,
        live_linger_s=0,
    )
    exporter = InMemorySpanExporter()
    tracer = OpenTelemetryTracer(config.tracing, clock, Random(11), SimpleSpanProcessor(exporter))
    environ = {ADMIN_TOKEN_VARIABLE: ADMIN_SECRET}
    gateway = await start_gateway(config, clock=clock, rng=Random(7), tracer=tracer, environ=environ)
    edge = Edge(gateway, clock)
    yield edge, exporter, log
    await edge.leave()
    await edge.until_idle()
    await gateway.stop()


SHAPES = (
    "/ada/s?{0}&offset=-1",
    "/shared/s?{0}",
    "/bob/s?{0}&offset=now",
    "/shared/s?{0}&live=long-poll&offset=zz",
    "/shared/s?{0}&x=%zz",
    "/shared/s?{0}&{0}",
    "/shared/s?offset=1&offset=2&{0}",
    "/__ds/subscriptions?{0}",
    "/.well-known/oauth-protected-resource/x?{0}",
    "http://edge.test/shared/s?{0}",
)


def credentials(random: Random) -> tuple[str, dict[str, str], list[str]]:
    """A query, headers, and the secrets in them: good, wrong and misplaced credentials."""
    jwt = token(random.choice(("ada", "eve")), org="acme", **random.choice(({}, {"exp": 1}, {"aud": "x"})))
    bad = f"{jwt.rpartition('.')[0]}.s3cret{random.randrange(10**9)}"
    secret = random.choice((jwt, bad, f"s3cret{random.randrange(10**9)}"))
    link = signed("/shared/s", random.choice((1, 1_790_003_600))).partition("?")[2]
    signature = link.rpartition("signature=")[2]
    match random.randrange(7):
        case 0:
            return "a=1", {"Authorization": f"Bearer {secret}"}, [secret]
        case 1:
            return "a=1", {"Authorization": f"Basic {secret}"}, [secret]
        case 2:
            return f"token={secret}", {}, [secret]
        case 3:
            return link, {}, [signature]
        case 4:
            return "a=1", {"Cookie": f"__Secure-t={secret}; b=c"}, [secret]
        case 5:
            return "a=1", {"Cookie": f"__Secure-s={quote(link)}"}, [signature]
        case _:
            return f"token={secret}&{link}", {"Authorization": f"Bearer {jwt}"}, [secret, signature, jwt]


async def test_no_secret_reaches_a_log_an_error_a_page_a_metric_or_a_trace(
    watched: tuple[Edge, InMemorySpanExporter, Path], caplog: pytest.LogCaptureFixture
) -> None:
    edge, exporter, log = watched
    random, secrets, seen = Random(42), [ORIGIN_SECRET, ADMIN_SECRET, SERVICE_SECRET, LINK_KEY.secret.decode()], []
    with caplog.at_level(logging.DEBUG):
        assert (await edge.send("PUT", "/shared/s", CREATE, b"x")).status == 201
        for number in range(120):
            query, headers, mine = credentials(random)
            secrets += mine
            method = random.choice(("GET", "GET", "HEAD", "POST", "DELETE", "OPTIONS", "PURGE"))
            shape = SHAPES[number % len(SHAPES)]
            with suppress(Dropped):
                answer = await bounded(
                    edge.send(method, shape.format(query), headers, b"x" if method == "POST" else None)
                )
                seen.append(f"{answer.status} {answer.headers} {answer.body!r}")
        edge.clock.advance(1)
        async with ClientSession(edge.gateway.admin_url) as session:
            for guess in ("", "s3cret-guess"):
                secrets.append("s3cret-guess")
                async with session.get("/api/config", headers={"Authorization": f"Bearer {guess}"}) as page:
                    seen.append(await page.text())
            known = {"Authorization": f"Bearer {ADMIN_SECRET}"}
            pages = ("config", "overview", "history", "origins", "streams", "top", "tails", "plan")
            for path in ("/metrics", "/readyz?verbose", *(f"/api/{name}" for name in pages)):
                async with session.get(path, headers=known) as page:
                    assert page.status in (200, 404, 405), path
                    seen.append(await page.text())
            async with session.post("/api/revoke", headers=known, json={"subject": "key", "name": "one"}) as page:
                seen.append(await page.text())

    def written() -> bool:
        edge.clock.advance(1.0)
        return log.read_bytes().count(b"\n") >= 100

    await eventually(written)
    traces = [span.to_json() for span in exporter.get_finished_spans()]
    assert len(traces) > 100
    assert len(seen) > 100
    # The first fetch of keys may have failed before the test began.
    earlier = [record.getMessage() for record in caplog.get_records("setup")]
    text = "\n".join([*seen, *traces, *earlier, caplog.text, log.read_text()])
    assert "acme" in text
    assert f"keys of https://down.test: {DOWN}: connection refused" in text
    assert f"route default: {DOWN}: connection refused" in text
    for secret in secrets:
        # A token is in three parts, of which the last makes it valid.
        assert secret.rpartition(".")[2] not in text, secret
