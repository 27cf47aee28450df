"""TLS to origins: which certificates the gateway trusts, which server name it sends, which certificate it presents."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from multidict import CIMultiDict

from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.origin_tls import load_tls
from gateway.errors import GatewayError, UpstreamUnreachable
from gateway.upstream.client import Exchanges
from gateway.upstream.failures import reason_of
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.slots import SlotLimits
from tests.tls_origin import behind_tls, made, server_context
from tests.upstream.http2_peer import good, http2_origin

BOUNDS = Bounds(20.0, 20.0, 20.0, 20.0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of two authorities, an origin, and a client of that origin."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, issuer in [("ca", None), ("stranger", None), ("origin.test", "ca"), ("client", "ca")]:
        made(folder, name, issuer)
    return folder


class SecureOrigin:
    """Serves TLS and answers each request."""

    def __init__(self, folder: Path, *, asks_client: bool = False) -> None:
        self.asked_for: list[str | None] = []
        self.port = 0
        self._context = server_context(folder, asks_client=asks_client)
        self._context.sni_callback = lambda _, name, __: self.asked_for.append(name)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SecureOrigin]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()


async def ask(origin: SecureOrigin, **tls: str) -> bytes:
    """The origin's answer to a gateway with this `origin_tls`."""
    exchanges = Exchanges(SlotLimits(4))
    try:
        if tls:
            exchanges.configure_tls(load_tls(GatewayConfig.for_origin(origin.url, origin_tls=tls)))
        async with await exchanges.send(OriginCall("GET", origin.url + "/s", CIMultiDict(), BOUNDS)) as reply:
            return await reply.read(100)
    finally:
        await exchanges.close()


async def test_an_origin_with_an_unknown_authority_is_refused(certificates: Path) -> None:
    stranger = str(certificates / "stranger.crt")
    async with SecureOrigin(certificates).running() as origin:
        for tls in ({}, {"ca_file": stranger}, {"ca_file": stranger, "server_name": "origin.test"}):
            with pytest.raises(UpstreamUnreachable) as failed:
                await ask(origin, **tls)
            assert failed.value.is_unsent
            assert reason_of(failed.value.__cause__ or failed.value) == "certificate refused"


async def test_an_origin_is_verified_by_its_authority_and_server_name(certificates: Path) -> None:
    authority = str(certificates / "ca.crt")
    async with SecureOrigin(certificates).running() as origin:
        assert await ask(origin, ca_file=authority, server_name="origin.test") == b"good"
        assert origin.asked_for == ["origin.test"]
        for more in ({}, {"server_name": "other.test"}):
            with pytest.raises(UpstreamUnreachable) as failed:
                await ask(origin, ca_file=authority, **more)
            assert reason_of(failed.value.__cause__ or failed.value) == "certificate refused"


async def test_an_origin_that_requests_a_certificate_gets_one(certificates: Path) -> None:
    known = {"ca_file": str(certificates / "ca.crt"), "server_name": "origin.test"}
    shown = {"cert_file": str(certificates / "client.crt"), "key_file": str(certificates / "client.key")}
    async with SecureOrigin(certificates, asks_client=True).running() as origin:
        assert await ask(origin, **known, **shown) == b"good"
        with pytest.raises(GatewayError):
            await ask(origin, **known)


async def test_an_alert_about_a_missing_certificate_is_reported(certificates: Path) -> None:
    """In TLS 1.3 the alert arrives after the handshake has ended on this side."""
    context = server_context(certificates, asks_client=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            listener.settimeout(20)
            connection, _ = listener.accept()
            connection.settimeout(20)
            with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secure:
                with suppress(ssl.SSLError):
                    secure.do_handshake()
                # Closing now, with an unread request, would reset the connection and lose the alert.
                secure.shutdown(socket.SHUT_WR)
                while secure.recv(1 << 16):
                    pass

        serving = asyncio.get_running_loop().run_in_executor(None, serve)
        exchanges = Exchanges(SlotLimits(4))
        url = f"https://localhost:{listener.getsockname()[1]}"
        known = {"ca_file": str(certificates / "ca.crt"), "server_name": "origin.test"}
        exchanges.configure_tls(load_tls(GatewayConfig.for_origin(url, origin_tls=known)))
        with pytest.raises(UpstreamUnreachable, match=r"^Origin unreachable: TLS failed$"):
            await exchanges.send(OriginCall("GET", url + "/s", CIMultiDict(), BOUNDS))
        await exchanges.close()
        await serving


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"ca_file": "absent.crt"}, "ca_file: {}/absent.crt: cannot be read: No such file or directory"),
        ({"ca_file": "ca.key"}, "ca_file: {}/ca.key: holds no certificates"),
        ({"cert_file": "absent.crt"}, "cert_file: {}/absent.crt: cannot be read: No such file or directory"),
        ({"cert_file": "client.crt"}, "cert_file: {0}/client.crt: holds no key"),
        (
            {"cert_file": "client.crt", "key_file": "ca.key"},
            "key_file: {0}/ca.key: is not the key of {0}/client.crt",
        ),
    ],
)
def test_unusable_files_are_named(certificates: Path, tls: dict[str, str], said: str) -> None:
    config = GatewayConfig.for_origin(
        "https://origin.test", origin_tls={name: str(certificates / file) for name, file in tls.items()}
    )
    with pytest.raises(ConfigError) as caught:
        load_tls(config)
    assert str(caught.value) == "route.default.origin_tls." + said.format(certificates)


def test_routes_may_not_contradict_each_other_about_an_origin(certificates: Path) -> None:
    one = {"name": "one", "prefix": "/1", "origin": "https://origin.test", "origin_tls": {"server_name": "a"}}
    other = {"name": "other", "prefix": "/2", "origin": "https://origin.test:443/v1"}
    with pytest.raises(
        ConfigError, match=r"^route\.other\.origin_tls: differs from the setting of another route for https://origin"
    ):
        load_tls(GatewayConfig.model_validate({"routes": [one, other]}))
    both = GatewayConfig.model_validate({"routes": [one, {**other, "origin_tls": {"server_name": "a"}}]})
    assert list(load_tls(both)) == ["https://origin.test"]
    plain = GatewayConfig.for_origin("http://origin.test", origin_tls={"server_name": "a"})
    assert load_tls(plain) == {}


@pytest.mark.parametrize("offered", [["h2", "http/1.1"], ["http/1.1"], []])
async def test_http_2_has_to_be_agreed_on(certificates: Path, offered: list[str]) -> None:
    context = server_context(certificates)
    if offered:
        context.set_alpn_protocols(offered)
    tls = {"ca_file": str(certificates / "ca.crt"), "server_name": "origin.test"}
    exchanges = Exchanges(SlotLimits(4))
    async with http2_origin(good) as plain, behind_tls(plain.url, context) as url:
        config = GatewayConfig.for_origin(url, origin_http="2", origin_tls=tls)
        exchanges.configure_tls(load_tls(config))
        exchanges.configure_http2(config.http2_origins)
        try:
            reply = await exchanges.send(OriginCall("POST", url + "/s", CIMultiDict(), BOUNDS, b"x"))
            async with reply:
                assert await reply.read(100) == b"good"
            assert "h2" in offered
        except UpstreamUnreachable as error:
            assert "h2" not in offered
            assert error.is_unsent
            assert reason_of(error.__cause__ or error) == "does not speak HTTP/2"
        finally:
            await exchanges.close()


async def test_over_http_2_an_origin_with_an_unknown_authority_is_refused(certificates: Path) -> None:
    exchanges = Exchanges(SlotLimits(4))
    async with http2_origin(good) as plain, behind_tls(plain.url, server_context(certificates)) as url:
        exchanges.configure_http2([url])
        with pytest.raises(UpstreamUnreachable) as failed:
            await exchanges.send(OriginCall("GET", url + "/s", CIMultiDict(), BOUNDS))
        assert reason_of(failed.value.__cause__ or failed.value) == "certificate refused"
        await exchanges.close()
