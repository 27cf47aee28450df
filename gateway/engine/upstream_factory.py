"""Makes the upstreams of shared requests, which send a request to the process that owns the stream, or to the origin.

A shared request passes through these upstreams, from first to last: the upstream that sends it to the owner among the
workers of this gateway, the upstream that sends it to the owner among the members of the fleet, and the client of the
origin.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from random import Random
from typing import NamedTuple

from gateway.aio.clock import Clock
from gateway.config.addresses import Address, parse_address
from gateway.config.certificate_files import file_problem
from gateway.config.errors import ConfigError
from gateway.config.fleet import FleetConfig, MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet import Fleet
from gateway.engine.fleet_announced import MembersInRedis
from gateway.engine.fleet_discovery import FoundMembers, KeptMembers
from gateway.engine.fleet_dns import MembersInDns, member_at
from gateway.engine.fleet_own_address import own_address, own_member
from gateway.engine.fleet_redis import OrdersByRedis
from gateway.engine.fleet_upstream import FleetHop, FleetUpstream
from gateway.engine.fleet_writes import RecordedWrites, WritesOfWorker
from gateway.engine.foreign_entries import ForeignEntries
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.others_writes import OthersWrites
from gateway.engine.owner_upstream import HopUpstream
from gateway.protocol.stored_orders import Seal
from gateway.tape.store import TapeStore
from gateway.upstream.client import HopClient
from gateway.upstream.reply import Upstream
from gateway.workers.place import WorkerPlace
from gateway.workers.removals import Removals
from gateway.workers.worker_owners import Owners
from gateway.workers.write_log import WriteLog


class Upstreams(NamedTuple):
    """The upstreams of one process."""

    shared: Upstream
    """Answers shared requests for Durable Streams."""
    s2: Upstream
    """Answers shared requests for S2 streams.  Members of a fleet do not share these."""
    hop: HopUpstream | None = None
    """Sends requests to the owners among the workers; None if this process is the only one."""
    others: OthersWrites | None = None
    """The writes of other workers; None if this process is the only one."""
    fleet: Fleet | None = None
    """The other members of the fleet; None without a fleet."""
    by_fleet: FleetUpstream | None = None
    """Sends requests to the owners among the members of the fleet."""


def make_fleet(config: FleetConfig, clock: Clock, rng: Random, crew: WorkerPlace | None = None) -> Fleet:
    """Make this member's view of its fleet.  Raises ConfigError if this member needs its own address and cannot find
    it, or if Redis is configured and this gateway cannot use it."""
    announced = own_member(config) if config.members_redis else None
    if config.members_dns:
        fleet = _fleet_by_dns(config, clock, rng, crew)
    else:
        fleet = Fleet(config if announced is None else _alone(config, announced), clock, rng, crew=crew)
    if config.redis:
        _use_redis(fleet, config, announced, clock, rng, crew)
    return fleet


def _alone(config: FleetConfig, own: MemberConfig) -> FleetConfig:
    """Return the configuration of a fleet that has no other member yet."""
    return config.model_copy(update={"name": own.name, "members": (own,)})


def _kept(crew: WorkerPlace | None) -> KeptMembers | None:
    if crew is None:
        return None
    return KeptMembers(Path(crew.folder), crew.slot, {Path(one).parent for one in crew.predecessors})


def _fleet_by_dns(config: FleetConfig, clock: Clock, rng: Random, crew: WorkerPlace | None) -> Fleet:
    from gateway.upstream.dns_records import address_records

    own = own_address(config)
    fleet = Fleet(_alone(config, member_at(own)), clock, rng, crew=crew)

    def answering() -> list[Address]:
        return [parse_address(one.name) for one in fleet.members.values() if one.answers]

    source = MembersInDns(config.dns_name.host, own, address_records, answering)
    fleet.found = FoundMembers(source, fleet.replace_members, clock, _kept(crew))
    return fleet


def _use_redis(
    fleet: Fleet,
    config: FleetConfig,
    announced: MemberConfig | None,
    clock: Clock,
    rng: Random,
    crew: WorkerPlace | None,
) -> None:
    """Exchange orders through Redis, too.  If `announced` is given, announce this member and find the other members
    there."""
    try:
        from gateway.upstream.redis_members import RedisMembers
        from gateway.upstream.redis_orders import RedisOrders
    except ImportError as error:
        raise ConfigError(
            f"fleet.redis is set and {error.name} is not installed: pip install 'durable-gateway[redis]'"
        ) from None
    place, seal = config.redis_place, Seal(config.secret.get_secret_value().encode())
    try:
        orders = RedisOrders(place, seal.fleet)
        members = RedisMembers(place, seal.fleet) if announced is not None else None
    except ssl.SSLError:
        raise ConfigError(f"fleet.redis_ca_file: {place.ca_file}: holds no certificates") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"fleet.redis_ca_file: {place.ca_file}: cannot be read: {file_problem(error)}") from None
    foreign = ForeignEntries(orders.shown, clock)
    fleet.by_redis = OrdersByRedis(orders, seal, fleet.orders, clock, rng, foreign)
    fleet.orders.until_stored = fleet.by_redis.until_stored
    if members is not None and announced is not None:
        source = MembersInRedis(
            members,
            seal,
            announced,
            fleet.field.instance,
            fleet.members.values,
            lambda: fleet.is_replaced,
            foreign,
            clock,
            rng,
            is_successor=crew is not None and bool(crew.predecessors),
        )
        fleet.found = FoundMembers(source, fleet.replace_members, clock, _kept(crew))


def make_upstreams(
    origins: Upstream,
    config: GatewayConfig,
    crew: WorkerPlace | None,
    kept: tuple[TapeStore, NegativeCache],
    clock: Clock,
    rng: Random,
) -> Upstreams:
    """Make the upstreams.  `origins` is the client of the origins, and `kept` is this process's memory of streams.

    Raises ConfigError in the same cases as `make_fleet`.
    """
    fleet: Fleet | None = None
    by_fleet: FleetUpstream | None = None
    if config.fleet.is_on:
        fleet = make_fleet(config.fleet, clock, rng, crew)
        fleet.configure(config)
        by_fleet = FleetUpstream(origins, fleet, clock)
    beyond = by_fleet or origins
    if crew is None:
        return Upstreams(beyond, origins, fleet=fleet, by_fleet=by_fleet)
    owners = Owners(crew.shared, crew.slot)
    log, removals = WriteLog(crew.shared, crew.slot, clock.now), Removals(crew.shared, crew.slot)
    others = OthersWrites(log, owners, *kept, crew.generation, removals)
    by_hop = HopClient(crew.hop_paths)
    if fleet is None:
        hop = HopUpstream(beyond, by_hop, others, owners, clock)
    else:
        hop = FleetHop(beyond, by_hop, others, owners, clock, fleet)
    return Upstreams(hop, hop, hop, others, fleet, by_fleet)


def recorded_writes(others: OthersWrites | None, fleet: Fleet | None) -> RecordedWrites | None:
    """Return the object that records each write of this process for other workers and for other members; None if there
    are neither."""
    if fleet is None:
        return others
    return fleet.counts if others is None else WritesOfWorker(fleet.counts, others)
