"""The command line: exit statuses, and one line for every error; servers in real processes on real ports."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway import __version__
from gateway.config.sections import every_field
from tests.commands import warm
from tests.commands.here import run_here
from tests.commands.warm import clean_environ
from tests.effort import some
from tests.ports import kept_port

ROOT = Path(__file__).parents[1]
PATIENCE_S = 60.0
JSON = {"Content-Type": "application/json"}


class Command:
    """One run of the command line; READY lines are read as they come, and a process that hangs is killed."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        self._watchdog.start()
        self.urls: dict[str, str] = {}

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"ended early: {self.finished()}"
        return line.rstrip("\n")

    def ready(self, *names: str) -> Command:
        while not self.urls.keys() >= set(names):
            word, name, url = self.line().split(" ")
            assert word == "READY"
            self.urls[name] = url
        return self

    def finished(self) -> tuple[int, str, str]:
        """Exit status, the rest of stdout, and stderr."""
        out, err = self.process.communicate()
        return self.process.returncode, out, err

    def told(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        return self.finished()

    def close(self) -> None:
        self._watchdog.cancel()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Start = Callable[..., Command]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the program with the given arguments."""
    running: list[Command] = []

    def begin(*arguments: str, **changed: str) -> Command:
        environ = {**clean_environ(), **changed}
        running.append(Command(warm.command(arguments, environ), environ))
        return running[-1]

    yield begin
    for command in running:
        command.close()


@pytest.fixture
def origin(start: Start) -> str:
    """An in-memory origin of its own process; gives its URL."""
    return start("origin", "--listen", "127.0.0.1:0").ready("origin").urls["origin"]


def serve(start: Start, *arguments: str, **environ: str) -> Command:
    command = start("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments, **environ)
    return command.ready("gateway", "admin")


def first_event(lines: Iterator[str]) -> list[str]:
    event: list[str] = []
    for line in lines:
        if not line and event:
            return event
        if line and not line.startswith(":"):
            event.append(line)
    raise AssertionError(f"ended after {event}")


# -- help and refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([], ["dev", "serve", "origin", "check", "--version"]),
        (["dev"], ["--listen", "--admin", "--origin-listen", "--protocol", "--auth"]),
        (
            ["serve"],
            ["--origin", "--config", "--listen", "--admin", "--long-poll-timeout", "--sse-lifetime", "--cache-bytes"],
        ),
        (["origin"], ["--listen", "--protocol", "--long-poll-timeout", "--sse-lifetime", "--max-chunk-bytes"]),
        (["check"], ["CONFIG", "URL", "--as"]),
    ],
)
def test_help_names_every_option(command: list[str], options: list[str]) -> None:
    status, out, err = run_here(*command, "--help")
    assert (status, err) == (0, "")
    for option in options:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", out), f"{option} is missing"


@pytest.mark.parametrize("command", [[], ["serve"], ["pipeline", "run"]])
def test_h_is_help(command: list[str]) -> None:
    assert run_here(*command, "-h") == run_here(*command, "--help")


def test_the_version_is_the_package_s() -> None:
    assert run_here("--version") == (0, f"durable-gateway {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing command. 'durable-gateway dev' runs a gateway to try; 'durable-gateway --help' tells more."),
        (["pipeline"], "Missing command. 'durable-gateway pipeline --help' tells more."),
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (
            ["serve", "--orgin", "x"],
            "No such option: --orgin (Possible options: --origin). 'durable-gateway serve --help' tells more.",
        ),
        (["serve"], "serve needs --origin URL or --config FILE"),
        (["serve", "--origin", "http://a", "--config", "b"], "serve takes --origin or --config, not both"),
        (["serve", "--origin"], "Option '--origin' requires an argument."),
        (["serve", "--sse-lifetime", "x"], "Invalid value for '--sse-lifetime': "),
        (["origin", "--listen", "localhost"], "--listen: expected HOST:PORT"),
        (["origin", "--max-chunk-bytes", "0"], "--max-chunk-bytes: should be at least 1, got 0"),
        (["origin", "--long-poll-timeout", "0"], "Invalid value for '--long-poll-timeout': "),
        (["origin", "--protocol", "s3"], "Invalid value for '--protocol': "),
        (["origin", "--protocol", "s2", "--sse-lifetime", "9"], "--sse-lifetime is not for --protocol s2"),
        (["dev", "--admin", "x"], "--admin: server.admin: expected HOST:PORT"),
        (["dev", "--origin-listen", "x"], "--origin-listen: expected HOST:PORT"),
        (["check"], "Missing argument 'CONFIG'. 'durable-gateway check --help' tells more."),
        (["check", "config/dev.toml", "http://a/s", "more"], "Got unexpected extra argument"),
    ],
)
def test_misuse_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    _is_one_line_and_status_2(run_here(*arguments), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--origin", "a:b"], "--origin: route.default.origin: expected an http:// or https:// URL"),
        (["--origin", "http://a", "--listen", "x"], "--listen: server.listen: expected HOST:PORT"),
        (["--origin", "http://a", "--cache-bytes", "1MB"], "--cache-bytes: limits.cache_bytes: expected"),
        (
            ["--origin", "http://a", "--long-poll-timeout", "0"],
            "--long-poll-timeout: route.default.long_poll_timeout_s: should be greater than or equal to 0.05, got 0",
        ),
        (["--config", "nowhere.toml"], "nowhere.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_program_that_cannot_begin_says_so_in_one_line(start: Start, arguments: list[str], message: str) -> None:
    _is_one_line_and_status_2(start("serve", *arguments).finished(), message)


def test_a_variable_of_the_environment_is_refused_like_a_flag(start: Start) -> None:
    command = start("serve", "--origin", "http://a", DURABLE_GATEWAY_LIMITS__CACHE_BYTES="lots")
    message = "env DURABLE_GATEWAY_LIMITS__CACHE_BYTES: limits.cache_bytes: expected bytes"
    _is_one_line_and_status_2(command.finished(), message)


def _is_one_line_and_status_2(finished: tuple[int, str, str], message: str) -> None:
    status, out, err = finished
    assert (status, out) == (2, "")
    assert err.startswith(f"durable-gateway: {message}")
    assert err.count("\n") == 1
    assert err.endswith("\n")


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_prints_every_value_and_its_source() -> None:
    status, out, err = run_here("check", "--all", "config/dev.toml", DURABLE_GATEWAY_SERVER__LISTEN=":1")
    assert (status, err) == (0, "")
    found = {key: (value, source) for key, value, source in re.findall(r"^(\S+) = (.*?) +# (.*)$", out, re.MULTILINE)}
    # Tables that are not there are one line each.
    absent = ("route.bridge", "route.health_check", "route.origin_credentials", "route.origin_tls")
    sections = [section for section, _, _ in every_field() if not section.startswith(("listener", "rate_limit"))]
    assert len(found) == len([section for section in sections if section not in absent]) + len(absent)
    assert found["route.dev.health_check"] == ("none", "default")
    assert found["server.listen"] == ('":1"', "env DURABLE_GATEWAY_SERVER__LISTEN")
    assert found["server.admin"] == ('"127.0.0.1:9437"', "default")
    assert found["limits.cache_bytes"] == ('"64MiB"', "config/dev.toml:8")
    assert found["route.dev.origin"] == ('"http://127.0.0.1:4438"', "config/dev.toml:12")


def test_check_looks_at_the_plan_too(tmp_path: Path) -> None:
    plan, file = tmp_path / "plan.json", tmp_path / "gateway.toml"
    file.write_text(f'[cache.plan]\nfile = "{plan}"\n[[route]]\norigin = "http://a"\n')
    plan.write_text('{"version": 3}')
    status, out, err = run_here("check", str(file))
    assert (status, out) == (2, "")
    assert err.startswith(f"durable-gateway: cache.plan.file: {plan}: version: should be 1, got 3")
    assert err.count("\n") == 1


def test_check_names_file_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[[route]]\norigin = "http://a"\nheartbeet_s = 5\n')
    line = f"durable-gateway: {file}:3: route.default.heartbeet_s: unknown key (did you mean 'heartbeat_s'?)\n"
    assert run_here("check", str(file)) == (2, "", line)


# -- origin ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_origin_serves_and_leaves_in_order(start: Start, number: signal.Signals) -> None:
    command = start("origin", "--listen", "127.0.0.1:0", "--max-chunk-bytes", "1KiB").ready("origin")
    stream = f"{command.urls['origin']}/demo"
    assert httpx.put(stream, headers=JSON, content="[1,2]").status_code == 201
    with httpx.stream("GET", f"{stream}?offset=-1&live=sse") as reply:
        lines = reply.iter_lines()
        assert first_event(lines)[0] == "event: data"
        command.process.send_signal(number)
        for _ in lines:
            pass  # ends because the origin ends it, with a complete chunked body
    assert command.finished() == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_s2_origin_serves_and_leaves_in_order(start: Start, number: signal.Signals) -> None:
    command = start("origin", "--protocol", "s2", "--listen", "127.0.0.1:0").ready("origin")
    with httpx.Client(base_url=command.urls["origin"], headers={"s2-basin": "basin-00"}) as http:
        assert http.get("/health").text == "OK"
        made = {"basin": "basin-00", "config": {"create_stream_on_append": True}}
        assert http.post("/v1/basins", json=made).status_code == 201
        assert http.post("/v1/streams/s/records", json={"records": [{"body": "a"}]}).status_code == 200
        with http.stream("GET", "/v1/streams/s/records?seq_num=0", headers={"accept": "text/event-stream"}) as reply:
            lines = reply.iter_lines()
            assert first_event(lines)[0] == "event: batch"
            command.process.send_signal(number)
            assert any("server_draining" in line for line in lines)
    assert command.finished() == (0, "", "")


@pytest.mark.parametrize(
    "arguments",
    [["origin"], ["origin", "--protocol", "s2"], ["serve", "--origin", "http://127.0.0.1:1", "--admin", "127.0.0.1:0"]],
)
def test_a_port_in_use_is_one_line_and_status_1(start: Start, arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finished = start(*arguments, "--listen", address).finished()
    assert finished == (1, "", f"durable-gateway: cannot listen on {address}: Address already in use\n")


def test_a_second_signal_does_not_wait_for_the_drain() -> None:
    script = """
import asyncio, sys
from gateway.cli import program, servers

async def never_done(*_):
    shutdown = servers.Shutdown()
    print("READY origin nowhere", flush=True)
    await shutdown.requested()
    print("draining", flush=True)
    await asyncio.Event().wait()

servers.run_origin = never_done
sys.exit(program.main())
"""
    command = Command([sys.executable, "-W", "default", "-c", script, "origin"], clean_environ())
    try:
        command.ready("origin").process.send_signal(signal.SIGTERM)
        assert command.line() == "draining"
        assert command.told(signal.SIGTERM) == (1, "", "durable-gateway: stopped at once, without draining\n")
    finally:
        command.close()


# -- serve -------------------------------------------------------------------------------------------------------------


def test_serve_stands_in_front_of_an_origin(start: Start, origin: str) -> None:
    command = serve(start, "--origin", origin, "--long-poll-timeout", "0.1", "--cache-bytes", "1MiB")
    stream = f"{command.urls['gateway']}/demo"
    assert httpx.put(stream, headers=JSON).status_code == 201
    assert httpx.post(stream, headers=JSON, content='{"a":1}').status_code == 204
    read = httpx.get(stream)
    assert read.json() == [{"a": 1}]
    assert httpx.get(f"{origin}/demo").json() == [{"a": 1}]
    tail = read.headers["Stream-Next-Offset"]
    assert httpx.get(stream, params={"offset": tail, "live": "long-poll"}).status_code == 204
    for path in ("/healthz", "/readyz", "/metrics"):
        assert httpx.get(command.urls["admin"] + path).status_code == 200
    assert command.told(signal.SIGTERM) == (0, "", "")


def test_serve_takes_a_file_and_the_environment(start: Start, origin: str) -> None:
    command = serve(start, "--config", "config/dev.toml", DURABLE_GATEWAY_ROUTE__DEV__ORIGIN=origin)
    assert httpx.put(f"{command.urls['gateway']}/demo", headers=JSON).status_code == 201
    assert httpx.head(f"{origin}/demo").status_code == 200
    assert command.told(signal.SIGINT) == (0, "", "")


def test_serve_takes_the_origin_from_the_environment_alone(start: Start, origin: str) -> None:
    command = serve(start, DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGIN=origin)
    assert httpx.put(f"{command.urls['gateway']}/demo", headers=JSON).status_code == 201
    assert command.told(signal.SIGTERM) == (0, "", "")


def test_serve_takes_several_origins_from_the_environment_alone(start: Start, origin: str) -> None:
    both = f"{origin}, http://localhost:{origin.rpartition(':')[2]}"
    command = serve(start, DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGINS=both)
    assert httpx.put(f"{command.urls['gateway']}/demo", headers=JSON).status_code == 201
    shown = httpx.get(f"{command.urls['admin']}/api/origins").json()["origins"]
    assert [one["state"] for one in shown] == ["closed", "closed"]
    assert command.told(signal.SIGTERM) == (0, "", "")


def test_an_unreachable_origin_is_logged_and_does_not_fail_the_start(start: Start) -> None:
    command = serve(start, "--origin", "http://127.0.0.1:1")
    assert command.process.stderr is not None
    assert command.process.stderr.readline().endswith(
        "WARNING gateway.origins: origin http://127.0.0.1:1 does not answer: connection refused\n"
    )
    assert httpx.get(f"{command.urls['admin']}/readyz").status_code == 200
    assert command.told(signal.SIGTERM) == (0, "", "")


def test_credentials_that_are_missing_fail_the_start_with_one_line(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[[route]]\norigin = "http://127.0.0.1:1"\norigin_credentials = { environment = "NO_SUCH_KEY" }\n')
    message = "durable-gateway: route.default.origin_credentials.environment: NO_SUCH_KEY: is not set\n"
    for command in (["serve", "--config"], ["check"]):
        assert start(*command, str(file)).finished() == (2, "", message)


def test_a_drain_ends_live_readers_in_order_and_within_its_bound(start: Start, origin: str) -> None:
    bound_s = 3
    command = serve(start, "--origin", origin, DURABLE_GATEWAY_SERVER__SHUTDOWN_TIMEOUT_S=str(bound_s))
    stream = f"{command.urls['gateway']}/demo"
    tail = httpx.put(stream, headers=JSON, content="[1]").headers["Stream-Next-Offset"]
    answers: list[httpx.Response] = []

    def poll() -> None:
        answers.append(httpx.get(stream, params={"offset": tail, "live": "long-poll"}, timeout=PATIENCE_S))

    with httpx.stream("GET", stream, params={"offset": "-1", "live": "sse"}, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        assert first_event(lines)[0] == "event: data"
        poller = threading.Thread(target=poll)
        poller.start()
        metrics = f"{command.urls['admin']}/metrics"
        waits = re.compile(r'^durable_gateway_subscribers\{mode="longpoll",route="[^"]+"\} 1\.0$', re.MULTILINE)
        while not waits.search(httpx.get(metrics).text):
            assert poller.is_alive()
        command.process.send_signal(signal.SIGTERM)
        for _ in lines:
            pass
    poller.join()
    assert command.process.wait(bound_s + 2) == 0
    assert answers[0].status_code in (204, 503)
    assert command.finished() == (0, "", "")


# -- under a supervisor ------------------------------------------------------------------------------------------------


HANGS_UP = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "gateway.cli.program":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, Finder())
from gateway.cli import main
sys.exit(main())
"""


def test_a_sighup_while_the_program_loads_is_a_reload_once_it_serves(start: Start, origin: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n[[route]]\norigin = "{origin}"\n')
    command = Command([sys.executable, "-c", HANGS_UP, "serve", "--config", str(file)], clean_environ())
    try:
        command.ready("gateway", "admin")
        assert command.process.stderr is not None
        assert command.process.stderr.readline() == "durable-gateway: reloaded: nothing has changed\n"
        assert command.told(signal.SIGTERM) == (0, "", "")
    finally:
        command.close()


@contextmanager
def supervised(path: str) -> Iterator[tuple[dict[str, str], Callable[[], dict[str, str]]]]:
    """A supervisor's socket for notifications (sd_notify): the variable that names it, and a function that waits for
    the next notification and returns its fields.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(PATIENCE_S)
        supervisor.bind(path)

        def heard() -> dict[str, str]:
            lines = supervisor.recv(65_536).decode().splitlines()
            return dict(line.split("=", 1) for line in lines)

        yield {"NOTIFY_SOCKET": path.replace("\0", "@")}, heard


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_supervisor_is_notified_of_the_start_of_reloads_and_of_the_stop(
    start: Start, origin: str, tmp_path: Path, is_abstract: bool
) -> None:
    file = tmp_path / "gateway.toml"
    valid = f'[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n[[route]]\norigin = "{origin}"\n'
    file.write_text(valid)
    path = f"\0{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with supervised(path) as (notified, heard):
        environ = {**clean_environ(), **notified}
        command = Command([sys.executable, "-m", "gateway", "serve", "--config", str(file)], environ)
        try:
            assert heard() == {"READY": "1"}
            command.ready("gateway", "admin")
            file.write_text(f"{valid}trust_s = 7\n")
            outcomes = ["reloaded: route.default.trust_s", "not reloaded, all stays as it was: "]
            for outcome in outcomes:
                before = time.monotonic_ns() // 1_000
                command.process.send_signal(signal.SIGHUP)
                reloading = heard()
                assert list(reloading) == ["RELOADING", "MONOTONIC_USEC"]
                assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1_000
                done = heard()
                assert (done["READY"], done["STATUS"].startswith(outcome)) == ("1", True)
                file.write_text("nonsense = 1\n")
            command.process.send_signal(signal.SIGTERM)
            assert heard() == {"STOPPING": "1", "STATUS": "draining"}
            assert command.finished()[0] == 0
        finally:
            command.close()


@pytest.mark.parametrize("closed", some(["<&- >&- 2>&-"], ["<&-", ">&-", "<&- >&- 2>&-"]))
def test_a_gateway_serves_with_closed_standard_descriptors(origin: str, tmp_path: Path, closed: str) -> None:
    with kept_port() as port, kept_port() as admin, supervised(str(tmp_path / "notify")) as (notified, heard):
        places = ("--origin", origin, "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}")
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "gateway", "serve", *places]
        command = Command(shell, {**clean_environ(), **notified, "DURABLE_GATEWAY_LOG__SINK": "stdout"})
        try:
            assert heard() == {"READY": "1"}
            stream = f"http://127.0.0.1:{port}/demo"
            assert httpx.put(stream, headers=JSON, content="[1]").status_code == 201
            assert [httpx.get(stream).json() for _ in range(3)] == [[1]] * 3
            assert command.told(signal.SIGTERM)[0] == 0
        finally:
            command.close()


@pytest.mark.parametrize(
    ("arguments", "closed", "status", "error"),
    [
        ("check --json FILE", ">&-", 0, ""),
        ("check --json FILE", "<&- >&- 2>&-", 0, ""),
        ("purge --all", "<&-", 1, None),
    ],
)
def test_commands_need_no_open_standard_descriptors(
    tmp_path: Path, arguments: str, closed: str, status: int, error: str | None
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[[route]]\norigin = "http://127.0.0.1:1"\n')
    words = arguments.replace("FILE", str(file)).split()
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "gateway", *words]
    done = subprocess.run(shell, env=clean_environ(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert error is None or done.stderr == error


# -- dev ---------------------------------------------------------------------------------------------------------------


def pasted(line: str) -> tuple[str, str, dict[str, str], str | None]:
    """Method, URL, headers and body of a printed curl line, by a shell's rules of quoting."""
    program, *words = shlex.split(line)
    assert program == "curl"
    method, headers, body, url = "GET", {}, None, ""
    rest = iter(words)
    for word in rest:
        match word:
            case "-i" | "-iN":
                pass
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "--data":
                body = next(rest)
            case _:
                assert not word.startswith("-")
                assert not url
                url = word
    return method, url, headers, body


def test_dev_prints_lines_that_work_when_pasted(start: Start) -> None:
    command = start("dev", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin-listen", "127.0.0.1:0").ready(
        "origin", "gateway", "admin"
    )
    printed = [command.line() for _ in range(10)]
    titles = [line.removeprefix("# ").split(":")[0] for line in printed[::2]]
    assert titles == ["create", "append", "read", "tail by long-poll", "tail by SSE"]
    create, append, read, long_poll, sse = (pasted(line) for line in printed[1::2])

    def paste(line: tuple[str, str, dict[str, str], str | None]) -> httpx.Response:
        method, url, headers, body = line
        assert url.startswith(f"{command.urls['gateway']}/demo")
        return httpx.request(method, url, headers=headers, content=body, timeout=PATIENCE_S)

    assert paste(create).status_code == 201
    assert paste(append).status_code == 204
    assert paste(read).json() == [{"hello": "world"}]
    assert httpx.get(f"{command.urls['origin']}/demo").json() == [{"hello": "world"}]

    answers: list[httpx.Response] = []
    poller = threading.Thread(target=lambda: answers.append(paste(long_poll)))
    poller.start()
    while poller.is_alive():  # an append that comes before the poll does not answer it: append until one does
        paste(append)
        poller.join(0.05)
    assert answers[0].status_code == 200
    assert {"hello": "world"} in answers[0].json()

    with httpx.stream(sse[0], sse[1], headers=sse[2], timeout=PATIENCE_S) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        event = first_event(reply.iter_lines())
        assert event[0] == "event: data"
        assert '{"hello":"world"}' in "".join(event[1:])
        assert command.told(signal.SIGINT) == (0, "", "")


def test_dev_with_rules_prints_tokens_and_lines_that_work_when_pasted(start: Start) -> None:
    places = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin-listen", "127.0.0.1:0")
    command = start("dev", "--auth", *places).ready("origin", "gateway", "admin")
    printed = [command.line() for _ in range(20)][1::2]
    tokens = dict(line.split("=", 1) for line in printed[:2])

    def paste(line: str) -> int:
        for name, token in tokens.items():
            line = line.replace(f"${name}", token)
        method, url, headers, body = pasted(line)
        with httpx.stream(method, url, headers=headers, content=body, timeout=PATIENCE_S) as reply:
            return reply.status_code

    create, append, read, _, sse, refused, link, why = printed[2:]
    assert [paste(line) for line in (create, append, read, sse, refused, link)] == [201, 204, 200, 200, 401, 200]
    assert paste(append.replace("$WRITER", "$READER")) == 403
    words = shlex.split(why.replace("$READER", tokens["READER"]))[1:]
    status, out, _ = run_here(*words)
    assert (status, "principal: reader" in out, "granted by: read /**" in out) == (0, True, True)
    status, out, errors = command.told(signal.SIGINT)
    assert (status, out) == (0, "")
    refusals = [line.partition(" gateway.audit: ")[2] for line in errors.splitlines()]
    assert [line.partition(" by ")[0] for line in refusals] == ["GET /demo", "POST /demo"]
    assert not Path(words[1]).exists()


def test_dev_with_an_s2_origin_prints_lines_that_work_when_pasted(start: Start) -> None:
    places = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin-listen", "127.0.0.1:0")
    command = start("dev", "--protocol", "s2", *places).ready("origin", "gateway", "admin")
    printed = [command.line() for _ in range(10)]
    basin, append, read, sse = (pasted(line) for line in printed[1:8:2])

    def paste(line: tuple[str, str, dict[str, str], str | None]) -> httpx.Response:
        method, url, headers, body = line
        return httpx.request(method, url, headers=headers, content=body, timeout=PATIENCE_S)

    assert paste(basin).status_code == 201
    assert paste(append).json()["end"]["seq_num"] == 1
    assert paste(read).json()["records"][0]["body"] == "hello"
    with httpx.stream(sse[0], sse[1], headers=sse[2], timeout=PATIENCE_S) as reply:
        assert first_event(reply.iter_lines())[0] == "event: batch"
        url = command.urls["gateway"]
        assert printed[9] == f"export S2_ACCESS_TOKEN=any S2_ACCOUNT_ENDPOINT={url} S2_BASIN_ENDPOINT={url}"
        assert command.told(signal.SIGINT) == (0, "", "")


def test_dev_speaks_tls_and_says_how_to_trust_it(start: Start, tmp_path: Path) -> None:
    places = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin-listen", "127.0.0.1:0")
    authority = tmp_path / "durable-gateway" / "tls" / "ca.pem"
    for _ in range(2):
        command = start("dev", "--tls", *places, XDG_STATE_HOME=str(tmp_path)).ready("origin", "gateway", "admin")
        printed = [command.line() for _ in range(16)]
        assert command.urls["gateway"].startswith("https://127.0.0.1:")
        assert f"export NODE_EXTRA_CA_CERTS={authority}" in printed
        assert str(authority) in printed
        done = subprocess.run(shlex.split(printed[1]), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert re.match(r"HTTP/(1\.1|2) 201 ", done.stdout), done.stderr
        # The console goes through the same port.
        read = httpx.get(f"{command.urls['admin']}/api/console/read", params={"target": "/demo?offset=-1"})
        assert (read.status_code, read.json()) == (200, [])
        assert command.told(signal.SIGINT) == (0, "", "")


def test_dev_needs_a_folder_for_its_certificate(start: Start, tmp_path: Path) -> None:
    (tmp_path / "durable-gateway").write_text("a file")
    status, out, err = start("dev", "--tls", XDG_STATE_HOME=str(tmp_path)).finished()
    folder = tmp_path / "durable-gateway" / "tls"
    assert (status, out) == (1, "")
    assert err == f"durable-gateway: cannot keep a certificate in {folder}: Not a directory\n"


def test_a_listener_that_cannot_be_bound_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    config = tmp_path / "gateway.toml"
    text = f'[server]\nadmin = "127.0.0.1:0"\n[[listener]]\naddress = "unix:{tmp_path}/file"\n[[route]]\norigin = "http://a"\n'
    config.write_text(text)
    finished = start("serve", "--config", str(config)).finished()
    assert finished == (1, "", f"durable-gateway: cannot listen on unix:{tmp_path}/file: File exists\n")


def test_check_reads_certificates(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(
        '[[listener]]\naddress = ":443"\n[listener.tls]\ncertificates = [{ certificate = "/nowhere" }]\n'
        '[[route]]\norigin = "http://a"\n'
    )
    message = "durable-gateway: listener[0].tls.certificates[0]: /nowhere: cannot be read: No such file or directory\n"
    assert run_here("check", str(config)) == (2, "", message)


def test_dev_leaves_nothing_behind_when_a_port_is_taken(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finished = start(
            "dev", "--listen", "127.0.0.1:0", "--admin", address, "--origin-listen", "127.0.0.1:0"
        ).finished()
    assert finished == (1, "", f"durable-gateway: cannot listen on {address}: Address already in use\n")
