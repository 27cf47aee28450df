"""The list of what the gateway runs on: complete, valid, and from the lock alone."""

from __future__ import annotations

import re
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import orjson
import pytest

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "runtime.txt"
BOUND_S = 120


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command of `make sbom` writes; it validates the document against CycloneDX's schema."""
    recipe = (ROOT / "Makefile").read_text().partition("$(BIN)/cyclonedx-py ")[2].partition("\n\n")[0]
    file = tmp_path_factory.mktemp("sbom") / "sbom.json"
    command = shlex.split(recipe.replace("\\\n", "").replace("build/sbom.json", str(file)))
    program = Path(sysconfig.get_path("scripts")) / "cyclonedx-py"
    done = subprocess.run([program, *command], cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
    return dict(orjson.loads(file.read_bytes()))


def test_it_lists_every_locked_package_with_its_version(sbom: dict[str, Any]) -> None:
    locked = set(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    assert len(locked) > 10
    assert {(part["name"], part["version"]) for part in sbom["components"]} == locked


def test_each_package_has_the_hashes_of_the_lock(sbom: dict[str, Any]) -> None:
    listed = {
        digest["content"]
        for part in sbom["components"]
        for reference in part["externalReferences"]
        for digest in reference.get("hashes", ())
    }
    assert listed == set(re.findall(r"--hash=sha256:(\w+)", LOCK.read_text()))


def test_it_is_about_the_gateway(sbom: dict[str, Any]) -> None:
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", "durable-gateway")
