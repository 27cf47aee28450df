"""A tape against a model: the stream's messages, and the position of every token."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.errors import GatewayError
from gateway.protocol.names import START
from gateway.tape import block as block_module
from gateway.tape.costs import BLOCK_COST, TAPE_COST
from gateway.tape.tape import Tape, TapeReading, token_cost
from tests.effort import examples

# Values that break a careless JSON parser: separators as values, in strings, after escapes, in any script.
JSON_MESSAGES = st.sampled_from(
    [
        "1", "2", "12", "-0.5e3", "null", '""', '","', '"],["', '"[1,2]"', "[1,2]", "[]", "[[],[1]]",
        '{"a":[1,{"b":"]"}]}',
        '"\\",\\""', '"\\\\"', '"é,ü"', '"𝄞"', '" , "', '{ "a" : 1 }', "[ 1 , 2 ]", '"a"', '"a,\\"a"',
    ]
)  # fmt: skip
BYTE_MESSAGES = st.sampled_from([b"a", b"b", b",", b"aa", b"a,", b"[", b"]", b"\x00\xff", b"aaaaaaaaaa"])


def recount(tape: Tape) -> int:
    """What the tape should say it costs, from what it holds: each block has an end beside its tokens."""
    blocks = list(tape.blocks())
    size = sum(len(piece) for block in blocks for piece in block.pieces)
    ends = sum(token_cost(block.end) for block in blocks)
    return TAPE_COST + size + len(blocks) * BLOCK_COST + ends + sum(map(token_cost, tape.tokens()))


def cut_up(text: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The text in arbitrary pieces, as a network might deliver it."""
    positions = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[left:right] for left, right in pairwise(positions)]


class TapeAgainstModel(RuleBasedStateMachine):
    """One position may have two tokens, because origins name the start and empty steps twice."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @initialize(data=st.data(), is_json=st.booleans())
    def begin(self, data: st.DataObject, is_json: bool) -> None:
        self.is_json = is_json
        self.messages: list[bytes] = []
        self.positions: dict[str, int] = {START: 0, "0000": 0}
        self.tape = Tape(is_json)
        self.is_closed = False
        for _ in range(3):
            self.append_and_fetch_at_the_tail(data, [], 2)

    def token(self, data: st.DataObject, low: int = 0) -> str:
        return data.draw(
            st.sampled_from(sorted(token for token, position in self.positions.items() if position >= low))
        )

    def joined(self, start: int, end: int, comma: bytes = b",") -> bytes:
        return (comma if self.is_json else b"").join(self.messages[start:end])

    def is_same(self, pieces: Sequence[bytes], start: int, end: int) -> bool:
        text = b"".join(pieces)
        if not self.is_json:
            return text == self.joined(start, end)
        return bool(json.loads(b"[" + text + b"]") == [json.loads(message) for message in self.messages[start:end]])

    # -- the origin moves

    @precondition(lambda self: not self.is_closed)
    @rule(data=st.data(), count=st.integers(1, 3))
    def append(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            message = data.draw(JSON_MESSAGES).encode() if self.is_json else data.draw(BYTE_MESSAGES)
            self.messages.append(message)
        position = len(self.messages)
        self.positions[f"{position:04d}"] = position

    @rule(data=st.data())
    def name_a_position_between(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.messages)))
        self.positions[f"{position:04d}"] = position

    @rule(data=st.data())
    def name_a_position_twice(self, data: st.DataObject) -> None:
        token = self.token(data)
        position = self.positions[token]
        if not self.is_closed or position < len(self.messages):
            self.positions[f"{position:04d}a"] = position

    # -- the gateway fetches

    @rule(data=st.data(), cuts=st.lists(st.integers(0, 200), max_size=4), is_spaced=st.booleans())
    def fetch(self, data: st.DataObject, cuts: list[int], is_spaced: bool) -> None:
        start = self.token(data)
        end = self.token(data, self.positions[start])
        self.store(start, end, cuts, is_spaced)

    @rule(data=st.data(), cuts=st.lists(st.integers(0, 200), max_size=4), count=st.integers(0, 3))
    def append_and_fetch_at_the_tail(self, data: st.DataObject, cuts: list[int], count: int) -> None:
        if not self.is_closed and count:
            self.append(data, count)
        tail = max(self.positions, key=lambda token: (self.positions[token], token))
        start = self.tape.tail or START
        self.store(start, tail, cuts, is_spaced=False)

    def store(self, start: str, end: str, cuts: list[int], is_spaced: bool) -> None:
        low, high = self.positions[start], self.positions[end]
        if start not in (START, end) and end < start:
            return  # the two tokens of one position, in the wrong order
        text = self.joined(low, high, b" , " if is_spaced else b",")
        pieces = cut_up(text, cuts) if text else []
        self.tape.check(start, end, has_bytes=bool(text))
        self.now += 1
        self.tape.store(start, end, pieces, self.now)
        self.tape.reached(end, is_short=high < len(self.messages))

    @precondition(lambda self: not self.is_closed and len(self.messages) > 12)
    @rule()
    def close(self) -> None:
        self.is_closed = True
        tail = max(self.positions, key=lambda token: (self.positions[token], token))
        self.tape.reached(tail, is_closed=True)

    @rule(how=st.sampled_from(["oldest", "oldest", "oldest", "oldest", "all", "block by block"]))
    def drop(self, how: str) -> None:
        before = self.tape.cost
        freed = self.tape.drop_all() if how == "all" else self.tape.drop_oldest()
        while how == "block by block" and (more := self.tape.drop_oldest()):
            freed += more
        assert freed == before - self.tape.cost
        if how != "oldest":
            assert self.tape.cost == TAPE_COST
            assert self.tape.token_count == 0

    @rule(data=st.data(), is_through=st.booleans())
    def trim(self, data: st.DataObject, is_through: bool) -> None:
        token, before = self.token(data), self.tape.cost
        held = {known for known in self.positions if self.tape.knows_after(known)}
        # A client's own offset is named to no other client, so the rest of a block cannot begin there.
        leads = {lead for block in self.tape.blocks() for lead in block.leads}
        freed = self.tape.drop_through(token) if is_through else self.tape.drop_before(token)
        assert freed == before - self.tape.cost
        for known in self.positions:
            is_dropped = known == START or (known <= token if is_through else known < token)
            if token == START and not is_through:
                is_dropped = False
            if is_dropped:
                assert not self.tape.knows_after(known)
            elif self.positions[known] > self.positions[token]:
                is_kept = self.tape.knows_after(known)
                assert is_kept == (known in held) or (known in leads and not is_kept)

    # -- readers

    @rule(data=st.data(), limit=st.integers(1, 40))
    def walk(self, data: st.DataObject, limit: int) -> None:
        at = self.token(data)
        for _ in range(len(self.messages) + 1):
            reading = self.tape.read(at, limit)
            self.check_reading(at, reading)
            if not reading.size:
                assert not self.tape.knows_after(at)
                return
            extent = self.tape.extent(at, reading.end)
            assert extent.end == reading.end
            assert self.tape.beginning(at, extent.size) == b"".join(reading.pieces)
            at = reading.end
        raise AssertionError("a walk does not end")

    @invariant()
    def every_token_leads_to_the_streams_bytes(self) -> None:
        if hasattr(self, "tape"):
            for token in self.positions:
                for limit in (9, 1 << 20):
                    self.check_reading(token, self.tape.read(token, limit))

    def check_reading(self, start: str, reading: TapeReading) -> None:
        low, high = self.positions[start], self.positions[reading.end]
        assert low <= high
        assert self.is_same(reading.pieces, low, high)
        assert bool(reading.size) == (low < high) == self.tape.knows_after(start)
        if reading.size:
            assert 0 < reading.stored_at <= self.now

    @invariant()
    def cost_is_what_a_recount_says(self) -> None:
        if hasattr(self, "tape"):
            assert self.tape.cost == recount(self.tape)

    @invariant()
    def every_token_lies_inside_the_tape(self) -> None:
        if not hasattr(self, "tape"):
            return
        tape = self.tape
        marked = [token for block in tape.blocks() for token in (*(token for _, token in block.marks), *block.leads)]
        assert len(set(marked)) == len(marked)
        # A token is marked in a block, or leads over an empty step to another one, or is not known.
        steps = [token for token in self.positions if tape.resolve(token) != token]
        assert tape.token_count == len(marked) + len(steps)
        for token in self.positions:
            assert tape.knows_after(token) == (tape.resolve(token) in marked)
        ends = {block.end for block in tape.blocks()}
        facts = {tape.tail, tape.short_of_tail, tape.closed_at}
        for token in self.positions:
            assert tape.has_seen(token) == (token in {*marked, *steps, *ends, *facts})

    @invariant()
    def its_statements_about_the_tail_are_true(self) -> None:
        if not hasattr(self, "tape"):
            return
        for token, position in self.positions.items():
            if self.tape.is_short(token):
                assert position < len(self.messages)
            if self.tape.is_closed_at(token):
                assert self.is_closed
                assert position == len(self.messages)


def test_a_tape_returns_the_streams_bytes_in_every_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks and pieces are so small that a few messages make several of each.
    monkeypatch.setattr(block_module, "SEAL_BYTES", 12)
    monkeypatch.setattr(block_module, "_PIECE_BYTES", 6)
    run_state_machine_as_test(
        TapeAgainstModel, settings=settings(max_examples=examples(50, 300), stateful_step_count=30)
    )


def test_an_answer_that_contradicts_the_tape_is_refused() -> None:
    tape = Tape()
    tape.reached("5", is_closed=True)
    for start, end, has_bytes in (("3", "2", False), ("3", "3", True), ("5", "6", True)):
        try:
            tape.check(start, end, has_bytes=has_bytes)
        except GatewayError:
            continue
        raise AssertionError((start, end, has_bytes))
