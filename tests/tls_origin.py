"""Certificates for a test, and an origin behind TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from gateway.aio.tasks import Tasks


def made(folder: Path, name: str, issuer: str | None = None) -> None:
    """A key and a certificate for a name, signed by an issuer made before or by itself."""
    of = ["-CA", f"{folder}/{issuer}.crt", "-CAkey", f"{folder}/{issuer}.key"] if issuer else []
    extensions = ["-addext", f"subjectAltName=DNS:{name}"] if issuer else []
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt", *of, *extensions],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip


def server_context(folder: Path, *, asks_client: bool = False) -> ssl.SSLContext:
    """That of `origin.test`, which may want to see a certificate of its own authority's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "origin.test.crt", folder / "origin.test.key")
    if asks_client:
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def behind_tls(url: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """The https URL of a server that passes what it is sent to the plain one at `url`, byte for byte."""
    at, tasks = urlsplit(url), Tasks()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to, back = await asyncio.open_connection(at.hostname, at.port)
        except OSError:
            writer.transport.abort()
            return
        tasks.start(passed(reader, back), "to the origin")
        tasks.start(passed(to, writer), "from the origin")

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await tasks.close()
