"""The table of origins that workers share."""

from __future__ import annotations

import itertools
import multiprocessing
import os

import pytest

from gateway.workers import shared_origins
from gateway.workers.shared_memory import ORIGINS, SharedMemory
from gateway.workers.shared_origins import OriginRow, SharedOrigins
from tests.workers.locks import held, hold_lock

NAME = "http://a"


def test_an_origin_is_not_joined_without_the_lock_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedMemory.create(2)
    one, other = (SharedOrigins(shared, slot) for slot in range(2))
    with held(monkeypatch):
        assert one.join("http://a") is None
    assert repr(other) == "<SharedOrigins of slot 1, 0 rows>"
    assert one.join("http://a") is not None


def test_a_worker_waits_for_the_lock_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, context = SharedMemory.create(2), multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold_lock, args=(shared.descriptor, shared.origins_at + 1, theirs))
    holder.start()
    assert ours.recv() == "locked"
    waits = itertools.count(1)

    def wait() -> None:
        if next(waits) == 10_000:
            ours.send("release")
            holder.join()

    monkeypatch.setattr(os, "sched_yield", wait)
    assert SharedOrigins(shared, 0).join("http://a") is not None
    assert next(waits) > 10_000


def test_origins_that_hash_to_one_row_have_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedMemory.create(2)
    monkeypatch.setattr(SharedMemory, "key_of", lambda _, name: int(name) * ORIGINS + ORIGINS - 1)
    one, other = (SharedOrigins(shared, slot) for slot in range(2))
    rows = [one.join(str(number)) for number in range(1, 5)]
    for number, row in enumerate(rows):
        assert row is not None
        row.write(bytes([number]) * 120)
    assert rows[1] is not None
    rows[1].leave()
    # The row that is not used keeps the state of its origin, and does not hide the rows behind it.
    for number in range(4):
        again = other.join(str(number + 1))
        assert again is not None
        assert again.read() == (1, bytes([number]) * 120)
    assert repr(one) == "<SharedOrigins of slot 0, 4 rows>"


def test_the_first_origin_is_found_without_a_look_at_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, looks = SharedMemory.create(2), itertools.count()
    word = shared_origins._row_word
    monkeypatch.setattr(shared_origins, "_row_word", lambda *args: (next(looks), word(*args))[1])
    origins = SharedOrigins(shared, 0)
    for number in range(ORIGINS // 2):
        assert origins.join(f"http://{number}") is not None
    assert next(looks) < 6 * ORIGINS // 2


def test_a_row_is_free_for_another_origin_when_no_worker_uses_it() -> None:
    shared = SharedMemory.create(2)
    one, other = (SharedOrigins(shared, slot) for slot in range(2))
    rows = [one.join(f"http://{number}") for number in range(ORIGINS)]
    assert one.join("http://one-more") is None
    again = one.join("http://0")
    assert again is not None
    assert rows[0] is not None
    rows[0].write(bytes(120))
    assert again.version == 1
    seen = other.join("http://0")
    assert seen is not None
    rows[0].leave()
    assert one.join("http://one-more") is None
    seen.leave()
    taken = one.join("http://one-more")
    assert taken is not None
    assert (taken.version, one.join("http://0")) == (0, None)
    # The supervisor frees the rows of a worker that has died.
    one.clear()
    assert other.join("http://0") is not None


def test_a_reader_that_is_overtaken_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    row = SharedOrigins(SharedMemory.create(2), 0).join(NAME)
    assert row is not None
    row.write(b"1" * 120)
    version = OriginRow.version.fget  # type: ignore[attr-defined]
    overtaking = iter((b"2" * 120,))

    def overtaken(self: OriginRow) -> int:
        seen: int = version(self)
        if (state := next(overtaking, None)) is not None:
            with monkeypatch.context() as patch:
                patch.setattr(OriginRow, "version", property(version))
                self.write(state)
                self.write(b"3" * 120)
        return seen

    monkeypatch.setattr(OriginRow, "version", property(overtaken))
    assert row.read() == (3, b"3" * 120)
