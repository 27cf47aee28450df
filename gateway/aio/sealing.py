"""A transport that changes all bytes before it writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class SealingTransport:
    """Changes all written bytes with `seal`, then writes them to another transport.  Passes all other calls to that
    transport."""

    __slots__ = ("_transport", "seal")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.seal: Callable[[bytes], bytes] | None = None
        """The function that changes the bytes.  If it is None, the bytes are written unchanged."""

    def __repr__(self) -> str:
        return f"<SealingTransport {'sealed' if self.seal is not None else 'open'}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write the changed bytes."""
        self._transport.write(data if self.seal is None else self.seal(bytes(data)))

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Write the changed bytes of all pieces."""
        self.write(b"".join(pieces))
