"""The limits of a container, read from folders like those of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config import gateway
from gateway.config.gateway import GatewayConfig
from gateway.container import container_limit_bytes, usable_processors


def test_the_limit_of_a_container_is_the_least_of_its_groups(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a.slice/b.service\n")
    assert container_limit_bytes(tmp_path, own) is None
    (tmp_path / "a.slice" / "b.service").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    assert container_limit_bytes(tmp_path, own) is None
    (tmp_path / "a.slice" / "memory.max").write_text("2000000\n")
    assert container_limit_bytes(tmp_path, own) == 2_000_000
    (tmp_path / "a.slice" / "b.service" / "memory.max").write_text("1000000\n")
    assert container_limit_bytes(tmp_path, own) == 1_000_000
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert container_limit_bytes(tmp_path, own) == 1_000_000


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The file that names the process's groups."""
    file = tmp_path / "own"
    file.write_text("0::/a.slice/b.service\n4:cpu,cpuacct:/c\n")
    for group in ("a.slice/b.service", "cpu/c"):
        (tmp_path / group).mkdir(parents=True)
    return file


@pytest.fixture(autouse=True)
def sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may run on sixteen processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


@pytest.mark.parametrize(
    ("quotas", "processors"),
    [
        ({}, 16),
        ({"cpu.max": "max 100000"}, 16),
        ({"a.slice/cpu.max": "400000 100000"}, 4),
        ({"a.slice/cpu.max": "400000 100000", "a.slice/b.service/cpu.max": "50000 20000"}, 2),
        ({"a.slice/b.service/cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, 16),
        ({"cpu.max": "3 0"}, 16),
        ({"cpu.max": "what"}, 16),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        ({"cpu/c/cpu.cfs_quota_us": "350000", "cpu/c/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_a_quota_of_processor_time_counts_as_its_whole_processors(
    tmp_path: Path, own: Path, quotas: dict[str, str], processors: int
) -> None:
    for file, text in quotas.items():
        (tmp_path / file).write_text(f"{text}\n")
    assert usable_processors(tmp_path, own) == processors


def test_a_group_with_an_odd_name_is_read(tmp_path: Path, own: Path) -> None:
    own.write_bytes(b"0::/\xff\n")
    group = tmp_path / os.fsdecode(b"\xff")
    group.mkdir()
    (group / "cpu.max").write_text("200000 100000\n")
    (group / "memory.max").write_text("3000000\n")
    assert usable_processors(tmp_path, own) == 2
    assert container_limit_bytes(tmp_path, own) == 3_000_000


@pytest.mark.parametrize(
    ("workers", "memory_max_bytes", "cache_bytes", "count"),
    [
        ("auto", 0, 1 << 30, 16),
        ("auto", 0, 1 << 28, 8),
        ("auto", 1 << 30, 1 << 28, 4),
        ("auto", 100 << 20, 1 << 25, 1),
        ("auto", 0, 1 << 20, 1),
        (3, 100 << 20, 1 << 20, 3),
    ],
)
def test_a_gateway_has_a_worker_for_each_processor_that_it_has_memory_for(
    monkeypatch: pytest.MonkeyPatch, workers: int | str, memory_max_bytes: int, cache_bytes: int, count: int
) -> None:
    monkeypatch.setattr(gateway, "container_limit_bytes", lambda: None)
    monkeypatch.setattr(gateway, "usable_processors", lambda: 16)
    config = GatewayConfig.model_validate(
        {
            "server": {"workers": workers},
            "limits": {"memory_max_bytes": memory_max_bytes, "cache_bytes": cache_bytes},
            "routes": [{"origin": "http://127.0.0.1:1"}],
        }
    )
    assert config.worker_count == count


def test_the_memory_of_a_container_bounds_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "container_limit_bytes", lambda: 512 << 20)
    monkeypatch.setattr(gateway, "usable_processors", lambda: 16)
    assert GatewayConfig.model_validate({"routes": [{"origin": "http://127.0.0.1:1"}]}).worker_count == 2
