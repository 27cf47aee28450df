"""Programs that serve: started, waited for until they say READY, ended by SIGTERM.

A program says one line `READY <name> <url>` on stdout for each port it accepts on.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.commands import warm

READY_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 30.0
_DEV_PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--origin-listen", "127.0.0.1:0")


class NotReady(RuntimeError):
    """A program ended, or was silent for too long, before it was ready; the text has what it said on stderr."""


@contextmanager
def served(
    command: Sequence[str],
    *names: str,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[dict[str, str]]:
    """Run a command until the block ends; gives the URL of each of `names`.

    Raises NotReady, and AssertionError when the program does not leave with status 0.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=cwd, bufsize=1
        )
        assert process.stdout is not None
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read(stdout: Iterator[str]) -> None:
            for line in stdout:
                lines.put(line)
            lines.put(None)

        reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
        reader.start()

        def said() -> str:
            errors.seek(0)
            return errors.read().decode(errors="replace")

        try:
            urls: dict[str, str] = {}
            while not urls.keys() >= set(names):
                try:
                    line = lines.get(timeout=READY_TIMEOUT_S)
                except queue.Empty:
                    line = None
                if line is None:
                    process.kill()
                    process.wait()
                    raise NotReady(f"{' '.join(command)}: not ready\n{said()}")
                match line.split():
                    case ["READY", name, url]:
                        urls[name] = url
            yield urls
        finally:
            process.terminate()
            try:
                status = process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            reader.join()
            process.stdout.close()
        assert status == 0, f"{' '.join(command)}: exit status {status}\n{said()}"


def durable_gateway(*arguments: str) -> list[str]:
    """The command line of this program.  A gateway has one process, unless the environment asks for more."""
    return [sys.executable, "-m", "gateway", *_with_workers(arguments)]


def forked_gateway(*arguments: str) -> list[str]:
    """The same, forked from a process that has loaded the program: for tests of something else than its start."""
    return warm.command(_with_workers(arguments), warm.clean_environ())


def _with_workers(arguments: Sequence[str]) -> Sequence[str]:
    if arguments[0] != "serve":
        return arguments
    return (*arguments, "--workers", os.environ.get("DURABLE_GATEWAY_SERVER__WORKERS", "1"))


def dev_gateway() -> list[str]:
    """The command line of `dev`, on whatever ports are free."""
    return durable_gateway("dev", *_DEV_PORTS)


def forked_dev_gateway() -> list[str]:
    """The same, forked from a process that has loaded the program."""
    return forked_gateway("dev", *_DEV_PORTS)
