"""The short form of fuzzing: the corpus, and inputs that Hypothesis makes of its parts.  `make fuzz` goes further."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_holds(name: str) -> None:
    kept = corpus.inputs(name)
    assert kept
    for data in kept:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_made_of_the_corpus_hold(name: str) -> None:
    whole = st.sampled_from(corpus.inputs(name))
    cut = st.builds(lambda data, at, size: data[at : at + size], whole, st.integers(0, 400), st.integers(0, 60))
    spliced = st.lists(cut | whole | st.binary(max_size=12), max_size=6).map(b"".join)

    @settings(max_examples=examples(150, 10_000), derandomize=True)
    @given(st.binary(max_size=300) | spliced)
    def holds(data: bytes) -> None:
        TARGETS[name](data)

    holds()


def test_the_corpus_is_small_and_has_a_target_for_each_folder() -> None:
    folders = [path for path in corpus.FOLDER.iterdir() if path.is_dir()]
    assert {path.name for path in folders} == set(TARGETS)
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= corpus.MOST_BYTES
