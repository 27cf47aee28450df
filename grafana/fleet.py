"""The dashboard of a fleet and of stores on disk: members, owners, hand-overs, orders, Redis, bytes on disk.

Each gateway counts its own view of each other member, so a figure has the labels `instance`, the gateway that sees, and
`member`, the gateway that is seen.
"""

from __future__ import annotations

from typing import Final

from grafana.board import GATEWAY, Board, Panel, Query, Row, rate, total


def _least(series: str, by: str) -> str:
    """The least value of a gauge, by labels."""
    return f"min by ({by}) ({series}{{{GATEWAY}}})"


def _by_member(series: str) -> tuple[Query, ...]:
    """A counter's rate, by the gateway that counts and the member that it counts."""
    return (Query(rate(series, "instance, member", GATEWAY), "{{instance}} → {{member}}"),)


FLEET: Final = Board(
    "fleet",
    "durable-gateway: fleet and disk",
    "Members of a fleet, owners of streams, hand-overs, purges and revocations, Redis; the store on disk.",
    (
        Row(
            "Members",
            (
                Panel(
                    "Members not reached",
                    "Counted at each gateway: other members that it does not ask for streams, because they cannot be "
                    "reached, are leaving, or have another configuration. Their streams have other owners meanwhile.",
                    "short",
                    (Query(f"sum (1 - durable_gateway_fleet_member_reached{{{GATEWAY}}})"),),
                    "stat",
                ),
                Panel(
                    "Members that differ",
                    "Counted at each gateway: other members with other routes or origins, another secret or another "
                    "version. Such members do not ask each other. Normal during a rollout.",
                    "short",
                    (Query(total("durable_gateway_fleet_member_differs", matching=GATEWAY)),),
                    "stat",
                ),
                Panel(
                    "Members in the shortest list",
                    "Other members in the list of the gateway that knows the fewest. Fewer than expected: some are "
                    "not found.",
                    "short",
                    (Query(f"min (count by (instance) (durable_gateway_fleet_member_reached{{{GATEWAY}}}))"),),
                    "stat",
                ),
                Panel(
                    "Members that are reached",
                    "1 while every gateway asks the member for its streams; 0 if one does not.",
                    "short",
                    (Query(_least("durable_gateway_fleet_member_reached", "member"), "{{member}}"),),
                    most=1,
                ),
                Panel(
                    "Workers of members",
                    "Workers that serve, as the gateway sees it that sees the fewest. A drop: a worker has died, or "
                    "an upgrade.",
                    "short",
                    (Query(_least("durable_gateway_fleet_member_workers", "member"), "{{member}}"),),
                ),
                Panel(
                    "Members found",
                    "Addresses in DNS (members_dns) or announcements in Redis (members_redis) in each gateway's "
                    "latest look. Gateways that differ for longer than a minute have different lists.",
                    "short",
                    (
                        Query(total("durable_gateway_fleet_dns_addresses", "instance", GATEWAY), "{{instance}}, DNS"),
                        Query(
                            total("durable_gateway_fleet_redis_members_announced", "instance", GATEWAY),
                            "{{instance}}, Redis",
                        ),
                    ),
                ),
                Panel(
                    "Looks for members that succeed",
                    "1 while the latest look of every gateway has succeeded. At 0, present members stay, and new ones"
                    " are not found.",
                    "short",
                    (
                        Query(f"min (durable_gateway_fleet_dns_answered{{{GATEWAY}}})", "DNS"),
                        Query(f"min (durable_gateway_fleet_redis_members_answered{{{GATEWAY}}})", "Redis"),
                    ),
                    most=1,
                ),
            ),
        ),
        Row(
            "Owners and hand-overs",
            (
                Panel(
                    "Streams that owners follow",
                    "Streams that each gateway follows at the origin, as their owner. The sum is what the origin "
                    "sees: one live request a stream. Readers at other members are not counted.",
                    "short",
                    (Query(total("durable_gateway_followed_streams", "instance", GATEWAY), "{{instance}}"),),
                    "stack",
                ),
                Panel(
                    "Readers for each followed stream",
                    "Live readers at all members together that share one live request to the origin.",
                    "short",
                    (
                        Query(
                            f"{total('durable_gateway_subscribers', matching=GATEWAY)}"
                            f" / {total('durable_gateway_followed_streams', matching=GATEWAY)}"
                        ),
                    ),
                ),
                Panel(
                    "Questions between members",
                    "Requests for streams from the gateway on the left to the owner on the right. They count as no "
                    "requests to the origin.",
                    "reqps",
                    _by_member("durable_gateway_fleet_requests_total"),
                ),
                Panel(
                    "Share of a member's streams",
                    "The part of the member's streams for which every gateway asks it. A step down to 0 hands them "
                    "over to other members; the ramp up hands them back, within some five seconds.",
                    "percentunit",
                    (Query(_least("durable_gateway_fleet_member_share", "member"), "{{member}}"),),
                    most=1,
                ),
                Panel(
                    "Lost members",
                    "How often the gateway on the left has ceased to ask the member on the right, whose streams then "
                    "have other owners; each worker counts. All gateways for one member: it stopped. One gateway for "
                    "all members: its network.",
                    "ops",
                    _by_member("durable_gateway_fleet_member_losses_total"),
                ),
                Panel(
                    "Live requests that began again",
                    "Followers' live requests to the origin or to an owner that ended before the stream was left. A "
                    "peak of lost goes with a hand-over.",
                    "ops",
                    (Query(rate("durable_gateway_reconnects_total", "reason", GATEWAY), "{{reason}}"),),
                ),
            ),
        ),
        Row(
            "Purges and revocations",
            (
                Panel(
                    "Purges",
                    "Purges at the admin port of a member; all members carry them out.",
                    "ops",
                    (Query(rate("durable_gateway_purges_total", "instance, kind", GATEWAY), "{{instance}}, {{kind}}"),),
                ),
                Panel(
                    "Memory emptied for missed orders",
                    "How often a gateway emptied its memory, because it may have missed a purge or a revocation. It "
                    "then fetches everything again.",
                    "ops",
                    (Query(rate("durable_gateway_fleet_missed_orders_total", "instance", GATEWAY), "{{instance}}"),),
                ),
                Panel(
                    "Redis answers",
                    "1 while the gateway's latest look at Redis for purges and revocations has succeeded. At 0, only "
                    "the members exchange them.",
                    "short",
                    (Query(_least("durable_gateway_fleet_redis_answered", "instance"), "{{instance}}"),),
                    most=1,
                ),
                Panel(
                    "Losses of Redis",
                    "How often Redis no longer had a purge or a revocation that the gateway had read there or added: "
                    "it restarted without its data, or evicts keys.",
                    "ops",
                    (Query(rate("durable_gateway_fleet_redis_losses_total", "instance", GATEWAY), "{{instance}}"),),
                ),
                Panel(
                    "Foreign entries in Redis",
                    "Entries that no member of this fleet has made, and that are ignored. Another party writes there.",
                    "ops",
                    (
                        Query(
                            rate("durable_gateway_fleet_redis_refused_entries_total", "instance", GATEWAY),
                            "{{instance}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Store on disk",
            (
                Panel(
                    "Disk in use",
                    "Part of store.max_bytes. Near 1 it is full, and the oldest bytes make room for new ones.",
                    "percentunit",
                    (
                        Query(
                            f"{total('durable_gateway_store_bytes', 'instance', GATEWAY)}"
                            f" / {total('durable_gateway_store_limit_bytes', 'instance', GATEWAY)}",
                            "{{instance}}",
                        ),
                    ),
                    most=1,
                ),
                Panel(
                    "Streams on disk",
                    "Streams of which the disk has bytes.",
                    "short",
                    (Query(total("durable_gateway_store_streams", "instance", GATEWAY), "{{instance}}"),),
                ),
                Panel(
                    "Bytes to and from disk",
                    "Bytes of streams that were written, that were read in place of a request to the origin, and that"
                    " were not written because the disk is too slow or refuses writes.",
                    "Bps",
                    (
                        Query(rate("durable_gateway_store_written_bytes_total", matching=GATEWAY), "written"),
                        Query(rate("durable_gateway_store_read_bytes_total", matching=GATEWAY), "read"),
                        Query(rate("durable_gateway_store_dropped_bytes_total", matching=GATEWAY), "dropped"),
                    ),
                ),
                Panel(
                    "Errors of the disk",
                    "write: the disk refused a write. damaged: a record had a wrong checksum. refuted: the origin did"
                    " not confirm the bytes of a stream, which were dropped.",
                    "ops",
                    (Query(rate("durable_gateway_store_errors_total", "kind", GATEWAY), "{{kind}}"),),
                ),
            ),
        ),
    ),
)
