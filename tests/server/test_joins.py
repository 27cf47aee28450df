"""Live requests that are remembered by their bytes."""

from __future__ import annotations

import pytest

from gateway.http.request import MOST_FIELDS
from gateway.protocol.mode import Mode
from gateway.server.joins import Join, Joins
from gateway.server.request_keys import Sections
from tests.engine.bench import EngineBench


async def test_the_oldest_are_forgotten_beyond_a_number_of_bytes() -> None:
    bench = EngineBench()
    join = Join(bench.read("/s"), Mode.SSE, None)
    joins = Joins(Sections([()]))
    requests = [b"GET /%d HTTP/1.1\r\n%b\r\n\r\n" % (number, b"X" * 3_000) for number in range(2_000)]
    for request in requests:
        joins.remember(request, join, ())
    assert 300 < len(joins) < (4 << 20) / 8_000
    assert joins.get(requests[0]) is None
    found = joins.get(requests[-1])
    assert found is not None
    assert found[0] is join
    await bench.close()


def test_sections_are_forgotten_beyond_a_number_of_bytes() -> None:
    sections = Sections([()])
    texts = [b"\r\nHost: a\r\nUser-Agent: %d%b\r\n\r\n" % (number, b"x" * 3_000) for number in range(4_000)]
    kept = [sections.of(text) for text in texts]
    assert {section.loose for section in kept if section is not None} == {b"\r\nHost: a\r\n\r\n"}
    assert 1_000 < len(sections) < (8 << 20) / 3_000
    assert sections.of(texts[-1]) is kept[-1]
    assert sections.of(texts[0]) is not kept[0]


@pytest.mark.parametrize(
    "line",
    [
        b"User-Agent: a\x01b",
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
    section = Sections([("authorization",)]).of(b"\r\nHost: a\r\n" + line + b"\r\n\r\n")
    assert section is not None
    assert line in section.loose


@pytest.mark.parametrize("end", [b"\r\n", b"\r\n\r\nUser-Agent: a\r\n\r\n", b"\r\n\r\nmore"])
def test_bytes_that_are_not_exactly_one_section_give_no_key(end: bytes) -> None:
    assert Sections([()]).of(b"\r\nHost: a" + end) is None


def test_credentials_leave_the_key_only_on_routes_whose_readers_share() -> None:
    text = b"\r\nHost: a\r\nAuthorization: Bearer a\r\n\r\n"
    names = [frozenset({"authorization"}), frozenset[str]()]
    section = Sections(names, ["authorization"]).of(text)
    assert section is not None
    assert section.loose == b"\r\nHost: a\r\n\r\n"
    assert section.tight == text


@pytest.mark.parametrize("line", [b"Cookie: a=b\r\n", b"a:\r\n"])
def test_a_section_with_more_lines_than_the_parser_accepts_gives_no_key(line: bytes) -> None:
    sections = Sections([()])
    assert sections.of(b"\r\nHost: a\r\n" + line * (MOST_FIELDS - 1) + b"\r\n") is not None
    assert sections.of(b"\r\nHost: a\r\n" + line * MOST_FIELDS + b"\r\n") is None
