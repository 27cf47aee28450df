"""Mutants of the fast path: of remembered answers, of remembered live requests, and of a connection's look at both.

Chaos seldom sends the same bytes twice.  What tells these is the same traffic for two gateways, of which one remembers
nothing (`tests/server/fast_and_strict.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final
from unittest.mock import patch

from gateway.engine.route import MEANINGLESS, HeaderRules
from gateway.http import known
from gateway.http.http2.head import Http2Request
from gateway.protocol.client_address import FORWARDING
from gateway.server import header_meanings
from gateway.server.connection import Connection
from gateway.server.header_meanings import Section, Sections
from gateway.server.http2.connection import Http2Connection
from gateway.server.joins import Joins
from gateway.server.poll_group import PollGroup
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.server.request_admission import Admission
from gateway.tape.stream import Stream
from tests.chaos.mutant import Mutant, Patches, always, never, nothing, registrar

HITS: Final[list[Mutant]] = []
mutant = registrar(HITS)


# -- what makes two requests alike


def _taken_out(*names: str) -> Patches:
    """These headers are taken for meaningless, whatever the routes say."""
    reset = Sections.reset

    def without_credentials(self: Sections, rules: Iterable[HeaderRules], *more: Any) -> None:
        reset(self, rules, *more)
        # Any rules are those of a route on which no header decides.
        self._kinds = [header_meanings._Kind(HeaderRules())] * len(self._kinds)

    return [
        (header_meanings, "MEANINGLESS", (*MEANINGLESS, *names)),
        (Sections, "reset", without_credentials),
    ]


@mutant("credentials are a part of what makes two requests alike")
def hit_ignores_authorization() -> Patches:
    return _taken_out("authorization")


@mutant("credentials are those of the request's route")
def hit_takes_every_route_for_the_loosest() -> Patches:
    read = header_meanings._Kind.read

    def read_loosely(self: header_meanings._Kind, text: bytes) -> tuple[header_meanings.Key, ...]:
        names = [*MEANINGLESS, *FORWARDING, "authorization"]
        self._without_meaning = known.lines_named(names).sub
        return read(self, text)

    return [(header_meanings._Kind, "read", read_loosely)]


@mutant("the Origin header decides the CORS fields of an answer")
def hit_ignores_the_origin_header() -> Patches:
    return _taken_out("origin")


@mutant("a content coding is for clients that take it")
def hit_ignores_accept_encoding() -> Patches:
    return _taken_out("accept-encoding")


@mutant("a 304 is for a client that has the bytes")
def hit_ignores_if_none_match() -> Patches:
    return _taken_out("if-none-match")


@mutant("a line is taken out only if the strict parser would accept it")
def line_with_control_characters_is_taken_out() -> Patches:
    lines = known.lines_named

    def any_value(names: Any) -> re.Pattern[bytes]:
        return re.compile(lines(names).pattern.replace(rb"[\t\x20-\x7e]*+", rb"[^\r\n]*+"))

    return [(header_meanings, "lines_named", any_value)]


@mutant("the strict parser's bound on lines applies to what is taken out")
def any_number_of_lines_is_taken_out() -> Patches:
    return [(header_meanings, "_MOST_BREAKS", 10_000)]


# -- how long an answer is valid


def _found(connection: Connection, data: bytes) -> tuple[RememberedAnswer, Section] | None:
    """The remembered answer to these bytes, and their header section."""
    clients = connection._clients
    if clients.find is None or clients.limits_hits or connection.transport is None:
        return None
    found = clients.exact.get(data) or clients.find(data, None)
    return (found[0], found[1]) if found is not None and isinstance(found[0], RememberedAnswer) else None


def _send(connection: Connection, answer: RememberedAnswer, data: bytes, section: Section) -> None:
    clients, transport = connection._clients, connection.transport
    assert transport is not None
    answer.hits += 1
    transport.write(answer.joined or b"".join(answer.pieces))
    if clients.on_hit is not None:
        clients.on_hit(answer, connection, data, section, connection._now(), answer.verdict_key)


def _hit_if(is_valid: Any) -> Patches:
    """A connection sends what it finds if this says so of the answer, its stream and the time."""
    answers = Connection._answers_known

    def answers_known(self: Connection, data: bytes) -> bool:
        found = _found(self, data)
        if found is None or not is_valid(found[0], found[0].stream, self._now()):
            return answers(self, data)
        self._is_active = True
        _send(self, found[0], data, found[1])
        return True

    return [(Connection, "_answers_known", answers_known)]


def _names_tail(answer: RememberedAnswer, stream: Stream) -> bool:
    return answer.tail is None or answer.version.same_tail_as(stream.version)


@mutant("a hit is good for the second that it was rendered for")
def hit_ignores_the_time() -> Patches:
    return _hit_if(lambda hit, stream, _: hit.version.same_doubts_as(stream.version) and _names_tail(hit, stream))


@mutant("after a doubt the origin is asked")
def hit_ignores_doubts() -> Patches:
    return _hit_if(lambda hit, stream, now: now < hit.until and _names_tail(hit, stream))


@mutant("an answer that names the tail ends with it")
def hit_ignores_the_tail() -> Patches:
    return _hit_if(lambda hit, stream, now: now < hit.until and hit.version.same_doubts_as(stream.version))


_CERTAIN: Final[dict[str, Any]] = {
    "tail_until": lambda *_: math.inf,
    "trusted_until": lambda *_: math.inf,
    "may_answer_alone": lambda *_: True,
    "has_expired": never,
}


def _rendered_as_if(*certain: str) -> Patches:
    """An answer is rendered as if its stream had said this for ever."""
    render = RememberedAnswer.render

    def rendered(self: RememberedAnswer, now: float, wall: float) -> bool:
        with ExitStack() as stack:
            for name in certain:
                stack.enter_context(patch.object(Stream, name, _CERTAIN[name]))
            return render(self, now, wall)

    return [(RememberedAnswer, "render", rendered)]


@mutant("an answer is rendered anew only while what it says of the tail is fresh")
def renewed_answer_ignores_the_tail() -> Patches:
    return _rendered_as_if("tail_until")


@mutant("an answer is rendered anew only while the stream is trusted")
def renewed_answer_ignores_trust() -> Patches:
    return _rendered_as_if("may_answer_alone", "trusted_until")


@mutant("an answer is rendered anew only while the stream lives")
def renewed_answer_ignores_the_lifetime() -> Patches:
    return _rendered_as_if("has_expired", "may_answer_alone", "trusted_until")


# -- the end of an answer


@mutant("an answer ends with the bytes that it shows")
def hit_outlives_its_stream() -> Patches:
    return [(RememberedAnswers, "forget_stream", nothing)]


@mutant("the way from the exact bytes to an answer ends with it")
def exact_request_outlives_its_answer() -> Patches:
    drop = RememberedAnswers._drop

    def dropped(self: RememberedAnswers, answer: RememberedAnswer) -> None:
        kept = self.exact[answer.alias]
        drop(self, answer)
        self.exact[answer.alias] = kept

    return [(RememberedAnswers, "_drop", dropped)]


@mutant("what is remembered ends with the routes that it was read under")
def hit_outlives_a_reload() -> Patches:
    return [(RememberedAnswers, "reset", nothing)]


@mutant("answers come in the order of their requests")
def hit_overtakes_the_request_before_it() -> Patches:
    received = Connection.data_received

    def data_received(self: Connection, data: bytes) -> None:
        found = _found(self, data)
        if found is None or self._now() >= found[0].until or not found[0].is_unchanged():
            received(self, data)
        else:
            _send(self, found[0], data, found[1])

    return [(Connection, "data_received", data_received)]


# -- live requests


@mutant("a live request that was read under earlier routes does not join")
def join_outlives_a_reload() -> Patches:
    return [(Joins, "clear", nothing)]


def _joined_without(name: bytes) -> Patches:
    """Live requests that differ in this header alone are taken for the same."""
    line = re.compile(rb"\r\n" + name + rb":[^\r]*")
    read = header_meanings._Kind.read

    def read_without(self: header_meanings._Kind, text: bytes) -> tuple[header_meanings.Key, ...]:
        return read(self, text)[0], read(self, line.sub(b"", text))[-1]

    return [(header_meanings._Kind, "read", read_without)]


@mutant("the Origin header decides the CORS fields of a live answer")
def join_ignores_the_origin_header() -> Patches:
    return _joined_without(b"Origin")


@mutant("a live reader is one of its own credentials' stream")
def join_ignores_authorization() -> Patches:
    return _joined_without(b"Authorization")


# -- whose request it is: limits and the log


@mutant("a client behind a proxy is the one that its own header section names")
def client_of_a_section_is_the_proxy() -> Patches:
    return [(Section, "client_address", lambda _, __, peer: peer)]


@mutant("a client behind a proxy is the one that its own header section names")
def client_of_a_section_is_the_first_client() -> Patches:
    client, first = Section.client_address, list[str | None]()

    def first_client(self: Section, *about: Any) -> str | None:
        first.append(client(self, *about))
        return first[0]

    return [(Section, "client_address", first_client)]


@mutant("rate limits count remembered answers")
def hit_is_not_limited() -> Patches:
    return [(Admission, "admit_remembered", always)]


@mutant("rate limits are charged with the bytes of remembered answers")
def hit_is_not_charged_its_bytes() -> Patches:
    admit = Admission.admit_remembered

    def admitted_without_bytes(self: Admission, account: Any, route: str, _: int) -> bool:
        return admit(self, account, route, 0)

    return [(Admission, "admit_remembered", admitted_without_bytes)]


@mutant("rate limits count live requests that join")
def join_is_not_limited() -> Patches:
    return [(Admission, "joined", nothing)]


@mutant("the bound on a client's live reads holds for those that join")
def join_passes_the_bound_on_live_reads() -> Patches:
    return [(Admission, "begin_join", always)]


@mutant("each long-poll of a group has a log line of its own client")
def poll_of_a_group_has_the_line_of_the_first() -> Patches:
    join, first = PollGroup.join, dict[int, Any]()

    def joined_as_the_first(self: PollGroup, channel: Any, client: Any) -> bool:
        return join(self, channel, first.setdefault(id(self), client))

    return [(PollGroup, "join", joined_as_the_first)]


# -- over HTTP/2


def _remembered_without(step: str) -> Patches:
    """Over HTTP/2 this step of remembered answers is left out."""
    answer = Http2Connection._is_remembered

    def answered_without(self: Http2Connection, *about: Any) -> bool:
        with patch.object(self.clients, step, None):
            return answer(self, *about)

    return [(Http2Connection, "_is_remembered", answered_without)]


@mutant("remembered answers over HTTP/2 have log lines")
def hit_over_http_2_has_no_log_line() -> Patches:
    return _remembered_without("on_hit")


@mutant("rate limits count remembered answers over HTTP/2")
def hit_over_http_2_is_not_limited() -> Patches:
    return _remembered_without("admits")


@mutant("a request of HTTP/2 is remembered with all that it says")
def request_over_http_2_is_remembered_without_a_header() -> Patches:
    init = Http2Request.__init__

    def begin(self: Http2Request, fields: Any) -> None:
        init(self, fields)
        if self.alias is not None:
            self.alias = re.sub(rb"\r\nAccept-Encoding:[^\r]*", b"", self.alias)

    return [(Http2Request, "__init__", begin)]
