"""How far a proof of the bytes on disk reaches."""

from __future__ import annotations

import pytest

from gateway.disk.index import Facts, StoredKey
from gateway.disk.runs import Proof, Run, StoredStream
from gateway.protocol.names import START


def on_disk(*bounds: tuple[str, str]) -> StoredStream:
    """A stream with a run of 100 bytes for each of these ranges."""
    facts = Facts("text/plain", None, None, False, frozenset())
    stored = StoredStream(1, StoredKey("http://o", "/s", "", "r", ""), facts)
    for start, end in bounds:
        assert stored.add(Run(start, end, start, 100))
    return stored


@pytest.mark.parametrize(
    ("proved", "token", "is_proved"),
    [
        ("20", "20", True),
        ("20", "25", True),
        ("25", "20", False),
        ("20", "40", True),
        ("20", "49", True),
        ("20", "50", False),
        ("15", "30", True),
        ("15", "40", False),
        ("50", "70", False),
        ("70", "70", True),
        (START, "20", True),
        (START, START, True),
        ("10", START, False),
    ],
)
def test_a_proof_covers_its_run_and_a_stretch_after_it(proved: str, token: str, is_proved: bool) -> None:
    stored = on_disk((START, "20"), ("20", "30"), ("30", "40"), ("40", "50"), ("50", "60"), ("70", "80"))
    proof = Proof(5.0, True)
    stored.proven(proved, proof)
    assert stored.proof_for(token, 4.0, 200) is (proof if is_proved else None)


def test_a_proof_ends_with_its_time_and_the_nearest_one_counts() -> None:
    stored = on_disk(("20", "30"), ("30", "40"))
    first, second = Proof(5.0, True), Proof(7.0, True)
    stored.proven("20", first)
    stored.proven("30", second)
    assert stored.proof_for("30", 4.0, 200) is second
    assert stored.proof_for("29", 4.0, 200) is first
    assert stored.proof_for("29", 5.0, 200) is None
    assert stored.proof_for("30", 5.0, 200) is second
