"""What operators have done to a gateway, and the series of it: dashboards mark these moments."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter


class OperationFigures:
    """Counts of reloads and purges."""

    def __init__(self) -> None:
        self._reloads = {True: 0, False: 0}
        self._purges = {True: 0, False: 0}

    def reload(self, *, is_taken: bool) -> None:
        """The configuration was read again; `is_taken` is False where it was refused and all stays as it was."""
        self._reloads[is_taken] += 1

    def purge(self, *, is_soft: bool) -> None:
        """A purge is done."""
        self._purges[is_soft] += 1

    def families(self) -> Iterator[Metric]:
        """The series as they stand."""
        yield counter(
            "durable_gateway_reloads",
            "Times that the configuration was read again, by whether it was taken. Excludes the start, and "
            "certificates that are taken because their files have changed.",
            ("result",),
            ((("taken" if is_taken else "refused",), count) for is_taken, count in self._reloads.items()),
        )
        yield counter(
            "durable_gateway_purges",
            "Purges at the admin port: hard ones drop tapes, soft ones have the origin asked before the next hit. "
            "Excludes how many streams each concerned.",
            ("kind",),
            ((("soft" if is_soft else "hard",), count) for is_soft, count in self._purges.items()),
        )
