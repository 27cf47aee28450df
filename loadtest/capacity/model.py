"""The use of every resource of a fleet, from measured costs and a demand.

A load balancer sends each reader to any process, so a stream with r readers has readers at n (1 - (1 - 1/n)^r) of n
processes on average.  One process owns the stream and has its only live request at the origin.  Each other member with
readers of the stream follows the owner.  Inside a member with several workers, one worker does so, and the other
workers with readers follow that worker.  Each such follower is a *hop*, which takes each event once.

If the load balancer chooses the member by the stream, all readers of a stream are at one member.

Readers are spread evenly otherwise.  Streams are spread by hashing, so that one process owns more streams than the
mean: the model adds two standard deviations.  Events are a Poisson process.

Everything here is pure.  Times are in seconds, sizes in bytes, networks in bits a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from gateway.config.fleet import MOST_MEMBERS
from gateway.config.limits import LimitsConfig
from loadtest.capacity.costs import Costs

LIFETIME_SHARE: Final = 0.9
"""Mean age at which a live read ends, as a share of `sse_lifetime_s`: it is spread over the last fifth."""
PACKET_BYTES: Final = 90
"""Headers of a packet: Ethernet with preamble and gap (38), IP (20), TCP with time stamps (32)."""
SEGMENT_BYTES: Final = 1448
"""Most bytes of data in a packet."""
PORTS: Final = 28_232
"""Connections from one address to one address and port, with the kernel's default range of ports."""
MOST_MACHINES: Final = 4_096
MEMBERS: Final = "members"
"""The resource of which each machine takes as much as any other."""
_MICRO: Final = 1e-6
_LIMITS: Final = LimitsConfig()


@dataclass(frozen=True, slots=True)
class Demand:
    """What readers and writers ask of the fleet."""

    readers: int
    streams: int
    events_per_s: float
    """Events of each stream."""
    event_bytes: int = 200
    long_poll_share: float = 0.0
    """Part of the readers that poll."""
    sse_lifetime_s: float = 60.0
    heartbeat_s: float = 15.0
    long_poll_timeout_s: float = 25.0
    round_trip_s: float = 0.05
    """Time from an answer to the next poll of its reader."""

    @property
    def read_streams(self) -> int:
        """Streams with readers."""
        return min(self.streams, self.readers)

    @property
    def readers_each(self) -> float:
        """Readers of each stream that has readers."""
        return self.readers / self.read_streams if self.read_streams else 0.0

    @property
    def sse_readers(self) -> float:
        """Readers by SSE."""
        return self.readers * (1 - self.long_poll_share)

    @property
    def pollers(self) -> float:
        """Readers by long-poll."""
        return self.readers * self.long_poll_share

    @property
    def joins_per_s(self) -> float:
        """SSE readers that come back because the lifetime of their response is over."""
        return self.sse_readers / (LIFETIME_SHARE * self.sse_lifetime_s)

    @property
    def polls_per_s(self) -> float:
        """Answers to long-polls: with an event, or without one at the time-out."""
        rate, timeout_s = self.events_per_s, self.long_poll_timeout_s
        wait_s = -math.expm1(-rate * timeout_s) / rate if rate > 0 else timeout_s
        return self.pollers / (self.round_trip_s + wait_s)

    @property
    def heartbeats_per_s(self) -> float:
        """Heartbeats to SSE readers: one after each `heartbeat_s` without an event."""
        rate, idle_s = self.events_per_s, self.heartbeat_s
        each = rate / math.expm1(min(rate * idle_s, 700.0)) if rate > 0 else 1 / idle_s
        return self.sse_readers * each

    @property
    def deliveries_per_s(self) -> float:
        """Events times SSE readers."""
        return self.sse_readers * self.events_per_s


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of the fleet."""

    cores: int = 8
    memory_bytes: int = 32 << 30
    network_bits_per_s: float = 10e9
    """Of each direction."""
    usable: float = 0.7
    """The part of each resource that may be used, because load varies and machines fail."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal machines, with a process for each core."""

    machines: int
    machine: Machine = Machine()
    has_workers: bool = False
    """Whether a machine is one member with a worker for each core.  Otherwise each process is a member."""
    is_by_stream: bool = False
    """Whether the load balancer sends all readers of a stream to one member, by a hash of the path."""
    origin_live_requests: float = math.inf
    """Most live requests that the origin can hold."""

    @property
    def processes(self) -> int:
        """All processes."""
        return self.machines * self.machine.cores

    @property
    def workers(self) -> int:
        """Processes of a member."""
        return self.machine.cores if self.has_workers else 1

    @property
    def members(self) -> int:
        """All members."""
        return self.processes // self.workers


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one resource where most of it is used, by what it is used for."""

    resource: str
    unit: str
    parts: Mapping[str, float]
    capacity: float
    is_default: bool = False
    """Whether the capacity is a default of the configuration or of the kernel, which can be raised."""

    @property
    def used(self) -> float:
        """The sum of the parts."""
        return math.fsum(self.parts.values())

    @property
    def share(self) -> float:
        """The use as a share of the capacity.  The resource breaks above 1."""
        return self.used / self.capacity


@dataclass(frozen=True)
class Load:
    """A demand on a fleet: the uses of its resources."""

    costs: Costs
    demand: Demand
    fleet: Fleet

    # -- hops

    @cached_property
    def reading_members(self) -> float:
        """Members with readers of a stream."""
        return 1.0 if self.fleet.is_by_stream else spread(self.demand.readers_each, self.fleet.members)

    @cached_property
    def reading_processes(self) -> float:
        """Processes with readers of a stream."""
        places = self.fleet.workers if self.fleet.is_by_stream else self.fleet.processes
        return spread(self.demand.readers_each, places)

    @cached_property
    def hops_between(self) -> float:
        """Members that follow the owner of a stream."""
        return self.reading_members * (1 - 1 / self.fleet.members)

    @cached_property
    def hops_inside(self) -> float:
        """Workers that follow another worker of their member, of a stream."""
        return self.reading_processes * (1 - 1 / self.fleet.workers)

    @cached_property
    def hops_over_network(self) -> float:
        """Members that follow the owner of a stream from another machine."""
        members, machines = self.fleet.members, self.fleet.machines
        return self.hops_between * (members - members / machines) / (members - 1) if members > 1 else 0.0

    @cached_property
    def owner_hops(self) -> float:
        """Processes that follow the owner of a stream itself."""
        return self.hops_between + (self.hops_inside / self.reading_members if self.reading_members else 0.0)

    @cached_property
    def hops_of_process(self) -> float:
        """Streams that a process follows at another process."""
        return self.demand.read_streams * (self.hops_between + self.hops_inside) / self.fleet.processes

    @cached_property
    def relays_of_process(self) -> float:
        """Other workers that follow a process which does not own their stream."""
        inside = self.hops_inside * (1 - 1 / self.fleet.members)
        return self.demand.read_streams * inside / self.fleet.processes

    def owned(self, places: int) -> float:
        """Streams that the place with the most owns, of so many processes or machines."""
        return most_owned(self.demand.read_streams, places)

    def readers_share(self, places: int) -> float:
        """The share of all readers at the place with the most, of so many members or machines."""
        return self.owned(places) / self.demand.read_streams if self.fleet.is_by_stream else 1 / places

    # -- resources

    def processor(self) -> Use:
        """Processor time of the busiest process."""
        costs, demand, fleet = self.costs, self.demand, self.fleet
        owned = self.owned(fleet.processes)
        relays = owned * self.owner_hops + self.relays_of_process
        at_process = self.readers_share(fleet.members) / fleet.workers
        follows_per_s = 1 / (LIFETIME_SHARE * demand.sse_lifetime_s)
        readers_us = {
            "deliveries": demand.deliveries_per_s * costs.delivery_us,
            "joins": demand.joins_per_s * costs.join_us,
            "long-polls": demand.polls_per_s * costs.poll_us,
            "heartbeats": demand.heartbeats_per_s * costs.heartbeat_us,
        }
        owning_us = owned * (demand.events_per_s * costs.event_us + follows_per_s * costs.follow_us)
        hops_us = self.hops_of_process * (
            demand.events_per_s * costs.hop_event_us + follows_per_s * costs.hop_follow_us
        ) + relays * (demand.events_per_s * costs.hop_relay_us + follows_per_s * costs.hop_serve_us)
        parts_us = {
            **{name: value * at_process for name, value in readers_us.items()},
            "streams": owning_us,
            "hops": hops_us,
            "timers": costs.idle_us,
        }
        parts = {name: value * _MICRO for name, value in parts_us.items()}
        return Use("processor", "cores", parts, fleet.machine.usable)

    def memory(self) -> Use:
        """Memory of the fullest machine, the kernel's included."""
        costs, demand, fleet = self.costs, self.demand, self.fleet
        cores, owned = fleet.machine.cores, self.owned(fleet.machines)
        hops = cores * self.hops_of_process
        relays = owned * self.owner_hops + cores * self.relays_of_process
        at_machine = self.readers_share(fleet.machines)
        sse, polls = demand.sse_readers * at_machine, demand.pollers * at_machine
        parts = {
            "processes": cores * costs.process_bytes,
            "cached bytes": cores / fleet.workers * _LIMITS.cache_bytes,
            "readers": sse * costs.sse_bytes + polls * costs.long_poll_bytes,
            "readers' sockets": (sse + polls) * costs.socket_bytes,
            "streams": owned * (costs.stream_bytes + costs.socket_bytes),
            "hops": hops * (costs.hop_stream_bytes + costs.socket_bytes)
            + relays * (costs.hop_reader_bytes + costs.socket_bytes),
        }
        return Use("memory", "bytes", parts, fleet.machine.memory_bytes * fleet.machine.usable)

    def sent(self) -> Use:
        """Bits a second that leave the machine which sends most."""
        costs, demand, fleet = self.costs, self.demand, self.fleet
        event = wire_bytes(demand.event_bytes + costs.frame_bytes)
        poll = wire_bytes(demand.event_bytes + costs.poll_reply_bytes)
        clients = (
            demand.deliveries_per_s * event
            + demand.joins_per_s * wire_bytes(costs.join_reply_bytes)
            + demand.polls_per_s * poll
            + demand.heartbeats_per_s * PACKET_BYTES
        ) * self.readers_share(fleet.machines)
        members = self.owned(fleet.machines) * self.hops_over_network * demand.events_per_s * event
        parts = {"clients": 8 * clients, "members": 8 * members}
        return Use("sent", "bit/s", parts, fleet.machine.network_bits_per_s * fleet.machine.usable)

    def received(self) -> Use:
        """Bits a second that reach the machine which gets most, without requests and acknowledgements."""
        demand, fleet = self.demand, self.fleet
        event = wire_bytes(demand.event_bytes + self.costs.frame_bytes)
        members = demand.read_streams * self.hops_over_network / fleet.machines * demand.events_per_s * event
        origin = self.owned(fleet.machines) * demand.events_per_s * event
        parts = {"members": 8 * members, "origin": 8 * origin}
        return Use("received", "bit/s", parts, fleet.machine.network_bits_per_s * fleet.machine.usable)

    def origin(self) -> Use:
        """Live requests at the origin, one for each stream."""
        parts = {"streams": float(self.demand.read_streams)}
        return Use("origin", "live requests", parts, self.fleet.origin_live_requests)

    def members(self) -> Use:
        """Members of the fleet."""
        return Use(MEMBERS, "members", {"members": float(self.fleet.members)}, MOST_MEMBERS)

    def ports_to_origin(self) -> Use:
        """Connections from one machine to an origin with one address."""
        return Use("ports to the origin", "connections", {"streams": self.owned(self.fleet.machines)}, PORTS, True)

    def ports_to_member(self) -> Use:
        """Connections from one machine to one member."""
        hops = self.demand.read_streams * self.hops_between / (self.fleet.machines * self.fleet.members)
        return Use("ports to a member", "connections", {"hops": hops}, PORTS, True)

    def connections(self) -> Use:
        """Client connections of a member."""
        parts = {"readers": self.demand.readers * self.readers_share(self.fleet.members)}
        return Use("max_connections", "connections", parts, _LIMITS.max_connections, True)

    def followed_streams(self) -> Use:
        """Streams that a member follows, over its workers."""
        followed = self.owned(self.fleet.processes) + self.hops_of_process
        parts = {"streams": followed * self.fleet.workers}
        return Use("followed_streams", "streams", parts, _LIMITS.followed_streams, True)

    def open_files(self) -> float:
        """Sockets of the process with the most of them."""
        owned = self.owned(self.fleet.processes)
        relays = owned * self.owner_hops + self.relays_of_process
        readers = self.demand.readers * self.readers_share(self.fleet.members) / self.fleet.workers
        return readers + owned + self.hops_of_process + relays

    def uses(self) -> Sequence[Use]:
        """All resources, the fullest first."""
        every = (
            self.processor(),
            self.memory(),
            self.sent(),
            self.received(),
            self.origin(),
            self.members(),
            self.ports_to_origin(),
            self.ports_to_member(),
            self.connections(),
            self.followed_streams(),
        )
        return sorted(every, key=lambda use: use.share, reverse=True)

    def hard_uses(self) -> Sequence[Use]:
        """The resources that no setting raises, the fullest first."""
        return [use for use in self.uses() if not use.is_default]

    def loaded_uses(self) -> Sequence[Use]:
        """The resources that readers and events use up, the fullest first: without the number of members."""
        return [use for use in self.hard_uses() if use.resource != MEMBERS]

    def raised(self) -> Sequence[Use]:
        """The defaults that have to be raised, the fullest first."""
        return [use for use in self.uses() if use.is_default and use.share > 1]

    def suffices(self) -> bool:
        """Whether no resource breaks once the defaults are raised."""
        return self.hard_uses()[0].share <= 1


def spread(readers: float, places: int) -> float:
    """Mean number of places with at least one of so many readers, each of which is at any place."""
    if readers <= 1:
        return max(readers, 0.0)
    return -places * math.expm1(readers * math.log1p(-1 / places)) if places > 1 else 1.0


def most_owned(streams: int, places: int) -> float:
    """Streams of the place that owns the most: the mean and two standard deviations, and at least one."""
    mean = streams / places
    most = mean + 2 * math.sqrt(mean * (1 - 1 / places))
    return min(float(streams), max(most, 1.0))


def wire_bytes(data: float) -> float:
    """Bytes of a message on the wire, with the headers of its packets."""
    return data + PACKET_BYTES * math.ceil(data / SEGMENT_BYTES)


def largest_fleet(costs: Costs, demand: Demand, fleet: Fleet) -> Load:
    """Return the load on as many machines as a fleet may have."""
    one = replace(fleet, machines=1)
    return Load(costs, demand, replace(one, machines=max(1, MOST_MEMBERS // one.members)))


def least_fleet(costs: Costs, demand: Demand, fleet: Fleet) -> Load | None:
    """Return the load on the fewest machines that suffice; None if no number suffices.

    It tries each number, because more machines do not help if it is a shared resource that breaks.
    """
    for machines in range(1, MOST_MACHINES + 1):
        load = Load(costs, demand, replace(fleet, machines=machines))
        if load.suffices():
            return load
        if load.members().share > 1 or load.origin().share > 1:
            return None
    return None
