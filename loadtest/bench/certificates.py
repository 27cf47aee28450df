"""TLS for the servers: one certificate for all, and the lines of configuration that make each server use it.

nginx and nchan speak HTTP/2 on the same port, by ALPN, as the gateway does.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from loadtest.bench.machine import BenchError

HAS_HTTP2: Final = find_spec("h2") is not None
"""Whether the gateway speaks HTTP/2, for which it needs this library; otherwise those rows are left out."""

_STREAMS: Final = 128
"""Concurrent streams of a connection: nginx's default."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Two PEM files with an ECDSA key on P-256."""

    certificate: Path
    key: Path


def make_certificate(openssl: Path, folder: Path) -> Certificate:
    """A self-signed certificate, which the load generators accept.  Raises BenchError with openssl's last line."""
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=localhost", "-days", "2", "-keyout", made.key, "-out", made.certificate]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"openssl: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return made


def nginx_tls(port: int, certificate: Certificate) -> str:
    """The lines that an nginx `server` needs in addition to its plain listener."""
    return f"""\
    listen 127.0.0.1:{port} ssl http2 backlog=4096;
    ssl_certificate {certificate.certificate};
    ssl_certificate_key {certificate.key};
    ssl_protocols TLSv1.2 TLSv1.3;
    http2_max_concurrent_streams {_STREAMS};
"""


def gateway_tls(port: int, certificate: Certificate) -> str:
    """The lines that the gateway's TOML needs in addition to its plain listener."""
    return f"""
[[listener]]
address = "127.0.0.1:{port}"

[listener.tls]
certificates = [{{ certificate = "{certificate.certificate}", key = "{certificate.key}" }}]
"""
