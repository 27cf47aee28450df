"""The supervisor's process: it waits for signals, for deaths of workers and for messages of workers.

SIGTERM and SIGINT begin a drain of all workers.  A second SIGTERM or SIGINT ends the workers at once.  SIGHUP reloads
the configuration of all workers.  SIGUSR2 starts the next version of the gateway on the same sockets.

The supervisor alone writes the states of the slots into the shared memory, from which the workers choose the owner of
each stream.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Final

from gateway.aio.clock import SystemClock
from gateway.cli.early_process import was_hung_up
from gateway.cli.errors import FailedToRunError, StoppedAtOnce
from gateway.cli.messages import print_message, print_ready
from gateway.cli.sd_notify import ServiceManager
from gateway.cli.starting import bind_addresses, cannot_listen
from gateway.cli.supervisor.configuration_reading import Found, Reading
from gateway.cli.supervisor.configurations import Configurations
from gateway.cli.supervisor.forking import Workers
from gateway.cli.supervisor.kept_certificates import KeptCertificates
from gateway.cli.supervisor.private_sockets import ARRIVALS, HOP, PEER, PrivateSockets, of_living_versions
from gateway.cli.supervisor.reload_round import Asker
from gateway.cli.supervisor.slots import Slot, may_accept
from gateway.cli.supervisor.sockets import ListeningSockets
from gateway.cli.supervisor.upgrade import Predecessor, Upgrade
from gateway.cli.supervisor.worker import ignore_signals, run_worker
from gateway.commands.run import collect_rarely
from gateway.config.change import change as config_change
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.configured_files import load_files
from gateway.disk.folders import DiskFailsError, folder_of, lock_gateway, mark_behind, read_key, write_key
from gateway.server.listeners import Inherited
from gateway.workers.control import Control, Message
from gateway.workers.member_owners import cell_key
from gateway.workers.place import WorkerPlace
from gateway.workers.removals import Removals
from gateway.workers.shared_memory import SharedMemory

_SPARE_S: Final = 5.0
"""A worker that still runs this many seconds after `shutdown_timeout_s` is killed."""

_LOADED: Final = ("gateway.app", "encodings.idna", "uvloop")
"""Modules that every worker needs, loaded before the fork."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)


def supervise(load: Callable[[], GatewayConfig], *, has_file: bool) -> None:
    """Run a gateway with several workers until it has drained.

    Raises ConfigError or FailedToRunError if the workers cannot start, and StoppedAtOnce if a second signal ends
    them.
    """
    if sys.platform != "linux":
        raise FailedToRunError("server.workers: only Linux has what several workers need; use 1")
    predecessor = Predecessor(os.environ)
    try:
        config = load()
        # Load these modules before the fork.  The workers then share the memory of the code, until a process writes
        # there.
        for name in _LOADED:
            import_module(name)
        from gateway.ops.gathering.endpoints import make_adapters

        make_adapters()
        collect_rarely()
        WorkerSupervisor(config, load, os.environ, predecessor, has_file=has_file).run()
    except (ConfigError, FailedToRunError) as error:
        predecessor.tell({"kind": "failed", "text": str(error)})
        raise


class _Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class WorkerSupervisor:
    """The supervisor of one gateway.  `load` reads the configuration again."""

    def __init__(
        self,
        config: GatewayConfig,
        load: Callable[[], GatewayConfig],
        environ: Mapping[str, str],
        predecessor: Predecessor,
        *,
        has_file: bool,
    ) -> None:
        count = config.worker_count
        self._load = load
        self._environ = environ
        self._has_file = has_file
        self._manager = ServiceManager(environ)
        self._now = SystemClock().now
        self._phase = _Phase.STARTING
        self._signalled: list[signal.Signals] = []
        self._kill_at: float | None = None
        self._is_told_to_stop = False
        self._is_replaced = False
        """Whether another version of the gateway serves in place of this version."""
        self._upgrade: Upgrade | None = None
        self._given_up: list[Upgrade] = []
        """Upgrades that were given up, but whose processes may still run."""
        self._certificates = KeptCertificates(config)
        self._predecessor = predecessor
        self._store_lock: int | None = None
        """The descriptor with the lock of the store on disk, which all workers share."""
        if config.store.path:
            self._store_lock = lock_gateway(config.store.path, predecessor.take_store_lock())
        try:
            self._sockets = ListeningSockets.open(config, count, environ, predecessor.sockets)
        except OSError as error:
            raise cannot_listen(error, *bind_addresses(config)) from None
        self._selector = selectors.DefaultSelector()
        self._wakeups, self._wakes = socket.socketpair()
        self._shared = self._shared_memory(config, count)
        self._secret = predecessor.secret
        self._private = PrivateSockets(count)
        self._workers = Workers(count, self._shared, self._selector, self._now, self._hear, self._ended)
        self._slots = self._workers.slots
        self._configurations = Configurations(
            config, self._workers, self._now, self._start_reading, self, has_file=has_file
        )

    def __repr__(self) -> str:
        return f"<WorkerSupervisor {self._phase.value}, {len(self._slots)} slots>"

    def _shared_memory(self, config: GatewayConfig, count: int) -> SharedMemory:
        """Return the memory of the workers.  With a store on disk, the key of the path hash is kept there, so that
        streams have the same owners after a restart."""
        if config.fleet.is_on:
            return self._predecessor.shared_memory(count, cell_key(config.fleet.key))
        if not config.store.path:
            return self._predecessor.shared_memory(count, None)
        key = read_key(config.store.path)
        shared = self._predecessor.shared_memory(count, key)
        if key is None:
            try:
                write_key(config.store.path, shared.secret)
            except DiskFailsError as error:
                print_message(f"{error}: hash.key is not kept, so after the next start most streams have other owners")
        return shared

    def run(self) -> None:
        """Run the gateway until it has drained; see `supervise`."""
        self._catch_signals()
        try:
            for slot in self._slots:
                self._start(slot)
            while self._phase is not _Phase.DRAINING or self._workers:
                self._wait()
        finally:
            self._close()

    def _close(self) -> None:
        """Kill the workers that still run, and release all resources."""
        self._workers.kill()
        self._mark_stores()
        self._stop_upgrade("not upgraded: the gateway stops")
        self._configurations.end()
        self._sockets.close(self._predecessor.shared)
        self._private.close()
        signal.set_wakeup_fd(-1)
        self._workers.close()
        for sock in (self._wakeups, self._wakes):
            sock.close()
        self._selector.close()

    def _mark_stores(self) -> None:
        """Mark the store folders of those workers that were dead while other workers removed streams.  If another
        version serves, do nothing, because that version counts these removals itself."""
        path = self._configurations.config.store.path
        if not path or self._predecessor.goes_on or self._is_replaced:
            return
        for slot in Removals(self._shared, 0).slots_behind():
            with suppress(OSError):
                mark_behind(folder_of(Path(path), slot))

    # -- waiting

    def _catch_signals(self) -> None:
        for end in (self._wakeups, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda received, _frame: self._signalled.append(signal.Signals(received)))
        self._selector.register(self._wakeups, selectors.EVENT_READ, self._read_wakeups)
        if was_hung_up():
            self._configurations.ask_reload()

    def _read_wakeups(self) -> None:
        with suppress(BlockingIOError):
            self._wakeups.recv(4_096)

    def _wait(self) -> None:
        """Wait for the next event, and act on it."""
        times = [at for slot in self._slots for at in (slot.next_at, slot.hangs_at) if at is not None]
        upgrade_ends_at = self._upgrade.ends_at if self._upgrade is not None else None
        times += [at for at in (self._kill_at, self._configurations.ends_at, upgrade_ends_at) if at is not None]
        for key, _ in self._selector.select(max(0.0, min(times) - self._now()) if times else None):
            key.data()
        while self._signalled:
            self._act_on(self._signalled.pop(0))
        now = self._now()
        for slot in self._slots:
            if slot.next_at is not None and slot.next_at <= now:
                self._start(slot)
        self._end_hung(now)
        self._configurations.look()
        self._admit()
        self._look_at_upgrade(now)
        if self._kill_at is not None and self._kill_at <= now:
            self._kill_at = None
            for slot in self._slots:
                if slot.pid:
                    print_message(f"worker {slot.number} (process {slot.pid}) has not drained in time: it is killed")
            self._workers.kill()

    def _act_on(self, number: signal.Signals) -> None:
        match number:
            case signal.SIGCHLD:
                self._workers.reap()
            case signal.SIGHUP:
                self._configurations.ask_reload()
            case signal.SIGUSR2:
                self._begin_upgrade()
            case signal.SIGTERM | signal.SIGINT:
                if self._is_told_to_stop:
                    raise StoppedAtOnce
                self._is_told_to_stop = True
                # After an upgrade, this version already drains.
                if self._phase is not _Phase.DRAINING:
                    self._drain()

    # -- workers

    def _start(self, slot: Slot) -> None:
        """Start a worker in a slot."""
        self._configurations.begins(slot)
        self._workers.fork(slot, self._run_worker)

    def _end_hung(self, now: float) -> None:
        """Kill the workers that hang at their start.  Otherwise, all other workers would wait for such a worker while
        the gateway starts.  Later, the connections in the queues of its sockets would wait for it."""
        hung = [slot for slot in self._slots if slot.hangs_at is not None and slot.hangs_at <= now]
        for slot in hung:
            slot.hangs()
        self._workers.kill(hung)

    def _run_worker(self, slot: Slot, control: Control) -> int:
        """Run the worker of a slot, in its own process.  Returns the exit status."""
        ignore_signals()
        signal.set_wakeup_fd(-1)
        self._predecessor.close()
        if self._upgrade is not None:
            self._upgrade.channel.close()
        self._selector.close()
        self._configurations.close_files()
        for unused in (self._wakeups, self._wakes, *self._sockets.others(slot.number)):
            unused.close()
        private = self._private
        private.close_others(slot.number)
        certificates = self._certificates.of_worker(slot.generation, self._configurations.config)
        place = WorkerPlace(
            slot=slot.number,
            workers=len(self._slots),
            generation=slot.generation,
            shared=self._shared,
            hop_socket=private.of(HOP, slot.number),
            hop_paths=private.paths(HOP),
            peer_socket=private.of(PEER, slot.number),
            peer_paths=private.paths(PEER),
            predecessors=self._predecessor.peers,
            arrivals_socket=private.of(ARRIVALS, slot.number),
            arrivals_paths=private.paths(ARRIVALS),
            folder=private.folder,
            secret=self._secret,
            control=control,
        )
        handed = Inherited(place, self._sockets.of(slot.number), self._sockets.admin, certificates)
        return run_worker(handed, self._configurations.config, has_file=self._has_file)

    def _hear(self, slot: Slot, message: Message) -> None:
        match message["kind"]:
            case "prepared":
                slot.prepares()
                self._configurations.prepares(slot)
            case "serving":
                slot.is_serving = True
                if self._phase is _Phase.STARTING and all(one.is_serving for one in self._slots):
                    self._serve(message)
            case "failed":
                slot.failure = message
            case "configured":
                self._configurations.hears(slot, message)
            case "certificates":
                self._certificates.hear(message)
            case "reload":
                self._configurations.ask_reload(Asker(slot.number, slot.generation, message["request"]))
            case "upgrade":
                slot.upgrade_requests.append(message["request"])
                self._begin_upgrade()
            case "empty":
                slot.is_empty = True
                self._tell_when_empty()

    def _admit(self) -> None:
        """Tell all workers that may accept connections to begin to accept them."""
        is_starting = self._phase is _Phase.STARTING
        for slot in may_accept(self._slots, self._configurations.needed, is_starting=is_starting):
            self._workers.admit(slot)

    def _serve(self, message: Message) -> None:
        self._phase = _Phase.SERVING
        for url in message["urls"]:
            print_ready("gateway", url)
        print_ready("admin", message["admin"])
        self._predecessor.tell({"kind": "serving", "taken": self._predecessor.sockets.taken})
        self._manager.ready()
        self._configurations.open()

    def _ended(self, slot: Slot, how: str) -> None:
        """Act on the end of a slot's worker."""
        pid, was_serving = slot.pid, slot.is_serving
        delay_s = slot.ends(self._now())
        self._configurations.loses(slot)
        if self._phase is _Phase.DRAINING:
            slot.next_at = None
            self._private.close_slot(slot.number)
            self._tell_when_empty()
            return
        failure = slot.failure
        name = f"worker {slot.number} (process {pid})" if pid else f"worker {slot.number}"
        if self._phase is _Phase.STARTING:
            if failure is None:
                raise FailedToRunError(f"{name} {how} before it served")
            raise (ConfigError if failure["is_misuse"] else FailedToRunError)(failure["text"])
        why = f"cannot start: {failure['text']}" if failure is not None else how
        again = f"in {delay_s:.1f} s" if delay_s else "now"
        print_message(f"{name} {why}; another one starts {again}")
        if not was_serving and self._upgrade is None:
            # The next worker may fail in the same way, so stop the kernel from giving new connections to this slot.
            # Do not do so during an upgrade: a worker of the next version may already accept from the same queues.
            self._sockets.stop_listening(slot.number)

    # -- reload and drain

    def _start_reading(self, running: GatewayConfig, done: Callable[[Found], None]) -> Reading:
        return Reading(lambda: self._read(running), self._selector, self._now(), done)

    def _read(self, running: GatewayConfig) -> GatewayConfig:
        """Read the configuration and every file that it names.  Runs in a process of its own.  Raises ConfigError."""
        config = self._load()
        self._certificates.read(config_change(running, config).config)
        load_files(config, self._environ)
        return config

    def reloading(self) -> None:
        """Report that a reload begins."""
        self._manager.reloading()

    def reloaded(self, outcome: str) -> None:
        """Report the outcome of a reload."""
        print_message(outcome)
        self._manager.ready(outcome)

    def reloaded_late(self, outcome: str) -> None:
        """Report an answer that a worker has given after the end of its reload."""
        print_message(outcome)

    def _begin_upgrade(self) -> None:
        """Start the next version of the gateway, unless it is starting already."""
        if self._upgrade is not None or self._phase is not _Phase.SERVING:
            return
        if os.getpid() == 1:
            self._end_upgrade("not upgraded: this is process 1, and its end would end the container")
            return
        self._workers.settle_left()
        try:
            # After two upgrades within a short time, the previous version may still drain, too.
            earlier = of_living_versions(self._predecessor.peers)
            peers = (*self._private.paths(PEER), *earlier)
            self._upgrade = Upgrade(
                self._sockets, self._shared, peers, self._secret, self._environ, self._now(), self._store_lock
            )
            self._upgrade.reloads = self._configurations.reloads
        except OSError as error:
            self._end_upgrade(f"not upgraded, all stays as it was: {error.strerror or error}")
            return
        print_message(f"upgrade: the next version starts as process {self._upgrade.pid}")
        self._selector.register(self._upgrade.channel.sock, selectors.EVENT_READ, self._hear_upgrade)

    def _hear_upgrade(self) -> None:
        """Read the message of the next version: either it serves, or it reports why it cannot serve."""
        upgrade = self._upgrade
        messages = upgrade.channel.receive() if upgrade is not None else []
        if upgrade is None or messages == []:
            return
        self._selector.unregister(upgrade.channel.sock)
        if messages is None or messages[0]["kind"] != "serving":
            upgrade.fails(self._now(), messages[0]["text"] if messages else "")
            return
        self._upgrade = None
        upgrade.release()
        if self._configurations.reloads != upgrade.reloads:
            # A reload was requested after the next version was started.  Let the next version read the configuration
            # again, because it may have read the file before the operator's change.
            os.kill(upgrade.pid, signal.SIGHUP)
        self._end_upgrade(f"upgraded: process {upgrade.pid} serves, and this one drains", is_done=True)
        self._manager.hand_over(upgrade.pid)
        self._leave(messages[0]["taken"], is_replaced=True)

    def _end_upgrade(self, outcome: str, *, is_done: bool = False) -> None:
        print_message(outcome)
        for slot in self._slots:
            for request in slot.upgrade_requests:
                self._workers.tell(slot, "answer", request=request, text=outcome, is_done=is_done)
            slot.upgrade_requests.clear()

    def _stop_upgrade(self, outcome: str) -> None:
        """Give up an upgrade that is not complete."""
        if (upgrade := self._upgrade) is not None:
            if not upgrade.has_failed:
                self._selector.unregister(upgrade.channel.sock)
            self._given_up.append(upgrade)
            self._upgrade = None
            upgrade.give_up()
            self._end_upgrade(outcome)

    def _look_at_upgrade(self, now: float) -> None:
        """Give up a next version that has failed and ended, or that takes too long."""
        self._given_up = [one for one in self._given_up if not one.has_ended]
        if self._upgrade is not None and (failure := self._upgrade.failure(now)):
            self._stop_upgrade(failure)

    def _drain(self) -> None:
        """Let all workers drain and end."""
        self._stop_upgrade("not upgraded: the gateway stops")
        self._manager.stopping()
        # If this version does not serve yet, the previous version continues to serve.
        self._leave(self._predecessor.shared, is_replaced=self._predecessor.goes_on)

    def _leave(self, taken: Collection[str], *, is_replaced: bool) -> None:
        """Let all workers drain and end.  If another version replaces this version, it continues to use the sockets of
        the addresses `taken`.

        From now on, the sockets of all other addresses are open only in the workers.  Each worker accepts the
        connections that wait in the queue of its socket, and then closes the socket.
        """
        self._phase, self._is_replaced = _Phase.DRAINING, is_replaced
        self._configurations.close("the gateway stops")
        inherited = [index for index, place in self._sockets.places.items() if place.key in taken]
        self._end_workers(inherited, is_replaced=is_replaced)
        self._sockets.close(taken)

    def _end_workers(self, inherited: Collection[int], *, is_replaced: bool) -> None:
        self._kill_at = self._now() + self._configurations.config.server.shutdown_timeout_s + _SPARE_S
        for slot in self._slots:
            slot.next_at = slot.hangs_at = None
            if slot.pid:
                self._workers.drains(slot)
                self._workers.tell(slot, "end", inherited=inherited, is_replaced=is_replaced)
            else:
                self._private.close_slot(slot.number)

    def _tell_when_empty(self) -> None:
        if all(slot.is_empty or not slot.pid for slot in self._slots):
            for slot in self._slots:
                self._workers.tell(slot, "all empty")
