"""The counters of workers that have ended, so that the sums of `/metrics` never fall.

Prometheus takes a counter that falls for one that has begun again at 0, and would count everything twice that the other
workers have counted.  Each worker therefore writes its counters to a file of its slot before it shows them, and from
time to time.  The next worker of the slot adds the counters of the file to its own.  While a slot has no worker, the
file stands for it.  At most the counts since the latest write are lost, and none of these has been shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric

from gateway.ops.gathering.families import counts_of, families_from_json, families_to_json, merge_families

KEEP_EVERY_S: Final = 10.0
"""Seconds between two writes, if no one asks for metrics."""

_log = logging.getLogger("gateway.admin")


class EndedCounts:
    """The counters of one slot's earlier workers, and the file that keeps all counters of the slot."""

    def __init__(self, folder: str, slot: int) -> None:
        self._folder = Path(folder)
        self._slot = slot
        self._before = self.of_slot(slot)
        """The counters of the slot's earlier workers."""

    def __repr__(self) -> str:
        return f"<EndedCounts of slot {self._slot}: {len(self._before)} families>"

    def of_slot(self, slot: int) -> list[Metric]:
        """Return the counters that a slot's workers have written."""
        try:
            return families_from_json(self._file(slot).read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            _log.warning("the counters of worker %d's predecessors are lost: %s", slot, error)
            return []

    def collect(self, families: Iterable[Metric]) -> list[Metric]:
        """Return the families of this worker with the counters of its predecessors, after keeping their counters."""
        merged = merge_families([list(families), self._before])
        file = self._file(self._slot)
        fresh = file.with_suffix(".new")
        try:
            # No fsync: the file has to survive this process, not the machine.
            fresh.write_bytes(families_to_json(counts_of(merged)))
            fresh.replace(file)
        except OSError as error:
            _log.warning("cannot keep this worker's counters: %s", error)
        return merged

    def _file(self, slot: int) -> Path:
        return self._folder / f"counts-{slot}.json"
