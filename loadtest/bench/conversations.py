"""A workload that people run: conversations with language models, each a stream of its own.

An idempotent producer appends to each conversation 20 times a second, and two browsers follow it by SSE.  All of them
come through a trusted proxy, with tokens and headers of their own, and the access log is on, as in `production`.  The
origin is the protocol's reference server, `@durable-streams/server`; nginx passes everything on to another one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from loadtest.bench import live_client
from loadtest.bench.children import Child, free_ports, running
from loadtest.bench.figures import GATEWAY, Row, Sample
from loadtest.bench.machine import BenchError
from loadtest.bench.nginx import nginx_head, nginx_http
from loadtest.bench.peers import More, fresh
from loadtest.bench.production import ALL, CORS, SHARED
from loadtest.bench.stage import Benchmark, Stage

NGINX: Final = "nginx"
CONVERSATIONS: Final = 200
BROWSERS: Final = 2
GAP_US: Final = 50_000
_PREFIX: Final = "/conversations"
_NODE: Final = Path(__file__).parents[2] / "tests" / "node"


@contextmanager
def _reference(stage: Stage, folder: Path) -> Iterator[Child]:
    """The reference server, empty."""
    node = shutil.which("node")
    if node is None or not (_NODE / "node_modules" / "@durable-streams" / "server").is_dir():
        raise BenchError("the reference server is not there: make node")
    [port] = free_ports(1)
    argv: list[str | Path] = [node, _NODE / "reference_server.mjs", str(port)]
    with running("reference", argv, port, stage.cores.origin, folder / "reference.log") as child:
        yield child


@contextmanager
def _server(stage: Stage, peer: str, origin: int, folder: Path) -> Iterator[Child]:
    if peer == GATEWAY:
        route = (
            f'\n[[route]]\nname = "conversations"\nprefix = "{_PREFIX}"\norigin = "http://127.0.0.1:{origin}"\n'
            f'credential_headers = ["authorization"]\nsse_lifetime_s = 3600\n{SHARED}{CORS}'
        )
        more = More(ALL.more.server, ALL.more.route, route + ALL.more.tables.format(folder=folder))
        with fresh(GATEWAY, stage.tools, stage.cores, stage.peers, folder, more=more) as child:
            yield child
        return
    [listen] = free_ports(1)
    config = folder / "nginx.conf"
    config.write_text(_nginx_config(listen, origin, folder), encoding="utf-8")
    argv: list[str | Path] = [stage.tools.nginx, "-p", folder, "-e", folder / "error.log", "-c", config]
    with running(peer, argv, listen, stage.cores.server, folder / "nginx.log") as child:
        yield child


def _nginx_config(listen: int, origin: int, folder: Path) -> str:
    """nginx as a proxy that passes each piece of an answer on as it comes."""
    return f"""{nginx_head(folder)}
http {{
{nginx_http(folder, logs=True)}
  upstream reference {{ server 127.0.0.1:{origin}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{listen} backlog=4096;
    location / {{
      proxy_pass http://reference;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
}}
"""


def _converse(stage: Stage, peer: str) -> Mapping[str, Sample]:
    folder = stage.folder / f"conversations-{peer}"
    folder.mkdir(exist_ok=True)
    sections = folder / "sections"
    clients = range(CONVERSATIONS * (BROWSERS + 1))
    sections.write_bytes("".join(ALL.section(client, "text/event-stream") for client in clients).encode())
    with _reference(stage, folder) as reference, _server(stage, peer, reference.port, folder) as server:
        argv = ["--port", str(server.port), "--path", _PREFIX, *live_client.measured(stage, server)]
        argv += ["--conversations", str(CONVERSATIONS), "--readers", str(BROWSERS), "--gap-us", str(GAP_US)]
        argv += ["--seconds", str(stage.seconds), "--origin-pid", str(reference.worker), "--sections", str(sections)]
        report = live_client.run(stage, stage.tools.converse, argv)
    return {
        "conversations-appends": live_client.rate(report, report["appends"]),
        "conversations-deliveries": live_client.rate(report, report["deliveries"]),
        "conversations-appends-core": Sample(_per_core(report, report["appends"])),
        "conversations-deliveries-core": Sample(_per_core(report, report["deliveries"])),
        "conversations-p50": Sample(report["p50_ms"]),
        "conversations-p99": Sample(report["p99_ms"]),
    }


def _per_core(report: dict[str, Any], operations: int) -> float:
    """Operations for each second of processor time of server and origin together."""
    return float(operations / (report["server_s"] + report["origin_s"]))


def benchmarks() -> list[Benchmark]:
    """The benchmark of conversations."""
    title = "200 conversations as in production"
    rows = (
        Row("conversations-appends", f"{title}, 20 appends/s and 2 browsers each", "appends/s"),
        Row("conversations-deliveries", title, "deliveries/s"),
        Row(
            "conversations-appends-core",
            f"{title}, for each core of server and origin",
            "appends/s",
            is_rate=False,
        ),
        Row(
            "conversations-deliveries-core",
            f"{title}, for each core of server and origin",
            "deliveries/s",
            is_rate=False,
        ),
        Row("conversations-p50", f"{title}: delay, p50", "ms", digits=2, is_rate=False),
        Row("conversations-p99", f"{title}: delay, p99", "ms", digits=2, is_rate=False),
    )
    return [Benchmark("conversations", rows, (GATEWAY, NGINX), _converse)]
