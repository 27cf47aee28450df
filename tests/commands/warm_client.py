"""What stands for a program that `warm` forks, as the process that a test has started.

It is run without site and imports next to nothing, for that is what it saves.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from types import FrameType

_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(place: str, arguments: list[str]) -> int:
    """Have the program forked and wait for it; the status that it left with."""
    early: list[int] = []
    pid = 0

    def pass_on(number: int, _: FrameType | None) -> None:
        if pid:
            os.kill(pid, number)
        else:
            early.append(number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    # pathlib would be half of what this imports.
    environ = (f"{name}={value}" for name, value in os.environ.items())
    words = [os.getcwd(), str(len(arguments)), *arguments, *environ]  # noqa: PTH109
    body = "\0".join(words).encode("utf-8", "surrogateescape")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as parent:
        parent.connect(place)
        socket.send_fds(parent, [len(body).to_bytes(4, "big")], [0, 1, 2])
        parent.sendall(body)
        # A pipe ends when the program has closed it, not when this has.
        for descriptor in range(3):
            os.close(descriptor)
        with parent.makefile("rb") as answer:
            pid = int(answer.readline())
            for one in early:
                os.kill(pid, one)
            status = os.waitstatus_to_exitcode(int(answer.readline()))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    # Nothing is left to be flushed, and there is no stdout to flush it to.
    os._exit(main(sys.argv[1], sys.argv[2:]))
