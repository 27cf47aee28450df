"""The log of a store on disk.  Each of several workers has a store, and its lines name the worker."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

_log = logging.getLogger("gateway.store")


class StoreLog(logging.LoggerAdapter[logging.Logger]):
    """Names the worker of a slot in each line; None stands for a gateway of one process."""

    def __init__(self, slot: int | None = None) -> None:
        super().__init__(_log, {})
        self._prefix = "" if slot is None else f"worker {slot}: "

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._prefix}{msg}", kwargs
