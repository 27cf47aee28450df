"""Concealing routes: what a client may not read is answered as if it were not there, in form and in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.auth.remembered_verdicts import Revocation
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.server.authorising import BAD_AT_ONCE
from tests.scenarios.auth_service import AuthService
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.credentials import bearer, jwt_rule, signed, signed_rule
from tests.scenarios.hostile import Asked
from tests.scenarios.wire import Answer
from tests.waiting import eventually

pytestmark = pytest.mark.judging

TEXT = {"Content-Type": "text/plain"}
LIMITS = [
    {"name": "some", "requests_per_s": 1000, "live_reads": 100},
    {"name": "own", "per": "principal", "requests_per_s": 0.001, "burst": 200},
]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    rules = [jwt_rule(tmp_path, permissions=["* /{sub}/**"]), signed_rule(tmp_path)]
    return {"auth": rules, "credentials": "shared", "conceal": True, "cors": {}, "rate_limits": LIMITS}


async def made(edge: Edge, path: str) -> None:
    headers = {**TEXT, **bearer(path.split("/")[1])}
    assert (await edge.send("PUT", path, headers, b"0123456789")).status == 201


def told(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    """All that a client gets, but for the time of day and how much of a limit is left."""
    fields = [(name, value) for name, value in answer.headers.items() if name.lower() not in ("date", "ratelimit")]
    return answer.status, sorted(fields), answer.body


def limits(answer: Answer) -> str:
    return ", ".join(answer.headers.getall(name)[0] for name in ("RateLimit-Policy", "RateLimit"))


REQUESTS = [
    ("GET", "", None),
    ("GET", "?offset=-1", None),
    ("GET", "?offset=now", None),
    ("GET", "?offset=-1&live=long-poll", None),
    ("GET", "?offset=-1&live=sse", None),
    ("GET", "?offset=now&live=sse", None),
    ("HEAD", "", None),
    ("POST", "", b"x"),
    ("POST", "", b"x" * 100_000),
    ("DELETE", "", None),
]


@pytest.mark.http_2
async def test_refusal_is_the_whole_answer_of_an_absent_stream_and_asks_the_origin_nothing(
    edge: Edge, counters: Counters
) -> None:
    await made(edge, "/eve/kept")
    await made(edge, "/eve/read")
    assert (await edge.get("/eve/read", bearer("eve"))).status == 200
    for method, query, body in REQUESTS:
        sent = {**bearer("ada"), **(TEXT if body else {})}
        for _ in range(2):
            absent = await edge.send(method, f"/ada/none{query}", sent, body)
            assert absent.status == 404, (method, query)
            asked = counters.total_requests
            for path in ("/eve/kept", "/eve/read", "/eve/none"):
                assert told(await edge.send(method, f"{path}{query}", sent, body)) == told(absent), (method, path)
            assert counters.total_requests == asked
            for path in ("/eve/kept", "/ada/none"):
                assert (await edge.send(method, f"{path}{query}", TEXT if body else {}, body)).status == 401
    assert (await edge.get("/eve/kept", bearer("eve"))).body == b"0123456789"


async def test_refusal_by_a_service_is_the_whole_answer_of_an_absent_stream_and_its_verdict_kept_as_long(
    hostile: Hostile, start: Start, origin: RunningOrigin, tmp_path: Path
) -> None:
    def by_owner(asked: Asked) -> tuple[str, dict[str, str]]:
        name = asked.headers["X-Key"]
        is_owner = asked.headers["X-Forwarded-Uri"].startswith(f"/{name}/")
        return "200 OK" if is_owner else "403 Forbidden", {"X-User": name}

    service = await AuthService.open(hostile, decide=by_owner)
    rule = {"by": "forward", "url": service.url, "request_headers": ["x-key"], "principal_from": "x-user"}
    shared = {"credentials": "shared", "conceal": True, "rate_limits": LIMITS}
    edge = await start(origin.url, auth=[jwt_rule(tmp_path, permissions=["* /{sub}/**"]), rule], **shared)
    await made(edge, "/eve/kept")
    for method, query, body in REQUESTS:
        sent = {"X-Key": "ada", **(TEXT if body else {})}
        for _ in range(2):
            absent = await edge.send(method, f"/ada/none{query}", sent, body)
            assert absent.status == 404, (method, query)
            for path in ("/eve/kept", "/eve/none"):
                refused = await edge.send(method, f"{path}{query}", sent, body)
                assert told(refused) == told(absent), (method, path)
                assert [limits(one).count("own") for one in (refused, absent)] == [2, 2]
    asked = len(service.asked)
    edge.clock.advance(4.9)
    for path in ("/ada/none", "/eve/kept", "/eve/none"):
        assert (await edge.get(f"{path}?offset=now", {"X-Key": "ada"})).status == 404
    assert len(service.asked) == asked
    # A refusal by a service that knows the credential is not a bad credential.
    many = [(await edge.get(f"/eve/{number}", {"X-Key": "ada"})).status for number in range(BAD_AT_ONCE + 1)]
    assert set(many) == {404}
    edge.gateway.routes.verdicts.revoke(Revocation("principal", "ada"), 60)
    assert [(await edge.get(path, {"X-Key": "ada"})).status for path in ("/ada/none", "/eve/kept")] == [401] * 2


async def test_a_signature_for_reads_conceals_writes_like_those_to_an_absent_stream(edge: Edge) -> None:
    await made(edge, "/eve/s")
    absent = await edge.send("DELETE", "/ada/none", bearer("ada"))
    assert told(await edge.send("DELETE", signed("/eve/s"))) == told(absent)
    assert (await edge.get(signed("/eve/s"))).status == 200


async def test_refusal_takes_the_time_of_an_absent_stream_and_is_repeated_like_its_404(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    await made(edge, "/eve/s")
    for target in ("{}", "{}?offset=now&live=sse"):
        edge.clock.advance(2)
        held = faults.hold(times=1)
        absent = edge.asking(target.format("/ada/none"), bearer("ada"))
        await bounded(held.waiting(1))
        edge.clock.advance(0.3)
        held.release()
        assert (await bounded(absent)).status == 404
        before = edge.clock.pending
        refused = edge.asking(target.format("/eve/s"), bearer("ada"))
        await eventually(lambda before=before: edge.clock.pending > before)
        edge.clock.advance(0.29)
        assert not refused.done()
        edge.clock.advance(0.02)
        assert told(await bounded(refused)) == told(absent.result())
        asked = counters.total_requests
        # Both are repeated from memory.
        for path in ("/ada/none", "/eve/s"):
            assert (await bounded(edge.get(target.format(path), bearer("ada")))).status == 404
        assert counters.total_requests == asked


async def test_refusals_of_equal_reads_are_given_together_as_404s_of_one_fetch_are(edge: Edge, faults: Faults) -> None:
    await made(edge, "/eve/s")
    edge.clock.advance(2)
    held = faults.hold(times=1)
    absent = [edge.asking("/ada/none", bearer("ada"))]
    await bounded(held.waiting(1))
    absent.append(edge.asking("/ada/none", bearer("ada")))
    await eventually(edge.readers(2))
    edge.clock.advance(0.3)
    held.release()
    assert [(await bounded(one)).status for one in absent] == [404] * 2
    before = edge.clock.pending
    refused = [edge.asking("/eve/s", bearer("ada")) for _ in range(2)]
    await eventually(lambda: edge.clock.pending >= before + 2)
    edge.clock.advance(0.29)
    assert not any(one.done() for one in refused)
    edge.clock.advance(0.02)
    assert [(await bounded(one)).status for one in refused] == [404] * 2


async def test_refusals_are_counted_for_their_principal(edge: Edge) -> None:
    await made(edge, "/eve/s")
    statuses = [(await edge.get("/eve/s", bearer("ada", jti=str(number % 2)))).status for number in range(202)]
    assert statuses == [404] * 200 + [429] * 2


@pytest.mark.parametrize("length", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
async def test_a_refused_write_is_asked_for_its_body_and_read_to_its_end(edge: Edge, length: str) -> None:
    await made(edge, "/eve/s")
    asks = f"HTTP/1.1\r\nHost: edge.test\r\n{length}\r\nExpect: 100-continue\r\nContent-Type: text/plain\r\n"
    body = b"x" * 100_000 if "Content" in length else b"186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n"
    for path in ("/ada/none", "/eve/s"):
        wire = await edge.wire()
        await wire.send(f"POST {path} {asks}Authorization: {bearer('ada')['Authorization']}\r\n\r\n".encode())
        assert await bounded(wire.reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.send(body)
        refused = await bounded(wire.answer("POST"))
        assert (refused.status, refused.headers.get("Connection")) == (404, None), path
