"""The reference client, `@durable-streams/client`, in a Node.js process of its own: see `tests/node/client.mjs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from tests.node_tools import node_packages, node_tools

BOUND_S = 20.0


class Failed(Exception):
    """The client gave up; `status` is the HTTP status that made it, if one did."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__(said["message"])
        self.status: int | None = said.get("status")


class TypeScript:
    """One client process; its commands come one after the other, save for `cancel`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator[Self]:
        """Run the client until the block ends; AssertionError when it had anything to complain about."""
        tools = node_tools()
        folder = await asyncio.to_thread(node_packages)
        process = await asyncio.create_subprocess_exec(
            tools.node,
            "client.mjs",
            cwd=folder,
            env=tools.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(BOUND_S):
                _, complaints = await process.communicate()
            assert complaints == b"", complaints.decode()
            assert process.returncode == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def do(self, command: str, **fields: Any) -> dict[str, Any]:
        """One command and its result.  Raises Failed."""
        self._say({"do": command, **fields})
        said = await self._next()
        assert said["done"] == command, said
        return said

    async def follow(self, url: str, live: str | bool, as_: str, offset: str = "-1") -> None:
        """Begin to follow a stream; `batch` has what comes."""
        self._say({"do": "follow", "url": url, "live": live, "as": as_, "offset": offset})

    async def batch(self) -> dict[str, Any]:
        """The next batch, empty ones included, or the end (`done`).  Raises Failed."""
        return await self._next()

    async def until_up_to_date(self) -> list[dict[str, Any]]:
        """The batches up to the first that is up to date, that one included."""
        batches = [await self.batch()]
        while not batches[-1]["upToDate"]:
            batches.append(await self.batch())
        return batches

    async def until_end(self) -> list[dict[str, Any]]:
        """The batches that are left, without the line that says that it is over."""
        batches = []
        while "done" not in (said := await self.batch()):
            batches.append(said)
        return batches

    def cancel(self) -> None:
        self._say({"do": "cancel"})

    def _say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def _next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            line = await self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError((await self._process.stderr.read()).decode() or "the client has gone")
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise Failed(said)
        return said
