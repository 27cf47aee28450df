"""The image, as far as it can be had without a container engine: its steps are carried out in clean directories.

Each RUN is run by a shell in a directory of its own, with nothing but what COPY has put there and a PATH on which the
base image's Python stands for the base image.  What the last stage then names is started without any right to more than
to read it: as another user it could not read a Python that lies in root's home, so root gives up its capabilities.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import httpx
import pytest

from tests.deploy import linked
from tests.deploy.dockerfile import Stage, assignments, expanded, read
from tests.effort import IS_LONG

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "config/deploy/Dockerfile"
STEP_S = 600
"""Bound on one step: most of it is downloading."""
WHEELS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")

PIP = ROOT / "requirements/pip.txt"
IMAGE = ROOT / "requirements/image.txt"

ARGUMENTS, (BUILD, FINAL) = read(DOCKERFILE)


@dataclass(frozen=True, slots=True)
class Built:
    """What the first stage leaves: its work directory, and what the last one takes from it."""

    work: Path
    prefix: Path
    environment: dict[str, str]
    """Of the last stage, with the paths of this machine."""


def environment_of(stage: Stage, variables: dict[str, str]) -> dict[str, str]:
    for one in stage.all("ENV"):
        variables |= {name: expanded(value, variables) for name, value in assignments(one.text).items()}
    return variables


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A clean directory; what is in it may have been made read-only since."""
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        path = Path(name)
        yield path
        for inner in (path, *path.rglob("*")):
            if inner.is_dir() and not inner.is_symlink():
                inner.chmod(0o755)


@pytest.fixture(scope="module")
def built(folder: Path) -> Built:
    work, prefix, base = folder / "src", folder / "prefix", folder / "base"
    work.mkdir()
    base.mkdir()
    # The base image's Python: this one, without the packages of the environment that the tests run in.
    python = base / "python"
    program = ["#!/bin/sh", f'exec "{Path(sys.base_prefix, "bin", "python3")}" "$@"', ""]
    if not IS_LONG:
        # pip in its locked version is there from the start: to unpack an old one and replace it takes 8 s.
        tools = shlex.join([sys.executable, linked.__file__, "tools", str(PIP)])
        program.insert(1, f'[ "$*" != "-m venv tools" ] || exec {tools}')
    python.write_text("\n".join(program))
    python.chmod(0o755)
    base_path = f"{base}:/usr/bin:/bin"
    variables = {"PATH": base_path, "HOME": str(folder), "LANG": "C.UTF-8"}
    for one in BUILD.all("ARG"):
        variables |= assignments(one.text)
    variables["PREFIX"] = str(prefix)
    environment_of(BUILD, variables)
    # What was downloaded for one stage need not be downloaded for the next: an image has no use for that, this has.
    del variables["PIP_NO_CACHE_DIR"]
    # No compiler is needed on the architecture of this machine.
    variables["PIP_ONLY_BINARY"] = ":all:"
    for one in BUILD.instructions:
        if one.name == "COPY":
            *sources, target = one.text.split()
            for source in sources:
                copy(ROOT / source, work / target / Path(source).name if target.endswith("/") else work / target)
        elif one.name == "RUN":
            done = subprocess.run(
                ["/bin/sh", "-c", one.text],
                cwd=work, env=variables, capture_output=True, text=True, timeout=STEP_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"RUN {one.text}\n{done.stdout}\n{done.stderr}"
    for path in (prefix, *prefix.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    environment = environment_of(FINAL, {"PATH": base_path})
    environment["PATH"] = environment["PATH"].replace("/opt/durable-gateway", str(prefix))
    return Built(work, prefix, environment)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def run(built: Built, *command: str, **more: str) -> subprocess.Popen[str]:
    """A command in the last stage's environment, with no right to write to what the image holds."""
    program = shutil.which(command[0], path=built.environment["PATH"])
    assert program is not None, f"{command[0]} is not in the image"
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    return subprocess.Popen(
        [*powerless, program, *command[1:]],
        cwd="/",
        env={**built.environment, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


# -- what is written ---------------------------------------------------------------------------------------------------


def test_the_image_starts_from_a_slim_python_that_the_project_supports() -> None:
    assert BUILD.base == FINAL.base == f"python:{ARGUMENTS['PYTHON_VERSION']}-slim"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Programming Language :: Python :: {ARGUMENTS['PYTHON_VERSION']}" in project["classifiers"]


def test_the_image_runs_as_a_user_by_number_that_is_not_root() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", FINAL.last("USER").text)
    assert not FINAL.all("RUN"), "the last stage holds what it copies and nothing else"


def test_the_program_gets_signals_itself() -> None:
    assert FINAL.last("ENTRYPOINT").words == ["durable-gateway"]
    assert FINAL.last("CMD").words == ["serve"]
    assert FINAL.last("STOPSIGNAL").text == "SIGTERM"


def test_what_is_copied_is_what_the_build_is_given() -> None:
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    given = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    copied = {source for one in BUILD.all("COPY") for source in one.text.split()[:-1]}
    assert copied == given
    assert rules.index("*") < min(rules.index(f"!{source}") for source in given)
    (taken,) = FINAL.all("COPY")
    prefix = next(assignments(one.text)["PREFIX"] for one in BUILD.all("ARG"))
    assert taken.text == f"--from={BUILD.name} {prefix} {prefix}", "a virtual environment works in one place only"


def compiled() -> str:
    """The lock of the packages whose wheels are for one platform; the others need a compiler nowhere."""
    found = []
    for name, version, rest in re.findall(
        r"^(\S+)==(\S+)(.*?)(?=^\S+==|\Z)", IMAGE.read_text(), re.MULTILINE | re.DOTALL
    ):
        installed = distribution(name)
        assert installed.version == version, name
        if "Root-Is-Purelib: true" not in (installed.read_text("WHEEL") or ""):
            found.append(f"{name}=={version}{rest}")
    return "".join(found)


@pytest.mark.parametrize("machine", sorted({"x86_64", "aarch64"} - {platform.machine()}))
def test_no_compiler_is_needed_on_the_other_architecture(machine: str, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(IMAGE.read_text() if IS_LONG else compiled())
    platforms = [word for name in WHEELS for word in ("--platform", f"{name}_{machine}")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"),
            *("--ignore-installed", "--only-binary=:all:", "--implementation=cp", *platforms),
            *(f"--python-version={ARGUMENTS['PYTHON_VERSION']}", f"--target={tmp_path / 'target'}"),
            *("--no-deps", "--require-hashes", "-r", str(lock)),
        ],
        capture_output=True, text=True, timeout=STEP_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- what comes of it --------------------------------------------------------------------------------------------------


def test_the_image_holds_what_is_locked_and_no_tools(built: Built) -> None:
    names = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()))"
    status, out, err = finished(run(built, "python", "-c", names))
    assert (status, err) == (0, "")
    locked = re.findall(r"^([a-z0-9-]+==\S+) \\$", IMAGE.read_text(), re.MULTILINE)

    def spelled(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name.partition("==")[0]).lower() + "==" + name.partition("==")[2]

    installed = {spelled(name) for name in out.split()}
    assert {name for name in installed if not name.startswith("durable-gateway==")} == set(map(spelled, locked))
    assert not {"pip", "hatchling", "setuptools"} & {name.partition("==")[0] for name in installed}


def test_every_file_of_the_package_is_in_the_image(built: Built) -> None:
    (package,) = built.prefix.glob("lib/python*/site-packages/gateway")
    wanted = {
        path.relative_to(built.work / "gateway") for path in (built.work / "gateway").rglob("*") if path.is_file()
    }
    assert wanted == {
        path.relative_to(package) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }


def test_the_image_can_trace(built: Built) -> None:
    assert finished(run(built, "python", "-c", "import gateway.ops.opentelemetry_tracer")) == (0, "", "")


def test_without_an_origin_it_says_so_in_one_line(built: Built) -> None:
    status, out, err = finished(run(built, *FINAL.last("ENTRYPOINT").words, *FINAL.last("CMD").words))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "origin" in err


def test_the_image_serves_is_healthy_and_leaves_when_it_is_told(built: Built) -> None:
    addresses = {name: built.environment[name] for name in built.environment if name.startswith("DURABLE_GATEWAY_")}
    assert addresses == {
        "DURABLE_GATEWAY_SERVER__LISTEN": "0.0.0.0:4437",
        "DURABLE_GATEWAY_SERVER__ADMIN": "127.0.0.1:9437",
    }
    exposed = {int(port) for port in FINAL.last("EXPOSE").text.split()}
    assert exposed == {int(address.rpartition(":")[2]) for address in addresses.values()}
    # The ports may be taken on this machine: any others do.
    anywhere = {"DURABLE_GATEWAY_SERVER__LISTEN": "127.0.0.1:0", "DURABLE_GATEWAY_SERVER__ADMIN": "127.0.0.1:0"}
    command = [*FINAL.last("ENTRYPOINT").words, *FINAL.last("CMD").words]
    process = run(built, *command, **anywhere, DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGIN="http://127.0.0.1:9")
    try:
        assert process.stdout is not None
        urls = {}
        for _ in range(2):
            ready, name, url = process.stdout.readline().split()
            assert ready == "READY"
            urls[name] = url
        # Nothing listens at port 9, so every answer is the gateway's own.
        assert httpx.get(f"{urls['gateway']}/s", timeout=30).status_code in (502, 503)
        check = FINAL.last("HEALTHCHECK")
        assert check.flag("timeout") == "3s"
        words = check.words
        admin = urls["admin"].removeprefix("http://")
        assert finished(run(built, *words, DURABLE_GATEWAY_SERVER__ADMIN=admin)) == (0, "", "")
    finally:
        process.send_signal(signal.SIGTERM)
        status, _, err = finished(process)
    assert status == 0
    # Of the origin it says so, and nothing else.
    assert {line.partition("origin http://127.0.0.1:9 ")[2] for line in err.splitlines()} <= {
        "does not answer: connection refused",
        "is unreachable: connection refused",
    }
    status, _, _ = finished(run(built, *words, DURABLE_GATEWAY_SERVER__ADMIN=admin))
    assert status != 0


def test_the_steps_name_no_place_but_their_own() -> None:
    for one in BUILD.all("RUN"):
        absolute = [word for word in shlex.split(one.text) if word.startswith("/")]
        assert not absolute, f"{absolute} would be outside of the directory that the tests run the steps in"
