"""The metric families of the other members of the fleet.  Without a fleet they have no series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from gateway.engine.fleet_announced import MembersInRedis
from gateway.engine.fleet_discovery import FoundMembers
from gateway.engine.fleet_dns import MembersInDns
from gateway.engine.fleet_reachability import Member
from gateway.engine.fleet_redis import OrdersByRedis
from gateway.ops.families import counter, gauge

_LABELS = ("member",)


def fleet_families(
    members: Sequence[Member],
    missed_orders: int | None,
    found: FoundMembers | None,
    by_redis: OrdersByRedis | None,
) -> Iterator[Metric]:
    """Return the state of each other member, as this gateway sees it, and the results of the look-ups in DNS and Redis.

    `missed_orders` is None without a fleet.  `found` is None if the configuration lists the members.  `by_redis` is
    None without `fleet.redis`.
    """
    by_dns = found if found is not None and isinstance(found.source, MembersInDns) else None
    announced = found if found is not None and isinstance(found.source, MembersInRedis) else None
    yield gauge(
        "durable_gateway_fleet_member_reached",
        "Whether this gateway asks the other member for streams: 1, or 0 if the member cannot be reached, is leaving, "
        "or has another configuration. Excludes this gateway.",
        _LABELS,
        (((one.name,), float(not one.why_not)) for one in members),
    )
    yield gauge(
        "durable_gateway_fleet_member_share",
        "The part of the other member's streams for which this gateway asks it, from 0 to 1. Grows for some seconds "
        "after the member has come or returned; 0 if the member is not asked. Excludes this gateway.",
        _LABELS,
        (((one.name,), one.share) for one in members),
    )
    yield gauge(
        "durable_gateway_fleet_member_workers",
        "Workers of the other member that serve, by its latest answer. Excludes members that have not answered.",
        _LABELS,
        (((one.name,), float(one.workers)) for one in members),
    )
    yield gauge(
        "durable_gateway_fleet_member_differs",
        "Whether the other member has another version, another secret, or another configuration of routes or "
        "origins. Excludes members that do not answer.",
        _LABELS,
        (((one.name,), float(one.has_differed)) for one in members),
    )
    yield counter(
        "durable_gateway_fleet_member_losses",
        "How often this gateway has ceased to ask the other member for streams. Excludes members never reached.",
        _LABELS,
        (((one.name,), one.losses) for one in members),
    )
    yield counter(
        "durable_gateway_fleet_requests",
        "Requests for streams sent to the other member. They count as no requests to an origin. Excludes probes.",
        _LABELS,
        (((one.name,), one.asked) for one in members),
    )
    yield counter(
        "durable_gateway_fleet_missed_orders",
        "How often this gateway has emptied its memory because it may have missed purges or revocations: the other "
        "members no longer remember them, or Redis has lost them. Excludes the start, when memory is empty, and "
        "emptying on behalf of another member.",
        (),
        [] if missed_orders is None else [((), missed_orders)],
    )
    yield gauge(
        "durable_gateway_fleet_dns_answered",
        "Whether the latest look-up of fleet.members_dns has found addresses: 1, or 0 if it has failed, or none has "
        "ended yet. Excludes look-ups under way.",
        (),
        [] if by_dns is None else [((), float(by_dns.has_answer))],
    )
    yield gauge(
        "durable_gateway_fleet_dns_addresses",
        "Addresses that the latest successful look-up of fleet.members_dns has found, with or without this gateway's. "
        "Excludes members that answer but are missing there.",
        (),
        [] if by_dns is None else [((), float(by_dns.found))],
    )
    yield gauge(
        "durable_gateway_fleet_redis_members_answered",
        "With fleet.members_redis: 1 if the latest look for members in fleet.redis has succeeded; 0 if it has failed, "
        "or if no look has ended yet. Excludes looks under way.",
        (),
        [] if announced is None else [((), float(announced.has_answer))],
    )
    yield gauge(
        "durable_gateway_fleet_redis_members_announced",
        "Members that the latest successful look has found announced in fleet.redis, with this gateway if it is. "
        "Excludes members that answer but are missing there.",
        (),
        [] if announced is None else [((), float(announced.found))],
    )
    yield gauge(
        "durable_gateway_fleet_redis_answered",
        "1 if the latest look at fleet.redis for purges and revocations has succeeded; 0 if it has failed, or if no "
        "look has ended yet. Excludes looks under way.",
        (),
        [] if by_redis is None else [((), float(not by_redis.problem))],
    )
    yield counter(
        "durable_gateway_fleet_redis_losses",
        "How often fleet.redis no longer had a purge or revocation that this gateway had read there or added. Excludes "
        "losses while this gateway did not run.",
        (),
        [] if by_redis is None else [((), by_redis.losses)],
    )
    yield counter(
        "durable_gateway_fleet_redis_refused_entries",
        "Entries in fleet.redis that no member of this fleet has made, and that are ignored. An entry that is read "
        "again counts again. Excludes other keys.",
        (),
        [] if by_redis is None else [((), by_redis.foreign.count)],
    )
