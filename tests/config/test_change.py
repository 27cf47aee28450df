"""Changes from one configuration to another in a running gateway."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.change import RELOADABLE, change
from gateway.config.gateway import GatewayConfig

BASE: dict[str, Any] = {"routes": [{"origin": "http://127.0.0.1:1"}]}


def configured(**sections: Any) -> GatewayConfig:
    return GatewayConfig.model_validate({**BASE, **sections})


def test_the_same_configuration_changes_nothing() -> None:
    now = configured()
    result = change(now, configured())
    assert (result.config, result.changed, result.needs_restart) == (now, (), ())


def test_every_reloadable_value_exists() -> None:
    for name in RELOADABLE:
        section, _, field = name.partition(".")
        model = type(getattr(configured(), section))
        assert field in model.model_fields, name


@pytest.mark.parametrize(
    ("section", "values", "changed", "waiting"),
    [
        ("server", {"console_writes": True}, ["server.console_writes"], []),
        ("server", {"listen": "127.0.0.1:1"}, [], ["server.listen"]),
        ("limits", {"cache_bytes": 5, "eviction": "lru"}, ["limits.cache_bytes"], ["limits.eviction"]),
        ("log", {"client_address": "none"}, [], ["log.client_address"]),
        ("tracing", {"endpoint": "http://127.0.0.1:4318/v1/traces"}, [], ["tracing.endpoint"]),
    ],
)
def test_a_value_that_needs_a_restart_keeps_its_old_value_and_is_named(
    section: str, values: dict[str, Any], changed: list[str], waiting: list[str]
) -> None:
    now, wanted = configured(), configured(**{section: values})
    result = change(now, wanted)
    assert list(result.changed) == changed
    assert list(result.needs_restart) == waiting
    for name in values:
        source = wanted if f"{section}.{name}" in changed else now
        assert getattr(getattr(result.config, section), name) == getattr(getattr(source, section), name)
    again = change(result.config, wanted)
    assert (again.config, again.changed, list(again.needs_restart)) == (result.config, (), waiting)


FLEET: dict[str, Any] = {
    "name": "a",
    "listen": "127.0.0.1:1",
    "members": [{"name": "a", "url": "http://a:1"}],
    "secret": "s" * 32,
}
OTHERS = [*FLEET["members"], {"name": "b", "url": "http://b:1"}]


def in_fleet(**fleet: Any) -> GatewayConfig:
    return configured(server={"workers": 1}, fleet=fleet)


def test_a_changed_list_of_members_is_taken_by_a_gateway_whose_own_part_is_the_same() -> None:
    now = in_fleet(**FLEET)
    for members in (OTHERS, [{"name": "a", "url": "http://other:1"}]):
        wanted = in_fleet(**{**FLEET, "members": members})
        result = change(now, wanted)
        assert (result.config.fleet, result.changed, result.needs_restart) == (wanted.fleet, ("fleet.members",), ())


@pytest.mark.parametrize(
    "own",
    [{"listen": "127.0.0.1:2"}, {"secret": "t" * 32}, {"name": "b"}, {}],
    ids=["listen", "secret", "name", "none"],
)
def test_a_changed_list_of_members_waits_for_a_restart_with_another_part_of_this_gateway(own: dict[str, Any]) -> None:
    alone = in_fleet()
    now, wanted = in_fleet(**FLEET) if own else alone, in_fleet(**{**FLEET, **own, "members": OTHERS})
    result = change(now, wanted)
    assert (result.config.fleet, result.changed) == (now.fleet, ())
    assert set(result.needs_restart) >= {f"fleet.{name}" for name in ("members", *own)}
    back = change(wanted, alone)
    assert (back.config.fleet, back.changed) == (wanted.fleet, ())


def test_members_by_dns_in_place_of_a_list_need_a_restart() -> None:
    name = "10.0.0.1:1"
    now = in_fleet(**{**FLEET, "name": name, "members": [{"name": name, "url": f"http://{name}"}]})
    wanted = in_fleet(**{**FLEET, "name": name, "members": [], "members_dns": "gateway.test:1"})
    for before, after in ((now, wanted), (wanted, now)):
        result = change(before, after)
        assert (result.config.fleet, result.changed) == (before.fleet, ())
        assert set(result.needs_restart) == {"fleet.members", "fleet.members_dns"}


def test_members_by_redis_in_place_of_a_list_need_a_restart() -> None:
    now = in_fleet(**FLEET, redis="redis://10.0.0.9")
    found = {"members": [], "members_redis": True, "url": "http://a:1", "redis": "redis://10.0.0.9"}
    wanted = in_fleet(**{**FLEET, **found})
    for before, after in ((now, wanted), (wanted, now)):
        result = change(before, after)
        assert (result.config.fleet, result.changed) == (before.fleet, ())
        assert set(result.needs_restart) == {"fleet.members", "fleet.members_redis", "fleet.url"}


def test_a_changed_table_in_a_section_is_named_by_its_keys() -> None:
    now, wanted = configured(), configured(cache={"plan": {"file": "a.json", "pin_share": 0.2}})
    result = change(now, wanted)
    assert result.changed == ("cache.plan.file", "cache.plan.pin_share")
    assert result.config.cache == wanted.cache
    assert change(result.config, wanted).changed == ()


def test_routes_are_replaced_whole_and_named_by_their_differences() -> None:
    now = configured(
        routes=[
            {"origin": "http://a", "name": "stays"},
            {"origin": "http://b", "name": "goes", "prefix": "/goes"},
            {"origin": "http://c", "name": "differs", "prefix": "/differs", "cors": {"max_age_s": 1}},
        ]
    )
    wanted = configured(
        routes=[
            {"origin": "http://c", "name": "differs", "prefix": "/differs", "cors": {"max_age_s": 2}, "trust_s": 1},
            {"origin": "http://a", "name": "stays"},
            {"origin": "http://d", "name": "comes", "prefix": "/comes"},
        ]
    )
    result = change(now, wanted)
    assert result.config.routes == wanted.routes
    assert set(result.changed) == {
        "route.goes",
        "route.comes",
        "route.differs.cors.max_age_s",
        "route.differs.trust_s",
    }
    assert result.needs_restart == ()
