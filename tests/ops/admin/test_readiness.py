"""When the gateway is ready for clients."""

from __future__ import annotations

import pytest

from gateway.ops.admin.readiness import is_process_ready, readiness, unready_process, unready_workers


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_draining", [False, True])
def test_a_process_is_ready_while_it_is_open_and_does_not_drain(*, is_open: bool, is_draining: bool) -> None:
    is_ready = is_process_ready(is_open=is_open, is_draining=is_draining)
    assert is_ready == (is_open and not is_draining)
    status, text = readiness(unready_process(is_ready=is_ready), is_verbose=True)
    assert (status, text) == ((200, "ready\n") if is_ready else (503, "not ready\n"))


def test_one_worker_that_is_not_ready_or_does_not_answer_makes_the_gateway_unready() -> None:
    assert readiness(unready_workers([0, 1], {0, 1}), is_verbose=True) == (200, "ready\n")
    unready = unready_workers([0, 1, 2], {1})
    assert readiness(unready, is_verbose=False) == (503, "not ready\n")
    assert readiness(unready, is_verbose=True) == (503, "not ready\n[-] worker 0\n[-] worker 2\n")
