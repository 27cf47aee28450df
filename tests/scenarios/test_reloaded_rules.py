"""Live reads after a reload: each goes on only if the rules in effect would allow it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.origin.app import RunningOrigin
from gateway.origin.faults import Faults
from gateway.server.guarded_live_reads import SPREAD_S
from tests.scenarios.auth_service import AuthService
from tests.scenarios.conftest import Edge, Hostile, bounded
from tests.scenarios.credentials import KEYS, bearer, jwt_rule, signed, signed_rule
from tests.scenarios.wire import Dropped
from tests.waiting import eventually

pytestmark = pytest.mark.judging

OPAQUE = {"Authorization": "Bearer opaque"}
TAIL = "live=sse&offset=now"
POLL = "live=long-poll&offset=now"


class Rules:
    """The routes that a reload reads, and the folder with their keys."""

    def __init__(self, origin: RunningOrigin, service: AuthService, folder: Path) -> None:
        self.folder = folder
        self.service = service
        self._origin = origin
        self.public: dict[str, Any] = {"by": "public", "streams": ["/public/*"]}
        self.jwt = jwt_rule(folder)
        self.signed = signed_rule(folder)
        self.forward = {"by": "forward", "url": f"{service.url}/verify", "request_headers": ["authorization"]}
        self.rules = [self.public, self.jwt, self.signed, self.forward]
        self.more: list[RouteConfig] = []
        self.settings: dict[str, Any] = {}

    def load(self) -> GatewayConfig:
        settings: dict[str, Any] = {"sse_lifetime_s": 600, "auth": self.rules, "credentials": "shared", **self.settings}
        routes = (RouteConfig(**{"name": "default", "origin": self._origin.url, **settings}), *self.more)
        return GatewayConfig(server=ServerConfig(listen="127.0.0.1:0", admin="127.0.0.1:0"), routes=routes)

    def add_route(self, prefix: str, **settings: Any) -> None:
        self.more = [RouteConfig(name="other", prefix=prefix, origin=self._origin.url, **settings)]


@pytest.fixture
async def rules(origin: RunningOrigin, hostile: Hostile, tmp_path: Path) -> Rules:
    service = await AuthService.open(hostile, decide=lambda asked: ("200 OK", {"Cache-Control": "max-age=300"}))
    return Rules(origin, service, tmp_path)


@pytest.fixture
async def edge(rules: Rules, clock: ManualClock) -> AsyncIterator[Edge]:
    edge = Edge(await start_gateway(rules.load(), clock=clock, rng=Random(7), load=rules.load), clock)
    yield edge
    await edge.leave()
    await edge.until_idle()
    await edge.gateway.stop()


def _with_other_keys(rules: Rules, *names: str) -> None:
    keys = [KEYS[name].as_dict(private=False) for name in names]
    Path(rules.jwt["keys_file"]).write_text(json.dumps({"keys": keys}))


def _with_signing_key(rules: Rules, *, keeps: bool) -> None:
    (rules.folder / "other.key").write_bytes(b"another key that nobody guesses")
    other = {"id": "two", "file": str(rules.folder / "other.key")}
    rules.signed["keys"] = [other, *(rules.signed["keys"] if keeps else ())]


EVERY = {"public", "token", "link", "service"}
CHANGES: dict[str, tuple[Callable[[Rules], object], set[str]]] = {
    "nothing": (lambda rules: None, set()),
    "token rule removed": (lambda rules: rules.rules.remove(rules.jwt), {"token"}),
    "token permissions": (lambda rules: rules.jwt.update(permissions=["read /other/*"]), {"token"}),
    "token key added": (lambda rules: _with_other_keys(rules, *KEYS), set()),
    "token key withdrawn": (lambda rules: _with_other_keys(rules, "RS256", "Ed25519"), {"token"}),
    "signing key added": (lambda rules: _with_signing_key(rules, keeps=True), set()),
    "signing key removed": (lambda rules: _with_signing_key(rules, keeps=False), {"link"}),
    "service removed": (lambda rules: rules.rules.remove(rules.forward), {"service"}),
    "another service first": (
        lambda rules: rules.rules.insert(0, {**rules.forward, "url": "http://127.0.0.1:1/"}),
        EVERY,
    ),
    "public pattern added": (lambda rules: rules.public.update(streams=["/a", "/public/*"]), set()),
    "public pattern removed": (lambda rules: rules.public.update(streams=["/a"]), {"public"}),
    "another setting": (lambda rules: rules.settings.update(trust_s=1), set()),
    "route over some streams": (lambda rules: rules.add_route("/shared"), EVERY),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_after_a_reload_a_live_read_ends_in_order_unless_the_new_rules_would_allow_it(
    edge: Edge, rules: Rules, change: str
) -> None:
    _with_other_keys(rules, "RS256", "ES256")
    await edge.gateway.reload()
    for path in ("/public/s", "/shared/s"):
        created = await edge.send("PUT", path, {**OPAQUE, "Content-Type": "text/plain"}, b"x")
        assert created.status == 201
    reads = {
        "public": await edge.begin(f"/public/s?{TAIL}", {}),
        "token": await edge.begin(f"/shared/s?{TAIL}", bearer("ada")),
        "link": await edge.begin(f"{signed('/shared/s')}&{TAIL}", {}),
        "service": await edge.begin(f"/shared/s?{TAIL}", OPAQUE),
    }
    for wire in reads.values():
        assert (await bounded(wire.head())).status == 200
    verdicts = edge.gateway.routes.verdicts
    await eventually(lambda: len(verdicts.live_reads()) == len(reads))
    make, ended = CHANGES[change]
    make(rules)
    await edge.gateway.reload()
    edge.clock.advance(SPREAD_S + 1)
    await eventually(lambda: len(verdicts.live_reads()) == len(reads) - len(ended))
    for name in ended:
        await bounded(reads[name].body())
    for wire in reads.values():
        wire.reset()


async def test_a_route_that_gets_rules_ends_the_live_reads_that_no_rule_has_judged(edge: Edge, rules: Rules) -> None:
    rules.settings["auth"] = []
    await edge.gateway.reload()
    for path in ("/shared/s", "/other/s"):
        assert (await edge.send("PUT", path, {"Content-Type": "text/plain"}, b"x")).status == 201
    topics = edge.gateway.engine.live.topics
    rules.add_route("/other")
    await edge.gateway.reload()
    reads = [await edge.begin(f"{path}?{live}", {}) for path in ("/shared/s", "/other/s") for live in (TAIL, POLL)]
    await eventually(lambda: [topic.readers for topic in topics() if topic.is_confirmed] == [2, 2])
    del rules.settings["auth"]
    await edge.gateway.reload()
    edge.clock.advance(SPREAD_S + 1)
    await bounded(reads[0].head())
    await bounded(reads[0].body())
    assert (await bounded(reads[1].answer("GET"))).status == 204
    await eventually(lambda: sorted(topic.readers for topic in topics()) in ([2], [0, 2]))
    for wire in reads:
        wire.reset()


@pytest.mark.parametrize("is_renamed", [True, False])
async def test_a_live_read_without_rules_ends_when_another_route_with_rules_takes_its_stream(
    edge: Edge, rules: Rules, *, is_renamed: bool
) -> None:
    rules.settings["auth"] = []
    await edge.gateway.reload()
    assert (await edge.send("PUT", "/shared/s", {"Content-Type": "text/plain"}, b"x")).status == 201
    read = await edge.begin(f"/shared/s?{TAIL}", {})
    await bounded(read.head())
    if is_renamed:
        rules.settings = {"name": "renamed"}
    else:
        rules.add_route("/shared", auth=[rules.jwt])
    await edge.gateway.reload()
    edge.clock.advance(SPREAD_S + 1)
    await bounded(read.body())


@pytest.mark.parametrize("live", [TAIL, POLL])
async def test_a_live_read_that_waits_for_the_origin_while_its_route_gets_rules_ends(
    edge: Edge, rules: Rules, faults: Faults, live: str
) -> None:
    rules.settings["auth"] = []
    await edge.gateway.reload()
    assert (await edge.send("PUT", "/shared/s", {"Content-Type": "text/plain"}, b"x")).status == 201
    gate = faults.hold()
    read = await edge.begin(f"/shared/s?{live}", {})
    await gate.waiting(1)
    del rules.settings["auth"]
    await edge.gateway.reload()
    gate.release()
    topics = edge.gateway.engine.live.topics
    if live == POLL:
        await eventually(lambda: [topic.readers for topic in topics() if topic.is_confirmed] == [1])
        edge.clock.advance(SPREAD_S + 1)
        assert (await bounded(read.answer("GET"))).status == 204
    else:
        await bounded(read.head())
        edge.clock.advance(SPREAD_S + 1)
        await bounded(read.body())


async def test_relayed_live_reads_end_when_their_route_gets_rules(edge: Edge, rules: Rules) -> None:
    rules.settings.update(auth=[], cache=False)
    await edge.gateway.reload()
    assert (await edge.send("PUT", "/shared/s", {"Content-Type": "text/plain"}, b"x")).status == 201
    reads = [await edge.begin(f"/shared/s?{live}", {}) for live in (TAIL, POLL)]
    await bounded(reads[0].head())
    await eventually(lambda: edge.gateway.engine.live_table.relayed == 2)
    del rules.settings["auth"]
    await edge.gateway.reload()
    with pytest.raises(Dropped):
        await bounded(reads[0].body())
    with pytest.raises(Dropped):
        await bounded(reads[1].head())


async def test_a_second_reload_does_not_delay_the_end_of_a_live_read(edge: Edge, rules: Rules) -> None:
    created = await edge.send("PUT", "/shared/s", {**OPAQUE, "Content-Type": "text/plain"}, b"x")
    assert created.status == 201
    reads = [await edge.begin(f"/shared/s?{TAIL}", bearer("ada")) for _ in range(8)]
    for read in reads:
        await bounded(read.head())
    rules.rules.remove(rules.jwt)
    await edge.gateway.reload()
    edge.clock.advance(SPREAD_S / 2)
    await edge.gateway.reload()
    edge.clock.advance(SPREAD_S / 2 + 0.1)
    for read in reads:
        await bounded(read.body())


async def test_a_long_poll_whose_rule_a_reload_removes_is_dropped(edge: Edge, rules: Rules) -> None:
    created = await edge.send("PUT", "/shared/s", {**OPAQUE, "Content-Type": "text/plain"}, b"x")
    assert created.status == 201
    polls = [await edge.begin(f"/shared/s?{POLL}", headers) for headers in (bearer("ada"), OPAQUE)]
    verdicts = edge.gateway.routes.verdicts
    await eventually(lambda: len(verdicts.live_reads()) == 2)
    rules.rules.remove(rules.jwt)
    await edge.gateway.reload()
    edge.clock.advance(SPREAD_S + 1)
    with pytest.raises(Dropped):
        await bounded(polls[0].answer("GET"))
    assert len(verdicts.live_reads()) == 1
    polls[1].reset()


@pytest.mark.parametrize(("reloads", "left", "status"), [(1, 3, 401), (2, 3, 401), (2, 0, 503)])
async def test_a_request_that_waits_for_a_verdict_during_reloads_is_judged_by_the_new_rules(
    edge: Edge, rules: Rules, reloads: int, left: int, status: int
) -> None:
    rules.service.gate.clear()
    waiting = await edge.begin(f"/shared/s?{TAIL}", OPAQUE)
    services = edge.gateway.auth_services
    await eventually(lambda: "1 waiting" in repr(services))
    for number in range(reloads):
        if number + 1 == reloads:
            del rules.rules[left:]
        rules.settings["trust_s"] = 5 + number
        await edge.gateway.reload()
    rules.service.gate.set()
    assert (await bounded(waiting.answer("GET"))).status == status


@pytest.mark.parametrize("change", ["place", "headers", "parameter"])
async def test_a_request_that_waits_while_a_reload_changes_what_its_route_reads_is_undecided(
    edge: Edge, rules: Rules, change: str
) -> None:
    created = await edge.send("PUT", "/shared/s", {**OPAQUE, "Content-Type": "text/plain"}, b"x")
    assert created.status == 201
    rules.service.gate.clear()
    waiting = await edge.begin("/shared/s", {"Authorization": "Bearer waiting"})
    await eventually(lambda: "1 waiting" in repr(edge.gateway.auth_services))
    rules.rules.insert(0, {"by": "public", "streams": ["/**"]})
    match change:
        case "place":
            rules.settings["prefix"] = "/other"
            rules.add_route("/shared", auth=[rules.jwt])
        case "headers":
            rules.forward["request_headers"] = ["authorization", "x-key"]
        case _:
            rules.forward["parameter"] = "token"
    await edge.gateway.reload()
    rules.service.gate.set()
    assert (await bounded(waiting.answer("GET"))).status == 503
