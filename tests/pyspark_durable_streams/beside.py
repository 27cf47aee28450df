"""A real origin beside a test that blocks, as tests of Spark do: on a loop and a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import urllib3

from gateway.origin.app import Origin, OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind

BOUND_S: Final = 600.0
JSON: Final = "application/json"
_T = TypeVar("_T")


class Beside:
    """The origin, and what a test wants of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, running: RunningOrigin) -> None:
        self._loop = loop
        self._running = running
        self.http = urllib3.PoolManager(retries=False)
        self.url = running.url

    @property
    def origin(self) -> Origin:
        """Its state belongs to its loop: see `do` and `run`."""
        return self._running.origin

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """What `work` returns, run where the origin lives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(BOUND_S)

    def do(self, work: Callable[[Origin], _T]) -> _T:
        """What `work` returns, called where the origin lives."""

        async def called() -> _T:
            return work(self.origin)

        return self.run(called())

    def stop(self) -> None:
        """Serve no longer."""
        self.run(self._running.stop(0))

    def start(self) -> None:
        """Serve the same streams at the same address again."""
        at = OriginSettings(port=int(self.url.rpartition(":")[2]))
        self._running = self.run(start_origin(at, origin=self.origin))

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> int:
        """The status that a request is answered with."""
        return self.http.request(method, f"{self.url}/{path}", headers=headers or {}, body=body).status

    def create(self, path: str, content_type: str = JSON) -> None:
        assert self.ask("PUT", path, {"Content-Type": content_type}) == 201

    def append(self, path: str, *values: object) -> None:
        """Messages, to a stream of JSON."""
        assert self.ask("POST", path, {"Content-Type": JSON}, json.dumps(list(values)).encode()) in (200, 204)

    def close(self, path: str) -> None:
        assert self.ask("POST", path, {"Stream-Closed": "true"}) == 204

    def is_closed(self, path: str) -> bool:
        return self.http.request("HEAD", f"{self.url}/{path}").headers.get("Stream-Closed") == "true"

    def content_type(self, path: str) -> str:
        return self.http.request("HEAD", f"{self.url}/{path}").headers["Content-Type"]

    def appends(self) -> int:
        """POSTs that have arrived."""
        return self.do(lambda origin: origin.counters.requests[Kind.APPEND])

    def pieces(self, path: str) -> list[bytes]:
        """The stream from its start, in the bodies it comes in."""
        return list(read_all(self.http, f"{self.url}/{path}"))

    def read(self, path: str) -> bytes:
        return b"".join(self.pieces(path))

    def messages(self, path: str) -> list[Any]:
        return [message for piece in self.pieces(path) for message in json.loads(piece)]


def read_all(http: urllib3.PoolManager, url: str) -> Iterator[bytes]:
    """A stream's bodies, to its tail."""
    offset = "-1"
    while True:
        reply = http.request("GET", f"{url}?offset={offset}")
        assert reply.status == 200, reply.data
        yield reply.data
        offset = reply.headers["Stream-Next-Offset"]
        if reply.headers.get("Stream-Up-To-Date") == "true":
            return


@contextmanager
def beside(settings: OriginSettings | None = None) -> Iterator[Beside]:
    """An origin until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="origin")
    thread.start()
    try:
        running = asyncio.run_coroutine_threadsafe(start_origin(settings), loop).result(BOUND_S)
        found = Beside(loop, running)
        try:
            yield found
        finally:
            found.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(BOUND_S)
        loop.close()
