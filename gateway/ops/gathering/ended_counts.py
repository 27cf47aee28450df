"""The counters of workers that have ended, so that the sums of `/metrics` never fall.

If a sum falls, Prometheus assumes that the sum has begun again at 0, and counts the events at the other workers a
second time.  Each worker therefore writes its counters to a file of its slot, at regular times and each time before it
shows them.  The next worker of the slot adds the counters in the file to its own.  While a slot has no worker, the
counters in the file are shown.  If a worker dies, at most the counts since its latest write are lost.  These counts
were never shown, so no sum falls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson
from prometheus_client.metrics_core import Metric

from gateway.ops.gathering.families import Key, RawFamily, is_counted, key_of, raw_family, read_families

_KEEP_EVERY_S: Final = 10.0
"""Seconds between two writes if there is no request for metrics."""
_SAMPLES_PER_S: Final = 500
"""The most samples that the regular writes contain per second, on average.  A worker with many samples writes them
less often, so that the writes take less than one percent of the processor's time."""

_log = logging.getLogger("gateway.admin")


class EndedCounts:
    """The counters of one slot's earlier workers, and the file that keeps all counters of the slot."""

    def __init__(self, folder: str, slot: int) -> None:
        self._folder = Path(folder)
        self._slot = slot
        self._before: dict[str, RawFamily] = {one[0]: one for one in self.of_slot(slot)}
        """The families of counters of the slot's earlier workers, by the name of the family."""
        self.keep_after_s = _KEEP_EVERY_S
        """Seconds until the counters should be written again."""
        self._collecting = asyncio.Lock()
        """Held during a collection, so that no earlier counters are written after later counters."""

    def __repr__(self) -> str:
        return f"<EndedCounts of slot {self._slot}: {len(self._before)} families>"

    def of_slot(self, slot: int) -> list[RawFamily]:
        """Return the counters in the file of a slot."""
        try:
            return read_families(self._file(slot).read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            _log.warning("the counters of worker %d's predecessors are lost: %s", slot, error)
            return []

    async def collect(self, families: Iterable[Metric]) -> bytes:
        """Add the counters of this worker's predecessors to its families, write the counters to the file, and return
        all families as JSON.  Other tasks run between the families."""
        async with self._collecting:
            return await self._collect(families)

    async def _collect(self, families: Iterable[Metric]) -> bytes:
        every: list[bytes] = []
        counted: list[bytes] = []
        before = dict(self._before)
        samples = 0
        for family in families:
            raw = raw_family(family)
            if (earlier := before.pop(family.name, None)) is not None:
                _add(raw[3], earlier[3])
            samples += len(raw[3])
            # Use orjson, because the values of labels may be members of enums, which it accepts.
            text = orjson.dumps(raw)
            every.append(text)
            if is_counted(family.type):
                counted.append(text)
            await asyncio.sleep(0)
        # The rest are families that only earlier workers had, such as the families of a cache plan.
        rest = [orjson.dumps(raw) for raw in before.values()]
        self._keep(_joined([*counted, *rest]))
        self.keep_after_s = max(_KEEP_EVERY_S, samples / _SAMPLES_PER_S)
        return _joined([*every, *rest])

    def _keep(self, text: bytes) -> None:
        file = self._file(self._slot)
        fresh = file.with_suffix(".new")
        try:
            # Do not call fsync, because the file need not survive a crash of the machine.
            fresh.write_bytes(text)
            fresh.replace(file)
        except OSError as error:
            _log.warning("cannot keep this worker's counters: %s", error)

    def _file(self, slot: int) -> Path:
        return self._folder / f"counts-{slot}.json"


def _add(samples: list[list[Any]], earlier: Iterable[list[Any]]) -> None:
    """Add the earlier values to the samples."""
    left: dict[Key, list[Any]] = {key_of(one[0], one[1]): one for one in earlier if one[2]}
    if not left:
        return
    for sample in samples:
        if (found := left.pop(key_of(sample[0], sample[1]), None)) is not None:
            sample[2] += found[2]
    samples += ([name, labels, value, None] for name, labels, value, _ in left.values())


def _joined(texts: list[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"
