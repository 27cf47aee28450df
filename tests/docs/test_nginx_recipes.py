"""The nginx recipes of the pages, as printed, in a real nginx: each works as its page says, and refuses strangers.

Only addresses and paths of files are replaced.  The application that a recipe asks judges paths as most do: it decodes
them and compares their beginning.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson
import pytest

from gateway.app import RunningGateway, start_gateway
from gateway.config.file import load_config
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.nginx import running_nginx
from tests.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs"
PRIVATE = "guides/private-streams.md"
PLAIN = ("guides/proxies.md", "guides/listeners.md")

CLIENT = "127.0.0.2"
"""Every address of 127.0.0.0/8 is this machine's, so the client's is not nginx's."""
FORGED = "203.0.113.9"
BOUND_S = 20.0


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_recipe_for_nginx_is_tested() -> None:
    pages = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))]
    assert {page: len(found) for page in pages if (found := blocks(page, "nginx"))} == {
        PRIVATE: 1,
        **dict.fromkeys(PLAIN, 1),
    }


@dataclass
class Application:
    """Ada may read below /streams/ada/, and Bo may write there, too."""

    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        method, target = fields.get("x-original-method", "GET"), fields["x-original-uri"]
        self.asked.append(f"{method} {target}")
        who = fields.get("authorization")
        may = who == "Bearer bo" or (who == "Bearer ada" and method in ("GET", "HEAD"))
        status = "204 No Content" if may and unquote(target).startswith("/streams/ada/") else "403 Forbidden"
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@dataclass
class Site:
    """A running nginx, and everything around it."""

    url: str
    gateway: RunningGateway
    origin: RunningOrigin
    log: Path
    application: Application

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, bytes]:
        """One request from `CLIENT`, which says that it comes from `FORGED`: status and body of the answer."""
        address = urlsplit(self.url)
        async with asyncio.timeout(BOUND_S):
            reader, writer = await asyncio.open_connection(
                address.hostname, address.port, local_addr=(CLIENT, 0), limit=1 << 20
            )
            fields = {
                "Host": "site",
                "Connection": "close",
                "X-Forwarded-For": FORGED,
                "Content-Length": str(len(body)),
                "Content-Type": "text/plain",
                **(headers or {}),
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
            head, _, content = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        return int(head.split()[1]), content

    @property
    def requests(self) -> int:
        return self.origin.origin.counters.total_requests

    async def logged_clients(self) -> set[str]:
        """The clients that the access log names."""
        await eventually(lambda: self.log.exists() and self.log.read_bytes().endswith(b"\n"))
        return {orjson.loads(line)["client"] for line in self.log.read_bytes().splitlines()}


@asynccontextmanager
async def site(tmp_path: Path, location: str, configuration: str, trusted: str) -> AsyncIterator[Site]:
    """A gateway with a page's configuration behind an nginx with its recipe."""
    socket, log, secret = tmp_path / "gateway.sock", tmp_path / "access.log", tmp_path / "secret"
    secret.write_text("Bearer gateway")
    secret.chmod(0o600)
    application = Application()
    server = await asyncio.start_server(application.serve, "127.0.0.1", 0)
    origin = await start_origin(OriginSettings())
    for written, actual in (
        ('"127.0.0.1:4437"', '"127.0.0.1:0"'),
        ("http://10.0.0.5:4437", origin.url),
        ("/run/secrets/origin", str(secret)),
    ):
        configuration = configuration.replace(written, actual)
    file = tmp_path / "gateway.toml"
    file.write_text(configuration)
    named = "DURABLE_GATEWAY_"
    environ = {
        f"{named}SERVER__ADMIN": "127.0.0.1:0",
        f"{named}LOG__SINK": "file",
        f"{named}LOG__PATH": str(log),
        f"{named}LOG__CLIENT_ADDRESS": "full",
        f"{named}LOG__BATCH_S": "0.001",
    }
    if "[server]" not in configuration or "trusted_proxies" not in configuration:
        environ[f"{named}SERVER__TRUSTED_PROXIES"] = trusted
    if "origin =" not in configuration:
        environ[f"{named}ROUTE__DEFAULT__ORIGIN"] = origin.url
    if trusted == "unix":
        file.write_text(f'{configuration}\n[[listener]]\naddress = "unix:{socket}"\n')
    elif "listen =" not in configuration:
        environ[f"{named}SERVER__LISTEN"] = "127.0.0.1:0"
    gateway = await start_gateway(load_config(file, environ=environ).config)
    location = location.replace("http://unix:/run/durable-gateway/gateway.sock", f"http://unix:{socket}")
    location = location.replace("http://127.0.0.1:4437", gateway.listeners.urls[0])
    location = location.replace("127.0.0.1:8000", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with running_nginx(tmp_path, locations=location) as url:
            yield Site(url, gateway, origin, log, application)
    finally:
        await gateway.stop()
        await origin.stop(grace_s=0)
        server.close()
        await server.wait_closed()


@pytest.fixture
async def private(tmp_path: Path) -> AsyncIterator[Site]:
    (location,), configuration = blocks(PRIVATE, "nginx"), blocks(PRIVATE, "toml")[-1]
    async with site(tmp_path, location, configuration, "") as running:
        for path in ("/streams/ada/s", "/streams/eve/s"):
            await put_at(running.origin, path)
        running.origin.origin.counters.reset()
        yield running


async def put_at(origin: RunningOrigin, path: str) -> None:
    """Create a stream at the origin."""
    address = urlsplit(origin.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        f"PUT {path} HTTP/1.1\r\nHost: origin\r\nConnection: close\r\nContent-Type: text/plain\r\n"
        "Content-Length: 5\r\n\r\nhello".encode()
    )
    assert (await reader.read()).startswith(b"HTTP/1.1 201")
    writer.close()


ADA = {"Authorization": "Bearer ada"}
BO = {"Authorization": "Bearer bo"}


async def test_allowed_readers_share_a_tape_and_keep_their_addresses(private: Site) -> None:
    for headers in (ADA, ADA, BO):
        assert await private.ask("GET", "/streams/ada/s?offset=-1", headers) == (200, b"hello")
    catchups = private.origin.origin.counters.requests
    assert sum(catchups.values()) <= 3, catchups
    assert (await private.ask("HEAD", "/streams/ada/s", ADA))[0] == 200
    assert await private.logged_clients() == {CLIENT}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_readers_cannot_write_with_the_gateways_credentials(private: Site, method: str) -> None:
    for headers in (ADA, BO, {}):
        assert (await private.ask(method, "/streams/ada/s", headers, b"more"))[0] == 403
    assert private.requests == 0


REFUSED: list[tuple[str, dict[str, str], int]] = [
    ("/streams/ada/s?offset=-1", {}, 403),
    ("/streams/ada/s?offset=-1", {"Authorization": "Bearer eve"}, 403),
    ("/streams/eve/s?offset=-1", ADA, 403),
    # The application compares how a path begins, and the gateway resolves its dots.
    ("/streams/ada/../eve/s?offset=-1", ADA, 400),
    ("/streams/ada/%2e%2e/eve/s?offset=-1", ADA, 400),
    ("/streams/ada/.%2E/eve/s?offset=-1", ADA, 400),
    ("/streams/ada/..%2Feve/s?offset=-1", ADA, 400),
    ("/streams/ada//../eve/s?offset=-1", ADA, 400),
    ("/streams/ada/./s?offset=-1", ADA, 400),
    ("/auth", ADA, 404),
    ("/other", ADA, 404),
]


@pytest.mark.parametrize(("target", "headers", "status"), REFUSED)
async def test_other_reads_are_refused_before_the_gateway(
    private: Site, target: str, headers: dict[str, str], status: int
) -> None:
    forged = {"X-Original-URI": "/streams/ada/s", "X-Original-Method": "GET"}
    assert (await private.ask("GET", target, {**headers, **forged}))[0] == status
    assert private.requests == 0


async def test_without_the_limit_the_application_judges_each_method(tmp_path: Path) -> None:
    (location,), configuration = blocks(PRIVATE, "nginx"), blocks(PRIVATE, "toml")[-1]
    lines = [line for line in location.splitlines() if "limit_except" not in line]
    assert len(lines) == len(location.splitlines()) - 1
    async with site(tmp_path, "\n".join(lines), configuration, "") as running:
        await put_at(running.origin, "/streams/ada/s")
        running.origin.origin.counters.reset()
        for method in ("POST", "PUT", "DELETE"):
            sent = await running.ask(method, "/streams/ada/s", ADA, b"more")
            assert (sent[0], running.requests) == (403, 0)
        assert (await running.ask("POST", "/streams/ada/s", BO, b"!"))[0] == 204
        assert (await running.ask("GET", "/streams/ada/s?offset=-1", ADA))[1] == b"hello!"
    assert running.application.asked[-2:] == ["POST /streams/ada/s", "GET /streams/ada/s?offset=-1"]


@pytest.mark.parametrize("page", PLAIN)
async def test_a_client_cannot_forge_its_address(tmp_path: Path, page: str) -> None:
    (location,) = blocks(page, "nginx")
    configuration = next((one for one in blocks(page, "toml") if one.count("\n") == 2 and "trusted" in one), "")
    trusted = "unix" if "unix:" in location else "127.0.0.1"
    async with site(tmp_path, location, configuration, trusted) as running:
        await put_at(running.origin, "/streams/s")
        assert await running.ask("GET", "/streams/s?offset=-1") == (200, b"hello")
        assert await running.logged_clients() == {CLIENT}
