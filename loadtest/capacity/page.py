"""The generated parts of `docs/guides/million-readers.md`: tables and chart, from the costs and the checked points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gateway.config.fleet import MOST_MEMBERS
from loadtest.capacity.chart import chart
from loadtest.capacity.check import Checked, Figure, Point
from loadtest.capacity.costs import Costs, Measured
from loadtest.capacity.model import (
    PACKET_BYTES,
    PORTS,
    SEGMENT_BYTES,
    Demand,
    Fleet,
    Load,
    Machine,
    Use,
    largest_fleet,
    least_fleet,
)
from reference_pages.part import with_part

READERS: Final = 1_000_000
STREAMS: Final = (1, 1_000, 100_000)
RATES: Final = (0.1, 1.0, 10.0)
"""Events of each stream, a second."""
MACHINE: Final = Machine()
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30

_COSTS: Final = (
    ("an event from the origin, at the owner of its stream", "event_us", "µs"),
    ("its delivery to one SSE reader", "delivery_us", "µs"),
    ("an event from the owner, at another process", "hop_event_us", "µs"),
    ("the same, at the owner", "hop_relay_us", "µs"),
    ("the response to an SSE reader ends, and the reader connects and joins again", "join_us", "µs"),
    ("a long-poll is answered and its reader polls again, as in production", "poll_us", "µs"),
    ("a heartbeat to an SSE reader", "heartbeat_us", "µs"),
    ("a live request to the origin ends and begins again", "follow_us", "µs"),
    ("a live request to the owner ends and begins again, at the process that asks", "hop_follow_us", "µs"),
    ("the same, at the owner", "hop_serve_us", "µs"),
    ("a second of a process without readers", "idle_us", "µs"),
    ("a process without readers", "process_bytes", "MiB"),
    ("an idle SSE reader", "sse_bytes", "bytes"),
    ("a waiting long-poll", "long_poll_bytes", "bytes"),
    ("one end of an idle connection, in the kernel", "socket_bytes", "bytes"),
    ("a followed stream at its owner", "stream_bytes", "bytes"),
    ("a followed stream at another process", "hop_stream_bytes", "bytes"),
    ("another process that follows a stream, at the owner", "hop_reader_bytes", "bytes"),
    ("an SSE event on the wire, without its data", "frame_bytes", "bytes"),
    ("the answer to an SSE reader that joins at the tail", "join_reply_bytes", "bytes"),
    ("the answer to a long-poll, without its data", "poll_reply_bytes", "bytes"),
)


def demand(streams: int, events_per_s: float = 1.0) -> Demand:
    """The readers of the page, of so many streams."""
    return Demand(READERS, streams, events_per_s)


def fleet(*, has_workers: bool, is_by_stream: bool = False) -> Fleet:
    """One of the page's machines."""
    return Fleet(1, MACHINE, has_workers, is_by_stream)


def assumptions_table() -> str:
    """The demand and the machine."""
    one = demand(1)
    machine = f"{MACHINE.cores} cores with a process each, {MACHINE.memory_bytes / _GIB:g} GiB, "
    machine += f"{MACHINE.network_bits_per_s / 1e9:g} Gbit/s in each direction"
    rows = (
        ("readers", f"{one.readers:,}, by SSE, spread over all processes at random, and evenly over the streams"),
        ("events", f"{one.events_per_s:g} a second of each stream, {one.event_bytes} bytes each, at random times"),
        ("lifetime of an SSE response", f"{one.sse_lifetime_s:g} s (`sse_lifetime_s`), then its reader joins again"),
        ("heartbeat", f"after {one.heartbeat_s:g} s without an event (`heartbeat_s`)"),
        ("clients", "the bench's clients in production: access log, trusted proxy, tokens, browsers' headers"),
        ("a machine", machine),
        ("may be used", f"{MACHINE.usable:.0%} of cores, memory and network: load varies, and a machine may fail"),
        ("the process that owns the most streams", "the mean and two standard deviations"),
        ("packets", f"{SEGMENT_BYTES:,} bytes of data, {PACKET_BYTES} bytes of headers"),
        ("connections from one machine to one address and port", f"{PORTS:,}, with the kernel's default range"),
    )
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines) + "\n"


def costs_table(measured: Measured) -> str:
    """All costs."""
    lines = [f"| measured on {measured.measured_on}, {measured.machine} | |", "|---|--:|"]
    for title, name, unit in _COSTS:
        value = getattr(measured.costs, name)
        shown = value / _MIB if unit == "MiB" else value
        digits = 1 if unit == "µs" and shown < 100 else 0
        lines.append(f"| {title} | {shown:,.{digits}f} {unit} |")
    return "\n".join(lines) + "\n"


def fleets_table(costs: Costs) -> str:
    """The smallest fleets for each number of streams and each rate, and what is fullest in them."""
    head = (
        "| streams | events of each | least machines, a member for each core | with workers "
        "| and readers sent by stream | breaks first | breaks second | live requests at the origin |"
    )
    lines = [head, "|--:|--:|--:|--:|--:|---|---|--:|"]
    for streams in STREAMS:
        for rate in RATES:
            wanted = demand(streams, rate)
            members = least_fleet(costs, wanted, fleet(has_workers=False))
            by_stream = least_fleet(costs, wanted, fleet(has_workers=True, is_by_stream=True))
            load, suffices = _best(costs, wanted)
            first, second = load.loaded_uses()[:2]
            cells = [
                f"{streams:,}",
                f"{rate:g} a second",
                _machines(members),
                f"**{load.fleet.machines}**" if suffices else "none",
                _machines(by_stream),
                _shown(first),
                _shown(second),
                f"{load.origin().used:,.0f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _machines(load: Load | None) -> str:
    return "none" if load is None else f"{load.fleet.machines}"


def _best(costs: Costs, of: Demand) -> tuple[Load, bool]:
    """The smallest fleet with workers that suffices, or the largest one, and whether it suffices."""
    one = fleet(has_workers=True)
    least = least_fleet(costs, of, one)
    return (largest_fleet(costs, of, one), False) if least is None else (least, True)


def _shown(use: Use) -> str:
    largest = max(use.parts, key=lambda name: use.parts[name])
    return f"{use.resource}, {use.share:.0%} ({largest} {use.parts[largest] / use.used:.0%})"


def machines_table(costs: Costs) -> str:
    """What the fullest machine of the smallest fleet takes, and the limits that have to be raised there."""
    head = (
        "| streams | machines | memory | of it readers' sockets | sent | live requests between members "
        "| open files of a process | limits to raise, at least to |"
    )
    lines = [head, "|--:|--:|--:|--:|--:|--:|--:|---|"]
    for load, suffices in (_best(costs, demand(streams)) for streams in STREAMS):
        memory, sent = load.memory(), load.sent()
        sockets = memory.parts["readers' sockets"]
        raised = ", ".join(f"{use.resource} {_ceiling(use)}" for use in load.raised()) or "none"
        cells = [
            f"{load.demand.streams:,}",
            f"{load.fleet.machines}{'' if suffices else ', too few'}",
            f"{memory.used / _GIB:.1f} GiB",
            f"{sockets / _GIB:.2f} GiB",
            f"{sent.used / 1e9:.2f} Gbit/s",
            f"{load.demand.read_streams * load.hops_between:,.0f}",
            f"{load.open_files():,.0f}",
            raised,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _ceiling(use: Use) -> str:
    step = 1_000
    return f"{-(-use.used // step) * step:,.0f}"


def checked_table(checked: Checked, costs: Costs) -> str:
    """The points, by the model and as measured."""
    lines = [
        f"| measured on {checked.measured_on} | | by the model | measured | model to measured |",
        "|---|---|--:|--:|--:|",
    ]
    for point in checked.points:
        lines += _checked(point, costs)
    return "\n".join(lines) + "\n"


def _checked(point: Point, costs: Costs) -> list[str]:
    one = point.demand
    title = f"{one.readers:,} readers of {one.streams:,} stream{'' if one.streams == 1 else 's'}, "
    title += f"{one.events_per_s * one.streams:g} events/s in all"
    lines = []
    for name, predicted, found in _rows(point.predicted(costs), point.measured):
        scale, form = (1, ".1%") if name == "processor time, of a core" else (_MIB, ",.0f")
        unit = "" if scale == 1 else " MiB"
        cells = [
            title,
            name,
            f"{predicted / scale:{form}}{unit}",
            f"{found / scale:{form}}{unit}",
            f"{predicted / found:.2f} x",
        ]
        lines.append("| " + " | ".join(cells) + " |")
        title = ""
    return lines


def _rows(predicted: Figure, found: Figure) -> Sequence[tuple[str, float, float]]:
    return (
        ("processor time, of a core", predicted.processor, found.processor),
        ("memory of the process", predicted.memory_bytes, found.memory_bytes),
        ("memory of the kernel", predicted.kernel_bytes, found.kernel_bytes),
    )


def picture_of(costs: Costs) -> str:
    """The chart, as SVG."""
    growth = [
        [
            Load(costs, demand(streams), replace(fleet(has_workers=True), machines=machines))
            for machines in range(1, MOST_MEMBERS + 1)
        ]
        for streams in STREAMS
    ]
    return chart(growth, [_best(costs, demand(streams))[0] for streams in STREAMS])


def page_with(page: str, measured: Measured, checked: Checked) -> str:
    """The page with its generated parts."""
    for name, part in (
        ("capacity-assumptions", assumptions_table()),
        ("capacity-costs", costs_table(measured)),
        ("capacity-fleets", fleets_table(measured.costs)),
        ("capacity-machines", machines_table(measured.costs)),
        ("capacity-checked", checked_table(checked, measured.costs)),
    ):
        page = with_part(page, name, part)
    return page


def keep(home: Path) -> None:
    """Make the guide of the project at `home` show the costs and the points."""
    measured, checked = Measured.read(), Checked.read()
    guide = home / "docs" / "guides" / "million-readers.md"
    guide.write_text(page_with(guide.read_text(encoding="utf-8"), measured, checked), encoding="utf-8")
    (home / "docs" / "million-readers.svg").write_text(picture_of(measured.costs), encoding="utf-8")
