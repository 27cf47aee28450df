"""The fixtures that the package gives to any project, used here as such a project would."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from gateway.app import RunningGateway
from gateway.origin.app import OriginSettings, RunningOrigin
from gateway.origin.requests import Kind
from gateway.origin.s2.app import RunningS2Origin
from gateway.origin.s2.calls import Call

FUNCTION_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")
TEXT = {"Content-Type": "text/plain"}

PROJECT = """\
import pytest
from aiohttp import ClientSession


@pytest.fixture
def durable_gateway_settings():
    return {"node_name": "edge-under-test"}


@pytest.mark.asyncio
async def test_a_reader(durable_origin, durable_gateway):
    async with ClientSession() as http:
        await http.put(durable_origin.url + "/s", headers={"Content-Type": "text/plain"}, data=b"hello")
        async with http.get(durable_gateway.gateway_url + "/s") as read:
            assert await read.read() == b"hello"
            assert "edge-under-test" in read.headers["Cache-Status"]
    assert durable_origin.origin.counters.requests["catchup"] == 1
"""

SYNCHRONOUS_PROJECT = """\
import sys


def test_nothing_of_the_gateway_is_loaded():
    assert "durable_gateway_pytest" in sys.modules
    assert "aiohttp" not in sys.modules
"""

PROJECT_WITH_A_GATEWAY = """\
import gateway


def test_its_own_package():
    assert gateway.OURS


async def test_a_fixture(durable_origin):
    pass
"""


def run_project(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_project.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


async def test_a_gateway_stands_before_an_origin(
    durable_origin: RunningOrigin, durable_gateway: RunningGateway
) -> None:
    async with ClientSession() as http:
        async with http.put(f"{durable_gateway.gateway_url}/s", headers=TEXT, data=b"hello") as created:
            assert created.status == 201
        for url in (durable_origin.url, durable_gateway.gateway_url):
            async with http.get(f"{url}/s") as read:
                assert await read.read() == b"hello"
        async with http.get(f"{durable_gateway.admin_url}/healthz") as health:
            assert health.status == 200
    assert durable_origin.origin.counters.requests[Kind.CREATE] == 1


async def test_a_gateway_stands_before_an_s2_origin(s2_origin: RunningS2Origin, s2_gateway: RunningGateway) -> None:
    own = {"s2-basin": "basin-of-tests"}
    async with ClientSession() as http:
        basin = {"basin": "basin-of-tests", "config": {"create_stream_on_append": True}}
        async with http.post(f"{s2_gateway.gateway_url}/v1/basins", json=basin) as created:
            assert created.status == 201
        records = f"{s2_gateway.gateway_url}/v1/streams/s/records"
        async with http.post(records, headers=own, json={"records": [{"body": "hello"}]}) as appended:
            assert appended.status == 200
        for _ in range(2):
            async with http.get(f"{records}?seq_num=0&count=1", headers=own) as read:
                assert [one["body"] for one in (await read.json())["records"]] == ["hello"]
    assert s2_origin.origin.counters.requests[Call.READ] == 1


class TestSettings:
    @pytest.fixture
    def durable_origin_settings(self) -> OriginSettings:
        return OriginSettings(max_chunk_bytes=2)

    @pytest.fixture
    def durable_gateway_settings(self) -> dict[str, Any]:
        return {"cache": False}

    async def test_both_may_be_set_otherwise(
        self, durable_origin: RunningOrigin, durable_gateway: RunningGateway
    ) -> None:
        assert durable_gateway.config.routes[0].cache is False
        async with ClientSession() as http:
            await http.put(f"{durable_gateway.gateway_url}/s", headers=TEXT, data=b"hello")
            async with http.get(f"{durable_origin.url}/s") as read:
                assert await read.read() == b"he"


def test_a_project_has_the_fixtures_by_installing(tmp_path: Path) -> None:
    done = run_project(tmp_path, PROJECT, *FUNCTION_SCOPE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_project_without_asyncio_is_left_alone(tmp_path: Path) -> None:
    done = run_project(tmp_path, SYNCHRONOUS_PROJECT, "-p", "no:asyncio", "-p", "no:aiohttp")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_project_with_a_package_of_the_same_name_runs_its_tests(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text("OURS = True\n")
    done = run_project(tmp_path, PROJECT_WITH_A_GATEWAY, "-o", "asyncio_mode=auto", *FUNCTION_SCOPE)
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert f"the package gateway of durable-gateway is hidden by another one: {tmp_path / 'gateway'}" in done.stdout
