"""The program of a worker's process: a gateway with the sockets and the place that the supervisor hands over."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import uvloop

from gateway.aio.tasks import Tasks
from gateway.cli.errors import FailedToRunError
from gateway.cli.reloading import failure_text
from gateway.cli.starting import bind_addresses, started
from gateway.cli.supervisor.kept_certificates import handing_over
from gateway.cli.supervisor.private_sockets import HeldFolder
from gateway.config.change import Change
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.reader import ConfigReadTimeout
from gateway.server.listeners import Inherited
from gateway.workers.control import Control, Message

if TYPE_CHECKING:
    from gateway.app import RunningGateway

_FOR_SUPERVISOR: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""Signals that a terminal or a service manager sends to all processes of the gateway.  Only the supervisor acts on
these signals, and sends messages to its workers."""

Take = Callable[[], Awaitable[Change]]
"""Loads the configuration again, and brings it into effect in this worker."""


def ignore_signals() -> None:
    """Ignore the signals on which only the supervisor acts."""
    for number in _FOR_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def run_worker(handed: Inherited, config: GatewayConfig, *, has_file: bool) -> int:
    """Serve until the supervisor ends this worker.  Returns the exit status."""
    control = handed.place.control
    folder = HeldFolder(handed.place.folder)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(handed, config, folder, has_file=has_file))
    except ConfigError as error:
        control.tell_last("failed", text=str(error), is_misuse=True)
        return 2
    except FailedToRunError as error:
        control.tell_last("failed", text=str(error), is_misuse=False)
        return 1
    return 0


async def _serve(handed: Inherited, config: GatewayConfig, folder: HeldFolder, *, has_file: bool) -> None:
    from gateway.app import start_gateway

    control = handed.place.control
    orders = _Orders(control)
    handed = replace(handed, until_accepting=orders.until_accepting)
    try:
        gateway = await started(
            start_gateway(config, load=orders.configuration, handed=handed), *bind_addresses(config)
        )
    except _SupervisorGoneError:
        # End without touching the sockets, because a previous version may still serve on them.
        folder.remove_if_last()
        return
    # Close the sockets that were handed over.  The gateway has duplicates of them, and its ports are closed only when
    # both are closed.
    for sock in chain(handed.admin, *handed.listening.values()):
        sock.close()
    gateway.has_file = has_file
    gateway.wait_for_others(orders.others_are_empty)
    gateway.listeners.on_certificates = hand_over = handing_over(control)
    hand_over(gateway.listeners.certificates)
    control.tell("serving", urls=gateway.listeners.urls, admin=gateway.admin_url)
    if handed.place.slot == 0:
        gateway.engine.health.probe_all()
    leaving = orders.tasks.start(_leave_ports_when_alone(gateway, orders), "ports without a supervisor")
    inherited = await orders.end
    if orders.alone.is_set():
        await leaving
    await gateway.stop(inherited, is_replaced=orders.is_replaced)
    await orders.tasks.close()
    if orders.alone.is_set():
        # The supervisor is gone and cannot remove the folder of the workers' sockets, so the last worker removes it.
        # Other workers that still drain then ask the origin instead of this worker.
        folder.remove_if_last()


async def _leave_ports_when_alone(gateway: RunningGateway, orders: _Orders) -> None:
    """Stop accepting when the supervisor is gone, even during a drain, because another gateway may wait for the ports.

    If the supervisor has ended during an upgrade, another version of this gateway uses the same sockets.  The sockets
    are therefore marked as shared.
    """
    await orders.alone.wait()
    gateway.listeners.is_shared = True
    gateway.refuse_changes()
    await gateway.listeners.stop_accepting()


class _SupervisorGoneError(Exception):
    """The supervisor has ended before it has allowed this worker to accept connections."""


class _Orders:
    """The supervisor's orders to this worker: when to accept, which configuration to take, and when to end."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.end: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        """Set when the worker has to end.  The value names the listeners whose sockets another process continues to
        use."""
        self.tasks = Tasks()
        self._taking = asyncio.Lock()
        """Held while a configuration is taken, so that configurations are taken one after another."""
        self._pickled: bytes | None = b""
        """The configuration that is being taken; None if it could not be received."""
        self.alone = asyncio.Event()
        """Set when the supervisor is gone."""
        self.is_replaced = False
        """Whether another version of the gateway serves, or may serve, in place of this version.  True if the
        supervisor has reported this, or if the supervisor is gone."""
        self._may_accept = asyncio.Event()
        self._is_too_late = False
        """Whether the supervisor has ended before it has allowed this worker to accept connections."""
        self._are_others_empty = asyncio.Event()
        control.on("accept", lambda _message: self._may_accept.set())
        control.on("end", self._end)
        control.on("all empty", lambda _message: self._are_others_empty.set())
        control.start(self._orphaned)

    async def until_accepting(self, take: Take, count_refusal: Callable[[], None]) -> None:
        """Tell the supervisor that this worker is prepared, and wait until it may accept connections.

        From now on, take each configuration that the supervisor sends.  If a reload took place while this worker
        started, the first configuration comes before this worker may accept connections.

        At the start of a gateway, no worker accepts connections before all workers are prepared.  The reason is that
        the gateway ends if one worker cannot start.  Connections to the other workers would then be cut.

        Raises _SupervisorGoneError if the supervisor ends first.  The worker must then not accept connections, because
        a previous version may still serve on the sockets.
        """
        self._control.on("configuration", partial(self._receive, take))
        self._control.on("configuration refused", lambda _message: count_refusal())
        self._control.tell("prepared")
        await self._may_accept.wait()
        if self._is_too_late:
            raise _SupervisorGoneError

    def _receive(self, take: Take, message: Message) -> None:
        number, pickled = message["number"], None
        if (descriptor := message["descriptor"]) is not None:
            # Do not move the file's position, because all workers share the open file and its position.
            pickled = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            os.close(descriptor)
        self.tasks.start(self._take(take, number, pickled), f"configuration {number}")

    async def _take(self, take: Take, number: int, pickled: bytes | None) -> None:
        changed: tuple[str, ...] = ()
        waiting: tuple[str, ...] = ()
        error, is_temporary = "", False
        async with self._taking:
            self._pickled = pickled
            try:
                change = await take()
            except Exception as failure:
                # Keep serving, because the next configuration may be usable.
                error = failure_text(failure)
                is_temporary = pickled is None or isinstance(failure, ConfigReadTimeout)
            else:
                changed, waiting = change.changed, change.needs_restart
        self._control.tell(
            "configured",
            number=number,
            changed=changed,
            needs_restart=waiting,
            error=error,
            is_temporary=is_temporary,
        )

    def configuration(self) -> GatewayConfig:
        """Return the configuration that is being taken.  Runs in a thread.  Raises ConfigError."""
        if self._pickled is None:
            raise ConfigError("this worker has too many open files to receive the configuration")
        config: GatewayConfig = pickle.loads(self._pickled)
        return config

    async def others_are_empty(self, within_s: float) -> None:
        """Tell the supervisor that this worker has no connections left, and wait at most `within_s` until no worker has
        connections.

        A worker without connections must still accept new ones, because clients may still connect while any worker
        serves.
        """
        self._control.tell("empty")
        if not self.alone.is_set() and within_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._are_others_empty.wait(), within_s)

    def _end(self, message: Message) -> None:
        self._may_accept.set()
        self.is_replaced = message["is_replaced"]
        if not self.end.done():
            self.end.set_result(message["inherited"])

    def _orphaned(self) -> None:
        self.is_replaced = True
        self.alone.set()
        self._is_too_late = not self._may_accept.is_set()
        self._may_accept.set()
        self._are_others_empty.set()
        if not self.end.done():
            self.end.set_result(())
