"""Headers that pass, are dropped, or are added."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.protocol.header_forwarding import (
    HOP_BY_HOP,
    is_looping,
    nominated,
    request_headers_for_origin,
    response_headers_for_client,
    storable_headers,
)


def asked(
    *headers: tuple[str, str], client: str | None = "192.0.2.7", host: str = "example.org", is_from_proxy: bool = False
) -> CIMultiDict[str]:
    return request_headers_for_origin(
        CIMultiDict(headers),
        node="gw",
        client=client,
        is_from_proxy=is_from_proxy,
        host=host,
        scheme="https",
        http_version="1.1",
    )


class TestRequest:
    @pytest.mark.parametrize("name", [*sorted(HOP_BY_HOP), "Host", "Expect"])
    def test_hop_by_hop_fields_are_dropped(self, name: str) -> None:
        assert name not in asked((name, "x"), ("Stream-Seq", "1"))
        assert name.upper() not in asked((name.upper(), "x"))

    def test_fields_that_connection_names_are_dropped(self) -> None:
        passed = asked(
            ("Connection", "close, X-Hop"), ("connection", "x-other"), ("X-Hop", "1"), ("X-Other", "1"), ("X-End", "1")
        )
        assert "X-Hop" not in passed
        assert "X-Other" not in passed
        assert passed["X-End"] == "1"

    @pytest.mark.parametrize(
        "name",
        [
            "Authorization",
            "Cookie",
            "Content-Length",
            "Content-Type",
            "Stream-Closed",
            "Producer-Id",
            "CDN-Loop",
            "Via",
        ],
    )
    def test_connection_cannot_name_what_the_gateway_or_the_protocol_relies_on(self, name: str) -> None:
        assert name in asked(("Connection", name), (name, "1"))
        assert name.lower() not in nominated(CIMultiDict({"Connection": name}))

    @pytest.mark.parametrize(
        "name",
        [
            "Stream_Forked_From",
            "stream_closed",
            "STREAM-FORKED_FROM",
            "Producer_Id",
            "X_Forwarded_For",
            "X-Forwarded_Proto",
            "X_Real_IP",
            "Proxy_Connection",
        ],
    )
    def test_headers_that_cgi_takes_for_others_are_dropped(self, name: str) -> None:
        assert [*asked((name, "x"), (name.lower(), "y"), ("X_A", "z"))] == ["X_A", *asked()]
        # A trusted proxy replaces only the spelling with hyphens.
        assert [*asked((name, "x"), ("X_A", "z"), is_from_proxy=True)] == ["X_A", *asked()]

    def test_repeated_headers_keep_their_order(self) -> None:
        assert asked(("X-A", "1"), ("x-a", "2")).getall("X-A") == ["1", "2"]

    def test_the_gateway_adds_itself(self) -> None:
        passed = asked()
        assert passed["Via"] == "1.1 gw"
        assert passed["Forwarded"] == "for=192.0.2.7;host=example.org;proto=https"
        assert passed["CDN-Loop"] == "gw"

    def test_it_adds_itself_behind_those_before_it_on_one_line(self) -> None:
        passed = asked(
            ("Via", "1.0 a"), ("via", "2 b"), ("Forwarded", "for=_x"), ("CDN-Loop", "other; v=1"), ("CDN-Loop", " ")
        )
        assert passed.getall("Via") == ["1.0 a, 2 b, 1.1 gw"]
        assert passed.getall("Forwarded") == ["for=_x, for=192.0.2.7;host=example.org;proto=https"]
        assert passed.getall("CDN-Loop") == ["other; v=1, gw"]

    @pytest.mark.parametrize(
        ("client", "identifier"),
        [
            ("192.0.2.7", "192.0.2.7"),
            ("2001:DB8::1", '"[2001:db8::1]"'),
            ("fe80::1%eth0", '"[fe80::1]"'),
            ("::ffff:192.0.2.7", '"[::ffff:c000:207]"'),
            (None, "unknown"),
            ("", "unknown"),
            ("/run/gateway.sock", "unknown"),
            ("evil;proto=https", "unknown"),
        ],
    )
    def test_the_clients_address_is_written_as_rfc_7239_has_it(self, client: str | None, identifier: str) -> None:
        passed = asked(client=client)["Forwarded"]
        assert passed in (
            f"for={identifier};host=example.org;proto=https",
            f"for={identifier.replace('c000:207', '192.0.2.7')};host=example.org;proto=https",
        )

    def test_a_host_with_a_port_or_worse_is_quoted(self) -> None:
        assert 'host="example.org:80";' in asked(host="example.org:80")["Forwarded"]
        assert 'host="a\\"b\\\\";' in asked(host='a"b\\')["Forwarded"]

    def test_the_clients_headers_are_left_as_they_are(self) -> None:
        headers = CIMultiDict([("Host", "a"), ("Via", "1.0 a")])
        request_headers_for_origin(
            CIMultiDictProxy(headers), node="gw", client=None, host="a", scheme="http", http_version="1.1"
        )
        assert list(headers.items()) == [("Host", "a"), ("Via", "1.0 a")]


class TestLoop:
    @pytest.mark.parametrize(
        "lines", [["gw"], ["GW"], ["a, gw"], ["a", "b,gw ; x=1"], ['a; x="1", gw'], [" gw"], ['a;x="unbalanced, gw']]
    )
    def test_a_loop_is_detected(self, lines: list[str]) -> None:
        assert is_looping(CIMultiDict([("CDN-Loop", line) for line in lines]), "gw")

    @pytest.mark.parametrize("lines", [[], [""], ["gw2"], ["a; gw"], ["a; b=gw"], [",,"], ["g w"]])
    def test_other_requests_are_not_loops(self, lines: list[str]) -> None:
        assert not is_looping(CIMultiDict([("CDN-Loop", line) for line in lines]), "gw")

    @given(st.lists(st.tuples(st.sampled_from(["CDN-Loop", "Via", "Connection"]), st.text(max_size=12)), max_size=4))
    def test_the_gateway_recognises_every_request_it_forwarded(self, headers: list[tuple[str, str]]) -> None:
        assert is_looping(asked(*headers), "gw")


class TestResponse:
    def test_end_to_end_headers_pass_and_via_grows(self) -> None:
        origin = CIMultiDict(
            [
                ("Content-Type", "text/plain"),
                ("Stream-Next-Offset", "1"),
                ("Connection", "close, X-Hop, Stream-Next-Offset"),
                ("X-Hop", "1"),
                ("Transfer-Encoding", "chunked"),
                ("Set-Cookie", "a=1"),
                ("Set-Cookie", "b=2"),
                ("Via", "1.1 inner"),
            ]
        )
        passed = response_headers_for_client(origin, node="gw", http_version="1.0")
        assert list(passed.items()) == [
            ("Content-Type", "text/plain"),
            ("Stream-Next-Offset", "1"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
            ("Via", "1.1 inner, 1.0 gw"),
        ]

    @pytest.mark.parametrize(
        ("origin", "buffering"),
        [
            ({"Content-Type": "text/event-stream; charset=utf-8"}, ["no"]),
            ({"Content-Type": "text/event-stream", "X-Accel-Buffering": "yes"}, ["yes"]),
            ({"Content-Type": "application/json"}, []),
            ({}, []),
        ],
    )
    def test_a_relayed_event_stream_disables_buffering(self, origin: dict[str, str], buffering: list[str]) -> None:
        passed = response_headers_for_client(CIMultiDict(origin), node="gw", http_version="1.1")
        assert passed.getall("X-Accel-Buffering", []) == buffering

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("Access-Control-Allow-Origin", "*"),
            ("Access-Control-Expose-Headers", "Stream-Next-Offset"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "cross-origin"),
            ("Content-Disposition", "attachment"),
            ("Content-Language", "de"),
            ("Content-Security-Policy", "sandbox"),
            ("X-Custom", "1"),
        ],
    )
    def test_headers_of_the_stream_may_be_replayed(self, name: str, value: str) -> None:
        assert storable_headers(CIMultiDict({name: value})) == CIMultiDict({name: value})

    @pytest.mark.parametrize(
        "name",
        [
            "Date", "Age", "ETag", "Content-Length", "Content-Type", "Content-Encoding", "Content-Range",
            "Cache-Control",
            "Expires", "Stream-Next-Offset", "STREAM-CURSOR", "stream-sse-data-encoding", "Producer-Epoch",
            "Set-Cookie",
            "Server", "Via", "Cache-Status", "Last-Modified", "Accept-Ranges", "Vary", "Connection",
            "Transfer-Encoding", "Keep-Alive", "Retry-After",
            "RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "X-Request-Id",
            "X-Accel-Buffering", "X-Accel-Expires",
        ],
    )  # fmt: skip
    def test_headers_of_one_reply_may_not_be_replayed(self, name: str) -> None:
        assert not storable_headers(CIMultiDict({name: "1"}))

    def test_headers_that_the_origins_connection_names_are_not_replayed(self) -> None:
        assert not storable_headers(CIMultiDict({"Connection": "X-Hop", "X-Hop": "1"}))


CUSTOMARY = {
    "X-Forwarded-For": "203.0.113.7",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "a.test",
    "X-Forwarded-Port": "443",
    "X-Real-IP": "203.0.113.7",
}


def sent_on(headers: dict[str, str], *, is_from_proxy: bool) -> CIMultiDict[str]:
    return request_headers_for_origin(
        CIMultiDict(headers),
        node="edge",
        client="10.0.0.1",
        host="h",
        scheme="https",
        http_version="1.1",
        is_from_proxy=is_from_proxy,
    )


def test_a_clients_claims_about_its_address_are_dropped() -> None:
    """The origin would take it for the gateway's claim; in Forwarded the gateway's member is the last."""
    passed = sent_on({**CUSTOMARY, "Forwarded": "for=6.6.6.6"}, is_from_proxy=False)
    assert not {name.lower() for name in passed} & {name.lower() for name in CUSTOMARY}
    assert passed["Forwarded"] == "for=6.6.6.6, for=10.0.0.1;host=h;proto=https"


def test_a_trusted_proxys_claims_pass_with_that_proxy_appended() -> None:
    passed = sent_on(CUSTOMARY, is_from_proxy=True)
    assert {name: passed[name] for name in CUSTOMARY} == {**CUSTOMARY, "X-Forwarded-For": "203.0.113.7, 10.0.0.1"}
    assert passed["Forwarded"] == "for=10.0.0.1;host=h;proto=https"
    assert "X-Forwarded-For" not in sent_on({}, is_from_proxy=True)


def test_claims_of_a_trusted_proxys_client_are_dropped() -> None:
    passed = sent_on({**CUSTOMARY, "Forwarded": "for=6.6.6.6"}, is_from_proxy=True)
    assert passed["Forwarded"] == "for=10.0.0.1;host=h;proto=https"


def test_connection_cannot_drop_a_trusted_proxys_claims() -> None:
    passed = sent_on({**CUSTOMARY, "Connection": "X-Forwarded-For, X-Forwarded-Proto"}, is_from_proxy=True)
    assert passed["X-Forwarded-For"] == "203.0.113.7, 10.0.0.1"
    assert passed["X-Forwarded-Proto"] == "https"


def test_a_long_connection_field_binds_the_headers_that_it_names() -> None:
    headers = CIMultiDict({"X-Bound": "1", "X-Free": "1", "Stream-Seq": "1", "Keep-Alive": "1"})
    headers.add("Connection", ",".join(f"{n:x}" for n in range(2_000)))
    headers.add("Connection", "a , X-BOUND ,stream-seq,Keep-Alive")
    assert nominated(headers) == {"x-bound", "keep-alive"}
