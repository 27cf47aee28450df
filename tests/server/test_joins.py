"""Live requests that are remembered by their bytes."""

from __future__ import annotations

import pytest

from gateway.auth.remembered_verdicts import Allowed
from gateway.auth.verdict import PUBLIC
from gateway.engine.route import HeaderRules
from gateway.http.request_parser import MOST_FIELDS
from gateway.protocol.mode import Mode
from gateway.server.header_meanings import MOST_ALLOWED, Known, Sections
from gateway.server.joins import Join, Joins
from gateway.server.query_credentials import NamedStream, StreamNames
from tests.engine.bench import EngineBench
from tests.server.conftest import Pair, ask, close, connect, get, read_response, write
from tests.waiting import eventually

RULES = HeaderRules()


async def test_the_oldest_are_forgotten_beyond_a_number_of_bytes() -> None:
    bench = EngineBench()
    read, sections = bench.read("/s"), Sections([RULES])
    joins = Joins(sections)
    requests = [b"GET /%d HTTP/1.1\r\n%b\r\n\r\n" % (number, b"X" * 3_000) for number in range(2_000)]
    for request in requests:
        join = Join(read, Mode.SSE, None)
        joins.remember(request, join, RULES)
    assert 900 < len(joins) < (16 << 20) / 14_000
    assert len(joins.exact) == len(joins)
    assert sections.find(requests[0]) is None
    found = sections.find(requests[-1])
    assert found is not None
    assert found[0] is join
    await bench.close()


def test_sections_are_forgotten_beyond_a_number_of_bytes() -> None:
    sections = Sections([RULES])
    texts = [b"\r\nHost: a\r\nUser-Agent: %d%b\r\n\r\n" % (number, b"x" * 3_000) for number in range(4_000)]
    for text in texts[:-1]:
        assert sections.section_of(text) is not sections.section_of(text)
    # Only sections that are seen again are kept.
    kept = [sections.section_of(text) for text in texts]
    assert {sections.for_hits(section, RULES).text for section in kept if section is not None} == {
        b"\r\nHost: a\r\n\r\n"
    }
    assert 1_000 < len(sections) < (8 << 20) / 3_000
    assert sections.section_of(texts[-2]) is kept[-2]
    assert sections.section_of(texts[0]) is not kept[0]
    assert sections.section_of(texts[-1]) is not kept[-1]


async def test_equal_names_of_a_stream_are_one_object_unless_they_are_long() -> None:
    bench = EngineBench()
    route, names = bench.read("/s").route, StreamNames()
    for size, is_shared in ((100, True), (300, False)):
        one, other = (NamedStream(route, "/s", "x" * size) for _ in range(2))
        assert names.shared_name(one) is one
        assert (names.shared_name(other) is one) == is_shared
    await bench.close()


def test_a_section_keeps_the_verdicts_of_many_signed_urls_and_loses_them_with_its_place() -> None:
    sections, allowed = Sections([RULES]), Allowed(PUBLIC, 0)
    text = b"\r\nHost: a\r\nUser-Agent: b\r\n\r\n"
    section = [sections.section_of(text) for _ in range(2)][-1]
    assert section is not None
    lines = [b"GET /s?signature=%d HTTP/1.1" % number for number in range(MOST_ALLOWED)]
    for line in lines:
        sections.allow(section, line, allowed)
    assert set(section.allowed) == set(lines)
    cost = section.cost
    sections.allow(section, lines[0], allowed)
    assert section.cost == cost
    sections.allow(section, b"GET /another HTTP/1.1", allowed)
    assert len(section.allowed) == 1
    # Only this verdict and the section itself are charged now.
    assert section.cost < 2_000
    assert repr(sections) == f"<Sections 1 sections, {section.cost} bytes>"
    others = [b"\r\nHost: %d\r\nUser-Agent: %b\r\n\r\n" % (number, b"x" * 3_000) for number in range(4_000)]
    for other in (*others, *others):
        sections.section_of(other)
    assert section.allowed == {}
    # It is not charged any more, and keeps few.
    for line in lines:
        sections.allow(section, line, allowed)
        assert len(section.allowed) <= 256


@pytest.mark.parametrize(
    "line",
    [
        b"User-Agent: a\x01b",
        b"Accept-Encoding: br",
        b'If-None-Match: "a"',
        b"User-Agent : a",
        b"USER-AGENT: a",
        b" User-Agent: a",
        b"User-Agent: \xe4",
        b"Origin: https://a.example",
        b"Authorization: Bearer a",
        b"CDN-Loop: edge",
        b"X-Forwarded-Host: a",
    ],
)
def test_a_line_of_unusual_form_or_with_meaning_stays_in_the_key(line: bytes) -> None:
    rules = HeaderRules(frozenset({"authorization"}))
    sections = Sections([rules])
    section = sections.section_of(b"\r\nHost: a\r\n" + line + b"\r\n\r\n")
    assert section is not None
    assert line in sections.for_hits(section, rules).text


@pytest.mark.parametrize("end", [b"\r\n", b"\r\n\r\nUser-Agent: a\r\n\r\n", b"\r\n\r\nmore"])
def test_bytes_that_are_not_exactly_one_section_give_no_key(end: bytes) -> None:
    assert Sections([RULES]).section_of(b"\r\nHost: a" + end) is None


def test_credentials_leave_the_key_only_on_routes_whose_readers_share() -> None:
    text = b"\r\nHost: a\r\nAuthorization: Bearer a\r\n\r\n"
    decisive, personal = HeaderRules(frozenset({"authorization"})), HeaderRules(personal=frozenset({"authorization"}))
    sections = Sections([decisive, personal])
    section = sections.section_of(text)
    assert section is not None
    for meaning in (sections.for_hits, sections.for_lives):
        assert meaning(section, personal).text == b"\r\nHost: a\r\n\r\n"
        assert meaning(section, decisive).text == text


@pytest.mark.parametrize(("name", "other"), [("x--a", "x-b-a"), ("x-", "x-b"), ("x-^a", "x-ba")])
def test_a_credential_of_an_unusual_name_takes_no_other_line_out_of_the_key(name: str, other: str) -> None:
    rules = HeaderRules(personal=frozenset({name}))
    section = (sections := Sections([rules])).section_of(f"\r\n{name}: 1\r\n{other}: 2\r\n\r\n".encode())
    assert section is not None
    assert sections.for_hits(section, rules).text == f"\r\n{other}: 2\r\n\r\n".encode()


ALLOWED = HeaderRules(web_origins=frozenset({"https://a.example", "https://b.example"}))


@pytest.mark.parametrize(
    ("one", "other", "is_same_for_hits", "is_same_for_lives"),
    [
        (b"Origin: https://a.example", b"Origin: https://b.example", False, True),
        (b"Origin: https://a.example", b"origin:  https://B.example ", False, True),
        (b"Origin: https://a.example", b"X: y", False, False),
        (b"Origin: https://a.example", b"Origin: https://c.example", False, False),
        (b"Origin: https://c.example", b"Origin: https://d.example", True, True),
        (b"ORIGIN: https://a.example", b"ORIGIN: https://b.example", False, False),
        (b"ORIGIN: x\r\nOrigin: https://c.example", b"Origin: https://c.example\r\nORIGIN: x", False, False),
        (b"Origin: https://a.example\r\nOrigin: x", b"Origin: https://b.example\r\nOrigin: x", False, False),
    ],
)
def test_allowed_web_origins_share_live_answers_and_others_share_all(
    one: bytes, other: bytes, is_same_for_hits: bool, is_same_for_lives: bool
) -> None:
    sections = Sections([ALLOWED])
    first, second = (sections.section_of(b"\r\nHost: a\r\n%b\r\n\r\n" % line) for line in (one, other))
    assert first is not None
    assert second is not None
    for meaning, is_same in ((sections.for_hits, is_same_for_hits), (sections.for_lives, is_same_for_lives)):
        assert (meaning(first, ALLOWED).text == meaning(second, ALLOWED).text) is is_same


async def test_a_live_request_is_known_until_the_routes_change() -> None:
    bench = EngineBench()
    joins, request = Joins(sections := Sections([RULES])), b"GET /s HTTP/1.1\r\nHost: a\r\n\r\n"
    joins.remember(request, Join(bench.read("/s"), Mode.SSE, None), RULES)
    assert sections.find(request) is not None
    joins.clear()
    assert (sections.find(request), joins.exact, joins.generation) == (None, {}, 1)
    await bench.close()


async def test_a_repeated_live_request_is_found_by_its_bytes(pair: Pair) -> None:
    """The section of the first request is not kept, so the look-up by bytes must learn of a later one."""
    await write(pair.fast, "PUT", "/s", b"ab", Content_Type="text/plain")
    joins, asked = pair.fast.clients.joins, get("/s?offset=-1&live=sse")
    for _ in range(4):
        reader, writer = await connect(pair.fast)
        try:
            writer.write(asked)
            await reader.readuntil(b"upToDate")
        finally:
            await close(writer)
    assert joins.exact[asked][1].cost
    assert pair.fast.clients.repeats


@pytest.mark.parametrize("line", [b"Cookie: a=b\r\n", b"a:\r\n"])
def test_a_section_with_more_lines_than_the_parser_accepts_gives_no_key(line: bytes) -> None:
    sections = Sections([RULES])
    assert sections.section_of(b"\r\nHost: a\r\n" + line * (MOST_FIELDS - 1) + b"\r\n") is not None
    assert sections.section_of(b"\r\nHost: a\r\n" + line * MOST_FIELDS + b"\r\n") is None


def test_a_section_is_looked_through_only_for_routes_that_know_its_request_line() -> None:
    kinds = [HeaderRules(web_origins=frozenset({f"https://{number}.example"})) for number in range(100)]
    sections = Sections(kinds)
    request = b"GET /s HTTP/1.1\r\nHost: a\r\nUser-Agent: %b\r\n\r\n"
    split = sections.split(request % b"1")
    assert split is not None
    line, known = split[0], Known()
    meaning = sections.for_hits(split[1], kinds[7])
    meaning.learn(line, known)
    found = sections.find(request % b"2")
    assert found is not None
    assert (found[0], len(found[1].kinds)) == (known, 1)
    count = len(sections)
    assert sections.find(request.replace(b"/s", b"/t") % b"3") is None
    meaning.forget_known(line, known)
    assert sections.find(request % b"4") is None
    assert len(sections) == count


async def test_a_long_poll_that_is_answered_at_once_is_remembered(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"ab", Content_Type="text/plain")
    [first] = await ask(pair.fast, get("/s?offset=-1"))
    [tail] = first.headers["stream-next-offset"]
    find = pair.fast.clients.find
    assert find is not None
    reader, writer = await connect(pair.fast)
    try:
        writer.write(waiting := get(f"/s?offset={tail}&live=long-poll"))
        await eventually(lambda: find(waiting, None) is not None)
        await write(pair.fast, "POST", "/s", b"cd", Content_Type="text/plain")
        woken = await read_response(reader)
        behind = get(f"/s?offset={tail}&live=long-poll&cursor=1")
        assert find(behind, None) is None
        [late] = await ask(pair.fast, behind)
        # Otherwise readers that fall behind together would each be parsed, and fall behind further.
        assert find(behind, None) is not None
        [later] = await ask(pair.fast, behind)
        assert woken.body == late.body == later.body == b"cd"
    finally:
        await close(writer)
