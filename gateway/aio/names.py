"""Names looked up by the system's resolver, each in a thread of its own.

A resolver whose servers are silent takes a minute and more, and cannot be interrupted.  The event loop's own lookups
share a few threads, so four such names would hold up all others, and the process would wait for them at its exit.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from functools import partial


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name.  Raises OSError if there are none.

    A lookup goes on without its caller; nothing waits for it at the end of the loop or of the process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError) -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def work() -> None:
        found = _addresses(host, port)
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(partial(settle, found))

    try:
        threading.Thread(target=work, name="lookup", daemon=True).start()
    except RuntimeError as error:
        raise socket.gaierror(socket.EAI_AGAIN, "no thread for the lookup") from error
    return await answer


def _addresses(host: str, port: int) -> list[str] | OSError:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError:
        return socket.gaierror(socket.EAI_NONAME, "no name")
    except OSError as error:
        return error
