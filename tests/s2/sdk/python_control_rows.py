"""The control plane of PyPI's `s2-sdk`, one row for each call or for those that belong together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from s2_sdk import (
    S2,
    AccessTokenScope,
    AccountMetricSet,
    BasinConfig,
    BasinMetricSet,
    Encryption,
    EnsureStatus,
    ExactMatch,
    Operation,
    OperationGroupPermissions,
    Permission,
    PrefixMatch,
    S2ServerError,
    S2Stream,
    StreamConfig,
    StreamMetricSet,
    StreamPosition,
    TimeseriesInterval,
    Timestamping,
    TimestampingMode,
)

from tests.s2.sdk.conftest import BASIN
from tests.s2.sdk.python_matrix import filled, row


@row("S2.create_basin")
@row("S2.get_basin_config")
@row("S2.delete_basin")
async def basins(s2: S2, stream: S2Stream) -> None:
    default = StreamConfig(
        storage_class="standard",
        retention_policy=60,
        timestamping=Timestamping(mode=TimestampingMode.CLIENT_REQUIRE, uncapped=True),
        delete_on_empty_min_age=3_600,
    )
    config = BasinConfig(
        default_stream_config=default,
        create_stream_on_append=False,
        create_stream_on_read=True,
        stream_cipher=Encryption.AEGIS_256,
    )
    location = (await s2.get_default_location()).name
    assert (await s2.create_basin("another-basin", config=config, location=location)).name == "another-basin"
    assert await s2.get_basin_config("another-basin") == config
    await s2.basin("another-basin").create_stream("s")
    assert await s2.basin("another-basin").get_stream_config("s") == default
    with pytest.raises(S2ServerError):
        await s2.create_basin("another-basin")
    await s2.delete_basin("another-basin")
    await s2.delete_basin("another-basin", ignore_not_found=True)
    with pytest.raises(S2ServerError):
        await s2.get_basin_config("another-basin")


@row("S2.ensure_basin")
@row("S2.reconfigure_basin")
async def ensured_basins(s2: S2, stream: S2Stream) -> None:
    location = (await s2.get_default_location()).name
    assert (await s2.ensure_basin("another-basin", location=location)).status is EnsureStatus.CREATED
    assert (await s2.ensure_basin("another-basin")).status is EnsureStatus.CONFIG_UNCHANGED
    changed = BasinConfig(create_stream_on_append=True)
    assert (await s2.ensure_basin("another-basin", config=changed)).status is EnsureStatus.CONFIG_UPDATED
    held = await s2.reconfigure_basin("another-basin", config=BasinConfig(create_stream_on_read=True))
    assert (held.create_stream_on_append, held.create_stream_on_read) == (True, True)


@row("S2.list_basins")
@row("S2.list_all_basins")
async def listed_basins(s2: S2, stream: S2Stream) -> None:
    for name in ("many-basins-1", "many-basins-2"):
        await s2.create_basin(name)
    page = await s2.list_basins(prefix="many", limit=1)
    assert ([info.name for info in page.items], page.has_more) == (["many-basins-1"], True)
    page = await s2.list_basins(prefix="many", start_after="many-basins-1")
    assert ([info.name for info in page.items], page.has_more) == (["many-basins-2"], False)
    assert len([info async for info in s2.list_all_basins()]) == 3
    after = s2.list_all_basins(prefix="many", start_after="many-basins-1", include_deleted=True)
    assert [info.name async for info in after] == ["many-basins-2"]


@row("S2.list_locations")
@row("S2.get_default_location")
@row("S2.set_default_location")
async def locations(s2: S2, stream: S2Stream) -> None:
    (location,) = await s2.list_locations()
    assert await s2.get_default_location() == location
    assert await s2.set_default_location(location.name) == location


@row("S2.issue_access_token")
@row("S2.list_access_tokens")
@row("S2.list_all_access_tokens")
@row("S2.revoke_access_token")
async def access_tokens(s2: S2, stream: S2Stream) -> None:
    assert await s2.issue_access_token("t", scope=AccessTokenScope(ops=[Operation.READ]))
    assert [info.id for info in (await s2.list_access_tokens()).items] == ["t"]
    assert [info.id async for info in s2.list_all_access_tokens()] == ["t"]
    scope = AccessTokenScope(
        basins=ExactMatch(BASIN),
        streams=PrefixMatch("own/"),
        access_tokens=ExactMatch("t"),
        op_groups=OperationGroupPermissions(
            account=Permission.READ, basin=Permission.READ, stream=Permission.READ_WRITE
        ),
    )
    expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    await s2.issue_access_token("u", scope=scope, expires_at=expires_at, auto_prefix_streams=True)
    (token,) = (await s2.list_access_tokens(prefix="u", limit=1)).items
    assert (token.id, token.scope, token.expires_at, token.auto_prefix_streams) == ("u", scope, expires_at, True)
    assert [info.id for info in (await s2.list_access_tokens(start_after="t")).items] == ["u"]
    assert [info.id async for info in s2.list_all_access_tokens(prefix="", start_after="t")] == ["u"]
    for name in ("t", "u"):
        await s2.revoke_access_token(name)
    assert (await s2.list_access_tokens()).items == []


@row("S2.account_metrics")
@row("S2.basin_metrics")
@row("S2.stream_metrics")
async def metrics(s2: S2, stream: S2Stream) -> None:
    hour = TimeseriesInterval.HOUR
    assert await s2.account_metrics(set=AccountMetricSet.ACTIVE_BASINS, start=0, end=3_600, interval=hour) == []
    assert await s2.basin_metrics(BASIN, set=BasinMetricSet.STORAGE, start=0, end=3_600, interval=hour) == []
    storage, minute = StreamMetricSet.STORAGE, TimeseriesInterval.MINUTE
    assert await s2.stream_metrics(BASIN, stream.name, set=storage, start=0, end=3_600, interval=minute) == []


@row("S2Basin.create_stream")
@row("S2Basin.get_stream_config")
@row("S2Basin.reconfigure_stream")
@row("S2Basin.delete_stream")
async def streams(s2: S2, stream: S2Stream) -> None:
    basin = s2.basin(BASIN)
    assert (await basin.create_stream(stream.name)).name == stream.name
    config = await basin.get_stream_config(stream.name)
    assert (config.storage_class, config.retention_policy) == ("express", 7 * 86_400)
    config = await basin.reconfigure_stream(stream.name, config=StreamConfig(retention_policy="infinite"))
    assert config.retention_policy == "infinite"
    await filled(stream, "a")
    with pytest.raises(S2ServerError) as refused:
        await basin.create_stream(stream.name)
    assert (refused.value.status_code, refused.value.code) == (409, "resource_already_exists")
    await basin.delete_stream(stream.name)
    await basin.delete_stream(stream.name, ignore_not_found=True)
    with pytest.raises(S2ServerError) as refused:
        await basin.delete_stream(stream.name)
    assert (refused.value.status_code, refused.value.code) == (404, "stream_not_found")
    config = StreamConfig(delete_on_empty_min_age=1_800)
    assert (await basin.create_stream(stream.name, config=config)).deleted_at is None
    assert (await basin.get_stream_config(stream.name)).delete_on_empty_min_age == 1_800
    assert await stream.check_tail() == StreamPosition(0, 0)


@row("S2Basin.ensure_stream")
@row("S2Basin.list_streams")
@row("S2Basin.list_all_streams")
async def listed_streams(s2: S2, stream: S2Stream) -> None:
    basin = s2.basin(BASIN)
    for name in ("a/1", "a/2", "b"):
        assert (await basin.ensure_stream(name)).status is EnsureStatus.CREATED
    arrival = StreamConfig(timestamping=Timestamping(mode=TimestampingMode.ARRIVAL))
    assert (await basin.ensure_stream("b", config=arrival)).status is EnsureStatus.CONFIG_UPDATED
    held = await basin.get_stream_config("b")
    assert (await basin.ensure_stream("b", config=held)).status is EnsureStatus.CONFIG_UNCHANGED
    assert (await basin.reconfigure_stream("b", config=StreamConfig())) == held
    assert [info.name for info in (await basin.list_streams(prefix="a/")).items] == ["a/1", "a/2"]
    page = await basin.list_streams(start_after="a/1", limit=1)
    assert ([info.name for info in page.items], page.has_more) == (["a/2"], True)
    assert (await basin.list_streams(prefix="a/", start_after="a/2")).items == []
    assert [info.name async for info in basin.list_all_streams()] == ["a/1", "a/2", "b"]
    after = basin.list_all_streams(prefix="a/", start_after="a/1", include_deleted=True)
    assert [info.name async for info in after] == ["a/2"]
