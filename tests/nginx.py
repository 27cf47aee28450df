"""nginx in front of a gateway, with the settings it has by itself."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.debian import program
from tests.waiting import eventually

READY_S = 30.0
EXIT_S = 10.0
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def _configuration(folder: Path, port: int, locations: str, listen: str) -> str:
    """A site with these locations; all else is nginx's defaults, except for the places of its files."""
    user = "user root;\n" if os.geteuid() == 0 else ""
    places = "".join(f"  {name}_temp_path {folder / name};\n" for name in _TEMPORARY)
    return f"""{user}worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
{places}
  server {{
    listen 127.0.0.1:{port}{listen};
{locations}
  }}
}}
"""


@asynccontextmanager
async def running_nginx(
    folder: Path, upstream: str = "", more: str = "", listen: str = "", locations: str = ""
) -> AsyncIterator[str]:
    """The URL of an nginx, until the block ends.

    It passes everything to `upstream` (a URL), with `more` in its `location`, unless `locations` are given; `listen`
    stands behind its address.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    config, said = folder / "nginx.conf", folder / "error.log"
    locations = locations or f"location / {{ proxy_pass {upstream}; {more} }}"
    config.write_text(_configuration(folder, port, locations, listen))
    command = [str(program("nginx", "nginx")), "-p", str(folder), "-e", str(said), "-c", str(config)]
    process = subprocess.Popen(command)  # noqa: ASYNC220 - it begins at once
    try:

        async def is_ready() -> bool:
            assert process.poll() is None, said.read_text()
            return await _accepts(port)

        await eventually(is_ready, within_s=READY_S, look_s=0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
