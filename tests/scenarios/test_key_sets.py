"""Issuers that publish their keys by URL: fetched once for all, kept when a fetch fails, never a 4xx without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey

from gateway.auth.key_sets import LEAST_S
from gateway.auth.rules import load_rules
from gateway.origin.app import RunningOrigin
from gateway.server.authorising import BAD_AT_ONCE
from gateway.server.guarded_live_reads import SPREAD_S
from gateway.upstream.auth_services import FETCH_S, MOST_KEY_SET_BYTES
from tests.scenarios.auth_service import AuthService, key_set, probe_and_metrics
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.credentials import ISSUER, KEYS, bearer, jwt_rule
from tests.tls_origin import behind_tls, server_context
from tests.tls_origin import made as certified
from tests.waiting import eventually

pytestmark = pytest.mark.judging

CREATE = bearer("writer", streams=["* /**"])


def rule(folder: Path, url: str, **more: Any) -> dict[str, Any]:
    """A rule for tokens of the issuer whose keys are at this URL."""
    found = {**jwt_rule(folder), "keys_url": url, **more}
    del found["keys_file"]
    return found


@pytest.fixture
async def issuer(hostile: Hostile) -> AuthService:
    return await AuthService.open(hostile)


async def started(start: Start, origin: RunningOrigin, folder: Path, issuer: AuthService, **more: Any) -> Edge:
    rules = [{"by": "public", "streams": ["/public/**"]}, rule(folder, issuer.url + "/keys")]
    return await start(origin.url, auth=rules, credentials="shared", **more)


def fetched(edge: Edge, fetches: int = 1, failures: int = 0) -> None:
    (one,) = edge.gateway.routes.verdicts.key_sets.look()
    assert (one.fetches, one.failures) == (fetches, failures), one


async def until_fetched(edge: Edge, fetches: int, failures: int = 0) -> None:
    (one,) = edge.gateway.routes.verdicts.key_sets.look()
    await eventually(
        lambda: (one.fetches, one.failures, one.is_fetching) == (fetches, failures, False), state=lambda: one
    )


async def made(edge: Edge, path: str = "/shared/s", **more: str) -> None:
    answer = await edge.send("PUT", path, {"Content-Type": "text/plain", **CREATE, **more}, b"0123456789")
    assert answer.status == 201, answer


@pytest.mark.http_2
async def test_all_requests_before_the_first_key_set_wait_for_one_fetch_of_it(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    issuer.gate.clear()
    edge = await started(start, origin, tmp_path, issuer)
    services = edge.gateway.auth_services
    created = await edge.begin("/shared/s", {"Content-Type": "text/plain", **CREATE}, method="PUT", body=b"0123456789")
    await eventually(lambda: "1 waiting" in repr(services))
    # Another stream, which does not exist, so that the order of the requests does not matter.
    wires = {
        target: await edge.begin(target, bearer("ada"))
        for target in ("/ada/s", "/ada/s?live=long-poll&offset=0", "/ada/s?live=sse&offset=-1", "/bob/s")
    }
    head = await edge.begin("/ada/s", bearer("ada"), method="HEAD")
    gone = await edge.begin("/shared/s", bearer("eve"))
    await eventually(lambda: "7 waiting" in repr(services))
    gone.reset()
    await eventually(lambda: "6 waiting" in repr(services))
    issuer.gate.set()
    assert (await bounded(created.answer("PUT"))).status == 201
    statuses = {target: (await bounded(wire.answer("GET"))).status for target, wire in wires.items()}
    assert list(statuses.values()) == [404, 404, 404, 403]
    assert (await bounded(head.answer("HEAD"))).status == 404
    assert (await edge.get("/shared/s", bearer("ada"))).body == b"0123456789"
    assert len(issuer.asked) == 1


@pytest.mark.http_2
@pytest.mark.parametrize("mode", ["long-poll", "sse", "relayed"])
async def test_a_live_read_that_waited_for_a_rotated_key_gets_every_byte(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService, mode: str
) -> None:
    issuer.body = key_set([KEYS["Ed25519"]])
    edge = await started(start, origin, tmp_path, issuer, cache=mode != "relayed")
    await until_fetched(edge, 1)
    author = bearer("writer", alg="Ed25519", streams=["* /**"])
    assert (await edge.send("PUT", "/shared/s", {"Content-Type": "text/plain", **author}, b"0123")).status == 201
    issuer.body = key_set([KEYS["ES256"], KEYS["Ed25519"]])
    issuer.gate.clear()
    edge.clock.advance(LEAST_S + 1)
    live = "long-poll" if mode == "long-poll" else "sse"
    wire = await edge.begin(f"/shared/s?live={live}&offset=-1", bearer("ada"))
    await issuer.count(2)
    # The former key is known: its tokens do not wait.
    assert (await edge.get("/shared/s", bearer("bob", alg="Ed25519"))).body == b"0123"
    issuer.gate.set()
    if live == "long-poll":
        assert (await bounded(wire.answer("GET"))).body == b"0123"
    else:
        while (event := await bounded(wire.event())) is not None and event.name != "data":
            pass
        assert event is not None
        assert event.data == "0123"
        wire.reset()
    assert len(issuer.asked) == 2


async def test_unknown_keys_of_many_tokens_cause_one_fetch_in_a_while(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    edge = await started(start, origin, tmp_path, issuer)
    await until_fetched(edge, 1)
    edge.clock.advance(LEAST_S)
    wire = await edge.wire()
    answers = []
    for number in range(BAD_AT_ONCE + 2):
        await wire.ask("/shared/s", bearer("ada", header={"kid": f"random-{number}"}))
        answers.append(await bounded(wire.answer("GET")))
    assert [one.status for one in answers] == [401, *[503] * (BAD_AT_ONCE - 1), 429, 429]
    assert answers[1].headers["Retry-After"] == f"{LEAST_S:.0f}"
    assert "WWW-Authenticate" not in answers[1].headers
    fetched(edge, 2)
    edge.clock.advance(LEAST_S)
    await wire.ask("/shared/s", bearer("ada", header={"kid": "another"}))
    assert (await bounded(wire.answer("GET"))).status == 401
    # It has expired: its key does not matter.
    edge.clock.advance(LEAST_S)
    await wire.ask("/shared/s", bearer("ada", header={"kid": "another"}, exp=1))
    assert (await bounded(wire.answer("GET"))).status == 401
    fetched(edge, 3)


async def test_a_new_key_after_a_fetch_for_anothers_unknown_key_is_found_by_the_next_fetch(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    issuer.body = key_set([KEYS["Ed25519"]])
    edge = await started(start, origin, tmp_path, issuer)
    await until_fetched(edge, 1)
    edge.clock.advance(LEAST_S)
    issuer.gate.clear()
    forged = await edge.begin("/shared/s", bearer("eve", header={"kid": "random"}))
    await issuer.count(2)
    # The fetch has begun, so its answer may lack the new key.
    early = await edge.begin("/shared/s", bearer("ada"))
    await eventually(lambda: "2 waiting" in repr(edge.gateway.auth_services))
    issuer.gate.set()
    assert [(await bounded(one.answer("GET"))).status for one in (forged, early)] == [401, 503]
    issuer.body = key_set([KEYS["Ed25519"], KEYS["ES256"]])
    edge.clock.advance(2.5)
    answer = await edge.get("/shared/s", bearer("ada"))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "8")
    edge.clock.advance(8)
    assert (await edge.get("/shared/s", bearer("ada"))).status == 404
    fetched(edge, 3)


async def test_a_key_without_an_id_does_not_hide_that_a_new_key_must_be_fetched(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    nameless = ECKey.generate_key("P-256", private=True).as_dict(private=False)
    nameless.pop("kid", None)
    issuer.body = json.dumps({"keys": [nameless]}).encode()
    edge = await started(start, origin, tmp_path, issuer)
    await until_fetched(edge, 1)
    edge.clock.advance(LEAST_S)
    issuer.body = json.dumps({"keys": [nameless, KEYS["ES256"].as_dict(private=False)]}).encode()
    assert (await edge.get("/shared/s", bearer("ada"))).status == 404
    fetched(edge, 2)


async def test_a_withdrawn_key_ends_its_tokens_and_an_added_one_does_not(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    issuer.headers = {"Cache-Control": "max-age=100"}
    issuer.body = key_set([KEYS["ES256"]])
    edge = await started(start, origin, tmp_path, issuer)
    await made(edge, **{"Stream-Closed": "true"})
    edition = edge.gateway.routes.verdicts.edition
    former, wire = bearer("ada"), await edge.wire()
    await made(edge, "/shared/live")

    async def status(headers: dict[str, str]) -> int:
        await wire.ask("/shared/s?offset=-1", headers)
        return (await bounded(wire.answer("GET"))).status

    assert [await status(former) for _ in range(3)] == [200] * 3
    issuer.body = key_set([KEYS["ES256"], KEYS["Ed25519"]])
    edge.clock.advance(91)
    await until_fetched(edge, 2)
    assert await status(bearer("ada", alg="Ed25519")) == 200
    assert edge.gateway.routes.verdicts.edition == edition
    live = [await edge.begin("/shared/live?live=sse&offset=now", one) for one in (former, bearer("bob", alg="Ed25519"))]
    assert [(await bounded(wire.head())).status for wire in live] == [200] * 2
    issuer.body = key_set([KEYS["Ed25519"]])
    edge.clock.advance(LEAST_S)
    assert [await status(former) for _ in range(3)] == [200] * 3
    assert await status(bearer("ada", header={"kid": "other"})) == 401
    fetched(edge, 3)
    # It was known, and the verdict on these bytes was remembered.
    assert await status(former) == 401
    assert await status(bearer("ada", alg="Ed25519")) == 200
    edge.clock.advance(SPREAD_S + 1)
    await bounded(live[0].body())
    assert [one.allowed.principal.name for one in edge.gateway.routes.verdicts.live_reads()] == ["bob"]


BAD: dict[str, dict[str, Any]] = {
    "down": {"status": "500 Internal Server Error"},
    "redirect": {"status": "302 Found", "headers": {"Location": "/other"}},
    "garbage": {"body": b"\xff<html>"},
    "no set": {"body": b"[1]"},
    "no key of use": {
        "body": json.dumps({"keys": [{"kty": "oct", "k": "x" * 43}, 1, {"kty": "RSA", "n": "AQAB", "e": "AQAB"}]})
    },
    "too large": {"body": key_set(KEYS.values()) + b" " * MOST_KEY_SET_BYTES},
    "too large, and its length not announced": {
        "body": b"%x\r\n" % 10_000_000 + b" " * 10_000_000 + b"\r\n0\r\n\r\n",
        "headers": {"Transfer-Encoding": "chunked"},
    },
    "cut short": {"body": b"{", "headers": {"Content-Length": "50", "Connection": "close"}},
}


@pytest.mark.parametrize("name", BAD)
async def test_reply_of_no_use_keeps_the_keys_and_before_them_is_a_503(
    start: Start,
    origin: RunningOrigin,
    tmp_path: Path,
    issuer: AuthService,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = issuer.body
    bad = {"headers": {}, "status": "200 OK", "body": b"", **BAD[name]}
    bad["body"] = bad["body"] if isinstance(bad["body"], bytes) else bad["body"].encode()
    for field, value in bad.items():
        setattr(issuer, field, value)
    issuer.closes = name == "cut short"
    edge = await started(start, origin, tmp_path, issuer)
    await until_fetched(edge, 0, 1)
    answer = await edge.get("/shared/s", bearer("ada"))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert (await edge.get("/public/s")).status == 404
    issuer.status, issuer.headers, issuer.body, issuer.closes = "200 OK", {"Cache-Control": "max-age=600"}, good, False
    edge.clock.advance(1)
    await until_fetched(edge, 1, 1)
    await made(edge)
    for field, value in bad.items():
        setattr(issuer, field, value)
    issuer.closes = name == "cut short"
    edge.clock.advance(541)
    await until_fetched(edge, 1, 2)
    assert (await edge.get("/shared/s", bearer("ada"))).status == 200
    # It may be signed by a key that the failed fetch would have brought.
    assert (await edge.get("/shared/s", bearer("ada", header={"kid": "other"}))).status == 503
    said = [line for line in caplog.messages if line.startswith("keys of ")]
    assert len(said) == 3
    assert "503" in said[0]
    assert "fetched again" in said[1]
    assert "stay" in said[2]
    assert len(issuer.asked) == 3


async def test_an_issuer_that_is_slow_or_refuses_connections_gets_few_fetches_and_its_tokens_a_503(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    issuer.gate.clear()
    edge = await started(start, origin, tmp_path, issuer)
    wires = [await edge.begin("/shared/s", bearer("ada")) for _ in range(3)]
    await eventually(lambda: "3 waiting" in repr(edge.gateway.auth_services))
    await issuer.count(1)
    edge.clock.advance(FETCH_S)
    assert [(await bounded(wire.answer("GET"))).status for wire in wires] == [503] * 3
    await issuer.server.stop()
    for failures in range(2, 5):
        edge.clock.advance(30)
        await until_fetched(edge, 0, failures)
    statuses = [(await edge.get("/shared/s", bearer("ada"))).status for _ in range(5)]
    assert statuses == [503] * 5
    fetched(edge, 0, 4)


@pytest.mark.parametrize("wrong", ["", "issuer", "jwks_uri", "json"])
async def test_keys_are_found_by_discovery_only_in_metadata_of_their_issuer(
    start: Start, origin: RunningOrigin, tmp_path: Path, hostile: Hostile, wrong: str
) -> None:
    issuer = await AuthService.open(hostile)
    metadata = await AuthService.open(hostile)
    found = {"issuer": metadata.url, "jwks_uri": issuer.url + "/keys"}
    if wrong in found:
        found[wrong] = {"issuer": metadata.url + "/", "jwks_uri": "file:///etc/keys"}[wrong]
    metadata.body = b"x" if wrong == "json" else json.dumps(found).encode()
    rules = [rule(tmp_path, "", issuer=metadata.url)]
    edge = await start(origin.url, auth=rules, credentials="shared")
    await until_fetched(edge, 0 if wrong else 1, 1 if wrong else 0)
    answer = await edge.get("/shared/s", bearer("ada", iss=metadata.url))
    assert answer.status == (503 if wrong else 404)
    assert metadata.asked[0].target == "/.well-known/openid-configuration"
    assert (await edge.get("/shared/s", bearer("ada", iss=ISSUER))).status == 401


async def test_keys_of_one_issuer_do_not_verify_the_tokens_of_another(
    start: Start, origin: RunningOrigin, tmp_path: Path, hostile: Hostile
) -> None:
    one = await AuthService.open(hostile, body=key_set([KEYS["ES256"]]))
    other = await AuthService.open(hostile, body=key_set([KEYS["Ed25519"]]))
    rules = [rule(tmp_path, one.url), rule(tmp_path, other.url, issuer="https://other.test")]
    edge = await start(origin.url, auth=rules, credentials="shared")
    sets = edge.gateway.routes.verdicts.key_sets.look()
    await eventually(lambda: [keys.fetches for keys in sets] == [1, 1])
    edge.clock.advance(LEAST_S)
    for alg, iss, status in (
        ("ES256", ISSUER, 404),
        ("Ed25519", "https://other.test", 404),
        ("Ed25519", ISSUER, 401),
        ("ES256", "https://other.test", 401),
    ):
        assert (await edge.get("/shared/s", bearer("ada", alg=alg, iss=iss))).status == status, (alg, iss)


async def test_a_reload_keeps_the_keys_of_a_source_and_fetches_those_of_a_new_one(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    edge = await started(start, origin, tmp_path, issuer)
    await until_fetched(edge, 1)
    services, sets = edge.gateway.auth_services, edge.gateway.routes.verdicts.key_sets
    (one,) = sets.look()
    services.configure(load_rules(edge.gateway.config).values())
    assert sets.look() == (one,)
    services.configure([])
    assert sets.look() == ()
    edge.clock.advance(1_000)
    assert len(issuer.asked) == 1


async def test_a_source_that_reloads_remove_and_add_during_a_fetch_leaves_no_request_waiting(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    issuer.gate.clear()
    edge = await started(start, origin, tmp_path, issuer)
    services, sets = edge.gateway.auth_services, edge.gateway.routes.verdicts.key_sets
    wires = [await edge.begin("/shared/s", bearer("ada"))]
    await eventually(lambda: "1 waiting" in repr(services))
    services.configure([])
    services.configure(load_rules(edge.gateway.config).values())
    wires.append(await edge.begin("/shared/s", bearer("ada")))
    await eventually(lambda: "2 waiting" in repr(services))
    await issuer.count(2)
    issuer.gate.set()
    # Those of the removed source get an answer, too, whichever fetch ends first.
    former, later = [(await bounded(wire.answer("GET"))).status for wire in wires]
    assert former in (404, 503)
    assert later == 404
    assert "0 questions, 0 waiting" in repr(services)
    # It is fetched again ahead of its end.
    (one,) = sets.look()
    edge.clock.advance(one.due_at - edge.clock.now())
    await until_fetched(edge, 2)


async def test_keys_come_over_tls_from_an_issuer_with_an_authority_of_its_own(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    for name, by in (("ca", None), ("origin.test", "ca"), ("stranger", None)):
        certified(tmp_path, name, by)
    async with behind_tls(issuer.url, server_context(tmp_path)) as url:
        for authority, status in (("ca", 404), ("stranger", 503)):
            tls = {"ca_file": str(tmp_path / f"{authority}.crt"), "server_name": "origin.test"}
            edge = await start(origin.url, auth=[rule(tmp_path, url, tls=tls)], credentials="shared")
            assert (await edge.get("/shared/s", bearer("ada"))).status == status


async def test_metrics_and_the_verbose_probe_show_the_state_of_a_key_set(
    start: Start, origin: RunningOrigin, tmp_path: Path, issuer: AuthService
) -> None:
    issuer.status = "500 Internal Server Error"
    edge = await started(start, origin, tmp_path, issuer)

    async def shown() -> tuple[str, set[str]]:
        return await probe_and_metrics(edge, "durable_gateway_auth_")

    await until_fetched(edge, 0, 1)
    assert (await edge.get("/shared/s", bearer("ada"))).status == 503
    line, figures = await shown()
    assert line == f"[-] keys of {ISSUER} never fetched: answered 500"
    assert figures == {
        f'durable_gateway_auth_key_fetches_total{{issuer="{ISSUER}",result="fetched"}} 0.0',
        f'durable_gateway_auth_key_fetches_total{{issuer="{ISSUER}",result="failed"}} 1.0',
        'durable_gateway_auth_undecided_total{route="default"} 1.0',
    }
    issuer.status = "200 OK"
    edge.clock.advance(1)
    await until_fetched(edge, 1, 1)
    edge.clock.advance(2)
    line, figures = await shown()
    assert line == f"[+] keys of {ISSUER} fetched 2 s ago"
    assert f'durable_gateway_auth_key_set_age_seconds{{issuer="{ISSUER}"}} 2.0' in figures
