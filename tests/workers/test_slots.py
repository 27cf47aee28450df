"""When a dead worker starts again, when a worker may accept, and who gets which socket."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import selectors
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli.errors import FailedToRunError
from gateway.cli.sd_notify import ServiceManager
from gateway.cli.supervisor import sockets
from gateway.cli.supervisor.configurations import Configurations
from gateway.cli.supervisor.forking import Workers
from gateway.cli.supervisor.private_sockets import PEER, HeldFolder, PrivateSockets
from gateway.cli.supervisor.process import WorkerSupervisor, _Phase
from gateway.cli.supervisor.slots import MOST_DELAY_S, START_S, STEADY_S, Backoff, Slot, end_of, may_accept
from gateway.cli.supervisor.sockets import HandedSockets, ListeningSockets
from gateway.cli.supervisor.upgrade import Upgrade
from gateway.cli.supervisor.worker import _Orders, _serve
from gateway.config.change import Change
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.reader import ConfigReadTimeout
from gateway.server.listeners import Inherited
from gateway.workers.control import ChannelEnd, Control
from gateway.workers.place import WorkerPlace, listens
from gateway.workers.shared_memory import SharedMemory, SlotState
from gateway.workers.shared_origins import SharedOrigins
from tests.waiting import eventually, pass_turns


def test_the_first_death_costs_nothing_and_the_next_ones_ever_more() -> None:
    backoff = Backoff()
    assert [round(backoff.after(0.0), 3) for _ in range(8)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert backoff.after(STEADY_S) == 0.0, "a worker that has lived long enough is no sign of a fault"
    assert backoff.after(0.0) == 0.1


def test_a_worker_that_has_served_for_the_delay_is_replaced_at_once() -> None:
    backoff = Backoff()
    assert [backoff.after(MOST_DELAY_S) for _ in range(8)] == [0.0] * 8
    assert backoff.after(0.5) == MOST_DELAY_S - 0.5


def test_no_worker_accepts_at_the_start_before_all_are_prepared() -> None:
    slots = [Slot(0), Slot(1)]
    slots[0].is_prepared = True
    assert may_accept(slots, 0, is_starting=True) == [], "the other one may fail, and so would the start"
    assert may_accept(slots, 0, is_starting=False) == [slots[0]], "a slot's next worker need not wait"
    slots[1].is_prepared = True
    assert may_accept(slots, 0, is_starting=True) == slots


def test_no_worker_begins_to_accept_with_an_earlier_configuration() -> None:
    slots = [Slot(0, is_prepared=True, is_accepting=True), Slot(1, is_prepared=True)]
    assert may_accept(slots, 1, is_starting=False) == [slots[0]], "a worker that accepts already is not stopped"
    slots[1].configuration = 1
    assert may_accept(slots, 1, is_starting=False) == slots


@pytest.mark.parametrize(("phase", "admitted"), [(_Phase.STARTING, [[], [0, 1]]), (_Phase.SERVING, [[0], [0, 0, 1]])])
def test_the_supervisor_admits_workers_as_they_say_that_they_are_prepared(
    phase: _Phase, admitted: list[list[int]]
) -> None:
    slots, so_far = [Slot(0), Slot(1)], list[int]()
    supervisor = WorkerSupervisor.__new__(WorkerSupervisor)
    supervisor._slots, supervisor._phase = slots, phase
    supervisor._workers = cast(Workers, SimpleNamespace(admit=lambda slot: so_far.append(slot.number)))
    supervisor._configurations = cast(Configurations, SimpleNamespace(needed=0, prepares=lambda _slot: None))
    for slot, wanted in zip(slots, admitted, strict=True):
        supervisor._hear(slot, {"kind": "prepared"})
        supervisor._admit()
        assert so_far == wanted


def test_a_worker_that_hangs_at_its_start_is_killed() -> None:
    slots, killed = [Slot(0), Slot(1), Slot(2)], list[int]()
    for slot in slots[:2]:
        slot.begins(100.0)
    slots[0].prepares()
    workers = SimpleNamespace(kill=lambda hung: killed.extend(slot.number for slot in hung))
    supervisor = cast(WorkerSupervisor, SimpleNamespace(_slots=slots, _workers=workers))
    for now in (100.0 + START_S - 0.1, 100.0 + START_S, 101.0 + START_S):
        WorkerSupervisor._end_hung(supervisor, now)
    assert killed == [1]
    assert slots[1].failure is not None
    assert "not ready" in slots[1].failure["text"]
    slots[1].begins(200.0)
    slots[1].ends(201.0)
    assert [slot.hangs_at for slot in slots] == [None] * 3


def test_a_reload_during_an_upgrade_is_repeated_in_the_next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    left: list[bool] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    supervisor = WorkerSupervisor.__new__(WorkerSupervisor)
    ignored = SimpleNamespace(unregister=lambda _: None, hand_over=lambda _: None)
    supervisor._selector = cast(selectors.DefaultSelector, ignored)
    supervisor._manager = cast(ServiceManager, ignored)
    supervisor._slots = []
    monkeypatch.setattr(supervisor, "_leave", lambda _taken, is_replaced: left.append(is_replaced))
    for requests in (3, 4):
        channel = SimpleNamespace(sock=None, receive=lambda: [{"kind": "serving", "taken": []}])
        upgrade = SimpleNamespace(channel=channel, pid=77, reloads=3, release=lambda: None)
        supervisor._upgrade = cast(Upgrade, upgrade)
        supervisor._configurations = cast(Configurations, SimpleNamespace(reloads=requests))
        supervisor._hear_upgrade()
        assert told == ([(77, signal.SIGHUP)] if requests > 3 else [])
    assert left == [True, True]


async def test_a_worker_that_is_prepared_waits_for_the_supervisors_word() -> None:
    heard: dict[str, Callable[[dict[str, object]], object]] = {}
    told: list[str] = []
    control = SimpleNamespace(on=heard.__setitem__, start=lambda _orphaned: None, tell=told.append)

    async def take() -> Change:
        raise AssertionError("there is nothing to take")

    refusals: list[int] = []
    orders = _Orders(cast(Control, control))
    waiting = asyncio.create_task(orders.until_accepting(take, lambda: refusals.append(1)))
    await pass_turns()
    assert (told, waiting.done()) == (["prepared"], False)
    heard["configuration refused"]({})
    assert refusals == [1]
    heard["accept"]({})
    await waiting


@pytest.mark.parametrize("is_orphaned_in_drain", [True, False])
@pytest.mark.parametrize("end", [{"is_replaced": True}, {"is_replaced": False}, None])
async def test_a_worker_knows_in_its_drain_whether_another_version_replaces_this_one(
    monkeypatch: pytest.MonkeyPatch, end: dict[str, object] | None, is_orphaned_in_drain: bool
) -> None:
    """A worker whose supervisor has gone cannot know, and leaves changes and ports to a version that may be there."""
    ours, theirs = socket.socketpair()
    stops: list[tuple[object, bool]] = []
    leaves: list[bool] = []

    async def stop(inherited: object, *, is_replaced: bool) -> None:
        stops.append((inherited, is_replaced))
        assert leaves == [True] * (end is None)
        if is_orphaned_in_drain:
            supervisor.close()
            await eventually(lambda: leaves == [True])

    async def stop_accepting() -> None:
        assert gateway.is_replaced, "the admin port refuses changes from the beginning"
        leaves.append(listeners.is_shared)

    async def start_gateway(*_: object, **__: object) -> SimpleNamespace:
        return gateway

    listeners = SimpleNamespace(urls=[], stop_accepting=stop_accepting, certificates={})
    gateway = SimpleNamespace(
        listeners=listeners, admin_url="", wait_for_others=lambda _: None, stop=stop, is_replaced=False
    )
    gateway.refuse_changes = lambda: setattr(gateway, "is_replaced", True)
    monkeypatch.setattr("gateway.app.start_gateway", start_gateway)
    with TemporaryDirectory() as folder, ours:
        place = SimpleNamespace(control=Control(theirs), slot=1, folder=folder)
        handed = Inherited(cast(WorkerPlace, place), {}, [], {})
        supervisor = ChannelEnd(ours)
        serving = asyncio.create_task(_serve(handed, config("127.0.0.1:0"), HeldFolder(folder), has_file=False))
        await pass_turns()
        if end is None:
            supervisor.close()
        else:
            supervisor.send({"kind": "end", "inherited": [0], **end})
        await asyncio.wait_for(serving, 30.0)
        place.control.close()
    assert stops == [((), True) if end is None else ([0], end["is_replaced"])]


async def test_a_worker_takes_each_configuration_in_its_turn() -> None:
    """The supervisor may hand over the next one while the worker still waits for the files of the first."""
    heard: dict[str, Callable[[dict[str, object]], object]] = {}
    told: list[dict[str, object]] = []
    taken: list[GatewayConfig] = []
    gates = [asyncio.Event() for _ in range(2)]
    control = SimpleNamespace(
        on=heard.__setitem__, start=lambda _orphaned: None, tell=lambda _kind, **fields: told.append(fields)
    )

    async def take() -> Change:
        if len(taken) < len(gates):
            await gates[len(taken)].wait()
        taken.append(orders.configuration())
        if len(taken) == len(gates):
            raise ConfigReadTimeout("too slow")
        return Change(taken[-1], (f"a{len(taken)}",), ())

    orders = _Orders(cast(Control, control))
    waiting = asyncio.create_task(orders.until_accepting(take, lambda: None))
    await pass_turns()
    for number in (1, 2, 3):
        memory = None
        if number < 3:
            memory = os.memfd_create("configuration")
            os.pwrite(memory, pickle.dumps(config(f"127.0.0.1:{number}")), 0)
        heard["configuration"]({"number": number, "descriptor": memory})
    await pass_turns()
    for gate in gates:
        gate.set()
        await pass_turns()
    heard["accept"]({})
    await waiting
    assert taken == [config("127.0.0.1:1"), config("127.0.0.1:2")]
    lost = "this worker has too many open files to receive the configuration"
    assert [(one["number"], one["changed"], one["error"], one["is_temporary"]) for one in told if "number" in one] == [
        (1, ("a1",), "", False),
        (2, (), "too slow", True),
        (3, (), lost, True),
    ]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "ended with status 0"),
        (3 << 8, "ended with status 3"),
        (signal.SIGSEGV, "was ended by SIGSEGV"),
        (signal.SIGKILL, "was ended by SIGKILL, perhaps because the machine's memory was full"),
        (35, "was ended by signal 35"),
    ],
)
def test_the_end_of_a_process_is_told(status: int, text: str) -> None:
    assert end_of(status).startswith(text)


def test_a_worker_that_cannot_be_forked_is_like_one_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    ends: list[tuple[int, str]] = []
    shared = SharedMemory.create(1)
    row = SharedOrigins(shared, 0).join("http://a")
    assert row is not None
    row.set_waiting(3)
    with selectors.DefaultSelector() as selector:

        def ended(slot: Slot, how: str) -> None:
            ends.append((slot.number, how))

        workers = Workers(1, shared, selector, lambda: 0.0, lambda _slot, _message: None, ended)
        workers.fork(workers.slots[0], lambda _slot, _control: 0)
        assert ends == [(0, "cannot be forked: Resource temporarily unavailable")]
        assert shared.state(0) is SlotState.DEAD
        assert not selector.get_map()
    # What the slot's last worker had under way at origins is over.
    assert repr(row) == "<OriginRow version 0, 0 workers, 0 waiting>"


@pytest.mark.parametrize("ends_first", [True, False])
def test_no_process_waits_for_a_slot_without_a_next_worker(ends_first: bool) -> None:
    """The next version asks the workers of a version that drains.  The worker of slot 0 ends before or in the drain."""
    private, told = PrivateSockets(2), list[int]()
    supervisor = WorkerSupervisor.__new__(WorkerSupervisor)
    supervisor._slots, supervisor._private, supervisor._now = [Slot(0), Slot(1)], private, lambda: 0.0
    supervisor._phase, supervisor._upgrade, supervisor._kill_at = _Phase.SERVING, None, None
    workers = SimpleNamespace(drains=lambda _: None, tell=lambda slot, _kind, **_fields: told.append(slot.number))
    supervisor._workers = cast(Workers, workers)
    server = SimpleNamespace(shutdown_timeout_s=10.0)
    configurations = SimpleNamespace(loses=lambda _: None, close=lambda _: None, config=SimpleNamespace(server=server))
    supervisor._configurations = cast(Configurations, configurations)
    supervisor._sockets = cast(
        ListeningSockets, SimpleNamespace(places={}, close=lambda _: None, stop_listening=lambda _: None)
    )
    first, second = supervisor._slots
    first.pid, second.pid = 6, 7
    steps: list[Callable[[], None]] = [
        lambda: supervisor._ended(first, "was ended"),
        lambda: supervisor._leave((), is_replaced=True),
    ]
    for step in steps if ends_first else reversed(steps):
        step()
    assert told == ([1] if ends_first else [0, 1])
    for path, ends in zip(private.paths(PEER), (True, False), strict=True):
        with socket.socket(socket.AF_UNIX) as client:
            assert client.connect_ex(path) == (errno.ECONNREFUSED if ends else 0)
    private.close()


# -- sockets -----------------------------------------------------------------------------------------------------------


def config(*addresses: str) -> GatewayConfig:
    listeners = [{"address": address} for address in addresses]
    return GatewayConfig.for_origin("http://127.0.0.1:1", admin="127.0.0.1:0", listeners=listeners)


@pytest.fixture
def opened() -> Iterator[list[ListeningSockets]]:
    """What a test opens and this closes."""
    found: list[ListeningSockets] = []
    yield found
    for one in found:
        one.close()


def test_each_slot_has_a_socket_of_its_own_at_one_port(opened: list[ListeningSockets]) -> None:
    opened.append(ListeningSockets.open(config("127.0.0.1:0"), 3, {}, HandedSockets({})))
    mine = [opened[0].of(slot)[0] for slot in range(3)]
    assert [len(one) for one in mine] == [1, 1, 1]
    assert len({one.fileno() for (one,) in mine}) == 3
    assert len({one.getsockname() for (one,) in mine}) == 1
    assert {*opened[0].others(0)} == {*mine[1], *mine[2]}


def test_a_port_of_another_gateway_is_not_shared_by_mistake(opened: list[ListeningSockets]) -> None:
    opened.append(ListeningSockets.open(config("127.0.0.1:0"), 2, {}, HandedSockets({})))
    (first,) = opened[0].of(0)[0]
    first.listen()
    with pytest.raises(OSError, match="in use"):
        ListeningSockets.open(config(f"127.0.0.1:{first.getsockname()[1]}"), 2, {}, HandedSockets({}))


def test_a_slot_that_stops_listening_leaves_new_connections_to_the_others(opened: list[ListeningSockets]) -> None:
    opened.append(ListeningSockets.open(config("127.0.0.1:0"), 2, {}, HandedSockets({})))
    first, second = (opened[0].of(slot)[0][0] for slot in range(2))
    where = first.getsockname()
    for one in (first, second):
        one.listen()
    opened[0].stop_listening(0)
    second.settimeout(10.0)
    for _ in range(16):
        with socket.create_connection(where, 10.0):
            second.accept()[0].close()
    first.listen()
    assert first.getsockname() == where


def test_a_slot_that_stops_twice_before_it_listens_again_gives_connections_that_are_open(
    opened: list[ListeningSockets],
) -> None:
    opened.append(ListeningSockets.open(config("127.0.0.1:0"), 2, {}, HandedSockets({})))
    (first,) = opened[0].of(0)[0]
    first.listen()
    for _ in range(3):
        opened[0].stop_listening(0)
    first.listen()
    first.settimeout(10.0)
    with socket.create_connection(first.getsockname(), 10.0) as client:
        accepted, _ = first.accept()
        with accepted:
            accepted.settimeout(10.0)
            client.sendall(b"asked")
            assert accepted.recv(5) == b"asked"
            accepted.sendall(b"answered")
            assert client.recv(8) == b"answered"


def test_sockets_are_handed_to_the_next_version_and_none_is_left_out(
    opened: list[ListeningSockets], tmp_path: Path
) -> None:
    addresses = ("127.0.0.1:0", "127.0.0.1:0", f"unix:{tmp_path}/s")
    old = ListeningSockets.open(config(*addresses), 4, {}, HandedSockets({}))
    # In one process, the next version gets copies of the descriptors.
    handed = {key: [[os.dup(fd) for fd in fds] for fds in by_slot] for key, by_slot in old.described().items()}
    names = [{sock.getsockname() for sock in old.places[index].sockets()} for index in range(3)]
    taken = HandedSockets(handed)
    fewer = ListeningSockets.open(config(*addresses), 3, {}, taken)
    opened.append(fewer)
    assert set(taken.taken) == set(handed)
    for index in (0, 1):
        mine = [sock for slot in range(3) for sock in fewer.of(slot)[index]]
        assert len(mine) == 4
        assert {sock.getsockname() for sock in mine} == names[index]
    old.close(taken.taken)
    assert (tmp_path / "s").is_socket(), "the file belongs to the next version"
    more = ListeningSockets.open(config(*addresses), 6, {}, HandedSockets(fewer.described()))
    assert [len(more.of(slot)[0]) for slot in range(6)] == [1] * 6
    more.close()
    for place in fewer.places.values():
        for sock in place.sockets():
            sock.detach()
    assert not (tmp_path / "s").exists()


def test_sockets_of_systemd_are_shared_by_all_workers(
    opened: list[ListeningSockets], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        monkeypatch.setattr(sockets, "passed_sockets", lambda _environ, _pid: [("web", passed.fileno())])
        opened.append(ListeningSockets.open(config("systemd:web"), 2, {}, HandedSockets({})))
        (mine,), (others,) = (opened[0].of(slot)[0] for slot in range(2))
        assert mine is others
        assert mine.getsockname() == passed.getsockname()
        assert not list(opened[0].others(0))
        with pytest.raises(ConfigError, match="systemd has passed no such socket"):
            ListeningSockets.open(config("systemd:other"), 2, {}, HandedSockets({}))


@pytest.mark.parametrize("is_changed", [True, False])
def test_the_admin_port_moves_in_an_upgrade_if_its_address_changes(
    opened: list[ListeningSockets], is_changed: bool
) -> None:
    before = ListeningSockets.open(config("127.0.0.1:0"), 1, {}, HandedSockets({}))
    described = {key: [[os.dup(fd) for fd in fds] for fds in by_slot] for key, by_slot in before.described().items()}
    handed = HandedSockets(described)
    listeners = [{"address": "127.0.0.1:0"}]
    admin = "127.0.0.2:0" if is_changed else "127.0.0.1:0"
    changed = GatewayConfig.for_origin("http://127.0.0.1:1", admin=admin, listeners=listeners)
    after = ListeningSockets.open(changed, 1, {}, handed)
    opened += [before, after]
    handed.close_rest()
    ports = [one.admin[0].getsockname() for one in (before, after)]
    assert (ports[0] != ports[1]) is is_changed
    assert ports[1][0] == ("127.0.0.2" if is_changed else "127.0.0.1")
    assert len(handed.taken) == 2 - is_changed


@pytest.mark.parametrize("place", ["/proc/none", f"/tmp/{'long' * 20}"])
def test_the_sockets_are_in_shared_memory_if_no_other_place_will_do(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", place)
    private = PrivateSockets(1)
    try:
        assert Path(private.paths(PEER)[0]).is_socket()
        assert private.folder.startswith("/dev/shm/")
    finally:
        private.close()
    assert not Path(private.folder).exists()


def test_the_last_worker_without_a_supervisor_removes_the_folder_of_the_sockets() -> None:
    """As long as a worker lives, the next version finds its socket: a missing file says that all have ended."""
    private = PrivateSockets(2)
    early, first, last = (HeldFolder(private.folder) for _ in range(3))
    early.remove_if_last()
    assert Path(private.folder).exists(), "the supervisor lives, although a worker has lost its channel"
    # The supervisor's descriptors are closed in a worker, and when the supervisor is killed.
    private.close_others(0)
    first.remove_if_last()
    assert [listens(path) for path in private.paths(PEER)] == [True, False]
    last.remove_if_last()
    assert not Path(private.folder).exists()
    assert not any(map(listens, private.paths(PEER)))
    HeldFolder(private.folder).remove_if_last()
    private.close()


def test_a_version_whose_processes_were_killed_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, living = PrivateSockets(2), PrivateSockets(2)
    for slot in range(2):
        killed.close_slot(slot)
    living.close_slot(1)
    handed: list[str] = []

    def upgrade(_sockets: object, _shared: object, peers: tuple[str, ...], *_: object) -> None:
        handed.extend(peers)
        raise OSError("no memory")

    monkeypatch.setattr("gateway.cli.supervisor.process.Upgrade", upgrade)
    own = PrivateSockets(1)
    supervisor: Any = WorkerSupervisor.__new__(WorkerSupervisor)
    supervisor._predecessor = SimpleNamespace(peers=(*killed.paths(PEER), *living.paths(PEER)))
    supervisor._phase, supervisor._upgrade, supervisor._slots, supervisor._private = _Phase.SERVING, None, [], own
    supervisor._workers = SimpleNamespace(settle_left=lambda: None)
    supervisor._sockets = supervisor._store_lock = supervisor._shared = supervisor._secret = supervisor._environ = None
    supervisor._now = lambda: 0.0
    supervisor._begin_upgrade()
    assert handed == [*own.paths(PEER), *living.paths(PEER)], "all of a version, so that its workers keep their names"
    for one in (killed, living, own):
        one.close()


def test_sockets_that_cannot_be_opened_leave_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[socket.socket] = []

    class Scarce(socket.socket):
        def __init__(self, family: int, kind: int) -> None:
            if len(opened) == 4:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            super().__init__(family, kind)
            opened.append(self)

    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    before = {path for path in Path("/tmp").glob("durable-gateway-*") if path.is_dir()}
    monkeypatch.setattr(socket, "socket", Scarce)
    with pytest.raises(FailedToRunError, match="cannot open the workers' sockets: Too many open files"):
        PrivateSockets(2)
    assert [sock.fileno() for sock in opened] == [-1] * 4
    assert {path for path in Path("/tmp").glob("durable-gateway-*") if path.is_dir()} <= before
