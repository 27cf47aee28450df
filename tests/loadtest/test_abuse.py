"""Good clients beside abusive ones and hostile origins, in short: nothing is refused or wrong, memory stays bounded.

What the good clients notice in time is measured by `make abuse`; here only counts are judged.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from gateway.limits.accounts import Account
from gateway.limits.rate_limits import Rate
from loadtest.abuse import abusers, hostile
from loadtest.abuse.good import Good
from loadtest.abuse.report import DOCS, document, faults, gateway_table, main, percentile, slow, tables
from loadtest.abuse.stage import NEW_STREAMS_PER_S, REQUESTS_PER_S, Phase, Plan, Result, joined, run
from loadtest.bench.machine import BenchError

SHORT = {"seconds": 2.5, "good": 20, "abusive": 100, "flood": 0.5, "warm_s": 1.0, "is_pinned": False}


def test_good_clients_are_served_beside_abusive_ones(tmp_path: Path) -> None:
    figures = document(run(Plan(**SHORT), tmp_path))  # type: ignore[arg-type]
    assert faults(figures) == [], figures["examples"]
    assert figures["got"].keys() == abusers.KINDS.keys()


def test_good_clients_are_served_beside_hostile_origins(tmp_path: Path) -> None:
    figures = document(run(Plan(**SHORT, kinds=(), is_alone_again=True), tmp_path))  # type: ignore[arg-type]
    assert faults(figures) == [], figures["examples"]
    # There is a phase alone before and one after.  A phase may last longer than planned.
    assert figures["beside"]["seconds"] >= 2.5
    assert figures["alone"]["seconds"] >= 2 * 2.5
    assert figures["got"].keys() == {*hostile.KINDS, hostile.REFUSES}
    assert figures["got"][hostile.LATE]["200"], "its streams are served"


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        ("hit", Rate(REQUESTS_PER_S, 4 * REQUESTS_PER_S)),
        ("miss", Rate(NEW_STREAMS_PER_S, 2 * NEW_STREAMS_PER_S)),
        ("join", Rate(NEW_STREAMS_PER_S, 2 * NEW_STREAMS_PER_S)),
    ],
)
async def test_a_good_client_that_was_stopped_stays_within_the_limits(
    kind: str, rate: Rate, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("loadtest.abuse.good.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("loadtest.abuse.good.asyncio", SimpleNamespace(sleep=sleep))
    account = Account("127.0.1.1")
    turns = Good(0, 0, lambda: 0.0).turns(kind)
    for stopped_s in (0.5, 60.0, 2.1, 2.1, 2.1, 2.1, 9.0, 9.0):
        now += stopped_s
        until = now + 1.0
        while now < until:
            await anext(turns)
            assert rate.took_one(account, now), stopped_s


def test_priorities_that_are_not_allowed_end_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.sched_setscheduler", refuse)
    with pytest.raises(BenchError, match="real-time priorities need CAP_SYS_NICE"):
        run(Plan(**SHORT, is_realtime=True), tmp_path)  # type: ignore[arg-type]


def result(**figures: int) -> Result:
    """A run in which every kind of request had one answer in a second, and what is said otherwise."""
    found = Result(Plan(1.0), Phase(), Phase(), {"storms": {"tries": 1}})
    for phase in (found.alone, found.beside):
        for kind in ("hit", "miss", "append", "long-poll", "sse", "join"):
            phase.tally.seconds[kind].append(1.0)
    found.beside.tally.refused["hit"] = figures.get("refused", 0)
    found.beside.tally.wrong["sse"] = figures.get("wrong", 0)
    found.beside.peak_bytes = figures.get("peak_bytes", 0)
    found.got["storms"] = {"tries": figures.get("tries", 1), "wrong": figures.get("poisoned", 0)}
    return found


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, []),
        ({"refused": 2}, ["2 refused: hit beside"]),
        ({"wrong": 1}, ["1 wrong: sse beside"]),
        ({"peak_bytes": 1 << 30}, ["1074 MB of memory, over 537 MB"]),
        ({"tries": 0}, ["storms did not strike"]),
        ({"poisoned": 3}, ["3 wrong: storms"]),
    ],
)
def test_what_must_not_be_is_said(figures: dict[str, int], said: list[str]) -> None:
    assert faults(document(result(**figures))) == said


def test_two_phases_count_as_one() -> None:
    before, after = Phase(seconds=1.0, busy=0.25, waited=0.1), Phase(seconds=3.0, busy=0.5, clients_waited=0.3)
    for phase, took in ((before, 0.1), (after, 0.2)):
        phase.tally.seconds["hit"].append(took)
        phase.tally.refused["join"] += 1
        phase.tally.wrong["sse"] += 2
        phase.tally.say(f"{took} s")
        phase.clients_late_s.append(took)
        phase.origin_late_s.append(took)
        phase.origin_per_s.append(took)
    before.peak_bytes, after.peak_bytes = 1, 2
    before.stolen, after.stolen = 0.5, 0.6
    both = joined(before, after)
    assert both.tally.seconds == {"hit": [0.1, 0.2]}
    assert both.tally.refused == {"join": 2}
    assert both.tally.wrong == {"sse": 4}
    assert both.tally.examples == ["0.1 s", "0.2 s"]
    assert both.clients_late_s == both.origin_late_s == both.origin_per_s == [0.1, 0.2]
    assert (both.seconds, both.busy, both.peak_bytes) == (4.0, 0.4375, 1)
    assert (both.waited, both.clients_waited, both.stolen) == (0.1, 0.3, 0.6)


def test_a_kind_without_an_answer_is_a_fault() -> None:
    found = result()
    found.beside.tally.seconds["join"].clear()
    assert faults(document(found)) == ["no answer: join beside"]


def test_a_p99_that_grows_above_its_bound_is_said() -> None:
    found = result()
    assert slow(document(found)) == []
    found.beside.tally.seconds["miss"] = [1.51]
    assert slow(document(found)) == ["miss: p99 is 1.51 x"]


@pytest.mark.parametrize(
    ("phase", "what", "share", "why"),
    [
        ("alone", "waited", 0.06, "other work had the cores"),
        ("alone", "clients_waited", 0.06, "other work had the cores"),
        ("alone", "stolen", 0.011, "the machine's host took 1.1% of a core"),
        ("beside", "stolen", 0.3, "the machine's host took 30.0% of a core"),
    ],
)
def test_times_are_not_judged_of_a_machine_that_others_use(phase: str, what: str, share: float, why: str) -> None:
    found = result()
    setattr(getattr(found, phase), what, share)
    found.beside.tally.seconds["miss"] = [1.51]
    figures = document(found)
    assert slow(figures) == [f"times are not judged: {why}"]
    assert f"Times are not judged: {why}" in tables({"clients": figures})["clients"]


def test_the_table_has_what_the_host_took() -> None:
    found = result()
    found.alone.stolen, found.beside.stolen = 0.004, 0.31
    assert "| time that the machine's host took from a core | 0.4% | 31.0% |" in gateway_table(document(found))


def test_the_table_has_the_good_clients_own_delays() -> None:
    found = result()
    found.beside.clients_late_s += [0.001] * 99 + [0.0042]
    assert "| p99 of the delays of the good clients' own loop, ms | 0.00 | 4.20 |" in gateway_table(document(found))


def test_the_table_has_the_origins_delays() -> None:
    found = result()
    found.beside.origin_late_s += [0.001] * 99 + [0.0151]
    assert "| p99 of the delays of the origin's loop, ms | 0.00 | 15.10 |" in gateway_table(document(found))


def page(folder: Path) -> Path:
    """A folder with a page that has a part for each run, and a kept run of each."""
    folder.mkdir()
    (folder / "abuse.md").write_text(
        "# Under abuse\n<!-- clients -->\nold\n<!-- /clients -->\n<!-- origins -->\nold\n<!-- /origins -->\n"
    )
    (folder / "abuse.json").write_text('{"clients": "old", "origins": "old"}\n')
    return folder


def kept(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_a_run_of_one_half_is_kept_beside_the_other_half(tmp_path: Path) -> None:
    docs, run_file, figures = page(tmp_path / "docs"), tmp_path / "run.json", document(result())
    run_file.write_bytes(orjson.dumps({"clients": figures}))
    assert main([str(run_file)], docs) == 0
    assert orjson.loads((docs / "abuse.json").read_bytes()) == {"clients": figures, "origins": "old"}
    text = tables({"clients": figures})["clients"]
    assert f"<!-- clients -->\n{text}<!-- /clients -->\n<!-- origins -->\nold\n" in (docs / "abuse.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "is not the JSON of a run"),
        (b"[]", "has no run of clients or origins"),
        (b'{"storms": {}}', "has no run of clients or origins"),
        (b'{"clients": {"kinds": {}}}', "lacks 'alone' in the run of clients"),
    ],
)
def test_a_file_that_cannot_be_shown_changes_nothing(
    text: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, run_file = page(tmp_path / "docs"), tmp_path / "run.json"
    before = kept(docs)
    run_file.write_bytes(text)
    assert main([str(run_file)], docs) == 2
    assert capsys.readouterr().err == f"report: {run_file} {said}\n"
    assert kept(docs) == before


def test_a_page_without_its_parts_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs, run_file = page(tmp_path / "docs"), tmp_path / "run.json"
    (docs / "abuse.md").write_text("# Under abuse\n")
    before = kept(docs)
    run_file.write_bytes(orjson.dumps({"clients": document(result())}))
    assert main([str(run_file)], docs) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert kept(docs) == before


def test_a_percentile_is_the_value_that_so_many_do_not_exceed() -> None:
    assert [percentile(range(100), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert percentile([], 0.5) == 0


def test_the_page_shows_the_run_that_is_kept() -> None:
    shown = (DOCS / "abuse.md").read_text()
    found = tables(orjson.loads((DOCS / "abuse.json").read_bytes()))
    assert found.keys() == {"clients", "origins"}
    for name, text in found.items():
        assert f"<!-- {name} -->\n{text}<!-- /{name} -->" in shown
