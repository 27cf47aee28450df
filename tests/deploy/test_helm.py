"""The Helm chart as Helm renders it: schemas of Kubernetes, the gateway's `check`, and what the objects refer to."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import gateway
from gateway.aio.clock import ManualClock
from gateway.config.file import load_config
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet_own_address import own_address, own_member
from gateway.origin.app import RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.certificates import Authority
from tests.commands.here import run_here
from tests.deploy.dockerfile import assignments, read
from tests.deploy.kubernetes_tools import kubernetes_tool
from tests.deploy.test_kubernetes import DOCUMENTS as PLAIN
from tests.deploy.test_kubernetes import RELEASES, size
from tests.fleet.redis_server import redis_server
from tests.fleet.site import Site
from tests.fleet.test_orders import bodies, order

ROOT = Path(__file__).parents[2]
CHART = ROOT / "config/deploy/helm/durable-gateway"
EXAMPLE = CHART / "values.redis.example.yaml"
GUIDE = ROOT / "docs/guides/helm.md"
NAME = "gateway-durable-gateway"
ORIGIN = {"origin": "http://origin:4437"}
POD = {"metadata.name": "gateway-durable-gateway-6d5f9c-abcde", "status.podIP": "10.1.2.3"}
SECRET = "s" * 40
EVERYTHING: dict[str, Any] = {
    **yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")),
    "image": {"repository": "registry.test/gateway", "tag": "1", "pullSecrets": [{"name": "registry"}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "service": {"type": "LoadBalancer", "sessionAffinity": "ClientIP", "annotations": {"a": "b"}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "extraVolumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
    "extraVolumeMounts": [{"name": "keys", "mountPath": "/etc/keys"}],
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "streams"},
    "priorityClassName": "high",
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
}

Documents = dict[str, dict[str, Any]]
"""The documents of a release by kind and, after a slash, what their names have after that of the release."""


def helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    # JSON is YAML, and it comes by stdin.
    command = [kubernetes_tool("helm"), *arguments, "--namespace", "edge", "--values", "-"]
    # The developer's clusters stay out of it, and so does Helm's cache of an earlier API.
    with tempfile.TemporaryDirectory() as cache:
        environ = {**os.environ, "KUBECONFIG": os.devnull, "KUBECACHEDIR": cache}
        return subprocess.run(
            command,
            input=json.dumps(values or {}),
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def rendered(values: dict[str, Any], *more: str) -> Documents:
    done = helm("template", "gateway", str(CHART), *more, values=values)
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    named = {one["kind"] + one["metadata"]["name"].removeprefix(NAME).replace("-", "/"): one for one in documents}
    assert len(named) == len(documents)
    return named


def container(documents: Documents) -> dict[str, Any]:
    found: dict[str, Any] = documents["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


def secrets(documents: Documents) -> dict[str, str]:
    data = documents.get("Secret", {}).get("data", {})
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def environment(documents: Documents) -> dict[str, str]:
    """The pod's environment: the image's, and on top of it the container's."""
    _, (_, final) = read(ROOT / "config/deploy/Dockerfile")
    environ = {name: value for one in final.all("ENV") for name, value in assignments(one.text).items()}
    for one in container(documents)["env"]:
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            environ[one["name"]] = POD[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            key = source["secretKeyRef"]
            is_own = key["name"] == NAME
            environ[one["name"]] = secrets(documents)[key["key"]] if is_own else SECRET
        else:
            environ[one["name"]] = one["value"]
    return {name: value for name, value in environ.items() if name.startswith("DURABLE_GATEWAY_")}


def file_of(documents: Documents, folder: Path) -> Path:
    """The configuration's file, with the pod's folders of secrets in this folder."""
    file = folder / "gateway.toml"
    text = documents["ConfigMap"]["data"]["gateway.toml"]
    for mount in container(documents)["volumeMounts"]:
        if mount["name"] in ("tls", "redis-ca"):
            text = text.replace(mount["mountPath"], str(folder))
    file.write_text(text, encoding="utf-8")
    return file


def configured(documents: Documents, folder: Path) -> GatewayConfig:
    return load_config(file_of(documents, folder), environ=environment(documents)).config


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with the files of the example's secrets."""
    authority = Authority(tmp_path)
    pair = authority.issue("tls", "edge.test")
    (tmp_path / "tls.crt").write_bytes(pair.certificate.read_bytes())
    (tmp_path / "tls.key").write_bytes(pair.key.read_bytes())
    (tmp_path / "ca.crt").write_bytes(pair.certificate.read_bytes())
    return tmp_path


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("values", [ORIGIN, EVERYTHING], ids=["default", "everything"])
def test_each_object_has_the_schema_of_its_kind(values: dict[str, Any], release: str) -> None:
    # The import takes long, and processes that only collect tests do not need it.
    import kubernetes_validate

    release = release if release[0].isdigit() else kubernetes_validate.latest_version()
    for document in rendered(values).values():
        if document["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(document, release, strict=True)
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "gateway"


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART), values=ORIGIN)
    assert done.returncode == 0, done.stdout
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == gateway.__version__


@pytest.mark.parametrize(
    "values",
    [
        ORIGIN,
        EVERYTHING,
        {**ORIGIN, "fleet": {"enabled": False}, "replicaCount": 1},
        {"config": '[[route]]\norigin = "http://a"\n\n[[route]]\nname = "b"\nprefix = "/b"\norigin = "http://b"\n'},
    ],
    ids=["default", "everything", "one", "routes"],
)
def test_the_gateway_finds_nothing_in_its_configuration(values: dict[str, Any], certificates: Path) -> None:
    documents = rendered(values)
    status, out, err = run_here("check", str(file_of(documents, certificates)), **environment(documents))
    assert (status, err) == (0, ""), out


def test_three_members_find_each_other_by_the_headless_service(tmp_path: Path) -> None:
    documents = rendered(ORIGIN)
    assert set(documents) == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "Service/fleet"),
        "ServiceAccount",
    }
    assert documents["Deployment"]["spec"]["replicas"] == 3
    config, service = configured(documents, tmp_path), documents["Service/fleet"]
    assert config.fleet.dns_name.host == service["metadata"]["name"]
    assert [one["port"] for one in service["spec"]["ports"]] == [config.fleet.dns_name.port]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert str(own_address(config.fleet)) == f"{POD['status.podIP']}:4439"
    assert config.server.node_name == POD["metadata.name"]
    assert not config.fleet.redis
    assert (config.server.workers, config.limits.max_connections) == (1, 20_000)


def test_with_redis_the_members_find_each_other_there(certificates: Path) -> None:
    documents = rendered(EVERYTHING)
    assert "Service/fleet" not in documents
    config = configured(documents, certificates)
    assert config.fleet.members_redis
    place = config.fleet.redis_place
    assert (place.is_tls, place.password, place.ca_file) == (True, SECRET, str(certificates / "ca.crt"))
    member = own_member(config.fleet, lambda _: POD["status.podIP"])
    assert (member.name, member.url) == (POD["metadata.name"], "http://10.1.2.3:4439")
    (volume,) = [
        one for one in documents["Deployment"]["spec"]["template"]["spec"]["volumes"] if one["name"] == "redis-ca"
    ]
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "the password is in no file"
    assert config.server.workers == "auto"


def test_redis_can_be_for_orders_alone(tmp_path: Path) -> None:
    documents = rendered({**ORIGIN, "redis": {"url": "redis://redis", "members": False}})
    fleet = configured(documents, tmp_path).fleet
    assert (fleet.redis, fleet.members_redis) == ("redis://redis", False)
    assert fleet.dns_name.host == documents["Service/fleet"]["metadata"]["name"]


class ChartedSite(Site):
    """The pods of the chart, at ports of this machine."""

    def __init__(self, origin: RunningOrigin, clock: ManualClock, redis_url: str, folder: Path) -> None:
        super().__init__(origin, clock)
        documents = rendered({"origin": origin.url, "redis": {"url": redis_url}})
        assert documents["Deployment"]["spec"]["replicas"] == len(self.urls)
        self._file, self._environ = file_of(documents, folder), environment(documents)

    def config(self, name: str, fleet: dict[str, Any] | None = None, **more: Any) -> GatewayConfig:
        here = {
            "DURABLE_GATEWAY_FLEET__NAME": name,
            "DURABLE_GATEWAY_FLEET__LISTEN": self.urls[name].removeprefix("http://"),
            "DURABLE_GATEWAY_SERVER__LISTEN": "127.0.0.1:0",
            "DURABLE_GATEWAY_SERVER__ADMIN": "127.0.0.1:0",
            "DURABLE_GATEWAY_SERVER__NODE_NAME": name,
        }
        return load_config(self._file, environ={**self._environ, **here}).config


async def test_three_pods_share_streams_and_purges(tmp_path: Path) -> None:
    clock = ManualClock()
    origin = await start_origin(clock=clock)
    async with redis_server(tmp_path) as redis:
        site = ChartedSite(origin, clock, redis.url, tmp_path)
        await site.start_all()
        path = site.path_of("c")
        await site.members["a"].put(path, b"one", Stream_Closed="true")
        assert await bodies(site, path, ("a", "b", "c")) == {b"one"}
        assert origin.origin.counters.requests[Kind.CATCHUP] == 1
        answer = await order(site, "b", "purge", {"stream": path})
        assert [one["member"] for one in answer["members"] if one["affected"] == 1] == ["a", "c"]
        assert answer["in_redis"]
        await site.close()
    await origin.stop(grace_s=0)


@pytest.mark.parametrize(
    ("release", "override", "name"),
    [("gateway", "", NAME), ("durable-gateway-eu", "", "durable-gateway-eu"), ("gateway", "edge", "edge")],
)
def test_all_objects_have_the_name_of_the_release(release: str, override: str, name: str) -> None:
    done = helm("template", release, str(CHART), values={**ORIGIN, "fullnameOverride": override})
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert {one["metadata"]["name"] for one in documents} == {name, f"{name}-fleet"}
    (config,) = [one for one in documents if one["kind"] == "ConfigMap"]
    assert f'members_dns = "{name}-fleet:4439"' in config["data"]["gateway.toml"]


def test_without_a_fleet_nothing_of_it_is_there(tmp_path: Path) -> None:
    documents = rendered({**ORIGIN, "fleet": {"enabled": False}, "replicaCount": 1})
    assert "Service/fleet" not in documents
    assert set(secrets(documents)) == {"admin-token"}
    assert "fleet" not in json.dumps([container(documents), documents["NetworkPolicy"]])
    assert not configured(documents, tmp_path).fleet.is_on
    assert documents["Deployment"]["spec"]["replicas"] == 1


@pytest.mark.parametrize("values", [ORIGIN, EVERYTHING], ids=["default", "everything"])
def test_every_selector_selects_the_pods(values: dict[str, Any]) -> None:
    documents = rendered(values)
    pod = documents["Deployment"]["spec"]["template"]
    labels = documents["Deployment"]["spec"]["selector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    services = [one for one in documents.values() if one["kind"] == "Service"]
    assert all(one["spec"]["selector"] == labels for one in services)
    assert documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert pod["spec"]["serviceAccountName"] == documents["ServiceAccount"]["metadata"]["name"]
    volumes = {one["name"] for one in pod["spec"]["volumes"]}
    assert {one["name"] for one in container(documents)["volumeMounts"]} == volumes


@pytest.mark.parametrize(
    ("tls", "public"),
    [
        ({}, {"http": 80}),
        ({"secretName": "tls"}, {"https": 443}),
        ({"secretName": "tls", "minimumVersion": "1.3", "redirectHttp": True}, {"https": 443, "http": 80}),
    ],
    ids=["plain", "tls", "redirect"],
)
def test_the_ports_are_those_of_the_listeners(tls: dict[str, Any], public: dict[str, int], certificates: Path) -> None:
    documents = rendered({**ORIGIN, "tls": tls})
    config = configured(documents, certificates)
    ports = {one["name"]: one["containerPort"] for one in container(documents)["ports"]}
    service = documents["Service"]["spec"]["ports"]
    assert {one["targetPort"]: one["port"] for one in service} == public
    rules = documents["NetworkPolicy"]["spec"]["ingress"]
    assert [{port["port"] for port in rule["ports"]} for rule in rules] == [set(public), {"admin"}, {"fleet"}]
    assert all(rule.get("from") for rule in rules[1:]), "the admin port and the members' are not for all"
    assert ports.pop("admin") == config.server.admin_address.port
    assert config.fleet.listener is not None
    assert f":{ports.pop('fleet')}" == config.fleet.listener.address
    listeners = {one.address: one for one in config.listeners}
    if not tls:
        assert (ports, listeners) == ({"http": config.server.listen_address.port}, {})
        return
    assert config.server.listen_address.host == "127.0.0.1", "no plain HTTP from outside"
    assert set(listeners) == {f"0.0.0.0:{port}" for port in ports.values()}
    secure = listeners[f"0.0.0.0:{ports['https']}"].tls
    assert secure is not None
    assert secure.minimum_version == tls.get("minimumVersion", "1.2")
    (volume,) = [one for one in documents["Deployment"]["spec"]["template"]["spec"]["volumes"] if one["name"] == "tls"]
    assert volume["secret"] == {"secretName": "tls"}
    if "http" in ports:
        assert listeners[f"0.0.0.0:{ports['http']}"].https_port == 443


def test_a_redirect_names_the_port_of_the_service(certificates: Path) -> None:
    values = {**ORIGIN, "tls": {"secretName": "tls", "redirectHttp": True}, "service": {"httpsPort": 8443}}
    config = configured(rendered(values), certificates)
    assert [one.https_port for one in config.listeners] == [None, 8443]


@pytest.mark.parametrize(
    ("memory", "cache_bytes", "expected"),
    [("2Gi", "", 1 << 30), ("3Gi", "", 3 << 29), ("768Mi", "", 384 << 20), ("2Gi", "256MiB", 256 << 20)],
)
def test_the_cache_is_half_of_the_memory_limit(memory: str, cache_bytes: str, expected: int, tmp_path: Path) -> None:
    documents = rendered({**ORIGIN, "resources": {"limits": {"memory": memory}}, "cacheBytes": cache_bytes})
    assert configured(documents, tmp_path).limits.cache_bytes == expected
    assert size(container(documents)["resources"]["limits"]["memory"]) >= 2 * expected


@pytest.mark.parametrize(("slept", "drained", "timeout"), [(5, 20, 10), (0, 300, 60)])
def test_the_grace_period_is_longer_than_the_drains(slept: int, drained: int, timeout: int, tmp_path: Path) -> None:
    times = {"preStopSleepSeconds": slept, "drainSeconds": drained, "shutdownTimeoutSeconds": timeout}
    documents = rendered({**ORIGIN, **times})
    (_, _, script) = container(documents)["lifecycle"]["preStop"]["exec"]["command"]
    assert script == f"sleep {slept}; exec durable-gateway drain --within {drained}"
    assert configured(documents, tmp_path).server.shutdown_timeout_s == timeout
    # `drain` watches for 5 s beyond its bound.
    grace = documents["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= slept + drained + 5 + timeout + 5


def test_a_pod_is_that_of_the_plain_manifests() -> None:
    """Probes, rights and the way to stop are the same in the chart and in the plain manifests."""
    documents = rendered(ORIGIN)
    plain, charted = (one["Deployment"]["spec"]["template"]["spec"] for one in (PLAIN, documents))
    for key in (
        "securityContext",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "terminationGracePeriodSeconds",
    ):
        assert charted[key] == plain[key]
    (one,), (other,) = plain["containers"], charted["containers"]
    keys = ("args", "lifecycle", "livenessProbe", "readinessProbe", "resources", "securityContext", "startupProbe")
    assert {key: other[key] for key in keys} == {key: one[key] for key in keys}
    assert documents["Deployment"]["spec"]["strategy"] == PLAIN["Deployment"]["spec"]["strategy"]


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_secrets_are_generated_long_and_not_twice_the_same() -> None:
    one, other = (secrets(rendered(ORIGIN)) for _ in range(2))
    assert set(one) == {"admin-token", "fleet-secret"}
    assert {len(value) for value in one.values()} == {64}
    assert len({*one.values(), *other.values()}) == 4


def test_given_secrets_are_used(tmp_path: Path) -> None:
    documents = rendered({**ORIGIN, "adminToken": "the token", "fleet": {"secret": SECRET}})
    assert secrets(documents) == {"admin-token": "the token", "fleet-secret": SECRET}
    assert environment(documents)["DURABLE_GATEWAY_ADMIN_TOKEN"] == "the token"
    assert configured(documents, tmp_path).fleet.secret.get_secret_value() == SECRET


def test_an_existing_secret_replaces_that_of_the_chart(tmp_path: Path) -> None:
    documents = rendered({**ORIGIN, "existingSecret": "own", "serviceMonitor": {"enabled": True}})
    assert "Secret" not in documents
    keys = [one["valueFrom"]["secretKeyRef"] for one in container(documents)["env"] if "secretKeyRef" in str(one)]
    assert keys == [{"name": "own", "key": "admin-token"}, {"name": "own", "key": "fleet-secret"}]
    assert configured(documents, tmp_path).fleet.secret.get_secret_value() == SECRET


@contextmanager
def cluster(objects: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Helm's options for a cluster's API that has these objects, by their paths, and knows the chart's kinds."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = objects.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    kinds: dict[str, set[str]] = {}
    for document in rendered(ORIGIN).values():
        kinds.setdefault(document["apiVersion"], set()).add(document["kind"])
    groups = [
        {
            "name": version.partition("/")[0],
            "versions": [{"groupVersion": version, "version": version.partition("/")[2]}],
        }
        for version in kinds.keys() - {"v1"}
    ]
    objects = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        **{
            f"/{'api' if version == 'v1' else 'apis'}/{version}": {
                "kind": "APIResourceList",
                "groupVersion": version,
                "resources": [
                    {"name": f"{kind.lower()}s", "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
                    for kind in found
                ],
            }
            for version, found in kinds.items()
        },
        **objects,
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        place = f"http://127.0.0.1:{server.server_port}"
        yield ("--is-upgrade", "--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", place)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_upgrade_keeps_the_generated_secrets() -> None:
    before = rendered(ORIGIN)["Secret"]
    path = f"/api/v1/namespaces/edge/secrets/{NAME}"
    with cluster({path: before}) as api:
        assert rendered(ORIGIN, *api)["Secret"]["data"] == before["data"]
        # A value that the operator sets replaces the generated one.
        after = secrets(rendered({**ORIGIN, "adminToken": "new"}, *api))
        assert after == {"admin-token": "new", "fleet-secret": secrets({"Secret": before})["fleet-secret"]}
    # A release that had no fleet gets a secret for it.
    alone = {**before, "data": {"admin-token": before["data"]["admin-token"]}}
    with cluster({path: alone}) as api:
        after = secrets(rendered(ORIGIN, *api))
        assert after["admin-token"] == secrets({"Secret": before})["admin-token"]
        assert len(after["fleet-secret"]) == 64
    with cluster({}) as api:
        assert len(secrets(rendered(ORIGIN, *api))["admin-token"]) == 64


# -- Prometheus --------------------------------------------------------------------------------------------------------


def test_prometheus_scrapes_the_admin_ports_with_the_token() -> None:
    documents = rendered({**ORIGIN, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}})
    monitor, service = documents["ServiceMonitor"], documents["Service/admin"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    services = [one for one in documents.values() if one["kind"] == "Service"]
    assert [one for one in services if selected <= one["metadata"]["labels"].items()] == [service]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert [endpoint["port"]] == [one["name"] for one in service["spec"]["ports"]]
    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"] == {"name": NAME, "key": "admin-token"}


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "set origin to the URL of your origin"),
        ({"origin": "origin:4437"}, "at '/origin'"),
        ({**ORIGIN, "replicas": 3}, "'replicas' not allowed"),
        ({**ORIGIN, "replicaCount": 64}, "at '/replicaCount'"),
        ({**ORIGIN, "replicaCount": "3"}, "at '/replicaCount'"),
        ({**ORIGIN, "workers": 0}, "at '/workers'"),
        ({**ORIGIN, "workers": "many"}, "at '/workers'"),
        ({**ORIGIN, "fleet": {"secret": "too short"}}, "at '/fleet/secret'"),
        ({**ORIGIN, "redis": {"url": "http://redis"}}, "at '/redis/url'"),
        ({**ORIGIN, "redis": {"url": "redis://redis"}, "fleet": {"enabled": False}}, "redis.url needs fleet.enabled"),
        ({**ORIGIN, "redis": {"passwordSecret": {"name": "a"}}}, "redis.passwordSecret needs redis.url"),
        ({**ORIGIN, "redis": {"url": "redis://a", "caSecret": {"name": "a"}}}, "redis.caSecret needs redis.url"),
        ({**ORIGIN, "tls": {"minimumVersion": 1.2}}, "at '/tls/minimumVersion'"),
        ({**ORIGIN, "tls": {"redirectHttp": True}}, "tls.redirectHttp needs tls.secretName"),
        ({**ORIGIN, "resources": {"limits": {"memory": "2G"}}}, "at '/resources/limits/memory'"),
        ({**ORIGIN, "resources": {"limits": {"memory": None}}}, "set resources.limits.memory, or cacheBytes"),
        ({**ORIGIN, "cacheBytes": "1Gi"}, "at '/cacheBytes'"),
        ({**ORIGIN, "config": "[server]\nworkers = 2\n"}, "DURABLE_GATEWAY_SERVER__KEY"),
        ({**ORIGIN, "existingSecret": "a", "adminToken": "b"}, "leave adminToken and fleet.secret empty"),
        ({**ORIGIN, "shutdownTimeoutSeconds": 601}, "at '/shutdownTimeoutSeconds'"),
        ({**ORIGIN, "service": {"port": 0}}, "at '/service/port'"),
    ],
)
def test_a_mistake_is_named(values: dict[str, Any], why: str) -> None:
    done = helm("template", "gateway", str(CHART), values=values)
    assert done.returncode != 0
    assert why in done.stderr


# -- texts for people --------------------------------------------------------------------------------------------------


def leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def test_the_guide_has_every_value_with_its_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| `([\w.]+)` \| (?:`(.*?)`)? ?\|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    found = dict(rows)
    expected = dict(leaves(values))
    assert list(found) == list(expected)
    for name, default in expected.items():
        if default in ("", [], {}):
            assert found[name] == "", name
        elif not isinstance(default, list):
            assert found[name] == str(default).replace("True", "true").replace("False", "false"), name


def test_the_schema_has_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]) == {*values, "global"}
    for name, one in schema["properties"].items():
        if one.get("additionalProperties") is False:
            assert set(one["properties"]) >= set(values[name]), name


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (ORIGIN, ["http://gateway-durable-gateway.edge.svc:80", "Without Redis, revocations are lost"]),
        (EVERYTHING, ["https://gateway-durable-gateway.edge.svc:443", "a line for each other member"]),
        ({**ORIGIN, "fleet": {"enabled": False}}, ["The 3 pods are no fleet"]),
        ({**ORIGIN, "existingSecret": "own"}, ["get secret own -o"]),
    ],
)
def test_the_notes_say_where_the_gateway_is(values: dict[str, Any], told: list[str]) -> None:
    done = helm("install", "gateway", str(CHART), "--dry-run=client", values=values)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:\n")[2]
    for text in told:
        assert text in notes
