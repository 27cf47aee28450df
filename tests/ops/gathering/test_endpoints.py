"""What the public admin port asks of workers, and what it makes of their answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.ops.admin.app import admin_endpoints
from gateway.ops.admin.directory import Directory
from gateway.ops.admin.endpoint import Refused, adapter_of
from gateway.ops.gathering.ended_counts import EndedCounts
from gateway.ops.gathering.endpoints import ALONE, GATHERINGS, Gathered, done_by_all, done_by_some, make_adapters
from gateway.ops.gathering.peers import PeerAnswer, Peers
from gateway.ops.gathering.private import WorkerSettings, private_application
from gateway.ops.partition_ids import PartitionIds

DONE = PeerAnswer(0, 200, b"{}")
UNKNOWN = PeerAnswer(1, 404, b'{"error": "no such stream is held"}')
LATE = PeerAnswer(2, 504, b"")


def unused() -> Any:
    """A gateway that has had no request yet.  The engine's parts are used only when one arrives."""
    return SimpleNamespace(engine=SimpleNamespace(clock=None, live=None, s2=SimpleNamespace(streams=None)))


def test_each_endpoint_says_how_it_is_gathered() -> None:
    subject = unused()
    endpoints = admin_endpoints(subject, Directory(subject.engine, PartitionIds()))
    assert {(one.method, one.path) for one in endpoints} == GATHERINGS.keys() | ALONE


def test_a_worker_makes_no_adapter_that_the_supervisor_could_have_made() -> None:
    subject, counts = unused(), EndedCounts("", 0)
    adapter_of.cache_clear()
    make_adapters()
    made = adapter_of.cache_info().misses
    private_application(subject, PartitionIds(), counts)
    gathered = Gathered(subject, Peers([], lambda _: 0), counts)
    for endpoint in admin_endpoints(subject, Directory(subject.engine, PartitionIds())):
        gathered.route(endpoint)
    adapter_of(WorkerSettings)
    assert adapter_of.cache_info().misses == made


def test_a_look_up_needs_one_worker_that_knows() -> None:
    assert done_by_some([UNKNOWN, DONE, LATE]) == [DONE]


def test_a_look_up_that_no_worker_can_answer_is_refused_as_one_refuses_it() -> None:
    with pytest.raises(Refused, match="no such stream is held") as refused:
        done_by_some([LATE, UNKNOWN])
    assert refused.value.status == 404


def test_a_look_up_without_any_answer_is_refused() -> None:
    with pytest.raises(Refused, match="no worker answers") as refused:
        done_by_some([LATE])
    assert refused.value.status == 503


def test_a_change_that_a_worker_has_not_made_names_the_worker() -> None:
    with pytest.raises(Refused) as refused:
        done_by_all([DONE, LATE])
    assert str(refused.value) == "not done by all workers: worker 2: it has not answered in time; done by 0"
    assert refused.value.status == 503


def test_a_change_that_all_workers_refuse_is_refused_in_their_words() -> None:
    refusals = [PeerAnswer(slot, 422, b'{"error": "route: unknown key"}') for slot in range(3)]
    with pytest.raises(Refused, match=r"^route: unknown key$") as refused:
        done_by_all(refusals)
    assert refused.value.status == 422


def test_a_change_that_all_workers_refuse_in_different_words_is_refused_for_good() -> None:
    refusals = [PeerAnswer(slot, 409, b'{"error": "%d are left"}' % slot) for slot in range(2)]
    with pytest.raises(Refused, match=r"^worker 0: 0 are left; worker 1: 1 are left$") as refused:
        done_by_all(refusals)
    assert refused.value.status == 409


def test_a_change_by_all_workers_is_done() -> None:
    assert done_by_all([DONE, PeerAnswer(1, 202, b"{}")]) == [DONE, PeerAnswer(1, 202, b"{}")]
