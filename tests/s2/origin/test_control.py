"""The control plane over HTTP: what S2's own tests of its SDKs expect of a server."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from gateway.origin.s2.app import RunningS2Origin
from tests.s2.origin.appends import BASIN, NOW, bodies

STREAM = {"stream": "s"}


@pytest.fixture
def version() -> str:
    """One version of HTTP is enough for what does not depend on it."""
    return "HTTP/1.1"


async def refused(reply: httpx.Response) -> tuple[int, Any]:
    return reply.status_code, reply.json()["code"]


async def config_of(http: httpx.AsyncClient, stream: str = "s") -> Any:
    return (await http.get(f"/streams/{stream}")).json()


@pytest.mark.parametrize("resource", ["basins", "streams"])
async def test_a_list_takes_a_prefix_a_start_and_a_limit(http: httpx.AsyncClient, resource: str) -> None:
    key = resource.removesuffix("s")
    for number in range(3):
        assert (await http.post(f"/{resource}", json={key: f"listed-00{number}"})).status_code == 201

    async def listed(**query: str) -> tuple[list[str], bool]:
        page = (await http.get(f"/{resource}", params={"prefix": "listed", **query})).json()
        return [one["name"] for one in page[resource]], page["has_more"]

    assert await listed(limit="2") == (["listed-000", "listed-001"], True)
    assert await listed(limit="2", start_after="listed-001") == (["listed-002"], False)
    assert await listed(start_after="listed-002") == ([], False)
    assert await listed(start_after="") == (["listed-000", "listed-001", "listed-002"], False)
    for limit in ("0", "1500"):
        assert len((await listed(limit=limit))[0]) == 3
    before = await http.get(f"/{resource}", params={"prefix": "z", "start_after": "a"})
    assert await refused(before) == (422, "invalid")
    assert await refused(await http.get(f"/{resource}?limit=-1")) == (400, "bad_query")


async def test_what_is_said_of_basins_and_streams_has_every_field(http: httpx.AsyncClient) -> None:
    """Clients in typed languages fail for one that is left out."""
    created = (await http.post("/streams", json=STREAM)).json()
    assert created == {"name": "s", "created_at": created["created_at"], "deleted_at": None, "cipher": None}
    (listed,) = (await http.get("/streams")).json()["streams"]
    assert listed == created
    (basin,) = (await http.get("/basins")).json()["basins"]
    assert sorted(basin) == ["created_at", "deleted_at", "location", "name", "state"]
    assert (basin["deleted_at"], basin["state"]) == (None, "active")


async def test_what_comes_back_is_the_configuration_with_its_defaults(http: httpx.AsyncClient) -> None:
    await http.post("/streams", json=STREAM)
    defaults = {
        "storage_class": "express",
        "retention_policy": {"age": 7 * 86_400},
        "timestamping": {"mode": "client-prefer", "uncapped": False},
    }
    assert await config_of(http) == defaults
    changed = await http.patch("/streams/s", json={"delete_on_empty": {"min_age_secs": 60}})
    assert changed.json() == {**defaults, "delete_on_empty": {"min_age_secs": 60}}
    unchanged = await http.patch("/streams/s", json={})
    assert unchanged.json() == changed.json()
    assert (await http.patch("/streams/s", json={"delete_on_empty": {"min_age_secs": 0}})).json() == defaults


@pytest.mark.parametrize("body", [b"", b"null", b"{}"])
async def test_ensuring_needs_no_configuration(http: httpx.AsyncClient, body: bytes) -> None:
    for path in ("/streams/s", "/basins/another-basin"):
        created, found = [await http.put(path, content=body) for _ in range(2)]
        assert (created.status_code, created.headers["s2-provision-result"]) == (201, "created")
        assert (found.status_code, found.headers["s2-provision-result"]) == (200, "noop")
    updated = await http.put("/streams/s", json={"storage_class": "standard"})
    assert (updated.status_code, updated.headers["s2-provision-result"]) == (200, "updated")


async def test_a_request_token_makes_a_creation_safe_to_repeat(http: httpx.AsyncClient) -> None:
    async def create(token: str, body: object = STREAM) -> int:
        return (await http.post("/streams", json=body, headers={"s2-request-token": token})).status_code

    assert await create("x" * 36) == await create("x" * 36) == 201
    assert await create("y") == await create("x" * 36, {**STREAM, "config": {"storage_class": "standard"}}) == 409
    too_long = await http.post("/streams", json=STREAM, headers={"s2-request-token": "x" * 37})
    assert await refused(too_long) == (400, "bad_header")


@pytest.mark.parametrize(
    "config",
    [
        {"retention_policy": {"age": -1}},
        {"retention_policy": {"age": "1"}},
        {"retention_policy": {}},
        {"retention_policy": 3},
        {"storage_class": 1},
        {"timestamping": {"mode": "none"}},
        {"timestamping": {"uncapped": 1}},
        {"delete_on_empty": {"min_age_secs": -1}},
    ],
)
async def test_a_configuration_of_the_wrong_shape_is_bad_json(http: httpx.AsyncClient, config: object) -> None:
    bad = (400, "bad_json")
    assert await refused(await http.post("/streams", json={**STREAM, "config": config})) == bad
    basin = {"basin": "another-basin", "config": {"default_stream_config": config}}
    assert await refused(await http.post("/basins", json=basin)) == bad
    await http.post("/streams", json=STREAM)
    assert await refused(await http.patch("/streams/s", json=config)) == bad
    assert await refused(await http.put("/streams/s", json=config)) == bad


async def test_a_configuration_that_means_nothing_is_invalid(http: httpx.AsyncClient) -> None:
    for config in ({"retention_policy": {"age": 0}}, {"storage_class": "fast"}):
        assert await refused(await http.post("/streams", json={**STREAM, "config": config})) == (422, "invalid")


@pytest.mark.parametrize("body", [b"[]", b'"s"', b"{}", b'{"stream":1}', b'{"stream":""}', b'{"stream":".."}'])
async def test_a_body_of_the_wrong_shape_is_bad_json(http: httpx.AsyncClient, body: bytes) -> None:
    assert await refused(await http.post("/streams", content=body)) == (400, "bad_json")


async def test_a_name_that_nothing_may_have_is_refused_where_it_stands(http: httpx.AsyncClient) -> None:
    async def get(path: str, basin: str = BASIN) -> tuple[int, Any]:
        return await refused(await http.get(path, headers={"s2-basin": basin}))

    long = "a" * 513
    for path in (f"/streams/{long}", f"/streams/{long}/records", "/streams/a%00b/records/tail", "/basins/short"):
        assert await get(path) == (400, "bad_path")
    assert await get("/streams", basin="Basin-00") == (400, "bad_header")
    assert await refused(await http.post("/basins", json={"basin": "short"})) == (400, "bad_json")
    assert await refused(await http.post("/streams", json={"stream": long})) == (400, "bad_json")
    assert (await http.post("/streams", json={"stream": "a" * 512})).status_code == 201


async def test_a_configuration_in_a_header_is_held_to_the_same_rules(http: httpx.AsyncClient) -> None:
    async def append(config: str) -> httpx.Response:
        body = {"records": [{"body": "x"}]}
        return await http.post("/streams/new/records", json=body, headers={"s2-stream-config": config})

    assert await refused(await append("[]")) == (400, "bad_header")
    assert await refused(await append('{"retention_policy":{"age":-1}}')) == (400, "bad_header")
    assert await refused(await append('{"retention_policy":{"age":0}}')) == (422, "invalid")
    assert (await append('{"retention_policy":{"age":9}}')).status_code == 200
    assert (await config_of(http, "new"))["retention_policy"] == {"age": 9}


async def test_a_bad_request_creates_no_stream(http: httpx.AsyncClient) -> None:
    await http.patch(f"/basins/{BASIN}", json={"create_stream_on_append": True, "create_stream_on_read": True})
    path = "/streams/new/records"
    assert await refused(await http.post(path, json={"records": []})) == (422, "invalid")
    for headers in ({"s2-format": "hex"}, {"accept": "text/event-stream", "last-event-id": "1"}):
        assert await refused(await http.get(path, headers=headers)) == (400, "bad_header")
    assert (await http.get("/streams")).json()["streams"] == []
    assert (await http.get(f"{path}/tail")).json()["tail"]["seq_num"] == 0


async def test_a_token_permits_something_and_prefixes_with_something(http: httpx.AsyncClient) -> None:
    async def issue(scope: object, **more: object) -> httpx.Response:
        return await http.post("/access-tokens", json={"id": "t", "scope": scope, **more})

    read = {"op_groups": {"stream": {"read": True, "write": False}}}
    assert await refused(await issue({})) == (422, "invalid")
    assert await refused(await issue({"ops": [], "op_groups": {"stream": {"read": False}}})) == (422, "invalid")
    for streams in (None, {"exact": "s"}, {"prefix": ""}):
        scope = {**read, "streams": streams}
        assert await refused(await issue(scope, auto_prefix_streams=True)) == (422, "invalid")
    prefixed = {**read, "streams": {"prefix": "p/"}}
    assert (await issue(prefixed, auto_prefix_streams=True)).status_code == 201
    assert await refused(await issue(read)) == (409, "resource_already_exists")


async def test_a_read_below_everything_that_is_left_finds_nothing(
    http: httpx.AsyncClient, origin: RunningS2Origin
) -> None:
    """It is not beyond the tail, so it is no 416."""
    stream = origin.origin.account.basin(BASIN).create_stream("s", {}, 0)
    stream.append(bodies("a", "b"), 0)
    await http.post("/streams/s/records", json={"records": [{"headers": [["", "trim"]], "body": "99999999"}]})
    for query in ("seq_num=0", "tail_offset=3", "seq_num=0&count=1"):
        reply = await http.get(f"/streams/s/records?{query}")
        assert (reply.status_code, reply.json()) == (200, {"records": []})
    for query in ("seq_num=3", "timestamp=0", "tail_offset=0"):
        assert (await http.get(f"/streams/s/records?{query}")).status_code == 416


NOW_S = int(NOW)
DAY_S = 24 * 3600


@pytest.mark.parametrize("path", ["metrics", f"metrics/{BASIN}", f"metrics/{BASIN}/s"])
@pytest.mark.parametrize(
    ("times", "status"),
    [
        ({"start": NOW_S - 3600, "end": NOW_S}, 200),
        ({"start": 0, "end": 3600}, 200),
        ({"end": NOW_S}, 422),
        ({"start": NOW_S}, 422),
        ({}, 422),
        ({"start": NOW_S, "end": NOW_S - 3600}, 422),
        ({"start": NOW_S - 3600, "end": NOW_S + DAY_S}, 422),
        ({"start": NOW_S - 40 * DAY_S, "end": NOW_S}, 422),
        ({"start": "x", "end": NOW_S}, 400),
    ],
)
async def test_a_query_of_metrics_is_checked(
    http: httpx.AsyncClient, path: str, times: dict[str, int | str], status: int
) -> None:
    set_ = "active-basins" if path == "metrics" else "storage"
    reply = await http.get(f"/{path}", params={"set": set_, **times})
    assert reply.status_code == status
    assert reply.json() == {"values": []} if status == 200 else "code" in reply.json()


@pytest.mark.parametrize(
    ("path", "interval", "status"),
    [
        (f"metrics/{BASIN}", "minute", 422),
        (f"metrics/{BASIN}", "hour", 200),
        (f"metrics/{BASIN}/s", "hour", 422),
        (f"metrics/{BASIN}/s", "minute", 200),
        (f"metrics/{BASIN}/s", "year", 400),
    ],
)
async def test_storage_has_one_interval(http: httpx.AsyncClient, path: str, interval: str, status: int) -> None:
    query = f"set=storage&start=0&end=3600&interval={interval}"
    assert (await http.get(f"/{path}?{query}")).status_code == status


async def test_an_encrypted_stream_needs_its_key(http: httpx.AsyncClient) -> None:
    await http.patch(f"/basins/{BASIN}", json={"stream_cipher": "aegis-256"})
    assert (await http.post("/streams", json={"stream": "sealed"})).status_code == 201
    path, body = "/streams/sealed/records", {"records": [{"body": "a"}]}
    key, other = (base64.b64encode(bytes([byte]) * 32).decode() for byte in (1, 2))
    assert await refused(await http.post(path, json=body)) == (422, "invalid")
    assert await refused(await http.get(f"{path}?seq_num=0")) == (422, "invalid")
    for bad in ("no key", base64.b64encode(bytes(31)).decode()):
        assert await refused(await http.post(path, json=body, headers={"s2-encryption-key": bad})) == (
            400,
            "bad_header",
        )
    assert (await http.post(path, json=body, headers={"s2-encryption-key": key})).status_code == 200
    assert (await http.get(f"{path}?seq_num=0", headers={"s2-encryption-key": key})).status_code == 200
    assert await refused(await http.get(f"{path}?seq_num=0", headers={"s2-encryption-key": other})) == (422, "invalid")
    # The tail is no record.
    assert (await http.get(f"{path}/tail")).status_code == 200
