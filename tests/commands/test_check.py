"""`check`: all mistakes at once, and what it prints of a configuration that has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.origin.app import RunningOrigin
from tests.commands.here import run_here
from tests.commands.runs import finished

GOOD = '[limits]\ncache_bytes = "1MiB"\n[[route]]\norigin = "{origin}"\n'
NOWHERE = "http://127.0.0.1:1"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "gateway.toml", GOOD.format(origin=NOWHERE))


def test_every_mistake_is_named_in_the_order_of_the_file(file: Path) -> None:
    route = '[[route]]\norigin = "http://a"\nheartbeet_s = 1\n'
    written(file, f'[server]\nlisten = "x"\nadmn = 1\n[limits]\ncache_bytes = "lots"\n{route}')
    environ = {"DURABLE_GATEWAY_LIMITS__NONE": "1", "DURABLE_GATEWAY_ROUTE__OTHER__ORIGIN": "http://a"}
    status, out, err = run_here("check", str(file), **environ)
    assert (status, out) == (2, "")
    beginnings = [
        "env DURABLE_GATEWAY_LIMITS__NONE: unknown key 'none'",
        "env DURABLE_GATEWAY_ROUTE__OTHER__ORIGIN: no route named 'other'",
        f"{file}:2: server.listen: expected HOST:PORT",
        f"{file}:3: server.admn: unknown key (did you mean 'admin'?)",
        f"{file}:5: limits.cache_bytes: expected bytes",
        f"{file}:8: route.default.heartbeet_s: unknown key",
    ]
    lines = err.splitlines()
    assert len(lines) == len(beginnings)
    for line, beginning in zip(lines, beginnings, strict=True):
        assert line.startswith(f"durable-gateway: {beginning}")


def test_every_file_that_the_configuration_names_is_read(file: Path, tmp_path: Path) -> None:
    plan, key = tmp_path / "plan.json", tmp_path / "key"
    written(plan, '{"version": 3}')
    shown = f'origin_credentials = {{ file = "{key}" }}\n'
    routes = "".join(f'[[route]]\nname = "{name}"\nprefix = "/{name}"\norigin = "http://a"\n{shown}' for name in "ab")
    listener = f'[[listener]]\naddress = "127.0.0.1:0"\ntls = {{ certificates = [{{ certificate = "{key}" }}] }}\n'
    written(file, f'[server]\nadmin = "0.0.0.0:9437"\n[cache.plan]\nfile = "{plan}"\n{routes}{listener}')
    status, _, err = run_here("check", str(file))
    assert status == 2
    for said in (
        f"cache.plan.file: {plan}: version: should be 1",
        f"route.a.origin_credentials.file: {key}: cannot be read",
        f"route.b.origin_credentials.file: {key}: cannot be read",
        f"listener[0].tls.certificates[0]: {key}: cannot be read",
        "server.admin: 0.0.0.0:9437 can be reached from outside",
    ):
        assert said in err
    assert len(err.splitlines()) == 5


def test_what_is_set_is_printed_and_then_ok(file: Path) -> None:
    status, out, err = run_here("check", str(file))
    assert (status, err) == (0, "")
    limit, origin, ok = out.splitlines()
    assert limit.split() == ["limits.cache_bytes", "=", '"1MiB"', "#", f"{file}:2"]
    assert origin == f'route.default.origin = "{NOWHERE}"  # {file}:4'
    assert ok.startswith("ok ")
    assert run_here("check", "--all", str(file))[1].endswith("\nok\n")
    assert run_here("check", "--quiet", str(file)) == (0, "", "")
    status, _, err = run_here("check", "--quiet", "--json", str(file))
    assert (status, err.count("\n")) == (2, 1)


def test_json_has_the_same_in_one_object(file: Path) -> None:
    status, out, err = run_here("check", "--json", str(file))
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert (answer["ok"], answer["mistakes"]) == (True, [])
    assert {"key": "limits.cache_bytes", "value": '"1MiB"', "source": f"{file}:2", "is_default": False} in answer[
        "settings"
    ]
    written(file, "nonsense = 1\n")
    status, out, err = run_here("check", "--json", str(file))
    assert (status, err) == (2, "")
    answer = json.loads(out)
    assert not answer["ok"]
    assert any("nonsense: unknown key" in mistake for mistake in answer["mistakes"])


def test_append_sessions_that_will_not_work_are_warned_of(file: Path) -> None:
    written(file, '[[route]]\norigin = "http://a"\nprotocol = "s2"\n')
    said = f'{file}:3: route.default.protocol: append sessions of S2\'s clients need origin_http = "2", because'
    for flags in ([], ["--quiet"]):
        status, _, err = run_here("check", str(file), *flags)
        assert (status, err.count("\n")) == (0, 1)
        assert err.startswith(f"durable-gateway: warning: {said}")
    status, out, err = run_here("check", str(file), "--json")
    answer = json.loads(out)
    assert (status, err, answer["ok"], answer["mistakes"]) == (0, "", True, [])
    assert [warning[: len(said)] for warning in answer["warnings"]] == [said]
    written(file, '[[route]]\norigin = "http://a"\nprotocol = "s2"\norigin_http = "2"\n')
    assert run_here("check", str(file), "--quiet") == (0, "", "")
    # Clients of a bridged route have no append sessions.
    written(file, '[[route]]\norigin = "http://a"\nprotocol = "s2"\npresent = "durable-streams"\n')
    assert run_here("check", str(file), "--quiet") == (0, "", "")


async def test_a_probe_asks_every_origin(file: Path, durable_origin: RunningOrigin) -> None:
    written(file, GOOD.format(origin=durable_origin.url))
    status, out, err = await finished("check", "--probe", str(file))
    assert (status, err) == (0, "")
    assert f"origin {durable_origin.url}: answers (" in out
    assert out.splitlines()[-1].startswith("ok ")
    written(file, f'[[route]]\norigins = ["{durable_origin.url}", "{NOWHERE}"]\n')
    status, out, err = await finished("check", "--probe", "--quiet", str(file))
    assert (status, out) == (1, "")
    assert err == f"durable-gateway: origin {NOWHERE}: does not answer: connection refused\n"
    status, out, _ = await finished("check", "--probe", "--json", str(file))
    assert status == 1
    assert [one["problem"] for one in json.loads(out)["origins"]] == [None, "does not answer: connection refused"]
    assert durable_origin.origin.counters.total_requests == 3


async def test_a_probe_warns_of_answers_that_cannot_be_shared(file: Path, durable_origin: RunningOrigin) -> None:
    allowed = {"Access-Control-Allow-Origin": "https://a.example"}
    replies = durable_origin.origin.faults
    for fields, exempt, said in (
        ({"Set-Cookie": "AWSALB=x; Path=/"}, 'ignore_set_cookie = ["AWSALB"]', 'ignore_set_cookie = ["AWSALB"]'),
        ({"Vary": "Origin", **allowed}, "cors = {}", "set [route.cors]"),
    ):
        replies.clear()
        replies.replace(404, fields, b"", times=None)
        routes = (("a", ""), ("b", exempt), ("c", "cache = false"))
        route = '[[route]]\nname = "{}"\nprefix = "/{}"\norigin = "{}"\n{}\n'
        written(file, "".join(route.format(name, name, durable_origin.url, more) for name, more in routes))
        status, out, err = await finished("check", "--probe", "--json", str(file))
        (warning,) = json.loads(out)["warnings"]
        assert (status, err) == (0, "")
        assert warning.startswith(f"origin {durable_origin.url}: route a will not share answers like that to HEAD /")
        assert said in warning
