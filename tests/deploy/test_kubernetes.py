"""The Kubernetes manifests: by the schemas of the releases they are for, and by what they say of each other."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.config.file import load_config
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet_own_address import own_address
from tests.deploy.dockerfile import assignments, read
from tests.deploy.kubernetes_tools import kubernetes_tool
from tests.served import durable_gateway, served

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "config/deploy/kubernetes"
FLEET = ROOT / "config/deploy/kubernetes-fleet"
KUSTOMIZATION = "kustomization.yaml"
NEWEST = "newest"
RELEASES = ("1.30", "1.33", NEWEST)
"""The oldest that the manifests are meant for, one between, and the newest that there are schemas of."""
TOKEN = "a-token-of-the-operators"

DOCUMENTS: dict[str, dict[str, Any]] = {
    document["kind"]: document
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != KUSTOMIZATION
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
POD = DOCUMENTS["Deployment"]["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]
LABELS = POD["metadata"]["labels"]
MIB = 1 << 20
UNITS = {"Mi": MIB, "Gi": 1 << 30}


def size(text: str) -> int:
    """A quantity of memory in bytes."""
    return int(text[:-2]) * UNITS[text[-2:]]


@pytest.fixture
def configured(tmp_path: Path) -> GatewayConfig:
    """What the pod runs with: the map's file, under the image's environment and the pod's."""
    file = tmp_path / "gateway.toml"
    file.write_text(DOCUMENTS["ConfigMap"]["data"]["gateway.toml"], encoding="utf-8")
    return load_config(file, environ=environment()).config


def environment() -> dict[str, str]:
    _, (_, final) = read(ROOT / "config/deploy/Dockerfile")
    image = {name: value for one in final.all("ENV") for name, value in assignments(one.text).items()}
    pod = {one["name"]: one["value"] for one in CONTAINER["env"] if "value" in one}
    return {name: value for name, value in (image | pod).items() if name.startswith("DURABLE_GATEWAY_")}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", sorted(DOCUMENTS))
def test_every_manifest_is_of_its_kinds_schema(kind: str, release: str) -> None:
    # It makes parsers of many grammars when it is imported, which no process need do that only collects tests.
    import kubernetes_validate

    release = kubernetes_validate.latest_version() if release == NEWEST else release
    kubernetes_validate.validate(DOCUMENTS[kind], release, strict=True)


def test_the_schemas_see_a_misspelt_key() -> None:
    import kubernetes_validate

    document = yaml.safe_load((FOLDER / "deployment.yaml").read_text(encoding="utf-8"))
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(document, RELEASES[0], strict=True)


Documents = dict[tuple[str, str], dict[str, Any]]
"""The documents by kind and name."""


def kustomized(folder: Path) -> Documents:
    """Return the objects that `kubectl apply -k` would apply."""
    command = [kubernetes_tool("kubectl"), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    documents = list(yaml.safe_load_all(done.stdout))
    named = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(named) == len(documents)
    return named


@pytest.fixture(params=["fleet", "redis"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Documents:
    """The fleet as it is, and with the line for Redis."""
    if request.param == "fleet":
        return kustomized(FLEET)
    shutil.copytree(FOLDER, tmp_path / FOLDER.name)
    shutil.copytree(FLEET, tmp_path / FLEET.name)
    file = tmp_path / FLEET.name / KUSTOMIZATION
    text = file.read_text(encoding="utf-8")
    assert "#- ../kubernetes/redis" in text
    file.write_text(text.replace("#- ../kubernetes/redis", "- ../kubernetes/redis"), encoding="utf-8")
    return kustomized(tmp_path / FLEET.name)


def test_kustomize_applies_every_manifest_as_it_is() -> None:
    found = kustomized(FOLDER)
    assert {kind: document for (kind, _), document in found.items()} == DOCUMENTS


def test_every_manifest_of_a_fleet_is_of_its_kinds_schema(fleet: Documents) -> None:
    import kubernetes_validate

    # The other objects, and their schemas in other releases, are those of the tests above.
    for kind, name in (
        ("Deployment", "durable-gateway"),
        ("NetworkPolicy", "durable-gateway-fleet"),
        ("Service", "durable-gateway-fleet"),
    ):
        kubernetes_validate.validate(fleet[kind, name], RELEASES[0], strict=True)


def test_a_fleet_has_three_pods_with_the_container_of_the_plain_manifests(fleet: Documents) -> None:
    added = {("NetworkPolicy", "durable-gateway-fleet"), ("Service", "durable-gateway-fleet")}
    assert set(fleet) == {(kind, "durable-gateway") for kind in DOCUMENTS} | added
    assert fleet["HorizontalPodAutoscaler", "durable-gateway"]["spec"]["minReplicas"] == 3
    pod = fleet["Deployment", "durable-gateway"]["spec"]["template"]["spec"]["containers"][0]
    for key in ("env", "ports"):
        assert all(one in pod[key] for one in CONTAINER[key])
    own = {"env", "image", "ports"}
    assert {key: pod[key] for key in pod.keys() - own} == {key: CONTAINER[key] for key in CONTAINER.keys() - own}


@pytest.mark.parametrize(("pod_ip", "member"), [("10.1.2.3", "10.1.2.3:4439"), ("fd00::3", "[fd00::3]:4439")])
def test_pods_of_a_fleet_find_each_other_by_the_headless_service(
    fleet: Documents, tmp_path: Path, pod_ip: str, member: str
) -> None:
    service = fleet["Service", "durable-gateway-fleet"]
    policy = fleet["NetworkPolicy", "durable-gateway-fleet"]["spec"]
    pod = fleet["Deployment", "durable-gateway"]["spec"]["template"]["spec"]["containers"][0]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == policy["podSelector"]["matchLabels"] == LABELS
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": LABELS}}]
    assert rule["ports"] == [{"port": "fleet"}]
    given = {"POD_IP": pod_ip, "NODE_NAME": "durable-gateway-6d5f-abcde", "SECRET": "s" * 64, "REDIS_PASSWORD": "p"}
    environ = environment()
    for one in pod["env"]:
        value = one.get("value") or given.get(one["name"].rpartition("__")[2], TOKEN)
        environ[one["name"]] = value.replace("$(POD_IP)", given["POD_IP"])
    del environ["POD_IP"]
    file = tmp_path / "gateway.toml"
    file.write_text(fleet["ConfigMap", "durable-gateway"]["data"]["gateway.toml"], encoding="utf-8")
    config = load_config(file, environ=environ).config
    port = config.fleet.dns_name.port
    assert config.fleet.dns_name.host == service["metadata"]["name"]
    assert str(own_address(config.fleet)) == member
    assert config.server.node_name == given["NODE_NAME"]
    ports = {one["name"]: one["containerPort"] for one in pod["ports"]}
    assert [port] == [one["port"] for one in service["spec"]["ports"]] == [ports["fleet"]]
    listener = config.fleet.listener
    assert listener is not None
    assert listener.address == f":{port}"
    if config.fleet.redis:
        (password,) = [one for one in pod["env"] if one["name"].endswith("__REDIS_PASSWORD")]
        assert password["valueFrom"]["secretKeyRef"]["optional"], "a server without a password needs no secret"
        assert config.fleet.redis_place.password == "p"


def test_there_is_one_of_each_and_all_have_one_name() -> None:
    assert set(DOCUMENTS) == {
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Service"),
        "ServiceAccount",
    }
    assert {document["metadata"]["name"] for document in DOCUMENTS.values()} == {"durable-gateway"}


def test_whatever_selects_pods_selects_these() -> None:
    spec = {kind: document.get("spec", {}) for kind, document in DOCUMENTS.items()}
    assert spec["Deployment"]["selector"]["matchLabels"] == LABELS
    assert spec["Service"]["selector"] == LABELS
    assert spec["PodDisruptionBudget"]["selector"]["matchLabels"] == LABELS
    assert spec["NetworkPolicy"]["podSelector"]["matchLabels"] == LABELS
    (spread,) = POD["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == LABELS
    scaled = spec["HorizontalPodAutoscaler"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", "durable-gateway")
    assert "replicas" not in spec["Deployment"], "applying the file again would undo the autoscaler"
    assert spec["HorizontalPodAutoscaler"]["minReplicas"] > spec["PodDisruptionBudget"]["maxUnavailable"]


def test_ports_that_are_named_exist_and_are_those_that_the_gateway_listens_on(configured: GatewayConfig) -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    server = configured.server
    assert ports == {"http": server.listen_address.port, "admin": server.admin_address.port}
    assert {server.listen_address.host, server.admin_address.host} == {"0.0.0.0"}
    assert DOCUMENTS["Service"]["spec"]["ports"][0]["targetPort"] == "http"
    rules = DOCUMENTS["NetworkPolicy"]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(ports)
    assert next(rule for rule in rules if rule["ports"] == [{"port": "admin"}])["from"], "the admin port is not for all"


def test_a_pod_has_no_rights_and_writes_nothing() -> None:
    pod, container = POD["spec"]["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    _, (_, final) = read(ROOT / "config/deploy/Dockerfile")
    assert f"{pod['runAsUser']}:{pod['runAsGroup']}" == final.last("USER").text
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert DOCUMENTS["ServiceAccount"]["automountServiceAccountToken"] is False


def test_the_memory_limit_leaves_room_beside_the_tapes(configured: GatewayConfig) -> None:
    assert size(CONTAINER["resources"]["limits"]["memory"]) >= 2 * configured.limits.cache_bytes


def test_the_grace_period_is_longer_than_the_drains(configured: GatewayConfig) -> None:
    (_, _, script) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    slept, drained = re.fullmatch(r"sleep (\d+); exec durable-gateway drain --within (\d+)", script).groups()  # type: ignore[union-attr]
    # `drain` watches for 5 s beyond its bound.
    longest = int(slept) + int(drained) + 5 + configured.server.shutdown_timeout_s
    assert POD["spec"]["terminationGracePeriodSeconds"] >= longest + 5


def test_the_autoscaler_scales_by_a_series_that_the_gateway_has_and_prometheus_keeps(running: Running) -> None:
    metrics = DOCUMENTS["HorizontalPodAutoscaler"]["spec"]["metrics"]
    (name,) = [one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"]
    text = running.admin("GET", "/metrics").text
    assert re.search(rf"^{name}{{", text, re.MULTILINE)
    adapter = yaml.safe_load((FOLDER / "prometheus/adapter-values.yaml").read_text(encoding="utf-8"))
    (rule,) = adapter["rules"]["custom"]
    assert rule["name"]["as"] == name
    assert re.match(rule["name"]["matches"], name)
    assert rule["seriesQuery"].partition("{")[0] == name
    # The labels by which the adapter finds the pod are put there by the scrape job.
    (job,) = yaml.safe_load((FOLDER / "prometheus/scrape.yaml").read_text(encoding="utf-8"))
    given = {one["target_label"] for one in job["relabel_configs"] if "target_label" in one}
    assert set(rule["resources"]["overrides"]) <= given
    (keep,) = [one for one in job["relabel_configs"] if one.get("action") == "keep"]
    assert re.fullmatch(keep["regex"], ";".join([LABELS["app.kubernetes.io/name"], "admin"]))


# -- what the pod does -------------------------------------------------------------------------------------------------


class Running:
    """The gateway as the pod runs it, on ports of this machine."""

    def __init__(self, process: subprocess.Popen[str], urls: dict[str, str], environ: dict[str, str]) -> None:
        self.process = process
        self.url = urls["gateway"]
        self.admin_url = urls["admin"].replace("0.0.0.0", "127.0.0.1")
        self.environ = environ

    def admin(self, method: str, path: str, token: str | None = TOKEN) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return httpx.request(method, self.admin_url + path, headers=headers, timeout=30)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """A command of the pod's, with the program and its port as they are here."""
        command = [sys.executable, "-m", "gateway", *shlex.split(script)[1:], "--admin", self.admin_url]
        return subprocess.run(
            command, env=self.environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )


@contextmanager
def as_a_pod(origin_url: str, folder: Path) -> Iterator[Running]:
    config = folder / "gateway.toml"
    config.write_text(DOCUMENTS["ConfigMap"]["data"]["gateway.toml"], encoding="utf-8")
    environ = {
        **os.environ,
        **environment(),
        "DURABLE_GATEWAY_SERVER__LISTEN": "127.0.0.1:0",
        "DURABLE_GATEWAY_SERVER__ADMIN": "0.0.0.0:0",
        "DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGIN": origin_url,
        "DURABLE_GATEWAY_ADMIN_TOKEN": TOKEN,
        "PYTHONPATH": str(ROOT),
    }
    assert CONTAINER["args"][:2] == ["serve", "--config"]
    command = [sys.executable, "-m", "gateway", *CONTAINER["args"][:2], str(config)]
    process = subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        urls: dict[str, str] = {}
        while urls.keys() != {"gateway", "admin"}:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            _, name, url = line.split()
            urls[name] = url
        yield Running(process, urls, environ)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    # Nothing is said but who steered it, and that this process may open fewer files than a pod's.
    said = [line for line in err.splitlines() if " gateway.admin.audit: " not in line and "open files" not in line]
    assert (process.returncode, out, said) == (0, "", [])


@pytest.fixture
def running(tmp_path: Path, origin_url: str) -> Iterator[Running]:
    with as_a_pod(origin_url, tmp_path) as found:
        yield found


@pytest.fixture
def origin_url() -> Iterator[str]:
    """An origin in a process of its own."""
    with served(durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin", cwd=ROOT) as urls:
        yield urls["origin"]


def test_probes_need_no_token_and_everything_else_does(running: Running) -> None:
    probes = {CONTAINER[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probes == {"/healthz", "/readyz"}
    for path in probes:
        assert running.admin("GET", path, token=None).status_code == 200
    assert running.admin("GET", "/metrics", token=None).status_code == 401
    assert running.admin("GET", "/metrics").status_code == 200
    (variable,) = [one["valueFrom"]["secretKeyRef"] for one in CONTAINER["env"] if "valueFrom" in one]
    assert variable == {"name": "durable-gateway-admin", "key": "token"}


def test_before_it_stops_a_pod_is_unready_and_has_sent_its_live_readers_off(running: Running) -> None:
    httpx.put(f"{running.url}/s", headers={"Content-Type": "application/json"}).raise_for_status()
    with httpx.stream("GET", f"{running.url}/s?offset=-1&live=sse", timeout=60) as reader:
        lines = reader.iter_lines()
        assert next(lines).startswith("event:")
        (_, _, script) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
        drain = script.partition("exec ")[2].replace("--within 20", "--within 1")
        done = running.run(drain)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "drained 1 live reader\n"
        # To its end, which is an orderly one: it would raise otherwise.
        list(lines)
    assert running.admin("GET", "/readyz", token=None).status_code == 503
    assert running.admin("GET", "/healthz", token=None).status_code == 200
