"""The tools that the benchmarks need besides Python: the peers and wrk from the system, and the C clients, built here.

On Debian, as root, missing tools are installed; elsewhere they are taken from PATH.  Tools that cannot be had are named
in one line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.machine import BenchError

_HERE: Final = Path(__file__).parent
_SBIN: Final = "/usr/sbin:/usr/local/sbin"
_LIVE: Final = ("publish.c", "origin.c")
_NCHAN: Final = "ngx_nchan_module.so"
_SSL_HEADER: Final = "openssl/ssl.h"
_INCLUDE_FOLDERS: Final = ("/usr/include", "/usr/local/include")
_MODULE_FOLDERS: Final = ("/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/local/lib/nginx/modules")

_PACKAGES: Final = {
    "nginx": "nginx",
    "varnishd": "varnish",
    "wrk": "wrk",
    "cc": "gcc libc6-dev",
    _NCHAN: "libnginx-mod-nchan",
}

_SECURE_PACKAGES: Final = {"h2load": "nghttp2-client", "openssl": "openssl", _SSL_HEADER: "libssl-dev"}
"""Further tools that are needed if TLS is measured."""


@dataclass(frozen=True, slots=True)
class SecureTools:
    """The load generator over TLS."""

    openssl: Path
    h2load: Path
    live: Path
    multiplex: Path


@dataclass(frozen=True, slots=True)
class Tools:
    """The paths of all tools."""

    nginx: Path
    varnishd: Path
    wrk: Path
    nchan_module: Path
    respond: Path
    live: Path
    poll: Path
    join: Path
    converse: Path
    multiplex: Path
    secure: SecureTools

    def versions(self) -> dict[str, str]:
        """The version that each peer reports."""
        spoken = {"nginx": [self.nginx, "-v"], "varnish": [self.varnishd, "-V"], "wrk": [self.wrk, "-v"]}
        return {name: _first_line([str(part) for part in argv]) for name, argv in spoken.items()}


def prepare(build: Path) -> Tools:
    """Find or install every tool and build the clients into `build`.  Raises BenchError naming what is missing."""
    missing = [name for name in (*_PACKAGES, *_SECURE_PACKAGES) if _find(name) is None]
    if missing:
        _install(missing)
    still = [name for name in missing if _find(name) is None]
    if still:
        raise BenchError(f"not found: {', '.join(still)}; Debian has them in: {' '.join(_packages(still))}")
    build.mkdir(parents=True, exist_ok=True)
    return Tools(
        nginx=_found("nginx"),
        varnishd=_found("varnishd"),
        wrk=_found("wrk"),
        nchan_module=_found(_NCHAN),
        respond=_compile(build / "respond", "respond.c"),
        **live_clients(build),
        secure=_prepare_secure(build),
    )


def live_clients(build: Path) -> dict[str, Path]:
    """The clients of live readers, built into `build`, by name.  Raises BenchError if one cannot be built."""
    return {
        name: _compile(build / name, f"{name}.c", *_LIVE) for name in ("live", "poll", "join", "converse", "multiplex")
    }


def _prepare_secure(build: Path) -> SecureTools:
    return SecureTools(
        openssl=_found("openssl"),
        h2load=_found("h2load"),
        live=_compile(build / "live-tls", "live.c", *_LIVE, has_tls=True),
        multiplex=_compile(build / "multiplex-tls", "multiplex.c", *_LIVE, has_tls=True),
    )


def _find(name: str) -> Path | None:
    if name == _NCHAN:
        return next((path for folder in _MODULE_FOLDERS if (path := Path(folder, _NCHAN)).exists()), None)
    if name == _SSL_HEADER:
        return next((path for folder in _INCLUDE_FOLDERS if (path := Path(folder, name)).exists()), None)
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    return Path(found) if found else None


def _found(name: str) -> Path:
    path = _find(name)
    assert path is not None
    return path


def _packages(names: Iterable[str]) -> list[str]:
    return [package for name in names for package in {**_PACKAGES, **_SECURE_PACKAGES}[name].split()]


def _install(names: Iterable[str]) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    # RUNLEVEL=1: do not start the packages' own services.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    packages = _packages(names)
    print(f"installing {' '.join(packages)}", flush=True)
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise BenchError(f"{' '.join(command[:2])} cannot install {' '.join(packages)}: {lines[-1]}")


def _compile(output: Path, *sources: str, has_tls: bool = False) -> Path:
    folder = _HERE / "clients"
    command = ["cc", "-D_GNU_SOURCE", "-std=gnu11", "-O2", "-o", str(output), *(str(folder / name) for name in sources)]
    command += ["-DWITH_TLS", "-lssl", "-lcrypto"] if has_tls else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"cc cannot build {sources[0]}: {(done.stderr.splitlines() or ['no reason given'])[0]}")
    return output


def _first_line(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0].strip() if lines else "unknown"
