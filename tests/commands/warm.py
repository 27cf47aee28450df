"""`durable-gateway` in processes that need not load it: they are forked from one that has.

To load the program takes two thirds of a second of a processor, and the tests of the commands run it some two hundred
times.  The process that is forked from, the parent, has imported everything and done nothing: it has no thread, no loop
and no socket but the one that it is asked by.  What is forked from it is a process like any other, with the pipes or
the terminal, the environment and the folder that it was asked for, and it runs `gateway.cli.main` from its beginning.

Who starts the program starts `warm_client` in its place, which hands over its own descriptors, then passes on what
signals it gets, dies with the program, and leaves as it has left.  If it is killed, so is the program.

The parent ends when the tests' process ends, and its programs die with it.  Nothing else ends it: it waits for no
single client, a client that breaks off or stalls is dropped or left, and each program has a process group of its own.

On the wire: four bytes of length and, with the first of them, the descriptors 0, 1 and 2; then the folder, the
arguments and the environment, see `_Asked.whole`.  The answer is a line with the pid, then a line with the status as
`os.waitpid` gives it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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
_PRCTL: Final = ctypes.CDLL(None).prctl
_OF_WORKERS: Final = "tests.workers.program"
"""The first argument for a program that the tests of workers alter before it runs."""
ONE_PROCESS: Final = {"DURABLE_GATEWAY_SERVER__WORKERS": "1"}
"""Makes a gateway one process, whatever the number of processors.  Tests of workers ask for several."""
_LEFT_OUT: Final = frozenset({"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"})


def command(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command line that runs `durable-gateway` with these arguments and this environment, from `ROOT`.

    Variables that Python or a library looks at while it is loaded are heeded by a start from nothing alone.
    """
    others = {name for name in environ.keys() | _clean().keys() if environ.get(name) != _clean().get(name)}
    if any(not name.startswith("DURABLE_GATEWAY_") for name in others):
        return [sys.executable, "-W", "default", "-m", "gateway", *arguments]
    return [sys.executable, "-I", "-S", str(_CLIENT), _parent(), *arguments]


def altered_command(arguments: Sequence[str]) -> list[str]:
    """The command line that runs `tests.workers.program` with these arguments, whatever the environment."""
    return [sys.executable, "-I", "-S", str(_CLIENT), _parent(), _OF_WORKERS, *arguments]


@cache
def _clean() -> Mapping[str, str]:
    return clean_environ()


def clean_environ() -> dict[str, str]:
    """This process's environment without what changes what the program says or how it looks.  A gateway has one
    process, unless a test asks for workers."""
    found = {key: value for key, value in os.environ.items() if not key.startswith("DURABLE_GATEWAY_")}
    found = {key: value for key, value in found.items() if key not in _LEFT_OUT}
    return {**found, **ONE_PROCESS, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}


_parents: list[tuple[subprocess.Popen[bytes], str]] = []


def _parent() -> str:
    """Where the parent is asked."""
    if _parents and (status := _parents[-1][0].poll()) is not None:
        sys.stderr.write(f"the parent of warm programs has ended with status {status}; another is started\n")
        _parents.clear()
    if not _parents:
        _parents.append(_started())
    return _parents[-1][1]


def _started() -> tuple[subprocess.Popen[bytes], str]:
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    place = f"{folder.name}/socket"
    # It knows of this process's end by its pid: a descriptor could be closed by mistake by what the tests run here.
    process = subprocess.Popen(
        [sys.executable, "-W", "default", "-m", "tests.commands.warm", place, str(os.getpid())],
        cwd=ROOT,
        env=_clean(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )

    def end() -> None:
        process.kill()
        process.wait(_BOUND_S)
        folder.cleanup()

    atexit.register(end)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"READY\n"
    return process, place


# -- the parent --------------------------------------------------------------------------------------------------------


class _Asked:
    """A client, what it has sent, and the process that was forked for it."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.pid = 0
        self.watch = -1
        self.descriptors: list[int] = []
        self._data = b""

    def receive(self) -> bool:
        """Read the bytes and descriptors that have arrived.  Returns False if the client is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.client, 1 << 16, 3)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._data += data
        self.descriptors += descriptors
        return bool(data)

    def whole(self) -> tuple[str, list[str], dict[str, str]] | None:
        """Folder, arguments and environment, once they have all arrived."""
        length = int.from_bytes(self._data[:4], "big")
        if len(self._data) < 4 + length or len(self.descriptors) < 3:
            return None
        folder, count, *words = self._data[4:].decode("utf-8", "surrogateescape").split("\0")
        arguments, pairs = words[: int(count)], words[int(count) :]
        return folder, arguments, dict(pair.split("=", 1) for pair in pairs)

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


class _Parent:
    """Forks for each client, until the tests' process ends."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        self._listener = listener
        self._selector = selector
        self._clients: set[_Asked] = set()

    def serve(self, tests: int) -> None:
        """`tests` is a pidfd of the tests' process."""
        self._selector.register(tests, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == tests:
                    return
                if key.fileobj is self._listener:
                    one = _Asked(self._listener.accept()[0])
                    one.client.setblocking(False)
                    self._clients.add(one)
                    self._selector.register(one.client, selectors.EVENT_READ, one)
                elif (one := key.data) in self._clients:
                    self._look(one, is_over=key.fileobj == one.watch)

    def _look(self, one: _Asked, *, is_over: bool) -> None:
        """A client has sent something or was killed, or its program is over."""
        if one.pid:
            if not is_over:
                os.kill(one.pid, signal.SIGKILL)
            self._drop(one, os.waitpid(one.pid, 0)[1])
        elif not one.receive():
            self._drop(one)
        elif (asked := one.whole()) is not None:
            try:
                one.pid = os.fork()
            except OSError as error:
                sys.stderr.write(f"no program can be forked: {error}\n")
                self._drop(one)
                return
            if one.pid == 0:
                self._selector.close()
                self._listener.close()
                for other in self._clients:
                    other.client.close()
                    if other is not one:
                        other.close_descriptors()
                _become(*asked, one.descriptors)
            one.close_descriptors()
            # The program does the same: neither goes on before it is done.
            os.setpgid(one.pid, one.pid)
            one.watch = os.pidfd_open(one.pid)
            self._selector.register(one.watch, selectors.EVENT_READ, one)
            # A client that was killed meanwhile is seen to have ended next.
            with suppress(OSError):
                one.client.sendall(b"%d\n" % one.pid)

    def _drop(self, one: _Asked, status: int | None = None) -> None:
        self._clients.remove(one)
        self._selector.unregister(one.client)
        one.close_descriptors()
        if one.watch >= 0:
            self._selector.unregister(one.watch)
            os.close(one.watch)
        with one.client, suppress(OSError):
            if status is not None:
                one.client.sendall(b"%d\n" % status)


def _become(folder: str, arguments: list[str], environ: dict[str, str], descriptors: list[int]) -> Never:
    _die_with_parent()
    os.setpgid(0, 0)
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
    module = "gateway"
    if arguments[:1] == [_OF_WORKERS]:
        del sys.argv[1]
        module = _OF_WORKERS
    # With this, a gateway starts its next version.
    sys.orig_argv[:] = [sys.executable, "-m", module, *sys.argv[1:]]
    if module == _OF_WORKERS:
        from tests.workers.program import main
    else:
        from gateway.cli import main

    _leave(main())


def _leave(status: int) -> Never:
    """End the process as Python does, except for the last step, in which Python frees every object.

    Nearly all objects belong to the parent.  Freeing them would copy the memory that parent and child share, which is
    half the cost of a short program.  The garbage collection beforehand still warns about files that the program has
    left open, if nothing refers to them.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(status)  # Python says it in its own words
    os._exit(status)


def _die_with_parent() -> None:
    """Have SIGKILL sent to this process when its parent ends, in whatever way (prctl(2), PR_SET_PDEATHSIG)."""
    _PRCTL(1, int(signal.SIGKILL), 0, 0, 0)


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


def _main(place: str, tests: int) -> None:
    import_module("gateway.cli")
    for name in _LOADED:
        import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, selectors.DefaultSelector() as selector:
        listener.bind(place)
        listener.listen(64)
        os.write(1, b"READY\n")
        # Its own stdout has no reader from here on, and no program gets it.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
        _Parent(listener, selector).serve(os.pidfd_open(tests))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
