"""The same random traffic for two gateways on one clock: the one that remembers answers gives the same bytes.

Each gateway has an origin of its own, which sees the same writes.  Every request is sent some times, over HTTP/1.1,
over HTTP/2 or over both in turns, so that the fast path takes part.  The log lines, the metrics and what limits refuse
are the same, too, and so is what the origins are asked: a remembered answer spares them nothing that the tape would
not.  They send whole streams, because an answer that stops short of the tail may be repeated although the gateway holds
more by now.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gateway.aio.clock import ManualClock
from tests.server.conftest import BOUND_S
from tests.server.side import Essence, Side
from tests.server.traffic import (
    LIMITS,
    LINES,
    PAIRS,
    PATHS,
    PROXIES,
    QUERIES,
    SECTIONS,
    SETTINGS,
    SOME_WITH_CORS,
    VERSIONS,
)
from tests.waiting import pass_turns


class FastAndStrict(RuleBasedStateMachine):
    """Traffic, time, purges and reloads; after each step both sides have said the same."""

    hits = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = uvloop.new_event_loop()
        self.clock = ManualClock()
        self.sides = [Side(is_fast=True), Side(is_fast=False)]
        self.numbers = itertools.count()

    @initialize(
        filled=st.sets(st.sampled_from(sorted(PATHS)), min_size=1),
        more=st.sampled_from(SETTINGS),
        versions=st.sampled_from(VERSIONS),
        proxies=st.sampled_from(PROXIES),
    )
    def begin(self, filled: set[str], more: dict[str, Any], versions: str, proxies: dict[str, Any]) -> None:
        self.versions = itertools.cycle(versions)
        for side in self.sides:
            side.more, side.server = more, proxies
            self.loop.run_until_complete(side.start(self.clock))
        for path in sorted(filled):
            self.write("PUT", path, 3_000, is_closing=False, ttl=None)

    def on_both(self, work: Callable[[Side], Awaitable[list[Essence]]], *, settles: bool = False) -> None:
        """Have both sides do this, and compare their answers; `settles` ends what lingers.  The gateways' own requests
        to the origins are answered before those are counted, and before the next step."""

        async def do() -> list[list[Essence]]:
            return await asyncio.gather(*(work(side) for side in self.sides))

        fast, strict = self.loop.run_until_complete(do())
        assert len(fast) == len(strict)
        for one, other in zip(fast, strict, strict=True):
            assert one[0] == other[0]
            assert sorted(one[1].items() ^ other[1].items()) == []
            assert one[2] == other[2]
            self.latest = one
        self.rest()
        if settles:
            self.settle()
        asked, asked_of_other = (side.reads for side in self.sides)
        assert asked == asked_of_other

    def both(
        self, method: str, target: str, lines: Sequence[str], tag: int | None = None, body: bytes | None = None
    ) -> None:
        version = next(self.versions)

        async def ask(side: Side) -> list[Essence]:
            return [await side.ask(version, method, target, lines, tag, body)]

        self.on_both(ask)
        self.latest_target = target
        for offset in self.latest[1].get("stream-next-offset", ()):
            self.sides[0].tail[target.partition("?")[0]] = offset

    @rule(
        method=st.sampled_from(["GET", "GET", "GET", "HEAD"]),
        path=st.sampled_from(sorted(PATHS)),
        query=st.sampled_from(QUERIES),
        lines=st.lists(st.sampled_from(LINES), max_size=3, unique=True),
        tag=st.none() | st.integers(0, 9),
    )
    def read(self, method: str, path: str, query: str, lines: list[str], tag: int | None) -> None:
        if "long-poll" in query and method == "HEAD":
            query = ""
        for _ in range(4):
            self.both(method, path + query, lines, tag)

    @rule(path=st.sampled_from(sorted(PATHS)), line=st.sampled_from(LINES))
    def read_all(self, path: str, line: str) -> None:
        for lines in ([], [], [line], [line], []):
            self.both("GET", f"{path}?offset=-1", lines)
        for tag in (0, None, 0):
            self.both("GET", f"{path}?offset=-1", [line], tag)
        tail = self.sides[0].tail.get(path)
        for _ in range(3 if tail else 0):
            self.both("GET", f"{path}?offset={tail}", [])

    @rule(path=st.sampled_from(sorted(PATHS)), more=st.sampled_from(SOME_WITH_CORS))
    def read_alike(self, path: str, more: dict[str, Any]) -> None:
        self.reload(more)
        for one, other in PAIRS:
            for lines in (one, one, one, other, one):
                self.both("GET", f"{path}?offset=-1", lines)

    @rule(path=st.sampled_from(sorted(PATHS)), at=st.integers(0, 200), lines=st.sampled_from([[], LINES[1:2]]))
    def read_from_offset(self, path: str, at: int, lines: list[str]) -> None:
        for _ in range(3):
            self.both("GET", f"{path}?offset={0:016d}_{at:016d}", lines)

    @rule(path=st.sampled_from(sorted(PATHS)))
    def read_behind_another(self, path: str) -> None:
        """What is remembered is asked for while the request before it is at the origin."""
        for _ in range(3):
            self.both("GET", f"{path}?offset=-1", [])
        cold = f"{path}?n={next(self.numbers)}"
        version = next(self.versions)

        async def ask(side: Side) -> list[Essence]:
            gate = side.origin.origin.faults.hold(kind="catchup", times=1)
            first = await side.send(version, "GET", cold, [])
            async with asyncio.timeout(BOUND_S):
                await gate.waiting(1)
            second = await side.send(version, "GET", f"{path}?offset=-1", [])
            await pass_turns(10)
            gate.release()
            return [await side.answer(first), await side.answer(second)]

        self.on_both(ask)

    @rule(
        path=st.sampled_from(sorted(PATHS)),
        line=st.none() | st.sampled_from(LINES[4:8]),
        is_closed=st.booleans(),
        ttl=st.sampled_from([None, 2, 60]),
        first=st.sampled_from(SOME_WITH_CORS),
        seconds=st.sampled_from([0, 0.01, 3, 30, 100]),
        then=st.none() | st.sampled_from(SETTINGS),
    )
    def read_again_later(
        self,
        path: str,
        line: str | None,
        is_closed: bool,
        ttl: int | None,
        first: dict[str, Any],
        seconds: float,
        then: dict[str, Any] | None,
    ) -> None:
        """A stream is read by the same bytes before and after time has passed and the configuration has changed."""
        self.reload(first)
        self.write("PUT", f"{path}/{next(self.numbers)}", 20, is_closing=is_closed, ttl=ttl)
        target = f"{self.latest_target}?offset=-1"
        lines = [line] if line is not None else []
        for _ in range(3):
            self.both("GET", target, lines)
        self.advance(seconds)
        if then is not None:
            self.reload(then)
        for _ in range(2):
            self.both("GET", target, lines)

    @rule(path=st.sampled_from(sorted(PATHS)), first=st.sampled_from(SETTINGS))
    def read_own_write(self, path: str, first: dict[str, Any]) -> None:
        """A stream is read by the same bytes before and after a write, in the same second."""
        self.reload(first)
        self.write("PUT", f"{path}/{next(self.numbers)}", 20, is_closing=False, ttl=None)
        target = self.latest_target
        for is_closing in (False, False, True):
            for _ in range(3):
                self.both("GET", f"{target}?offset=-1", [])
            self.write("POST", target, 20, is_closing=is_closing, ttl=None)
        self.both("GET", f"{target}?offset=-1", [])

    @rule(
        path=st.sampled_from(sorted(PATHS)),
        pair=st.sampled_from(PAIRS[:4]),
        first=st.sampled_from(SOME_WITH_CORS),
        more=st.none() | st.sampled_from(SETTINGS),
    )
    def follow(
        self, path: str, pair: tuple[list[str], list[str]], first: dict[str, Any], more: dict[str, Any] | None
    ) -> None:
        self.reload(first)
        variants = [pair[0], pair[0], pair[1], pair[0]]
        versions = self.next_versions(variants)
        self.on_both(lambda side: side.follow(versions, f"{path}?offset=-1&live=sse", variants, more), settles=True)
        # Who may share a live request does not depend on how the readers' requests were understood.
        fast, strict = (side.live_requests for side in self.sides)
        assert fast == strict

    @rule(
        path=st.sampled_from(sorted(PATHS)),
        pair=st.sampled_from(PAIRS[:4]),
        first=st.sampled_from(SETTINGS[:5]),
        more=st.none() | st.sampled_from(SETTINGS),
        live=st.sampled_from(["", "&live=sse"]),
    )
    def read_across_a_change(
        self,
        path: str,
        pair: tuple[list[str], list[str]],
        first: dict[str, Any],
        more: dict[str, Any] | None,
        live: str,
    ) -> None:
        """A reader waits for the origin while the configuration changes, or comes while the gateway drains; others come
        after it."""
        self.reload(first)
        target, variants = f"{path}?n={next(self.numbers)}&offset=-1{live}", [pair[0], pair[0], pair[1], pair[0]]
        versions = self.next_versions(variants)
        self.on_both(lambda side: side.read_across(versions, target, variants, more), settles=True)

    @rule(
        path=st.sampled_from(sorted(PATHS)),
        clients=st.lists(SECTIONS, min_size=2, max_size=6),
        leaving=st.integers(0, 5),
        first=st.sampled_from([*SETTINGS[:4], SETTINGS[4], SETTINGS[4]]),
    )
    def wait_together(self, path: str, clients: list[list[str]], leaving: int, first: dict[str, Any]) -> None:
        self.reload(first)
        self.write("PUT", f"{path}/{next(self.numbers)}", 20, is_closing=False, ttl=None)
        self.poll_together(self.latest_target, clients, leaving)

    def poll_together(
        self, target: str, clients: list[list[str]], leaving: int, then: dict[str, Any] | None = None
    ) -> None:
        """Long-polls of clients that differ in their headers wait for an append; `then` is in effect before it."""
        at, body = self.sides[0].tail[target], b"[2]" if target[:2] == "/j" else b"more"
        append, versions = ([f"Content-Type: {PATHS[target[:2]]}"], body), self.next_versions(clients)
        leaving %= len(clients)
        self.on_both(lambda side: side.wait(versions, target, at, clients, leaving, append, then), settles=True)

    @rule(
        path=st.sampled_from(sorted(PATHS)),
        clients=st.lists(SECTIONS, min_size=2, max_size=5),
        first=st.sampled_from(SETTINGS[:5]),
    )
    def follow_together(self, path: str, clients: list[list[str]], first: dict[str, Any]) -> None:
        self.reload(first)
        self.read_live(path, clients)

    def read_live(self, path: str, clients: list[list[str]]) -> None:
        """SSE readers that differ in their headers come one after the other."""
        versions = self.next_versions(clients)
        self.on_both(lambda side: side.follow(versions, f"{path}?offset=-1&live=sse", clients, None), settles=True)

    @rule(
        path=st.sampled_from(sorted(PATHS)),
        clients=st.lists(SECTIONS, min_size=2, max_size=5),
        first=st.sampled_from(SETTINGS[:5]),
    )
    def read_as_many(self, path: str, clients: list[list[str]], first: dict[str, Any]) -> None:
        """Clients that differ in their headers read the same, each of them some times."""
        self.reload(first)
        for _ in range(3):
            for lines in clients:
                self.both("GET", f"{path}?offset=-1", lines)

    @rule(
        path=st.sampled_from(sorted(PATHS)),
        clients=st.lists(SECTIONS, min_size=1, max_size=3),
        first=st.sampled_from(SETTINGS[:5]),
        limit=st.sampled_from(LIMITS),
        seconds=st.sampled_from([0.3, 2, 30]),
    )
    def reach_a_limit(
        self, path: str, clients: list[list[str]], first: dict[str, Any], limit: dict[str, Any], seconds: float
    ) -> None:
        """Clients read until a limit refuses them, and again after some time."""
        self.reload(first)
        self.write("PUT", f"{path}/{next(self.numbers)}", 600, is_closing=False, ttl=None)
        target = self.latest_target
        for _ in range(2):
            self.reload({**first, **limit})
            for lines in clients * 3:
                self.both("GET", f"{target}?offset=-1", lines)
            self.read_live(target, clients * 2)
            self.advance(seconds)
            # The append is not to be refused.
            self.poll_together(target, clients * 2, 0, first)
            self.advance(seconds)

    @rule(path=st.sampled_from(sorted(PATHS)), is_soft=st.booleans())
    def purge(self, path: str, is_soft: bool) -> None:
        for _ in range(3):
            self.both("GET", f"{path}?offset=-1", [])

        async def purge_here() -> None:
            for side in self.sides:
                side.purge(path, is_soft=is_soft)

        self.loop.run_until_complete(purge_here())
        self.settle()
        for _ in range(2):
            self.both("GET", f"{path}?offset=-1", [])

    @rule(
        method=st.sampled_from(["POST", "POST", "POST", "PUT", "DELETE"]),
        path=st.sampled_from(sorted(PATHS)),
        # None is empty: a long-poll would wait.
        size=st.sampled_from([1, 20, 3_000]),
        is_closing=st.sampled_from([False, False, False, True]),
        ttl=st.sampled_from([None, None, 2]),
    )
    def write(self, method: str, path: str, size: int, is_closing: bool, ttl: int | None) -> None:
        content_type = PATHS[path[:2]]
        body = b"[%s]" % b",".join([b"1"] * (size // 2 + 1)) if "json" in content_type else b"x" * size
        lines = [f"Content-Type: {content_type}"]
        lines += ["Stream-Closed: true"] if is_closing else []
        lines += [f"Stream-TTL: {ttl}"] if ttl is not None and method == "PUT" else []
        self.both(method, path, lines, None, None if method == "DELETE" else body)

    @rule(
        seconds=st.sampled_from([0.01, 0.5, 1, 3, 30, 100]),
        more=st.sampled_from([*[None] * len(SETTINGS), *SETTINGS]),
    )
    def pass_time_and_perhaps_reload(self, seconds: float, more: dict[str, Any] | None) -> None:
        self.advance(seconds)
        if more is not None:
            self.reload(more)

    def next_versions(self, variants: Sequence[object]) -> list[str]:
        """The version of HTTP of each of so many requests."""
        return [next(self.versions) for _ in variants]

    def reload(self, more: dict[str, Any]) -> None:
        for side in self.sides:
            self.loop.run_until_complete(side.reload(more))

    def advance(self, seconds: float) -> None:
        async def pass_here() -> None:
            self.clock.advance(seconds)

        self.loop.run_until_complete(pass_here())

    def rest(self) -> None:
        """Let both sides come to rest: how far a gateway's own requests have come depends on the machine."""

        async def come_to_rest() -> None:
            for side in self.sides:
                await side.rest()

        self.loop.run_until_complete(come_to_rest())

    def settle(self) -> None:
        """Let both sides end what lingers, and come to rest; no time goes by."""

        async def come_to_rest() -> None:
            for side in self.sides:
                await pass_turns()
                await side.settle(self.clock)

        self.loop.run_until_complete(come_to_rest())

    @invariant()
    def both_saw_as_many_incarnations(self) -> None:
        assert len({len(side.tags) for side in self.sides}) == 1

    def teardown(self) -> None:
        for side in self.sides:
            self.loop.run_until_complete(side.stop())
        FastAndStrict.hits += self.sides[0].hits
        (fast, fast_sums), (strict, strict_sums) = (side.logged() for side in self.sides)
        assert fast == strict
        assert fast_sums == strict_sums
        one, other = (side.counts for side in self.sides)
        assert sorted({*one} ^ {*other}) == []
        self.loop.close()


def compare(max_examples: int, *, shrinks: bool = True) -> None:
    """Play so many runs of traffic.  AssertionError, TimeoutError or EOFError if the sides do not say the same;
    `shrinks` looks for the shortest traffic that shows it."""
    run_state_machine_as_test(
        FastAndStrict,
        settings=settings(
            max_examples=max_examples,
            derandomize=True,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
            deadline=None,
            phases=[Phase.generate, *([Phase.shrink] if shrinks else [])],
            database=None,
        ),
    )


def tells(most_examples: int) -> bool:
    """Whether the sides do not say the same within so many runs of traffic."""
    try:
        compare(most_examples, shrinks=False)
    except (AssertionError, TimeoutError, EOFError, ConnectionError, Flaky):
        # A fault that depends on timing may not show again.
        return True
    return False
