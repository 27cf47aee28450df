"""A transport that changes all bytes before it writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class SealingTransport:
    """Passes on to another transport: everything that is written, after a call of `seal`, and all other calls."""

    __slots__ = ("_transport", "seal")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.seal: Callable[[bytes], bytes] | None = None
        """Changes the bytes; None passes them on as they are."""

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
