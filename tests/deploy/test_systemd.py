"""The unit file, judged by systemd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.file import load_config
from tests.debian import program

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "config/deploy/systemd/durable-gateway.service"
PROGRAM = "/opt/durable-gateway/bin/durable-gateway"
MOST_EXPOSED = 15
"""Tenths of systemd's own measure, of which less is better; 20 is what it calls OK."""


@pytest.fixture(scope="module")
def analyze() -> str:
    return str(program("systemd-analyze", "systemd"))


def unit_here(folder: Path, text: str | None = None) -> Path:
    """The unit with a program that this machine has."""
    path = folder / UNIT.name
    path.write_text((text or UNIT.read_text(encoding="utf-8")).replace(PROGRAM, sys.executable), encoding="utf-8")
    return path


def settings() -> dict[str, list[str]]:
    """The [Service] section; a key may stand there several times."""
    section = UNIT.read_text(encoding="utf-8").partition("[Service]")[2].partition("[Install]")[0]
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def verify(analyze: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60, check=False
    )


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines about this unit; a machine's own units may have faults of their own.  A systemd before 253 does not
    know `notify-reload`."""
    lines = [line for line in done.stderr.splitlines() if "durable-gateway" in line]
    return [line for line in lines if not line.endswith("Failed to parse service type, ignoring: notify-reload")]


def test_systemd_finds_nothing_wrong_with_the_unit(analyze: str, tmp_path: Path) -> None:
    done = verify(analyze, unit_here(tmp_path))
    assert complaints(done) == []
    assert done.returncode == 0, done.stderr
    # The check is one: it sees a misspelt key.
    text = UNIT.read_text(encoding="utf-8").replace("LimitNOFILE=", "LimitNOFYLE=")
    assert any("LimitNOFYLE" in line for line in complaints(verify(analyze, unit_here(tmp_path, text))))


def test_systemd_finds_nothing_wrong_with_the_socket(analyze: str, tmp_path: Path) -> None:
    unit_here(tmp_path)
    path = tmp_path / "durable-gateway.socket"
    shutil.copy(UNIT.with_suffix(".socket"), path)
    done = verify(analyze, path)
    assert complaints(done) == []
    assert done.returncode == 0, done.stderr


def test_the_unit_is_hardened(analyze: str, tmp_path: Path) -> None:
    check = [analyze, "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSED}"]
    done = subprocess.run([*check, str(unit_here(tmp_path))], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = UNIT.read_text(encoding="utf-8").replace("CapabilityBoundingSet=\n", "")
    done = subprocess.run(
        [*check, str(unit_here(tmp_path, text))], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0


def test_the_gateway_may_ask_how_many_files_it_may_open(analyze: str) -> None:
    """getrlimit is prlimit64, which is among those that change limits: without it the gateway would not start."""
    allowed: set[str] = set()
    for line in settings()["SystemCallFilter"]:
        calls = syscalls(analyze, line.removeprefix("~"))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    assert {"prlimit64", "epoll_pwait", "accept4", "sendmsg", "futex", "clone3", "rename"} <= allowed
    assert not {"ptrace", "mount", "setuid", "bpf", "init_module", "reboot"} & allowed


def syscalls(analyze: str, group: str) -> set[str]:
    done = subprocess.run(
        [analyze, "--no-pager", "syscall-filter", group], capture_output=True, text=True, timeout=60, check=True
    )
    found: set[str] = set()
    for line in done.stdout.splitlines()[1:]:
        name = line.strip()
        if name.startswith("@"):
            found |= syscalls(analyze, name)
        elif name and not name.startswith("#"):
            found.add(name)
    return found


def test_the_commands_are_ones_that_the_program_has(tmp_path: Path) -> None:
    found = settings()
    config = tmp_path / "gateway.toml"
    shutil.copy(ROOT / "config/gateway.toml", config)
    (check,) = found["ExecStartPre"]
    asked, *arguments = check.split()
    assert asked == PROGRAM
    arguments = [str(config) if word.endswith(".toml") else word for word in arguments]
    done = subprocess.run([sys.executable, "-m", "gateway", *arguments], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (found["Type"], "ExecReload" in found) == (["notify-reload"], False)
    assert found["ExecStart"] == [f"{PROGRAM} serve --config /etc/durable-gateway/gateway.toml"]


def test_it_is_given_more_time_than_its_drain_takes_and_as_many_files_as_clients() -> None:
    found, config = settings(), load_config(ROOT / "config/gateway.toml").config
    (stop,), (files,) = found["TimeoutStopSec"], found["LimitNOFILE"]
    # Spans and the log's last lines are handed on behind the drain, each within 5 s.
    assert float(stop.removesuffix("s")) >= config.server.shutdown_timeout_s + 10
    limits = config.limits
    assert int(files) > limits.max_connections + limits.upstream_connections + limits.followed_streams
