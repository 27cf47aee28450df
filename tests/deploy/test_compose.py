"""The compose file: by the Compose specification's own schema, and by what it refers to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.file import load_config
from tests.deploy.dockerfile import read

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "config/deploy/compose.yaml"
DOCUMENT: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]


def mounts(service: str) -> dict[str, str]:
    """The folders and files of this project that a service is given: place in the container to path here."""
    found = {}
    for line in SERVICES[service].get("volumes", []):
        source, target, *_ = line.split(":")
        if source.startswith("."):
            found[target] = source
    return found


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)s", text)
    assert match is not None
    return float(match[1])


def test_the_files_are_of_the_compose_specification(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--verbose", "--output-format=json"]
    # The check is one: it sees a misspelt key.
    misspelt = tmp_path / "compose.yaml"
    misspelt.write_text(COMPOSE.read_text(encoding="utf-8").replace("    network_mode:", "    netwerk_mode:"))
    files = [str(COMPOSE), str(COMPOSE.with_name("compose.fleet.yaml"))]
    check += ["--builtin-schema=vendor.compose-spec", *files, str(misspelt)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["successes"] == files, told
    assert "netwerk_mode" in told["errors"][0]["message"]


def test_origin_gateway_prometheus_and_grafana_are_there() -> None:
    assert set(SERVICES) == {"origin", "gateway", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_what_is_built_and_mounted_exists() -> None:
    build = SERVICES["gateway"]["build"]
    assert SERVICES["origin"]["build"] == build
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    for name in SERVICES:
        for target, source in mounts(name).items():
            assert (COMPOSE.parent / source).exists(), f"{name} mounts {source} at {target}"


def test_the_gateways_environment_is_a_configuration() -> None:
    _, (_, final) = read(ROOT / "config/deploy/Dockerfile")
    assert final.last("CMD").words == ["serve"]
    gateway = SERVICES["gateway"]
    config = load_config(environ={name: str(value) for name, value in gateway["environment"].items()}).config
    assert config.routes[0].origin == "http://origin:4438"
    assert SERVICES["origin"]["command"] == ["origin", "--listen", "0.0.0.0:4438"]
    assert "4438" in " ".join(SERVICES["origin"]["healthcheck"]["test"])
    # What the tapes may take leaves room for everything else.
    assert gateway["mem_limit"] == "512m"
    assert config.limits.cache_bytes * 2 <= 512 << 20
    assert seconds(gateway["stop_grace_period"]) > config.server.shutdown_timeout_s


def test_nothing_is_published_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_finds_its_configuration_the_rules_and_the_gateway() -> None:
    prometheus = SERVICES["prometheus"]
    assert "--config.file=/etc/prometheus/prometheus.yml" in prometheus["command"]
    given = mounts("prometheus")
    config = yaml.safe_load((COMPOSE.parent / given["/etc/prometheus/prometheus.yml"]).read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    wanted = [*config["rule_files"], *(file for one in job["file_sd_configs"] for file in one["files"])]
    for path in wanted:
        folder, _, pattern = path.partition("/")
        source = COMPOSE.parent / given[f"/etc/prometheus/{folder}"]
        assert list(source.glob(pattern)), path
    # In the gateway's network, so that its loopback is the gateway's.
    assert prometheus["network_mode"] == "service:gateway"
    targets = [
        target
        for path in (ROOT / "grafana/targets").glob("*.yml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))
        for target in group["targets"]
    ]
    assert targets == ["127.0.0.1:9437"]


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    grafana = SERVICES["grafana"]
    given = mounts("grafana")
    provisioning = COMPOSE.parent / given["/etc/grafana/provisioning"]
    (provider,) = [
        provider
        for path in (provisioning / "dashboards").glob("*.yml")
        for provider in yaml.safe_load(path.read_text(encoding="utf-8"))["providers"]
    ]
    assert list((COMPOSE.parent / given[provider["options"]["path"]]).glob("*.json"))
    (source,) = [
        source
        for path in (provisioning / "datasources").glob("*.yml")
        for source in yaml.safe_load(path.read_text(encoding="utf-8"))["datasources"]
    ]
    assert source["url"] == "${PROMETHEUS_URL}"
    # Prometheus has the gateway's network, and so its name.
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://gateway:9090"


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_images_from_elsewhere_have_a_version(name: str) -> None:
    assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])
