"""The process that reads the configuration for the supervisor."""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gateway.cli.supervisor import configuration_reading
from gateway.cli.supervisor.configuration_reading import Found, Reading
from gateway.cli.supervisor.configurations import TAKE_S
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.reader import READ_S
from tests.workers.reload_stage import config

BOUND_S = 30.0


def found_by(read: Callable[[], GatewayConfig], within_s: float = 10.0, kills: int = 0) -> Found:
    """What a process finds, of which so many are killed."""
    results: list[Found] = []
    with selectors.DefaultSelector() as selector:
        running = Reading(read, selector, 0.0, results.append, within_s)
        for _ in range(kills):
            os.kill(pid := running._pid, signal.SIGKILL)
            heard(selector)
            while running._pid == pid and not results:
                running.look()
        while not results:
            if selector.get_map():
                heard(selector)
            # Wait for the process's end, as the supervisor does at SIGCHLD.
            running.look()
    (found,) = results
    return found


def heard(selector: selectors.BaseSelector) -> None:
    ready = selector.select(BOUND_S)
    assert ready, "the process says nothing, and does not end"
    for key, _ in ready:
        key.data()


def refuse(error: Exception) -> GatewayConfig:
    raise error


def hang() -> GatewayConfig:
    signal.pause()
    raise AssertionError("nothing wakes it")


def test_a_process_reads_the_configuration() -> None:
    assert found_by(partial(config, 7)).config() == config(7)


def test_a_process_says_why_it_cannot_read_the_configuration() -> None:
    assert found_by(partial(refuse, ConfigError("key: wrong"))).error == "key: wrong"
    assert found_by(partial(refuse, ZeroDivisionError("by 0"))).error == "ZeroDivisionError: by 0"


def test_a_process_that_hangs_ends_in_time() -> None:
    assert found_by(hang, within_s=0.05).error == "the configuration could not be read within 0.05 s"


def test_a_process_that_is_killed_is_replaced() -> None:
    assert found_by(hang, within_s=0.05, kills=1).error == "the configuration could not be read within 0.05 s"
    killed = "the process that reads the configuration is killed each time"
    assert found_by(hang, kills=configuration_reading._ATTEMPTS).error == killed


def test_a_process_that_is_given_up_ends() -> None:
    with selectors.DefaultSelector() as selector:
        running = Reading(hang, selector, 0.0, lambda _found: None)
        pid = running.give_up()
        if pid is not None:
            os.waitpid(pid, 0)
        assert not selector.get_map()


def test_the_end_of_a_process_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may hold up a process that has closed its files."""
    results: list[Found] = []
    monkeypatch.setattr(os, "waitpid", lambda _pid, options: (0, 0) if options == os.WNOHANG else pytest.fail("waits"))
    with selectors.DefaultSelector() as selector:
        running = Reading(partial(config, 7), selector, 0.0, results.append)
        while selector.get_map():
            heard(selector)
        running.look()
        assert results == []
        monkeypatch.undo()
        while not results:
            running.look()
    assert results[0].config() == config(7)


@pytest.mark.parametrize("has_proc", [True, False])
def test_a_process_has_only_its_own_files(monkeypatch: pytest.MonkeyPatch, has_proc: bool) -> None:
    """A process may be allowed a thousand million files, so each number is not tried."""

    def refused(*_: object) -> list[str]:
        raise OSError(errno.ENOENT, "No such file or directory")

    def left() -> GatewayConfig:
        opened = []
        for number in range(3, 1_000):
            with suppress(OSError):
                os.fstat(number)
                opened.append(number)
        raise ConfigError(f"{len(opened)} files")

    monkeypatch.setattr(Path, "iterdir", Path.iterdir if has_proc else refused)
    monkeypatch.setattr(os, "closerange", refused if has_proc else os.closerange)
    kept = fcntl.fcntl(0, fcntl.F_DUPFD, 900)
    try:
        assert found_by(left).error == "1 files"
    finally:
        os.close(kept)


def test_the_wait_for_workers_is_longer_than_theirs_for_the_disk() -> None:
    assert TAKE_S > READ_S
