"""Run commands in processes of their own, with pipes or on a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.commands import warm
from tests.commands.warm import ROOT, clean_environ

BOUND_S = 30.0
_STYLES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Run:
    """One process.  What it writes is collected while it runs; `out` and `err` are the same on a terminal."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int | None) -> None:
        self.process = process
        self.out = b""
        self.err = b""
        self._terminal = terminal
        self._grown = asyncio.Event()
        self._readers = [asyncio.create_task(self._read_terminal())] if terminal is not None else self._read_pipes()
        for reader in self._readers:
            reader.add_done_callback(lambda _: self._grown.set())

    def _read_pipes(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._read("out")), asyncio.create_task(self._read("err"))]

    async def _read(self, name: str) -> None:
        stream = self.process.stdout if name == "out" else self.process.stderr
        while stream is not None and (data := await stream.read(65_536)):
            setattr(self, name, getattr(self, name) + data)
            self._grown.set()

    async def _read_terminal(self) -> None:
        assert self._terminal is not None
        while True:
            try:
                data = await asyncio.get_running_loop().run_in_executor(None, os.read, self._terminal, 65_536)
            except OSError:  # a terminal's error once its last writer has closed it
                return
            self.out += data
            self._grown.set()

    @property
    def shown(self) -> str:
        """What a terminal shows, without colours and movements."""
        return _STYLES.sub(b"", self.out).decode().replace("\r\n", "\n")

    def is_cooked(self) -> bool:
        """Whether its terminal shows what is typed and waits for whole lines, as a shell expects it."""
        assert self._terminal is not None
        flags: int = termios.tcgetattr(self._terminal)[3]
        return flags & (termios.ICANON | termios.ECHO) == termios.ICANON | termios.ECHO

    async def until(self, condition: Condition) -> None:
        """Wait until what it has written fulfils `condition`."""
        try:
            async with asyncio.timeout(BOUND_S):
                while not condition(self):
                    if all(reader.done() for reader in self._readers):
                        raise EOFError
                    self._grown.clear()
                    await self._grown.wait()
        except (TimeoutError, EOFError):
            raise AssertionError(f"never came to it: {self.out[-2_000:]!r} {self.err[-2_000:]!r}") from None

    async def write(self, data: bytes) -> None:
        if self._terminal is not None:
            os.write(self._terminal, data)
        else:
            assert self.process.stdin is not None
            self.process.stdin.write(data)
            await self.process.stdin.drain()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def finished(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Exit status, stdout and stderr, after a signal where one is given."""
        if number is not None:
            self.process.send_signal(number)
        async with asyncio.timeout(BOUND_S):
            status = await self.process.wait()
            await asyncio.gather(*self._readers)
        return status, self.out.decode("utf-8", "replace"), self.err.decode()

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        async with asyncio.timeout(BOUND_S):
            await self.process.wait()
            await asyncio.gather(*self._readers)
        if self._terminal is not None:
            os.close(self._terminal)


Condition = Callable[[Run], bool]


def wrote(data: bytes) -> Condition:
    """That stdout has exactly this so far."""
    return lambda run: run.out == data


def wrote_lines(count: int) -> Condition:
    """That stdout has at least so many lines."""
    return lambda run: run.out.count(b"\n") >= count


def shows(text: str) -> Condition:
    """That a terminal has shown this."""
    return lambda run: text in run.shown


@asynccontextmanager
async def running(
    *arguments: str,
    on_terminal: bool = False,
    stdin: int | None = None,
    stdout: int | None = None,
    environ: dict[str, str] | None = None,
) -> AsyncIterator[Run]:
    """`durable-gateway` with these arguments; on a terminal of 100 by 30, or with pipes (or a descriptor)."""
    env = {**clean_environ(), **(environ or {})}
    command = warm.command(arguments, env)
    terminal: int | None = None
    if on_terminal:
        terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=env,
            stdin=inside if stdin is None else stdin,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
    else:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=env,
            stdin=pipe if stdin is None else stdin,
            stdout=pipe if stdout is None else stdout,
            stderr=pipe,
        )
    run = Run(process, terminal)
    try:
        yield run
    finally:
        await run.close()


async def finished(*arguments: str, data: bytes = b"", environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command that is given `data` on stdin."""
    async with running(*arguments, environ=environ) as run:
        if data:
            await run.write(data)
        run.end_input()
        return await run.finished()
