"""Builds the configured access log: lines, writer and sink."""

from __future__ import annotations

import random

from gateway.aio.clock import Clock
from gateway.config.gateway import GatewayConfig
from gateway.ops.access_log.lines import Lines
from gateway.ops.access_log.sinks import open_sink
from gateway.ops.access_log.writer import DropCounter, LogWriter
from gateway.ops.partition_ids import PartitionIds


def open_access_log(
    config: GatewayConfig,
    clock: Clock,
    counter: DropCounter,
    rng: random.Random,
    partitions: PartitionIds,
    folder: str | None = None,
) -> LogWriter | None:
    """Make a writer that has yet to be started; None if the log is off.  Several workers write one log: `folder` is
    their common folder.  Raises ConfigError if the sink cannot be opened.
    """
    log, node = config.log, config.server.node_name
    sink = open_sink(log, node, clock, rng, folder)
    if sink is None:
        return None
    return LogWriter(
        sink,
        Lines(node, log.client_address, partitions, log.query),
        clock,
        counter,
        queue_records=log.queue_records,
        queue_bytes=log.queue_bytes,
        batch_bytes=log.batch_bytes,
        batch_s=log.batch_s,
        live_interval_s=log.live_interval_s,
        most_followed=config.limits.followed_streams,
    )
