"""`check`: all mistakes at once, and what it prints of a configuration that has none."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.origin.app import RunningOrigin
from tests.certificates import Authority
from tests.commands.here import run_here
from tests.commands.runs import finished
from tests.scenarios.auth_service import key_set
from tests.scenarios.credentials import AUDIENCE, ISSUER, KEYS, key_file, link_key_file, signed, token

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


async def test_a_probe_asks_for_the_keys_of_issuers(file: Path, durable_origin: RunningOrigin) -> None:
    rule = f'[[route.auth]]\nby = "jwt"\nissuer = "{durable_origin.url}"\naudience = ["a"]\n'
    other = f'{rule}keys_url = "{NOWHERE}/a?key=hidden"\n'
    written(file, GOOD.format(origin=durable_origin.url) + rule + other)
    assert (await finished("check", "--quiet", str(file)))[:2] == (0, "")
    url = f"{durable_origin.url}/.well-known/openid-configuration"
    status, out, err = await finished("check", "--probe", "--quiet", str(file))
    assert (status, out) == (1, "")
    assert f"keys {url}: answers 404\n" in err
    assert f"keys {NOWHERE}/a: does not answer: connection refused\n" in err
    assert "503" not in err
    assert "hidden" not in err
    status, out, _ = await finished("check", "--probe", "--json", str(file))
    assert [one["keys"] for one in json.loads(out)["services"]] == [url, f"{NOWHERE}/a"]


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


# -- mistakes that a start would find ----------------------------------------------------------------------------------


ROUTE = f'[[route]]\norigin = "{NOWHERE}"\n'


def test_a_log_that_cannot_be_written_is_a_mistake(file: Path, tmp_path: Path) -> None:
    nowhere, folder = tmp_path / "nowhere" / "access.log", tmp_path
    link, long = tmp_path / "link", tmp_path / ("a" * 300)
    link.symlink_to("missing/access.log")
    for path, why in (
        (nowhere, "No such file or directory"),
        (folder, "Is a directory"),
        (link, "No such file or directory"),
        (long, "File name too long"),
    ):
        written(file, f'[log]\nsink = "file"\npath = "{path}"\n{ROUTE}')
        said = f"durable-gateway: log.path: {path} cannot be written: {why}\n"
        assert run_here("check", str(file)) == (2, "", said)
    written(file, f'[log]\nsink = "file"\npath = "a\\u0000b"\n{ROUTE}')
    said = "durable-gateway: log.path: 'a\\x00b' cannot be written: embedded null byte\n"
    assert run_here("check", str(file)) == (2, "", said)
    # A check leaves nothing behind, and a gateway that runs is no mistake.
    path = tmp_path / "access.log"
    written(file, f'[log]\nsink = "file"\npath = "{path}"\n{ROUTE}')
    assert run_here("check", "-q", str(file)) == (0, "", "")
    assert not path.exists()


def test_a_unix_socket_that_cannot_be_made_is_a_mistake(file: Path, tmp_path: Path) -> None:
    for path, why in (
        (tmp_path / "missing" / "a.sock", "No such file or directory"),
        (file / "a.sock", "Not a directory"),
        (file, "a file that is not a socket is there"),
    ):
        written(file, f'[[listener]]\naddress = "unix:{path}"\n{ROUTE}')
        status, _, err = run_here("check", str(file))
        assert (status, err.count("\n")) == (2, 1)
        assert err.startswith(f"durable-gateway: listener[0].address: unix:{path}: ")
        assert why in err


def test_tracing_without_its_package_is_a_mistake(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(file, f'[tracing]\nendpoint = "http://127.0.0.1:4318/v1/traces"\n{ROUTE}')
    assert run_here("check", "-q", str(file)) == (0, "", "")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "gateway.ops.opentelemetry_tracer", raising=False)
    status, _, err = run_here("check", str(file))
    assert status == 2
    assert err == (
        "durable-gateway: tracing.endpoint is set and opentelemetry is not installed: "
        "pip install 'durable-gateway[opentelemetry]'\n"
    )


@pytest.mark.parametrize(
    ("server", "listeners", "said"),
    [
        ('listen = "127.0.0.1:7"', ["127.0.0.1:7"], "server.listen: another listener is at 127.0.0.1:7"),
        ("", ["0.0.0.0:7", "127.0.0.1:7"], "listener[1].address: another listener is at 0.0.0.0:7"),
        ("", [":7", "[::1]:7"], "listener[1].address: another listener is at :7"),
        ('admin = "127.0.0.1:7"', ["0.0.0.0:7"], "server.admin: a listener is at 0.0.0.0:7"),
        ("", ["127.0.0.1:9437"], "server.admin: a listener is at 127.0.0.1:9437"),
        ("", ["unix:/a", "unix:/a"], "listener[1].address: another listener is at unix:/a"),
        ("", ["unix:/a", "unix:/.//a"], "listener[1].address: another listener is at unix:/a"),
        ("", ["127.0.0.1:7", "127.1:7"], "listener[1].address: another listener is at 127.0.0.1:7"),
        ("", ["127.0.0.1:7", "[::ffff:127.0.0.1]:7"], "listener[1].address: another listener is at 127.0.0.1:7"),
    ],
)
def test_two_sockets_on_one_address_are_a_mistake(file: Path, server: str, listeners: list[str], said: str) -> None:
    tables = "".join(f'[[listener]]\naddress = "{address}"\n' for address in listeners)
    written(file, f"[server]\n{server}\n{tables}{ROUTE}")
    status, _, err = run_here("check", str(file))
    assert (status, err.count("\n")) == (2, 1)
    assert err.endswith(f"{said}\n")


def test_a_pair_that_cannot_be_used_blames_the_right_file(file: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue("edge.test"), authority.issue("other.test")
    key = load_pem_private_key(pair.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    empty = written(tmp_path / "empty.key", "")
    certificate = pair.certificate
    for named, why in (
        (other.key, f"{other.key}: is not the key of {certificate}"),
        (encrypted, f"{encrypted}: is encrypted: the gateway has no password for it"),
        (empty, f"{empty}: holds no key"),
        (tmp_path / "none", f"{tmp_path / 'none'}: cannot be read: No such file or directory"),
    ):
        tls = f'tls = {{ certificates = [{{ certificate = "{certificate}", key = "{named}" }}] }}\n'
        written(file, f'[[listener]]\naddress = "127.0.0.1:0"\n{tls}{ROUTE}')
        assert run_here("check", str(file)) == (2, "", f"durable-gateway: listener[0].tls.certificates[0]: {why}\n")
        origin = f'origin = "https://a"\norigin_tls = {{ cert_file = "{certificate}", key_file = "{named}" }}\n'
        written(file, f"[[route]]\n{origin}")
        assert run_here("check", str(file)) == (2, "", f"durable-gateway: route.default.origin_tls.key_file: {why}\n")


# -- warnings ----------------------------------------------------------------------------------------------------------


def warned(file: Path, text: str, **environ: str) -> list[str]:
    """The warnings about a configuration; nothing else is said about it."""
    written(file, text)
    status, out, err = run_here("check", "-q", str(file), **environ)
    assert (status, out) == (0, "")
    prefix = "durable-gateway: warning: "
    assert all(line.startswith(prefix) for line in err.splitlines())
    return [line.removeprefix(prefix) for line in err.splitlines()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[server]\nlisten = "127.0.0.1:7"\n[[route]]\norigin = "http://localhost:7"\n',
            "{file}:4: route.default.origin: http://localhost:7 is an address of this gateway: requests would loop",
        ),
        (
            '[[listener]]\naddress = ":7"\n[[route]]\norigin = "http://127.0.0.1:7/v1"\n',
            "{file}:4: route.default.origin: http://127.0.0.1:7 is an address of this gateway: requests would loop",
        ),
        ('[log]\npath = "/tmp/x"\n' + ROUTE, '{file}:2: log.path: has no effect unless log.sink = "file"'),
        (
            '[log]\nsink = "stdout"\nrotate_s = 60\n' + ROUTE,
            '{file}:3: log.rotate_s: has no effect unless log.sink = "file"',
        ),
        (
            '[log]\nstream_url = "http://a/b"\n' + ROUTE,
            '{file}:2: log.stream_url: has no effect unless log.sink = "stream"',
        ),
        ("[log]\nlive_interval_s = 7\n" + ROUTE, "{file}:2: log.live_interval_s: has no effect without log.sink"),
        (
            "[tracing]\nsample_ratio = 1\n" + ROUTE,
            "{file}:2: tracing.sample_ratio: has no effect without tracing.endpoint",
        ),
        (
            "[cache.plan]\ntake_memory = false\n" + ROUTE,
            "{file}:2: cache.plan.take_memory: has no effect without cache.plan.file",
        ),
        (
            '[server]\nforwarded_by = "forwarded"\n' + ROUTE,
            "{file}:2: server.forwarded_by: has no effect without server.trusted_proxies",
        ),
        (
            ROUTE + 'origin_tls = { server_name = "a" }\n',
            "{file}:3: route.default.origin_tls: has no effect: no origin of the route is https",
        ),
        (
            '[limits]\ncache_bytes = "1GiB"\nmemory_max_bytes = "512MiB"\n' + ROUTE,
            "{file}:3: limits.memory_max_bytes: 512MiB is less than limits.cache_bytes, 1GiB: the cache cannot fill",
        ),
    ],
)
def test_settings_that_have_no_effect_or_cannot_work_cause_a_warning(file: Path, text: str, said: str) -> None:
    assert warned(file, text) == [said.format(file=file)]


@pytest.mark.parametrize("listen", ["0.0.0.0:4437", ":4437"])
def test_an_origin_of_another_machine_with_the_same_port_is_not_warned_of(file: Path, listen: str) -> None:
    server = f'[server]\nlisten = "{listen}"\n'
    for host in ("203.0.113.7", "origin.example"):
        assert warned(file, f'{server}[[route]]\norigin = "http://{host}:4437"\n') == []
    for host in ("127.0.0.2", "LOCALHOST", "0.0.0.0", "127.1"):
        (said,) = warned(file, f'{server}[[route]]\norigin = "http://{host}:4437"\n')
        assert said.endswith("is an address of this gateway: requests would loop")


def test_a_log_stream_at_the_gateway_itself_is_warned_of(file: Path) -> None:
    server, log = '[server]\nlisten = ":7"\n', '[log]\nsink = "stream"\nstream_url = "http://127.0.0.1:7/log"\n'
    (said,) = warned(file, server + log + ROUTE)
    assert said.startswith(f"{file}:5: log.stream_url: http://127.0.0.1:7 is an address of this gateway")


def test_a_certificate_that_has_expired_is_warned_of(file: Path, tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("edge.test", days=-0.5)
    tls = f'tls = {{ certificates = [{{ certificate = "{pair.certificate}", key = "{pair.key}" }}] }}\n'
    (said,) = warned(file, f'[[listener]]\naddress = "127.0.0.1:0"\n{tls}{ROUTE}')
    assert said.startswith(f"listener[0].tls.certificates[0]: {pair.certificate}: expired on 20")
    pair_of_client = f'origin_tls = {{ cert_file = "{pair.certificate}", key_file = "{pair.key}" }}\n'
    (said,) = warned(file, f'[[route]]\norigin = "https://a"\n{pair_of_client}')
    assert said.startswith(f"route.default.origin_tls.cert_file: {pair.certificate}: expired on 20")


def test_variables_that_set_nothing_are_warned_of(file: Path) -> None:
    environ = {
        f"DURABLE_GATEWAY_{name}": "1"
        for name in ("LIMITS_CACHE_BYTES", "SERVR__LISTEN", "ADMIN_TOKN", "ROUTES__TRUST_S")
    }
    # Not mistakes: the token, and what Kubernetes sets for services of that name.
    others = {"DURABLE_GATEWAY_ADMIN_TOKEN": "t"}
    others |= {f"DURABLE_GATEWAY_{name}": "1" for name in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT_80_TCP_ADDR")}
    others |= {"DURABLE_GATEWAY_ADMIN_SERVICE_HOST": "1", "DURABLE_GATEWAY_ADMIN_PORT": "1"}
    assert warned(file, ROUTE, **environ, **others) == [
        "env DURABLE_GATEWAY_ADMIN_TOKN: sets nothing (did you mean DURABLE_GATEWAY_ADMIN_TOKEN?)",
        "env DURABLE_GATEWAY_LIMITS_CACHE_BYTES: sets nothing (did you mean DURABLE_GATEWAY_LIMITS__CACHE_BYTES?)",
        "env DURABLE_GATEWAY_ROUTES__TRUST_S: sets nothing (did you mean DURABLE_GATEWAY_ROUTE__TRUST_S?)",
        "env DURABLE_GATEWAY_SERVR__LISTEN: sets nothing (did you mean DURABLE_GATEWAY_SERVER__LISTEN?)",
    ]


def test_a_certificate_that_is_never_used_is_named(file: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pairs = [
        authority.issue("edge.test", file="old", days=1),
        authority.issue("edge.test", "other.test", file="new", days=4),
        authority.issue("edge.test", file="rsa", days=2, is_rsa=True),
    ]
    listed = ", ".join(f'{{ certificate = "{pair.certificate}", key = "{pair.key}" }}' for pair in pairs)
    written(
        file, f'{GOOD.format(origin=NOWHERE)}[[listener]]\naddress = ":0"\n[listener.tls]\ncertificates = [{listed}]\n'
    )
    status, out, _ = run_here("check", "--json", str(file))
    assert status == 0
    (warning,) = json.loads(out)["warnings"]
    assert warning == (
        f"listener[0].tls.certificates[0]: {pairs[0].certificate} is never used: {pairs[1].certificate} has its names "
        "and a key of the same kind, and is valid longer"
    )


def guarded(folder: Path) -> Path:
    """A configuration with one rule of each kind."""
    token_rule = (
        f'[[route.auth]]\nby = "jwt"\nissuer = "{ISSUER}"\naudience = ["{AUDIENCE}"]\ncookie = "__Secure-token"\n'
        f'keys_file = "{key_file(folder)}"\npermissions = ["read /{{sub}}/**"]\n'
    )
    return written(
        folder / "guarded.toml",
        f'[[route]]\norigin = "{NOWHERE}"\ncredentials = "shared"\n'
        '[[route.auth]]\nby = "public"\nstreams = ["/public/**"]\n'
        f"{token_rule}"
        f'[[route.auth]]\nby = "signed"\nkeys = [{{ id = "one", file = "{link_key_file(folder)}" }}]\n'
        '[[route]]\nname = "open"\nhost = "open.test"\n'
        f'origin = "{NOWHERE}/open"\ncredentials = "partition"\n'
        '[[route]]\nname = "site"\nhost = "site.test"\n'
        f'origin = "{NOWHERE}/site"\ncredentials = "shared"\n'
        f'[route.cors]\nallow_origins = ["https://a.test"]\n{token_rule}',
    )


FAR = 1 << 32
NO_TOKEN = f"auth[1] jwt {ISSUER}: the request has no token of this issuer"
ADA = token("ada", exp=FAR, iat=0)
EVE = token("eve", exp=FAR, iat=0, streams=["read,append /eve/**"])


@pytest.mark.parametrize(
    ("arguments", "status", "lines"),
    [
        (["/ada/x", "--as", ADA], 0, ["principal: ada", "granted by: read /{sub}/**"]),
        (["/bob/x", "--as", ADA], 1, ["principal: ada", "403: The credential does not allow this (read /bob/x)"]),
        (["/ada/x", "--as", ADA, "--action", "append"], 1, ["auth[0] public: it is for reads alone"]),
        (["/ada/x", "--as", token("ada", exp=1)], 1, ["401: The token has expired (read /ada/x)"]),
        (["/ada/x", "--as", "junk"], 1, ["401: The token is no JWT (read /ada/x)"]),
        (["/ada/x"], 1, [NO_TOKEN, "auth[2] signed: the request has no signature", "401: Authorisation needed"]),
        (["/public/x", "--as", ADA], 0, ["auth[0] public: decides", "200: The stream is public (read /public/x)"]),
        ([signed("/s", FAR)], 0, [NO_TOKEN, "auth[2] signed: decides", "principal: one", "granted by: read /s"]),
        ([signed("/s", 1)], 1, ["401: SIGNATURE_EXPIRED: The signature has expired"]),
        ([signed("/s", FAR, network="192.0.2.0/24"), "--client", "192.0.2.1"], 0, ["only from: 192.0.2.0/24"]),
        ([signed("/s", 999_999_999_999)], 0, ["expires: 9999-12-31T23:59:59Z, in "]),
        (["/s?signature=a&signature=b"], 1, ["400: Multiple signature parameters not allowed"]),
        (["/ada/x?live=none", "--as", ADA], 1, ["403: The credential does not allow this (other /ada/x)"]),
        (["/ada/__ds/a", "--as", ADA], 1, ["403: The credential does not allow this (subscribe /ada/__ds/a)"]),
        (["/ada%2F__ds%2Fa", "--as", ADA], 1, ["(subscribe /ada%2F__ds%2Fa)"]),
        (["/ada/__ds/jwks.json"], 1, ["401: "]),
        (["/ada/__ds", "--as", ADA, "--action", "append"], 1, ["(other /ada/__ds)"]),
        (["/v1/stream/__ds/jwks.json"], 0, ["200: the origin alone decides who may have its public keys"]),
        (["/__ds/subscriptions/a/ack"], 1, ["a POST is passed on: only the origin authorises it", "401: "]),
        (["/eve/x", "--cookie", f"__Secure-token={EVE}"], 0, ["principal: eve", "200: "]),
        (
            ["/eve/x", "--cookie", f"__Secure-token={EVE}", "--action", "append"],
            1,
            ["403: A write with a cookie needs"],
        ),
        (["http://site.test/eve/x", "--cookie", f"__Secure-token={EVE}", "--action", "append"], 0, ["https://a.test"]),
        (["http://open.test/s"], 0, ["200: the route has no [[route.auth]], so each request is served"]),
    ],
)
def test_a_request_is_explained_by_rule_principal_and_permission(
    tmp_path: Path, arguments: list[str], status: int, lines: list[str]
) -> None:
    done, out, err = run_here("check", str(guarded(tmp_path)), *arguments)
    assert (done, err) == (status, "")
    for line in lines:
        assert line in out
    assert ADA not in out


async def test_a_request_is_explained_with_keys_and_verdicts_by_url_if_a_probe_may_ask(
    tmp_path: Path, durable_origin: RunningOrigin
) -> None:
    site, replies = durable_origin.url, durable_origin.origin.faults
    config = written(
        tmp_path / "asking.toml",
        f'[[route]]\norigin = "{site}"\ncredentials = "shared"\n'
        f'[[route.auth]]\nby = "jwt"\nissuer = "{ISSUER}"\naudience = ["{AUDIENCE}"]\nkeys_url = "{site}/keys"\n'
        'permissions = ["read /{sub}/**"]\n'
        f'[[route.auth]]\nby = "forward"\nurl = "{site}/may?key=hidden"\nprincipal_from = "x-user"\n',
    )

    async def explained(*arguments: str) -> tuple[int, str]:
        return (await finished("check", str(config), "/ada/x", "--probe", "--as", *arguments))[:2]

    for credential in (ADA, "opaque"):
        status, out, _ = run_here("check", str(config), "/ada/x", "--as", credential)
        assert (status, "503: A rule must ask a URL about this request: --probe does so" in out) == (1, True)
        assert "hidden" not in out
    out = run_here("check", str(config))[1]
    assert (f'url = "{site}/may?***"' in out, "hidden" in out) == (True, False)
    assert durable_origin.origin.counters.total_requests == 0
    replies.replace(200, {"Content-Type": "application/json"}, key_set(KEYS.values()), path="/keys", times=None)
    replies.replace(204, {"X-User": "bob", "Cache-Control": "no-store"}, b"", path="/may", times=None)
    status, out = await explained(ADA)
    assert (status, "principal: ada" in out, "granted by: read /{sub}/**" in out) == (0, True, True)
    status, out = await explained("opaque", "--action", "append")
    assert (status, "auth[1] forward" in out, "principal: bob" in out) == (0, True, True)
    replies.clear()
    replies.status(500, path="/keys", times=None)
    assert "503: Authorisation cannot be decided now" in (await explained(ADA))[1]


def test_a_token_to_explain_may_come_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO(f"{ADA}\n"))
    assert run_here("check", str(guarded(tmp_path)), "/ada/x", "--as", "-")[0] == 0


def test_a_token_without_a_url_is_misuse(file: Path) -> None:
    status, _, err = run_here("check", str(file), "--as", "junk")
    assert (status, "need a URL" in err) == (2, True)


def test_a_url_without_a_host_to_it_is_misuse(tmp_path: Path) -> None:
    status, _, err = run_here("check", str(guarded(tmp_path)), "http://[::1/x")
    assert (status, err.count("\n")) == (2, 1)
