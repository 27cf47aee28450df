"""One worker's part of the limits of a gateway with several workers.

Limits on memory, on connections to origins and on live requests to origins are divided among the workers.  Each stream
has one owner among the workers, so the load on origins is spread evenly, and no worker needs to know how much the
others use.

Limits of clients are not divided, because the clients of one network may all be connected to one worker.  All workers
together count these clients (`gateway.workers.shared_counts`).
"""

from __future__ import annotations

from typing import Final

from gateway.config.gateway import GatewayConfig

DIVIDED: Final = (
    "cache_bytes",
    "compress_cache_bytes",
    "upstream_connections",
    "upstream_queue",
    "client_upstream_requests",
    "auth_requests",
    "followed_streams",
    "client_followed_streams",
)
"""The fields of `[limits]` that are divided.  A limit of 0 has a special meaning, and stays 0.  The limits of the
process's memory are divided in the module that applies them (`gateway.ops.memory_watch`)."""


def portion(config: GatewayConfig, workers: int) -> GatewayConfig:
    """Return the configuration of one worker, if there are `workers` of them.  The result marks the same fields as set
    by the operator."""
    if workers == 1:
        return config
    limits = config.limits
    parts = {name: share(getattr(limits, name), workers) for name in DIVIDED}
    divided = limits.model_copy(update=parts)
    # Restore the set of fields that the operator has set, because the copy counts the new values as set, too.  The
    # cache plan depends on this set.
    divided.__pydantic_fields_set__ = set(limits.model_fields_set)
    return config.model_copy(update={"limits": divided})


def share(limit: int, workers: int) -> int:
    """Return one worker's part of a limit, rounded up.  The part of 0 is 0."""
    return -(-limit // workers)
