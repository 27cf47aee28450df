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
