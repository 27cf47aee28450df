"""What the supervisor does while a disk hangs: it waits for nothing."""

from __future__ import annotations

import os
import socket
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli.supervisor.kept_certificates import KeptCertificates
from gateway.cli.supervisor.private_sockets import PrivateSockets
from gateway.cli.supervisor.process import WorkerSupervisor
from gateway.cli.supervisor.slots import Slot
from gateway.cli.supervisor.sockets import ListeningSockets
from gateway.cli.supervisor.upgrade import Upgrade
from gateway.config.errors import ConfigError
from gateway.server.certificates import Certificates, LoadedCertificates
from gateway.server.listeners import Inherited
from gateway.workers.control import Control
from gateway.workers.shared_memory import SharedMemory
from tests.workers.reload_stage import config


@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize("is_usable", [True, False])
def test_only_a_worker_reads_certificates_when_it_starts_again(
    monkeypatch: pytest.MonkeyPatch, generation: int, is_usable: bool
) -> None:
    """A disk that hangs holds up this worker, and not the supervisor."""
    reads: list[str] = []
    handed: list[Inherited] = []
    process = "the supervisor"

    def load(_listeners: object, _alpn: object, old: Certificates) -> Certificates:
        reads.append(process)
        if not is_usable:
            raise ConfigError("no such file")
        return {**old, 1: new}

    def run(given: Inherited, *_: object, **__: object) -> int:
        handed.append(given)
        return 0

    old, new = (cast(LoadedCertificates, SimpleNamespace(make_session_contexts=lambda: None)) for _ in range(2))
    kept: Any = KeptCertificates.__new__(KeptCertificates)
    kept._at_start, kept._latest = {0: old}, b""
    monkeypatch.setattr("gateway.cli.supervisor.kept_certificates.load_certificates", load)
    monkeypatch.setattr("gateway.cli.supervisor.process.run_worker", run)
    monkeypatch.setattr("gateway.cli.supervisor.process.ignore_signals", lambda: None)
    supervisor: Any = WorkerSupervisor.__new__(WorkerSupervisor)
    supervisor._slots, supervisor._upgrade, supervisor._has_file = [Slot(0, generation)], None, True
    supervisor._certificates, supervisor._secret, supervisor._shared = kept, b"", None
    supervisor._wakeups = supervisor._wakes = supervisor._selector = SimpleNamespace(close=lambda: None)
    supervisor._predecessor = SimpleNamespace(close=lambda: None, peers=())
    supervisor._configurations = SimpleNamespace(begins=lambda _: None, close_files=lambda: None, config=config())
    supervisor._sockets = SimpleNamespace(others=lambda _: [], of=lambda _: {}, admin=[])
    supervisor._private = PrivateSockets(1)
    supervisor._workers = SimpleNamespace(fork=lambda slot, _run: slot.begins(0.0))
    supervisor._start(supervisor._slots[0])
    assert reads == []
    process = "the worker"
    supervisor._run_worker(supervisor._slots[0], cast(Control, None))
    supervisor._private.close()
    assert reads == ["the worker"] * generation
    assert handed[0].certificates == ({0: old, 1: new} if generation and is_usable else {0: old})


def test_the_end_of_a_next_version_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may hold up its process."""
    monkeypatch.setattr(sys, "orig_argv", ["", "-c", "import signal; signal.pause()"])
    shared = SharedMemory.create(1)
    with socket.socket(socket.AF_UNIX) as unused:
        handed = cast(ListeningSockets, SimpleNamespace(described=lambda: {"a": [[unused.fileno()]]}))
        upgrade = Upgrade(handed, shared, (), b"", os.environ, 100.0)
    assert upgrade.failure(101.0) == ""
    assert upgrade.failure(upgrade.ends_at) == "not upgraded: the next version does not serve in time"
    upgrade.fails(101.0, "")
    assert upgrade.failure(101.5) == ""
    assert upgrade.failure(upgrade.ends_at).endswith("does not start: it has closed its channel")
    upgrade.give_up()
    while not upgrade.has_ended:
        pass
    assert upgrade.failure(101.5).endswith("does not start: it was ended by SIGKILL")
    upgrade.fails(101.0, "key: is not TOML")
    assert upgrade.failure(101.5).endswith("does not start: key: is not TOML")
