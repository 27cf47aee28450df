"""The peers, configured alike so that the comparison is fair.

Each is one process on one core, keeps connections alive, logs nothing, and stands in front of the same origins, whose
answers have `public, max-age=3600` and are small enough to stay in memory.

| peer    | configuration                                                                                             |
|---------|-----------------------------------------------------------------------------------------------------------|
| gateway | as `serve` runs it: metrics counted, Cache-Status sent; cookies are not credentials on these routes       |
| nginx   | one worker, proxy_cache on tmpfs, open_file_cache, sendfile, keep-alive to clients and origins            |
| varnish | malloc storage, one thread pool; cookies ignored                                                          |
| nchan   | one worker, memory store (no Redis), a buffer as long as the window of the fan-out                        |
| bare    | a C epoll loop that writes the gateway's own answer to any request: the upper bound                       |

`/1k`, `/64k` and `/1m` are closed streams of that size; nginx stores none of those below their `/cold`.  `/pass` is
relayed by the gateway and by nginx; `/live` is the load client's own stream.  `/tail` is the in-memory origin, which
supports live requests and answers at most 1 KB at a time; below `/s2` is the in-memory S2 origin.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gateway.config.server import ServerConfig
from loadtest.bench.certificates import Certificate, gateway_tls, make_certificate, nginx_tls
from loadtest.bench.children import Child, free_ports, running
from loadtest.bench.fetch import fetch_raw
from loadtest.bench.machine import Cores
from loadtest.bench.nginx import MAX_CONNECTIONS, nchan_config, nginx_config
from loadtest.bench.tools import Tools

_Running = AbstractContextManager[Child]

SIZES: Final = {"1k": 1 << 10, "64k": 1 << 16, "1m": 1 << 20}
TAIL: Final = "tail"
S2: Final = "s2"
AUTH_REQUEST: Final = "auth_request"
"""nginx that asks an authorisation service, and remembers its answers."""
TAIL_CHUNK_BYTES: Final = 1 << 10
_CACHE: Final = "1GiB"

STRICT: Final = "fast path off"
HAS_FAST_PATH_SWITCH: Final = "fast_path" in ServerConfig.model_fields


@dataclass(frozen=True, slots=True)
class Peers:
    """All running servers."""

    servers: dict[str, Child]
    origins: dict[str, Child]
    live_port: int
    """The port where the load client serves `/live` while it runs."""
    certificate: Certificate
    """The certificate of all servers that speak TLS; None if TLS is not measured."""


@dataclass(frozen=True, slots=True)
class More:
    """Further lines of the gateway's configuration."""

    server: str = ""
    """Keys of `[server]`."""
    route: str = ""
    """Keys of each route of the Durable Streams."""
    tables: str = ""
    """Further tables."""


PLAIN: Final = More()


def closed_stream(size: int) -> bytes:
    """An origin's answer to a read of a closed stream of that many bytes."""
    head = (
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Content-Length: {size}\r\n"
        f"Stream-Next-Offset: {size:016d}\r\n"
        "Stream-Up-To-Date: true\r\n"
        "Stream-Closed: true\r\n"
        f'ETag: "bench:-1:{size}:c"\r\n'
        "Cache-Control: public, max-age=3600\r\n\r\n"
    )
    return head.encode("ascii") + bytes(index * 7919 % 251 for index in range(size))


HEAD_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 0\r\n"
    b"Stream-Next-Offset: 0000000000001024\r\nCache-Control: no-store\r\n\r\n"
)
POST_ANSWER: Final = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 0000000000001024\r\n\r\n"


def gateway_config(
    listen: int,
    admin: int,
    origins: dict[str, int],
    live: int,
    *,
    fast_path: bool | None,
    cache: str = _CACHE,
    tls: str = "",
    more: More = PLAIN,
) -> str:
    """The gateway's TOML.  With `fast_path` None that key is left out; `tls` has the lines of a listener."""
    switch = "" if fast_path is None else f"fast_path = {str(fast_path).lower()}\n"
    routes = "".join(
        f"""
[[route]]
name = "r{name}"
prefix = "/{name}"
origin = "http://127.0.0.1:{port}"
strip_prefix = false
credential_headers = ["authorization"]
{more.route}"""
        for name, port in origins.items()
        if name != S2
    )
    if S2 in origins:
        routes += f"""
[[route]]
name = "{S2}"
prefix = "/{S2}"
strip_prefix = true
origin = "http://127.0.0.1:{origins[S2]}"
protocol = "s2"
origin_http = "2"
"""
    return f"""\
[server]
listen = "127.0.0.1:{listen}"
admin = "127.0.0.1:{admin}"
shutdown_timeout_s = 1
workers = 1
{switch}{more.server}
[limits]
cache_bytes = "{cache}"
max_connections = {MAX_CONNECTIONS}
# The load of many clients comes from one address, and the peers have no bounds per client.
client_connections = {MAX_CONNECTIONS}
client_live_reads = {MAX_CONNECTIONS}
client_upstream_requests = 512
client_new_streams_per_s = 0
{routes}
[[route]]
name = "live"
prefix = "/live"
origin = "http://127.0.0.1:{live}"
sse_lifetime_s = 3600
heartbeat_s = 300
long_poll_timeout_s = 300
live_first_byte_timeout_s = 600
{more.route}{tls}{more.tables}"""


def varnish_config(origins: dict[str, int]) -> str:
    """Varnish's VCL for the cached paths."""
    names = [name for name in origins if name != "pass"]
    backends = "".join(f'backend o{name} {{ .host = "127.0.0.1"; .port = "{origins[name]}"; }}\n' for name in names)
    choice = "".join(f'  if (req.url ~ "^/{name}/") {{ set req.backend_hint = o{name}; }}\n' for name in names)
    return f"""vcl 4.1;
{backends}
sub vcl_recv {{
{choice}  unset req.http.Cookie;
  return (hash);
}}
sub vcl_backend_response {{ set beresp.ttl = 1h; }}
"""


@contextmanager
def all_running(tools: Tools, cores: Cores, folder: Path) -> Iterator[Peers]:
    """Start all servers; stop them at the end of the block."""
    with ExitStack() as stack:
        answers = {name: _Answers.of_closed_stream(size) for name, size in SIZES.items()}
        answers["pass"] = _Answers(closed_stream(1024), HEAD_ANSWER, POST_ANSWER)
        origins = {
            name: stack.enter_context(_responder(tools, f"origin-{name}", answer, cores.origin, folder))
            for name, answer in answers.items()
        }
        origins[TAIL] = stack.enter_context(_in_memory_origin(cores.origin, folder))
        origins[S2] = stack.enter_context(_s2_origin(cores.origin, folder))
        ports = {name: child.port for name, child in origins.items()}
        [live] = free_ports(1)
        certificate = make_certificate(tools.secure.openssl, folder)
        gateway = _gateway("gateway", ports, live, cores.server, folder, fast_path=None, certificate=certificate)
        servers = {
            "gateway": stack.enter_context(gateway),
            "nginx": stack.enter_context(_nginx(tools, ports, cores.server, folder, certificate)),
            "varnish": stack.enter_context(_varnish(tools, ports, cores.server, folder)),
            "nchan": stack.enter_context(_nchan(tools, cores.server, folder, certificate)),
        }
        if HAS_FAST_PATH_SWITCH:
            off = _gateway("gateway-strict", ports, live, cores.server, folder, fast_path=False)
            servers[STRICT] = stack.enter_context(off)
        ready = [fetch_raw(servers["gateway"].port, "/1k/bare") for _ in range(3)][-1]
        bare = _Answers(ready, ready, ready)
        servers["bare"] = stack.enter_context(_responder(tools, "bare", bare, cores.server, folder))
        yield Peers(servers, origins, live, certificate)


@contextmanager
def fresh(
    peer: str,
    tools: Tools,
    cores: Cores,
    peers: Peers,
    folder: Path,
    *,
    cache: str = _CACHE,
    more: More = PLAIN,
    logs: bool = False,
    service: int = 0,
) -> Iterator[Child]:
    """Another server, unaffected by earlier measurements: a gateway with a cache of that size and `more`
    configuration, or nginx or nchan, with an access log if `logs`; with auth_request, the authorisation service's port
    is `service`."""
    home = Path(tempfile.mkdtemp(prefix="fresh-", dir=folder))
    origins = {name: child.port for name, child in peers.origins.items()}
    match peer:
        case "gateway":
            starting = _gateway(
                "gateway",
                origins,
                peers.live_port,
                cores.server,
                home,
                fast_path=None,
                cache=cache,
                certificate=peers.certificate,
                more=more,
            )
        case "nginx" | "auth_request":
            starting = _nginx(tools, origins, cores.server, home, peers.certificate, logs=logs, service=service)
        case "nchan":
            starting = _nchan(tools, cores.server, home, peers.certificate, logs=logs)
        case _:
            raise ValueError(peer)
    with starting as child:
        yield child


def _gateway(
    name: str,
    origins: dict[str, int],
    live: int,
    core: int,
    folder: Path,
    *,
    fast_path: bool | None,
    cache: str = _CACHE,
    certificate: Certificate | None = None,
    more: More = PLAIN,
) -> _Running:
    listen, admin, secure = free_ports(3)
    tls = "" if certificate is None else gateway_tls(secure, certificate)
    config = folder / f"{name}.toml"
    config.write_text(
        gateway_config(listen, admin, origins, live, fast_path=fast_path, cache=cache, tls=tls, more=more),
        encoding="utf-8",
    )
    argv: list[str | Path] = [sys.executable, "-m", "gateway", "serve", "--config", config]
    return running(name, argv, listen, core, folder / f"{name}.log", secure if tls else 0)


def _in_memory_origin(core: int, folder: Path) -> _Running:
    [listen] = free_ports(1)
    argv: list[str | Path] = [sys.executable, "-m", "gateway", "origin", "--listen", f"127.0.0.1:{listen}"]
    argv += ["--max-chunk-bytes", str(TAIL_CHUNK_BYTES), "--sse-lifetime", "3600"]
    return running("origin-tail", argv, listen, core, folder / "origin-tail.log")


def _s2_origin(core: int, folder: Path) -> _Running:
    [listen] = free_ports(1)
    argv: list[str | Path] = [sys.executable, "-m", "gateway", "origin", "--protocol", "s2"]
    return running("origin-s2", [*argv, "--listen", f"127.0.0.1:{listen}"], listen, core, folder / "origin-s2.log")


def _nginx(
    tools: Tools,
    origins: dict[str, int],
    core: int,
    folder: Path,
    certificate: Certificate,
    *,
    logs: bool = False,
    service: int = 0,
) -> _Running:
    listen, secure = free_ports(2)
    tls = nginx_tls(secure, certificate)
    # A cache on a disk would measure the disk.
    shared = Path("/dev/shm")
    store = Path(tempfile.mkdtemp(prefix="nginx-", dir=shared if shared.is_dir() else folder))
    config = nginx_config(listen, origins, folder / "nginx", store, tls, logs=logs, service=service)
    home = _home(folder, "nginx", config)
    log = folder / "nginx.log"
    return _removing(store, running("nginx", _nginx_argv(tools, home), listen, core, log, secure))


def _nchan(tools: Tools, core: int, folder: Path, certificate: Certificate, *, logs: bool = False) -> _Running:
    listen, secure = free_ports(2)
    tls = nginx_tls(secure, certificate)
    home = _home(folder, "nchan", nchan_config(listen, folder / "nchan", tools.nchan_module, tls, logs=logs))
    return running("nchan", _nginx_argv(tools, home), listen, core, folder / "nchan.log", secure)


def _varnish(tools: Tools, origins: dict[str, int], core: int, folder: Path) -> _Running:
    [listen] = free_ports(1)
    home = _home(folder, "varnish", varnish_config(origins))
    argv: list[str | Path] = [tools.varnishd, "-F", "-j", "none", "-n", home, "-f", home / "config"]
    argv += ["-a", f"127.0.0.1:{listen}", "-s", "malloc,512m", "-T", "none"]
    argv += ["-p", "thread_pools=1", "-p", "thread_pool_min=100", "-p", "timeout_idle=600"]
    return running("varnish", argv, listen, core, folder / "varnish.log")


def _home(folder: Path, name: str, config: str) -> Path:
    home = folder / name
    home.mkdir()
    (home / "config").write_text(config, encoding="utf-8")
    return home


def _nginx_argv(tools: Tools, home: Path) -> list[str | Path]:
    return [tools.nginx, "-p", home, "-e", home / "error.log", "-c", home / "config"]


@contextmanager
def _removing(folder: Path, inner: _Running) -> Iterator[Child]:
    try:
        with inner as child:
            yield child
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Answers:
    """The responder's answer to each method."""

    get: bytes
    head: bytes
    post: bytes

    @classmethod
    def of_closed_stream(cls, size: int) -> Self:
        whole = closed_stream(size)
        return cls(whole, whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", POST_ANSWER)


def _responder(tools: Tools, name: str, answers: _Answers, core: int, folder: Path) -> _Running:
    [port] = free_ports(1)
    files = [folder / f"{name}.{method}" for method in ("get", "head", "post")]
    for file, content in zip(files, (answers.get, answers.head, answers.post), strict=True):
        file.write_bytes(content)
    return running(name, [tools.respond, str(port), *files], port, core, folder / f"{name}.log")
