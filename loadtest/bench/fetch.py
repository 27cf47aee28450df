"""One request on one connection, answered as raw bytes: the bare responder repeats them, and hits are recognised by
them."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from loadtest.bench.machine import BenchError

_TIMEOUT_S = 20.0


def fetch_raw(port: int, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> bytes:
    """Head and body of an answer that has a Content-Length or no body."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{fields}\r\n".encode("ascii"))
        answer = bytearray()
        while (whole := _whole(answer, method)) is None or len(answer) < whole:
            data = connection.recv(1 << 20)
            if not data:
                raise BenchError(f"port {port} ended its answer to {path} early")
            answer += data
    return bytes(answer)


def header(answer: bytes, name: str) -> str:
    """A field's value in a raw answer; empty if it is missing."""
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1")
    found = re.search(rf"^{re.escape(name)}:[ \t]*(.*?)[ \t]*\r?$", head, re.IGNORECASE | re.MULTILINE)
    return found[1] if found else ""


def status(answer: bytes) -> int:
    """The status code of a raw answer."""
    return int(answer[9:12])


def _whole(answer: bytearray, method: str) -> int | None:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(answer[: end + 4])
    if method == "HEAD" or status(head) in (204, 304):
        return end + 4
    return end + 4 + int(header(head, "Content-Length") or 0)
