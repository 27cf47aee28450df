"""Reading the configuration again: settings that are applied, deferred or refused, and the effect on clients."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.config.file import load_config
from gateway.config.gateway import GatewayConfig
from gateway.config.reader import READ_S
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.ops.admin.conftest import BOUND_S, Bench, Start
from tests.served import durable_gateway
from tests.waiting import eventually


class File:
    """A configuration on disk."""

    def __init__(self, path: Path, origin_url: str) -> None:
        self.path = path
        self.origin_url = origin_url
        self.write()

    def write(self, route: str = "", limits: str = "", more: str = "") -> None:
        self.path.write_text(
            f'[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\nshutdown_timeout_s = 0.5\n[limits]\n{limits}\n'
            f'[[route]]\norigin = "{self.origin_url}"\n{route}\n{more}\n'
        )

    def load(self) -> GatewayConfig:
        return load_config(self.path).config


@pytest.fixture
def file(tmp_path: Path, origin: RunningOrigin) -> File:
    return File(tmp_path / "gateway.toml", origin.url)


@pytest.fixture
async def bench(file: File, start: Start) -> Bench:
    return await start(config=file.load(), load=file.load)


async def test_changed_settings_are_applied_and_named(bench: Bench, file: File) -> None:
    assert await bench.post("/api/reload", {}) == {"changed": [], "needs_restart": [], "has_file": True}
    file.write(route="trust_s = 3\n[route.cors]\nmax_age_s = 5", limits='cache_bytes = "1MiB"\nmax_connections = 9')
    told = await bench.post("/api/reload", {})
    assert set(told["changed"]) == {
        "limits.cache_bytes",
        "limits.max_connections",
        "route.default.trust_s",
        "route.default.cors",
    }
    assert told["needs_restart"] == []
    shown = await bench.get("/api/config")
    assert shown["limits"]["cache_bytes"] == 1 << 20
    assert shown["routes"][0]["trust_s"] == 3
    assert (await bench.get("/api/overview"))["cache"]["limit_bytes"] == 1 << 20
    assert await bench.post("/api/reload", {}) == {"changed": [], "needs_restart": [], "has_file": True}


async def test_a_reload_that_changes_nothing_renews_the_connections_to_origins(bench: Bench) -> None:
    """The origin's name may lead elsewhere by now."""
    connections = bench.gateway.engine.client.connections
    await bench.read("/s")
    await eventually(lambda: connections()["shared"].idle > 0)
    assert await bench.post("/api/reload", {}) == {"changed": [], "needs_restart": [], "has_file": True}
    assert connections()["shared"].idle == 0


async def test_settings_that_need_a_restart_are_named_each_time_and_not_applied(bench: Bench, file: File) -> None:
    file.write(limits="followed_streams = 5\nmax_connections = 7")
    for changed in (["limits.max_connections"], []):
        assert await bench.post("/api/reload", {}) == {
            "changed": changed,
            "needs_restart": ["limits.followed_streams"],
            "has_file": True,
        }
    shown = await bench.get("/api/config")
    assert shown["limits"]["followed_streams"] == 10_000
    assert shown["limits"]["max_connections"] == 7


@pytest.mark.parametrize(
    ("more", "line"),
    [("bogus = 1", 10), ("trust_s = -1", 10), ("this is no TOML", 10)],
)
async def test_a_bad_file_is_refused_with_its_line_and_the_old_one_stays(
    bench: Bench, file: File, more: str, line: int
) -> None:
    before = await bench.get("/api/config")
    file.write(limits="max_connections = 7", more=more)
    told = await bench.ask("POST", "/api/reload", {})
    assert told.status == 422
    assert told.body["error"].startswith(f"{file.path}:{line}: ")
    file.path.unlink()
    told = await bench.ask("POST", "/api/reload", {})
    assert (told.status, told.body) == (422, {"error": f"{file.path}: cannot be read: No such file or directory"})
    assert await bench.get("/api/config") == before


async def test_a_reload_without_a_file_is_refused(start: Start, origin: RunningOrigin) -> None:
    bench = await start(origin.url)
    told = await bench.ask("POST", "/api/reload", {})
    assert told.status == 409
    assert list(told.body) == ["error"]


async def test_no_connection_is_dropped_and_nothing_held_is_lost(bench: Bench, file: File) -> None:
    await bench.put("/kept", is_closed=True)
    await bench.warm("/kept?offset=-1")
    await bench.put("/live", b"one")
    reader = await bench.follow("/live")
    connections = bench.gateway.connections
    file.write(route="long_poll_timeout_s = 7")
    assert (await bench.post("/api/reload", {}))["changed"] == ["route.default.long_poll_timeout_s"]
    assert bench.gateway.connections == connections
    assert "; hit" in (await bench.read("/kept?offset=-1"))[2]
    async with bench.session.post(
        bench.gateway.gateway_url + "/live", data=b"two", headers={"Content-Type": "text/plain"}
    ) as answer:
        assert answer.status == 204
    seen = b""
    while b"data:two" not in seen:
        seen += await reader.content.readany()
    reader.close()


async def test_routes_come_and_go_for_the_next_request_on_any_connection(bench: Bench, file: File) -> None:
    other = await start_origin(OriginSettings(), clock=bench.clock)
    try:
        await bench.put("/new/here", b"first", is_closed=True)
        await bench.warm("/new/here?offset=-1")
        file.write(more=f'[[route]]\nname = "new"\nprefix = "/new"\norigin = "{other.url}"')
        assert (await bench.post("/api/reload", {}))["changed"] == ["route.new"]
        # The remembered answer was the other route's.
        assert (await bench.read("/new/here?offset=-1"))[0] == 404
        await bench.put("/new/here", b"other", is_closed=True)
        assert (await bench.read("/new/here?offset=-1"))[1] == b"other"
        file.write()
        assert (await bench.post("/api/reload", {}))["changed"] == ["route.new"]
        assert (await bench.read("/new/here?offset=-1"))[1] == b"first"
    finally:
        await other.stop(grace_s=0)


async def test_an_answer_that_was_under_way_is_not_remembered_for_the_routes_after_it(
    bench: Bench, file: File, origin: RunningOrigin
) -> None:
    other = await start_origin(OriginSettings(), clock=bench.clock)
    try:
        await bench.put("/new/here", b"first", is_closed=True)
        await bench.warm("/new/here?offset=-1")
        await bench.post("/api/purge", {"stream": "/new/here", "soft": True})
        look = origin.origin.faults.hold(kind="catchup", times=None)
        under_way = asyncio.create_task(bench.read("/new/here?offset=-1"))
        await look.waiting(1)
        file.write(more=f'[[route]]\nname = "new"\nprefix = "/new"\norigin = "{other.url}"')
        assert (await bench.post("/api/reload", {}))["changed"] == ["route.new"]
        look.release()
        status, body, how = await under_way
        assert (status, body) == (200, b"first")
        assert "; hit" in how
        assert (await bench.read("/new/here?offset=-1"))[0] == 404
    finally:
        await other.stop(grace_s=0)


@pytest.mark.parametrize(
    "route", ['name = "other"', 'name = "other"\nprefix = "/elsewhere"'], ids=["renamed", "removed"]
)
async def test_reads_in_progress_are_answered_when_a_reload_renames_or_removes_their_route(
    bench: Bench, file: File, origin: RunningOrigin, route: str
) -> None:
    for path in ("/cold", "/held"):
        await bench.put(path)
    await bench.read("/held?offset=-1")
    answers = origin.origin.faults.hold(kind="catchup", times=2)
    reads = [asyncio.create_task(bench.read(f"{path}?offset=-1")) for path in ("/cold", "/held")]
    await answers.waiting(2)
    file.write(route=route)
    assert await bench.post("/api/reload", {})
    answers.release()
    assert [answer[:2] for answer in await asyncio.gather(*reads)] == [(200, b"hello")] * 2
    status, _, _ = await bench.read("/cold?offset=-1")
    assert status == (404 if "prefix" in route else 200)


async def test_bytes_fetched_under_one_credentials_setting_are_not_read_under_another(
    bench: Bench, file: File, origin: RunningOrigin
) -> None:
    file.write(route='credentials = "shared"')
    await bench.post("/api/reload", {})
    await bench.put("/private", b"secret", is_closed=True)
    await bench.warm("/private?offset=-1", Authorization="Bearer mine")
    file.write(route='credentials = "partition"')
    assert (await bench.post("/api/reload", {}))["changed"] == ["route.default.credentials"]
    assert (await bench.get("/api/streams"))["streams"] == []
    origin.origin.faults.status(401, times=None, kind="catchup")
    origin.origin.faults.status(401, times=None, kind="head")
    assert (await bench.read("/private?offset=-1"))[0] == 401
    assert (await bench.read("/private?offset=-1", Authorization="Bearer mine"))[0] == 401
    # Nor when the setting comes back: these readers were not authorised for what the first ones read.
    file.write(route='credentials = "shared"')
    await bench.post("/api/reload", {})
    assert (await bench.read("/private?offset=-1"))[0] == 401


async def test_a_header_that_becomes_a_credential_gets_no_remembered_answer(
    bench: Bench, file: File, origin: RunningOrigin
) -> None:
    file.write(route='credential_headers = ["authorization"]')
    await bench.post("/api/reload", {})
    await bench.put("/c", is_closed=True)
    await bench.warm("/c?offset=-1", Cookie="session=one")
    file.write()
    assert (await bench.post("/api/reload", {}))["changed"] == ["route.default.credential_headers"]
    origin.origin.faults.status(403, times=None, kind="catchup")
    origin.origin.faults.status(403, times=None, kind="head")
    assert (await bench.read("/c?offset=-1", Cookie="session=two"))[0] == 403


async def test_new_limits_apply_to_the_next_request_and_the_next_connection(bench: Bench, file: File) -> None:
    await bench.put("/within", b"x" * 2_000)
    file.write(limits='max_request_bytes = "1KiB"\nmax_connections = 1')
    await bench.post("/api/reload", {})
    url = bench.gateway.gateway_url
    async with bench.session.put(url + "/beyond", data=b"x" * 2_000) as answer:
        assert answer.status == 413
    await bench.put("/small")
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        with suppress(ConnectionError):
            writer.write(b"GET /within HTTP/1.1\r\nHost: gateway\r\n\r\n")
            assert await reader.read() == b""
    finally:
        writer.transport.abort()


async def test_a_smaller_cache_evicts_at_once(bench: Bench, file: File) -> None:
    for number in range(8):
        await bench.put(f"/big/{number}", b"x" * 100_000)
        await bench.read(f"/big/{number}?offset=-1")
    assert bench.gateway.engine.store.cost > 800_000
    file.write(limits='cache_bytes = "256KiB"')
    await bench.post("/api/reload", {})
    overview = await bench.get("/api/overview")
    assert overview["cache"]["bytes"] <= 256 << 10
    assert overview["cache"]["evictions"] >= 5


async def test_a_larger_cache_stores_what_did_not_fit_before(start: Start, file: File) -> None:
    file.write(limits='cache_bytes = "64KiB"')
    bench = await start(config=file.load(), load=file.load)
    await bench.put("/big", b"x" * 100_000, is_closed=True)
    for _ in range(2):
        await bench.read("/big?offset=-1")
    assert "; hit" not in (await bench.read("/big?offset=-1", **{"Accept-Encoding": "gzip"}))[2]
    file.write(limits='cache_bytes = "16MiB"')
    await bench.post("/api/reload", {})
    await bench.warm("/big?offset=-1", **{"Accept-Encoding": "gzip"})
    # Compressed copies use the new budget as well: otherwise no answer would be remembered.
    assert bench.gateway.engine.coder.cost > 0


async def test_reloads_are_counted_by_result(start: Start, file: File) -> None:
    bench = await start(config=file.load(), load=file.load)

    def counted(result: str) -> float | None:
        return bench.gateway.metrics.registry.get_sample_value("durable_gateway_reloads_total", {"result": result})

    assert (counted("taken"), counted("refused")) == (0, 0)
    await bench.post("/api/reload", {})
    assert (counted("taken"), counted("refused")) == (1, 0)
    file.write(limits="no_such_key = 1")
    assert (await bench.ask("POST", "/api/reload", {})).status == 422
    assert (counted("taken"), counted("refused")) == (1, 1)


async def test_concurrent_reloads_run_one_after_the_other(bench: Bench, file: File) -> None:
    file.write(limits="max_connections = 5")
    told = await asyncio.gather(*(bench.post("/api/reload", {}) for _ in range(3)))
    assert sorted(len(one["changed"]) for one in told) == [0, 0, 1]


async def test_a_blocked_file_times_out_and_blocks_one_thread_only(bench: Bench, file: File) -> None:
    file.path.unlink()
    os.mkfifo(file.path)
    asked = [asyncio.create_task(bench.ask("POST", "/api/reload", {})) for _ in range(2)]
    # Opening returns once the other end is being read.
    writer = await asyncio.to_thread(os.open, file.path, os.O_WRONLY)
    try:
        assert "configuration" in {thread.name for thread in threading.enumerate()}
        bench.clock.advance(READ_S)
        async with asyncio.timeout(BOUND_S / 2):
            told = await asyncio.gather(*asked)
        assert [one.status for one in told] == [422, 422]
        assert sorted(one.body["error"] for one in told) == [
            "an earlier read of the configuration has not ended yet",
            "the configuration could not be read within 10 s",
        ]
        assert [thread.name for thread in threading.enumerate()].count("configuration") == 1
        (reading,) = (thread for thread in threading.enumerate() if thread.name == "configuration")
    finally:
        os.close(writer)
    await asyncio.to_thread(reading.join)
    file.path.unlink()
    file.write(limits="max_connections = 5")
    assert (await bench.post("/api/reload", {}))["changed"] == ["limits.max_connections"]


class Process:
    """`serve` as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def said(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.readline()).decode().rstrip("\n")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.usefixtures("environment")
async def test_sighup_reads_the_file_again_and_logs_the_result_in_one_line(file: File) -> None:
    process = await asyncio.create_subprocess_exec(
        *durable_gateway("serve", "--config", str(file.path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Process(process)
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert (await process.stdout.readline()).startswith(b"READY ")
        file.write(route="trust_s = 3", limits="followed_streams = 5")
        process.send_signal(signal.SIGHUP)
        assert await running.said() == (
            "durable-gateway: reloaded: route.default.trust_s; needs a restart: limits.followed_streams"
        )
        file.write(more="bogus = 1")
        process.send_signal(signal.SIGHUP)
        assert (
            await running.said()
            == f"durable-gateway: not reloaded, all stays as it was: {file.path}:10: route.default.bogus: unknown key"
        )
        file.write(limits=f"max_connections = {'9' * 5_000}")
        process.send_signal(signal.SIGHUP)
        assert (await running.said()).startswith("durable-gateway: not reloaded, all stays as it was: ")
        file.write(route="trust_s = 4")
        process.send_signal(signal.SIGHUP)
        assert (await running.said()).startswith("durable-gateway: reloaded: route.default.trust_s")
        # A reload that hangs does not delay the shutdown.
        file.path.unlink()
        os.mkfifo(file.path)
        process.send_signal(signal.SIGHUP)
        writer = await asyncio.to_thread(os.open, file.path, os.O_WRONLY)
        try:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(BOUND_S / 2):
                assert await process.wait() == 0
        finally:
            os.close(writer)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_rate_limits_change_in_place(bench: Bench, file: File) -> None:
    await bench.put("/s", is_closed=True)
    await bench.warm("/s?offset=-1")
    limit = '[[rate_limit]]\nname = "all"\nper = "all"\nrequests_per_s = 1\nburst = 2'
    file.write(more=limit)
    assert (await bench.post("/api/reload", {}))["changed"] == ["rate_limit.all"]
    assert [(await bench.read("/s?offset=-1"))[0] for _ in range(3)] == [200, 200, 429]
    # A limit that has not changed keeps its count.
    file.write(more=limit, limits="max_connections = 9")
    assert (await bench.post("/api/reload", {}))["changed"] == ["limits.max_connections"]
    assert (await bench.read("/s?offset=-1"))[0] == 429
    file.write(more=limit.replace("burst = 2", "burst = 3"), limits="max_connections = 9")
    assert (await bench.post("/api/reload", {}))["changed"] == ["rate_limit.all"]
    assert [(await bench.read("/s?offset=-1"))[0] for _ in range(4)] == [200, 200, 200, 429]
    file.write(limits="max_connections = 9")
    assert (await bench.post("/api/reload", {}))["changed"] == ["rate_limit.all"]
    await bench.warm("/s?offset=-1")


async def test_a_client_that_stays_keeps_nothing_of_limits_that_reloads_have_replaced(bench: Bench, file: File) -> None:
    await bench.put("/s", is_closed=True)
    kept = []
    for rate in range(1, 5):
        file.write(more=f'[[rate_limit]]\nname = "each"\nrequests_per_s = {rate}')
        await bench.post("/api/reload", {})
        assert (await bench.read("/s?offset=-1"))[0] == 200
        account = bench.gateway.clients.accounts.find("127.0.0.1")
        assert account is not None
        kept.append(len(account.full_at))
        bench.clock.advance(60)
    assert kept == [kept[0]] * 4
