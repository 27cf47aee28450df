"""The rows of `selection_rows` for basins and for the streams of a basin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.s2.sdk.selection_rows import (
    INVALID,
    MISSING,
    NO_BASIN,
    NO_STREAM,
    Here,
    refusal,
    row,
    row_with_stream,
)

FULL = {
    "storage_class": "standard",
    "retention_policy": {"age": 86_400},
    "timestamping": {"mode": "client-require", "uncapped": True},
    "delete_on_empty": {"min_age_secs": 3_600},
}


async def keeps(here: Here, config: Mapping[str, object]) -> None:
    """A stream that is created with a configuration has it, and so has a stream that is changed to it."""
    assert (await here.create(config)).status == 201
    found = await here.config()
    assert {name: found[name] for name in config} == config
    await here.create(name=f"{here.name}-changed")
    changed = await here.change(config, f"{here.name}-changed")
    assert {name: changed[name] for name in config} == config
    assert await here.config(f"{here.name}-changed") == changed


# -- sdk/tests/basin_ops.rs


@row
async def create_list_and_delete_stream(here: Here) -> None:
    created = (await here.create()).json
    assert (created["name"], created["deleted_at"]) == (here.name, None)
    assert await here.listed(prefix=here.name) == ([here.name], False)
    assert (await here.send("DELETE", f"streams/{here.name}")).status in (200, 202, 204)
    assert await here.listed(prefix=here.name) == ([], False)


@row
async def stream_config_roundtrip(here: Here) -> None:
    await keeps(here, FULL)


@row_with_stream
async def list_streams_with_limit(here: Here) -> None:
    await here.create(name=f"{here.name}-2")
    assert await here.listed(prefix=here.name, limit=1) == ([here.name], True)


@row
async def list_streams_with_prefix(here: Here) -> None:
    names = [f"{here.name}-{place}" for place in ("eu-1", "ca-1", "ca-2")]
    for name in names:
        await here.create(name=name)
    assert await here.listed(prefix=f"{here.name}-ca-") == (names[1:], False)


@row
async def list_streams_with_start_after(here: Here) -> None:
    names = [f"{here.name}-{number}" for number in range(3)]
    for name in reversed(names):
        await here.create(name=name)
    assert await here.listed(prefix=here.name) == (names, False)
    assert await here.listed(prefix=here.name, start_after=names[0]) == (names[1:], False)
    assert await here.listed(prefix=here.name, start_after=names[2]) == ([], False)
    assert await here.listed(prefix=here.name, limit=2) == (names[:2], True)
    assert await here.listed(prefix=here.name, limit=2, start_after=names[1]) == (names[2:], False)


@row
async def list_streams_with_start_after_less_than_prefix_errors(here: Here) -> None:
    answer = await here.send("GET", "streams?prefix=b&start_after=a")
    assert refusal(answer) == INVALID
    assert answer.json["message"] == "`start_after` must be greater than or equal to the `prefix`"


@row
async def delete_nonexistent_stream_errors(here: Here) -> None:
    assert refusal(await here.send("DELETE", f"streams/{MISSING}")) == NO_STREAM


@row_with_stream
async def list_streams_with_limit_zero(here: Here) -> None:
    assert await here.listed(prefix=here.name, limit=0) == ([here.name], False)


@row_with_stream
async def list_streams_with_limit_over_max(here: Here) -> None:
    assert await here.listed(prefix=here.name, limit=1_500) == ([here.name], False)


@row_with_stream
async def list_all_streams_include_deleted(here: Here) -> None:
    """A deleted stream may be listed, but then says when it was deleted."""
    await here.send("DELETE", f"streams/{here.name}")
    found: Any = (await here.send("GET", f"streams?prefix={here.name}")).json
    assert all(one["deleted_at"] is not None for one in found["streams"])


@row
async def create_stream_storage_class_express(here: Here) -> None:
    await keeps(here, {"storage_class": "express"})


@row
async def create_stream_retention_policy_infinite(here: Here) -> None:
    await keeps(here, {"retention_policy": {"infinite": {}}})


@row
async def create_stream_timestamping_modes(here: Here) -> None:
    for mode in ("client-prefer", "client-require", "arrival"):
        for uncapped in (True, False):
            name = f"{here.name}-{mode}-{uncapped}"
            await here.create({"timestamping": {"mode": mode, "uncapped": uncapped}}, name)
            assert (await here.config(name))["timestamping"] == {"mode": mode, "uncapped": uncapped}
            for other in ("client-prefer", "arrival"):
                changed = await here.change({"timestamping": {"mode": other}}, name)
                assert changed["timestamping"] == {"mode": other, "uncapped": uncapped}


@row
async def create_stream_delete_on_empty_min_age(here: Here) -> None:
    await keeps(here, {"delete_on_empty": {"min_age_secs": 3_600}})


@row
async def create_stream_invalid_retention_age_zero(here: Here) -> None:
    assert refusal(await here.create({"retention_policy": {"age": 0}})) == INVALID


@row
async def get_stream_config_nonexistent_errors(here: Here) -> None:
    assert await here.config(MISSING) == NO_STREAM


@row
async def reconfigure_stream_disable_delete_on_empty(here: Here) -> None:
    await here.create({"delete_on_empty": {"min_age_secs": 3_600}})
    changed = await here.change({"delete_on_empty": {"min_age_secs": 0}})
    assert (changed.get("delete_on_empty") or {}).get("min_age_secs", 0) == 0


@row
async def reconfigure_stream_empty_config_no_change(here: Here) -> None:
    await here.create(FULL)
    before = await here.config()
    assert await here.change({}) == before == await here.config()


@row
async def reconfigure_stream_partial_update(here: Here) -> None:
    await here.create({"retention_policy": {"age": 3_600}, "timestamping": {"mode": "client-prefer"}})
    await here.change({"timestamping": {"mode": "arrival"}})
    found = await here.config()
    assert (found["retention_policy"], found["timestamping"]["mode"]) == ({"age": 3_600}, "arrival")


@row_with_stream
async def reconfigure_stream_invalid_retention_age_zero(here: Here) -> None:
    assert await here.change({"retention_policy": {"age": 0}}) == INVALID


@row
async def reconfigure_stream_nonexistent_errors(here: Here) -> None:
    assert await here.change({"storage_class": "standard"}, MISSING) == NO_STREAM


@row_with_stream
async def create_stream_duplicate_name_errors(here: Here) -> None:
    assert refusal(await here.create()) == (409, "resource_already_exists")


@row_with_stream
async def delete_stream_already_deleting_is_idempotent(here: Here) -> None:
    await here.send("DELETE", f"streams/{here.name}")
    again = await here.send("DELETE", f"streams/{here.name}")
    assert again.status < 300 or refusal(again) == NO_STREAM


@row_with_stream
async def get_stream_config_for_deleting_stream_errors(here: Here) -> None:
    await here.send("DELETE", f"streams/{here.name}")
    assert await here.config() in (NO_STREAM, (409, "stream_deletion_pending"))


@row
async def rejects_stream_names(here: Here) -> None:
    """Of the TypeScript and Go SDKs: a name has 1 to 512 bytes, of any letters."""
    for name in ("", "a" * 513):
        answer = await here.send("POST", "streams", {"stream": name})
        assert 400 <= answer.status < 500, name
    assert (await here.create(name=f"{here.name}-日本語")).status == 201


# -- sdk/tests/account_ops.rs


async def made(here: Here, name: str, config: object = None) -> Any:
    return await here.send("POST", "basins", {"basin": name, "config": config})


@row
async def create_list_and_delete_basin(here: Here) -> None:
    name = "listed-basin"
    assert (await made(here, name)).json["name"] == name
    assert await here.listed("basins", prefix=name) == ([name], False)
    assert (await here.send("DELETE", f"basins/{name}")).status in (200, 202, 204)
    assert await here.listed("basins", prefix=name) == ([], False)


@row
async def basin_config_roundtrip(here: Here) -> None:
    config = {"default_stream_config": FULL, "create_stream_on_append": True, "create_stream_on_read": True}
    await made(here, "configured-basin", config)
    found: Any = (await here.send("GET", "basins/configured-basin")).json
    default = found["default_stream_config"]
    assert {name: default[name] for name in FULL} == FULL
    assert (found["create_stream_on_append"], found["create_stream_on_read"]) == (True, True)


@row
async def reconfigure_basin(here: Here) -> None:
    await made(here, "changed-basin", {"create_stream_on_append": True})
    change = {"default_stream_config": {"storage_class": "standard"}, "create_stream_on_append": False}
    changed: Any = (await here.send("PATCH", "basins/changed-basin", change)).json
    assert changed["default_stream_config"]["storage_class"] == "standard"
    assert changed["create_stream_on_append"] is False
    bad = {"default_stream_config": {"retention_policy": {"age": 0}}}
    assert refusal(await here.send("PATCH", "basins/changed-basin", bad)) == INVALID
    assert refusal(await here.send("PATCH", "basins/missing-basin", {"create_stream_on_append": True})) == NO_BASIN


@row
async def list_basins_with_limit(here: Here) -> None:
    names = [f"many-basins-{number}" for number in range(3)]
    for name in names:
        await made(here, name)
    assert await here.listed("basins", prefix="many-basins", limit=1) == (names[:1], True)
    for limit in (0, 1_500):
        assert await here.listed("basins", prefix="many-basins", limit=limit) == (names, False)


@row
async def list_basins_with_prefix_and_start_after(here: Here) -> None:
    names = [f"paged-basins-{number}" for number in range(3)]
    for name in names:
        await made(here, name)
    assert await here.listed("basins", prefix="paged-basins", start_after=names[0]) == (names[1:], False)
    assert refusal(await here.send("GET", "basins?prefix=zzzzzzzz&start_after=aaaaaaaa")) == INVALID


@row
async def delete_nonexistent_basin_errors(here: Here) -> None:
    assert refusal(await here.send("DELETE", "basins/missing-basin")) == NO_BASIN


@row
async def get_basin_config(here: Here) -> None:
    assert refusal(await here.send("GET", "basins/missing-basin")) == NO_BASIN
    await made(here, "plain-basin")
    found: Any = (await here.send("GET", "basins/plain-basin")).json
    assert (found["create_stream_on_append"], found["create_stream_on_read"]) == (False, False)


@row
async def rejects_basin_names(here: Here) -> None:
    """Of the TypeScript and Go SDKs."""
    for name in ("short", "a" * 49, "Test-Basin-Name", "test_basin_name", "-test-basin", "test-basin-", ""):
        assert 400 <= (await made(here, name)).status < 500, name
    await made(here, "basin-of-twice")
    assert (await made(here, "basin-of-twice")).status == 409
    bad = {"default_stream_config": {"retention_policy": {"age": 0}}}
    assert refusal(await made(here, "basin-of-no-age", bad)) == INVALID
