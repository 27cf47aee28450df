"""The access log's lines: their contents, and that they match the documented schema."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.verdict import Caller
from gateway.ops.access_log.lines import Hit, Lines
from gateway.ops.access_log.schema import FIELDS, VERSION
from gateway.ops.partition_ids import PartitionIds
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.header_forwarding import trace_id_of
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Partition
from gateway.telemetry.access_record import Client, CloseReason, CommonFacts, Record, Repeated
from gateway.upstream.flight import Flight

KEY = "sixteen letters or more"
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"

FULL = Record(
    mode=Mode.SSE,
    outcome=Outcome.FOLLOWED,
    method="GET",
    route="default",
    stream="/chat/room?tenant=7",
    is_s2=True,
    partition=Partition("default", 0, "00112233445566778899aabbccddeeff"),
    status=200,
    ended_at=1_790_000_000.123456,
    duration_s=12.5,
    first_byte_s=0.001234,
    start="-1",
    next_offset="0000_0042",
    sent_bytes=4_096,
    saved_bytes=12_288,
    fetched_bytes=1_024,
    origin_requests=2,
    collapsed=50,
    subscribers=1_000,
    coding=Coding.ZSTD,
    client="192.0.2.77",
    principal="ada",
    tenant="acme",
    issuer="https://issuer.test",
    user_agent="curl/8.0",
    trace_id=TRACE,
    close_reason=CloseReason.LIFETIME,
)


def lines(masking: Any = "masked", key: str = KEY) -> Lines:
    return Lines("edge", masking, PartitionIds(key))


def read(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = orjson.loads(line)
    return found


def written(record: Record, masking: Any = "masked") -> dict[str, Any]:
    return read(lines(masking).line(record))


# -- the schema --------------------------------------------------------------------------------------------------------


def test_lines_match_the_schema() -> None:
    kinds: dict[str, Any] = {"integer": int, "number": (int, float), "string": str, "boolean": bool}
    full, least = written(FULL), written(Record(method="GET"))
    assert set(full) == {field.name for field in FIELDS}
    assert set(least) == {field.name for field in FIELDS if field.is_always_there}
    for field in FIELDS:
        assert isinstance(full[field.name], kinds[field.kind]), field.name
        assert field.kind == "boolean" or not isinstance(full[field.name], bool), field.name
        assert field.meaning.endswith("."), field.name


def schema_table() -> str:
    """The reference's table of fields."""
    rows = ["| field | JSON | unit or words | what it says |", "|---|---|---|---|"]
    for field in FIELDS:
        always = " *" if field.is_always_there else ""
        rows.append(f"| `{field.name}`{always} | {field.kind} | {field.unit} | {field.meaning} |")
    return "\n".join(rows) + "\n"


def test_the_reference_has_the_schema() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "access-log.md"
    assert schema_table() in page.read_text(encoding="utf-8")


def test_a_line_has_the_facts_of_its_record() -> None:
    full = written(FULL)
    assert full.pop("partition") == PartitionIds(KEY).of(FULL.partition or Partition(""))
    assert full.pop("id").endswith(".1.0")
    assert full == {
        "time": 1_790_000_000.123456,
        "v": VERSION,
        "node": "edge",
        "route": "default",
        "protocol": "s2",
        "stream": "/chat/room?tenant=7",
        "method": "GET",
        "mode": "sse",
        "status": 200,
        "outcome": "followed",
        "duration_s": 12.5,
        "first_byte_s": 0.001234,
        "start": "-1",
        "next_offset": "0000_0042",
        "sent_bytes": 4_096,
        "saved_bytes": 12_288,
        "fetched_bytes": 1_024,
        "origin_requests": 2,
        "collapsed": 50,
        "subscribers": 1_000,
        "coding": "zstd",
        "client": "192.0.2.0",
        "principal": "ada",
        "tenant": "acme",
        "issuer": "https://issuer.test",
        "user_agent": "curl/8.0",
        "trace_id": TRACE,
        "close_reason": "lifetime",
        "is_final": True,
    }


def test_every_enum_value_is_written_as_it_is() -> None:
    for mode in Mode:
        assert written(replace(FULL, mode=mode))["mode"] == mode.value
    for outcome in Outcome:
        assert written(replace(FULL, outcome=outcome))["outcome"] == outcome.value
    for reason in CloseReason:
        assert written(replace(FULL, close_reason=reason))["close_reason"] == reason.value


def test_every_fact_of_a_record_is_written() -> None:
    names = {"ended_at": "time", "is_s2": "protocol"}
    assert {names.get(field.name, field.name) for field in fields(Record)} == {field.name for field in FIELDS} - {
        "id",
        "v",
        "node",
    } | {"fetches", "is_accounted"}


def test_no_two_lines_have_the_same_id() -> None:
    # More than are ever made into lines at once, and as many of either kind.
    items: list[Record | Hit] = [(Repeated(READY), 1.0, 1.0, None, b"}\n"), FULL] * 300
    written_now = [
        line for writer in (lines(), lines()) for _ in range(3) for line in _each(writer.written(items, 0.0))
    ]
    ids = {line["id"] for line in written_now} | {written(FULL)["id"], read(lines().line(FULL))["id"]}
    assert len(ids) == 2 * 3 * 600 + 2
    assert all(re.fullmatch(r"[0-9a-f]{12}\.[0-9a-f]+\.[0-9a-f]+", id_) for id_ in ids)


def _each(text: bytes) -> list[dict[str, Any]]:
    return [read(line + b"\n") for line in text.splitlines()]


def test_requests_of_a_shared_fetch_are_in_one_record_and_later_ones_in_none() -> None:
    flight = Flight("-1", 1_000)
    leader, follower = Record(), Record()
    leader.share(flight, leads=True)
    follower.share(flight, leads=False)
    flight.requests += 2
    follower.finalize()
    leader.finalize()
    assert (leader.origin_requests, follower.origin_requests) == (2, 0)
    assert flight.holders == 0
    # Once its request is recorded, a share holds nothing.
    leader.share(flight, leads=True)
    assert (flight.holders, leader.fetches) == (0, ())


def test_a_shared_fetch_is_held_until_all_its_requests_are_recorded() -> None:
    flight, leader, live = Flight("-1", 1_000), Record(), Record()
    leader.share(flight, leads=True)
    live.share(flight, leads=False)
    leader.finalize()
    live.finalize(goes_on=True)
    assert flight.holders == 1
    flight.requests, flight.fetched = 1, 7
    flight.land()
    live.finalize(goes_on=True)
    assert (live.origin_requests, live.fetched_bytes, flight.holders) == (1, 7, 0)


def test_each_request_counts_its_shared_fetches_and_only_the_leader_their_bytes() -> None:
    first, second = Flight("-1", 1_000), Flight("5", 1_000)
    leader, follower = Record(), Record()
    leader.share(first, leads=True)
    follower.share(first, leads=False)
    follower.share(first, leads=False)
    leader.share(first, leads=False)
    follower.share(second, leads=True)
    first.fetched += 5
    second.fetched += 3
    for record in (leader, follower, follower):
        record.finalize()
    assert (leader.fetched_bytes, leader.collapsed) == (5, 2)
    assert (follower.fetched_bytes, follower.collapsed) == (3, 2)
    # Later bytes do not count for these requests.
    second.fetched += 1
    follower.finalize()
    assert follower.fetched_bytes == 3


def test_an_open_read_counts_fetched_bytes_as_they_arrive() -> None:
    flight, record, late = Flight("-1", 1_000), Record(), Record()
    record.share(flight, leads=True)
    late.share(flight, leads=False)
    flight.fetched += 5
    record.finalize(goes_on=True)
    flight.fetched += 1
    late.finalize()
    assert (record.fetched_bytes, late.fetched_bytes) == (5, 0)
    flight.fetched += 2
    flight.land()
    record.finalize(goes_on=True)
    assert record.fetched_bytes == 8
    assert record.fetches == ()


@pytest.mark.parametrize(
    ("stream", "names", "none"),
    [
        ("/s", "/s", "/s"),
        ("/s?a=1&token=s3cret&b", "/s?a&token&b", "/s"),
        ("/s?token=s3=cret?x=y&&=s3cret", "/s?token&&", "/s"),
        ("/s?", "/s?", "/s"),
        ("http://a:s3cret@b/s?token=s3cret", "http://a:s3cret@b/s?token", "http://a:s3cret@b/s"),
        ("/s?token=" + "s3cret" * 1_000, "/s?token", "/s"),
    ],
)
def test_a_query_is_written_whole_by_its_names_or_not_at_all(stream: str, names: str, none: str) -> None:
    for wanted, expected in (("full", stream[:2_048]), ("names", names), ("none", none)):
        writer = Lines("edge", "masked", PartitionIds(KEY), query=wanted)  # type: ignore[arg-type]
        record = replace(READY, stream=stream)
        hit = (Repeated(record), 1.0, 1.0, None, writer.ending(request()))
        assert read(writer.line(record))["stream"] == expected
        assert read(writer.written([hit], 0.0))["stream"] == expected


def test_partitions_are_distinguished_without_revealing_them() -> None:
    shown = written(FULL)["partition"]
    assert shown not in str(FULL.partition)
    assert "00112233" not in lines().line(FULL).decode()
    assert written(replace(FULL, partition=Partition("default", 0, "ffff")))["partition"] != shown
    assert read(lines(key="another key of enough letters").line(FULL))["partition"] != shown
    assert PartitionIds().of(Partition("default", 0, "ffff")) != PartitionIds().of(Partition("default", 0, "ffff"))


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("192.0.2.77", "192.0.2.0"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
        ("::ffff:192.0.2.77", "192.0.2.0"),
        ("fe80::1:2%eth0", "fe80::"),
        ("not an address", None),
    ],
)
def test_a_clients_address_is_cut_or_left_out(address: str, masked: str | None) -> None:
    record = replace(FULL, client=address)
    assert written(record).get("client") == masked
    assert written(record, "full")["client"] == address
    assert "client" not in written(record, "none")


def test_bytes_that_are_not_utf_8_are_written_with_replacements() -> None:
    agent = b"caf\xe9 \x01\xff".decode("utf-8", "surrogateescape")
    assert written(replace(FULL, user_agent=agent))["user_agent"] == "caf\ufffd \x01\ufffd"
    assert len(written(replace(FULL, user_agent="x" * 5_000))["user_agent"]) == 256


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (TRACEPARENT, TRACE),
        (f"cc-{TRACE}-b7ad6b7169203331-01-what-comes-later", TRACE),
        (f"ff-{TRACE}-b7ad6b7169203331-01", None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}-b7ad6b7169203331", None),
        ("", None),
        (None, None),
    ],
)
def test_a_trace_is_taken_from_a_valid_traceparent_only(traceparent: str | None, trace_id: str | None) -> None:
    assert trace_id_of(traceparent) == trace_id


# -- hits from remembered answers --------------------------------------------------------------------------------------

READY = replace(
    FULL,
    mode=Mode.CATCHUP,
    outcome=Outcome.HIT,
    close_reason=None,
    subscribers=None,
    collapsed=0,
    principal="",
    tenant="",
    issuer="",
)
ADA = Caller("192.0.2.77", 'ada "\u00e9" \u2603', "acme", "https://issuer.test")
TOOK_S = 0.000317


def request(*headers: bytes) -> bytes:
    return b"GET /s?offset=-1 HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in (b"Host: a", *headers)) + b"\r\n"


def of_hit(writer: Lines, *headers: bytes, client: Client = "192.0.2.77") -> dict[str, Any]:
    hit = (Repeated(READY), 1_000.123456 - TOOK_S, 1_000.123456, client, writer.ending(request(*headers)))
    found = read(writer.written([hit], 1_789_999_000.0))
    again = read(writer.written([hit], 1_789_999_000.0))
    assert found.pop("id") != again.pop("id")
    assert found == again, "what is remembered says something else"
    return found


def without_id(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "id"}


@pytest.mark.parametrize("masking", ["full", "masked", "none"])
@pytest.mark.parametrize("client", ["192.0.2.77", "2001:db8::1", "nowhere", None, ADA, ADA._replace(tenant="")])
def test_a_hits_line_has_the_fields_of_a_records_line(masking: Any, client: Client) -> None:
    headers = (b"User-Agent: curl/8.0", f"traceparent: {TRACEPARENT}".encode())
    times: dict[str, Any] = {"ended_at": 1_790_000_000.123456, "duration_s": TOOK_S, "first_byte_s": TOOK_S}
    caller = client if isinstance(client, Caller) else Caller(client, "", "", "")
    names: dict[str, Any] = dict(zip(caller._fields[1:], caller[1:], strict=True))
    record = replace(READY, client=caller.address, **names, **times)
    assert of_hit(lines(masking), *headers, client=client) == without_id(written(record, masking))
    record = replace(record, user_agent=None, trace_id=None)
    assert of_hit(lines(masking), client=client) == without_id(written(record, masking))


@pytest.mark.parametrize("reason", [None, CloseReason.LEFT])
def test_a_joined_readers_line_has_the_fields_of_a_records_line(reason: CloseReason | None) -> None:
    headers = (b"User-Agent: curl/8.0", f"traceparent: {TRACEPARENT}".encode())
    record = replace(
        FULL.common(),
        status=200,
        outcome=Outcome.ABORTED,
        next_offset="7",
        sent_bytes=40,
        close_reason=reason,
        is_final=reason is not None,
        ended_at=1_790_000_000.5,
        duration_s=61.25,
        first_byte_s=0.000_317,
        subscribers=3,
        client="192.0.2.77",
        user_agent="curl/8.0",
        trace_id=TRACE,
    )
    writer, common = lines(), CommonFacts(FULL.common()).line(Outcome.ABORTED, reason, "7", 40)
    ending = writer.ending(request(*headers))
    made = read(writer.written([(common, 938.75, 1_000.0, "192.0.2.77", ending, 0.000_317, 3)], 1_789_999_000.5))
    assert without_id(made) == without_id(written(record))


def test_a_hits_times_are_written_to_the_microsecond() -> None:
    writer = lines()
    items: list[Record | Hit] = [
        (Repeated(READY), 7.000_001, 7.000_001 + took_s, None, b"}\n") for took_s in (0.000_009, 0.000_998, 1.5, 0.0)
    ]
    made = _each(writer.written(items, 1_790_000_000.0))
    assert [line["time"] - 1_790_000_007 for line in made] == pytest.approx(
        [1e-5, 0.000_999, 1.500_001, 1e-6], abs=5e-7
    )
    assert [line["duration_s"] for line in made] == [0.000_009, 0.000_998, 1.5, 0.0]
    assert [line["first_byte_s"] for line in made] == [0.000_009, 0.000_998, 1.5, 0.0]


def test_user_agent_and_trace_are_read_from_the_requests_own_bytes() -> None:
    writer = lines()
    trace = TRACEPARENT.encode()
    for headers, agent, trace_id in (
        ((), None, None),
        ((b"USER-AGENT:a",), "a", None),
        ((b"user-agent: \t a b \t ", b"TraceParent:" + trace), "a b", TRACE),
        ((b"User-Agent:", b"traceparent: " + trace + b" "), "", TRACE),
        ((b"x-user-agent: a", b"x-traceparent: " + trace), None, None),
        ((b"User-Agent: first", b"User-Agent: second"), "first", None),
        ((b"traceparent: " + trace, b"User-Agent: a", b"traceparent: " + trace), "a", None),
        ((b"traceparent: 00-no-trace-00", b"User-Agent: a"), "a", None),
        ((b'User-Agent: caf\xe9 "q" \\',), 'caf\ufffd "q" \\', None),
        ((b"User-Agent: " + b"x" * 1_000,), "x" * 256, None),
    ):
        found = of_hit(writer, *headers)
        assert (found.get("user_agent"), found.get("trace_id")) == (agent, trace_id), headers


@given(st.lists(st.tuples(st.sampled_from([b"User-Agent", b"traceparent", b"Cookie"]), st.binary(max_size=40))))
def test_any_headers_give_a_line_of_one_json_object(headers: list[tuple[bytes, bytes]]) -> None:
    cleaned = [name + b":" + value.replace(b"\r", b"").replace(b"\n", b"") for name, value in headers]
    of_hit(lines(), *cleaned)


def test_the_memory_of_clients_agents_and_durations_is_bounded() -> None:
    writer = lines("full")
    hit = Repeated(READY)
    for number in range(40):
        of_some = [
            (
                hit,
                1.0,
                1.0 + (number * 256 + n) / 1e6,
                f"10.{number}.{n // 256}.{n % 256}",
                writer.ending(request(b"User-Agent: %d" % (number * 256 + n))),
            )
            for n in range(256)
        ]
        made = [orjson.loads(line) for line in writer.written(of_some, 0.0).splitlines()]
        assert [int(line["user_agent"]) for line in made] == list(range(number * 256, number * 256 + 256))
        assert [line["client"] for line in made] == [item[3] for item in of_some]
        assert [line["duration_s"] for line in made] == [n / 1e6 for n in range(number * 256, number * 256 + 256)]
    assert writer.remembered < 5_000


def test_the_memory_of_live_reads_is_bounded_although_no_line_is_written() -> None:
    writer = lines("full")
    found = [writer.facts_of(b"\r\nUser-Agent: %d\r\n\r\n" % number) for number in range(10_000)]
    assert found == [(str(number), None) for number in range(10_000)]
    assert writer.remembered < 5_000
