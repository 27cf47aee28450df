"""The log of a store on disk.  If there are several workers, each has its own store, and the lines show the worker."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

_log = logging.getLogger("gateway.store")


class StoreLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the slot of the worker to each line.  The slot is None in a gateway of one process."""

    def __init__(self, slot: int | None = None) -> None:
        super().__init__(_log, {})
        self._prefix = "" if slot is None else f"worker {slot}: "

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._prefix}{msg}", kwargs
