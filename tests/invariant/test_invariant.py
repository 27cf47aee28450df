"""The invariant, on the whole system: the bytes that a client receives from an offset are those that the origin holds.

No byte is lost, repeated or reordered; no answer is falsely up to date or closed; no offset is ahead of the bytes; and
once the system is quiet, nothing is left behind.  `World` judges every answer as it arrives; the machine injects
faults.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.effort import examples
from tests.invariant.machine import HUNT, Binary, Json, SystemAgainstLog, Text


class JsonBehindTheGatewaysBack(Json):
    is_out_of_band = True


class BinaryBehindTheGatewaysBack(Binary):
    is_out_of_band = True


@pytest.mark.parametrize("machine", [Json, Text, Binary, JsonBehindTheGatewaysBack, BinaryBehindTheGatewaysBack])
def test_every_client_has_exactly_the_streams_bytes(machine: type[SystemAgainstLog]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=HUNT or examples(10, 600),
            derandomize=not HUNT,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            deadline=None,
        ),
    )
