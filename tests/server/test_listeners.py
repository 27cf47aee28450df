"""Listeners of every kind on real sockets: admission, TLS, client addresses, and redirects."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.watched_files import POLL_S
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.server import certificates, listeners
from tests.certificates import Authority, Pair
from tests.debian import program
from tests.server.conftest import BOUND_S, Response, close, read_response
from tests.waiting import eventually, pass_turns

REQUEST = b"GET /s?offset=-1 HTTP/1.1\r\nHost: edge.test\r\n\r\n"


@dataclass
class Bench:
    """Gateways in front of one origin."""

    origin: RunningOrigin
    clock: ManualClock
    folder: Path
    running: list[RunningGateway] = field(default_factory=list)
    loaded: dict[str, Any] = field(default_factory=dict)

    async def start(
        self, *listeners: dict[str, Any], environ: dict[str, str] | None = None, **more: Any
    ) -> RunningGateway:
        def load() -> GatewayConfig:
            settings = {"admin": "127.0.0.1:0", "shutdown_timeout_s": 0.5, "live_linger_s": 0, **more, **self.loaded}
            return GatewayConfig.for_origin(self.origin.url, **{"listeners": list(listeners), **settings})

        gateway = await start_gateway(load(), clock=self.clock, rng=Random(7), load=load, environ=environ or {})
        self.running.append(gateway)
        return gateway

    async def stop(self) -> None:
        for gateway in self.running:
            await gateway.stop()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    clock = ManualClock()
    origin = await start_origin(OriginSettings(), clock=clock)
    bench = Bench(origin, clock, tmp_path)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(origin.url.rpartition(":")[2]))
        writer.write(b"PUT /s HTTP/1.1\r\nHost: o\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")
        assert (await read_response(reader)).status == 201
        await close(writer)
        yield bench
    finally:
        await bench.stop()
        await origin.stop(grace_s=0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(*pairs: Pair, address: str = "127.0.0.1:0", **more: Any) -> dict[str, Any]:
    return {"address": address, "tls": {"certificates": [pair.as_config() for pair in pairs], **more}}


def port_of(gateway: RunningGateway, index: int = 0) -> int:
    return int(gateway.listeners.urls[index].rpartition(":")[2])


async def open_to(
    gateway: RunningGateway, context: ssl.SSLContext | None = None, name: str = "edge.test", index: int = 0
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    more: dict[str, Any] = {"ssl": context, "server_hostname": name} if context is not None else {}
    async with asyncio.timeout(BOUND_S):
        return await asyncio.open_connection("127.0.0.1", port_of(gateway, index), **more)


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes = REQUEST) -> Response:
    try:
        writer.write(request)
        return await read_response(reader)
    finally:
        await close(writer)


async def raw(gateway: RunningGateway, *sent: bytes, index: int = 0) -> bytes:
    """Everything that a plain socket receives until its end."""
    reader, writer = await open_to(gateway, index=index)
    found = b""
    try:
        async with asyncio.timeout(BOUND_S):
            for data in sent:
                writer.write(data)
                await writer.drain()
            with suppress(ConnectionError):
                while piece := await reader.read(1 << 16):
                    found += piece
        return found
    finally:
        await close(writer)


def first_name(writer: asyncio.StreamWriter) -> str:
    """The first name of the server's certificate."""
    certificate = writer.get_extra_info("peercert")
    return str(certificate["subjectAltName"][0][1])


def figures(gateway: RunningGateway, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a series by their label values, without the listener."""
    return {
        tuple(value for label, value in sample.labels.items() if label != "listener"): sample.value
        for family in gateway.metrics.collect()
        for sample in family.samples
        if sample.name == name
    }


def failures(gateway: RunningGateway) -> dict[str, int]:
    counted = figures(gateway, "durable_gateway_tls_handshake_failures_total").items()
    return {why: int(n) for (why,), n in counted if n}


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_stream_is_read_over_tls(bench: Bench, authority: Authority, version: ssl.TLSVersion) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")))
    context = authority.client()
    context.maximum_version = context.minimum_version = version
    for _ in range(3):
        response = await answered(*await open_to(gateway, context))
        assert (response.status, response.body) == (200, b"hello")
    assert gateway.gateway_url.startswith("https://127.0.0.1:")
    assert failures(gateway) == {}


async def test_handshake_counters_exist_from_the_start(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")), {"address": "127.0.0.1:0"})
    assert figures(gateway, "durable_gateway_tls_handshakes_total") == {(): 0}
    counted = figures(gateway, "durable_gateway_tls_handshake_failures_total")
    assert set(counted.values()) == {0}
    assert ("refused",) in counted
    assert (await answered(*await open_to(gateway, authority.client()))).status == 200
    assert (await answered(*await open_to(gateway, index=1))).status == 200
    await raw(gateway, REQUEST)
    assert figures(gateway, "durable_gateway_tls_handshakes_total") == {(): 1}
    assert failures(gateway) == {"plain_http": 1}


async def test_all_listeners_answer_alike(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")), {"address": "127.0.0.1:0"}, listen="127.0.0.1:0")
    assert [url.partition(":")[0] for url in gateway.listeners.urls] == ["https", "http", "http"]
    bodies = {
        (await answered(*await open_to(gateway, None if index else authority.client(), index=index))).body
        for index in range(3)
    }
    assert bodies == {b"hello"}


@pytest.mark.parametrize(
    ("server_name", "certificate"),
    [
        ("one.test", "one.test"),
        ("ONE.test", "one.test"),
        ("also.test", "one.test"),
        ("a.many.test", "*.many.test"),
        ("own.many.test", "own.many.test"),
    ],
)
async def test_a_certificate_is_chosen_by_server_name(
    bench: Bench, authority: Authority, server_name: str, certificate: str
) -> None:
    pairs = [
        authority.issue("first.test"), authority.issue("one.test", "also.test"), authority.issue("*.many.test"),
        authority.issue("own.many.test"),
    ]  # fmt: skip
    gateway = await bench.start(tls(*pairs))
    reader, writer = await open_to(gateway, authority.client(), server_name)
    assert first_name(writer) == certificate
    assert (await answered(reader, writer)).status == 200


@pytest.mark.parametrize("server_name", ["stranger.test", "a.b.many.test", "many.test", None])
async def test_an_unknown_server_name_gets_the_first_certificate(
    bench: Bench, authority: Authority, server_name: str | None
) -> None:
    gateway = await bench.start(tls(authority.issue("first.test"), authority.issue("*.many.test")))
    context = authority.client()
    context.check_hostname = False
    _, writer = await open_to(gateway, context, server_name or "")
    assert first_name(writer) == "first.test"
    await close(writer)


@pytest.mark.parametrize("certificates", [1, 2])
async def test_a_server_name_that_is_not_ascii_is_refused_with_an_alert(
    bench: Bench, authority: Authority, monkeypatch: pytest.MonkeyPatch, certificates: int
) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    names = ["edge.test", "other.test"][:certificates]
    gateway = await bench.start(tls(*(authority.issue(name) for name in names)))
    outgoing = ssl.MemoryBIO()
    client = authority.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="edge.test")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read().replace(b"edge.test", b"edg\xe9.test")
    # A fatal alert: illegal_parameter (RFC 8446 section 6.2).
    assert await raw(gateway, hello) == bytes([21, 3, 3, 0, 2, 2, 47])
    assert await raw(gateway, hello[:90], hello[90:]) == bytes([21, 3, 3, 0, 2, 2, 47])
    assert failures(gateway) == {"malformed": 2}
    assert unraisable == []
    assert gateway.connections == 0


async def test_versions_older_than_the_minimum_are_refused(bench: Bench, authority: Authority) -> None:
    pair = authority.issue("edge.test")
    gateway = await bench.start(tls(pair), tls(pair, minimum_version="1.3"))
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await answered(*await open_to(gateway, context))).status == 200
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await open_to(gateway, context, index=1)
    command = [
        str(program("openssl", "openssl")),
        "s_client",
        "-tls1_1",
        "-cipher",
        "ALL:@SECLEVEL=0",
        "-connect",
        f"127.0.0.1:{port_of(gateway)}",
    ]
    done = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    async with asyncio.timeout(BOUND_S):
        said, _ = await done.communicate()
    assert b"alert protocol version" in said
    assert failures(gateway) == {"version": 2}


@pytest.mark.parametrize("wanted", ["optional", "required"])
async def test_client_certificates(bench: Bench, authority: Authority, tmp_path: Path, wanted: str) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger").issue("client")
    pair, client = authority.issue("edge.test"), authority.issue("client")
    gateway = await bench.start(tls(pair, client_ca=str(authority.file), client_certificates=wanted))
    assert (await answered(*await open_to(gateway, authority.client(client)))).status == 200
    for shows, is_let_in in ((None, wanted == "optional"), (stranger, False)):
        context = authority.client(shows)
        try:
            # Over TLS 1.3 a client notices the refusal when it reads.
            status = (await answered(*await open_to(gateway, context))).status
        except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            status = 0
        assert status == (200 if is_let_in else 0)
    assert failures(gateway) == {"client_certificate": 2 if wanted == "required" else 1}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET /s HTTP/1.1\r\nHost: a\r\n\r\n", "plain_http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "plain_http"),
        (b"\0" * 300, "malformed"),
        (b"\x16\x03\x01\x00\x05nonsense", "malformed"),
        (b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xfc" + bytes(1 << 17), "malformed"),
    ],
)
async def test_input_that_is_not_a_handshake_is_refused(
    bench: Bench, authority: Authority, sent: bytes, reason: str
) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")))
    said = await raw(gateway, sent)
    if reason == "plain_http":
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    assert failures(gateway) == {reason: 1}
    assert gateway.connections == 0


async def test_a_handshake_is_bounded_in_time(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")), tls_handshake_timeout_s=0.1)
    assert await raw(gateway, b"\x16\x03\x01") == b""
    assert await raw(gateway) == b""
    assert failures(gateway) == {"timeout": 2}


async def test_clients_that_leave_or_reject_the_handshake_are_counted(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")))
    _, writer = await open_to(gateway)
    await eventually(lambda: gateway.connections == 1)
    await close(writer)
    await eventually(lambda: failures(gateway) == {"left": 1})
    curl = str(program("curl", "curl"))
    assert "certificate" in await output(curl, "--silent", "--show-error", f"https://127.0.0.1:{port_of(gateway)}")
    await eventually(lambda: failures(gateway) == {"left": 1, "refused": 1})


async def test_a_handshake_byte_by_byte_completes(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.client().wrap_bio(incoming, outgoing, server_hostname="edge.test")
    reader, writer = await open_to(gateway)
    found = b""
    async with asyncio.timeout(BOUND_S):
        while not found.endswith(b"hello"):
            try:
                if client.version() is None or not found:
                    client.do_handshake()
                    if not found:
                        client.write(REQUEST)
                        found = b"\n"
                found += client.read(1 << 16)
            except ssl.SSLWantReadError:
                pass
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await pass_turns(1)
            if not found.endswith(b"hello"):
                incoming.write(await reader.read(1 << 16))
    await close(writer)


async def test_sessions_are_resumed(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")))
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def twice() -> bool:
        session = None
        for _ in range(2):
            with (
                socket.create_connection(("127.0.0.1", port_of(gateway)), BOUND_S) as sock,
                context.wrap_socket(sock, server_hostname="edge.test", session=session) as secure,
            ):
                session, is_reused = secure.session, secure.session_reused
        return bool(is_reused)

    assert await asyncio.to_thread(twice)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize(
    "names", [("edge.test", "other.test"), ("edge.test", "stranger.test"), ("a.any.test", "b.any.test")]
)
async def test_a_session_is_resumed_under_its_own_server_name_alone(
    bench: Bench, authority: Authority, version: ssl.TLSVersion, names: tuple[str, str]
) -> None:
    """RFC 6066 section 3."""
    gateway = await bench.start(tls(authority.issue("edge.test", "other.test"), authority.issue("*.any.test")))
    context = authority.client()
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version

    def resumed(*servers: str) -> list[bool]:
        session, found = None, []
        for name in servers:
            with (
                socket.create_connection(("127.0.0.1", port_of(gateway)), BOUND_S) as sock,
                context.wrap_socket(sock, server_hostname=name, session=session) as secure,
            ):
                secure.sendall(REQUEST)
                secure.recv(1 << 16)
                session = session or secure.session
                found.append(bool(secure.session_reused))
        return found

    first, second = names
    assert await asyncio.to_thread(resumed, first, second, first) == [False, False, True]


@pytest.mark.parametrize(
    ("name", "invented"),
    [
        ("edge.test", ["{}.stranger.test", "{}.any.test"]),
        ("a.any.test", ["{}.stranger.test"]),
        ("", ["{}.stranger.test", "{}.any.test"]),
    ],
)
async def test_names_that_clients_invent_end_no_resumption_of_others(
    bench: Bench, authority: Authority, monkeypatch: pytest.MonkeyPatch, name: str, invented: list[str]
) -> None:
    for bound in ("MOST_SESSION_NAMES", "MOST_UNKNOWN_NAMES"):
        monkeypatch.setattr(certificates, bound, 2, raising=False)
    gateway = await bench.start(tls(authority.issue("edge.test"), authority.issue("*.any.test")))
    context = authority.client()
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def shake(server_name: str, session: ssl.SSLSession | None = None) -> tuple[ssl.SSLSession | None, bool]:
        with (
            socket.create_connection(("127.0.0.1", port_of(gateway)), BOUND_S) as sock,
            context.wrap_socket(sock, server_hostname=server_name or None, session=session) as secure,
        ):
            return secure.session, bool(secure.session_reused)

    def is_resumed() -> bool:
        session, _ = shake(name)
        for pattern in invented:
            for number in range(3):
                shake(pattern.format(number))
        return shake(name, session)[1]

    assert await asyncio.to_thread(is_resumed)


@pytest.mark.parametrize("is_rsa", [True, False])
async def test_a_client_gets_a_certificate_of_a_kind_that_it_can_use(
    bench: Bench, authority: Authority, is_rsa: bool
) -> None:
    pairs = [authority.issue("edge.test", "b.test", file=f"{kind}", is_rsa=kind == "rsa") for kind in ("ec", "rsa")]
    gateway = await bench.start(tls(*(pairs if is_rsa else reversed(pairs))))
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256" if is_rsa else "ECDHE-ECDSA-AES128-GCM-SHA256")
    for name in ("edge.test", "b.test"):
        assert (await answered(*await open_to(gateway, context, name))).status == 200
    context.check_hostname = False
    assert (await answered(*await open_to(gateway, context, "stranger.test"))).status == 200


@pytest.mark.parametrize("is_first", [True, False])
async def test_of_equal_certificates_the_one_valid_longest_is_used(
    bench: Bench, authority: Authority, is_first: bool
) -> None:
    old = authority.issue("edge.test", file="old", days=1)
    new = authority.issue("edge.test", "new.test", file="new", days=4)
    gateway = await bench.start(tls(*((new, old) if is_first else (old, new))))
    context = authority.client()
    for name in ("edge.test", ""):
        context.check_hostname = bool(name)
        _, writer = await open_to(gateway, context, name)
        certificate = writer.get_extra_info("peercert")
        assert [value for _, value in certificate["subjectAltName"]] == ["edge.test", "new.test"]
        await close(writer)


async def test_handshakes_count_as_connections_and_end_with_the_gateway(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test")), max_connections=1)
    _, first = await open_to(gateway)
    await eventually(lambda: gateway.connections == 1)
    assert await raw(gateway, REQUEST) == b""
    await gateway.stop()
    bench.running.clear()
    assert gateway.connections == 0
    await close(first)


@pytest.mark.parametrize("full", [0, 1])
async def test_all_listeners_share_one_connection_limit(bench: Bench, full: int) -> None:
    gateway = await bench.start(
        {"address": "127.0.0.1:0", "redirect_to_https": True}, {"address": "127.0.0.1:0"}, max_connections=1
    )
    reader, writer = await open_to(gateway, index=full)
    await eventually(lambda: gateway.connections == 1)
    assert await raw(gateway, REQUEST, index=1 - full) == b""
    assert gateway.connections == 1
    refused = figures(gateway, "durable_gateway_connections_refused_total")
    assert refused == {
        ("limit",): 1, ("client",): 0, ("banned",): 0, ("displaced",): 0, ("leaving",): 0, ("memory",): 0, ("proxy",): 0
    }  # fmt: skip
    # The admitted connection is answered, and makes room when it closes.
    status = (await answered(reader, writer)).status
    assert status == (200 if full else 308)
    await eventually(lambda: gateway.connections == 0)
    assert (await answered(*await open_to(gateway, index=1 - full))).status == (308 if full else 200)


# -- certificates that change ------------------------------------------------------------------------------------------


async def live(gateway: RunningGateway, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await open_to(gateway, context)
    writer.write(b"GET /s?offset=-1&live=sse HTTP/1.1\r\nHost: edge.test\r\n\r\n")
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"upToDate")
    return reader, writer


async def append(gateway: RunningGateway, context: ssl.SSLContext, data: bytes) -> None:
    head = b"POST /s HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(data)
    assert (await answered(*await open_to(gateway, context), head + data)).status in (200, 204)


async def serial(gateway: RunningGateway, context: ssl.SSLContext) -> str:
    _, writer = await open_to(gateway, context)
    found = str(writer.get_extra_info("peercert")["serialNumber"])
    await close(writer)
    return found


@pytest.mark.parametrize("by", ["reload", "change"])
async def test_new_certificates_take_effect_without_closing_connections(
    bench: Bench, authority: Authority, by: str
) -> None:
    gateway = await bench.start(tls(authority.issue("edge.test", days=5)))
    context = authority.client()
    reader, writer = await live(gateway, context)
    before = await serial(gateway, context)
    (expiry,) = figures(gateway, "durable_gateway_certificate_expiry_timestamp_seconds").values()

    authority.issue("edge.test", days=9)
    if by == "reload":
        await gateway.reload()
    else:

        async def is_new() -> bool:
            bench.clock.advance(POLL_S)
            return await serial(gateway, context) != before

        await eventually(is_new)
    assert await serial(gateway, context) != before
    assert figures(gateway, "durable_gateway_certificate_expiry_timestamp_seconds") == {
        ("edge.test",): pytest.approx(expiry + 4 * 86_400, abs=60)
    }
    await append(gateway, context, b"!more!")
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"!more!")
    await close(writer)


@pytest.mark.parametrize("spoil", ["cut", "gone", "of another key"])
async def test_an_unusable_pair_leaves_the_old_one_in_effect(
    bench: Bench, authority: Authority, caplog: pytest.LogCaptureFixture, spoil: str
) -> None:
    pair, other = authority.issue("edge.test"), authority.issue("other.test")
    gateway = await bench.start(tls(pair, other))
    context = authority.client()
    before = await serial(gateway, context)
    match spoil:
        case "cut":
            pair.certificate.write_bytes(pair.certificate.read_bytes()[:200])
        case "gone":
            pair.key.unlink()
        case _:
            authority.issue("edge.test", file="new")
            (pair.certificate.parent / "new.crt").replace(pair.certificate)
    authority.issue("other.test", days=9)
    expiries = figures(gateway, "durable_gateway_certificate_expiry_timestamp_seconds")
    await gateway.reload()
    assert await serial(gateway, context) == before
    assert figures(gateway, "durable_gateway_certificate_failures_total") == {(): 1}
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.listeners"]
    assert len(lines) == 1
    assert "listener[0].tls.certificates[0]" in lines[0]
    now = figures(gateway, "durable_gateway_certificate_expiry_timestamp_seconds")
    assert now["edge.test",] == expiries["edge.test",]
    assert now["other.test",] > expiries["other.test",]
    # Once repaired, the pair takes effect.
    authority.issue("edge.test")
    await gateway.reload()
    assert await serial(gateway, context) != before


async def is_let_in(gateway: RunningGateway, context: ssl.SSLContext) -> bool:
    """Whether a client with this certificate is answered.  Over TLS 1.3 it notices a refusal when it reads."""
    try:
        return (await answered(*await open_to(gateway, context))).status == 200
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
        return False


@pytest.mark.parametrize("spoil", ["cut", "gone", "of another key"])
async def test_a_kept_pair_uses_the_new_client_authorities(
    bench: Bench, authority: Authority, tmp_path: Path, spoil: str
) -> None:
    """Even if a pair cannot be read, clients of an authority that is no longer trusted are refused."""
    (tmp_path / "new").mkdir()
    successor = Authority(tmp_path / "new", "successor")
    pair = authority.issue("edge.test")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.file.read_bytes())
    gateway = await bench.start(tls(pair, client_ca=str(trusted), client_certificates="required"))
    old, new = (authority.client(by.issue("client")) for by in (authority, successor))
    assert (await is_let_in(gateway, old), await is_let_in(gateway, new)) == (True, False)
    match spoil:
        case "cut":
            pair.certificate.write_bytes(pair.certificate.read_bytes()[:200])
        case "gone":
            pair.key.unlink()
        case _:
            authority.issue("edge.test", file="another").certificate.replace(pair.certificate)
    trusted.write_bytes(successor.file.read_bytes())
    await gateway.reload()
    assert figures(gateway, "durable_gateway_certificate_failures_total") == {(): 1}
    assert (await is_let_in(gateway, old), await is_let_in(gateway, new)) == (False, True)
    # Unreadable authorities change nothing.
    trusted.write_bytes(b"")
    await gateway.reload()
    assert (await is_let_in(gateway, old), await is_let_in(gateway, new)) == (False, True)


async def test_half_a_pair_is_not_loaded(bench: Bench, authority: Authority, tmp_path: Path) -> None:
    """The certificate is written first and its key a little later: no warning is logged in between."""
    pair = authority.issue("edge.test")
    gateway = await bench.start(tls(pair))
    context = authority.client()
    before = await serial(gateway, context)
    new = authority.issue("edge.test", file="new")
    new.certificate.replace(pair.certificate)
    for _ in range(3):
        bench.clock.advance(POLL_S / 4)
        assert await serial(gateway, context) == before
    new.key.replace(pair.key)

    async def is_new() -> bool:
        bench.clock.advance(POLL_S)
        return await serial(gateway, context) != before

    await eventually(is_new)
    assert figures(gateway, "durable_gateway_certificate_failures_total") == {(): 0}


async def test_a_reload_takes_other_certificates_and_refuses_missing_ones(bench: Bench, authority: Authority) -> None:
    first = tls(authority.issue("edge.test"), address="127.0.0.1:0")
    gateway = await bench.start(first)
    bench.loaded = {"listeners": [tls(authority.issue("edge.test", "www.test", file="second"))]}
    change = await gateway.reload()
    assert change.changed == ("listener[0].tls",)
    _, writer = await open_to(gateway, authority.client(), "www.test")
    await close(writer)
    nowhere = Pair(bench.folder / "nowhere", bench.folder / "nowhere")
    bench.loaded = {"listeners": [tls(nowhere)]}
    with pytest.raises(ConfigError, match=r"listener\[0\]\.tls\.certificates\[0\].*nowhere: cannot be read"):
        await gateway.reload()
    assert (
        gateway.config.listeners
        == GatewayConfig.for_origin(
            bench.origin.url, listeners=[tls(Pair(bench.folder / "second.crt", bench.folder / "second.key"))]
        ).listeners
    )
    bench.loaded = {"listeners": [tls(authority.issue("edge.test")), {"address": "127.0.0.1:0"}]}
    assert (await gateway.reload()).needs_restart == ("listener",)
    assert len(gateway.listeners) == 1


async def test_the_start_fails_and_names_the_unusable_file(bench: Bench, authority: Authority) -> None:
    pair, other = authority.issue("edge.test"), authority.issue("other.test")
    with pytest.raises(ConfigError, match=r"listener\[1\]\.tls\.certificates\[0\]: .*is not the key of"):
        await bench.start({"address": "127.0.0.1:0"}, tls(Pair(pair.certificate, other.key)))
    with pytest.raises(ConfigError, match=r"listener\[0\]\.tls\.client_ca: .*holds no certificates"):
        await bench.start(tls(pair, client_ca=str(pair.key), client_certificates="required"))
    for missing in (Pair(bench.folder / "none", pair.key), Pair(pair.certificate, bench.folder / "none")):
        with pytest.raises(ConfigError, match=r"certificates\[0\]: \S*/none: cannot be read: No such file"):
            await bench.start(tls(missing))


# -- the PROXY protocol, and proxies that are trusted ------------------------------------------------------------------


async def noted(bench: Bench, listener: dict[str, Any], file: str = "log", **more: Any) -> RunningGateway:
    """A gateway with an access log."""
    path = str(bench.folder / file)
    return await bench.start(listener, sink="file", path=path, client_address="full", batch_s=0.001, **more)


async def clients_in_log(bench: Bench, gateway: RunningGateway, file: str = "log") -> list[str | None]:
    await gateway.stop()
    bench.running.remove(gateway)
    lines = (bench.folder / file).read_bytes().splitlines()
    return [orjson.loads(line).get("client") for line in lines]


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
async def test_the_log_has_the_client_of_the_proxy_header(bench: Bench, authority: Authority, is_secure: bool) -> None:
    listener = tls(authority.issue("edge.test")) if is_secure else {"address": "127.0.0.1:0"}
    gateway = await noted(bench, {**listener, "proxy_protocol": "on"})
    for header in (b"PROXY TCP4 203.0.113.7 127.0.0.1 1 2\r\n", b"PROXY UNKNOWN\r\n"):
        sock = socket.create_connection(("127.0.0.1", port_of(gateway)))
        # Byte by byte: a header may arrive in any pieces.
        for byte in header:
            sock.send(bytes([byte]))
            await pass_turns(1)
        context = authority.client() if is_secure else None
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname="edge.test" if is_secure else None
        )
        for _ in range(2):
            writer.write(REQUEST)
            assert (await read_response(reader)).body == b"hello"
        await close(writer)
    assert await clients_in_log(bench, gateway) == ["203.0.113.7"] * 2 + ["127.0.0.1"] * 2


async def test_proxy_header_and_request_may_arrive_in_one_piece(bench: Bench) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0", "proxy_protocol": "on"})
    reader, writer = await open_to(gateway)
    writer.write(b"PROXY TCP4 203.0.113.7 127.0.0.1 1 2\r\n" + REQUEST + REQUEST)
    for _ in range(2):
        assert (await read_response(reader)).body == b"hello"
    await close(writer)


@pytest.mark.parametrize(
    "sent", [REQUEST, b"PROXY TCP4 203.0.113.7 127.0.0.1 1 99999\r\n" + REQUEST, b"PROXY UNKNOWN" + b" " * 200, b"PRO"]
)
async def test_a_connection_without_a_valid_proxy_header_is_closed(bench: Bench, sent: bytes) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0", "proxy_protocol": "on"}, client_header_timeout_s=0.1)
    assert await raw(gateway, sent) == b""
    assert gateway.connections == 0
    assert figures(gateway, "durable_gateway_connections_refused_total")["proxy",] == 1


@pytest.mark.parametrize(("trusted", "is_let_in"), [(["127.0.0.0/8"], True), (["10.0.0.0/8", "unix"], False)])
async def test_a_proxy_header_is_accepted_from_trusted_peers_only(
    bench: Bench, trusted: list[str], is_let_in: bool
) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0", "proxy_protocol": "on"}, trusted_proxies=trusted)
    close_it = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    said = await raw(gateway, b"PROXY TCP4 203.0.113.7 127.0.0.1 1 2\r\n" + close_it)
    assert said.startswith(b"HTTP/1.1 200 ") is is_let_in
    assert figures(gateway, "durable_gateway_connections_refused_total")["proxy",] == (0 if is_let_in else 1)


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize(
    ("trusted", "forwarded_by", "header", "client"),
    [
        ([], "x-forwarded-for", b"X-Forwarded-For: 203.0.113.7", "127.0.0.1"),
        (["10.0.0.0/8"], "x-forwarded-for", b"X-Forwarded-For: 203.0.113.7", "127.0.0.1"),
        (["127.0.0.1"], "x-forwarded-for", b"x-forwarded-for: 6.6.6.6, 203.0.113.7", "203.0.113.7"),
        (["127.0.0.1"], "x-forwarded-for", b"Forwarded: for=203.0.113.7", "127.0.0.1"),
        (["127.0.0.1"], "forwarded", b'Forwarded: for=6.6.6.6, for="[2001:db8::7]:80"', "2001:db8::7"),
    ],
)
async def test_the_log_names_the_client_behind_a_trusted_proxy(
    bench: Bench, fast_path: bool, trusted: list[str], forwarded_by: str, header: bytes, client: str
) -> None:
    """The same request several times: the first is fetched, the others are answered by their bytes."""
    more: dict[str, Any] = {"trusted_proxies": trusted, "forwarded_by": forwarded_by, "fast_path": fast_path}
    gateway = await noted(bench, {"address": "127.0.0.1:0"}, **more)
    reader, writer = await open_to(gateway)
    for _ in range(4):
        writer.write(REQUEST[:-2] + header + b"\r\n\r\n")
        assert (await read_response(reader)).status == 200
    await close(writer)
    assert await clients_in_log(bench, gateway) == [client] * 4


LOCAL = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"
"""A PROXY header of version 2 with LOCAL: the balancer is the client itself."""


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("header", "client"),
    [
        (LOCAL, "127.0.0.1"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n", "203.0.113.7"),
    ],
)
async def test_after_a_local_proxy_header_no_forwarding_header_is_believed(
    bench: Bench, authority: Authority, header: bytes, client: str, is_secure: bool, fast_path: bool
) -> None:
    """The proxy has not looked at the requests, so their forwarding headers come from the client."""
    listener = tls(authority.issue("edge.test")) if is_secure else {"address": "127.0.0.1:0"}
    more: dict[str, Any] = {"trusted_proxies": ["127.0.0.1"], "fast_path": fast_path}
    gateway = await noted(bench, {**listener, "proxy_protocol": "on"}, **more)
    sock = socket.create_connection(("127.0.0.1", port_of(gateway)))
    sock.sendall(header)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(
        sock=sock, ssl=authority.client() if is_secure else None, server_hostname="edge.test" if is_secure else None
    )
    for _ in range(4):
        writer.write(REQUEST[:-2] + b"X-Forwarded-For: 203.0.113.7\r\n\r\n")
        assert (await read_response(reader)).status == 200
    await close(writer)
    assert await clients_in_log(bench, gateway) == [client] * 4


@pytest.mark.parametrize(("trusted", "scheme"), [(["127.0.0.1"], "https"), ([], "http")])
async def test_the_scheme_behind_a_trusted_proxy_is_that_of_the_client(
    bench: Bench, trusted: list[str], scheme: str
) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0"}, trusted_proxies=trusted)
    put = b"PUT /new HTTP/1.1\r\nHost: edge.test\r\nContent-Length: 0\r\nX-Forwarded-Proto: https\r\n"
    response = await answered(*await open_to(gateway), put + b"X-Forwarded-For: 203.0.113.7\r\n\r\n")
    assert response.headers["location"] == [f"{scheme}://edge.test/new"]


@pytest.mark.parametrize(
    ("forwarded_by", "passed"),
    [
        (
            "x-forwarded-for",
            [b"X-Forwarded-For: 203.0.113.7, 127.0.0.1", b"Forwarded: for=127.0.0.1;host=e;proto=http"],
        ),
        ("forwarded", [b"Forwarded: for=203.0.113.9, for=127.0.0.1;host=e;proto=http"]),
    ],
)
async def test_only_the_forwarding_header_that_the_proxy_writes_reaches_the_origin(
    bench: Bench, forwarded_by: str, passed: list[bytes]
) -> None:
    """The proxy passes on the other header as its client has forged it."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await close(writer)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as origin:
        config = GatewayConfig.for_origin(
            f"http://127.0.0.1:{origin.sockets[0].getsockname()[1]}",
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            trusted_proxies=["127.0.0.1"],
            forwarded_by=forwarded_by,
        )
        gateway = await start_gateway(config)
        bench.running.append(gateway)
        said = b"X-Forwarded-For: 203.0.113.7\r\nForwarded: for=203.0.113.9\r\n\r\n"
        await answered(*await open_to(gateway), b"DELETE /s HTTP/1.1\r\nHost: e\r\n" + said)
    assert [line for line in heads[0].split(b"\r\n") if b"orwarded" in line] == passed


# -- sockets -----------------------------------------------------------------------------------------------------------


async def over_unix(path: Path) -> Response:
    async with asyncio.timeout(BOUND_S):
        return await answered(*await asyncio.open_unix_connection(str(path)))


async def test_a_unix_socket_has_its_mode_and_is_removed_at_the_end(bench: Bench) -> None:
    path = bench.folder / "s.sock"
    gateway = await bench.start({"address": f"unix:{path}", "mode": "600"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (await over_unix(path)).body == b"hello"
    assert gateway.gateway_url == f"unix:{path}"
    await gateway.stop()
    bench.running.clear()
    assert not path.exists()


async def test_a_stale_unix_socket_is_taken_over(bench: Bench) -> None:
    path = bench.folder / "s.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    await bench.start({"address": f"unix:{path}"})
    assert (await over_unix(path)).body == b"hello"


async def test_a_unix_socket_in_use_and_a_file_are_left_alone(bench: Bench) -> None:
    path, file = bench.folder / "s.sock", bench.folder / "file"
    first = await bench.start({"address": f"unix:{path}"})
    file.write_text("mine")
    for taken in (path, file):
        with pytest.raises(OSError, match=str(taken)):
            await bench.start({"address": f"unix:{taken}"})
    assert file.read_text() == "mine"
    assert (await over_unix(path)).body == b"hello"
    # A socket that another process has put in its place is kept.
    path.unlink()
    path.write_text("another's")
    await first.stop()
    bench.running.clear()
    assert path.read_text() == "another's"


async def test_two_gateways_share_a_port(bench: Bench) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    for _ in range(2):
        await bench.start({"address": address, "reuse_port": True})
    with pytest.raises(OSError, match="in use"):
        await bench.start({"address": address})


async def test_all_listeners_are_opened_or_none(bench: Bench) -> None:
    path = bench.folder / "s.sock"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await bench.start({"address": f"unix:{path}"}, {"address": f"127.0.0.1:{taken.getsockname()[1]}"})
    assert not path.exists()


async def test_a_port_alone_is_open_to_both_families(bench: Bench) -> None:
    hosts = ["127.0.0.1"]
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        hosts.append("::1")
    gateway = await bench.start({"address": ":0"})
    (url,) = gateway.listeners.urls
    port = int(url.rpartition(":")[2])
    for host in hosts:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /none HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        writer.close()


async def test_the_start_fails_without_the_sockets_of_systemd(bench: Bench) -> None:
    for environ in (
        {},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "nonsense"},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
    ):
        with pytest.raises(ConfigError, match="systemd"):
            await bench.start({"address": "systemd"}, environ=environ)


SYSTEMD = """
import os, sys
for fd in map(int, sys.argv[1].split(",")):
    os.set_inheritable(fd, True)
for at, fd in enumerate(map(int, sys.argv[1].split(","))):
    os.dup2(fd, 3 + at)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(at + 1), LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.executable, [sys.executable, "-m", "gateway", *sys.argv[3:]])
"""


async def test_sockets_passed_by_systemd_accept_connections(bench: Bench, authority: Authority) -> None:
    pair = authority.issue("edge.test")
    path = bench.folder / "s.sock"
    sockets = [socket.socket(), socket.socket(), socket.socket(socket.AF_UNIX)]
    for sock in sockets[:2]:
        sock.bind(("127.0.0.1", 0))
    sockets[2].bind(str(path))
    for sock in sockets:
        sock.listen()
    config = bench.folder / "gateway.toml"
    config.write_text(f"""
[server]
admin = "127.0.0.1:0"
workers = 1
[[listener]]
address = "systemd"
[[listener]]
address = "systemd:secure"
[listener.tls]
certificates = [{{ certificate = "{pair.certificate}", key = "{pair.key}" }}]
[[route]]
origin = "{bench.origin.url}"
""")
    # Keep the sockets off descriptors 3, 4 and 5, to which they are moved.
    fds = [os.dup(sock.fileno()) for sock in sockets]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in fds]
    program_ = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SYSTEMD, ",".join(map(str, high)), "plain:secure:plain", "serve", "--config", str(config),
        stdout=subprocess.PIPE, pass_fds=high,
    )  # fmt: skip
    try:
        assert program_.stdout is not None
        async with asyncio.timeout(6 * BOUND_S):
            remembered = [(await program_.stdout.readline()).decode() for _ in range(3)]
        ports = [sock.getsockname()[1] for sock in sockets[:2]]
        assert remembered[0] == f"READY gateway http://127.0.0.1:{ports[0]}\n"
        assert remembered[1] == f"READY gateway https://127.0.0.1:{ports[1]}\n"
        async with asyncio.timeout(BOUND_S):
            plain = await asyncio.open_connection("127.0.0.1", ports[0])
            secure = await asyncio.open_connection(
                "127.0.0.1", ports[1], ssl=authority.client(), server_hostname="edge.test"
            )
        assert (await answered(*plain)).body == (await answered(*secure)).body == b"hello"
        assert (await over_unix(path)).body == b"hello"
    finally:
        program_.terminate()
        async with asyncio.timeout(6 * BOUND_S):
            await program_.communicate()
        for fd in (*fds, *high):
            os.close(fd)
        for sock in sockets:
            sock.close()
    assert path.exists(), "systemd's, not ours"


# -- redirects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "request_line", "host", "location"),
    [
        (True, "GET /a/b?c=d&e", "edge.test", "https://edge.test/a/b?c=d&e"),
        (True, "GET /", "edge.test:8080", "https://edge.test/"),
        (8443, "GET /", "edge.test:8080", "https://edge.test:8443/"),
        (8443, "POST /s", "[2001:db8::1]:80", "https://[2001:db8::1]:8443/s"),
        (True, "OPTIONS /s", "127.0.0.1", "https://127.0.0.1/s"),
        (True, "GET http://evil.test/s", "edge.test", "https://edge.test/s"),
        (True, "GET //evil.test/s", "edge.test", "https://edge.test//evil.test/s"),
    ],
)
async def test_a_redirecting_listener_sends_every_request_to_https(
    bench: Bench, to: int, request_line: str, host: str, location: str
) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0", "redirect_to_https": to})
    request = f"{request_line} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    reader, writer = await open_to(gateway)
    for _ in range(2):
        writer.write(request)
        response = await read_response(reader)
        assert (response.status, response.headers["location"]) == (308, [location])
    await close(writer)


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: \r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n",
        "GET / HTTP/1.1\r\nHost: edge.test/evil\r\n",
        "GET / HTTP/1.1\r\nHost: user@edge.test\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n",
        "GET / HTTP/1.1\r\nHost: edge.test:x\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: edge.test\r\n",
        "GET /\u00e4 HTTP/1.1\r\nHost: edge.test\r\n",
    ],
)
async def test_a_redirecting_listener_refuses_an_invalid_host(bench: Bench, head: str) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0", "redirect_to_https": True})
    said = await raw(gateway, f"{head}\r\n".encode("latin-1"))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"Location" not in said


async def test_a_redirecting_listener_drains_with_the_others(bench: Bench) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0", "redirect_to_https": True}, {"address": "127.0.0.1:0"})
    reader, writer = await open_to(gateway)
    await eventually(lambda: gateway.connections == 1)
    await gateway.stop()
    bench.running.clear()
    async with asyncio.timeout(BOUND_S):
        assert await reader.read() == b""
    await close(writer)


# -- real clients ------------------------------------------------------------------------------------------------------


async def output(*command: str, **environ: str) -> str:
    client = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environ},
    )
    try:
        async with asyncio.timeout(6 * BOUND_S):
            said, _ = await client.communicate()
    except BaseException:
        client.kill()
        await client.wait()
        raise
    return said.decode()


async def test_curl_and_node_read_over_tls(bench: Bench, authority: Authority) -> None:
    gateway = await bench.start(tls(authority.issue("localhost")))
    url = f"https://localhost:{port_of(gateway)}/s?offset=-1"
    curl = [
        str(program("curl", "curl")),
        "--silent",
        "--show-error",
        "--max-time",
        "20",
        "--cacert",
        str(authority.file),
    ]
    assert await output(*curl, "--ipv4", url) == "hello"
    assert await output(*curl, "--ipv4", "--http1.1", "--tls-max", "1.2", url, url) == "hellohello"
    fetch = f"fetch('{url.replace('localhost', '127.0.0.1')}').then(r => r.text()).then(console.log)"
    refused = await output("node", "-e", f"{fetch}.catch(e => console.log(e.cause.code))")
    assert "hello" not in refused
    fetch = f"fetch('{url}').then(r => r.text()).then(console.log)"
    node = await output("node", "--dns-result-order=ipv4first", "-e", fetch, NODE_EXTRA_CA_CERTS=str(authority.file))
    assert node == "hello\n"


async def test_a_crowd_is_accepted_in_fewer_turns_than_it_has_connections_until_clients_come_alone(
    bench: Bench,
) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0"}, {"address": "127.0.0.1:0"})
    opened, clients = gateway.listeners, gateway.clients
    first, second = ("127.0.0.1", port_of(gateway)), ("127.0.0.1", port_of(gateway, 1))

    async def arrive(count: int, *addresses: tuple[str, int]) -> int:
        """Connect without a turn of the loop; the number of turns in which all are accepted."""
        crowd, turns = [socket.create_connection(address) for _ in range(count) for address in addresses], 0
        while len(clients) < len(crowd):
            await asyncio.sleep(0)
            turns += 1
        for one in crowd:
            one.close()
        await eventually(lambda: not len(clients))
        return turns

    assert "2 servers" in repr(opened)
    assert await arrive(64, first) < 32
    assert await arrive(256, first) < 64
    assert "17 servers" in repr(opened)
    for _ in range(200):
        await arrive(1, first)
    assert "2 servers" in repr(opened)
    # Listeners share the further descriptors: clients must not use up the open files that are kept for the rest.
    await arrive(128, first, second)
    assert "17 servers" in repr(opened)
    await gateway.stop()
    for address in (first, second):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


async def test_connections_that_are_refused_are_accepted_as_fast_as_others(bench: Bench) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0"}, client_connections=1)
    address = ("127.0.0.1", port_of(gateway))
    kept = socket.create_connection(address)
    await eventually(lambda: len(gateway.clients) == 1)
    crowd = [socket.create_connection(address) for _ in range(64)]
    await eventually(lambda: gateway.clients.refused.total() == len(crowd))
    assert "16 servers" in repr(gateway.listeners)
    for one in (kept, *crowd):
        one.close()


async def test_a_crowd_at_the_second_address_of_a_host_name_is_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[asyncio.Server] = []

    async def listen_at_two(_: object, factory: Any, **options: Any) -> list[asyncio.Server]:
        loop = asyncio.get_running_loop()
        made.append(await loop.create_server(factory, ["127.0.0.1", "127.0.0.2"], 0, **options))
        return made

    monkeypatch.setattr(listeners, "listen_at", listen_at_two)
    gateway = await bench.start({"address": "127.0.0.1:0"})
    second = made[0].sockets[1].getsockname()
    crowd = [socket.create_connection(second) for _ in range(64)]
    await eventually(lambda: len(gateway.clients) == len(crowd))
    assert "16 servers" in repr(gateway.listeners)
    for one in crowd:
        one.close()


async def test_a_port_closes_although_no_descriptor_is_free(bench: Bench) -> None:
    gateway = await bench.start({"address": "127.0.0.1:0"})
    address = ("127.0.0.1", port_of(gateway))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        await gateway.listeners.stop_accepting()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
