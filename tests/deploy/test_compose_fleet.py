"""The compose file of a fleet: its two members, on this machine's loopback, with a real Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gateway.aio.clock import ManualClock
from gateway.config.file import load_config
from gateway.config.fleet import MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet_own_address import own_member
from gateway.origin.app import RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.deploy.test_compose import ROOT, seconds
from tests.fleet.redis_server import redis_server
from tests.fleet.site import SECRET, Site
from tests.fleet.test_orders import bodies, order

COMPOSE = ROOT / "config/deploy/compose.fleet.yaml"
DOCUMENT: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
MEMBERS = ("gateway-a", "gateway-b")


def environment(name: str) -> dict[str, str]:
    """A member's environment, with a secret that its user has set."""
    given = {key: str(value) for key, value in SERVICES[name]["environment"].items()}
    asked = given["DURABLE_GATEWAY_FLEET__SECRET"]
    assert asked.startswith("${FLEET_SECRET:?")
    return {**given, "DURABLE_GATEWAY_FLEET__SECRET": SECRET}


class ComposedSite(Site):
    """The members of the file, at ports of this machine in place of their hosts."""

    def __init__(self, origin: RunningOrigin, clock: ManualClock, redis_url: str) -> None:
        super().__init__(origin, clock, MEMBERS)
        self._redis_url = redis_url

    def config(self, name: str, fleet: dict[str, Any] | None = None, **more: Any) -> GatewayConfig:
        environ = environment(name)
        places = {
            "http://origin:4438": self.origin.url,
            "redis://redis:6379/0": self._redis_url,
            "0.0.0.0:4439": self.urls[name].removeprefix("http://"),
        }
        for key, value in environ.items():
            for there, here in places.items():
                value = value.replace(there, here)
            environ[key] = value
        environ |= {"DURABLE_GATEWAY_SERVER__LISTEN": "127.0.0.1:0", "DURABLE_GATEWAY_SERVER__ADMIN": "127.0.0.1:0"}
        return load_config(environ=environ).config


def test_members_redis_and_origin_are_where_the_members_look() -> None:
    assert set(SERVICES) == {"origin", "redis", "gateway-a", "gateway-b"}
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    configs = [load_config(environ=environment(name)).config for name in MEMBERS]
    for name, config in zip(MEMBERS, configs, strict=True):
        fleet, service = config.fleet, SERVICES[name]
        assert fleet.name == config.server.node_name == name
        assert fleet.members_redis
        # A container's address in the network of the members, which is not that of Redis alone.
        assert own_member(fleet, lambda _: "172.18.0.3") == MemberConfig(name=name, url="http://172.18.0.3:4439")
        assert config.routes[0].origin == "http://origin:4438"
        assert SERVICES["origin"]["command"][-1].endswith(":4438")
        # What the tapes may take leaves room for everything else.
        assert service["mem_limit"] == "512m"
        assert config.limits.cache_bytes * 2 <= 512 << 20
        assert seconds(service["stop_grace_period"]) > config.server.shutdown_timeout_s
        # Nobody but the members reaches Redis, which asks for no password.
        assert set(service["networks"]) >= set(SERVICES["redis"]["networks"]) == {"orders"}
    assert DOCUMENT["networks"]["orders"]["internal"]
    assert not {"ports", "network_mode"} & set(SERVICES["redis"])
    # A member is added without a change of the others.
    own = {"DURABLE_GATEWAY_FLEET__NAME", "DURABLE_GATEWAY_SERVER__NODE_NAME"}
    first, second = ({key: value for key, value in environment(name).items() if key not in own} for name in MEMBERS)
    assert first == second


async def test_the_members_share_streams_and_purges(tmp_path: Path) -> None:
    clock = ManualClock()
    origin = await start_origin(clock=clock)
    async with redis_server(tmp_path) as redis:
        site = ComposedSite(origin, clock, redis.url)
        await site.start_all()
        path = site.path_of("gateway-b")
        await site.members["gateway-a"].put(path, b"one", Stream_Closed="true")
        assert await bodies(site, path, MEMBERS) == {b"one"}
        assert origin.origin.counters.requests[Kind.CATCHUP] == 1
        answer = await order(site, "gateway-a", "purge", {"stream": path})
        assert answer["members"] == [{"member": "gateway-b", "affected": 1, "why_not": ""}]
        assert answer["in_redis"]
        await site.close()
    await origin.stop(grace_s=0)
