"""The surroundings of the engine's parts: time, randomness, tasks, and the recorders of metrics, log and traces.

All surroundings are passed as one value, because each part needs most of them.  Tests pass surroundings of their own.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.telemetry.access_record import NO_ACCESS_LOG, AccessLog
from gateway.telemetry.metrics import MetricsRecorder
from gateway.telemetry.tracing import NO_TRACER, Tracer


class Surroundings(NamedTuple):
    """The surroundings that all parts of an engine share."""

    clock: Clock
    rng: random.Random
    tasks: Tasks
    metrics: MetricsRecorder
    access_log: AccessLog = NO_ACCESS_LOG
    tracer: Tracer = NO_TRACER
