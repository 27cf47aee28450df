"""The counts of operators' actions, and their metric families.  Dashboards mark the times of these actions."""

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
        """Count a reload.  `is_taken` is False if the configuration was refused."""
        self._reloads[is_taken] += 1

    def purge(self, *, is_soft: bool) -> None:
        """Count a finished purge."""
        self._purges[is_soft] += 1

    def families(self) -> Iterator[Metric]:
        """Return the families with their current values."""
        yield counter(
            "durable_gateway_reloads",
            "Reloads of the configuration, by result: taken or refused. Excludes the start, and reloads of changed "
            "certificate files.",
            ("result",),
            ((("taken" if is_taken else "refused",), count) for is_taken, count in self._reloads.items()),
        )
        yield counter(
            "durable_gateway_purges",
            "Purges by the admin port. Hard purges drop tapes; soft purges make the gateway revalidate before the "
            "next hit. Excludes the number of streams that a purge affected.",
            ("kind",),
            ((("soft" if is_soft else "hard",), count) for is_soft, count in self._purges.items()),
        )
