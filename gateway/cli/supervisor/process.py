"""The supervisor's process: it waits for signals, for deaths of workers and for their messages.

SIGTERM and SIGINT begin a drain of all workers, and a second one ends them at once.  SIGHUP makes all workers read the
configuration again.  SIGUSR2 starts the next version of the gateway on the same sockets.

The supervisor alone writes the states of the slots into the shared memory, from which the workers choose the owner of
each stream.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Final, Never

from gateway.aio.clock import SystemClock
from gateway.cli.errors import FailedToRunError, StoppedAtOnce
from gateway.cli.messages import print_message, print_ready
from gateway.cli.process import was_hung_up
from gateway.cli.sd_notify import ServiceManager
from gateway.cli.starting import bind_addresses, cannot_listen
from gateway.cli.supervisor.slots import Slot, end_of
from gateway.cli.supervisor.sockets import ListeningSockets
from gateway.cli.supervisor.upgrade import Predecessor, Upgrade
from gateway.cli.supervisor.worker import ignore_signals, run_worker
from gateway.commands.run import collect_rarely
from gateway.config.change import change as config_change
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.server.certificate_reloader import load_certificates
from gateway.server.handed import Handed
from gateway.server.handshake import ALPN
from gateway.server.listeners import Certificates
from gateway.workers.control import ChannelEnd, Control, Message
from gateway.workers.place import WorkerPlace
from gateway.workers.shared_counts import SharedCounts
from gateway.workers.shared_memory import SlotState
from gateway.workers.write_log import WriteLog

_SPARE_S: Final = 5.0
"""Seconds after the longest drain until a worker that has not ended is killed."""
_HOP_BACKLOG: Final = 1_024

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)


def supervise(load: Callable[[], GatewayConfig], *, has_file: bool) -> None:
    """Run a gateway with several workers until it has drained.

    Raises ConfigError or FailedToRunError if the workers cannot start, and StoppedAtOnce if a second signal ends
    them.
    """
    predecessor = Predecessor(os.environ)
    try:
        config = load()
        # The workers share the objects that are not examined again.
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
        self._config = config
        self._load = load
        self._environ = environ
        self._has_file = has_file
        self._manager = ServiceManager(environ)
        self._now = SystemClock().now
        self._phase = _Phase.STARTING
        self._slots = [Slot(number) for number in range(config.server.worker_count)]
        self._signalled: list[signal.Signals] = []
        self._kill_at: float | None = None
        self._reloads: dict[int, str | None] = {}
        """The outcome of the present reload at each slot that takes part; None if it is still to come."""
        self._is_hung_up = False
        self._is_stale = False
        """Whether the workers have read a configuration that the supervisor has not."""
        self._upgrade: Upgrade | None = None
        self._certificates: Certificates = {}
        self._load_certificates()
        self._predecessor = predecessor
        try:
            self._sockets = ListeningSockets.open(config, len(self._slots), environ, predecessor.sockets)
        except OSError as error:
            raise cannot_listen(error, *bind_addresses(config)) from None
        self._selector = selectors.DefaultSelector()
        self._wakeups, self._wakes = socket.socketpair()
        self._shared = predecessor.shared_memory(len(self._slots))
        self._secret = os.urandom(32)
        self._folder = _private_folder()
        self._hops = [self._private_socket(f"hop{slot.number}") for slot in self._slots]
        self._peers = [self._private_socket(f"peer{slot.number}") for slot in self._slots]

    def __repr__(self) -> str:
        return f"<WorkerSupervisor {self._phase.value}, {len(self._slots)} slots>"

    def run(self) -> None:
        """Run the gateway until it has drained; see `supervise`."""
        self._catch_signals()
        try:
            for slot in self._slots:
                self._fork(slot)
            while self._phase is not _Phase.DRAINING or any(slot.pid for slot in self._slots):
                self._wait()
        finally:
            self._close()

    def _close(self) -> None:
        """End the workers that have not ended, and leave nothing behind."""
        self._kill_all()
        self._stop_upgrade("the gateway stops")
        self._sockets.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        signal.set_wakeup_fd(-1)
        for slot in self._slots:
            self._close_channel(slot)
        for sock in (*self._hops, *self._peers, self._wakeups, self._wakes):
            sock.close()
        self._selector.close()

    # -- waiting

    def _catch_signals(self) -> None:
        for end in (self._wakeups, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda received, _frame: self._signalled.append(signal.Signals(received)))
        self._selector.register(self._wakeups, selectors.EVENT_READ, self._read_wakeups)
        self._is_hung_up = was_hung_up()

    def _read_wakeups(self) -> None:
        with suppress(BlockingIOError):
            self._wakeups.recv(4_096)

    def _wait(self) -> None:
        """Wait for the next event, and act on it."""
        times = [slot.next_at for slot in self._slots if slot.next_at is not None]
        if self._kill_at is not None:
            times.append(self._kill_at)
        if self._upgrade is not None:
            times.append(self._upgrade.ends_at)
        for key, _ in self._selector.select(max(0.0, min(times) - self._now()) if times else None):
            key.data()
        while self._signalled:
            self._act_on(self._signalled.pop(0))
        if self._is_stale:
            self._read_configuration()
        now = self._now()
        for slot in self._slots:
            if slot.next_at is not None and slot.next_at <= now:
                self._fork(slot)
        if self._upgrade is not None and self._upgrade.ends_at <= now:
            self._stop_upgrade("the next version does not serve in time")
        if self._kill_at is not None and self._kill_at <= now:
            self._kill_at = None
            for slot in self._slots:
                if slot.pid:
                    print_message(f"worker {slot.number} (process {slot.pid}) has not drained in time: it is killed")
            self._kill_all()

    def _act_on(self, number: signal.Signals) -> None:
        match number:
            case signal.SIGCHLD:
                for slot in self._slots:
                    self._reap(slot)
            case signal.SIGHUP:
                self._is_hung_up = True
                self._reload()
            case signal.SIGUSR2:
                self._begin_upgrade()
            case signal.SIGTERM | signal.SIGINT:
                if self._phase is _Phase.DRAINING:
                    raise StoppedAtOnce
                self._drain()

    # -- workers

    def _read_configuration(self) -> None:
        """Read the configuration that the workers have read, for those that start later."""
        self._is_stale = False
        with suppress(ConfigError):
            self._config = config_change(self._config, self._load()).config

    def _load_certificates(self) -> None:
        self._certificates = load_certificates(self._config.every_listener, ALPN, self._certificates)
        for one in self._certificates.values():
            one.make_session_contexts()

    def _fork(self, slot: Slot) -> None:
        """Start a worker in a slot."""
        if slot.generation:
            # The running workers load certificates that have changed, too.
            with suppress(ConfigError):
                self._load_certificates()
        slot.next_at, slot.is_serving, slot.failure = None, False, None
        slot.generation += 1
        slot.began_at = self._now()
        ours, theirs = socket.socketpair()
        self._shared.set_slot(slot.number, SlotState.STARTING, slot.generation, 0)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            self._ended(slot, f"cannot be started: {error.strerror}")
            return
        if pid == 0:
            ours.close()
            self._become(slot, theirs)
        theirs.close()
        slot.pid, slot.channel = pid, ChannelEnd(ours)
        self._shared.set_slot(slot.number, SlotState.STARTING, slot.generation, pid)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(slot))

    def _become(self, slot: Slot, sock: socket.socket) -> Never:
        """Become the worker of a slot, in the process just forked."""
        status = 1
        try:
            ignore_signals()
            signal.set_wakeup_fd(-1)
            self._leave_to_others(slot)
            place = WorkerPlace(
                slot=slot.number,
                workers=len(self._slots),
                generation=slot.generation,
                shared=self._shared,
                hop_socket=self._hops[slot.number],
                hop_paths=tuple(one.getsockname() for one in self._hops),
                peer_socket=self._peers[slot.number],
                peer_paths=tuple(one.getsockname() for one in self._peers),
                folder=self._folder,
                secret=self._secret,
                control=Control(sock),
            )
            handed = Handed(place, self._sockets.of(slot.number), self._sockets.admin, self._certificates)
            status = run_worker(handed, self._config, self._load, has_file=self._has_file)
        except BaseException:
            traceback.print_exc()
        finally:
            # The rest of the supervisor's program is not for this process.
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _leave_to_others(self, slot: Slot) -> None:
        """Close the descriptors that a slot's worker has no use for.

        If a worker held the supervisor's end of another worker's channel, that worker would not notice the supervisor's
        end.
        """
        self._selector.close()
        self._wakeups.close()
        self._wakes.close()
        self._predecessor.close()
        if self._upgrade is not None:
            self._upgrade.channel.close()
        for other in self._slots:
            if other.channel is not None:
                other.channel.close()
        for sock in self._sockets.others(slot.number):
            sock.close()

    def _hear(self, slot: Slot) -> None:
        """Read what a worker says."""
        if slot.channel is None:
            return
        messages = slot.channel.receive()
        if messages is None:
            # The worker is about to end, which SIGCHLD reports.
            self._close_channel(slot)
            return
        for message in messages:
            self._act_on_message(slot, message)

    def _act_on_message(self, slot: Slot, message: Message) -> None:
        match message["kind"]:
            case "serving":
                slot.is_serving = True
                if self._phase is not _Phase.DRAINING:
                    self._shared.set_slot(slot.number, SlotState.SERVING, slot.generation, slot.pid)
                if self._phase is _Phase.STARTING and all(one.is_serving for one in self._slots):
                    self._serve(message)
            case "failed":
                slot.failure = message
            case "reloaded":
                if slot.number in self._reloads:
                    self._reloads[slot.number] = message["text"]
                    self._end_reload()
            case "configured":
                self._is_stale = True
            case "upgrade":
                slot.waits_for_upgrade = True
                self._begin_upgrade()
            case "empty":
                slot.is_empty = True
                self._tell_when_empty()

    def _serve(self, message: Message) -> None:
        self._phase = _Phase.SERVING
        for url in message["urls"]:
            print_ready("gateway", url)
        print_ready("admin", message["admin"])
        self._predecessor.tell({"kind": "serving", "taken": self._predecessor.sockets.taken})
        self._manager.ready()
        if self._is_hung_up:
            self._reload()

    def _close_channel(self, slot: Slot) -> None:
        if slot.channel is not None:
            self._selector.unregister(slot.channel.sock)
            slot.channel.close()
            slot.channel = None

    def _reap(self, slot: Slot) -> None:
        """Look whether a slot's worker has ended."""
        if not slot.pid:
            return
        pid, status = os.waitpid(slot.pid, os.WNOHANG)
        if pid:
            self._hear(slot)
            self._close_channel(slot)
            self._ended(slot, end_of(status))

    def _ended(self, slot: Slot, how: str) -> None:
        """Act on the end of a slot's worker."""
        pid, slot.pid = slot.pid, 0
        was_serving, slot.is_serving = slot.is_serving, False
        self._shared.set_slot(slot.number, SlotState.DEAD, slot.generation, 0)
        # The writes that the worker had under way will never be answered.
        WriteLog(self._shared, slot.number, self._now).settle(slot.number)
        SharedCounts(self._shared, slot.number).clear()
        if self._reloads.pop(slot.number, ""):
            self._end_reload()
        if self._phase is _Phase.DRAINING:
            self._tell_when_empty()
            return
        failure = slot.failure
        if self._phase is _Phase.STARTING:
            if failure is None:
                raise FailedToRunError(f"worker {slot.number} (process {pid}) {how} before it served")
            raise (ConfigError if failure["is_misuse"] else FailedToRunError)(failure["text"])
        lived_s = self._now() - slot.began_at if was_serving else 0.0
        delay_s = slot.backoff.after(lived_s)
        slot.next_at = self._now() + delay_s
        why = f"cannot start: {failure['text']}" if failure is not None else how
        again = f"in {delay_s:.1f} s" if delay_s else "now"
        print_message(f"worker {slot.number} (process {pid}) {why}; another one starts {again}")

    def _kill_all(self) -> None:
        for slot in self._slots:
            if slot.pid:
                with suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)

    def _tell(self, slot: Slot, kind: str, **fields: object) -> None:
        if slot.channel is not None:
            slot.channel.send({"kind": kind, **fields})

    # -- reload and drain

    def _reload(self) -> None:
        """Make all workers read the configuration again, unless they are just doing so."""
        if self._phase is not _Phase.SERVING or self._reloads:
            return
        self._is_hung_up = False
        self._reloads = {slot.number: None for slot in self._slots if slot.is_serving}
        if self._reloads:
            self._manager.reloading()
        for slot in self._slots:
            if slot.number in self._reloads:
                self._tell(slot, "reload")

    def _end_reload(self) -> None:
        """Print the outcome of a reload once all workers have told theirs."""
        if not self._reloads or None in self._reloads.values():
            return
        outcomes = {text for text in self._reloads.values() if text is not None}
        text = (
            outcomes.pop()
            if len(outcomes) == 1
            else "; ".join(f"worker {number}: {outcome}" for number, outcome in sorted(self._reloads.items()))
        )
        self._reloads.clear()
        print_message(text)
        self._manager.ready(text)
        if self._is_hung_up:
            self._reload()

    def _begin_upgrade(self) -> None:
        """Start the next version of the gateway, unless it is starting already."""
        if self._upgrade is not None or self._phase is not _Phase.SERVING:
            return
        if os.getpid() == 1:
            self._end_upgrade("not upgraded: this is process 1, and its end would end the container")
            return
        try:
            self._upgrade = Upgrade(self._sockets, self._shared, self._environ, self._now())
        except OSError as error:
            self._end_upgrade(f"not upgraded, all stays as it was: {error.strerror or error}")
            return
        print_message(f"upgrade: the next version starts as process {self._upgrade.pid}")
        self._selector.register(self._upgrade.channel.sock, selectors.EVENT_READ, self._hear_upgrade)

    def _hear_upgrade(self) -> None:
        """Read what the next version says: that it serves, or why it does not."""
        upgrade = self._upgrade
        messages = upgrade.channel.receive() if upgrade is not None else []
        if upgrade is None or messages == []:
            return
        self._selector.unregister(upgrade.channel.sock)
        self._upgrade = None
        if messages is None or messages[0]["kind"] != "serving":
            why = upgrade.failure()
            if messages:
                why = messages[0]["text"]
            self._end_upgrade(f"not upgraded, all stays as it was: the next version does not start: {why}")
            return
        upgrade.release()
        self._end_upgrade(f"upgraded: process {upgrade.pid} serves, and this one drains", is_done=True)
        self._manager.hand_over(upgrade.pid)
        taken = set(messages[0]["taken"])
        self._phase = _Phase.DRAINING
        self._end_workers(tuple(index for index, place in self._sockets.places.items() if place.key in taken))
        self._sockets.close(taken)

    def _end_upgrade(self, outcome: str, *, is_done: bool = False) -> None:
        print_message(outcome)
        for slot in self._slots:
            if slot.waits_for_upgrade:
                slot.waits_for_upgrade = False
                self._tell(slot, "upgraded", text=outcome, is_done=is_done)

    def _stop_upgrade(self, why: str) -> None:
        """Give up an upgrade that has not been done yet."""
        if self._upgrade is not None:
            self._selector.unregister(self._upgrade.channel.sock)
            self._upgrade.give_up()
            self._upgrade = None
            self._end_upgrade(f"not upgraded: {why}")

    def _drain(self) -> None:
        """End all workers in order."""
        self._stop_upgrade("the gateway stops")
        self._phase = _Phase.DRAINING
        self._manager.stopping()
        self._end_workers(())
        # From now on each socket belongs to its worker alone, which accepts what waits in the queue before it closes
        # the socket.
        self._sockets.close()

    def _end_workers(self, inherited: tuple[int, ...]) -> None:
        self._kill_at = self._now() + self._config.server.shutdown_timeout_s + _SPARE_S
        for slot in self._slots:
            slot.next_at = None
            if slot.pid:
                self._shared.set_slot(slot.number, SlotState.DRAINING, slot.generation, slot.pid)
                self._tell(slot, "end", inherited=inherited)

    def _tell_when_empty(self) -> None:
        if all(slot.is_empty or not slot.pid for slot in self._slots):
            for slot in self._slots:
                self._tell(slot, "all empty")

    def _private_socket(self, name: str) -> socket.socket:
        """Listen at a Unix socket between the workers."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(f"{self._folder}/{name}")
        sock.listen(_HOP_BACKLOG)
        return sock


def _private_folder() -> str:
    """Make a folder that only this user can enter.  Raises FailedToRunError."""
    try:
        return tempfile.mkdtemp(prefix="durable-gateway-")
    except OSError as error:
        raise FailedToRunError(f"cannot make a temporary folder for the workers' sockets: {error.strerror}") from None
