"""A program of `tests/node` driven line by line: a JSON command on stdin, its result on stdout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

from tests.node_tools import node_packages, node_tools

BOUND_S = 60.0
"""Bound on one command.  The first one waits for Node.js to load the client too, most of a second of a processor."""
MAX_LINE_BYTES = 1 << 22


class Failed(Exception):
    """The client gave up; `status` is the HTTP status that caused it, if any."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__(said["message"])
        self.status: int | None = said.get("status")


class Program:
    """One process; its commands run one after another."""

    script: ClassVar[str]

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def start(cls, *arguments: str) -> AsyncIterator[Self]:
        """Run the program until the block ends; AssertionError if it wrote to stderr."""
        tools = node_tools()
        folder = await asyncio.to_thread(node_packages)
        process = await asyncio.create_subprocess_exec(
            tools.node,
            cls.script,
            *arguments,
            cwd=folder,
            env=tools.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
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
        """Run one command; returns its result.  Raises Failed."""
        self.say({"do": command, **fields})
        said = await self.hear()
        assert said["done"] == command, said
        return said

    def say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def hear(self) -> dict[str, Any]:
        """The next line.  Raises Failed if it reports a failure, AssertionError if there is none."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(BOUND_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            self._process.kill()
            line = b""
        if not line:
            assert self._process.stderr is not None
            raise AssertionError((await self._process.stderr.read()).decode() or f"{self.script} says nothing")
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise Failed(said)
        return said
