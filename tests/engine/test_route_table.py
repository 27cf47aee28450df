"""The route table, replaced while the gateway runs."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.routes import RouteConfig
from gateway.engine.read import Read
from gateway.engine.route_table import RouteTable
from gateway.protocol.sharing import Partition
from gateway.protocol.target import parse_target
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape

TARGET = parse_target("/stream")


def route(**fields: Any) -> RouteConfig:
    return RouteConfig.model_validate({"origin": "http://origin", **fields})


def table(*configs: RouteConfig) -> RouteTable:
    return RouteTable(configs, "node", ManualClock())


def partition(routes: RouteTable, number: int = 0, **credentials: str) -> Partition:
    return routes.routes[number].partition(CIMultiDict(credentials))


def test_an_unchanged_route_keeps_what_it_has_learned() -> None:
    routes = table(route(), route(name="b", prefix="/b"))
    before = routes.routes
    assert not routes.replace([route(), route(name="b", prefix="/b")])
    assert routes.replace([route(name="b", prefix="/b", trust_s=1), route()])
    assert routes.routes[1] is before[0]
    assert routes.routes[0] is not before[1]


@pytest.mark.parametrize(
    "fields", [{"trust_s": 1}, {"host": "example.org"}, {"compression": ["gzip"]}, {"cors": {"max_age_s": 9}}]
)
def test_a_change_that_does_not_affect_sharing_keeps_the_tapes(fields: dict[str, Any]) -> None:
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
def test_a_change_of_sharing_starts_new_tapes_each_time(fields: dict[str, Any]) -> None:
    routes = table(route())
    seen = [partition(routes)]
    for config in (route(**fields), route(), route(**fields)):
        assert routes.replace([config])
        seen.append(partition(routes))
    assert len(set(seen)) == len(seen)
    first = routes.routes[0]
    key = first.key(TARGET, first.partition(CIMultiDict(authorization="mine", **{"x-key": "mine"})))
    assert key.route == "default"
    assert {key.partition.public} == routes.public_partitions


def test_a_route_that_is_removed_and_added_again_gets_new_tapes() -> None:
    routes = table(route(), route(name="b", prefix="/b"))
    before = partition(routes, 1)
    routes.replace([route()])
    routes.replace([route(), route(name="b", prefix="/b")])
    assert partition(routes, 1) != before
    assert len(routes.public_partitions) == 2


# -- several origins ---------------------------------------------------------------------------------------------------


def several(*urls: str, **fields: Any) -> RouteConfig:
    return RouteConfig.model_validate({"origins": list(urls), **fields})


def origin_of(routes: RouteTable, number: int = 0) -> str:
    return routes.routes[number].key(TARGET, Partition("")).group.origin


def test_the_origins_of_a_route_have_one_name_in_tape_keys() -> None:
    routes = table(several("http://a", "http://b"), route(name="b", prefix="/b", origin="http://b"))
    assert origin_of(routes) == origin_of(routes, 1) == "http://a"
    # Transitively: a and c serve the same streams because each serves those of b.
    routes = table(
        several("http://c", "http://b", name="one", prefix="/1"),
        route(name="two", prefix="/2", origin="http://x"),
        several("http://b:80", "http://a", name="three", prefix="/3"),
        route(name="four", prefix="/4", origin="http://a"),
        route(name="five", prefix="/5", origin="http://l"),
        route(name="six", prefix="/6", origin="http://a", leaders=["http://l"]),
    )
    names = [origin_of(routes, number) for number in range(6)]
    assert names == ["http://c", "http://x", "http://c", "http://c", "http://c", "http://c"]


def test_adding_or_removing_origins_keeps_the_tapes_while_the_first_stays() -> None:
    routes = table(several("http://a", "http://b"))
    before = partition(routes), origin_of(routes)
    for config in (several("http://a", "http://b", "http://c"), several("http://a"), route(origin="http://a")):
        assert routes.replace([config])
        assert (partition(routes), origin_of(routes)) == before
    routes.replace([several("http://b", "http://a")])
    assert (partition(routes), origin_of(routes)) != before


def test_a_route_whose_origin_joins_another_set_starts_new_tapes() -> None:
    own = route(name="own", prefix="/own", origin="http://b")
    routes = table(own)
    before = partition(routes)
    routes.replace([several("http://a", "http://b"), own])
    assert origin_of(routes, 1) == "http://a"
    assert partition(routes, 1) != before


def test_routes_to_one_origin_share_its_retry_budget() -> None:
    routes = table(
        route(retry_budget=0.5),
        route(name="b", prefix="/b", retry_budget=0.5),
        route(name="c", prefix="/c", retry_budget=0),
        route(name="d", prefix="/d", origin="http://other"),
    )
    one, same, never, other = (each.retries for each in routes.routes)
    while one.has_retry:
        one.retry()
    assert (same.has_retry, never.has_retry, other.has_retry) == (False, False, True)
    for _ in range(2):
        same.request()
    assert (one.has_retry, same.has_retry, never.has_retry) == (True, True, False)
    routes.replace([route(retry_budget=0.5, trust_s=1), route(name="b", prefix="/b", retry_budget=0.5)])
    one.retry()
    assert not routes.routes[0].retries.has_retry


def test_a_location_at_any_origin_is_rewritten_to_the_public_url() -> None:
    (own,) = table(
        several("http://a/v1", "http://b/v1", prefix="/p", strip_prefix=True, leaders=["http://l/v1"])
    ).routes
    for host in ("a", "b", "l"):
        assert own.public_location(f"http://{host}/v1/s?x", "https://edge") == "https://edge/p/s?x"
    assert own.public_location("http://a/v2/s", "https://edge") == "http://a/v2/s"
    assert own.url + own.upstream_path("/p/s") == "route://default/v1/s"


def test_readers_share_a_partition_only_with_equal_credentials() -> None:
    routes = table(route())
    mine, yours, none = partition(routes, authorization="a"), partition(routes, authorization="b"), partition(routes)
    assert len({mine, yours, none, partition(routes, cookie="a")}) == 4
    assert mine == partition(routes, AUTHORIZATION="a")
    assert {one.public for one in (mine, yours)} == {none}
    shared = table(route(credentials="shared"))
    assert partition(shared, authorization="a") == partition(shared, authorization="b") == partition(shared)


@pytest.mark.parametrize(
    ("web_origin", "allowed", "is_kept"),
    [
        (None, None, False),
        (None, "https://a.example", False),
        ("https://a.example", None, True),
        ("https://a.example", "https://b.example", True),
        ("https://a.example", "https://a.example", False),
        ("https://a.example", "*", False),
    ],
)
def test_a_browser_is_kept_from_answers_that_do_not_allow_its_web_origin(
    web_origin: str | None, allowed: str | None, is_kept: bool
) -> None:
    one = table(route()).routes[0]
    key = one.key(TARGET, one.public)
    stream = Stream(key, Tape(), headers=CIMultiDict({"Access-Control-Allow-Origin": allowed} if allowed else {}))
    read = Read(one, key, one.source(TARGET, one.source_headers(CIMultiDict())), "-1", web_origin=web_origin)
    assert read.is_kept_from(stream) is is_kept
    stream.varies_by_origin = True
    assert read.is_kept_from(stream) is (web_origin is not None)
