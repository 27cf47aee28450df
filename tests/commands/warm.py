"""`durable-gateway` in processes that need not load it: they are forked from one that has.

To load the program takes two thirds of a second of a processor, and the tests of the commands run it some two hundred
times.  The process that is forked from, the parent, has imported everything and done nothing: it has no thread, no loop
and no socket but the one that it is asked by.  What is forked from it is a process like any other, with the pipes or
the terminal, the environment and the folder that it was asked for, and it runs `gateway.cli.main` from its beginning.

Who starts the program starts `warm_client` in its place, which hands over its own descriptors, then passes on what
signals it gets, dies with the program, and leaves as it has left.  If it is killed, so is the program.

On the wire: four bytes of length and, with the first of them, the descriptors 0, 1 and 2; then the folder, the
arguments and the environment, see `asked`.  The answer is a line with the pid, then a line with the status as
`os.waitpid` gives it.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, Never

ROOT: Final = Path(__file__).parents[2]
_CLIENT: Final = Path(__file__).with_name("warm_client.py")
_LOADED: Final = (
    "encodings.idna",
    "gateway.app",
    "gateway.cli.program",
    "gateway.cli.servers",
    "gateway.cli.sd_notify",
    "gateway.commands.bench_reads",
    "gateway.commands.producer",
    "gateway.commands.s2_reader",
    "gateway.commands.standard_input",
    "gateway.commands.top_view",
    "gateway.origin.app",
    "rich.live",
    "rich.progress",
    "typer._adapters",
)
"""Modules that most commands import while they run."""
_BOUND_S: Final = 30.0
_LEFT_OUT: Final = frozenset({"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"})


def command(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command line that runs `durable-gateway` with these arguments and this environment, from `ROOT`.

    Variables that Python or a library looks at while it is loaded are heeded by a start from nothing alone.
    """
    others = {name for name in environ.keys() | _clean().keys() if environ.get(name) != _clean().get(name)}
    if any(not name.startswith("DURABLE_GATEWAY_") for name in others):
        return [sys.executable, "-W", "default", "-m", "gateway", *arguments]
    return [sys.executable, "-I", "-S", str(_CLIENT), _parent(), *arguments]


@cache
def _clean() -> Mapping[str, str]:
    return clean_environ()


def clean_environ() -> dict[str, str]:
    """This process's environment without what changes what the program says or how it looks."""
    found = {key: value for key, value in os.environ.items() if not key.startswith("DURABLE_GATEWAY_")}
    found = {key: value for key, value in found.items() if key not in _LEFT_OUT}
    return {**found, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}


@cache
def _parent() -> str:
    """Where the parent is asked; it is there for as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    place = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, "-W", "default", "-m", "tests.commands.warm", place],
        cwd=ROOT,
        env=_clean(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_BOUND_S)
        folder.cleanup()

    atexit.register(end)
    with process.stdout:
        assert process.stdout.readline() == b"READY\n"
    return place


# -- the parent --------------------------------------------------------------------------------------------------------


class _Asked:
    """A client, and the process that was forked for it."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.pid = 0
        self.watch = -1


def _serve(listener: socket.socket) -> None:
    """Fork for each client, until stdin ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        running: dict[int, _Asked] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    for one in running.values():
                        os.kill(one.pid, signal.SIGKILL)
                    return
                if key.fileobj is listener:
                    one = _Asked(listener.accept()[0])
                    if (asked := _read(one.client)) is None:
                        one.client.close()
                        continue
                    folder, arguments, environ, descriptors = asked
                    one.pid = os.fork()
                    if one.pid == 0:
                        selector.close()
                        for other in (*running.values(), one):
                            other.client.close()
                        listener.close()
                        _become(folder, arguments, environ, descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)
                    one.watch = os.pidfd_open(one.pid)
                    running[one.pid] = one
                    # A client that was killed meanwhile is seen to have ended next.
                    with suppress(OSError):
                        one.client.sendall(b"%d\n" % one.pid)
                    selector.register(one.client, selectors.EVENT_READ, one)
                    selector.register(one.watch, selectors.EVENT_READ, one)
                    continue
                one = key.data
                if one.pid not in running:
                    continue
                if key.fileobj is one.client:  # the client was killed
                    os.kill(one.pid, signal.SIGKILL)
                _, status = os.waitpid(one.pid, 0)
                del running[one.pid]
                selector.unregister(one.client)
                selector.unregister(one.watch)
                os.close(one.watch)
                with one.client, suppress(OSError):
                    one.client.sendall(b"%d\n" % status)


def _read(client: socket.socket) -> tuple[str, list[str], dict[str, str], list[int]] | None:
    """What it asks for; None if it was killed before it had asked."""
    client.settimeout(_BOUND_S)
    head, descriptors, _, _ = socket.recv_fds(client, 4, 3)
    length = int.from_bytes(head, "big")
    with client.makefile("rb") as stream:
        body = stream.read(length)
    if not descriptors or len(body) < length:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    folder, count, *words = body.decode("utf-8", "surrogateescape").split("\0")
    arguments, pairs = words[: int(count)], words[int(count) :]
    return folder, arguments, dict(pair.split("=", 1) for pair in pairs), list(descriptors)


def _become(folder: str, arguments: list[str], environ: dict[str, str], descriptors: list[int]) -> Never:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = [str(ROOT / "gateway" / "__main__.py"), *arguments]
    for name, stream in _standard_streams().items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    from gateway.cli import main

    sys.exit(main())


def _standard_streams() -> dict[str, io.TextIOWrapper]:
    """As Python opens them when it starts."""
    found: dict[str, io.TextIOWrapper] = {}
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mine = getattr(sys, name)
        file = io.FileIO(number, "wb" if number else "rb", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(file) if number else io.BufferedReader(file),
            mine.encoding,
            mine.errors,
            line_buffering=name == "stderr" or os.isatty(number),
        )
        stream.mode = "w" if number else "r"  # type: ignore[misc]
        found[name] = stream
    return found


def _main(place: str) -> None:
    import_module("gateway.cli")
    for name in _LOADED:
        import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(place)
        listener.listen(64)
        os.write(1, b"READY\n")
        # Its own stdout has no reader from here on, and no program gets it.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
        _serve(listener)


if __name__ == "__main__":
    _main(sys.argv[1])
