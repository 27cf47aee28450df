"""Gateways that break linearizability, each in one way: the checker has to see all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.engine.s2 import request
from gateway.engine.s2.fetch import S2Fetches, S2Question
from gateway.engine.s2.reader import S2SessionReader
from gateway.engine.s2.stream import S2Stream
from gateway.s2.records import Record, StreamPosition
from gateway.tape.record_tape import Joint, RecordTape
from tests.chaos.mutant import Mutant, Patches, nothing, registrar

MUTANTS: Final[list[Mutant]] = []
_mutant = registrar(MUTANTS)


@_mutant("a tail asked for before the request does not answer it")
def tail_from_memory() -> Patches:
    def trusted_tail(stream: S2Stream, trust_s: float) -> StreamPosition | None:
        return stream.topic.tail if stream.topic is not None else None

    return [(S2Stream, "trusted_tail", trusted_tail)]


@_mutant("a question that was sent before the request arrived does not answer it")
def late_readers_join_a_question() -> Patches:
    original = S2Fetches.ask_question

    async def ask(fetches: S2Fetches, question: S2Question, *arguments: Any) -> Any:
        earlier = fetches._fetches.pending(question)
        return await (original(fetches, question, *arguments) if earlier is None else earlier.result())

    return [(S2Fetches, "ask_question", ask)]


@_mutant("what the session at the origin said before a request is not the tail that the request finds")
def late_sessions_are_told_the_last_tail() -> Patches:
    def last_tail(reader: S2SessionReader) -> StreamPosition | None:
        topic = reader.stream.topic
        return topic.tail if topic is not None else None

    return [(S2SessionReader, "_latest_tail", property(last_tail))]


@_mutant("a fetch that was sent before the request arrived does not say where the tail is")
def late_readers_join_a_fetch() -> Patches:
    original = S2Stream._join

    def join(stream: S2Stream, *arguments: Any) -> Any:
        fetch, _ = original(stream, *arguments)
        return fetch, True

    return [(S2Stream, "_join", join)]


LIVES: Final[list[Mutant]] = []
"""The same for streams that are deleted and created again past the gateway (`lives`)."""
_life = registrar(LIVES)


@_life("records are joined only after the one at the joint was compared")
def records_are_joined_unseen() -> Patches:
    def joints(tape: RecordTape, start: int, records: Sequence[Record]) -> Iterator[Joint]:
        return iter(())

    return [(RecordTape, "joints", joints), (S2Stream, "_overlap", nothing)]


@_life("each host of a zone has a basin of its own")
def hosts_of_a_zone_are_one() -> Patches:
    def key_query(basin: str | None) -> str:
        return ""

    return [(request, "key_query", key_query)]
