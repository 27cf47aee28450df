"""The figures of a run, as a document and as tables.

`python -m loadtest.abuse.report FILE` keeps the runs of a file `abuse.json` in `docs/abuse.json`, and writes their
tables into `docs/abuse.md`.  A run that the file lacks stays as it was.  If a run cannot be shown, neither file
changes, and the exit status is 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.abuse.good import KINDS
from loadtest.abuse.stage import MEMORY_BYTES, Phase, Result
from reference_pages.part import with_part

DOCS: Final = Path(__file__).parents[2] / "docs"

MOST_RATIO: Final = 1.5
"""Bound on p99 beside abusive clients, as a multiple of p99 alone."""

MOST_WAITED: Final = 0.05
"""Share of the time alone that either loop may wait for a core; above it the machine is busy, and times are
unreliable."""

MOST_STOLEN: Final = 0.01
"""Share of the time that the machine's host may take from a core in either phase.  A p99 is made of the slowest
hundredth, and no process on the machine causes such a delay."""

_RUNS: Final = ("clients", "origins")
"""The runs that the page shows."""


def percentile(values: Sequence[float], share: float) -> float:
    """The quantile `share` of the values; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def document(result: Result) -> dict[str, Any]:
    """The run's figures, in ms, bytes and counts."""
    alone, beside = result.alone, result.beside
    return {
        "seconds": result.plan.seconds,
        "good": result.plan.good,
        "abusive": result.plan.abusive,
        "memory_bound_bytes": MEMORY_BYTES,
        "kinds": {kind: _kind(kind, alone, beside) for kind in KINDS},
        "alone": _phase(alone),
        "beside": _phase(beside),
        "got": {kind: dict(sorted(counts.items())) for kind, counts in result.got.items()},
        "examples": [*alone.tally.examples, *beside.tally.examples],
    }


def _kind(kind: str, alone: Phase, beside: Phase) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, phase in (("alone", alone), ("beside", beside)):
        took = phase.tally.seconds[kind]
        figures[name] = {
            "answers": len(took),
            "p50_ms": round(1_000 * percentile(took, 0.5), 2),
            "p99_ms": round(1_000 * percentile(took, 0.99), 2),
            "refused": phase.tally.refused[kind],
            "wrong": phase.tally.wrong[kind],
        }
    return figures


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "seconds": round(phase.seconds, 1),
        "peak_bytes": phase.peak_bytes,
        "busy": round(phase.busy, 3),
        "waited": round(phase.waited, 3),
        "clients_waited": round(phase.clients_waited, 3),
        "clients_late_p99_ms": round(1_000 * percentile(phase.clients_late_s, 0.99), 2),
        "origin_late_p99_ms": round(1_000 * percentile(phase.origin_late_s, 0.99), 2),
        "stolen": round(phase.stolen, 4),
        "origin_per_s": round(sum(phase.origin_per_s) / max(1, len(phase.origin_per_s)), 1),
        "origin_most_per_s": round(max(phase.origin_per_s, default=0.0), 1),
    }


def faults(figures: Mapping[str, Any]) -> list[str]:
    """Failures of a run that do not depend on other load on the machine, one line each."""
    found = []
    for kind, both in figures["kinds"].items():
        for phase, of in both.items():
            found += [f"{of[what]} {what}: {kind} {phase}" for what in ("refused", "wrong") if of[what]]
            found += [f"no answer: {kind} {phase}"] if not of["answers"] else []
    peak = figures["beside"]["peak_bytes"]
    if peak > figures["memory_bound_bytes"]:
        found.append(f"{peak / 1e6:.0f} MB of memory, over {figures['memory_bound_bytes'] / 1e6:.0f} MB")
    found += [f"{got['wrong']} wrong: {kind}" for kind, got in figures["got"].items() if got.get("wrong")]
    found += [f"{kind} did not strike" for kind, got in figures["got"].items() if not got.get("tries")]
    return found


def slow(figures: Mapping[str, Any]) -> list[str]:
    """The kinds of good requests whose p99 is above its bound; or why times are not judged."""
    if why := _why_not_judged(figures):
        return [f"times are not judged: {why}"]
    ratios = {
        kind: both["beside"]["p99_ms"] / (both["alone"]["p99_ms"] or 1) for kind, both in figures["kinds"].items()
    }
    return [f"{kind}: p99 is {ratio:.2f} x" for kind, ratio in ratios.items() if ratio > MOST_RATIO]


def _why_not_judged(figures: Mapping[str, Any]) -> str | None:
    """Why the run's times say nothing of the gateway; None if they do."""
    alone, beside = figures["alone"], figures["beside"]
    if (stolen := max(alone["stolen"], beside["stolen"])) > MOST_STOLEN:
        return f"the machine's host took {stolen:.1%} of a core"
    if max(alone["waited"], alone["clients_waited"]) > MOST_WAITED:
        return "other work had the cores"
    return None


def good_table(figures: Mapping[str, Any]) -> str:
    """What the good clients noticed, in Markdown."""
    lines = [
        "| request | answers | p50 alone, ms | beside | p99 alone, ms | beside | ratio | refused | wrong |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, both in figures["kinds"].items():
        alone, beside = both["alone"], both["beside"]
        ratio = beside["p99_ms"] / (alone["p99_ms"] or 1)
        times = [f"{phase[name]:.2f}" for name in ("p50_ms", "p99_ms") for phase in (alone, beside)]
        counts = [f"{beside['answers']:,}", *times, f"{ratio:.2f} x", str(beside["refused"]), str(beside["wrong"])]
        lines.append(f"| {kind} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


def gateway_table(figures: Mapping[str, Any]) -> str:
    """The resources that the gateway and the origin used, in Markdown."""
    lines = ["| | alone | beside |", "|---|--:|--:|"]
    alone, beside = figures["alone"], figures["beside"]
    bound = figures["memory_bound_bytes"] / 1e6
    peaks = [f"{phase['peak_bytes'] / 1e6:.0f}" for phase in (alone, beside)]
    lines.append(f"| gateway's peak memory, MB (bound {bound:.0f}) | {' | '.join(peaks)} |")
    lines.append(f"| gateway's processor time, of a core | {alone['busy']:.0%} | {beside['busy']:.0%} |")
    for name, what in (
        ("waited", "time that the gateway waited for its core"),
        ("clients_waited", "the good clients for theirs"),
    ):
        lines.append(f"| {what} | {alone[name]:.0%} | {beside[name]:.0%} |")
    for name, what in (("clients_late_p99_ms", "good clients' own loop"), ("origin_late_p99_ms", "origin's loop")):
        late = " | ".join(f"{phase[name]:.2f}" for phase in (alone, beside))
        lines.append(f"| p99 of the delays of the {what}, ms | {late} |")
    stolen = f"{alone['stolen']:.1%} | {beside['stolen']:.1%}"
    lines.append(f"| time that the machine's host took from a core | {stolen} |")
    lines.append(f"| requests at the origin, a second | {alone['origin_per_s']:.0f} | {beside['origin_per_s']:.0f} |")
    lines.append(f"| most in one second | {alone['origin_most_per_s']:.0f} | {beside['origin_most_per_s']:.0f} |")
    return "\n".join(lines) + "\n"


def got_table(figures: Mapping[str, Any]) -> str:
    """The outcomes of the abusive clients, in Markdown."""
    lines = ["| kind | tries | what they got |", "|---|--:|---|"]
    for kind, counts in figures["got"].items():
        ends = ", ".join(f"{count:,} {what}" for what, count in counts.items() if what != "tries")
        lines.append(f"| {kind} | {counts.get('tries', 0):,} | {ends or 'nothing'} |")
    return "\n".join(lines) + "\n"


def tables(kept: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the page for the runs that were kept, by name."""
    return {name: _part(kept[name]) for name in _RUNS if name in kept}


def _part(figures: Mapping[str, Any]) -> str:
    why = _why_not_judged(figures)
    warning = f"Times are not judged: {why}.\n\n" if why else ""
    return f"{warning}{good_table(figures)}\n{gateway_table(figures)}\n{got_table(figures)}"


def main(arguments: Sequence[str], docs: Path = DOCS) -> int:
    """Keep the runs of a file in `docs`, and show them there; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.abuse.report", description=__doc__)
    parser.add_argument("file", type=Path, help="a run's abuse.json")
    file: Path = parser.parse_args(arguments).file
    try:
        kept, page = _with_runs(file, docs)
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    (docs / "abuse.json").write_text(kept, encoding="utf-8")
    (docs / "abuse.md").write_text(page, encoding="utf-8")
    return 0


def _with_runs(file: Path, docs: Path) -> tuple[str, str]:
    """The texts of `abuse.json` and `abuse.md` with the runs of a file.  Raises OSError or ValueError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not the JSON of a run") from error
    runs = {name: found[name] for name in _RUNS if isinstance(found, dict) and name in found}
    if not runs:
        raise ValueError(f"{file} has no run of {' or '.join(_RUNS)}")
    page = (docs / "abuse.md").read_text(encoding="utf-8")
    for name, figures in runs.items():
        try:
            text = _part(figures)
        except KeyError as error:
            raise ValueError(f"{file} lacks {error} in the run of {name}") from error
        page = with_part(page, name, text)
    kept = json.loads((docs / "abuse.json").read_text(encoding="utf-8"))
    return json.dumps({**kept, **runs}, indent=1) + "\n", page


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
