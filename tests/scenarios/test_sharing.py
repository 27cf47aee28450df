"""Replies that are for their requester alone, whatever the read mode: one judgement, remembered, and shown."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.protocol.mode import Mode
from gateway.telemetry.metrics import NO_ROUTE
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, HostileOrigin, answer
from tests.scenarios.noting import log_lines
from tests.scenarios.test_access_log_sums import balanced_lines
from tests.server.conftest import Held
from tests.waiting import eventually

JSON, TEXT = "application/json", "text/plain"
TAIL = "0002"
CONTROL = f'event: control\ndata: {{"streamNextOffset":"{TAIL}","streamCursor":"1","upToDate":true}}\n\n'
PERSONAL = [
    pytest.param({"Cache-Control": "private"}, id="private"),
    pytest.param({"Set-Cookie": "id=1"}, id="cookie"),
    pytest.param({"Vary": "X-Tenant"}, id="vary"),
]


@dataclass
class PersonalOrigin:
    """An origin of one stream whose replies have further headers; it holds live reads at the tail until `gate` opens.

    A request with `X-Tenant` is shown that tenant's bytes, and one with `Origin` is allowed to that web origin if
    `has_cors`.
    """

    content_type: str = JSON
    stored: dict[str, str] = field(default_factory=dict)
    """Further headers of replies to reads that are not live."""
    live: dict[str, str] = field(default_factory=dict)
    """Further headers of live replies."""
    has_cors: bool = False
    head: dict[str, str] = field(default_factory=dict)
    """Further headers of replies to HEAD."""
    gone: int = 0
    """The status of all replies once the stream is gone; 0 while it is there."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    served: HostileOrigin | None = None

    async def start(self, hostile: Hostile) -> str:
        self.served = await hostile(self.answer, takes_head=True)
        return self.served.url

    @property
    def asked(self) -> list[Asked]:
        assert self.served is not None
        return self.served.asked

    def count(self, part: str) -> int:
        """Requests with this part in their target."""
        return sum(part in asked.target for asked in self.asked)

    async def answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        tenant = asked.headers.get("X-Tenant", "-")
        is_live, is_sse = "live=" in asked.target, "live=sse" in asked.target
        if self.gone:
            writer.write(answer(f"{self.gone} Gone", {"Content-Length": "0"}))
            return
        headers = {"Content-Type": self.content_type, "Stream-Next-Offset": TAIL, "X-Shown-To": tenant}
        headers |= self.live if is_live else self.stored
        if asked.method == "HEAD":
            headers |= self.head
        if self.has_cors:
            headers["Vary"] = "Origin"
            if (origin := asked.headers.get("Origin")) is not None:
                headers["Access-Control-Allow-Origin"] = origin
        is_at_tail = f"offset={TAIL}" in asked.target or "offset=now" in asked.target
        text = "" if is_at_tail else f'"{tenant}"'
        body = (f"[{text}]" if self.content_type == JSON else text).encode()
        if is_sse:
            headers |= {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
            data = "" if is_at_tail else f"event: data\ndata: {body.decode()}\n\n"
            event = (data + CONTROL).encode()
            writer.write(answer("200 OK", headers) + b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            await self.gate.wait()
            writer.write(b"0\r\n\r\n")
        elif is_live and is_at_tail:
            await self.gate.wait()
            writer.write(answer("204 No Content", {**headers, "Stream-Cursor": "7", "Stream-Up-To-Date": "true"}))
        else:
            headers["Stream-Up-To-Date"] = "true"
            size = {"Content-Length": str(len(body))}
            writer.write(answer("200 OK", headers | size, b"" if asked.method == "HEAD" else body))


def polled(offset: str = TAIL) -> str:
    return f"/s?offset={offset}&live=long-poll"


def unshared(edge: Edge, reason: str) -> float:
    """The metric's count of reads that were relayed for this reason."""
    figures = edge.gateway.metrics.routes
    return sum(figures[name].unshared[reason] for name in figures if name != NO_ROUTE)


# -- live answers


@pytest.mark.parametrize("content_type", [JSON, TEXT])
@pytest.mark.parametrize("personal", PERSONAL)
@pytest.mark.parametrize("is_stored_too", [True, False])
async def test_long_polls_wait_at_the_origin_if_live_answers_are_personal(
    hostile: Hostile, start: Start, personal: dict[str, str], content_type: str, is_stored_too: bool
) -> None:
    origin = PersonalOrigin(content_type, personal if is_stored_too else {}, personal)
    edge = await start(await origin.start(hostile))
    clients = 20
    polls = [edge.asking(polled()) for _ in range(clients)]
    is_judged_at_once = content_type == JSON or is_stored_too
    if is_judged_at_once:
        # The clients that waited for the shared answer are handed over, each with its own request.
        await eventually(lambda: origin.count("live=long-poll") >= clients, state=lambda: origin.asked)
    else:
        await eventually(lambda: origin.count("live=long-poll") >= 1)
        await eventually(lambda: f"{clients} readers" in repr(edge.gateway.engine.live))
    origin.gate.set()
    answers = await bounded(asyncio.gather(*polls))
    assert {one.status for one in answers} == {204}
    assert {one.headers.get("X-Shown-To") for one in answers} == {"-"}
    if is_judged_at_once:
        assert all("fwd=bypass" in one.headers["Cache-Status"] for one in answers)


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_a_stream_that_a_live_read_of_its_own_did_not_find_is_given_from_memory_no_more(
    hostile: Hostile, start: Start, live: str, status: int
) -> None:
    origin = PersonalOrigin(stored={"Cache-Control": "max-age=60"}, live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile))
    assert (await edge.get("/s?offset=-1")).status == 200
    assert "hit" in (await edge.get("/s?offset=-1")).headers["Cache-Status"]
    origin.gate.set()
    # Live answers are for one reader alone from here on.
    assert (await edge.get(polled())).status == 204
    assert "hit" in (await edge.get("/s?offset=-1")).headers["Cache-Status"]
    origin.gone = status
    gone = await edge.get(f"/s?offset={TAIL}&live={live}")
    assert (gone.status, "fwd=bypass" in gone.headers["Cache-Status"]) == (status, True)
    assert (await edge.get("/s?offset=-1")).status == status


@pytest.mark.http_2
async def test_long_polls_of_one_client_in_order_cost_one_request_each(hostile: Hostile, start: Start) -> None:
    """Catch-up may be shared and live answers not: that is remembered beyond the topic."""
    origin = PersonalOrigin(live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile))
    read = await edge.get("/s?offset=-1")
    assert read.next_offset == TAIL
    for number in range(1, 6):
        origin.gate.clear()
        poll = edge.asking(polled())
        await eventually(lambda: origin.count("live=long-poll") >= number)  # noqa: B023
        assert not poll.done()
        origin.gate.set()
        found = await bounded(poll)
        assert (found.status, found.next_offset) == (204, TAIL)
        await edge.until_idle()
    assert origin.count("live=long-poll") == 5
    assert origin.count("live=sse") == 1
    # After that time it is tried again.
    edge.clock.advance(edge.gateway.config.routes[0].hit_for_miss_s)
    await bounded(edge.asking(polled()))
    assert origin.count("live=sse") == 2


@pytest.mark.http_2
async def test_clients_that_wait_together_are_handed_over_one_by_one(hostile: Hostile, start: Start) -> None:
    """A text stream is followed by long-poll: only its answer tells that it may not be shared."""
    origin = PersonalOrigin(TEXT, live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile))
    polls = [edge.asking(polled())]
    await eventually(lambda: origin.count("live=long-poll") == 1)
    polls += [edge.asking(polled()) for _ in range(7)]
    await eventually(lambda: "8 readers" in repr(edge.gateway.engine.live))
    assert origin.count("live=long-poll") == 1
    origin.gate.set()
    answers = await bounded(asyncio.gather(*polls))
    assert [(one.status, "fwd=bypass" in one.headers["Cache-Status"]) for one in answers] == [(204, True)] * 8
    assert origin.count("live=long-poll") == 1 + 8
    await edge.until_idle()


async def test_clients_that_leave_before_they_are_handed_over_have_a_line_each(
    hostile: Hostile, start: Start, tmp_path: Path
) -> None:
    origin, log = PersonalOrigin(TEXT, live={"Cache-Control": "private"}), tmp_path / "access.log"
    edge = await start(await origin.start(hostile), sink="file", path=str(log))
    wires = [await edge.begin(polled(), {"User-Agent": "0"})]
    await eventually(lambda: origin.count("live=long-poll") == 1)
    wires += [await edge.begin(polled(), {"User-Agent": str(number)}) for number in range(1, 4)]
    await eventually(lambda: "4 readers" in repr(edge.gateway.engine.live))
    edge.gateway.clients.turns = held = Held()
    origin.gate.set()
    await eventually(lambda: len(held.takers) == 4)
    for wire in wires[:3]:
        wire.reset()
    await eventually(lambda: len(edge.gateway.clients) == 1)
    for taker in held.takers[:]:
        taker.take_turn()
    assert (await bounded(wires[3].answer("GET"))).status == 204
    lines = await log_lines(edge, log, 4)
    assert sorted((line["user_agent"], line["outcome"], line.get("close_reason")) for line in lines) == [
        ("0", "aborted", "left"),
        ("1", "aborted", "left"),
        ("2", "aborted", "left"),
        ("3", "pass", None),
    ]
    assert edge.gateway.metrics.routes["default"].subscribers[Mode.LONGPOLL].value == 0


@pytest.mark.http_2
async def test_clients_that_wait_together_are_handed_over_with_their_own_credentials(
    hostile: Hostile, start: Start
) -> None:
    origin = PersonalOrigin(TEXT, live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile), credentials="shared", credential_headers=("x-tenant",))
    polls = [edge.asking(polled(), {"X-Tenant": "0"})]
    await eventually(lambda: origin.count("live=long-poll") == 1)
    await eventually(lambda: any(topic.is_confirmed for topic in edge.gateway.engine.live.topics()))
    parsed = len(edge.gateway.clients.header_cache)
    polls += [edge.asking(polled(), {"X-Tenant": str(tenant)}) for tenant in range(1, 8)]
    await eventually(lambda: "8 readers" in repr(edge.gateway.engine.live))
    assert len(edge.gateway.clients.header_cache) == parsed or edge.gateway.clients.remembered is None
    origin.gate.set()
    answers = await bounded(asyncio.gather(*polls))
    assert [one.headers["X-Shown-To"] for one in answers] == [str(tenant) for tenant in range(8)]
    await edge.until_idle()


async def test_a_stream_that_is_read_often_is_not_followed_again_if_live_answers_are_personal(
    hostile: Hostile, start: Start
) -> None:
    origin = PersonalOrigin(live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile))
    for _ in range(4):
        for _ in range(12):
            assert (await edge.get("/s?offset=-1")).status == 200
        edge.clock.advance(12.0)
    assert origin.count("live=") == 1


@pytest.mark.http_2
@pytest.mark.parametrize("asked_from", ["offset=now", "offset=%6eow", "%6Fffset=now"])
async def test_a_long_poll_from_now_that_is_handed_over_misses_nothing(
    hostile: Hostile, start: Start, asked_from: str
) -> None:
    """Its `now` is when it arrived, not when the origin's answer proved to be personal."""
    origin = PersonalOrigin(TEXT, live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile))
    poll = edge.asking(polled("now").replace("offset=now", asked_from))
    await eventually(lambda: origin.count("live=long-poll") >= 1)
    origin.gate.set()
    assert (await bounded(poll)).status == 204
    relayed = [asked.target for asked in origin.asked if "live=long-poll" in asked.target]
    assert relayed[-1] == polled(TAIL)


async def test_long_polls_are_relayed_once_if_nothing_is_remembered(hostile: Hostile, start: Start) -> None:
    origin = PersonalOrigin(live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile), hit_for_miss_s=0)
    polls = [edge.asking(polled()) for _ in range(3)]
    await eventually(lambda: origin.count("live=long-poll") >= 3)
    origin.gate.set()
    assert {one.status for one in await bounded(asyncio.gather(*polls))} == {204}
    assert origin.count("live=sse") <= 3
    assert origin.count("live=long-poll") == 3


@pytest.mark.parametrize("content_type", [JSON, TEXT])
async def test_sse_is_relayed_and_so_is_a_later_long_poll(hostile: Hostile, start: Start, content_type: str) -> None:
    personal = {"Cache-Control": "private"}
    origin = PersonalOrigin(content_type, personal, personal)
    edge = await start(await origin.start(hostile))
    wires = [await edge.begin("/s?offset=-1&live=sse") for _ in range(3)]
    for wire in wires:
        head = await wire.head()
        assert (head.status, head.headers["Cache-Control"]) == (200, "private")
    poll = edge.asking(polled())
    await eventually(lambda: origin.count("live=long-poll") >= 1)
    origin.gate.set()
    assert (await bounded(poll)).status == 204


async def test_a_long_poll_that_is_handed_over_has_one_line_in_the_access_log(
    hostile: Hostile, start: Start, tmp_path: Path
) -> None:
    origin = PersonalOrigin(live={"Cache-Control": "private"})
    log = tmp_path / "access.log"
    edge = await start(await origin.start(hostile), sink="file", path=str(log))
    polls = [edge.asking(polled()) for _ in range(4)]
    await eventually(lambda: origin.count("live=long-poll") >= 4)
    origin.gate.set()
    await bounded(asyncio.gather(*polls))
    lines = await balanced_lines(edge, log)
    ended = [(line["mode"], line["outcome"], line["status"]) for line in lines if line["is_final"]]
    assert ended == [("longpoll", "pass", 204)] * 4


@pytest.mark.http_2
async def test_a_client_that_leaves_while_it_is_handed_over_is_forgotten(hostile: Hostile, start: Start) -> None:
    origin = PersonalOrigin(live={"Cache-Control": "private"})
    edge = await start(await origin.start(hostile))
    wires = [await edge.begin(polled()) for _ in range(8)]
    await eventually(lambda: origin.count("live=sse") >= 1)
    for wire in wires[::2]:
        await wire.closed()
    origin.gate.set()
    for wire in wires[1::2]:
        assert (await wire.answer("GET")).status == 204
    await edge.until_idle()


# -- one judgement for all read modes


@pytest.mark.parametrize("content_type", [JSON, TEXT])
async def test_no_tenant_is_shown_what_the_origin_has_shown_another(
    hostile: Hostile, start: Start, content_type: str
) -> None:
    vary = {"Vary": "X-Tenant"}
    origin = PersonalOrigin(content_type, vary, vary)
    origin.gate.set()
    edge = await start(await origin.start(hostile))
    for _ in range(3):
        for tenant in ("a", "b", "c"):
            who = {"X-Tenant": tenant}
            for method, target in (
                ("GET", "/s"),
                ("GET", "/s?offset=now"),
                ("HEAD", "/s"),
                ("GET", polled()),
                ("GET", polled("-1")),
                ("GET", polled("now")),
                ("GET", "/s?offset=-1&live=sse"),
            ):
                shown = await edge.send(method, target, who)
                assert (shown.status, shown.headers.get("X-Shown-To")) in ((200, tenant), (204, tenant)), target
                assert "detail=Vary" in shown.headers["Cache-Status"] or method == "HEAD"


@pytest.mark.parametrize("personal", PERSONAL)
async def test_a_head_that_is_personal_keeps_no_read_from_being_shared(
    hostile: Hostile, start: Start, personal: dict[str, str]
) -> None:
    origin = PersonalOrigin(TEXT, {"Stream-Closed": "true"}, head={**personal, "Stream-TTL": "60"})
    edge = await start(await origin.start(hostile))
    for _ in range(4):
        assert (await edge.get("/s?offset=-1")).body == b'"-"'
        head = await edge.send("HEAD", "/s", {"X-Tenant": "a"})
        assert (head.headers["X-Shown-To"], personal.items() <= dict(head.headers).items()) == ("a", True)
    assert origin.count("offset=-1") == 1
    # Its lifetime still counts.
    edge.clock.advance(61)
    await edge.get("/s?offset=-1")
    assert origin.count("offset=-1") == 2


async def test_a_404_for_one_tenant_drops_nothing_of_others(hostile: Hostile, start: Start) -> None:
    """Replies to readers without a tenant may be shared, and the others vary."""
    origin = PersonalOrigin(TEXT, {"Stream-Closed": "true"})

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "X-Tenant" in asked.headers:
            writer.write(answer("404 Not Found", {"Content-Type": TEXT, "Vary": "X-Tenant"}))
        else:
            await origin.answer(asked, writer)

    edge = await start((await hostile(script, takes_head=True)).url)
    await edge.get("/s?offset=-1")
    stream = next(iter(edge.gateway.engine.store))
    for method in ("POST", "DELETE"):
        who = {"X-Tenant": "a", "Content-Type": TEXT}
        assert (await edge.send(method, "/s", who, b"x" if method == "POST" else None)).status == 404
        assert stream.ended is None
        assert (await edge.get("/s?offset=-1")).body == b'"-"'


async def test_a_404_for_one_tenant_is_not_given_to_another(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {"Content-Type": TEXT, "Vary": "X-Tenant"}
        if asked.headers.get("X-Tenant") == "a":
            writer.write(answer("200 OK", {**headers, "Stream-Next-Offset": TAIL, "Stream-Up-To-Date": "true"}))
        else:
            writer.write(answer("404 Not Found", headers))

    edge = await start((await hostile(script, takes_head=True)).url)
    for _ in range(2):
        for target in ("/s", "/s?offset=now", polled("-1")):
            for method in ("HEAD", "GET"):
                found = [(await edge.send(method, target, {"X-Tenant": who})).status for who in "bab"]
                assert found == [404, 200, 404], (method, target)


# -- web origins

APP, OTHER = {"Origin": "https://app.example"}, {"Origin": "https://other.example"}


@pytest.mark.parametrize("content_type", [JSON, TEXT])
async def test_a_browser_is_allowed_as_the_origin_allows_it_and_other_clients_share(
    hostile: Hostile, start: Start, caplog: pytest.LogCaptureFixture, content_type: str
) -> None:
    origin = PersonalOrigin(content_type, has_cors=True)
    origin.gate.set()
    edge = await start(await origin.start(hostile), follow_above_per_s=0)
    targets = ("/s", "/s?offset=now", polled(), polled("-1"), "/s?offset=-1&live=sse")
    with caplog.at_level(logging.WARNING, "gateway.sharing"):
        for _ in range(2):
            for who in ({}, APP, OTHER, {}):
                for target in targets:
                    if not who and "live" in target:
                        continue
                    read = await edge.get(target, who)
                    assert read.headers.get("Access-Control-Allow-Origin") == who.get("Origin"), (target, who)
                    assert "Origin" in read.headers["Vary"], target
                head = await edge.send("HEAD", "/s", who)
                assert head.headers.get("Access-Control-Allow-Origin") == who.get("Origin")
    (said,) = [record.getMessage() for record in caplog.records if record.name == "gateway.sharing"]
    assert "[route.cors]" in said
    before = len(origin.asked)
    reads = [await edge.get("/s") for _ in range(10)]
    assert all("detail" not in read.headers["Cache-Status"] for read in reads)
    assert sum("offset=-1" in asked.target for asked in origin.asked[before:]) == 0
    assert unshared(edge, "Vary: Origin") > 0


async def test_a_404_names_the_browsers_web_origin(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {"Content-Type": TEXT, "Vary": "Origin"}
        if "Origin" in asked.headers:
            headers["Access-Control-Allow-Origin"] = asked.headers["Origin"]
        writer.write(answer("404 Not Found", headers))

    edge = await start((await hostile(script, takes_head=True)).url)
    for _ in range(2):
        for who in ({}, APP, OTHER):
            for method, target in (("GET", "/s"), ("HEAD", "/s"), ("GET", polled("-1"))):
                found = await edge.send(method, target, who)
                assert (found.status, found.headers.get("Access-Control-Allow-Origin")) == (404, who.get("Origin"))


async def created_closed(hostile: Hostile, start: Start, origin: PersonalOrigin, writer: dict[str, str]) -> Edge:
    """A gateway through which `writer` has created a stream that is closed at its beginning."""

    async def script(asked: Asked, out: asyncio.StreamWriter) -> None:
        if asked.method != "PUT":
            await origin.answer(asked, out)
            return
        headers = {"Content-Type": TEXT, "Stream-Next-Offset": TAIL, "Stream-Closed": "true", **origin.stored}
        if origin.has_cors:
            headers["Vary"] = "Origin"
        if (web_origin := asked.headers.get("Origin")) is not None:
            headers["Access-Control-Allow-Origin"] = web_origin
        out.write(answer("201 Created", headers))

    origin.gate.set()
    edge = await start((await hostile(script, takes_head=True)).url)
    assert (await edge.send("PUT", "/s", {**writer, "Content-Type": TEXT}, b"")).status == 201
    return edge


AT_THE_END = (f"/s?offset={TAIL}", "/s?offset=now", polled())


async def test_a_writers_web_origin_is_not_repeated_to_readers(hostile: Hostile, start: Start) -> None:
    edge = await created_closed(hostile, start, PersonalOrigin(TEXT), APP)
    for target in AT_THE_END:
        assert "Access-Control-Allow-Origin" not in (await edge.get(target, OTHER)).headers


@pytest.mark.parametrize("writer", [{}, APP])
async def test_what_a_creation_has_told_is_no_answer_to_browsers_either(
    hostile: Hostile, start: Start, writer: dict[str, str]
) -> None:
    edge = await created_closed(hostile, start, PersonalOrigin(TEXT, has_cors=True), writer)
    for target in AT_THE_END:
        assert (await edge.get(target, OTHER)).headers["Access-Control-Allow-Origin"] == OTHER["Origin"]


async def test_a_stream_that_one_tenant_has_created_is_not_shown_to_another(hostile: Hostile, start: Start) -> None:
    edge = await created_closed(hostile, start, PersonalOrigin(TEXT, {"Vary": "X-Tenant"}), {"X-Tenant": "a"})
    for target in AT_THE_END[:2]:
        assert (await edge.get(target, {"X-Tenant": "b"})).headers["X-Shown-To"] == "b"


async def test_with_origin_among_the_credentials_each_web_origin_shares(hostile: Hostile, start: Start) -> None:
    origin = PersonalOrigin(has_cors=True)
    edge = await start(await origin.start(hostile), credential_headers=("origin",))
    for _ in range(5):
        for who in (APP, OTHER):
            assert (await edge.get("/s?offset=-1", who)).headers["Access-Control-Allow-Origin"] == who["Origin"]
    assert origin.count("offset=-1") == 2


# -- cookies of a load balancer


async def test_ignored_cookies_do_not_prevent_sharing_and_are_not_passed_on(hostile: Hostile, start: Start) -> None:
    cookie = {"Set-Cookie": "AWSALB=x; Path=/"}
    origin = PersonalOrigin(stored=cookie, live=cookie)
    edge = await start(await origin.start(hostile), ignore_set_cookie=("AWSALB",))
    for _ in range(5):
        read = await edge.get("/s?offset=-1")
        assert read.body == b'["-"]'
        assert "Set-Cookie" not in read.headers
    wires = [await edge.begin("/s?offset=-1&live=sse") for _ in range(3)]
    for wire in wires:
        head = await wire.head()
        assert (head.status, "Set-Cookie" in head.headers) == (200, False)
    assert origin.count("offset=-1") == 1
    assert origin.count("live=") == 1
    # A relayed answer is its client's own.
    assert (await edge.send("POST", "/s", {"Content-Type": JSON}, b"[1]")).headers["Set-Cookie"] == "AWSALB=x; Path=/"


async def test_it_is_said_why_answers_are_not_shared_and_what_to_do(
    hostile: Hostile, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    origin = PersonalOrigin(stored={"Set-Cookie": "AWSALB=x; Path=/"})
    edge = await start(await origin.start(hostile))
    with caplog.at_level(logging.WARNING, "gateway.sharing"):
        for path in ("/s", "/t"):
            for _ in range(3):
                read = await edge.get(path)
                assert read.headers["Cache-Status"].endswith("; fwd=bypass; fwd-status=200; detail=Set-Cookie")
    (said,) = [record.getMessage() for record in caplog.records if record.name == "gateway.sharing"]
    assert "route default" in said
    assert 'route.ignore_set_cookie = ["AWSALB"]' in said
    assert unshared(edge, "Set-Cookie") == 6
