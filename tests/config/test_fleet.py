"""The configuration of a fleet, and one clear line for each mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import load_config
from gateway.config.fleet import FleetConfig
from gateway.config.redis_place import RedisPlace, parse_redis_url

SECRET = "0123456789abcdef0123456789abcdef"
RIGHT = {
    "name": '"a"',
    "listen": '"10.0.0.1:4439"',
    "members": '[{ name = "a", url = "http://10.0.0.1:4439" }, { name = "b", url = "http://10.0.0.2:4439/" }]',
    "secret": f'"{SECRET}"',
}


def _load(tmp_path: Path, fleet: dict[str, str], workers: str = "1", **environ: str) -> object:
    file = tmp_path / "gateway.toml"
    lines = "\n".join(f"{key} = {value}" for key, value in fleet.items())
    file.write_text(
        f'server.workers = {workers}\n[fleet]\n{lines}\n[[route]]\norigin = "http://127.0.0.1:4438"\n', encoding="utf-8"
    )
    return load_config(file, environ=environ).config.fleet


def test_a_fleet_is_read_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    fleet = _load(tmp_path, RIGHT)
    environ = {
        "DURABLE_GATEWAY_FLEET__NAME": "a",
        "DURABLE_GATEWAY_FLEET__LISTEN": "10.0.0.1:4439",
        "DURABLE_GATEWAY_FLEET__MEMBERS": "a=http://10.0.0.1:4439, b=http://10.0.0.2:4439",
        "DURABLE_GATEWAY_FLEET__SECRET": SECRET,
    }
    assert _load(tmp_path, {}, **environ) == fleet
    assert SECRET not in repr(fleet)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": '"c"'}, "fleet.name: no member is named 'c' (members: a, b)"),
        ({"name": '""'}, "fleet.members: needs fleet.name, the name of this gateway among the members"),
        ({"name": '"a b"'}, "fleet.name: a member's name is letters, digits"),
        ({"secret": '""'}, "fleet.secret: is needed: a secret that all members share"),
        ({"secret": f'"{SECRET[1:]}"'}, "fleet.secret: is too short: a secret of fewer than 32 characters"),
        ({"listen": '""'}, "fleet.listen: is needed: the address at which the other members reach this one"),
        ({"listen": '"127.0.0.1:4437"'}, "fleet.listen: another listener is at 127.0.0.1:4437"),
        ({"members": "[]"}, "fleet.name: no member is named 'a' (members: none)"),
        ({"members": '["a=http://x", "a=http://y"]'}, "fleet.members[1].name: another member is named 'a'"),
        ({"members": '["a=http://x", "b=http://x:80"]'}, "fleet.members[1].url: another member is at http://x:80"),
        ({"members": '["a"]'}, "fleet.members[0]: expected a table with name and url, or NAME=URL, got 'a'"),
        ({"members": '["a=https://x"]'}, "fleet.members[0].url: expected http://HOST:PORT, got 'https://x'"),
        ({"members": '["a=http://x/y"]'}, "fleet.members[0].url: expected http://HOST:PORT, got 'http://x/y'"),
    ],
)
def test_each_mistake_has_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {**RIGHT, **changes})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


BY_DNS = {"members_dns": '"gateway-headless.ns.svc:4439"', "listen": '":4439"', "secret": f'"{SECRET}"'}


def test_members_by_dns_need_no_name_and_no_list(tmp_path: Path) -> None:
    fleet = _load(tmp_path, BY_DNS)
    assert (
        _load(
            tmp_path,
            {},
            DURABLE_GATEWAY_FLEET__MEMBERS_DNS="gateway-headless.ns.svc:4439",
            DURABLE_GATEWAY_FLEET__LISTEN=":4439",
            DURABLE_GATEWAY_FLEET__SECRET=SECRET,
        )
        == fleet
    )
    assert _load(tmp_path, {**BY_DNS, "name": '"10.0.0.1:4439"', "members_dns": '"gateway.svc.:4439"'})
    for name in ("10.0.0.1", "fd00::1", "[fd00::1]:4439"):
        assert _load(tmp_path, {**BY_DNS, "name": f'"{name}"'})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"members": RIGHT["members"]}, "fleet.members_dns: cannot be set together with fleet.members"),
        ({"members_dns": '"gateway"'}, "fleet.members_dns: expected NAME:PORT such as gateway-headless:4439"),
        ({"members_dns": '"gateway:0"'}, "fleet.members_dns: expected NAME:PORT"),
        ({"members_dns": '":4439"'}, "fleet.members_dns: expected NAME:PORT"),
        ({"members_dns": '"10.0.0.1:4439"'}, "fleet.members_dns: expected NAME:PORT"),
        ({"members_dns": '"[::1]:4439"'}, "fleet.members_dns: expected NAME:PORT"),
        ({"name": '"a"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address, as other"),
        ({"name": '"10.0.0.1:1"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address"),
        ({"name": '"0.0.0.0"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address"),
        ({"name": '"[::]:4439"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address"),
        ({"name": '"ff02::1"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address"),
        ({"name": '"239.0.0.1:4439"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address"),
        ({"name": '"fe80::1%eth0"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address"),
        ({"name": '"[fe80::1%eth0]:4439"'}, "fleet.name: with fleet.members_dns, it is this gateway's IP address"),
        ({"listen": '"[fe80::1%eth0]:4439"'}, "fleet.name: is needed, because fleet.listen is at no IP address"),
        ({"listen": '"gateway-0:4439"'}, "fleet.name: is needed, because fleet.listen is at no IP address"),
        ({"listen": '""'}, "fleet.listen: is needed: the address at which the other members reach this one"),
        ({"secret": '""'}, "fleet.secret: is needed: a secret that all members share"),
    ],
)  # fmt: skip
def test_each_mistake_in_members_by_dns_has_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {**BY_DNS, **changes})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


BY_REDIS = {
    "members_redis": "true",
    "name": '"a"',
    "url": '"http://gateway-a:4439/"',
    "listen": '":4439"',
    "secret": f'"{SECRET}"',
    "redis": '"redis://10.0.0.9"',
}


def test_members_by_redis_need_no_list(tmp_path: Path) -> None:
    fleet = _load(tmp_path, BY_REDIS)
    assert isinstance(fleet, FleetConfig)
    assert (fleet.is_on, fleet.url) == (True, "http://gateway-a:4439")
    assert (
        _load(
            tmp_path,
            {},
            DURABLE_GATEWAY_FLEET__MEMBERS_REDIS="true",
            DURABLE_GATEWAY_FLEET__NAME="a",
            DURABLE_GATEWAY_FLEET__URL="http://gateway-a:4439",
            DURABLE_GATEWAY_FLEET__LISTEN=":4439",
            DURABLE_GATEWAY_FLEET__SECRET=SECRET,
            DURABLE_GATEWAY_FLEET__REDIS="redis://10.0.0.9",
        )
        == fleet
    )
    # A name and a URL of its own come from the gateway's address.
    for changes in ({"name": '""', "url": '"http://10.0.0.1"'}, {"name": '""', "url": '""'}):
        assert _load(tmp_path, {**BY_REDIS, **changes})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"members": RIGHT["members"]}, "fleet.members_redis: cannot be set together with fleet.members"),
        ({"members_dns": '"gateway:1"'}, "fleet.members_redis: cannot be set together with fleet.members_dns"),
        ({"redis": '""'}, "fleet.members_redis: needs fleet.redis"),
        ({"members_redis": "false"}, "fleet.url: needs fleet.members_redis"),
        ({"url": '"https://gateway-a:4439"'}, "fleet.url: expected http://HOST:PORT, got 'https://gateway-a:4439'"),
        ({"url": '"http://gateway-a/x"'}, "fleet.url: expected http://HOST:PORT, got 'http://gateway-a/x'"),
        ({"url": '"gateway-a:4439"'}, "fleet.url: expected an http:// or https:// URL with a host"),
        ({"url": '"http://0.0.0.0:4439"'}, "fleet.url: no other member can connect to 0.0.0.0:4439"),
        ({"url": '"http://[::]:4439"'}, "fleet.url: no other member can connect to [::]:4439"),
        ({"url": '""', "listen": '"gateway-a:4439"'}, "fleet.url: is needed, because fleet.listen is at no IP address"),
        ({"url": '""', "listen": '":0"'}, "fleet.url: is needed, because fleet.listen is at no IP address and port"),
        ({"name": '""'}, "fleet.name: is needed, because fleet.url has no IP address"),
        ({"name": '"fd00::1"'}, "fleet.name: a member's name is letters, digits"),
        ({"listen": '""'}, "fleet.listen: is needed: the address at which the other members reach this one"),
        ({"secret": '""'}, "fleet.secret: is needed: a secret that all members share"),
    ],
)  # fmt: skip
def test_each_mistake_in_members_by_redis_has_one_line(tmp_path: Path, changes: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {**BY_REDIS, **changes})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", ["2", '"auto"'])
def test_a_member_may_have_workers(tmp_path: Path, workers: str) -> None:
    for fleet in (RIGHT, BY_DNS, BY_REDIS):
        assert isinstance(_load(tmp_path, fleet, workers), FleetConfig)


REDIS = {**RIGHT, "redis": '"rediss://gateway@redis.internal:6380/3"', "redis_ca_file": '"/etc/ca.pem"'}


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://10.0.0.9", RedisPlace("10.0.0.9", 6379)),
        ("redis://[::1]/", RedisPlace("::1", 6379)),
        ("redis://[::1]:7000", RedisPlace("::1", 7000)),
        ("rediss://gateway@Redis.internal:6380/3", RedisPlace("redis.internal", 6380, 3, "gateway", is_tls=True)),
    ],
)
def test_the_url_of_redis_names_one_database(url: str, place: RedisPlace) -> None:
    assert parse_redis_url(url) == place


def test_the_password_of_redis_comes_from_the_environment_and_is_not_shown(tmp_path: Path) -> None:
    fleet = _load(tmp_path, REDIS, DURABLE_GATEWAY_FLEET__REDIS_PASSWORD="open sesame")
    assert isinstance(fleet, FleetConfig)
    place = fleet.redis_place
    assert (place.host, place.password, place.ca_file) == ("redis.internal", "open sesame", "/etc/ca.pem")
    assert "sesame" not in f"{fleet!r} {place!r}"


@pytest.mark.parametrize(
    ("fleet", "line"),
    [
        (
            {"redis": '"redis://10.0.0.9"'},
            "fleet.redis: needs a fleet: fleet.name and fleet.members, fleet.members_dns, or fleet.members_redis",
        ),
        ({**RIGHT, "redis": '"10.0.0.9:6379"'}, "fleet.redis: expected redis://[USER@]HOST[:PORT][/DATABASE], or"),
        ({**RIGHT, "redis": '"redis://10.0.0.9:0"'}, "fleet.redis: expected redis://"),
        ({**RIGHT, "redis": '"redis://10.0.0.9/x"'}, "fleet.redis: expected redis://"),
        ({**RIGHT, "redis": '"redis://:sesame@10.0.0.9"'}, "fleet.redis: has a password: set fleet.redis_password"),
        ({**RIGHT, "redis": '"redis://a:sesame@10.0.0.9"'}, "fleet.redis: has a password: set fleet.redis_password"),
        ({**RIGHT, "redis": '"redis://sesame/@10.0.0.9"'}, "fleet.redis: expected redis://"),
        ({**RIGHT, "redis_password": '"sesame"'}, "fleet.redis_password: needs fleet.redis"),
        ({**RIGHT, "redis_ca_file": '"ca.pem"'}, "fleet.redis_ca_file: needs fleet.redis"),
        ({**REDIS, "redis": '"redis://10.0.0.9"'}, "fleet.redis_ca_file: needs fleet.redis with rediss://"),
    ],
)
def test_each_mistake_about_redis_has_one_line_without_a_password(
    tmp_path: Path, fleet: dict[str, str], line: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        _load(tmp_path, fleet)
    assert line in str(failed.value)
    assert "sesame" not in str(failed.value)
