"""Fetches of key sets: no order of tokens, replies and failures causes more than are allowed, or loses keys."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.aio.clock import ManualClock
from gateway.auth.key_sets import LEAST_S, KeySet, KeySets
from gateway.auth.keys import BadKeys, KeyRing, parse_published_keys
from gateway.auth.questions import KeySource, Undecided, UnknownKey
from tests.scenarios.credentials import KEYS, SECRET

SOURCE = KeySource("https://issuer.test", "https://issuer.test/keys")
RINGS = {
    kid: parse_published_keys(json.dumps({"keys": [key.as_dict(private=False)]}).encode())
    for kid, key in (("ec", KEYS["ES256"]), ("ed", KEYS["Ed25519"]))
}
BOTH = KeyRing(RINGS["ec"].keys + RINGS["ed"].keys)
KINDS = {"ec": ("ES256", "EC"), "ed": ("Ed25519", "OKP"), "other": ("ES256", "EC")}


class Fetches(RuleBasedStateMachine):
    """A key set between tokens and its issuer, on a manual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.keys = KeySet(SOURCE, self.clock.now)
        self.held: KeyRing | None = None
        self.withdrawn: set[str | None] = set()
        self.wanted_at: list[float] = []
        """When tokens caused fetches."""

    @rule(seconds=st.sampled_from([0.5, 1.0, 9.0, LEAST_S, 40.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(kid=st.sampled_from(sorted(KINDS)))
    def token(self, kid: str) -> None:
        has_it = self.held is not None and any(one.kid == kid for one in self.held.keys)
        was_fetching = self.keys.is_fetching
        try:
            found = self.keys.keys_for(kid, *KINDS[kid])
        except UnknownKey as unknown:
            # It may be new: no fetch may show that yet.
            assert not has_it
            assert kid not in self.withdrawn
            assert (unknown.question, self.keys.problem, self.keys.is_fetching) == (None, "", False)
            assert self.keys.age_s < LEAST_S
            assert 0 <= unknown.retry_after_s - (LEAST_S - self.keys.age_s) < 1
            assert not self.keys.begin_fetch()
            return
        except Undecided as undecided:
            assert not has_it
            assert 1 <= undecided.retry_after_s <= 31
            may_wait = was_fetching or self.keys.begin_fetch()
            assert may_wait is (undecided.question is not None)
            if not was_fetching and self.keys.is_fetching:
                self.wanted_at.append(self.clock.now())
            return
        # A token is refused only if its key was withdrawn lately.
        assert bool(found) is has_it
        assert found or (kid in self.withdrawn and self.keys.age_s < LEAST_S and not self.keys.problem)

    @rule()
    def due(self) -> None:
        self.keys.begin_due_fetch()

    @precondition(lambda self: self.keys.is_fetching)
    @rule(
        ring=st.sampled_from([*RINGS.values(), BOTH]),
        lifetime_s=st.sampled_from([-5.0, 0.0, 100.0, 1e9, float("inf")]),
        share=st.floats(0, 1),
    )
    def fetched(self, ring: KeyRing, lifetime_s: float, share: float) -> None:
        lost = {kid for kid, _, _ in self.held.names() - ring.names()} if self.held is not None else set()
        version = self.keys.version
        assert self.keys.fetched(ring, lifetime_s, share) == lost
        assert self.keys.version == version + bool(lost)
        self.held = ring
        self.withdrawn = lost or self.withdrawn
        assert 45 <= self.keys.due_at - self.clock.now() <= 86_400

    @precondition(lambda self: self.keys.is_fetching)
    @rule(share=st.floats(0, 1))
    def failed(self, share: float) -> None:
        self.keys.fetch_failed("down", share)
        assert 0.5 <= self.keys.due_at - self.clock.now() <= 30

    @invariant()
    def keys_stay(self) -> None:
        assert self.keys.ring is self.held

    @invariant()
    def fetches_are_few(self) -> None:
        least_s = 0.75 if self.keys.failures else LEAST_S
        assert all(second - first >= least_s for first, second in pairwise(self.wanted_at))


TestFetches = Fetches.TestCase


def test_sources_that_stay_keep_their_keys() -> None:
    sets, other = KeySets(lambda: 0.0), KeySource("https://other.test", "https://other.test/keys")
    sets.keep_sources([SOURCE, SOURCE])
    (one,) = sets.look()
    sets.keep_sources([other, SOURCE])
    assert sets.find_set(SOURCE) is one
    sets.keep_sources([other])
    assert sets.find_set(SOURCE) is None


@pytest.mark.parametrize(
    ("jwks", "kids"),
    [
        ([KEYS["ES256"].as_dict(private=False), SECRET.as_dict(), 5, {"kty": "RSA"}], ["ec"]),
        ([{"kty": "EC", "crv": 5}, {"kty": "OKP", "x": None}, KEYS["Ed25519"].as_dict(private=True)], ["ed"]),
        ([{**KEYS["ES256"].as_dict(private=False), "use": "enc"}], None),
        ([SECRET.as_dict()], None),
        ([], None),
        ({"a": 1}, None),
        ([KEYS["ES256"].as_dict(private=False)] * 65, None),
    ],
)
def test_published_keys_of_no_use_are_passed_over(jwks: object, kids: list[str] | None) -> None:
    text = json.dumps({"keys": jwks}).encode()
    if kids is None:
        with pytest.raises(BadKeys):
            parse_published_keys(text)
        return
    ring = parse_published_keys(text)
    assert [one.kid for one in ring.keys] == kids
    assert not any(one.key.is_private for one in ring.keys)
