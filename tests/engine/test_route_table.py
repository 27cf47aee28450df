"""The table of routes, replaced while the gateway runs."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.clock import ManualClock
from gateway.config import RouteConfig
from gateway.engine.route import RouteTable
from gateway.protocol.target import parse_target

TARGET = parse_target("/stream")


def route(**fields: Any) -> RouteConfig:
    return RouteConfig.model_validate({"origin": "http://origin", **fields})


def table(*configs: RouteConfig) -> RouteTable:
    return RouteTable(configs, "node", ManualClock())


def partition(routes: RouteTable, number: int = 0, **credentials: str) -> str:
    return routes.routes[number].key(TARGET, CIMultiDict(credentials)).partition


def test_a_route_that_stays_as_it_was_stays_with_what_it_has_learned() -> None:
    routes = table(route(), route(name="b", prefix="/b"))
    before = routes.routes
    assert not routes.replace([route(), route(name="b", prefix="/b")])
    assert routes.replace([route(name="b", prefix="/b", trust_s=1), route()])
    assert routes.routes[1] is before[0]
    assert routes.routes[0] is not before[1]


@pytest.mark.parametrize(
    "fields", [{"trust_s": 1}, {"host": "example.org"}, {"compression": ["gzip"]}, {"cors": {"max_age_s": 9}}]
)
def test_a_change_of_manners_keeps_the_tapes(fields: dict[str, Any]) -> None:
    routes = table(route(cors={} if "cors" in fields else None))
    before = partition(routes), partition(routes, authorization="mine")
    assert routes.replace([route(**fields)])
    assert (partition(routes), partition(routes, authorization="mine")) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"credentials": "shared"},
        {"credentials": "bypass"},
        {"credential_headers": ["x-key"]},
        {"origin": "http://elsewhere"},
        {"cache": False},
        {"strip_prefix": True},
        {"cors": {}},
    ],
)
def test_a_change_of_who_may_share_begins_new_tapes_each_time(fields: dict[str, Any]) -> None:
    routes = table(route())
    seen = [partition(routes)]
    for config in (route(**fields), route(), route(**fields)):
        assert routes.replace([config])
        seen.append(partition(routes))
    assert len(set(seen)) == len(seen)
    key = routes.routes[0].key(TARGET, CIMultiDict(authorization="mine", **{"x-key": "mine"}))
    assert key.route == "default"
    assert {key.share} == routes.shares


def test_a_route_that_comes_back_does_not_find_what_it_left() -> None:
    routes = table(route(), route(name="b", prefix="/b"))
    before = partition(routes, 1)
    routes.replace([route()])
    routes.replace([route(), route(name="b", prefix="/b")])
    assert partition(routes, 1) != before
    assert len(routes.shares) == 2
