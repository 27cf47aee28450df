"""The supervisor and its workers, in real processes: deaths, reloads, drains and upgrades."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.workers.place import listens
from tests.certificates import Authority
from tests.commands import warm
from tests.scenarios.wire import Wire
from tests.waiting import eventually
from tests.workers.process import ROOT, GatewayProcess, children, runs, samples

BOUND_S = 30.0
LOOK_S = 0.02
"""To look at processes takes the processor from those that are waited for."""
CREATE = {"Content-Type": "text/plain"}


@pytest.fixture
async def origin() -> AsyncIterator[RunningOrigin]:
    running = await start_origin(OriginSettings())
    wire = await Wire.open(running.url)
    await wire.ask("/s", CREATE, "PUT", b"hello")
    assert (await wire.answer()).status == 201
    await wire.closed()
    yield running
    await running.stop()


Start = Callable[..., Awaitable[GatewayProcess]]


@pytest.fixture
async def start(origin: RunningOrigin) -> AsyncIterator[Start]:
    """Start a gateway with two workers in front of the origin, with these settings."""
    running: list[GatewayProcess] = []

    async def begin(**settings: object) -> GatewayProcess:
        running.append(await GatewayProcess.start(config(origin.url, **settings), 2))
        return running[-1]

    yield begin
    for one in running:
        await one.kill_all()


def config(url: str, **settings: object) -> GatewayConfig:
    defaults = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "live_linger_s": 0}
    return GatewayConfig.for_origin(url, **{**defaults, **settings})


async def read(url: str, target: str = "/s?offset=-1") -> bytes:
    """The answer to a read on a connection of its own."""
    wire = await Wire.open(url)
    try:
        await wire.ask(target)
        answer = await wire.answer()
        assert answer.status == 200, answer
        return answer.body
    finally:
        await wire.closed()


async def said(gateway: GatewayProcess, text: str) -> str:
    await eventually(lambda: text in gateway.said(), within_s=BOUND_S, look_s=LOOK_S, state=gateway.said)
    return next(line for line in gateway.said().splitlines() if text in line)


async def ended(pid: int) -> None:
    await eventually(lambda: not runs(pid), within_s=BOUND_S, look_s=LOOK_S)


async def replaced(gateway: GatewayProcess, *dead: int) -> None:
    """Wait until other workers serve in the place of these."""
    await eventually(lambda: gateway.said().count("another one starts") >= len(dead), within_s=BOUND_S, look_s=LOOK_S)
    await eventually(
        lambda: len(set(gateway.worker_pids()) - set(dead)) == 2, within_s=BOUND_S, look_s=LOOK_S, state=gateway.said
    )


# -- deaths ------------------------------------------------------------------------------------------------------------


async def test_what_waits_in_the_queue_of_a_killed_worker_is_answered_by_the_next(start: Start) -> None:
    gateway = await start()
    workers = gateway.worker_pids()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    wires = [await Wire.open(gateway.url) for _ in range(8)]
    for wire in wires:
        await wire.ask("/s?offset=-1")
    for pid in workers:
        gateway.kill(pid)
    assert [(await wire.answer()).body for wire in wires] == [b"hello"] * 8
    assert (await said(gateway, "SIGKILL")).endswith("memory was full; another one starts now")
    for wire in wires:
        await wire.closed()
    await gateway.stop()


async def test_workers_end_with_their_supervisor_and_leave_the_port(start: Start, origin: RunningOrigin) -> None:
    gateway = await start()
    # A write needs no other worker, so the other worker ends at once.
    wire = await Wire.open(gateway.url)
    await wire.ask("/s", CREATE, "POST", b"")
    await wire.answer()
    workers, folder = gateway.worker_pids(), private_folder(gateway)
    assert folder.exists()
    os.kill(gateway.pid, signal.SIGKILL)
    # A worker drains, but accepts nobody more.
    await eventually(lambda: not listening(gateway.url), within_s=BOUND_S, look_s=LOOK_S)
    await eventually(lambda: sum(map(runs, workers)) == 1, within_s=BOUND_S, look_s=LOOK_S)
    # A next version still reaches the worker that has a client.
    assert sum(map(listens, map(str, folder.glob("peer*")))) == 1
    port = urlsplit(gateway.url).port
    again = await GatewayProcess.start(config(origin.url, listen=f"127.0.0.1:{port}"), 2)
    assert await read(again.url) == b"hello"
    await wire.closed()
    for pid in workers:
        await ended(pid)
    assert not folder.exists()
    await again.stop()


async def test_a_slot_whose_worker_cannot_start_takes_no_connection(start: Start, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o600)
    gateway = await start(origin_credentials={"file": str(key)})
    key.unlink()
    gateway.kill(gateway.worker_pids()[0])
    await eventually(
        lambda: gateway.said().count("cannot start") >= 2, within_s=BOUND_S, look_s=LOOK_S, state=gateway.said
    )
    assert "key: cannot be read: No such file" in gateway.said()
    assert [await read(gateway.url) for _ in range(16)] == [b"hello"] * 16
    key.write_text("secret\n")
    key.chmod(0o600)
    await eventually(lambda: is_ready(gateway), within_s=BOUND_S, look_s=LOOK_S, state=gateway.said)
    await gateway.stop()


async def is_ready(gateway: GatewayProcess) -> bool:
    return (await gateway.admin("/readyz")).status == 200


# -- the start ---------------------------------------------------------------------------------------------------------


def serve(*arguments: str, **environ: str) -> tuple[int, str, str]:
    command = warm.command(["serve", "--workers", "2", *arguments], {**warm.clean_environ(), **environ})
    environ = {**warm.clean_environ(), **environ}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_port_in_use_fails_the_start_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, out, err = serve("--origin", "http://127.0.0.1:1", "--listen", address, "--admin", "127.0.0.1:0")
    assert (status, out) == (1, "")
    assert err == f"durable-gateway: cannot listen on {address}: Address already in use\n"


def test_a_worker_that_cannot_start_fails_the_start_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n'
        '[[route]]\norigin = "http://127.0.0.1:1"\norigin_credentials = { environment = "NO_SUCH_KEY" }\n'
    )
    status, out, err = serve("--config", str(file))
    message = "durable-gateway: route.default.origin_credentials.environment: NO_SUCH_KEY: is not set\n"
    assert (status, out, err) == (2, "", message)


# -- reload ------------------------------------------------------------------------------------------------------------


async def test_a_reload_reaches_all_workers_and_those_that_start_later(start: Start, origin: RunningOrigin) -> None:
    gateway = await start()
    gateway.write(config(origin.url, sse_lifetime_s=7))
    os.kill(gateway.pid, signal.SIGHUP)
    assert await said(gateway, "reloaded") == "durable-gateway: reloaded: route.default.sse_lifetime_s"
    gateway.write(config(origin.url, sse_lifetime_s=7, long_poll_timeout_s=3))
    os.kill(gateway.pid, signal.SIGHUP)
    assert await said(gateway, "poll") == "durable-gateway: reloaded: route.default.long_poll_timeout_s"
    # A file that has become useless is no obstacle to a new worker, which begins as the others have gone on.
    gateway.write("nonsense")
    workers = gateway.worker_pids()
    for pid in workers:
        gateway.kill(pid)
    await replaced(gateway, *workers)
    assert await read(gateway.url) == b"hello"
    os.kill(gateway.pid, signal.SIGHUP)
    assert "is not TOML" in await said(gateway, "not reloaded")
    assert gateway.said().count("reloaded") == 3, "each reload is one line"
    gateway.write(config(origin.url))
    os.kill(gateway.pid, signal.SIGHUP)
    names = "route.default.long_poll_timeout_s, route.default.sse_lifetime_s"
    await said(gateway, f"reloaded: {names}")
    # The admin port of any worker reloads all of them.
    gateway.write(config(origin.url, sse_lifetime_s=8, shutdown_timeout_s=3, fast_path=False))
    answer = await gateway.admin("/api/reload", {})
    assert json.loads(answer.body) == {
        "changed": ["server.shutdown_timeout_s", "route.default.sse_lifetime_s"],
        "needs_restart": ["server.fast_path"],
        "has_file": True,
    }
    gateway.write("nonsense")
    answer = await gateway.admin("/api/reload", {})
    assert (answer.status, b"is not TOML" in answer.body) == (422, True)
    assert ("durable_gateway_reloads_total", 'result="refused"', "2.0") in samples(await gateway.exposition())
    await gateway.stop()


async def test_a_file_that_changes_while_a_worker_is_slow_is_not_read_by_that_worker_alone(
    start: Start, origin: RunningOrigin
) -> None:
    gateway = await start()
    kept = await Wire.open(gateway.url)

    async def is_taken() -> bool:
        """Whether the quick worker has taken the configuration.  A write needs no other worker."""
        await kept.ask("/s", CREATE, "POST", b"!")
        return (await kept.answer()).status == 404

    assert not await is_taken()
    quick = await gateway.workers_of(port := int(kept.writer.get_extra_info("sockname")[1]))
    (slow,) = {*gateway.worker_pids()} - {quick[port]}
    os.kill(slow, signal.SIGSTOP)
    gateway.write(config(origin.url, prefix="/elsewhere"))
    os.kill(gateway.pid, signal.SIGHUP)

    await eventually(is_taken, within_s=BOUND_S, look_s=LOOK_S, state=gateway.said)
    gateway.write(config(origin.url, prefix="/elsewhere", sse_lifetime_s=7))
    os.kill(slow, signal.SIGCONT)
    assert await said(gateway, "reloaded") == "durable-gateway: reloaded: route.default.prefix"
    os.kill(gateway.pid, signal.SIGHUP)
    assert await said(gateway, "sse") == "durable-gateway: reloaded: route.default.sse_lifetime_s"
    await kept.closed()
    await gateway.stop()


# -- TLS ---------------------------------------------------------------------------------------------------------------


async def test_a_tls_session_is_resumed_at_each_worker_and_after_a_reload(
    start: Start, origin: RunningOrigin, tmp_path: Path
) -> None:
    """The worker that starts again cannot read the renewed certificate, and has that of the other worker."""
    authority = Authority(tmp_path)
    pair = authority.issue("edge.test")
    listener = {"address": "127.0.0.1:0", "tls": {"certificates": [pair.as_config()]}}
    gateway = await start(listeners=[listener])
    where = ("127.0.0.1", urlsplit(gateway.url).port)
    context = authority.client()
    context.minimum_version = ssl.TLSVersion.TLSv1_3

    def resumed(count: int, session: ssl.SSLSession | None) -> tuple[list[bool], ssl.SSLSession | None]:
        found = []
        for _ in range(count):
            with (
                socket.create_connection(where, BOUND_S) as sock,
                context.wrap_socket(sock, server_hostname="edge.test", session=session) as secure,
            ):
                secure.sendall(b"GET /s?offset=-1 HTTP/1.1\r\nHost: edge.test\r\n\r\n")
                assert secure.recv(1 << 16)
                found.append(bool(secure.session_reused))
                session = session or secure.session
        return found, session

    def presented() -> set[str]:
        found = set()
        for _ in range(12):
            with (
                socket.create_connection(where, BOUND_S) as sock,
                context.wrap_socket(sock, server_hostname="edge.test") as secure,
            ):
                found.add(ssl.DER_cert_to_PEM_cert(secure.getpeercert(True) or b""))
        return found

    # Twelve connections reach both of two workers, but for one run in two thousand, which proves less.
    found, session = await asyncio.to_thread(resumed, 12, None)
    assert found == [False] + [True] * 11
    authority.issue("edge.test")
    gateway.write(config(origin.url, listeners=[listener], sse_lifetime_s=7))
    os.kill(gateway.pid, signal.SIGHUP)
    await said(gateway, "reloaded")
    workers = gateway.worker_pids()
    pair.key.write_text("broken")
    gateway.kill(workers[0])
    await replaced(gateway, workers[0])
    found, _ = await asyncio.to_thread(resumed, 12, session)
    assert found == [True] * 12
    assert await asyncio.to_thread(presented) == {pair.certificate.read_text()}
    await gateway.stop()


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_each_worker_accepts_until_all_have_drained(start: Start) -> None:
    gateway = await start(shutdown_timeout_s=20)
    wire = await Wire.open(gateway.url)
    await wire.ask("/s?offset=now&live=sse")
    await wire.head()
    os.kill(gateway.pid, signal.SIGTERM)
    await eventually(lambda: is_draining(gateway), within_s=BOUND_S, look_s=LOOK_S)
    # The reader ends in the first part of the drain.  Until then, both workers listen and answer new connections.
    assert [await read(gateway.url) for _ in range(8)] == [b"hello"] * 8
    assert len(listening(gateway.url)) == len(gateway.worker_pids()) == 2
    await wire.body()
    await wire.closed()
    assert await gateway.ended() == 0


def listening(url: str) -> set[str]:
    """The sockets that listen at the port of a URL, as links in /proc name them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{urlsplit(url).port:04X}"
    return {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == "0A"}


def is_draining(gateway: GatewayProcess) -> bool:
    """Whether the supervisor has closed its listening sockets, as it does when a drain begins."""
    return not listening(gateway.url) & open_files(gateway.pid)


def open_files(pid: int) -> set[str]:
    return {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}


async def test_a_second_signal_ends_all_at_once(start: Start) -> None:
    gateway = await start(shutdown_timeout_s=60)
    wire = await Wire.open(gateway.url)
    await wire.ask("/s?offset=now&live=sse")
    await wire.head()
    workers = gateway.worker_pids()
    os.kill(gateway.pid, signal.SIGTERM)
    await eventually(lambda: is_draining(gateway), within_s=BOUND_S, look_s=LOOK_S)
    os.kill(gateway.pid, signal.SIGTERM)
    assert await gateway.ended() == 1
    assert gateway.said_at_end == "durable-gateway: stopped at once, without draining\n"
    for pid in workers:
        await ended(pid)
    await wire.closed()


# -- upgrades ----------------------------------------------------------------------------------------------------------


async def test_an_upgrade_refuses_no_connection_and_fails_no_request(start: Start) -> None:
    gateway = await start(shutdown_timeout_s=2)
    is_over = asyncio.Event()
    answered = 0

    async def is_answered_to_the_end() -> bool:
        nonlocal answered
        assert await read(gateway.url) == b"hello"
        answered += 1
        return is_over.is_set()

    kept = await Wire.open(gateway.url)
    await kept.ask("/s?offset=-1")
    await kept.answer()
    asking = [
        asyncio.create_task(eventually(is_answered_to_the_end, within_s=4 * BOUND_S, look_s=0.005)) for _ in range(2)
    ]
    old, folder = gateway.pid, private_folder(gateway)
    wire = await Wire.open(gateway.admin_url)
    headers = {"Host": "localhost", "Content-Type": "application/json"}
    await wire.ask("/api/log-level", headers, "PUT", b'{"level": "debug"}')
    assert (await wire.answer()).status == 200
    await wire.closed()
    ids = await stream_ids(gateway)
    await gateway.upgrade()
    assert json.loads((await gateway.admin("/api/log-level")).body) == {"level": "debug"}
    assert await kept.reader.read() == b"", "a connection to the old workers ends in order"
    await kept.closed()
    before = answered
    await eventually(lambda: answered > before + 10, within_s=BOUND_S, look_s=LOOK_S)
    assert len(ids) == 1
    assert await stream_ids(gateway) == ids, "a purge by id finds the stream at both versions"
    is_over.set()
    await asyncio.gather(*asking)
    assert gateway.pid != old
    assert not folder.exists()
    assert (await gateway.admin("/readyz")).status == 200
    os.kill(gateway.pid, signal.SIGTERM)
    await ended(gateway.pid)
    with pytest.raises(ConnectionRefusedError):
        await read(gateway.url)


async def test_a_version_that_does_not_start_leaves_the_old_one_as_it_was(start: Start, origin: RunningOrigin) -> None:
    gateway = await start()
    workers = gateway.worker_pids()
    gateway.write("nonsense")
    wire = await Wire.open(gateway.admin_url)
    fields = {"Host": "localhost", "Content-Type": "application/json", "Connection": "close"}
    await wire.ask("/api/upgrade", fields, "POST", b"{}")
    # The next version loads the program before it finds its configuration wrong, which takes a busy machine a while.
    answer = (await wire.reader.read()).decode()
    await wire.closed()
    assert answer.startswith("HTTP/1.1 409 ")
    assert "not upgraded, all stays as it was: the next version does not start: " in answer
    assert "is not TOML" in answer
    assert gateway.worker_pids() == workers
    assert [await read(gateway.url) for _ in range(8)] == [b"hello"] * 8
    await gateway.stop()


async def next_version(gateway: GatewayProcess) -> tuple[int, list[int]]:
    """Begin an upgrade.  The next supervisor, stopped as soon as it has forked its workers, and these workers."""
    old = {*gateway.worker_pids()}
    os.kill(gateway.pid, signal.SIGUSR2)
    found: list[int] = []

    def is_forking() -> bool:
        found[:] = set(gateway.worker_pids()) - old
        return bool(found and children(found[0]))

    await eventually(is_forking, within_s=4 * BOUND_S, look_s=0.001, state=gateway.said)
    (supervisor,) = found
    os.kill(supervisor, signal.SIGSTOP)
    return supervisor, children(supervisor)


async def test_a_next_version_that_ends_before_it_serves_leaves_the_old_one_its_sockets(
    start: Start, origin: RunningOrigin, tmp_path: Path
) -> None:
    path = tmp_path / "gateway.sock"
    listeners = [{"address": "127.0.0.1:0"}, {"address": f"unix:{path}"}]
    gateway = await start(listeners=listeners, shutdown_timeout_s=2)
    for count, number in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
        supervisor, workers = await next_version(gateway)
        os.kill(supervisor, number)
        os.kill(supervisor, signal.SIGCONT)
        for pid in (supervisor, *workers):
            await ended(pid)
        await has_given_up(gateway, count)
        await are_answered(gateway.url, 20)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    await gateway.stop()


async def test_the_next_version_serves_if_the_old_supervisor_dies_while_it_starts(start: Start) -> None:
    gateway = await start(shutdown_timeout_s=2)
    old = gateway.worker_pids()
    supervisor, _ = await next_version(gateway)
    os.kill(gateway.pid, signal.SIGKILL)
    for pid in old:
        await ended(pid)
    os.kill(supervisor, signal.SIGCONT)
    gateway.pid = supervisor
    await are_answered(gateway.url, 20)
    await gateway.stop()


async def stream_ids(gateway: GatewayProcess) -> set[str]:
    return {one["id"] for one in json.loads((await gateway.admin("/api/streams")).body)["streams"]}


async def has_given_up(gateway: GatewayProcess, count: int) -> None:
    """Wait until this many upgrades have failed."""
    text = "not upgraded, all stays as it was"
    await eventually(lambda: gateway.said().count(text) == count, within_s=BOUND_S, look_s=LOOK_S, state=gateway.said)


async def are_answered(url: str, count: int) -> None:
    """Each of so many new connections is answered."""
    async with asyncio.timeout(BOUND_S):
        assert await asyncio.gather(*(read(url) for _ in range(count))) == [b"hello"] * count


def private_folder(gateway: GatewayProcess) -> Path:
    """The folder of the sockets between the workers."""
    mine = open_files(gateway.pid)
    for line in Path("/proc/net/unix").read_text().splitlines():
        path = line.split()[-1]
        if path.endswith("/hop0") and f"socket:[{line.split()[6]}]" in mine:
            return Path(path).parent
    raise AssertionError("no such folder")
